import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { LocalProblem } from './problem.ts';
import { poll } from './wait.ts';

/** A server, or another long-lived program, running as the leader of its own process group. */
export interface ServerProcess {
  readonly pid: number;
  /** Settles, never rejects, when the process and its children are gone, with how it ended: `exit code 1`, `signal SIGKILL`. */
  readonly exited: Promise<string>;
  /** How it ended, once it has. */
  ending(): string | undefined;
  /** The last lines it wrote. */
  tail(): string;
  /** Ends its group in order, and by force when it takes longer than 20 s; returns once it is gone. */
  stop(): Promise<void>;
}

export interface LaunchOptions {
  readonly name: string;
  readonly command: string;
  readonly args: readonly string[];
  /** The signal that asks for an orderly end, and the one for when that takes too long. */
  readonly stopSignal: NodeJS.Signals;
  readonly forceSignal: NodeJS.Signals;
  readonly env?: NodeJS.ProcessEnv | undefined;
  readonly cwd?: string | undefined;
  readonly user?: { readonly uid: number; readonly gid: number } | undefined;
  /** A folder to remove after the process when this program is killed and cannot do it itself. */
  readonly temporaryFolder?: string | undefined;
  readonly onLine?: ((line: string) => void) | undefined;
}

const GRACE_MS = 20_000;
const TAIL_LINES = 30;

/**
 * Starts a server that outlives Ctrl-C (it leads its own process group, so that this program can stop things in
 * order) but not this program: a guard ends it when this program is gone, even by SIGKILL.
 * @throws {LocalProblem} `not_startable`
 */
export function launch(options: LaunchOptions): ServerProcess {
  const child = spawn(options.command, options.args, {
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
    ...(options.env === undefined ? {} : { env: options.env }),
    ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
    ...options.user,
  });
  // Without a listener a failed spawn would be an uncaught exception; it shows in the missing pid as well.
  child.on('error', () => {});
  const pid = child.pid;
  if (pid === undefined) {
    throw new LocalProblem(
      'not_startable',
      `${options.name} could not be started: ${options.command} is missing or not executable.`,
    );
  }
  const dismissGuard = guard(pid, options);
  child.once('exit', dismissGuard);
  let ending: string | undefined;
  const exited = new Promise<string>((resolve) => {
    // Not `exit`: PostgreSQL's children hold the same pipes and can outlive a killed parent by a moment.
    child.once('close', (code, signal) => {
      ending = signal === null ? `exit code ${code}` : `signal ${signal}`;
      resolve(ending);
    });
  });
  const tail: string[] = [];
  for (const stream of [child.stdout, child.stderr]) {
    readLines(stream, (line) => {
      tail.push(line);
      if (tail.length > TAIL_LINES) tail.shift();
      options.onLine?.(line);
    });
  }
  return {
    pid,
    exited,
    ending: () => ending,
    tail: () => tail.join('\n'),
    stop: () => stopGroup(pid, options, exited, () => ending),
  };
}

async function stopGroup(
  pid: number,
  options: LaunchOptions,
  exited: Promise<string>,
  ending: () => string | undefined,
): Promise<void> {
  if (ending() !== undefined) return;
  signalGroup(pid, options.stopSignal);
  if ((await poll(ending, GRACE_MS)) !== undefined) return;
  signalGroup(pid, options.forceSignal);
  await exited;
}

/** To the process and what it started; a group that is gone meanwhile is what was wanted. */
function signalGroup(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(-pid, signal);
  } catch {}
}

function readLines(stream: Readable, onLine: (line: string) => void): void {
  createInterface({ input: stream, crlfDelay: Number.POSITIVE_INFINITY }).on('line', onLine);
}

/**
 * Waits in its own session on a pipe that only this program holds. A line on it is the dismissal; its end
 * without one means that this program died, and the server is stopped in its place.
 */
const GUARD = `
read -r dismissed && exit 0
kill -s "$2" -- "-$1"
tries=0
while kill -0 "$1" && [ "$tries" -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
kill -s KILL -- "-$1"
[ -z "$3" ] || rm -rf -- "$3"
`;

function guard(pid: number, options: LaunchOptions): () => void {
  const signal = options.stopSignal.replace('SIG', '');
  const shell = spawn('/bin/sh', ['-c', GUARD, 'guard', String(pid), signal, options.temporaryFolder ?? ''], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  // Without a shell, or with the guard already gone, there is only less protection.
  shell.on('error', () => {});
  shell.stdin.on('error', () => {});
  return () => shell.stdin.end('\n');
}
