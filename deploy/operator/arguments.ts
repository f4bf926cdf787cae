import { readFileSync } from 'node:fs';
import { userInfo } from 'node:os';
import { type Command, InvalidArgumentError } from 'commander';
import { printable } from '../../api/client/printable.ts';
import { findOrganizations } from '../../db/accounts/organizations.ts';
import { type ChangedBy, recordReading } from '../../db/audit.ts';
import type { Database } from '../../db/client.ts';
import { OperatorProblem, Refusal } from '../../db/errors.ts';
import { parseDuration } from '../config/values.ts';
import { type Run, shown, table } from './print.ts';

// Parses the arguments and options of commands. They are checked before the database is queried. A
// wrong argument ends the command with exit code 2.

/** The argument of commands about one organization. */
export const ORG = ['<ORG>', "organization's id, name, or the beginning of its name"] as const;
/** The option of commands that may be limited to one organization. */
export const OF_ORG = ['--organization <ORG>', `only this one: ${ORG[1]}`] as const;

/**
 * Replaces an organization's name by its id in the arguments and options of a command, so that
 * every command gets the id of an existing organization.
 * @throws {OperatorProblem} if several organizations match; {Refusal} `organization_missing` if no
 * organization matches
 */
export async function nameOrganizations(command: Command, database: () => Database): Promise<void> {
  const at = command.registeredArguments.findIndex((argument) => argument.name() === 'ORG');
  const argument: string | undefined = command.processedArgs[at];
  const { organization } = command.opts<{ readonly organization?: string }>();
  if (argument !== undefined) {
    command.processedArgs[at] = await organizationId(database(), argument);
  }
  if (organization !== undefined) {
    command.setOptionValue('organization', await organizationId(database(), organization));
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
 * Adds a command that changes something or shows a secret. Its options are a `ChangedBy` for the
 * audit log.
 */
export function change(parent: Command, name: string, description: string): Command {
  return audited(parent.command(name).description(description));
}

const REASON = 'the reason, for the audit log';
const ACTOR = 'your name, for the audit log';

/**
 * Adds the options for the audit log.
 * @param usual the default reason; without it, a reason is required
 */
export function audited(command: Command, usual?: string): Command {
  const reason = usual === undefined ? `${REASON} (required)` : REASON;
  return command
    .requiredOption('--reason <TEXT>', reason, label(1000), usual)
    .requiredOption('--actor <NAME>', ACTOR, label(200), userName());
}

/**
 * Options of a command that masks its output unless `--reveal` is given. `--reveal` needs a reason.
 */
export type Revealing = ChangedBy & { readonly reveal?: true };

/** Returns data for display. If it is revealed, that is recorded in the audit log first. */
export async function revealed<T>(
  db: Database,
  data: T,
  { reveal, ...by }: Revealing,
  reading: Parameters<typeof recordReading>[2],
): Promise<T> {
  if (reveal) await recordReading(db, by, reading);
  return shown(data, reveal);
}

/** Adds `--reveal`, and the options that the audit log records with it. */
export function revealing(command: Command, what: string): Command {
  return accountable(command, 'reveal', `print ${what} (masked otherwise)`);
}

/** Adds a flag that is recorded in the audit log. With the flag, the options are a `ChangedBy`. */
export function accountable(command: Command, flag: string, description: string): Command {
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

/** Accepts `-` for stdin, because other users can see a command line, and shells keep it. */
export function orStdin<T>(parse: (text: string) => T): (text: string) => T {
  return (text) => parse(text === '-' ? readFileSync(0, 'utf8') : text);
}

/** The options of every list. */
export interface Listed {
  readonly since?: Date;
  readonly limit: number;
}

/**
 * Makes a command a list, newest first.
 * @param time the member of a row that `--since` filters by
 * @param rows reads up to `limit` rows, newest `time` first, so that `--since` only has to cut them
 * off
 * @param listed returns the columns of a row in the table
 */
export function lists<Row extends object, Options = unknown>(
  command: Command,
  run: Run,
  time: keyof Row,
  rows: (db: Database, options: Options & Listed, argument: string) => Promise<readonly Row[]>,
  listed: (row: Row) => object = (row) => row,
): Command {
  return command
    .option('--since <WHEN>', 'only newer rows, such as 24h or 2026-11-20T00:00Z', pastMoment)
    .option('--limit <N>', 'maximum number of rows, 1 to 10000', integer(1, 10_000), 50)
    .action(() =>
      run(async (db) => {
        const options = command.opts<Options & Listed>();
        const { since = new Date(0), limit } = options;
        const read = await rows(db, options, command.processedArgs[0]);
        const newest = read.slice(0, limit);
        const data = newest.filter((row) => new Date(row[time] as string | Date) >= since);
        const parts = [table(data.map(listed))];
        if (data.length === limit) parts.push(`The newest ${limit}: --limit shows more.`);
        return { data, text: parts.join('\n\n') };
      }),
    );
}

/**
 * Returns the parser of an argument or an option.
 * @param what describes a valid value, for the error message
 * @param parse returns null for an invalid value
 */
export function parser<T>(what: string, parse: (text: string) => T | null): (text: string) => T {
  return (text) => {
    const value = parse(text);
    if (value === null) throw new InvalidArgumentError(`Write ${what}.`);
    return value;
  };
}

/** A text for people: 1 to `longest` characters on one line. */
export const label = (longest: number) =>
  parser(`1 to ${longest} characters on one line`, (text) => {
    const trimmed = text.trim();
    const { length } = [...trimmed];
    if (length === 0 || length > longest || /\p{Cc}/u.test(trimmed)) return null;
    return trimmed;
  });

/** A whole number in plain digits. `1e9`, `0x10`, `1,000` and `5.0` are usually typing errors. */
export const integer = (smallest: number, largest: number) =>
  parser(`a whole number from ${smallest} to ${largest} in digits`, (text) => {
    if (!/^-?[0-9]{1,10}$/.test(text)) return null;
    const value = Number(text);
    return value >= smallest && value <= largest ? value : null;
  });

const MOMENT =
  /^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:[0-9]{2})$/;

/**
 * A moment in the past: how long ago (`24h`), or when (`2026-11-20T00:00Z`). An offset is required,
 * because the time zone would be a guess without it.
 */
export const pastMoment = parser(
  'a time ago, such as 24h, or a past moment, such as 2026-11-20T00:00Z',
  (text) => {
    const ms = parseDuration(text);
    if (ms !== null) return new Date(Date.now() - ms);
    const at = MOMENT.test(text) ? Date.parse(text) : Number.NaN;
    return at <= Date.now() ? new Date(at) : null;
  },
);

/**
 * Returns the user's name. Returns undefined, which makes the option required, for a container's
 * user that is not in its password file.
 */
function userName(): string | undefined {
  try {
    return userInfo().username;
  } catch {
    return undefined;
  }
}
