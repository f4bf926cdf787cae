import { rm } from 'node:fs/promises';
import {
  type Arguments,
  canConnect,
  connectionOf,
  HELP,
  parseArguments,
  STANDARD,
} from './arguments.ts';
import type { Connection } from './connection.ts';
import { readContacts } from './contacts.ts';
import { createCaller } from './http.ts';
import {
  type Checked,
  type CheckResult,
  EnrichmentClient,
  EnrichmentError,
  enrich,
  isShortage,
  type Options,
  PRICES,
  type Progress,
  type RequestedType,
  type Result,
} from './index.ts';
import packageJson from './package.json' with { type: 'json' };
import { printable } from './printable.ts';
import { count, ProgressBar } from './progress.ts';
import { checkOutput, writeResults } from './results.ts';
import type { Contacts } from './table.ts';
import { UsageError } from './usage-error.ts';

type Counts = Record<CheckResult, number>;

/** The output of `--json`. An error leaves out what is not known yet. */
interface Summary {
  exit_code: number;
  error: { code: string; message: string; request_id: string | null } | null;
  rows?: number;
  /** Number of different NPIs to look up. */
  npis?: number;
  max_credits?: number;
  /** The number of NPIs by the result of the free check. */
  check?: Counts;
  unusable_rows?: { line: number; cell: string; problem: string }[];
  completed?: number;
  not_found?: number;
  failed?: number;
  credits_used?: number;
}

/** Number of unusable rows that are printed. The result and the summary have all of them. */
const MAX_PRINTED = 20;

/**
 * Runs the command.
 * @returns the exit code
 */
export async function main(args: readonly string[]): Promise<number> {
  const summary: Summary = { exit_code: 0, error: null };
  try {
    await start(args, summary);
  } catch (error) {
    report(error as Error, summary);
  }
  if (args.includes('--json')) {
    console.log(printable(JSON.stringify(summary)));
  }
  return summary.exit_code;
}

async function start(args: readonly string[], summary: Summary): Promise<void> {
  const given = parseArguments(args);
  if (given === 'help') return console.log(HELP);
  if (given === 'version') {
    return console.log(packageJson.version);
  }
  const { file, out, isDryRun, isJson, type, maxCredits } = given;
  if (out) await checkOutput(given);
  const isOffline = isDryRun && !canConnect(given);
  const connection = isOffline ? null : await connectionOf(given);
  const contacts = await readContacts(file, given.column);
  describe(contacts, summary);
  const npis = npisOf(contacts);
  if (npis.length === 0) {
    throw nothingToDo(file, contacts);
  }
  summary.npis = new Set(npis).size;
  summary.max_credits = summary.npis * PRICES[type];
  if (connection) await warnIfKeyEnds(connection);
  if (connection && !isDryRun) {
    await run(contacts, given, { ...connection, type, maxCredits }, summary);
    return;
  }
  if (connection) {
    const client = new EnrichmentClient(connection);
    const { data, max_credits } = await client.checkNpis(npis);
    summary.max_credits = max_credits[type];
    summary.check = countResults(data, type);
  }
  if (!isJson) {
    printCost(contacts, summary, PRICES[type]);
  }
}

/** Warns on stderr if the API key was replaced and will end. */
async function warnIfKeyEnds(connection: Connection): Promise<void> {
  const call = createCaller(connection);
  const { response } = await call('/api/v1/credits');
  const end = response.headers.get('x-api-key-expires');
  if (end === null) return;
  const text = `This API key was replaced and works until ${end}. Use the new key.`;
  console.error(printable(text));
}

/** Counts the NPIs by what a submit with this requested type would lead to. */
function countResults(data: readonly Checked[], type: RequestedType): Counts {
  const counts: Counts = {
    lookup: 0,
    free_repeat: 0,
    not_an_npi: 0,
    organization: 0,
    deactivated: 0,
  };
  for (const { result, free_types } of data) {
    const isPaid = result === 'free_repeat' && !free_types.includes(type);
    counts[isPaid ? 'lookup' : result] += 1;
  }
  return counts;
}

/** Prints how the file was read, and the rows that can't be used. */
function describe({ notes, rows, column, place }: Contacts, summary: Summary): void {
  for (const note of notes) console.error(printable(note));
  const unusable = rows.filter(({ npi }) => npi === null);
  for (const { line, cell, problem } of unusable.slice(0, MAX_PRINTED)) {
    const shown = cell.trim() === '' ? '' : ` ${column} "${cell}"`;
    console.error(printable(`${place} ${line}:${shown} ${problem}.`));
  }
  const more = unusable.length - MAX_PRINTED;
  if (more > 0) {
    console.error(`${count(more, 'more row')} can't be used.`);
  }
  summary.rows = rows.length;
  summary.unusable_rows = unusable.map(({ line, cell, problem }) => ({
    line,
    cell,
    problem,
  }));
}

