import { createHash } from 'node:crypto';
import { type FileHandle, open, readFile, stat } from 'node:fs/promises';
import { basename } from 'node:path';
import { isEmployerDomain } from '../../activities/person/employer-domains.ts';
import { mismatchOf } from '../../activities/person/identity.ts';
import { buildSubject } from '../../activities/person/subject.ts';
import { registrableDomain } from '../../activities/verification/domains.ts';
import { classify } from '../../activities/verification/email-type.ts';
import { ownerOf } from '../../activities/verification/local-part.ts';
import { look } from '../../activities/verification/looks.ts';
import { parseAddress } from '../../activities/verification/syntax.ts';
import { bare, readNpi } from '../../api/files/cell.ts';
import { parseCsv, type Row } from '../../api/files/csv.ts';
import { decode } from '../../api/files/decode.ts';
import { UsageError } from '../../api/files/usage-error.ts';
import type { Database } from '../../db/connection/client.ts';
import { type OwnEmail, storeOwnEmails } from '../../db/lookups/imports.ts';
import {
  importSuppressions,
  type SuppressionTarget,
} from '../../db/privacy/suppressions.ts';
import {
  type EmployerDomain,
  storeEmployerDomains,
} from '../../db/providers/employer-domains.ts';
import { organizationKey, pacIdOf } from '../../db/providers/keys.ts';
import {
  type ProviderFacts,
  readProvider,
  refusalOf,
} from '../../db/providers/subject.ts';
import { EMAIL_TYPES, type EmailType } from '../../db/words.ts';
import { loadConfig } from '../config/config.ts';
import { isDay, parseMoment } from '../config/values.ts';
import { MAX_VALUE_LENGTH } from '../nppes/csv.ts';
import {
  cannotOpen,
  ImportProblem,
  orImportProblem,
  requireOther,
} from '../nppes/layout.ts';
import { guessWord, isFreeMailTarget, TARGETS, type TargetWord } from './privacy.ts';

// Imports a CSV file, and gives each row a verdict, such as `stored`. The operator's files may have
// every form that customers' files may have (api/files/).

/** A CSV file of the operator. */
export interface RowFile {
  readonly path: string;
  /** The name of the file, without its folder. */
  readonly name: string;
  /** A hash of the file's content. */
  readonly fingerprint: string;
  readonly rows: readonly Row[];
}

/** A row with its verdict. */
interface Judged {
  readonly line: number;
  readonly verdict: string;
}

/** Returns the value of a column, or an empty text if the file does not have this column. */
type CellOf = (column: string) => string;

/** How to check and store the rows of one kind of file. */
export interface RowImport<T extends object> {
  /** The columns in the order in which a file without a header has them. */
  readonly columns: readonly string[];
  /** Further columns, which only a file with a header can have. */
  readonly others?: readonly string[];
  /** Other names of columns, with our names for them. */
  readonly aliases?: Readonly<Record<string, string>>;
  /** If the first row contains all of these names, it is a header. */
  readonly header: readonly string[];
  /** Returns an error message if the first row can be neither a header nor data, otherwise null. */
  refuses?(first: readonly string[]): string | null;
  /** The verdicts of rows that were stored, or were known already. Other rows were refused. */
  readonly accepted: readonly string[];
  /** The free-mail domains that were not stored because `--yes` is missing. `judge` adds them. */
  readonly unconfirmed?: ReadonlySet<string>;
  /** Checks a row. @returns the value to store, or a verdict if the row is not stored */
  judge(cell: CellOf): T | string;
  /** Stores rows. @returns a verdict for each row */
  store(rows: readonly T[]): Promise<readonly string[]>;
  /** Returns the verdicts of a dry run, if `store` also rejects rows. */
  rehearse?(rows: readonly T[]): Promise<readonly string[]>;
}

/** The verdict of a dry run for a row that passes all checks. */
export const ACCEPTABLE = 'acceptable';

const MAX_BATCH_ROWS = 1000;
/** About a million rows. Larger files would not fit into memory. */
const MAX_BYTES = 100_000_000;

/** The verdicts of an import. An import that fails has those of the rows before the failure. */
export class Tally {
  /** The number of rows by verdict. */
  readonly counts: Record<string, number> = {};
  /** The rows that were refused. */
  readonly refused: Judged[] = [];

  get rows(): number {
    return Object.values(this.counts).reduce((sum, count) => sum + count, 0);
  }

  add({ line, verdict }: Judged, accepted: readonly string[]): void {
    this.counts[verdict] = (this.counts[verdict] ?? 0) + 1;
    const isAccepted = verdict === ACCEPTABLE || accepted.includes(verdict);
    if (!isAccepted) this.refused.push({ line, verdict });
  }
}

