import { readFileSync } from 'node:fs';
import { Argument, type Command } from 'commander';

/**
 * Reads help.txt, the texts that `--help` prints below arguments and options.
 * @returns each text by the words of its command
 */
export function helpTexts(): ReadonlyMap<string, string> {
  const [, ...texts] = readFileSync(new URL('help.txt', import.meta.url), 'utf8').split(/^= /m);
  const byCommand = new Map<string, string>();
  for (const text of texts) {
    const nameEnd = text.indexOf('\n');
    byCommand.set(text.slice(0, nameEnd), text.slice(nameEnd).trimEnd());
  }
  return byCommand;
}

/** Returns a command and all its subcommands, each with the words that call it. */
export function commandsOf(
  command: Command,
  words = 'operator',
): [words: string, command: Command][] {
  const below = command.commands.flatMap((one) => commandsOf(one, `${words} ${one.name()}`));
  return [[words, command], ...below];
}

/**
 * Adds `completion`. Its script contains every command and option, so that completing a word starts
 * no program.
 */
export function addCompletionCommand(program: Command, stdout: (text: string) => void): void {
  program
    .command('completion')
    .description('print a script that completes "operator" in a shell')
    .addArgument(new Argument('<SHELL>').choices(['bash', 'zsh', 'fish']))
    .action((shell: string) => {
      const file = new URL(`completion/operator.${shell}`, import.meta.url);
      stdout(readFileSync(file, 'utf8').replace('TREE', treeOf(program)));
    });
}

/** Returns a line for each command: its words, and the words that may follow them. */
function treeOf(program: Command): string {
  const lines = commandsOf(program).map(([words, { commands, options }]) => {
    const names = commands.map((one) => one.name());
    const flags = [...options, ...program.options].map(({ long }) => long);
    const next = new Set([...names, ...flags, '--help']);
    return `${words}:${[...next].join(' ')}`;
  });
  return lines.join('\n');
}
