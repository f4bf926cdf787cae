#!/usr/bin/env node
import { readFile, rm } from 'node:fs/promises';
import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { type Contacts, readContacts } from './contacts.ts';
import {
  EnrichmentError,
  enrich,
  isShortage,
  type Options,
  PRICES,
  type Progress,
  type Result,
} from './index.ts';
import { printable } from './printable.ts';
import { writeResults } from './results.ts';
import { UsageError } from './usage-error.ts';

const HELP = `Usage: npi-email-enrichment enrich FILE --out FILE [options]

Adds the verified email of each NPI to the rows of a CSV file. Rows and columns are kept.

  --out FILE          the result, written when all NPIs are done
  --column NAME       the column with the NPIs, or its number (default: it is found)
  --type TYPE         any (default), professional, or personal
  --max-credits N     submits nothing that could cost the run more than N credits
  --dry-run           prints the maximum cost and submits nothing
  --url URL           the address of the service, https:// (default: NPI_EMAIL_URL)
  --key-file FILE     a file with the API key (default: the key in NPI_EMAIL_API_KEY)

An email costs ${PRICES.any} credit, with --type personal ${PRICES.personal}. Then the same NPI is free for 30 days.

To continue after an interruption or with more credits, repeat the command. Nothing is charged twice. The state of the
run is next to the result, in a file that ends with .state.json.

Exit codes: 0 all done, 1 failed, 2 wrong usage, 3 too few credits, 130 interrupted.`;

const OPTIONS = {
  out: { type: 'string' },
  column: { type: 'string' },
  type: { type: 'string', default: 'any' },
  url: { type: 'string' },
  'max-credits': { type: 'string' },
  'key-file': { type: 'string' },
  'dry-run': { type: 'boolean' },
  help: { type: 'boolean' },
} as const;

async function main(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: OPTIONS,
  });
  if (values.help) {
    console.log(HELP);
    return 0;
  }
  const [command, file, ...others] = positionals;
  if (command !== 'enrich' || !file || others.length > 0)
    throw new UsageError('Name one file: enrich FILE. See --help.');
  const type = (['any', 'professional', 'personal'] as const).find(
    (one) => one === values.type,
  );
  if (!type)
    throw new UsageError(`--type needs one of ${Object.keys(PRICES).join(', ')}.`);
  const { out, 'max-credits': maximum = 'Infinity' } = values;
  if (!/^(\d+|Infinity)$/.test(maximum))
    throw new UsageError('--max-credits needs a whole number.');
  const contacts = await readContacts(file, values.column);
  describe(contacts);
  const npis = npisOf(contacts);
  if (npis.length === 0) throw new UsageError(`${file} has no NPI that can be used.`);
  if (values['dry-run']) {
    printCost(contacts, npis, PRICES[type]);
    return 0;
  }
  if (!out || resolve(out) === resolve(file))
    throw new UsageError('Name another file with --out.');
  const { 'key-file': keyFile, url: baseUrl = process.env.NPI_EMAIL_URL } = values;
  const apiKey = keyFile
    ? await readFile(keyFile, 'utf8')
    : process.env.NPI_EMAIL_API_KEY;
  if (!apiKey)
    throw new UsageError(
      'Put the API key into NPI_EMAIL_API_KEY, or name a file with --key-file.',
    );
  if (!baseUrl)
    throw new UsageError(
      'Put the address of the service into NPI_EMAIL_URL, or use --url.',
    );
  await run(contacts, out, {
    apiKey: apiKey.trim(),
    baseUrl,
    type,
    maxCredits: Number(maximum),
  });
  return 0;
}

/** Number of unusable rows that are printed. The result file has the reasons of all. */
const MAX_PRINTED = 20;

/** Prints how the file was read, and the rows that can't be used. */
function describe({ notes, rows, column }: Contacts): void {
  for (const note of notes) console.error(printable(note));
  const unusable = rows.filter(({ npi }) => npi === null);
  for (const { line, cell, problem } of unusable.slice(0, MAX_PRINTED)) {
    const shown = cell.trim() === '' ? '' : ` ${column} "${cell}"`;
    console.error(printable(`Line ${line}:${shown} ${problem}.`));
  }
  const more = unusable.length - MAX_PRINTED;
  if (more > 0) console.error(`${count(more, 'more row')} can't be used.`);
}