/** Reads a file. @throws {ImportProblem} if it cannot be read, or is not a CSV file */
export async function readRows(path: string): Promise<RowFile> {
  const status = await orImportProblem(stat(path), cannotOpen(path));
  if (status.isDirectory()) {
    throw new ImportProblem(`${path} is a folder; give a csv file`);
  }
  if (status.size > MAX_BYTES) {
    throw new ImportProblem(`${path} has more than 100 MB; split it into smaller files`);
  }
  const bytes = await orImportProblem(readFile(path), cannotOpen(path));
  const fingerprint = createHash('sha256').update(bytes).digest('hex');
  try {
    const { rows } = parseCsv(path, decode(path, bytes));
    if (rows.length === 0) throw new UsageError(`${path} has no rows.`);
    return { path, name: basename(path), fingerprint, rows };
  } catch (error) {
    if (error instanceof UsageError) throw new ImportProblem(error.message);
    throw error;
  }
}

/**
 * Imports the rows of a file.
 * @param verdictsPath path of the file to which the line number and verdict of each row are written
 * @param tally gets the verdicts during the import
 * @throws {ImportProblem} if the first row is neither a header nor data, or the verdicts cannot be
 * written
 */
export async function importRows<T extends object>(
  work: RowImport<T>,
  { path, rows }: RowFile,
  verdictsPath: string | undefined,
  tally: Tally,
): Promise<void> {
  const output =
    verdictsPath === undefined ? null : await openVerdicts(path, verdictsPath);
  try {
    const names = namesOf(work, rows);
    const data = names === null ? rows : rows.slice(1);
    for (let at = 0; at < data.length; at += MAX_BATCH_ROWS) {
      const batch = data.slice(at, at + MAX_BATCH_ROWS);
      const judged = await judgeAndStore(work, names ?? work.columns, batch);
      for (const one of judged) tally.add(one, work.accepted);
      const lines = judged.map(({ line, verdict }) => `${line},${verdict}\n`);
      await output?.write(lines.join(''));
    }
  } finally {
    await output?.close();
  }
}

/**
 * Opens the file for the verdicts. @throws {ImportProblem} if it is the imported file, or cannot be
 * written
 */
async function openVerdicts(path: string, verdictsPath: string): Promise<FileHandle> {
  await requireOther(path, verdictsPath);
  const file = await orImportProblem(open(verdictsPath, 'w'), cannotOpen(verdictsPath));
  await file.write('line,verdict\n');
  return file;
}

/**
 * Returns the names of the columns if the first row is a header, or null if it is data.
 * @throws {ImportProblem} if the first row can be neither a header nor data, or if the header has an
 * unknown or a repeated name. We don't skip such a column, because its values may matter: a date that
 * we don't read makes an address look old
 */
function namesOf<T extends object>(
  { columns, others = [], aliases = {}, header, refuses }: RowImport<T>,
  [first]: readonly Row[],
): readonly string[] | null {
  if (first === undefined) return null;
  const cells = first.cells.map((cell) => bare(cell.slice(0, MAX_VALUE_LENGTH)));
  const given = cells.map((cell) => cell.toLowerCase().replaceAll(' ', '_'));
  if (!header.every((name) => given.includes(name))) {
    const refusal = refuses?.(cells);
    if (refusal) throw new ImportProblem(refusal);
    return null;
  }
  const known = [...columns, ...others];
  const names = given.map((name) => aliases[name] ?? name);
  const unknown = cells.filter(
    (_cell, n) => names[n] !== '' && !known.includes(names[n] ?? ''),
  );
  if (unknown.length > 0) {
    const all = [...known, ...Object.keys(aliases)].join(', ');
    throw new ImportProblem(
      `unknown columns: ${unknown.join(', ')}; remove or rename them (known here: ${all})`,
    );
  }
  const twice = names.find((name, n) => name !== '' && names.indexOf(name) < n);
  if (twice === undefined) return names;
  throw new ImportProblem(`two columns are ${twice}; remove or rename one of them`);
}

/** Checks rows and stores the valid ones. @returns a verdict for each row */
async function judgeAndStore<T extends object>(
  work: RowImport<T>,
  names: readonly string[],
  rows: readonly Row[],
): Promise<Judged[]> {
  const judged = rows.map(({ cells }) => judgeRow(work, names, cells));
  const valid = judged.filter((one) => typeof one !== 'string');
  const stored = (await work.store(valid)).values();
  return rows.map(({ line }, n) => {
    const one = judged[n];
    if (typeof one === 'string') return { line, verdict: one };
    return { line, verdict: stored.next().value ?? 'unchanged' };
  });
}

