import { runOperator } from '../../deploy/operator.ts';
import { asRole, SECRET_KEYS, SECRETS_KEY } from './database.ts';
import { type Ended, runProgram } from './programs.ts';

/**
 * Returns the operator command for one database. It runs within this process, in a fraction of the
 * time.
 */
export function operatorOn(
  databaseUrl: string,
  role: 'operator' | 'viewer' = 'operator',
) {
  const operator = async (...args: string[]): Promise<Ended> => {
    let stdout = '';
    let stderr = '';
    const code = await runOperator(args, {
      config: () => ({
        databaseUrl: asRole(databaseUrl, role),
        secretKeys: SECRET_KEYS,
      }),
      stdout: (text) => (stdout += text),
      stderr: (text) => (stderr += text),
    });
    return { code, stdout, stderr };
  };
  /** Returns the output of a command. Throws if its exit code is not 0 or it writes to stderr. */
  const text = async (...args: string[]): Promise<string> => {
    const { code, stdout, stderr } = await operator(...args);
    if (code !== 0 || stderr !== '')
      throw new Error(`${args.slice(0, 2).join(' ')}: ${code} ${stderr}`);
    return stdout;
  };
  /**
   * Returns the help of all commands without subcommands, by name.
   * @param above the words of the command that has them
   */
  const listCommands = async (
    ...above: readonly string[]
  ): Promise<ReadonlyMap<string, string>> => {
    const { stdout } = await operator(...above, '--help');
    const [, subcommands] = /\nCommands:\n(.*?)(?:\n\n|$)/s.exec(stdout) ?? [];
    if (subcommands === undefined) return new Map([[above.join(' '), stdout]]);
    const all = new Map<string, string>();
    for (const [, name = ''] of subcommands.matchAll(/^ {2}([a-z-]+)[| ]/gm)) {
      if (name === 'help') continue;
      for (const [words, help] of await listCommands(...above, name))
        all.set(words, help);
    }
    return all;
  };
  return {
    operator,
    listCommands,
    text,
    json: async <T = Record<string, unknown>>(...args: string[]): Promise<T> =>
      JSON.parse(await text(...args, '--json')) as T,
  };
}

/** Runs the command as an operator does, for tests of its environment or its stdin. */
export function spawnOperator(
  databaseUrl: string,
  args: readonly string[],
  stdin?: string | Buffer,
): Promise<Ended> {
  return runProgram('operator', args, {
    env: { DATABASE_URL: asRole(databaseUrl, 'operator'), SECRETS_KEY },
    stdin,
  });
}

export const WHY = ['--reason', 'a test', '--actor', 'tester'];
