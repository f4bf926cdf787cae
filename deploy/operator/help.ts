import { readFileSync } from 'node:fs';
import { Argument, type Command } from 'commander';

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

/**
 * Adds the command `completion`, which prints a script for a shell. The script contains all
 * commands and options, so the shell can complete a word without starting this program.
 */
export function addCompletionCommand(
  program: Command,
  stdout: (text: string) => void,
): void {
  program
    .command('completion')
    .description('print a script that completes "operator" in a shell')
    .addArgument(new Argument('<SHELL>', 'your shell').choices(['bash', 'zsh', 'fish']))
    .action((shell: string) => {
      const file = new URL(`completion/operator.${shell}`, import.meta.url);
      stdout(readFileSync(file, 'utf8').replace('TREE', treeOf(program)));
    });
}

/**
 * Returns a line for each command: its full name, a colon, and the subcommands and options that may
 * follow.
 */
function treeOf(program: Command): string {
  const lines = commandsOf(program).map(([words, { commands, options }]) => {
    const names = commands.map((one) => one.name());
    const flags = [...options, ...program.options].map(({ long }) => long);
    const next = new Set([...names, ...flags, '--help']);
    return `${words}:${[...next].join(' ')}`;
  });
  return lines.join('\n');
}
