import {
  type ExecFileException,
  type ExecFileOptions,
  execFile,
  spawn,
} from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { platform } from 'node:os';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { OperatorProblem } from '../../db/connection/errors.ts';
import { freePort, portTaken } from '../ports.ts';

// Starts processes and chooses ports on this machine, for the programs of the local stack.

const GRACE_MS = 20_000;
/**
 * The number of output lines that are kept. A Go program that crashes prints the reason before
 * about 100 lines of stack trace.
 */
const TAIL_LINES = 200;

/** A running server. It has its own process group. */
export type ServerProcess = ReturnType<typeof launch>;

/**
 * Starts a server in its own process group. Ctrl-C does not reach the server then, so this program
 * can stop all servers in the right order. If this program dies, even by SIGKILL, a guard process
 * stops the server.
 * @param options.stopSignal the signal that asks the server to stop
 * @param options.temporaryFolder a folder that the guard removes after the server if this program
 * has died
 * @throws {OperatorProblem} if the server cannot be started
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
  const {
    name,
    command,
    stopSignal = 'SIGTERM',
    env,
    cwd,
    user,
    temporaryFolder = '',
  } = options;
  const child = spawn(command, options.args, {
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
    env,
    cwd,
    ...user,
  });
  // Prevents an uncaught exception if the command cannot be started. In that case `pid` is
  // undefined.
  child.on('error', () => {});
  const { pid } = child;
  if (pid === undefined) {
    throw new OperatorProblem(
      `${name} could not be started: ${command} is missing or not executable.`,
    );
  }
  child.once('exit', guard(pid, stopSignal, temporaryFolder));
  let ended: string | undefined;
  // Waits for `close` and not for `exit`. PostgreSQL's child processes use the same pipes and may
  // live a little longer than a killed parent process.
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
     * Resolves when the process and its child processes have ended. The value says how it ended,
     * such as `exit code 1` or `signal SIGKILL`. Never rejects.
     */
    exited,
    /** Returns how the process ended, such as `exit code 1`, or undefined while it runs. */
    ending: () => ended,
    /** Returns the last lines of the output. */
    tail: () => tail.join('\n'),
    /**
     * Stops the process group, and kills it if it still runs after 20 s. Resolves when it has
     * ended.
     */
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

/** Sends a signal to a process and its child processes. Does nothing if they have ended. */
function signalGroup(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(-pid, signal);
  } catch {}
}

/**
 * The shell script of a guard process. It reads from a pipe whose other end only this program has.
 * If this program writes a line, the guard ends. If the pipe is closed without a line, this program
 * has died, and the guard stops the server.
 *
 * The arguments are the process id of the server, the stop signal, and the temporary folder.
 */
const GUARD = `
read -r dismissed && exit 0
kill -s "$2" -- "-$1"
tries=0
while kill -0 "$1" && [ "$tries" -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
kill -s KILL -- "-$1"
[ -z "$3" ] || rm -rf -- "$3"
`;

function guard(
  pid: number,
  stopSignal: NodeJS.Signals,
  temporaryFolder: string,
): () => void {
  const args = [String(pid), stopSignal.replace('SIG', ''), temporaryFolder];
  const shell = spawn('/bin/sh', ['-c', GUARD, 'guard', ...args], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  // If the guard cannot be started or dies, the server still runs. In that case, nothing stops the
  // server when this program dies.
  shell.on('error', () => {});
  shell.stdin.on('error', () => {});
  return () => shell.stdin.end('\n');
}

const START_MS = 60_000;
/**
 * Matches the output of a server that ended for a temporary reason, so that another try may
 * succeed. Either another program has taken one of its ports, or the child processes of a killed
 * PostgreSQL still use its shared memory.
 */
const MAY_PASS =
  /could not bind|address already in use|port is taken|shared memory block|lock file .* already exists/i;

/**
 * Launches a server and waits until it is ready.
 * @param given the port of the server; any free port by default
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

/**
 * Runs a command until it ends. Returns its output and its exit code. The code is -1 if the command
 * could not be started.
 */
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

/**
 * The address at which `claimPort` claims ports. It is a loopback address on which our servers do
 * not listen. macOS has only one IPv4 loopback address, so the IPv6 address is used there.
 */
const CLAIMS = platform() === 'linux' ? '127.0.0.2' : '::1';

/**
 * Claims a free loopback port, so that another `npm start` on this machine does not choose the same
 * one. A port is claimed by listening on it at the address `CLAIMS`. Call `release` when the server
 * listens on the port.
 * @param port the port that has to be free; 0 for any free port
 * @param server the server's name, for the error message
 * @param option the option that chooses another port, for the error message
 * @throws {OperatorProblem} if the port is taken or claimed
 */
export async function claimPort(port: number, server: string, option?: string) {
  const chosen = port === 0 ? await freePort() : port;
  const claim = createServer((socket) => socket.destroy()).listen(chosen, CLAIMS);
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