function judgeRow<T extends object>(
  { columns, judge }: RowImport<T>,
  names: readonly string[],
  cells: readonly string[],
): T | string {
  // Such a row has a comma in a value without quotes, so its values are in the wrong columns.
  if (cells.slice(names.length).some((cell) => cell.trim() !== '')) {
    return 'too_many_values';
  }
  const rawOf = (column: string) => cells[names.indexOf(column)] ?? '';
  const long = columns.find((column) => rawOf(column).length > MAX_VALUE_LENGTH);
  if (long !== undefined) return `${long}_too_long`;
  return judge((column) => bare(rawOf(column)));
}

const DAY_MS = 86_400_000;
/** Matches the name of a source. The name is stored with each address and shown to operators. */
export const SOURCE_NAME = /^[a-z0-9][a-z0-9._-]{0,39}$/;

/**
 * A well-formed row of `import emails`. Whether the address belongs to the person is checked when
 * the row is stored.
 */
interface EmailRow {
  readonly npi: string;
  readonly email: string;
  readonly type: EmailType | null;
  readonly validatedAt: Date | null;
  readonly source: string;
  /** The clinician's name in the file, empty if it is missing. */
  readonly name: string;
}

/** The names of the API and of the directory. */
const EMAIL_ALIASES = {
  email_type: 'type',
  email_last_validated: 'validated_at',
  last_validated_at: 'validated_at',
};

const EMAILS_HEADER =
  'the first row must be a header with at least the names npi and email, or data that begins with an NPI and an address';

/**
 * Returns the rules for importing the operator's own addresses. An address has to pass the same
 * checks as one from a vendor. The import does the checks that need neither DNS nor a verifier. The
 * first lookup that finds the address does the other checks.
 * @param source the source that is stored for a row without a source
 */
export function emailRows(db: Database, source: string): RowImport<EmailRow> {
  const now = Date.now();
  const freshSince = now - loadConfig().freshnessMs;
  return {
    columns: ['npi', 'email', 'type', 'validated_at', 'source', 'name'],
    aliases: EMAIL_ALIASES,
    header: ['npi', 'email'],
    accepted: ['stored', 'candidate', 'stale', 'unchanged'],
    refuses: ([npi = '']) => (readNpi(npi).npi === null ? EMAILS_HEADER : null),
    judge: (cell) => judgeEmail(cell, source, now),
    async store(rows) {
      const judged = await judgeOwners(db, rows);
      const accepted = judged.filter((one) => typeof one !== 'string');
      const stored = (await storeOwnEmails(db, accepted)).values();
      return judged.map((one) => {
        if (typeof one === 'string') return one;
        const verdict = stored.next().value ?? 'unchanged';
        return verdict === 'stored' ? freshnessOf(one, freshSince) : verdict;
      });
    },
    async rehearse(rows) {
      const judged = await judgeOwners(db, rows);
      return judged.map((one) => (typeof one === 'string' ? one : ACCEPTABLE));
    },
  };
}

/**
 * Returns the verdict for an address that was stored. It depends on when the address was last
 * validated.
 */
function freshnessOf({ validatedAt }: OwnEmail, freshSince: number): string {
  if (validatedAt === null) return 'candidate';
  return validatedAt.getTime() >= freshSince ? 'stored' : 'stale';
}

/**
 * Compares each row with the person that has the row's NPI in NPPES.
 * @returns for each row, the address to store, or a verdict if it is not stored
 */
async function judgeOwners(
  db: Database,
  rows: readonly EmailRow[],
): Promise<(OwnEmail | string)[]> {
  const known = new Map<
    string,
    { facts: ProviderFacts | null; refusal: string | null }
  >();
  const judged: (OwnEmail | string)[] = [];
  for (const row of rows) {
    let person = known.get(row.npi);
    if (person === undefined) {
      const facts = await readProvider(db, row.npi);
      person = { facts, refusal: await refusalOf(db, row.npi) };
      known.set(row.npi, person);
    }
    judged.push(person.refusal ?? judgeOwner(row, person.facts));
  }
  return judged;
}

/**
 * Compares one row with the person. The name in the row is compared during the import, because it
 * is not stored for later checks.
 * @param facts null if neither NPPES nor the registry has the NPI
 */
function judgeOwner(row: EmailRow, facts: ProviderFacts | null): OwnEmail | string {
  const { npi, email, type, validatedAt, source, name } = row;
  const subject = buildSubject(npi, facts, 'any');
  if (subject.person === null && name !== '') return 'unknown_npi';
  const given = name === '' ? null : ({ kind: 'full', full: name } as const);
  const identity = { npi, name: given, state: null, employerDomain: null };
  const mismatch = mismatchOf(identity, npi, subject.person);
  if (mismatch !== null) return mismatch;
  const endpoints = facts === null ? [] : facts.endpoints;
  const isTypedDirect = endpoints.some(
    ({ kind, endpoint }) => kind === 'DIRECT' && addressOfEndpoint(endpoint) === email,
  );
  const looked = look(email, isTypedDirect, subject);
  if (looked.kind === 'refused') return looked.reason;
  const owner = ownerOf(looked.address, subject);
  if (owner === 'shared' || owner === 'other_person') return owner;
  const emailType = classify(looked.address.domain, type, subject);
  return { npi, email, emailType, validatedAt, source, checked: false };
}

