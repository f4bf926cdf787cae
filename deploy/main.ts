import { setTimeout } from 'node:timers/promises';
import { Command, CommanderError } from 'commander';
import type { Logger } from 'pino';
import { printableLines } from '../api/client/printable.ts';
import type { Database } from '../db/client.ts';
import { readiness } from '../db/migrate.ts';
import { givenDatabaseUrl, isNpmScript } from './config/config.ts';
import { explain } from './problem.ts';

/** Texts for the `--help` of a program. */
export interface Program {
  readonly name: string;
  readonly description: string;
  /** The settings it needs, and its exit codes. Printed below the arguments and options. */
  readonly help?: string;
  /** The command that starts it. Defaults to its npm script. */
  readonly call?: string;
}

/** Returns a command line parser with help texts. */
export function commandLine({
  name,
  description,
  help = '',
  call = `npm run ${name} --`,
}: Program): Command {
  return new Command(call)
    .description(description)
    .addHelpText('after', help)
    .showHelpAfterError('Add --help to see how it is used.')
    .configureOutput({ writeErr: (text) => process.stderr.write(printableLines(text)) })
    .exitOverride();
}

/**
 * Parses a command line, and runs the command that it names, if any.
 * @returns the exit code if there is nothing left to do: 0 after help, 2 for wrong usage
 */
export async function readCommandLine(
  command: Command,
  args: readonly string[],
): Promise<0 | 2 | null> {
  try {
    await command.parseAsync(args, { from: 'user' });
    return null;
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error;
    return error.exitCode === 0 ? 0 : 2;
  }
}

/**
 * Runs a process until its work ends or a signal asks it to drain. A second signal ends it at once.
 * If it can't start, it prints one sentence on stderr and exits with code 1.
 * @param run the work of the process; gets the arguments and options of the command line
 * @param takes adds these arguments and options to the command line
 */
export async function main<Given extends unknown[]>(
  program: Program,
  run: (stopped: Promise<void>, ...given: Given) => Promise<unknown>,
  takes: (command: Command) => unknown = () => {},
): Promise<void> {
  const { name } = program;
  // An unhandled rejection is a bug, so it is logged. The process runs on, because others wait for
  // it and all facts are in PostgreSQL.
  process.on('unhandledRejection', (error) => {
    console.error(printableLines(`${name}: unhandled rejection: ${withoutMessage(error)}`));
  });
  try {
    const command = commandLine(program).action(async (...given) => {
      await run(stopSignal(name), ...(given as Given));
    });
    takes(command);
    const exitCode = await readCommandLine(command, process.argv.slice(2));
    // Waits until a pipe has read the whole output. Exiting earlier would cut it off.
    await new Promise((resolve) => process.stdout.write('', resolve));
    process.exit(exitCode ?? process.exitCode);
  } catch (error) {
    console.error(printableLines(`${name}: ${explain(error, [], givenDatabaseUrl())}`));
    process.exit(1);
  }
}

/** Returns an error's name and stack frames. Its message may contain user data. */
function withoutMessage(error: unknown): string {
  if (!(error instanceof Error)) return 'not an error';
  const { name, stack = '' } = error;
  return `${name}\n${stack.slice(stack.indexOf('\n    at '))}`;
}

/**
 * Signals within this time count as one, because npm forwards a signal that the terminal has also
 * sent to us.
 */
const ONE_SIGNAL_MS = 1000;

const PARENT_CHECK_MS = 1000;

/**
 * Resolves at the first signal, or when the npm that started this program is gone. npm forwards
 * only SIGTERM and SIGINT, and exits silently at SIGHUP. A second signal ends the process.
 */
function stopSignal(name: string): Promise<void> {
  return new Promise((resolve) => {
    if (isNpmScript(name)) void parentGone().then(resolve);
    let firstAt = Number.POSITIVE_INFINITY;
    for (const signal of ['SIGTERM', 'SIGINT'] as const) {
      process.on(signal, () => {
        resolve();
        const now = performance.now();
        if (now - firstAt > ONE_SIGNAL_MS) process.exit(1);
        firstAt = Math.min(firstAt, now);
      });
    }
  });
}

/** Resolves when the parent of this process is gone. Does not keep this process alive. */
export function parentGone(): Promise<void> {
  const parent = process.ppid;
  return new Promise((resolve) => {
    const timer = setInterval(() => {
      if (process.ppid === parent) return;
      clearInterval(timer);
      resolve();
    }, PARENT_CHECK_MS);
    timer.unref();
  });
}

const RETRY_MS = 1000;

/**
 * Waits until nothing is missing, and logs what is missing whenever that changes.
 * @param missing returns the log line about what is missing, or null if everything is there
 * @returns false if the process was asked to stop first
 */
export async function until(
  log: Logger,
  stopped: Promise<void>,
  missing: () => Promise<readonly [fields: object, message: string] | null>,
): Promise<boolean> {
  const stop = stopped.then(() => 'stopped' as const);
  let logged = '';
  for (;;) {
    const found = await Promise.race([missing(), stop]);
    if (found === null) return true;
    if (found === 'stopped') return false;
    const line = JSON.stringify(found);
    if (line !== logged) log.warn(...found);
    logged = line;
    await Promise.race([setTimeout(RETRY_MS), stop]);
  }
}

const NOT_READY = {
  migrations_missing:
    'the database lacks tables of this version; run "npm run migrate". Waiting for it',
  database_away:
    'PostgreSQL does not respond; check DATABASE_URL and that the server runs. Waiting for it',
};

/**
 * Waits until PostgreSQL is reachable and has every migration, so that processes and migration can
 * start in any order.
 * @returns false if the process was asked to stop first
 */
export async function untilReady(
  db: Database,
  log: Logger,
  stopped: Promise<void>,
): Promise<boolean> {
  return await until(log, stopped, async () => {
    const status = await readiness(db);
    if (status === 'ready') return null;
    return [{ status }, NOT_READY[status]];
  });
}

/**
 * Calls `work` every `everyMs` until `signal` is aborted. Goes on after a failure. Logs the first
 * of several consecutive failures, and the first success after them.
 */
export async function repeat(
  what: string,
  everyMs: number,
  { signal, log }: { readonly signal: AbortSignal; readonly log: Logger },
  work: () => Promise<unknown>,
): Promise<void> {
  let isFailing = false;
  while (await setTimeout(everyMs, true, { signal }).catch(() => false)) {
    try {
      await work();
      if (isFailing) log.info({ what }, 'succeeds again');
      isFailing = false;
    } catch (error) {
      if (!isFailing) log.warn({ err: error, what }, 'failed; it is retried');
      isFailing = true;
    }
  }
}
