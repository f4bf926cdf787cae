import { readFileSync } from 'node:fs';
import { userInfo } from 'node:os';
import { type Command, InvalidArgumentError, Option } from 'commander';
import { decode } from '../../api/files/decode.ts';
import { UsageError } from '../../api/files/usage-error.ts';
import { findOrganizations } from '../../db/accounts/organizations.ts';
import type { Database } from '../../db/connection/client.ts';
import { OperatorProblem, Refusal } from '../../db/connection/errors.ts';
import { type ChangedBy, recordReading } from '../../db/operations/audit.ts';
import { parseDuration, parseMoment } from '../config/values.ts';
import { printable } from '../printable.ts';
import { type Part, type Run, shown, table } from './print.ts';

// Parses the arguments and options of commands, before the database is queried. An invalid argument
// or option ends the command with exit code 2.

/** The argument of a command about one organization. */
export const ORG = [
  '<ORG>',
  "an organization's id, its name, or the beginning of its name",
] as const;
/** The option of a command that can be limited to one organization. */
export const OF_ORG = [
  '--organization <ORG>',
  `only this organization: ${ORG[1]}`,
] as const;

/** Matches an NPI by its digits. Its check digit may be wrong. */
export const NPI = /^[0-9]{10}$/;

/**
 * Replaces the organization's name in the arguments and options of a command by the organization's
 * id. The action of the command always gets the id of an existing organization.
 * @throws {OperatorProblem} if several organizations match; {Refusal} `organization_missing` if no
 * organization matches
 */
export async function nameOrganizations(
  command: Command,
  database: () => Database,
): Promise<void> {
  const at = command.registeredArguments.findIndex(
    (argument) => argument.name() === 'ORG',
  );
  const argument: string | undefined = command.processedArgs[at];
  const { organization } = command.opts<{ readonly organization?: string }>();
  if (argument !== undefined) {
    command.processedArgs[at] = await organizationId(database(), argument);
  }
  if (organization !== undefined) {
    command.setOptionValue(
      'organization',
      await organizationId(database(), organization),
    );
  }
}

async function organizationId(db: Database, given: string): Promise<string> {
  const found = await findOrganizations(db, given.trim());
  const [first, ...others] = found;
  if (first === undefined) throw new Refusal('organization_missing');
  if (others.length === 0) return first.id;
  const candidates = found.map(({ id, name }) => `${id} (${printable(name)})`);
  throw new OperatorProblem(
    `several organizations match this name; give the id of one: ${candidates.join(', ')}`,
  );
}

/**
 * Adds a command that changes something or shows a secret. It gets the options `--reason` and
 * `--actor`, which are recorded in the audit log.
 */
export function change(parent: Command, name: string, description: string): Command {
  return audited(parent.command(name).description(description));
}

const REASON = 'the reason, for the audit log';
const ACTOR = 'your name, for the audit log';

/**
 * Adds the options `--reason` and `--actor` for the audit log.
 * @param usual the default reason. Without a default, `--reason` is required
 */
export function audited(command: Command, usual?: string): Command {
  const reason = usual === undefined ? `${REASON} (required)` : REASON;
  return command
    .requiredOption('--reason <TEXT>', reason, label(1000), usual)
    .requiredOption('--actor <NAME>', ACTOR, label(200), userName());
}

/** The options of a command that needs `--yes`, because it cannot be undone. */
export interface Confirmed extends ChangedBy {
  readonly dryRun?: true;
  readonly yes?: true;
}

/**
 * Adds `--dry-run` and `--yes` to a command that cannot be undone. Without `--yes`, the command
 * only counts what it would change. Then it exits with 0 if it was given `--dry-run`, and
 * otherwise with 1.
 * @param what what `--yes` does, for the help
 */
export function confirmed(command: Command, what: string): Command {
  return command
    .addOption(dryRun().conflicts('yes'))
    .option('--yes', `${what}; otherwise the command only counts and exits with 1`);
}

/** Returns the option of a command that only counts. */
export function dryRun(): Option {
  return new Option('--dry-run', 'only count what would be changed');
}

/** Returns the exit code of a command that needs `--yes`. */
export function exitCodeOf({ yes, dryRun }: Confirmed): 0 | 1 {
  return yes || dryRun ? 0 : 1;
}

/**
 * The options of a command that masks personal data unless `--reveal` is given. `--reveal` needs a
 * reason.
 */
export type Revealing = ChangedBy & { readonly reveal?: true };

/**
 * Returns data for display, masked unless `reveal` is set. With `reveal`, first records in the
 * audit log that the data was read.
 */
export async function revealed<T>(
  db: Database,
  data: T,
  { reveal, ...by }: Revealing,
  reading: Parameters<typeof recordReading>[2],
): Promise<T> {
  if (reveal) await recordReading(db, by, reading);
  return shown(data, reveal);
}

/**
 * Adds `--reveal`, which prints personal data unmasked, and the options for the audit log that
 * `--reveal` needs.
 * @param what the personal data, for the help
 */
export function revealing(command: Command, what: string): Command {
  return accountable(command, 'reveal', `print ${what} (masked otherwise)`);
}

/**
 * Adds a flag whose use is recorded in the audit log. If the flag is given, `--reason` and
 * `--actor` are required.
 */
export function accountable(
  command: Command,
  flag: string,
  description: string,
): Command {
  return command
    .option(`--${flag}`, `${description}; needs --reason`)
    .option('--reason <TEXT>', `${REASON} (with --${flag})`, label(1000))
    .option('--actor <NAME>', `${ACTOR} (with --${flag})`, label(200), userName())
    .hook('preAction', () => {
      const { [flag]: isGiven, reason, actor } = command.opts();
      if (!isGiven || (reason && actor)) return;
      command.error(`error: --${flag} needs --reason and --actor, for the audit log`);
    });
}

