import { readFileSync } from 'node:fs';
import { userInfo } from 'node:os';
import { type Command, InvalidArgumentError } from 'commander';
import type { ChangedBy } from '../../db/audit.ts';
import { parseDuration } from '../config/values.ts';

// Every argument is checked before the database is asked; what is wrong with one ends the command with exit code 2.

/** The argument of what is about one organization. */
export const ORG = ['<ORG>', 'organization id (org_…)'] as const;

/** Adds a command that changes something, or shows a secret; its options have what the audit log has: a `ChangedBy`. */
export function change(parent: Command, name: string, description: string): Command {
  return audited(parent.command(name).description(description));
}

/** Adds what the audit log has. @param usual the reason if none is given; without it one has to be */
export function audited(command: Command, usual?: string): Command {
  return command
    .requiredOption(
      '--reason <TEXT>',
      `why, for the audit log${usual ? '' : ' (required)'}`,
      label(1000),
      usual,
    )
    .requiredOption('--actor <NAME>', 'who, for the audit log', label(200), userName());
}

/** The options of a command that masks, unless it is asked not to: who asks for that says why. */
export type Revealing = ChangedBy & { readonly reveal?: true };

/** Adds `--reveal`, and what the audit log has of it. */
export function revealing(command: Command, what: string): Command {
  return accountable(command, 'reveal', `print ${what} (masked otherwise)`);
}

/** Adds a flag that somebody has to answer for: with it the options are a `ChangedBy`. */
export function accountable(command: Command, flag: string, description: string): Command {
  return command
    .option(`--${flag}`, `${description}; needs --reason`)
    .option('--reason <TEXT>', `why, for the audit log (with --${flag})`, label(1000))
    .option('--actor <NAME>', `who, for the audit log (with --${flag})`, label(200), userName())
    .hook('preAction', () => {
      const { [flag]: isGiven, reason, actor } = command.opts();
      if (isGiven && !(reason && actor))
        command.error(`error: --${flag} needs --reason and --actor, for the audit log`);
    });
}

/** An argument that may be given as `-`: what is on a command line is seen by others and kept by shells. */
export function orStdin<T>(parse: (text: string) => T): (text: string) => T {
  return (text) => parse(text === '-' ? readFileSync(0, 'utf8') : text);
}

export interface Limited {
  readonly limit: number;
}

/** Adds how much of a list to show; the options are then `Limited`. */
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

/** Undefined, so that the option is required, for a container's user that its password file does not know. */
function userName(): string | undefined {
  try {
    return userInfo().username;
  } catch {
    return undefined;
  }
}