/** Returns the NPIs to look up. */
function npisOf({ rows }: Contacts): string[] {
  return rows.flatMap(({ npi, earlier }) => (npi && !earlier ? npi : []));
}

function nothingToDo(file: string, { rows }: Contacts): UsageError {
  if (rows.some(({ earlier }) => earlier)) {
    return new UsageError(
      `All NPIs of ${file} have an email. To look them up again, remove its enriched_ columns.`,
    );
  }
  return new UsageError(`${file} has no NPI that can be used.`);
}

function printCost(
  { rows }: Contacts,
  { npis = 0, max_credits = 0, check }: Summary,
  price: number,
): void {
  const unusable = rows.filter(({ npi }) => npi === null).length;
  console.log(
    `${count(rows.length, 'row')}, ${unusable} without a usable NPI: ${count(npis, 'different NPI')} to look up.`,
  );
  if (check) {
    const { lookup, free_repeat, not_an_npi, organization, deactivated } = check;
    const free = `${count(free_repeat, 'free repeat')}, ${count(organization, 'organization')}`;
    const others = `${deactivated} deactivated, ${not_an_npi} not NPIs`;
    console.log(`${count(lookup, 'lookup')}, ${free}, ${others}.`);
  }
  console.log(`At most ${count(max_credits, 'credit')}: ${price} for each email found.`);
  if (!check) {
    console.log('With an API key, this also leaves out free repeats and retired NPIs.');
  }
}

/**
 * Looks up all NPIs and writes the results. If credits run out, writes the results so far.
 * @throws the errors of `enrich`
 */
async function run(
  contacts: Contacts,
  { out, isJson }: Arguments,
  options: Options,
  summary: Summary,
): Promise<void> {
  const results = new Map<string, Result>();
  const interruption = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.once(signal, () => interruption.abort());
  }
  const bar = new ProgressBar();
  const onProgress = (progress: Progress) => {
    for (const result of progress.results) {
      results.set(result.npi, result);
    }
    bar.show(progress);
    const { completed, not_found, failed, creditsUsed } = progress;
    Object.assign(summary, { completed, not_found, failed, credits_used: creditsUsed });
  };
  const { signal } = interruption;
  const stateFile = `${out}.state.json`;
  const saved = out === STANDARD ? {} : { stateFile };
  let shortage: EnrichmentError | null = null;
  try {
    await enrich(npisOf(contacts), { ...options, ...saved, onProgress, signal });
  } catch (error) {
    if (!isShortage(error)) throw error;
    shortage = error;
  } finally {
    bar.end();
  }
  await writeResults(contacts, out, results, shortage);
  if (out !== STANDARD && !isJson) {
    console.log(`Wrote ${printable(out)}.`);
  }
  if (shortage) throw shortage;
  if (out !== STANDARD) await rm(stateFile);
  const { failed = 0 } = summary;
  if (failed > 0) {
    const again = 'To look up all rows without an email again, use the result as FILE.';
    console.error(`${count(failed, 'NPI')} failed. ${again}`);
  }
}

/** Prints the error and what to do, and adds it to the summary. */
function report(thrown: Error, summary: Summary): void {
  let error: Error & { readonly code?: unknown } = thrown;
  if (error.name === 'AbortError') {
    error = Object.assign(new Error('Interrupted.'), { code: 'interrupted' });
  }
  const [exitCode, advice] = judge(error);
  const message = `${error.message} ${advice}`.trimEnd();
  console.error(printable(`npi-email-enrichment: ${message}`));
  const isUsage = error instanceof UsageError;
  summary.exit_code = exitCode;
  summary.error = {
    code: isUsage ? 'usage' : String(error.code ?? error.name),
    message,
    request_id: requestIdOf(error),
  };
}

function judge(
  error: Error & { readonly code?: unknown },
): readonly [code: number, advice: string] {
  const code = String(error.code);
  if (error instanceof UsageError || code === 'base_url_unusable') {
    return [2, ''];
  }
  if (code === 'interrupted') {
    return [130, 'Repeat the command to continue.'];
  }
  if (code === 'max_credits') {
    return [3, 'Repeat the command with a higher --max-credits to continue.'];
  }
  if (isShortage(error)) {
    return [3, 'With more credits, repeat the command to continue.'];
  }
  if (/^(unreachable|timed_out)$/.test(code)) {
    return [1, 'Repeat the command to continue.'];
  }
  const id = requestIdOf(error);
  return [1, id ? `Quote ${id} to support.` : ''];
}

function requestIdOf(error: Error): string | null {
  if (!(error instanceof EnrichmentError)) return null;
  return error.response?.headers.get('x-request-id') ?? null;
}