/**
 * Returns a parser that reads stdin if the argument is `-`. Personal data should not be on a
 * command line, because other users can see it, and shells store it in their history.
 */
export function orStdin<T>(parse: (text: string) => T): (text: string) => T {
  return (text) => parse(text === '-' ? readStdin() : text);
}

function readStdin(): string {
  try {
    return decode('stdin', readFileSync(0)).text;
  } catch (error) {
    if (error instanceof UsageError) {
      throw new InvalidArgumentError(error.message);
    }
    throw error;
  }
}

/** The options of every command that lists rows. */
export interface Listed {
  readonly organization?: string;
  readonly key?: string;
  readonly since?: Date;
  readonly limit: number;
}

/**
 * Adds the options and the action of a command that lists rows, newest first.
 * @param time the name of the row's member with its time. `--since` leaves out rows with an earlier
 * time
 * @param rows reads up to `limit` rows, the newest first by `time`
 * @param listed returns the columns to print for a row, the most useful first
 */
export function lists<Row extends object, Options = unknown>(
  command: Command,
  run: Run,
  time: keyof Row,
  rows: (
    db: Database,
    options: Options & Listed,
    argument: string,
  ) => Promise<readonly Row[]>,
  listed: (row: Row) => object = (row) => row,
): Command {
  return command
    .option(
      '--since <WHEN>',
      'only rows after this time, such as 24h (ago) or 2026-11-20T00:00Z',
      pastMoment,
    )
    .option('--limit <N>', 'maximum number of rows, 1 to 10000', integer(1, 10_000), 50)
    .action(() =>
      run(async (db) => {
        const options = command.opts<Options & Listed>();
        const { since = new Date(0), limit } = options;
        const read = await rows(db, options, command.processedArgs[0]);
        const newest = read.slice(0, limit);
        const data = newest.filter(
          (row) => new Date(row[time] as string | Date) >= since,
        );
        const { organization, key } = options;
        const isOfOne = organization ?? key ?? command.processedArgs[0];
        const printed = data.map((row) =>
          isOfOne ? withOrganizationLast(listed(row)) : listed(row),
        );
        const parts: Part[] = [table<object>(printed)];
        if (data.length === limit) {
          parts.push(`The newest ${limit}: --limit shows more.`);
        }
        return { data, parts };
      }),
    );
}

/** Moves the organization to the last column of a list that has only one organization. */
function withOrganizationLast(row: object): object {
  if (!('organizationId' in row)) return row;
  const { organizationId, ...others } = row;
  return { ...others, organizationId };
}

/**
 * Returns a function that parses an argument or an option.
 * @param what describes a valid value. The error message is `Write`, followed by this text
 * @param parse returns null for an invalid value
 */
export function parser<T>(
  what: string,
  parse: (text: string) => T | null,
): (text: string) => T {
  return (text) => {
    const value = parse(text);
    if (value === null) throw new InvalidArgumentError(`Write ${what}.`);
    return value;
  };
}

/** Returns the parser for a name or a reason: 1 to `longest` characters on one line. */
export const label = (longest: number) =>
  parser(`1 to ${longest} characters on one line`, (text) => {
    const trimmed = text.trim();
    const { length } = [...trimmed];
    if (length === 0 || length > longest || /\p{Cc}/u.test(trimmed)) {
      return null;
    }
    return trimmed;
  });

/**
 * Returns the parser for a whole number in plain digits. `1e9`, `0x10`, `1,000`, and `5.0` are
 * rejected, because they are usually typing errors.
 */
export const integer = (smallest: number, largest: number) =>
  parser(`a whole number from ${smallest} to ${largest} in digits`, (text) => {
    if (!/^-?[0-9]{1,10}$/.test(text)) return null;
    const value = Number(text);
    if (value < smallest || value > largest) return null;
    return value;
  });

/**
 * Parses a moment in the past. The text is either a duration before now, such as `24h`, or a time
 * such as `2026-11-20T00:00Z`.
 */
export const pastMoment = parser(
  'a time ago, such as 24h, or a past moment, such as 2026-11-20T00:00Z',
  (text) => {
    const ms = parseDuration(text);
    if (ms !== null) return new Date(Date.now() - ms);
    const at = parseMoment(text);
    return at !== null && at.getTime() <= Date.now() ? at : null;
  },
);

/**
 * Adds `--until` to a command that has `--since`. A period that ends before it begins is wrong usage,
 * because its result would look as if nothing had happened.
 */
export function endsBefore(command: Command, description: string): Command {
  return command
    .option('--until <WHEN>', `${description} (default: now)`, pastMoment)
    .hook('preAction', () => {
      const { since, until } = command.opts<{ since?: Date; until?: Date }>();
      if (since === undefined || until === undefined || since <= until) {
        return;
      }
      command.error(
        `error: --until is before --since, which is ${since.toISOString()}. Swap them, or give an earlier --since.`,
      );
    });
}

/** Returns the option for the beginning of the period that a command counts. */
export function countedSince(): Option {
  return new Option(
    '--since <WHEN>',
    'count from this time on, such as 30d (ago) or 2026-11-20T00:00Z',
  )
    .argParser(pastMoment)
    .default(pastMoment('30d'), '30d');
}

/**
 * Returns the name of the user who runs the command, as the default of `--actor`. Returns undefined
 * if the user has no name, as in some containers. Then `--actor` is required.
 */
function userName(): string | undefined {
  try {
    return userInfo().username;
  } catch {
    return undefined;
  }
}
