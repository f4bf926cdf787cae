import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, stat } from 'node:fs/promises';
import { basename } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { isEmployerDomain } from '../../activities/person/employer.ts';
import { mismatchOf } from '../../activities/person/identity.ts';
import { hasNpiCheckDigit } from '../../activities/person/npi.ts';
import { buildSubject } from '../../activities/person/subject.ts';
import { classify, registrableDomain } from '../../activities/verification/domains.ts';
import { ownerOf } from '../../activities/verification/local-part.ts';
import { look } from '../../activities/verification/looks.ts';
import { parseAddress } from '../../activities/verification/syntax.ts';
import type { Database } from '../../db/client.ts';
import { type OwnEmail, storeOwnEmails } from '../../db/lookups/imports.ts';
import { importSuppressions, type SuppressionTarget } from '../../db/privacy/suppressions.ts';
import { type EmployerDomain, storeEmployerDomains } from '../../db/providers/employer-domains.ts';
import { organizationKey, pacIdOf } from '../../db/providers/keys.ts';
import { type ProviderFacts, readProvider } from '../../db/providers/subject.ts';
import { EMAIL_TYPES, type EmailType } from '../../db/words.ts';
import { loadConfig } from '../config/config.ts';
import { type CsvRecord, csvReader, MAX_VALUE_LENGTH } from '../nppes/csv.ts';
import { cannotOpen, ImportProblem, orImportProblem, requireOther } from '../nppes/layout.ts';
import { isDay } from '../nppes/rows.ts';
import { guessWord, isFreeMailTarget, TARGETS, type TargetWord } from './privacy.ts';

// Imports of one row after the other, each with a verdict: of any size, a thousand rows at a time.

interface Row {
  /** Its first line's number, from 1. */
  readonly line: number;
  /** Without space around them; none of a broken row. */
  readonly cells: readonly string[];
}

/** Gives the value of a column, empty if there is none. */
type CellOf = (column: string) => string;

/** A kind of rows, and what becomes of them. */
export interface RowImport<T extends object> {
  /** What a file without a header has, in this order. */
  readonly columns: readonly string[];
  /** Those that make a header of a first row that names them. */
  readonly header: readonly string[];
  /** Why a first row that is no header is none of these rows either; null if it may be one. */
  refuses?(first: Row): string | null;
  /** Free-mail domains whose rows need `--yes`, and were not stored for want of it; filled by `judge`. */
  readonly unconfirmed?: ReadonlySet<string>;
  /** @returns what to store, or the verdict that the row has by itself */
  judge(cell: CellOf): T | string;
  /** @returns a verdict for each */
  store(rows: readonly T[]): Promise<readonly string[]>;
}

const ROWS_AT_ONCE = 1000;

/**
 * Reads a file to its end.
 * @param verdictsPath where each row's line and verdict go
 * @param counts gets the rows by verdict, as they are known
 * @throws {ImportProblem} if a file cannot be read or written, or is not what it should be
 */
export async function importRows<T extends object>(
  { columns, header, refuses, judge, store }: RowImport<T>,
  path: string,
  verdictsPath: string | undefined,
  counts: Record<string, number>,
): Promise<void> {
  if (verdictsPath) await requireOther(path, verdictsPath);
  const file = verdictsPath && (await orImportProblem(open(verdictsPath, 'w'), cannotOpen(verdictsPath)));
  try {
    if (file) await file.write('line,verdict\n');
    let places: readonly string[] = [];
    for await (const rows of readRows(path)) {
      const [first] = rows;
      if (first && places.length === 0) {
        const names = first.cells.map((cell) => cell.toLowerCase().replaceAll(' ', '_'));
        const hasHeader = header.every((name) => names.includes(name));
        const refusal = hasHeader ? null : refuses?.(first);
        if (refusal) throw new ImportProblem(refusal);
        places = hasHeader ? names : columns;
        if (hasHeader) rows.shift();
      }
      const judged = rows.map(({ cells }) => {
        if (cells.length === 0) return 'broken_row';
        const cellOf = (column: string) => cells[places.indexOf(column)] ?? '';
        const long = columns.find((column) => cellOf(column).length > MAX_VALUE_LENGTH);
        return long === undefined ? judge(cellOf) : `${long}_too_long`;
      });
      const stored = (await store(judged.filter((one) => typeof one !== 'string'))).values();
      const verdicts = judged.map((one) =>
        typeof one === 'string' ? one : (stored.next().value ?? 'unchanged'),
      );
      for (const verdict of verdicts) counts[verdict] = (counts[verdict] ?? 0) + 1;
      if (file) await file.write(rows.map(({ line }, n) => `${line},${verdicts[n]}\n`).join(''));
    }
    if (places.length === 0) throw new ImportProblem(`${path} holds no rows`);
  } finally {
    if (file) await file.close();
  }
}

