import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { OperatorProblem } from '../../db/errors.ts';

// What the local programs need of this machine: processes, ports, and patience.

/**
 * What goes wrong while a local server is being brought up. The code is for programs: `port_taken`, `postgres_running`,
 * `postgres_failed`, `database_in_use`, `program_missing`, `temporal_missing`, `temporal_failed`, `not_startable`.
 */
export class LocalProblem extends OperatorProblem {
  override readonly name = 'LocalProblem';
  readonly code: string;

  constructor(code: string, message: string) {
    super(message);
    this.code = code;
  }
}

export interface LaunchOptions {
  readonly name: string;
  readonly command: string;
  readonly args: readonly string[];
  /** Asks for an orderly end; SIGTERM for most. */
  readonly stopSignal?: NodeJS.Signals;
  /** For when that takes too long; SIGKILL for most. */
  readonly forceSignal?: NodeJS.Signals;
  readonly env?: NodeJS.ProcessEnv | undefined;
  readonly cwd?: string | undefined;
  readonly user?: { readonly uid: number; readonly gid: number } | undefined;
  /** A folder to remove after the process when this program is killed and cannot do it itself. */
  readonly temporaryFolder?: string | undefined;
  readonly onLine?: ((line: string) => void) | undefined;
}

const GRACE_MS = 20_000;
const TAIL_LINES = 30;

/** A server, or another long-lived program, running as the leader of its own process group. */
export type ServerProcess = ReturnType<typeof launch>;

/**
 * Starts a server that outlives Ctrl-C (it leads its own process group, so that this program can stop things in
 * order) but not this program: a guard ends it when this program is gone, even by SIGKILL.
 * @throws {LocalProblem} `not_startable`
 */
export function launch(options: LaunchOptions) {
  const child = spawn(options.command, options.args, {
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: options.env,
    cwd: options.cwd,
    ...options.user,
  });
  // Without a listener a failed spawn would be an uncaught exception; it shows in the missing pid as well.
  child.on('error', () => {});
  const { pid } = child;
  if (pid === undefined) {
    throw new LocalProblem(
      'not_startable',
      `${options.name} could not be started: ${options.command} is missing or not executable.`,
    );
  }
  child.once('exit', guard(pid, options));
  let ended: string | undefined;
  const exited = new Promise<string>((resolve) => {
    // Not `exit`: PostgreSQL's children hold the same pipes and can outlive a killed parent by a moment.
    child.once('close', (code, signal) => {
      ended = signal === null ? `exit code ${code}` : `signal ${signal}`;
      resolve(ended);
    });
  });
  const ending = () => ended;
  const tail: string[] = [];
  for (const input of [child.stdout, child.stderr]) {
    createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY }).on('line', (line) => {
      tail.push(line);
      if (tail.length > TAIL_LINES) tail.shift();
      options.onLine?.(line);
    });
  }
  /** To the process and what it started; a group that is gone meanwhile is what was wanted. */
  const signalGroup = (signal: NodeJS.Signals) => {
    try {
      process.kill(-pid, signal);
    } catch {}
  };
  return {
    pid,
    /** Settles, never rejects, when the process and its children are gone, with how it ended: `exit code 1`, `signal SIGKILL`. */
    exited,
    /** How it ended, once it has. */
    ending,
    /** The last lines it wrote. */
    tail: () => tail.join('\n'),
    /** Ends its group in order, and by force when it takes longer than 20 s; returns once it is gone. */
    async stop(): Promise<void> {
      if (ending() !== undefined) return;
      signalGroup(options.stopSignal ?? 'SIGTERM');
      if ((await poll(ending, GRACE_MS)) !== undefined) return;
      signalGroup(options.forceSignal ?? 'SIGKILL');
      await exited;
    },
  };
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
  const signal = (options.stopSignal ?? 'SIGTERM').replace('SIG', '');
  const shell = spawn('/bin/sh', ['-c', GUARD, 'guard', String(pid), signal, options.temporaryFolder ?? ''], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  // Without a shell, or with the guard already gone, there is only less protection.
  shell.on('error', () => {});
  shell.stdin.on('error', () => {});
  return () => shell.stdin.end('\n');
}

/**
 * Launches a server and returns once it is ready.
 * @param settings.port without it a free one
 * @param settings.again what it writes if it ends for a reason that may pass: then it is launched again
 * @throws {LocalProblem} `port_taken`, or `settings.code`
 */