function npisOf({ rows }: Contacts): string[] {
  return rows.flatMap(({ npi }) => npi ?? []);
}

function printCost({ rows }: Contacts, npis: readonly string[], price: number): void {
  const different = new Set(npis).size;
  const without = rows.length - npis.length;
  console.log(
    `${count(rows.length, 'row')}, ${without} without an NPI: ${count(different, 'NPI')} to look up.`,
  );
  console.log(
    `At most ${count(different * price, 'credit')}: ${price} for each email found.`,
  );
}

/**
 * Looks up all NPIs and writes the results. If credits run out, writes the results so far.
 * @throws the errors of `enrich`
 */
async function run(contacts: Contacts, out: string, options: Options): Promise<void> {
  const stateFile = `${out}.state.json`;
  const results = new Map<string, Result>();
  const interruption = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const)
    process.once(signal, () => interruption.abort());
  const bar = new ProgressBar();
  const onProgress = (progress: Progress) => {
    for (const result of progress.results) results.set(result.npi, result);
    bar.show(progress);
  };
  const { signal } = interruption;
  let shortage: EnrichmentError | null = null;
  try {
    await enrich(npisOf(contacts), {
      ...options,
      stateFile,
      onProgress,
      signal,
    });
  } catch (error) {
    if (!isShortage(error)) throw error;
    shortage = error;
  } finally {
    bar.end();
  }
  await writeResults(contacts, out, results);
  console.log(`Wrote ${printable(out)}.`);
  if (shortage) throw shortage;
  await rm(stateFile);
}

/**
 * Prints the error and what to do.
 * @returns the exit code
 */
function report(error: Error): number {
  const [code, advice] = judge(error);
  console.error(printable(`npi-email-enrichment: ${error.message} ${advice}`.trimEnd()));
  return code;
}

function judge(
  error: Error & { readonly code?: unknown },
): readonly [code: number, advice: string] {
  // `String` is needed because the `code` of an AbortError is a number.
  if (String(error.code).startsWith('ERR_PARSE_ARGS')) return [2, 'See --help.'];
  if (error instanceof UsageError || error.code === 'base_url_unusable') return [2, ''];
  if (error.name === 'AbortError') return [130, 'Repeat the command to continue.'];
  if (isShortage(error)) return [3, 'With more credits, repeat the command to continue.'];
  if (/^(unreachable|timed_out)$/.test(String(error.code)))
    return [1, 'Repeat the command to continue.'];
  const id =
    error instanceof EnrichmentError && error.response?.headers.get('x-request-id');
  return [1, id ? `Quote ${id} to support.` : ''];
}

/**
 * Shows the progress on stderr. A terminal gets one line that is overwritten every second. A file
 * or pipe gets a new line every 10 seconds.
 */
class ProgressBar {
  readonly #isTerminal = process.stderr.isTTY;
  readonly #begun = Date.now();
  readonly #timer = setInterval(() => this.#draw(), this.#isTerminal ? 1000 : 10_000);
  #text = '';

  show({ total, earlier, completed, not_found, failed, creditsUsed }: Progress): void {
    const done = completed + not_found + failed;
    const perMinute = (60_000 * (done - earlier)) / (Date.now() - this.#begun);
    const left =
      perMinute > 0 ? `, ${Math.ceil((total - done) / perMinute)} min left` : '';
    const filled = '#'.repeat((20 * done) / total);
    const pace = `[${filled.padEnd(20, '.')}] ${done} of ${total}, ${Math.round(perMinute)} a minute`;
    const found = `${completed} found, ${not_found} not, ${failed} failed`;
    this.#text = `${pace}${left}: ${found}, ${count(creditsUsed, 'credit')}`;
  }

  end(): void {
    clearInterval(this.#timer);
    this.#draw();
    if (this.#isTerminal && this.#text !== '') process.stderr.write('\n');
  }

  #draw(): void {
    if (this.#text === '') return;
    if (!this.#isTerminal) {
      process.stderr.write(`${this.#text}\n`);
      return;
    }
    const shown = this.#text.slice(0, process.stderr.columns - 1);
    process.stderr.write(`\r${shown}\x1b[K`);
  }
}

function count(number: number, what: string): string {
  return `${number} ${what}${number === 1 ? '' : 's'}`;
}

process.exitCode = await main(process.argv.slice(2)).catch(report);