/** A file's name without its folder, and what tells the same content again. @throws {ImportProblem} */
export async function identify(path: string): Promise<{ name: string; fingerprint: string }> {
  const status = await orImportProblem(stat(path), cannotOpen(path));
  if (status.isDirectory()) throw new ImportProblem(`${path} is a folder; name a csv file`);
  const hash = createHash('sha256');
  await orImportProblem(pipeline(createReadStream(path), hash), cannotOpen(path));
  return { name: basename(path), fingerprint: hash.digest('hex') };
}

/** In steps of about a thousand; empty rows are left out, a row with an open quote has no cells. */
async function* readRows(path: string): AsyncGenerator<Row[]> {
  const reader = csvReader(null);
  const rows: Row[] = [];
  const add = (record: CsvRecord) => {
    const { line, columns, whole } = record;
    const cells = whole ? Array.from({ length: columns }, (_, column) => record.text(column).trim()) : [];
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

const DAY_MS = 86_400_000;
const DATE =
  /^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:[0-9]{2}))?$/;
/** A source's name, as it is stored with an address and shown to operators. */
export const SOURCE_NAME = /^[a-z0-9][a-z0-9._-]{0,39}$/;

/** A row of own addresses that is well formed. Whom the address belongs to is checked when it is stored. */
interface EmailRow {
  readonly npi: string;
  readonly email: string;
  readonly type: EmailType | null;
  readonly validatedAt: Date | null;
  readonly source: string;
  /** The clinician's name as the file has it; empty if it has none. */
  readonly name: string;
}

/**
 * The operator's own addresses. Each passes the checks of a vendor's candidate: the file's checks here, and DNS and verifiers
 * in the first lookup that finds it.
 * @param source of rows that name none
 */
export function emailRows(db: Database, source: string): RowImport<EmailRow> {
  const now = Date.now();
  const freshSince = now - loadConfig().freshnessMs;
  return {
    columns: ['npi', 'email', 'type', 'validated_at', 'source', 'name'],
    header: ['npi', 'email'],
    refuses: ({ cells: [npi = ''] }) =>
      /^[0-9]{10}$/.test(npi)
        ? null
        : 'the first row must name the columns, npi and email at least, or be npi,email itself',
    judge: (cell) => judgeEmail(cell, source, now),
    async store(rows) {
      const judged = await judgeOwners(db, rows);
      const accepted = judged.filter((one) => typeof one !== 'string');
      const stored = (await storeOwnEmails(db, accepted)).values();
      return judged.map((one) => {
        if (typeof one === 'string') return one;
        const verdict = stored.next().value ?? 'unchanged';
        if (verdict !== 'stored') return verdict;
        const at = one.validatedAt?.getTime();
        if (at === undefined) return 'candidate';
        return at >= freshSince ? 'stored' : 'stale';
      });
    },
  };
}

/** Checks each row against the person that NPPES has under its NPI. @returns what to store, or a verdict, for each */
async function judgeOwners(db: Database, rows: readonly EmailRow[]): Promise<(OwnEmail | string)[]> {
  const known = new Map<string, Awaited<ReturnType<typeof readProvider>>>();
  const judged: (OwnEmail | string)[] = [];
  for (const row of rows) {
    let facts = known.get(row.npi);
    if (facts === undefined) {
      facts = await readProvider(db, row.npi);
      known.set(row.npi, facts);
    }
    judged.push(judgeOwner(row, facts));
  }
  return judged;
}

/**
 * Checks one row against the person. A name is not stored, so that it has to be compared now or the row is rejected.
 * @param facts null if neither NPPES nor the registry has the NPI
 */
