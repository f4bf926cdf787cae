import { setTimeout } from 'node:timers/promises';
import { Command, CommanderError } from 'commander';
import type { Logger } from 'pino';
import type { Database } from '../db/client.ts';
import { DatabaseError, OperatorProblem } from '../db/errors.ts';
import { readiness } from '../db/migrate.ts';

/** What `--help` says of a program. */
export interface Program {
  /** Its npm script's, too. */
  readonly name: string;
  readonly description: string;
  /** Which settings it needs, and its exit codes. */
  readonly help: string;
  /** The one argument that it takes, if any, such as `[FILE]`. */
  readonly argument?: { readonly name: string; readonly description: string };
}

/** A command line whose `--help` helps. */
export function commandLine({ name, description, help, argument }: Program): Command {
  const command = new Command(`npm run ${name} --`)
    .description(description)
    .addHelpText('after', help)
    .showHelpAfterError('Add --help to see how it is used.')
    .exitOverride();
  return argument ? command.argument(argument.name, argument.description) : command;
}

/**
 * Reads a command line, and runs its command if it has commands.
 * @returns the exit code if there is nothing left to do: 0 after help, 2 for wrong usage
 */
export async function readCommandLine(command: Command, args: readonly string[]): Promise<0 | 2 | null> {
  try {
    await command.parseAsync(args, { from: 'user' });
    return null;
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error;
    return error.exitCode === 0 ? 0 : 2;
  }
}

/**
 * Runs a process until its work ends or SIGTERM / SIGINT asks it to drain. A second signal ends it at once.
 * Whatever keeps it from starting is one sentence on stderr and exit code 1.
 * @param run what it does; `argument` is what the command line has of the program's argument
 */
export async function main(
  program: Program,
  run: (stopped: Promise<void>, argument: string | undefined) => Promise<void>,
): Promise<void> {
  const { name } = program;
  const command = commandLine(program);
  const answered = await readCommandLine(command, process.argv.slice(2));
  if (answered !== null) process.exit(answered);
  const stopped = new Promise<void>((resolve) => {
    let told = Number.POSITIVE_INFINITY;
    for (const signal of ['SIGTERM', 'SIGINT'] as const) {
      process.on(signal, () => {
        resolve();
        // npm hands on what the terminal has sent to it and to us.
        if (performance.now() - told > ONE_SIGNAL_MS) process.exit(1);
        told = Math.min(told, performance.now());
      });
    }
  });
  // A stray rejection is a bug to be read about, and no reason to end what others are waiting for: every fact is in
  // PostgreSQL, none in this process.
  process.on('unhandledRejection', (error) => {
    const { name: errorName, stack = '' } = error instanceof Error ? error : new Error();
    console.error(`${name}: unhandled rejection: ${errorName}\n${stack.slice(stack.indexOf('\n    at '))}`);
  });
  try {
    await run(stopped, command.args[0]);
    process.exit(0);
  } catch (error) {
    console.error(`${name}: ${explain(error)}`);
    process.exit(1);
  }
}

const READY_CHECK_MS = 1000;
/** Signals that come so close are one. */
const ONE_SIGNAL_MS = 1000;

const NOT_READY = {
  migrations_missing: 'the database lacks tables of this version: run "npm run migrate"; waiting for it',
  database_away: 'PostgreSQL does not answer: check DATABASE_URL and that the server runs; waiting for it',
};

/**
 * Waits until PostgreSQL is there with every migration, and says in the log what is missing until then: processes
 * and migration may be started in any order.
 * @returns false if the process was told to stop before
 */
export async function untilReady(db: Database, log: Logger, stopped: Promise<void>): Promise<boolean> {
  const stop = stopped.then(() => 'stopped' as const);
  let told: keyof typeof NOT_READY | null = null;
  for (;;) {
    const status = await Promise.race([readiness(db), stop]);
    if (status === 'ready' || status === 'stopped') return status === 'ready';
    if (status !== told) log.warn({ status }, NOT_READY[status]);
    told = status;
    await Promise.race([setTimeout(READY_CHECK_MS), stop]);
  }
}

function explain(error: unknown): string {
  if (error instanceof OperatorProblem) return error.message;
  if (error instanceof DatabaseError) {
    return error.unavailable
      ? `PostgreSQL cannot be reached (${error.code}); check DATABASE_URL and that the server runs`
      : `PostgreSQL refused (${error.code}); check user, password and database in DATABASE_URL, and what the user may do`;
  }
  if (!(error instanceof Error)) return "stopped by something that isn't an error";
  const code = 'code' in error && typeof error.code === 'string' ? error.code : null;
  if (code === 'EADDRINUSE') return 'the port is taken; choose another with API_PORT';
  if (code !== null && 'path' in error && typeof error.path === 'string') {
    return `cannot use the file ${error.path} (${code}); check its name and its permissions`;
  }
  return error.stack ?? error.message;
}
