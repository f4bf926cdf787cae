import { readFileSync } from 'node:fs';
import { type ParseArgsConfig, parseArgs } from 'node:util';
import { LocalProblem } from './processes.ts';

// What the commands of this folder have in common.

/**
 * Runs a command. What is in its way is one sentence on stderr, with exit code 1, or 2 where it is how the command was
 * called.
 */
export async function runCommand(run: () => Promise<void>): Promise<void> {
  try {
    await run();
  } catch (error) {
    if (!(error instanceof LocalProblem)) throw error;
    const isUsage = error.code === 'usage';
    console.error(isUsage ? `${error.message}\nSee --help.` : error.message);
    process.exit(isUsage ? 2 : 1);
  }
}

/** For `runCommand`; the message must repeat no value, which may be a secret. */
export function usage(message: string): LocalProblem {
  return new LocalProblem('usage', message);
}

/**
 * The options of this program's command line.
 * @throws {LocalProblem} `usage`
 */
export function parseOptions<const T extends NonNullable<ParseArgsConfig['options']>>(options: T) {
  try {
    // Reported below: the parser's own message would repeat what may be a secret without its --secret.
    const { values, positionals } = parseArgs({ allowPositionals: true, options });
    if (positionals.length === 0) return values;
  } catch (error) {
    throw usage(error instanceof Error ? error.message.replace(/whs[a-z]*_\S+/gi, 'whsec_…') : '');
  }
  throw usage('There is an argument without an option before it.');
}

/** @throws {LocalProblem} `usage` */
export function portOf(option: string, text: string): number {
  const port = /^[0-9]{1,5}$/.test(text) ? Number(text) : Number.NaN;
  if (port <= 65_535) return port;
  throw usage(`${option} must be a number from 0 to 65535.`);
}

/**
 * A webhook secret; `-` reads it from stdin, because what is on a command line is seen by others and kept by shells.
 * @throws {LocalProblem} `usage`
 */
export function secretOf(given: string | undefined): string | undefined {
  if (given === undefined) return given;
  const text = given === '-' ? readFileSync(0, 'utf8').trim() : given;
  const size = Buffer.from(/^whsec_([A-Za-z0-9+/]+={0,2})$/.exec(text)?.[1] ?? '', 'base64').length;
  if (size >= 24 && size <= 64) return text;
  throw usage(
    '--secret must be whsec_ and base64 of 24 to 64 bytes: "webhook-secret show" of the operator prints it.',
  );
}
