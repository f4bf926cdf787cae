import { type ExecFileException, type ExecFileOptions, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { type AddressInfo, createServer as createTcpServer } from 'node:net';
import { platform } from 'node:os';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { OperatorProblem } from '../../db/errors.ts';

// Processes and ports on this machine, for the local programs.

const GRACE_MS = 20_000;
/** A Go program that panics prints the reason before a trace of 100 lines. */
const TAIL_LINES = 200;

/** A server or another long-lived program, which leads its own process group. */
export type ServerProcess = ReturnType<typeof launch>;

/**
 * Starts a server in its own process group, so that it survives Ctrl-C and this program can stop
 * everything in order. A guard ends the server when this program is gone, even by SIGKILL.
 * @param options.stopSignal asks for an orderly end
 * @param options.temporaryFolder removed after the process if this program was killed and cannot
 * remove it
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
  // Prevents an uncaught exception when the spawn fails. The missing pid reports the failure.
  child.on('error', () => {});
  const { pid } = child;
  if (pid === undefined) {
    throw new OperatorProblem(
      `${name} could not be started: ${command} is missing or not executable.`,
    );
  }
  child.once('exit', guard(pid, stopSignal, temporaryFolder));
  let ended: string | undefined;
  // Waits for `close`, not `exit`: PostgreSQL's children hold the same pipes, and can briefly
  // outlive a killed parent.
  const exited = once(child, 'close').then(([code, signal]) => {
    ended = signal === null ? `exit code ${code}` : `signal ${signal}`;
    return ended;
  });
  const tail: string[] = [];
  const onLine = (line: string) => {
    tail.push(line);
    if (tail.length > TAIL_LINES) tail.shift();
    options.onLine?.(line);
  };
  readLines(child.stdout, onLine);
  readLines(child.stderr, onLine);
  return {
    pid,
    /**
     * Resolves when the process and its children are gone, to how it ended: `exit code 1`, `signal
     * SIGKILL`. Never rejects.
     */
    exited,
    /** Returns how it ended, or undefined while it runs. */
    ending: () => ended,
    /** The last lines of its output. */
    tail: () => tail.join('\n'),
    /** Ends the group in order, or by force after 20 s. Returns once it is gone. */
    async stop(): Promise<void> {
      if (ended !== undefined) return;
      signalGroup(pid, stopSignal);
      const force = setTimeout(() => signalGroup(pid, 'SIGKILL'), GRACE_MS);
      await exited;
      clearTimeout(force);
    },
  };
}

function readLines(input: Readable, onLine: (line: string) => void): void {
  createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY }).on('line', onLine);
}

/** Signals a process and its children. A group that is already gone is fine. */
function signalGroup(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(-pid, signal);
  } catch {}
}

/**
 * A shell script that waits in its own session on a pipe that only this program holds. A line on
 * the pipe dismisses it. If the pipe closes without a line, this program died, and the script stops
 * the server.
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
  // Ignores a missing shell or guard. The server is then just less protected.
  shell.on('error', () => {});
  shell.stdin.on('error', () => {});
  return () => shell.stdin.end('\n');
}

const START_MS = 60_000;
/**
 * Output of servers that end for a temporary reason: another program has taken the port, or a port
 * that the server chose itself, or the children of a killed PostgreSQL still hold its memory.
 */
const MAY_PASS =
  /could not bind|address already in use|port is taken|shared memory block|lock file .* already exists/i;

/**
 * Launches a server and returns once it is ready.
 * @param given its port; undefined for any free one
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
      const isServing = await isReady(server, port);
      return isServing ? 'ready' : undefined;
    }, START_MS);
    if (state === 'ready') return { ...server, port };
    await server.stop();
    const output = server.tail();
    if (MAY_PASS.test(output) && Date.now() < deadline) continue;
    throw new OperatorProblem(`${name} did not start (${server.ending()}): ${output}`);
  }
}

/** Runs a short command. Returns its output and its exit code, -1 if it could not be started. */
export function run(
  command: string,
  args: readonly string[],
  options: ExecFileOptions = {},
): Promise<{ readonly code: number; readonly output: string }> {
  return new Promise((resolve) => {
    execFile(command, args, { ...options, encoding: 'utf8' }, (error, stdout, stderr) => {
      resolve({ code: exitCode(error), output: `${stdout}${stderr}`.trim() });
    });
  });
}

function exitCode(error: ExecFileException | null): number {
  if (error === null) return 0;
  return typeof error.code === 'number' ? error.code : -1;
}

const POLL_MS = 50;

/**
 * Calls `look` repeatedly until it returns something other than `undefined`, and returns that.
 * Returns `undefined` after `timeoutMs` milliseconds.
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
 * Returns a loopback port that was free a moment ago, for servers that cannot choose one
 * themselves. Another program may take it first, so callers have to retry with another port.
 * @param port the port that has to be free; any by default
 * @param server and `option` as in `listenOn`
 * @throws {OperatorProblem} if it is taken
 */
export async function freePort(port = 0, server = 'a server', option?: string): Promise<number> {
  const listening = await listenOn(createServer(), port, server, option);
  await listening.close();
  return listening.port;
}

/**
 * An address next to loopback, on which our servers do not listen. macOS has only one IPv4 address.
 */
const CLAIMS = platform() === 'linux' ? '127.0.0.2' : '::1';

/**
 * Returns a free loopback port that no other start of this program gets until it is released. A
 * start claims a port by listening on it at another address. Release it when its server listens.
 * @param port the port that has to be free; 0 for any
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
 * Makes a server listen on loopback. Closing it also closes open connections.
 * @param port 0 for any free one
 * @param name the server's name, for the message
 * @param option the option that chooses another port, for the message
 * @throws {OperatorProblem} if the port is taken
 */
export async function listenOn(
  server: Pick<Server, 'listen' | 'address' | 'close' | 'closeAllConnections'> &
    NodeJS.EventEmitter,
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
  const other = option ? `choose another port with ${option}` : 'choose another port';
  return new OperatorProblem(
    `Port ${port} on ${LOOPBACK}, where ${name} is to listen, is taken: stop the program that uses it, or ${other}.`,
  );
}
