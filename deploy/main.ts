import { setTimeout } from 'node:timers/promises';
import { Command, CommanderError } from 'commander';
import type { Logger } from 'pino';
import type { Database } from '../db/connection/client.ts';
import { tlsWarning } from '../db/connection/tls.ts';
import { readiness } from '../db/operations/migrate.ts';
import { givenDatabaseUrl, isNpmScript } from './config/config.ts';
import { printableLines } from './printable.ts';
import { explain } from './problem.ts';

/** The name of a program and the texts of its `--help`. */
export interface Program {
  readonly name: string;
  readonly description: string;
  /** Text below the arguments and options, such as the required settings and the exit codes. */
  readonly help?: string;
  /** The command that starts the program, for its help. The default is its npm script. */
  readonly call?: string;
}

/** The width of the help if the output is a pipe or a file. */
const HELP_WIDTH = 80;

/**
 * Adds a text below the arguments and options of `--help`. The lines of a paragraph are wrapped
 * again for the width of the terminal. Lines that begin with a space, such as examples, are kept.
 */
export function addHelp(command: Command, text: string): void {
  command.addHelpText('after', () => {
    const width = command.configureOutput().getOutHelpWidth?.() ?? HELP_WIDTH;
    const paragraphs = text.replaceAll(/(?<=\S)\n(?=\S)/g, ' ');
    return command.createHelp().boxWrap(paragraphs, width);
  });
}

/** Returns a command line parser that prints the help texts of a program. */
export function commandLine({
  name,
  description,
  help = '',
  call = `npm run ${name} --`,
}: Program): Command {
  const command = new Command(call);
  addHelp(command, help);
  return command
    .description(description)
    .showHelpAfterError('Add --help to see how it is used.')
    .configureOutput({ writeErr: (text) => process.stderr.write(printableLines(text)) })
    .exitOverride();
}

/**
 * Parses a command line, and runs the action of its command.
 * @returns null if the action ran. Otherwise the exit code: 0 after help, 2 for wrong usage
 */
async function readCommandLine(
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
 * Runs the main function of a program and exits. The first SIGTERM or SIGINT asks `run` to stop,
 * and a second one ends the process at once. If `run` throws, prints one sentence on stderr and
 * exits with code 1.
 * @param run the work of the program. `stopped` resolves at the first signal. The arguments and
 * options of the command line follow
 * @param takes adds arguments and options to the command line parser
 */
export async function main<Given extends unknown[]>(
  program: Program,
  run: (stopped: Promise<void>, ...given: Given) => Promise<unknown>,
  takes: (command: Command) => unknown = () => {},
): Promise<void> {
  const { name } = program;
  // An unhandled rejection is a bug. We log it and let the process continue, because ending the
  // process would also end its other work.
  process.on('unhandledRejection', (error) => {
    console.error(
      printableLines(`${name}: unhandled rejection: ${withoutMessage(error)}`),
    );
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

/**
 * Returns the name and the stack frames of an error, without its message, which may contain user
 * data.
 */
function withoutMessage(error: unknown): string {
  if (!(error instanceof Error)) return 'not an error';
  const { name, stack = '' } = error;
  return `${name}\n${stack.slice(stack.indexOf('\n    at '))}`;
}

/**
 * Signals within this time count as one signal. After Ctrl-C, this process gets the signal twice:
 * from the terminal and from npm.
 */
const ONE_SIGNAL_MS = 1000;

const PARENT_CHECK_MS = 1000;

/**
 * Resolves at the first SIGTERM or SIGINT. A second signal ends the process. A signal such as
 * SIGHUP ends npm, which does not forward it to this program. So the promise also resolves when the
 * npm process that started this program has exited.
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

/**
 * Resolves when the parent of this process has exited. Waiting for it does not keep this process
 * alive.
 */
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
 * Calls `missing` every second until it returns null. Logs what is missing, each time that changes.
 * @param missing returns a log line that says what is missing, or null if nothing is missing
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
    'the database lacks tables of this version; run "npm run migrate". ' +
    'This process waits until that is done',
  database_read_only:
    'PostgreSQL takes no writes, for example because DATABASE_URL names a standby. ' +
    'This process waits until it does',
  commits_hang:
    'PostgreSQL commits nothing, for example because a synchronous standby is gone; ' +
    'see deploy/runbooks/postgresql-down.md. This process waits until it commits',
  database_away:
    'PostgreSQL does not respond, or its certificate is not trusted; check ' +
    'DATABASE_URL and that the server runs. This process waits until it responds',
};

/** Logs a warning if the connection to PostgreSQL is not protected. */
export function warnAboutTls(log: Logger, databaseUrl: string): void {
  const warning = tlsWarning(databaseUrl);
  if (warning !== null) log.warn(warning);
}

/**
 * Waits until PostgreSQL is reachable and all migrations have run. With this wait, processes can be
 * started before `npm run migrate`.
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
 * Calls `work` every `everyMs` until `signal` is aborted, even if `work` fails. If it fails several
 * times in a row, only the first failure is logged, and then the first success.
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
      if (isFailing) log.info({ what }, 'a repeated task succeeds again');
      isFailing = false;
    } catch (error) {
      if (!isFailing) {
        log.warn({ err: error, what }, 'a repeated task failed; it is tried again');
      }
      isFailing = true;
    }
  }
}
