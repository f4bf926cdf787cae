import { readFileSync } from 'node:fs';
import { Argument, type Command } from 'commander';

/**
 * Reads help.txt, the texts that `--help` prints below arguments and options.
 * @returns each text by the words of its command
 */
export function helpTexts(): ReadonlyMap<string, string> {
  const [, ...texts] = readFileSync(new URL('help.txt', import.meta.url), 'utf8').split(/^= /m);
  return new Map(
    texts.map((text) => /^(.*?)(\n.*)$/s.exec(text.trimEnd())?.slice(1) as [string, string]),
  );
}

/** Returns a command and all its subcommands, each with the words that call it. */
export function commandsOf(
  command: Command,
  words = 'operator',
): [words: string, command: Command][] {
  return [
    [words, command],
    ...command.commands.flatMap((one) => commandsOf(one, `${words} ${one.name()}`)),
  ];
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
      const tree = commandsOf(program).map(([words, { commands, options }]) => {
        const flags = [...options, ...program.options].map(({ long }) => long);
        const next = new Set([...commands.map((one) => one.name()), ...flags, '--help']);
        return `${words}:${[...next].join(' ')}`;
      });
      const script = readFileSync(new URL(`completion/operator.${shell}`, import.meta.url), 'utf8');
      stdout(script.replace('TREE', tree.join('\n')));
    });
}