function judgeOwner(row: EmailRow, facts: ProviderFacts | null): OwnEmail | string {
  const { npi, email, type, validatedAt, source, name } = row;
  if (facts?.refusal) return facts.refusal;
  const subject = buildSubject(npi, facts, 'any');
  if (subject.person === null && name !== '') return 'unknown_npi';
  const given = name === '' ? null : ({ kind: 'full', full: name } as const);
  const identity = { npi, name: given, state: null };
  const mismatch = mismatchOf(identity, npi, subject.person);
  if (mismatch !== null) return mismatch;
  const isTypedDirect = (facts?.endpoints ?? []).some(
    ({ kind, endpoint }) => kind === 'DIRECT' && addressOfEndpoint(endpoint) === email,
  );
  const looked = look(email, isTypedDirect, subject.person);
  if (looked.kind === 'refused') return looked.reason;
  const owner = ownerOf(looked.address, subject);
  if (owner === 'shared' || owner === 'other_person') return owner;
  const emailType = classify(looked.address.domain, type, subject.organization?.domain);
  return { npi, email, emailType, validatedAt, source, checked: false };
}

const addressOfEndpoint = (endpoint: string) =>
  parseAddress(endpoint.trim().replace(/^mailto:/i, ''))?.email ?? null;

function judgeEmail(cell: CellOf, defaultSource: string, now: number): EmailRow | string {
  const npi = cell('npi');
  if (!hasNpiCheckDigit(npi)) return 'invalid_npi';
  const address = parseAddress(cell('email'));
  if (address === null) return 'invalid_address';
  const given = cell('type').toLowerCase();
  const type = EMAIL_TYPES.find((one) => one === given) ?? null;
  if (given !== '' && type === null) return 'bad_type';
  const validatedAt = parseDate(cell('validated_at'), now);
  if (validatedAt === 'bad') return 'bad_date';
  const source = cell('source').toLowerCase() || defaultSource;
  if (!SOURCE_NAME.test(source)) return 'bad_source';
  return { npi, email: address.email, type, validatedAt, source, name: cell('name') };
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

/**
 * Rows of a list of people who want to be left alone: with a header that has `value`, or one value a line.
 * @param yes whether free-mail domains are suppressed as well
 */
export function suppressionRows(db: Database, yes: boolean): RowImport<Suppressed> {
  const unconfirmed = new Set<string>();
  return {
    unconfirmed,
    columns: ['value'],
    header: ['value'],
    // Of several columns the first may be anything, such as a domain that nobody wants suppressed.
    refuses: ({ cells }) =>
      cells.length === 1 && !cells[0]?.includes(';')
        ? null
        : 'the first row must name the columns, value at least, separated by commas; or each line is one value',
    judge(cell) {
      const [kind, value] = [cell('kind').toLowerCase(), cell('value')];
      const reason = cell('reason').replace(/\p{C}+/gu, ' ');
      const word = kind === '' ? guessWord(value) : (kind as TargetWord);
      if (!Object.hasOwn(TARGETS, word)) return 'unknown_kind';
      const target = TARGETS[word](value);
      if (target === null) return REFUSALS[word];
      if (!yes && isFreeMailTarget(target)) {
        unconfirmed.add(target.value);
        return 'free_mail';
      }
      // The list itself holds nobody, so a reason that names an address is not kept.
      return { ...target, reason: reason.includes('@') ? '' : reason };
    },
    store: async (rows) =>
      (await importSuppressions(db, rows)).map((isNew) => (isNew ? 'added' : 'already_there')),
  };
}

/** Rows of the operator's table of organizations and their domains. */
export const domainRows = (db: Database): RowImport<EmployerDomain> => ({
  columns: ['organization', 'domain', 'npi', 'pac_id'],
  header: ['domain'],
  judge: judgeDomain,
  store: (rows) => storeEmployerDomains(db, rows),
});

/** An id says which organization it is; many share a name, so that counts only if there is no id. */
function judgeDomain(cell: CellOf): EmployerDomain | string {
  const text = cell('domain');
  const host = text.replace(/^(?:[a-z]+:\/\/|.*@)/i, '').replace(/[/?#:].*$/, '');
  const domain = registrableDomain(parseAddress(`x@${host}`)?.domain ?? '');
  if (text !== '' && domain === null) return 'not_a_domain';
  if (domain !== null && !isEmployerDomain(domain)) return 'not_an_employer';
  const [npi, pacId] = [cell('npi'), cell('pac_id')];
  if (npi !== '') return hasNpiCheckDigit(npi) ? { key: `npi:${npi}`, domain } : 'invalid_npi';
  if (pacId !== '') return pacIdOf(pacId) ? { key: `pac_id:${pacIdOf(pacId)}`, domain } : 'invalid_pac_id';
  const key = organizationKey(cell('organization'));
  return key === '' ? 'no_organization' : { key: `name:${key}`, domain };
}
