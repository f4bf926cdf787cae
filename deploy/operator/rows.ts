import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, stat } from 'node:fs/promises';
import { basename } from 'node:path';
import { isEmployerDomain } from '../../activities/person/employer.ts';
import { hasNpiCheckDigit } from '../../activities/person/npi.ts';
import { classify, registrableDomain } from '../../activities/verification/domains.ts';
import { NOBODY_KNOWN, ownerOf } from '../../activities/verification/local-part.ts';
import { look } from '../../activities/verification/looks.ts';
import { parseAddress } from '../../activities/verification/syntax.ts';
import type { OwnEmail } from '../../db/lookups/imports.ts';
import type { SuppressionTarget } from '../../db/privacy/suppressions.ts';
import type { EmployerDomain } from '../../db/providers/employer-domains.ts';
import { organizationKey, pacIdOf } from '../../db/providers/keys.ts';
import { EMAIL_TYPES } from '../../db/words.ts';
import { type CsvRecord, csvReader } from '../nppes/csv.ts';
import { ImportProblem } from '../nppes/layout.ts';
import { isDay } from '../nppes/rows.ts';
import { guessWord, parseTarget, TARGET_WORDS, type TargetWord } from './privacy.ts';

// Imports of one row after the other, each with a verdict: of any size, a thousand rows at a time.

export interface Row {
  /** Its first line's number, from 1. */
  readonly line: number;
  /** Without space around them. */
  readonly cells: readonly string[];
}

/** What is to be made of a row: the thing to store, or the verdict it has by itself. */
export type Judged<T> = { readonly verdict: string } | { readonly store: T };

/** How the rows of a file are read, by its first row. */
export interface Reading<T> {
  /** True if the first row only names the columns. */
  readonly hasHeader: boolean;
  readonly columns: readonly string[];
  /** @param cell gives the value of a column, empty if there is none */
  judge(cell: (column: string) => string): Judged<T>;
}

export interface RowImport<T> {
  readonly path: string;
  /** Where each row's line and verdict go; null for nowhere. */
  readonly verdictsPath: string | null;
  /** @throws {ImportProblem} if the first row shows that the file is not one of these */
  begin(first: Row): Reading<T>;
  /** @returns a verdict for each */
  store(rows: readonly T[]): Promise<readonly string[]>;
}

const ROWS_AT_ONCE = 1000;
const HEADING = 'line,verdict\n';

/**
 * Reads a file to its end.
 * @param onCounts hears the rows by verdict after each step, the last time at the end
 * @throws {ImportProblem} if a file cannot be read or written, or is not what it should be
 */
export async function importRows<T>(
  { path, verdictsPath, begin, store }: RowImport<T>,
  onCounts: (counts: Readonly<Record<string, number>>) => void,
): Promise<void> {
  const verdicts = verdictsPath === null ? null : await attempt(verdictsPath, () => open(verdictsPath, 'w'));
  try {
    await verdicts?.write(HEADING);
    const counts: Record<string, number> = {};
    let known: Reading<T> | undefined;
    for await (const rows of readRows(path)) {
      const [first] = rows;
      if (first === undefined) continue;
      const reading = known ?? begin(first);
      const own = known === undefined && reading.hasHeader ? rows.slice(1) : rows;
      known = reading;
      const judged = own.map(({ line, cells }) => {
        if (cells.length === 0) return { line, verdict: 'broken_row' };
        return { line, ...reading.judge((column) => cells[reading.columns.indexOf(column)] ?? '') };
      });
      const stored = await store(judged.flatMap((one) => ('store' in one ? [one.store] : [])));
      let n = 0;
      const lines = judged.map((one) => {
        const verdict = 'store' in one ? (stored[n++] ?? 'unchanged') : one.verdict;
        counts[verdict] = (counts[verdict] ?? 0) + 1;
        return `${one.line},${verdict}\n`;
      });
      await verdicts?.write(lines.join(''));
      onCounts(counts);
    }
    if (known === undefined) throw new ImportProblem(`${path} holds no rows`);
  } finally {
    await verdicts?.close();
  }
}

