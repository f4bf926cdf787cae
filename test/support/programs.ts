import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { cp, mkdir, readdir, readFile, symlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import {
  launch,
  launchOnPort,
  type ServerProcess,
} from '../../deploy/local/processes.ts';
import { LOOPBACK } from '../../deploy/ports.ts';
import { asRole, SECRETS_KEY, testSetting } from './database.ts';
import { type ApiResponse, createCaller, eventually } from './organization.ts';
import { SITE_SETTINGS } from './site.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const SOURCES = [
  'activities',
  'api',
  'db',
  'deploy',
  'patches',
  'workflows',
  'package.json',
  'LICENSE',
];

/** The exit code and output of a program. */
export interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export type ProgramName = 'api' | 'worker' | 'migrate' | 'operator' | 'bundle' | 'replay';

export interface ProgramOptions {
  readonly env?: Readonly<Record<string, string>>;
  /** The folder of the sources. */
  readonly root?: string;
  /** The content of stdin, empty by default. */
  readonly stdin?: string | Buffer | undefined;
}

const { PATH, NODE_COMPILE_CACHE } = process.env;
/**
 * The part of our environment that every program gets. It contains no setting that a program reads.
 */
export const BARE: NodeJS.ProcessEnv = { PATH, NODE_COMPILE_CACHE };

/** Returns the command line of a program of `deploy/`, with only the given environment. */
export function programCommand(
  name: ProgramName,
  args: readonly string[],
  { env = {}, root = ROOT }: ProgramOptions = {},
) {
  return {
    command: process.execPath,
    args: [
      join(root, 'deploy', name === 'bundle' ? 'build/bundle.ts' : `${name}.ts`),
      ...args,
    ],
    cwd: root,
    env: { ...BARE, SECRETS_KEY, ...env },
  };
}

/**
 * Ends a child when this process ends first, even by SIGKILL. AVA kills a test file that hangs, and
 * then no teardown runs. A shell waits on a pipe that only this process holds.
 */