export async function launchOnPort(settings: {
  readonly name: string;
  readonly code: string;
  readonly port: number | undefined;
  readonly startMs: number;
  readonly again: RegExp;
  readonly launchAt: (port: number) => ServerProcess | Promise<ServerProcess>;
  readonly isReady: (server: ServerProcess, port: number) => Promise<boolean>;
}) {
  const { name, code, startMs, again, launchAt, isReady } = settings;
  const deadline = Date.now() + startMs;
  for (;;) {
    const port = settings.port ?? (await freePort());
    const server = await launchAt(port);
    const state = await poll(async () => {
      if (server.ending() !== undefined) return 'gone';
      return (await isReady(server, port)) ? 'ready' : undefined;
    }, startMs);
    if (state === 'ready') return { pid: server.pid, port, exited: server.exited, stop: server.stop };
    await server.stop();
    const output = server.tail();
    if (again.test(output) && Date.now() < deadline) continue;
    if (PORT_IN_USE.test(output)) throw portTaken(port, name);
    throw new LocalProblem(code, `${name} did not start (${server.ending()}): ${output}`);
  }
}

/** How servers say it. */
export const PORT_IN_USE = /could not bind|address already in use/i;

/** Runs a short command and gives its exit code (-1: it could not be started) and all it wrote. */
export function run(
  command: string,
  args: readonly string[],
  options: {
    readonly env?: NodeJS.ProcessEnv;
    readonly uid?: number;
    readonly gid?: number;
    readonly timeout?: number;
  },
): Promise<{ readonly code: number; readonly output: string }> {
  return new Promise((resolve) => {
    execFile(command, args, { ...options, encoding: 'utf8' }, (error, stdout, stderr) => {
      const code = error === null ? 0 : typeof error.code === 'number' ? error.code : -1;
      resolve({ code, output: `${stdout}${stderr}`.trim() });
    });
  });
}

const POLL_MS = 50;

/**
 * Asks `look` again and again until it gives something other than `undefined`, which is returned; `undefined`
 * when `timeoutMs` milliseconds have passed without.
 */
export async function poll<T>(
  look: () => T | undefined | Promise<T | undefined>,
  timeoutMs: number,
): Promise<T | undefined> {
  const deadline = Date.now() + timeoutMs;
  for (;;) {
    const seen = await look();
    if (seen !== undefined) return seen;
    if (Date.now() >= deadline) return undefined;
    await sleep(POLL_MS);
  }
}

export const LOOPBACK = '127.0.0.1';

/**
 * A loopback port that was free a moment ago, for servers that cannot be asked to choose one themselves.
 * Another program may take it first, so whoever starts a server on it tries again with another.
 */
export async function freePort(): Promise<number> {
  const listening = await listenOn(createServer(), 0, 'a server');
  await listening.close();
  return listening.port;
}

/**
 * @param port a loopback port
 * @param server the name of what is to listen there, for the message
 * @param option what chooses another one, for the message
 * @throws {LocalProblem} `port_taken`
 */
export async function requirePortFree(port: number, server: string, option?: string): Promise<void> {
  await (await listenOn(createServer(), port, server, option)).close();
}

export function isPortFree(port: number): Promise<boolean> {
  return requirePortFree(port, 'a server').then(
    () => true,
    () => false,
  );
}

function portTaken(port: number, server: string, option?: string): LocalProblem {
  return new LocalProblem(
    'port_taken',
    `Port ${port} on ${LOOPBACK}, where ${server} is to listen, is taken: stop the program that uses it, or choose another port${option ? ` with ${option}` : ''}.`,
  );
}

/**
 * Lets a server listen on loopback. Its end closes open connections too.
 * @param port 0 for any that is free
 * @param name and `option` as in `requirePortFree`
 * @throws {LocalProblem} `port_taken`
 */
export async function listenOn(
  server: Pick<Server, 'listen' | 'address' | 'close' | 'closeAllConnections'> & NodeJS.EventEmitter,
  port: number,
  name: string,
  option?: string,
): Promise<{ readonly port: number; close(): Promise<void> }> {
  server.listen(port, LOOPBACK);
  await once(server, 'listening').catch((error: NodeJS.ErrnoException) => {
    throw ['EADDRINUSE', 'EACCES'].includes(error.code ?? '') ? portTaken(port, name, option) : error;
  });
  return {
    port: (server.address() as AddressInfo).port,
    async close() {
      const closed = once(server, 'close');
      server.close();
      server.closeAllConnections();
      await closed;
    },
  };
}