/** A file's name without its folder, and what tells the same content again. @throws {ImportProblem} */
export async function identify(path: string): Promise<{ name: string; fingerprint: string }> {
  return await attempt(path, async () => {
    if ((await stat(path)).isDirectory()) throw new ImportProblem(`${path} is a folder; name a csv file`);
    const hash = createHash('sha256');
    for await (const piece of createReadStream(path)) hash.update(piece as Buffer);
    return { name: basename(path), fingerprint: hash.digest('hex') };
  });
}

/** In steps of about a thousand; empty rows are left out, a row with an open quote has no cells. */
async function* readRows(path: string): AsyncGenerator<Row[]> {
  const reader = csvReader(null);
  const rows: Row[] = [];
  const add = (record: CsvRecord) => {
    const { line, columns, whole } = record;
    const cells = whole ? Array.from({ length: columns }, (_, column) => clean(record.text(column))) : [];
    if (!whole || cells.some((cell) => cell !== '')) rows.push({ line, cells });
  };
  // Short rows: a piece of this size holds some thousand of them.
  for await (const piece of createReadStream(path, { highWaterMark: 65_536 })) {
    reader.push(piece as Buffer, add);
    while (rows.length >= ROWS_AT_ONCE) yield rows.splice(0, ROWS_AT_ONCE);
  }
  reader.end(add);
  while (rows.length > 0) yield rows.splice(0, ROWS_AT_ONCE);
}

/** A spreadsheet's byte order mark isn't part of the first value. */
function clean(text: string): string {
  return text.replace(/^\ufeff/, '').trim();
}

async function attempt<T>(path: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof ImportProblem) throw error;
    const code = error instanceof Error && 'code' in error ? String(error.code) : 'unknown';
    throw new ImportProblem(`cannot open ${path}: ${code === 'ENOENT' ? 'there is no such file' : code}`);
  }
}

// Rows of the operator's own addresses: `npi,email[,type][,validated_at][,source]`, in the order of a header, or in
// this one without it.

const EMAIL_COLUMNS = ['npi', 'email', 'type', 'validated_at', 'source'];

const DAY_MS = 86_400_000;
const DATE =
  /^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:[0-9]{2}))?$/;
/** A source's name, as it is stored with an address and shown to operators. */
export const SOURCE_NAME = /^[a-z0-9][a-z0-9._-]{0,39}$/;

/**
 * @param source of rows that name none
 * @throws {ImportProblem} if the first row is neither a header nor a row
 */
export function readEmailRows(first: Row, source: string, now: number): Reading<OwnEmail> {
  const names = first.cells.map((cell) => cell.toLowerCase().replaceAll(' ', '_'));
  const hasHeader = names.includes('npi') && names.includes('email');
  if (!hasHeader && !/^[0-9]{10}$/.test(first.cells[0] ?? '')) {
    throw new ImportProblem(
      'the first row must name the columns, npi and email at least, or be npi,email itself',
    );
  }
  const columns = hasHeader ? names : EMAIL_COLUMNS;
  return { hasHeader, columns, judge: (cell) => judgeEmail(cell, source, now) };
}

function judgeEmail(cell: (column: string) => string, defaultSource: string, now: number): Judged<OwnEmail> {
  const npi = cell('npi');
  if (!hasNpiCheckDigit(npi)) return { verdict: 'invalid_npi' };
  const looked = look(cell('email'));
  if (looked.kind === 'refused') {
    return { verdict: looked.reason === 'syntax' ? 'invalid_address' : looked.reason };
  }
  const { address } = looked;
  if (ownerOf(address, NOBODY_KNOWN) === 'shared') return { verdict: 'shared' };
  const given = cell('type').toLowerCase();
  const type = EMAIL_TYPES.find((one) => one === given) ?? null;
  if (given !== '' && type === null) return { verdict: 'bad_type' };
  const validatedAt = parseDate(cell('validated_at'), now);
  if (validatedAt === 'bad') return { verdict: 'bad_date' };
  const source = cell('source').toLowerCase() || defaultSource;
  if (!SOURCE_NAME.test(source)) return { verdict: 'bad_source' };
  return {
    store: { npi, email: address.email, emailType: classify(address.domain, type), validatedAt, source },
  };
}