export function endWithThisProcess(child: ChildProcess): void {
  const script = 'read -r ended || kill -s KILL "$1"';
  const guard = spawn('/bin/sh', ['-c', script, 'guard', String(child.pid)], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  guard.stdin.on('error', () => {});
  child.once('exit', () => guard.stdin.end('\n'));
}

/** Runs a program of `deploy/` until it ends. */
export function runProgram(
  name: ProgramName,
  args: readonly string[],
  options?: ProgramOptions,
): Promise<Ended> {
  const { command, args: all, cwd, env } = programCommand(name, args, options);
  return new Promise((resolve, reject) => {
    const child = spawn(command, all, { cwd, env, stdio: ['pipe', 'pipe', 'pipe'] });
    endWithThisProcess(child);
    // A program may end without reading its stdin.
    child.stdin.on('error', () => {});
    child.stdin.end(options?.stdin ?? '');
    let stdout = '';
    let stderr = '';
    child.stdout.on('data', (chunk: Buffer) => (stdout += chunk));
    child.stderr.on('data', (chunk: Buffer) => (stderr += chunk));
    child.once('error', reject);
    child.once('close', (code) => resolve({ code, stdout, stderr }));
  });
}

/**
 * Fills an empty folder like `npm ci --omit=dev --ignore-scripts`: with the sources, the production
 * packages, and the unpatched postgres.js.
 */
export async function installForProduction(folder: string): Promise<void> {
  for (const source of SOURCES)
    await cp(join(ROOT, source), join(folder, source), { recursive: true });
  const lock = JSON.parse(await readFile(join(ROOT, 'package-lock.json'), 'utf8')) as {
    packages: Record<string, { readonly dev?: true; readonly optional?: true }>;
  };
  const installed = Object.entries(lock.packages).filter(
    ([path, { dev, optional }]) =>
      /^node_modules\/(@[^/]+\/)?[^/]+$/.test(path) && !dev && !optional,
  );
  for (const path of ['node_modules/.bin', ...installed.map(([path]) => path)]) {
    if (path === 'node_modules/postgres') continue;
    await mkdir(dirname(join(folder, path)), { recursive: true });
    await symlink(join(ROOT, path), join(folder, path));
  }
  await addPublishedPostgres(folder);
}

/**
 * Puts the unpatched postgres.js into a folder.
 * @returns its path
 */
export async function addPublishedPostgres(folder: string): Promise<string> {
  const path = 'node_modules/postgres';
  for (const part of [path, 'patches', 'package.json']) {
    await cp(join(ROOT, part), join(folder, part), { recursive: true });
  }
  // Reverses only its patch, because the other packages may be links to ours.
  const name =
    (await readdir(join(ROOT, 'patches'))).find((patch) =>
      patch.startsWith('postgres+'),
    ) ?? '';
  await cp(join(ROOT, 'patches', name), join(folder, 'reversed', name));
  const options = ['--patch-dir', 'reversed', '--reverse', '--error-on-fail'];
  const args = [join(ROOT, 'node_modules/patch-package/index.js'), ...options];
  await promisify(execFile)(process.execPath, args, { cwd: folder });
  return join(folder, path);
}

/** The API as its own process, so that a test can start several and kill them. */
export interface ApiProcess {
  readonly url: string;
  pid(): number;
  /** Returns how it ended, such as `exit code 0`, or undefined while it runs. */
  ending(): string | undefined;
  /** Sends SIGKILL and waits for its end. */
  kill(): Promise<void>;
  /** Starts it again on the same port after a kill. */
  start(): Promise<void>;
  stop(): Promise<void>;
}

const PROGRAM = fileURLToPath(new URL('../../deploy/api.ts', import.meta.url));

/**
 * Starts an API process.
 * @param settings environment variables in addition to those set here
 * @param onLine receives each line of its log
 */
export async function startApiProcess(
  databaseUrl: string,
  settings: Readonly<Record<string, string>> = {},
  onLine?: (line: string) => void,
): Promise<ApiProcess> {
  const launchAt = (port: number) =>
    launch({
      name: 'API',
      command: process.execPath,
      args: ['--max-semi-space-size=8', PROGRAM],
      env: {
        ...BARE,
        SECRETS_KEY,
        DATABASE_URL: asRole(databaseUrl, 'api'),
        DATABASE_POOL: '16',
        API_HOST: LOOPBACK,
        API_PORT: String(port),
        API_DRAIN_DELAY: '0s',
        LOG_LEVEL: 'error',
        TEMPORAL_ADDRESS: testSetting('TEST_TEMPORAL_ADDRESS'),
        ...SITE_SETTINGS,
        ...settings,
      },
      onLine,
    });
  const isReady = (_: ServerProcess, port: number) =>
    fetch(`http://${LOOPBACK}:${port}/healthz`).then(
      ({ ok }) => ok,
      () => false,
    );
  const begin = (given?: number) => launchOnPort('API', given, launchAt, isReady);
  let running = await begin();
  const { port } = running;
  const url = `http://${LOOPBACK}:${port}`;
  return {
    url,
    async start() {
      running = await begin(port);
    },
    pid: () => running.pid,
    ending: () => running.ending(),
    async kill() {
      process.kill(running.pid, 'SIGKILL');
      await running.exited;
    },
    stop: () => running.stop(),
  };
}

/**
 * Sends a POST like a careful client. It repeats the request with the same headers after a lost
 * connection, a 409, or a 503.
 */
export async function postUntilResponse<T>(
  url: string,
  apiKey: string,
  path: string,
  body: object,
  headers: Record<string, string> = {},
): Promise<ApiResponse<T>> {
  const caller = createCaller(url, apiKey);
  return await eventually(async () => {
    const response = await caller
      .call<T>('POST', path, JSON.stringify(body), headers)
      .catch(() => null);
    return response === null || response.status === 409 || response.status === 503
      ? null
      : response;
  });
}

const WORKER = fileURLToPath(new URL('../../deploy/worker.ts', import.meta.url));

/** A worker with all of its output. */
export interface WorkerProcess extends ServerProcess {
  output(): string;
}

/**
 * Starts workers as processes, as in production, so that a test can kill them. Their sweep runs
 * every second.
 */
export function workerProcesses() {
  const workers: ServerProcess[] = [];
  return {
    /**
     * Starts one more worker and waits until it is ready.
     * @param settings environment variables in addition to those of the stack
     */
    async start(
      { workerEnvironment }: { readonly workerEnvironment: NodeJS.ProcessEnv },
      settings: Readonly<Record<string, string>> = {},
    ): Promise<WorkerProcess> {
      let isReady = false;
      let output = '';
      const worker = launch({
        name: 'the worker',
        command: process.execPath,
        args: [WORKER],
        env: { ...process.env, ...workerEnvironment, SWEEP_INTERVAL: '1s', ...settings },
        onLine: (line) => {
          output += `${line}\n`;
          if (line.includes('"worker ready"')) isReady = true;
        },
      });
      workers.push(worker);
      await eventually(async () => {
        if (worker.ending() !== undefined)
          throw new Error(`the worker ended (${worker.ending()}): ${worker.tail()}`);
        return isReady || null;
      });
      return { ...worker, output: () => output };
    },
    /** Stops all started workers, including killed ones. */
    async stop(): Promise<void> {
      for (const worker of workers) await worker.stop();
    },
  };
}
