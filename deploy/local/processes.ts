import { type ExecFileOptions, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { type AddressInfo, createServer as createTcpServer } from 'node:net';
import { platform } from 'node:os';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { OperatorProblem } from '../../db/errors.ts';

// What the local programs need of this machine: processes, ports, and patience.

const GRACE_MS = 20_000;
/** A Go program that panics says why in a line before a trace of 100. */
const TAIL_LINES = 200;

/** A server, or another long-lived program, running as the leader of its own process group. */
export type ServerProcess = ReturnType<typeof launch>;

/**
 * Starts a server that outlives Ctrl-C (it leads its own process group, so that this program can stop things in
 * order) but not this program: a guard ends it when this program is gone, even by SIGKILL.
 * @param options.stopSignal asks for an orderly end
 * @param options.temporaryFolder to remove after the process when this program is killed and cannot do it itself
 * @throws {OperatorProblem} if it cannot be started
 */
export function launch(options: {
  readonly name: string;
  readonly command: string;
  readonly args: readonly string[];
  readonly stopSignal?: NodeJS.Signals;
  readonly env?: NodeJS.ProcessEnv;
  readonly cwd?: string;
  readonly user?: { readonly uid: number; readonly gid: number } | undefined;
  readonly temporaryFolder?: string | undefined;
  readonly onLine?: ((line: string) => void) | undefined;
}) {
  const { name, command, stopSignal = 'SIGTERM', env, cwd, user, temporaryFolder = '' } = options;
  const child = spawn(command, options.args, {
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
    env,
    cwd,
    ...user,
  });
  // Without a listener a failed spawn would be an uncaught exception; it shows in the missing pid as well.
  child.on('error', () => {});
  const { pid } = child;
  if (pid === undefined) {
    throw new OperatorProblem(`${name} could not be started: ${command} is missing or not executable.`);
  }
  child.once('exit', guard(pid, stopSignal, temporaryFolder));
  let ended: string | undefined;
  // Not `exit`: PostgreSQL's children hold the same pipes and can outlive a killed parent by a moment.
  const exited = once(child, 'close').then(([code, signal]) => {
    ended = signal === null ? `exit code ${code}` : `signal ${signal}`;
    return ended;
  });
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
    ending: () => ended,
    /** The last lines it wrote. */
    tail: () => tail.join('\n'),
    /** Ends its group in order, and by force when it takes longer than 20 s; returns once it is gone. */
    async stop(): Promise<void> {
      if (ended !== undefined) return;
      signalGroup(stopSignal);
      const force = setTimeout(() => signalGroup('SIGKILL'), GRACE_MS);
      await exited;
      clearTimeout(force);
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

function guard(pid: number, stopSignal: NodeJS.Signals, temporaryFolder: string): () => void {
  const args = [String(pid), stopSignal.replace('SIG', ''), temporaryFolder];
  const shell = spawn('/bin/sh', ['-c', GUARD, 'guard', ...args], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  // Without a shell, or with the guard already gone, there is only less protection.
  shell.on('error', () => {});
  shell.stdin.on('error', () => {});
  return () => shell.stdin.end('\n');
}

const START_MS = 60_000;
/**
 * What servers write when they end for a reason that may pass: another program has taken the port, or another one of those
 * that a server chooses by itself; the children of a killed PostgreSQL have not let go of its memory yet.
 */
const MAY_PASS =
  /could not bind|address already in use|port is taken|shared memory block|lock file .* already exists/i;

/**
 * Launches a server and returns once it is ready.
 * @param given its port; any free one if it is undefined
 * @throws {OperatorProblem} if the port is taken, or the server does not start
 */
export async function launchOnPort(
  name: string,
  given: number | undefined,
  launchAt: (port: number) => ServerProcess | Promise<ServerProcess>,
  isReady: (server: ServerProcess, port: number) => Promise<boolean> | boolean,
) {
  const deadline = Date.now() + START_MS;
  for (;;) {
    const port = await freePort(given, name);
    const server = await launchAt(port);
    const state = await poll(async () => {
      if (server.ending() !== undefined) return 'gone';
      return (await isReady(server, port)) ? 'ready' : undefined;
    }, START_MS);
    if (state === 'ready') return { ...server, port };
    await server.stop();
    const output = server.tail();
    if (MAY_PASS.test(output) && Date.now() < deadline) continue;
    throw new OperatorProblem(`${name} did not start (${server.ending()}): ${output}`);
  }
}

/** Runs a short command and gives its exit code (-1: it could not be started) and all it wrote. */
export function run(
  command: string,
  args: readonly string[],
  options: ExecFileOptions = {},
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
 * @param port the one that has to be free; any by default
 * @param server and `option` as in `listenOn`
 * @throws {OperatorProblem} if it is taken
 */
export async function freePort(port = 0, server = 'a server', option?: string): Promise<number> {
  const listening = await listenOn(createServer(), port, server, option);
  await listening.close();
  return listening.port;
}

/** An address next to loopback, where no server of ours listens. macOS has only one address of IPv4. */
const CLAIMS = platform() === 'linux' ? '127.0.0.2' : '::1';

/**
 * A free loopback port that no other start of this program gets until it is released: each claims a port by listening
 * on it at another address. Release it when its server listens.
 * @param port the one that has to be free; any if it is 0
 * @param server and `option` as in `listenOn`
 * @throws {OperatorProblem} if it is taken or claimed
 */
export async function claimPort(port: number, server: string, option?: string) {
  const chosen = port === 0 ? await freePort() : port;
  const claim = createTcpServer((socket) => socket.destroy()).listen(chosen, CLAIMS);
  const failed = await once(claim, 'listening').then(
    () => null,
    ({ code }: NodeJS.ErrnoException) => code,
  );
  if (failed === 'EADDRINUSE') throw portTaken(chosen, server, option);
  try {
    await freePort(chosen, server, option);
  } catch (error) {
    claim.close();
    throw error;
  }
  return { port: chosen, release: () => claim.close() };
}

/**
 * Lets a server listen on loopback. Its end closes open connections too.
 * @param port 0 for any that is free
 * @param name of the server, for the message
 * @param option what chooses another port, for the message
 * @throws {OperatorProblem} if the port is taken
 */
export async function listenOn(
  server: Pick<Server, 'listen' | 'address' | 'close' | 'closeAllConnections'> & NodeJS.EventEmitter,
  port: number,
  name: string,
  option?: string,
) {
  server.listen(port, LOOPBACK);
  await once(server, 'listening').catch((error: NodeJS.ErrnoException) => {
    if (!['EADDRINUSE', 'EACCES'].includes(error.code ?? '')) throw error;
    throw portTaken(port, name, option);
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

function portTaken(port: number, name: string, option?: string): OperatorProblem {
  return new OperatorProblem(
    `Port ${port} on ${LOOPBACK}, where ${name} is to listen, is taken: stop the program that uses it, or choose another port${option ? ` with ${option}` : ''}.`,
  );
}
