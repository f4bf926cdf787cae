import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, stat } from 'node:fs/promises';
import { basename } from 'node:path';
import { pipeline } from 'node:stream/promises';
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
import { cannotOpen, ImportProblem, orImportProblem } from '../nppes/layout.ts';
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

/** A kind of rows, and what becomes of them. */
export interface RowImport<T> {
  /** What a file without a header has, in this order. */
  readonly columns: readonly string[];
  /** Those that make a header of a first row that names them. */
  readonly header: readonly string[];
  /** Why a first row that is no header is none of these rows either; null if it may be one. */
  refuses?(first: Row): string | null;
  /** @param cell gives the value of a column, empty if there is none */
  judge(cell: (column: string) => string): Judged<T>;
  /** @returns a verdict for each */
  store(rows: readonly T[]): Promise<readonly string[]>;
}

/** What rows are, whatever becomes of them. */
export type RowKind<T> = Omit<RowImport<T>, 'store'>;

const ROWS_AT_ONCE = 1000;
const HEADING = 'line,verdict\n';

/**
 * Reads a file to its end.
 * @param verdictsPath where each row's line and verdict go; null for nowhere
 * @param onCounts hears the rows by verdict after each step, the last time at the end
 * @throws {ImportProblem} if a file cannot be read or written, or is not what it should be
 */
export async function importRows<T>(
  { columns, header, refuses, judge, store }: RowImport<T>,
  path: string,
  verdictsPath: string | null,
  onCounts: (counts: Readonly<Record<string, number>>) => void,
): Promise<void> {
  const verdicts =
    verdictsPath === null ? null : await orImportProblem(open(verdictsPath, 'w'), cannotOpen(verdictsPath));
  try {
    await verdicts?.write(HEADING);
    const counts: Record<string, number> = {};
    let places: readonly string[] | undefined;
    for await (const rows of readRows(path)) {
      const [first] = rows;
      if (first === undefined) continue;
      if (places === undefined) {
        const names = first.cells.map((cell) => cell.toLowerCase().replaceAll(' ', '_'));
        const hasHeader = header.every((name) => names.includes(name));
        const refusal = hasHeader ? null : refuses?.(first);
        if (refusal) throw new ImportProblem(refusal);
        places = hasHeader ? names : columns;
        if (hasHeader) rows.shift();
      }
      const at = places;
      const judged = rows.map(({ line, cells }) => {
        if (cells.length === 0) return { line, verdict: 'broken_row' };
        return { line, ...judge((column) => cells[at.indexOf(column)] ?? '') };
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
    if (places === undefined) throw new ImportProblem(`${path} holds no rows`);
  } finally {
    await verdicts?.close();
  }
}

/** A file's name without its folder, and what tells the same content again. @throws {ImportProblem} */
export async function identify(path: string): Promise<{ name: string; fingerprint: string }> {
  const status = await orImportProblem(stat(path), cannotOpen(path));
  if (status.isDirectory()) throw new ImportProblem(`${path} is a folder; name a csv file`);
  const hash = createHash('sha256');
  const read = pipeline(createReadStream(path), async (pieces: AsyncIterable<Buffer>) => {
    for await (const piece of pieces) hash.update(piece);
  });
  await orImportProblem(read, cannotOpen(path));
  return { name: basename(path), fingerprint: hash.digest('hex') };
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

// Rows of the operator's own addresses.

const DAY_MS = 86_400_000;
const DATE =
  /^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:[0-9]{2}))?$/;
/** A source's name, as it is stored with an address and shown to operators. */
export const SOURCE_NAME = /^[a-z0-9][a-z0-9._-]{0,39}$/;

/** @param source of rows that name none */
export function emailRows(source: string, now: number): RowKind<OwnEmail> {
  return {
    columns: ['npi', 'email', 'type', 'validated_at', 'source'],
    header: ['npi', 'email'],
    refuses: ({ cells: [npi = ''] }) =>
      /^[0-9]{10}$/.test(npi)
        ? null
        : 'the first row must name the columns, npi and email at least, or be npi,email itself',
    judge: (cell) => judgeEmail(cell, source, now),
  };
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

export type Suppressed = SuppressionTarget & { readonly reason: string };

const REFUSALS: Readonly<Record<TargetWord, string>> = {
  npi: 'not_an_npi',
  sha256: 'not_a_hash',
  email: 'not_an_address',
  domain: 'not_a_domain',
};

/** Rows of a list of people who want to be left alone: with a header that has `value`, or one value a line. */
export const SUPPRESSION_ROWS: RowKind<Suppressed> = {
  columns: ['value'],
  header: ['value'],
  judge: (cell) => judgeSuppression(cell('kind'), cell('value'), cell('reason')),
};

function judgeSuppression(kind: string, value: string, reason: string): Judged<Suppressed> {
  const word = kind === '' ? guessWord(value) : TARGET_WORDS.find((one) => one === kind.toLowerCase());
  if (word === undefined) return { verdict: 'unknown_kind' };
  const target = parseTarget(word, value);
  if (target === null) return { verdict: REFUSALS[word] };
  // The list itself holds nobody, so a reason that names an address is not kept.
  return { store: { ...target, reason: reason.includes('@') ? '' : reason } };
}

/** Rows of the operator's table of organizations and their domains. */
export const DOMAIN_ROWS: RowKind<EmployerDomain> = {
  columns: ['organization', 'domain', 'npi', 'pac_id'],
  header: ['domain'],
  judge: judgeDomain,
};

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
