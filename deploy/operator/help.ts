import { readFileSync } from 'node:fs';
import type { Command } from 'commander';

/**
 * Reads help.txt. It contains the texts that `--help` prints below the arguments and options of
 * each command.
 * @returns the texts by command, such as `operator credits grant`
 */
export function helpTexts(): ReadonlyMap<string, string> {
  const [, ...texts] = readFileSync(new URL('help.txt', import.meta.url), 'utf8').split(
    /^= /m,
  );
  const byCommand = new Map<string, string>();
  for (const text of texts) {
    const nameEnd = text.indexOf('\n');
    byCommand.set(text.slice(0, nameEnd), text.slice(nameEnd).trimEnd());
  }
  return byCommand;
}

/**
 * Returns a command and all its subcommands, each with its full name, such as `operator credits
 * grant`.
 */
export function commandsOf(
  command: Command,
  words = 'operator',
): [words: string, command: Command][] {
  const below = command.commands.flatMap((one) =>
    commandsOf(one, `${words} ${one.name()}`),
  );
  return [[words, command], ...below];
}
