import { spawn } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { ExecutionContext, TestFn } from 'ava';
import { hasNpiCheckDigit } from '../../db/providers/npi.ts';
import { installClient } from './customer.ts';
import { fresh, temporaryFolder } from './database.ts';
import { type Ended, endWithThisProcess } from './programs.ts';
import type { Api, ApiClient } from './stack.ts';

// The published command: downloaded from the API, installed into an empty folder, and run there as
// a program.

export interface Setting {
  readonly client?: ApiClient;
  readonly url?: string;
  /** Receives a function that ends the process. */
  readonly onStart?: (kill: (signal: NodeJS.Signals) => void) => void;
  /** The text on standard input. */
  readonly input?: string;
  readonly nodeOptions?: string;
}

export type Run = (
  folder: string,
  args: readonly string[],
  setting?: Setting,
) => Promise<Ended>;

/**
 * Installs the client.
 * @returns the folder of the project, and a function that runs the command in another folder with
 * the key and the address in the environment
 */
export function installCommand<C>(
  test: TestFn<C>,
  api: Pick<Api, 'baseUrl'>,
): { readonly project: string; readonly run: Run } {
  const project = temporaryFolder(test.after.always);
  fresh(test, async () => {
    await installClient(project, api.baseUrl);
    return {};
  });
  const command = join(project, 'node_modules/.bin/npi-email-enrichment');
  const run: Run = (cwd, args, setting = {}) => {
    const { client, url = api.baseUrl, onStart, input = '', nodeOptions = '' } = setting;
    const env: NodeJS.ProcessEnv = { NODE_OPTIONS: nodeOptions };
    if (client)
      Object.assign(env, { NPI_EMAIL_API_KEY: client.apiKey, NPI_EMAIL_URL: url });
    const child = spawn(process.execPath, [command, ...args], {
      cwd,
      env,
      stdio: 'pipe',
    });
    endWithThisProcess(child);
    onStart?.((signal) => child.kill(signal));
    child.stdin.end(input);
    let [stdout, stderr] = ['', ''];
    child.stdout.on('data', (chunk: Buffer) => (stdout += chunk));
    child.stderr.on('data', (chunk: Buffer) => (stderr += chunk));
    return new Promise((resolve) =>
      child.once('close', (code) => resolve({ code, stdout, stderr })),
    );
  };
  return { project, run };
}

export async function folderWith(
  t: ExecutionContext,
  text: string | Buffer,
): Promise<string> {
  const folder = temporaryFolder(t.teardown);
  await writeFile(join(folder, 'contacts.csv'), text);
  return folder;
}

/** Returns NPIs with correct check digits. They are even and odd by turns. */
export function validNpisFrom(first: number, count: number): string[] {
  const npis: string[] = [];
  for (let n = 10 * (300_000_000 + first); npis.length < count; n += 1) {
    const isNext = n % 2 === npis.length % 2;
    if (isNext && hasNpiCheckDigit(String(n))) npis.push(String(n));
  }
  return npis;
}

export function csvOf(npis: readonly string[]): string {
  return ['name,npi', ...npis.map((npi, index) => `Dr. ${index},${npi}`)].join('\n');
}

export function resultOf(folder: string): Promise<string> {
  return readFile(join(folder, 'result.csv'), 'utf8');
}

/** Returns the emails of a result file, one per NPI. */
export async function emailsOf(folder: string): Promise<string[]> {
  const [, ...lines] = (await resultOf(folder)).trimEnd().split('\n');
  return lines.map((line) => line.split(',')[2] ?? '');
}

/** The arguments for the file of `folderWith`. */
export const ENRICH = ['enrich', 'contacts.csv', '--out', 'result.csv'];
