import { readFile, readlink, realpath, rm } from 'node:fs/promises';
import { platform } from 'node:os';
import { join } from 'node:path';
import { run } from './command.ts';
import { LocalProblem } from './problem.ts';
import { poll } from './wait.ts';

/** What PostgreSQL writes into its data folder while it runs (storage/pidfile.h of PostgreSQL's source). */
export interface LockFile {
  readonly pid: number;
  /** `starting`, `ready`, `standby` or `stopping` */
  readonly status: string;
}

const PID_LINE = 0;
const STATUS_LINE = 7;
const EARLIER_SERVER_MS = 5_000;

export async function readLockFile(dataDir: string): Promise<LockFile | undefined> {
  const text = await readFile(lockFile(dataDir), 'utf8').catch(() => undefined);
  const lines = text?.split('\n') ?? [];
  const pid = Number(lines[PID_LINE]);
  if (!Number.isInteger(pid) || pid <= 0) return undefined;
  return { pid, status: lines[STATUS_LINE]?.trim() ?? '' };
}

/**
 * Returns once no server runs on the data folder. PostgreSQL leaves its lock file behind when it is killed, and
 * takes any process that has the same number since for itself: such a file is removed here.
 * @throws {LocalProblem} `postgres_running` when a server is still there after 5 seconds
 */
export async function waitForEarlierServer(dataDir: string, log: (line: string) => void): Promise<void> {
  const lock = await readLockFile(dataDir);
  if (lock === undefined) return;
  if (await isServerOf(lock.pid, dataDir)) {
    log(`waiting for an earlier PostgreSQL (process ${lock.pid}) to end`);
    const gone = await poll(
      async () => ((await isServerOf(lock.pid, dataDir)) ? undefined : true),
      EARLIER_SERVER_MS,
    );
    if (gone === undefined) {
      throw new LocalProblem(
        'postgres_running',
        `Another PostgreSQL (process ${lock.pid}) already runs on ${dataDir}: stop what started it, then try again.`,
      );
    }
  }
  await rm(lockFile(dataDir), { force: true });
}

async function isServerOf(pid: number, dataDir: string): Promise<boolean> {
  if (platform() === 'linux') {
    // A server works inside its data folder; a zombie has no such link.
    const folder = await readlink(`/proc/${pid}/cwd`).catch(() => undefined);
    return folder !== undefined && folder === (await realpath(dataDir));
  }
  const listed = await run('ps', ['-o', 'command=', '-p', String(pid)], {});
  return listed.code === 0 && listed.output.includes(dataDir);
}

function lockFile(dataDir: string): string {
  return join(dataDir, 'postmaster.pid');
}