const addressOfEndpoint = (endpoint: string) => parseAddress(endpoint)?.email ?? null;

function judgeEmail(cell: CellOf, defaultSource: string, now: number): EmailRow | string {
  const { npi } = readNpi(cell('npi'));
  if (npi === null) return 'invalid_npi';
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

/**
 * Parses an ISO 8601 day, or a time with `Z` or an offset. A time up to a day in the future counts
 * as the current time, because clocks and time zones differ. A later time is invalid.
 */
function parseDate(text: string, now: number): Date | null | 'bad' {
  if (text === '') return null;
  const at = isDay(text) ? new Date(text) : parseMoment(text);
  if (at === null || at.getTime() - now >= DAY_MS) return 'bad';
  return new Date(Math.min(at.getTime(), now));
}

type Suppressed = SuppressionTarget & { readonly reason: string };

const SUPPRESSIONS_HEADER =
  'the first row must be a header with the name value, or each line must be one value';

const REFUSALS: Readonly<Record<TargetWord, string>> = {
  npi: 'not_an_npi',
  sha256: 'not_a_hash',
  email: 'not_an_address',
  domain: 'not_a_domain',
};

/**
 * Returns the rules for importing a list of people who object to lookups. The file has either a
 * header with `value`, or one value per line.
 * @param yes true if free-mail domains are also suppressed
 */
export function suppressionRows(db: Database, yes: boolean): RowImport<Suppressed> {
  const unconfirmed = new Set<string>();
  return {
    unconfirmed,
    columns: ['value'],
    others: ['kind', 'reason'],
    header: ['value'],
    accepted: ['added', 'already_there'],
    // Without a header, only a file with one column is accepted. If there are several columns, the
    // first one could contain anything, such as domains that must not be suppressed.
    refuses: (cells) => (cells.length === 1 ? null : SUPPRESSIONS_HEADER),
    judge(cell) {
      const kind = cell('kind').toLowerCase();
      const value = cell('value');
      const reason = cell('reason').replace(/\p{C}+/gu, ' ');
      const word = kind === '' ? guessWord(value) : (kind as TargetWord);
      if (!Object.hasOwn(TARGETS, word)) return 'unknown_kind';
      const target = TARGETS[word](value);
      if (target === null) return REFUSALS[word];
      if (!yes && isFreeMailTarget(target)) {
        unconfirmed.add(target.value);
        return 'free_mail';
      }
      // A reason that contains an address is left out, because the suppression list must not
      // contain personal data.
      return { ...target, reason: reason.includes('@') ? '' : reason };
    },
    async store(rows) {
      const stored = await importSuppressions(db, rows);
      return stored.map((isNew) => (isNew ? 'added' : 'already_there'));
    },
  };
}

/** Returns the rules for importing the email domains of employers. */
export const domainRows = (db: Database): RowImport<EmployerDomain> => ({
  columns: ['organization', 'domain', 'npi', 'pac_id'],
  header: ['domain'],
  accepted: ['added', 'changed', 'removed', 'unchanged'],
  judge: judgeDomain,
  store: (rows) => storeEmployerDomains(db, rows),
});

/**
 * Checks a row of `import domains`. The organization is identified by its NPI or PAC id. Its name
 * is used only if both are missing, because several organizations can have the same name.
 */
function judgeDomain(cell: CellOf): EmployerDomain | string {
  const text = cell('domain');
  const host = text.replace(/^(?:[a-z]+:\/\/|.*@)/i, '').replace(/[/?#:].*$/, '');
  const domain = registrableDomain(parseAddress(`x@${host}`)?.domain ?? '');
  if (text !== '' && domain === null) return 'not_a_domain';
  if (domain !== null && !isEmployerDomain(domain)) return 'not_an_employer';
  if (cell('npi') !== '') {
    const { npi } = readNpi(cell('npi'));
    return npi === null ? 'invalid_npi' : { key: `npi:${npi}`, domain };
  }
  if (cell('pac_id') !== '') {
    const pacId = pacIdOf(cell('pac_id'));
    return pacId ? { key: `pac_id:${pacId}`, domain } : 'invalid_pac_id';
  }
  const key = organizationKey(cell('organization'));
  return key === '' ? 'no_organization' : { key: `name:${key}`, domain };
}
