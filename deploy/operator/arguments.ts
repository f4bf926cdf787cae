import { readFileSync } from 'node:fs';
import { userInfo } from 'node:os';
import { type Command, InvalidArgumentError } from 'commander';
import type { ChangedBy } from '../../db/audit.ts';
import { parseDuration } from '../config/values.ts';

// Every argument is checked before the database is asked; what is wrong with one ends the command with exit code 2.

const CREDITS_AT_MOST = 1_000_000_000;
const OVERLAP_AT_MOST_MS = 30 * 86_400_000;

/** Adds a command that changes something, or shows a secret; its options have what the audit log has: a `ChangedBy`. */
export function change(parent: Command, name: string, description: string): Command {
  return parent
    .command(name)
    .description(description)
    .requiredOption('--reason <TEXT>', 'why, for the audit log (required)', label(1000))
    .requiredOption('--actor <NAME>', 'who, for the audit log', label(200), userName());
}

/** The same of an import, whose file says why. */
export function importing(command: Command): Command {
  return command
    .option('--reason <TEXT>', 'why, for the audit log', label(1000), 'import')
    .requiredOption('--actor <NAME>', 'who, for the audit log', label(200), userName());
}

/** The options of a command that masks, unless it is asked not to: who asks for that says why. */
export type Revealing = Partial<ChangedBy> & { readonly reveal?: true };

/** Adds `--reveal`, and what the audit log has of it. */
export function revealing(command: Command, what: string): Command {
  return accountable(command, '--reveal', `print ${what} (masked otherwise)`);
}

/** Who reveals, and why; null if nobody does. Ends the command if it isn't said. */
export function revealer({ reveal, ...by }: Revealing, command: Command): ChangedBy | null {
  return reveal ? accountOf(by, '--reveal', command) : null;
}

/** Adds a flag that somebody has to answer for, and what the audit log has of it. */
export function accountable(command: Command, flag: string, description: string): Command {
  return command
    .option(flag, `${description}; needs --reason`)
    .option('--reason <TEXT>', `why, for the audit log (with ${flag})`, label(1000))
    .option('--actor <NAME>', `who, for the audit log (with ${flag})`, label(200), userName());
}

/** Who answers for a flag that was given. Ends the command if it isn't said. */
export function accountOf({ actor, reason }: Partial<ChangedBy>, flag: string, command: Command): ChangedBy {
  if (actor !== undefined && reason !== undefined) return { actor, reason };
  return command.error(`error: ${flag} needs --reason and --actor, for the audit log`);
}

/** An argument that may be given as `-`: what is on a command line is seen by others and kept by shells. */
export function orStdin<T>(parse: (text: string) => T): (text: string) => T {
  return (text) => parse(text === '-' ? readFileSync(0, 'utf8') : text);
}

export function npi(text: string): string {
  if (/^[0-9]{10}$/.test(text)) return text;
  throw new InvalidArgumentError('Write an NPI of 10 digits.');
}

/** Adds how much of a list to show. */
export function newestFirst(command: Command): Command {
  return command.option('--limit <N>', 'how many at most, 1 to 10000', integer(1, 10_000), 50);
}

/** Text for people: 1 to `longest` characters on one line. */
export function label(longest: number) {
  return (text: string): string => {
    const trimmed = text.trim();
    if (trimmed === '' || [...trimmed].length > longest || /\p{Cc}/u.test(trimmed)) {
      throw new InvalidArgumentError(`Write 1 to ${longest} characters on one line.`);
    }
    return trimmed;
  };
}

/** A whole number in plain digits: `1e9`, `0x10`, `1,000` and `5.0` are slips of the hand more often than not. */
export function integer(smallest: number, largest: number) {
  return (text: string): number => {
    const value = /^-?[0-9]{1,10}$/.test(text) ? Number(text) : Number.NaN;
    if (value >= smallest && value <= largest) return value;
    throw new InvalidArgumentError(`Write a whole number from ${smallest} to ${largest} in digits.`);
  };
}

/** A moment of the past: how long ago (`24h`), or when (`2026-11-20T00:00Z`). Without an offset it would be a guess. */
export function pastMoment(text: string): Date {
  const ms = parseDuration(text);
  const at = ms === null ? (MOMENT.test(text) ? Date.parse(text) : Number.NaN) : Date.now() - ms;
  if (at <= Date.now()) return new Date(at);
  throw new InvalidArgumentError(
    'Write how long ago, such as 24h, or a past moment, such as 2026-11-20T00:00Z.',
  );
}

const MOMENT =
  /^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:[0-9]{2})$/;

export const creditsToGrant = integer(1, CREDITS_AT_MOST);

export function creditsToAdjust(text: string): number {
  const amount = integer(-CREDITS_AT_MOST, CREDITS_AT_MOST)(text);
  if (amount === 0) throw new InvalidArgumentError('An adjustment of 0 changes nothing.');
  return amount;
}

/** @returns milliseconds */
export function overlap(text: string): number {
  const ms = parseDuration(text);
  if (ms !== null && ms <= OVERLAP_AT_MOST_MS) return ms;
  throw new InvalidArgumentError('Write a duration of at most 30d, such as 0s, 15m, 1h or 7d.');
}

/** Undefined, so that the option is required, for a container's user that its password file does not know. */
function userName(): string | undefined {
  try {
    return userInfo().username;
  } catch {
    return undefined;
  }
}
