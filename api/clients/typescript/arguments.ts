import { readFile } from 'node:fs/promises';
import { parseArgs } from 'node:util';
import { type Options, PRICES } from './index.ts';
import { UsageError } from './usage-error.ts';

export const HELP = `Usage: npi-email-enrichment enrich FILE --out FILE [options]

Adds the verified email of each NPI to the rows of a CSV file.

FILE is CSV as spreadsheets save it, or - for standard input. It can be an
earlier result. Then rows with an email stay, and the others are looked up.

  --out FILE        the result, written at the end, or - for standard output
  --force           replaces the result if it exists
  --column NAME     the column with the NPIs, or its number (default: guessed)
  --type TYPE       any (default), professional, or personal
  --max-credits N   submits nothing that could cost more than N credits
  --dry-run         prints the maximum cost and submits nothing. With an API key,
                    it asks the service, which is free
  --json            prints a summary as JSON, also after an error
  --url URL         the address of the service (default: NPI_EMAIL_URL)
  --key-file FILE   a file with the API key (default: NPI_EMAIL_API_KEY)
  --version
  --help

Credits for an email: any ${PRICES.any}, professional ${PRICES.professional}, personal ${PRICES.personal}.
Then the same NPI is free for 30 days.

To continue after an interruption or with more credits, repeat the command.
Nothing is charged twice. The state of the run is next to the result, in a
file that ends with .state.json.

Rows that can't be used are named on stderr and in the result.

Exit codes:
  0    all done
  1    failed
  2    wrong usage, or no row that can be used
  3    too few credits
  130  interrupted`;

const OPTIONS = {
  out: { type: 'string' },
  force: { type: 'boolean', default: false },
  column: { type: 'string' },
  type: { type: 'string', default: 'any' },
  'max-credits': { type: 'string', default: 'Infinity' },
  'dry-run': { type: 'boolean', default: false },
  json: { type: 'boolean', default: false },
  url: { type: 'string' },
  'key-file': { type: 'string' },
  version: { type: 'boolean' },
  help: { type: 'boolean' },
} as const;

/** The name of standard input and standard output in place of a file. */
export const STANDARD = '-';

export interface Arguments {
  readonly file: string;
  readonly out: string;
  readonly force: boolean;
  readonly column: string | undefined;
  readonly type: keyof typeof PRICES;
  readonly maxCredits: number;
  readonly isDryRun: boolean;
  readonly isJson: boolean;
  /** The address of the service, from the arguments or the environment. */
  readonly url: string | undefined;
  readonly keyFile: string | undefined;
}

/**
 * Parses the arguments of the command.
 * @throws {UsageError} if they are not usable
 */
export function parseArguments(args: readonly string[]): Arguments | 'help' | 'version' {
  const { values, positionals } = parseOptions(args);
  if (values.help) return 'help';
  if (values.version) return 'version';
  const [command, file, ...others] = positionals;
  if (command !== 'enrich' || !file || others.length > 0) {
    throw new UsageError('Name one file: enrich FILE. See --help.');
  }
  const types = Object.keys(PRICES) as (keyof typeof PRICES)[];
  const type = types.find((one) => one === values.type);
  if (!type) {
    throw new UsageError(`--type needs one of ${types.join(', ')}.`);
  }
  const { out = '', force, column, json: isJson } = values;
  const { url = process.env.NPI_EMAIL_URL } = values;
  const { 'max-credits': maximum, 'dry-run': isDryRun, 'key-file': keyFile } = values;
  if (!/^(\d+|Infinity)$/.test(maximum)) {
    throw new UsageError('--max-credits needs a whole number.');
  }
  if (!out && !isDryRun) {
    throw new UsageError('Name a file for the result with --out.');
  }
  if (isJson && out === STANDARD) {
    throw new UsageError('--json needs standard output. Name a file with --out.');
  }
  const maxCredits = Number(maximum);
  return { file, out, force, column, type, maxCredits, isDryRun, isJson, url, keyFile };
}

/** Returns true if the arguments or the environment have an API key and an address. */
export function canConnect({ keyFile, url }: Arguments): boolean {
  return Boolean((keyFile ?? process.env.NPI_EMAIL_API_KEY) && url);
}

/**
 * Returns the key and the address from the arguments or the environment.
 * @throws {UsageError} if one is missing
 */
export async function connectionOf({
  keyFile,
  url,
}: Arguments): Promise<Pick<Options, 'apiKey' | 'baseUrl'>> {
  const apiKey = keyFile ? await readKey(keyFile) : process.env.NPI_EMAIL_API_KEY;
  if (!apiKey) {
    throw new UsageError(
      'Put the API key into NPI_EMAIL_API_KEY, or name a file with --key-file.',
    );
  }
  if (!url) {
    throw new UsageError(
      'Put the address of the service into NPI_EMAIL_URL, or use --url.',
    );
  }
  return { apiKey: apiKey.trim(), baseUrl: url };
}

async function readKey(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw new UsageError(`The key file ${file} can't be read: ${code}.`);
  }
}

function parseOptions(args: readonly string[]) {
  try {
    return parseArgs({ args: [...args], allowPositionals: true, options: OPTIONS });
  } catch (error) {
    // Shows only the first sentence. The others are about file names that begin with a hyphen.
    const [problem = ''] = (error as Error).message.split(/[.\n]/);
    throw new UsageError(`${problem}. See --help.`);
  }
}