/** ISO 8601, a day or a moment with its offset. Clocks may differ by a day; what lies further ahead isn't a date. */
function parseDate(text: string, now: number): Date | null | 'bad' {
  if (text === '') return null;
  const time = DATE.test(text) && isDay(text.slice(0, 10)) ? Date.parse(text) : Number.NaN;
  return Number.isNaN(time) || time - now >= DAY_MS ? 'bad' : new Date(Math.min(time, now));
}

type Suppressed = SuppressionTarget & { readonly reason: string };

const REFUSALS: Readonly<Record<TargetWord, string>> = {
  npi: 'not_an_npi',
  sha256: 'not_a_hash',
  email: 'not_an_address',
  domain: 'not_a_domain',
};

/** Rows of a list of people who want to be left alone: with a header that has `value`, or one value a line. */
export function readSuppressionRows(first: Row): Reading<Suppressed> {
  const names = first.cells.map((cell) => cell.toLowerCase());
  const hasHeader = names.includes('value');
  return {
    hasHeader,
    columns: hasHeader ? names : ['value'],
    judge: (cell) => judgeSuppression(cell('kind'), cell('value'), cell('reason')),
  };
}

function judgeSuppression(kind: string, value: string, reason: string): Judged<Suppressed> {
  const word = kind === '' ? guessWord(value) : TARGET_WORDS.find((one) => one === kind.toLowerCase());
  if (word === undefined) return { verdict: 'unknown_kind' };
  const target = parseTarget(word, value);
  if (target === null) return { verdict: REFUSALS[word] };
  // The list itself holds nobody, so a reason that names an address is not kept.
  return { store: { ...target, reason: reason.includes('@') ? '' : reason } };
}

// Rows of organizations and their domains: `organization,domain[,npi][,pac_id]`, in the order of a header, or in this
// one without it.

const DOMAIN_COLUMNS = ['organization', 'domain', 'npi', 'pac_id'];

/** Rows of the operator's table of domains. */
export function readDomainRows(first: Row): Reading<EmployerDomain> {
  const names = first.cells.map((cell) => cell.toLowerCase().replaceAll(' ', '_'));
  const hasHeader = names.includes('domain');
  return { hasHeader, columns: hasHeader ? names : DOMAIN_COLUMNS, judge: judgeDomain };
}

/** An id says which organization it is; many share a name, so that counts only if there is no id. */
function judgeDomain(cell: (column: string) => string): Judged<EmployerDomain> {
  const text = cell('domain');
  const host = text.replace(/^(?:[a-z]+:\/\/|.*@)/i, '').replace(/[/?#:].*$/, '');
  const domain = registrableDomain(parseAddress(`x@${host}`)?.domain ?? '');
  if (text !== '' && domain === null) return { verdict: 'not_a_domain' };
  if (domain !== null && !isEmployerDomain(domain)) return { verdict: 'not_an_employer' };
  const [npi, pacId] = [cell('npi'), cell('pac_id')];
  if (npi !== '' && !hasNpiCheckDigit(npi)) return { verdict: 'invalid_npi' };
  if (npi !== '') return { store: { key: `npi:${npi}`, domain } };
  if (pacId !== '' && pacIdOf(pacId) === null) return { verdict: 'invalid_pac_id' };
  if (pacId !== '') return { store: { key: `pac_id:${pacIdOf(pacId)}`, domain } };
  const key = organizationKey(cell('organization'));
  return key === '' ? { verdict: 'no_organization' } : { store: { key: `name:${key}`, domain } };
}
