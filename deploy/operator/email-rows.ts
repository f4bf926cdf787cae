import { mismatchOf } from '../../activities/person/identity.ts';
import { buildSubject } from '../../activities/person/subject.ts';
import { classify } from '../../activities/verification/email-type.ts';
import { ownerOf } from '../../activities/verification/local-part.ts';
import { look } from '../../activities/verification/looks.ts';
import { parseAddress } from '../../activities/verification/syntax.ts';
import { readNpi } from '../../api/files/cell.ts';
import type { Database } from '../../db/connection/client.ts';
import { type OwnEmail, storeOwnEmails } from '../../db/lookups/imports.ts';
import {
  type ProviderFacts,
  readProvider,
  refusalOf,
} from '../../db/providers/subject.ts';
import { EMAIL_TYPES, type EmailType } from '../../db/words.ts';
import { loadConfig } from '../config/config.ts';
import { isDay, parseMoment } from '../config/values.ts';
import { ACCEPTABLE, type CellOf, type RowImport } from './rows.ts';

// The rules of `import emails`.

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
  'one of the first 30 rows must be a header with at least the names npi and email, or the first row must be data that begins with an NPI and an address';

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
        if (typeof one === 'string') {
          return one;
        }
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
  if (validatedAt === null) {
    return 'candidate';
  }
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
  if (subject.person === null && name !== '') {
    return 'unknown_npi';
  }
  const given = name === '' ? null : ({ kind: 'full', full: name } as const);
  const identity = { npi, name: given, state: null, employerDomain: null };
  const mismatch = mismatchOf(identity, npi, subject.person);
  if (mismatch !== null) {
    return mismatch;
  }
  const endpoints = facts === null ? [] : facts.endpoints;
  const isTypedDirect = endpoints.some(
    ({ kind, endpoint }) => kind === 'DIRECT' && addressOfEndpoint(endpoint) === email,
  );
  const looked = look(email, isTypedDirect, subject);
  if (looked.kind === 'refused') {
    return looked.reason;
  }
  const owner = ownerOf(looked.address, subject);
  if (owner === 'shared' || owner === 'other_person') {
    return owner;
  }
  const emailType = classify(looked.address.domain, type, subject);
  return { npi, email, emailType, validatedAt, source, checked: false };
}

const addressOfEndpoint = (endpoint: string) => parseAddress(endpoint)?.email ?? null;

function judgeEmail(cell: CellOf, defaultSource: string, now: number): EmailRow | string {
  const { npi } = readNpi(cell('npi'));
  if (npi === null) {
    return 'invalid_npi';
  }
  const address = parseAddress(cell('email'));
  if (address === null) {
    return 'invalid_address';
  }
  const given = cell('type').toLowerCase();
  const type = EMAIL_TYPES.find((one) => one === given) ?? null;
  if (given !== '' && type === null) {
    return 'bad_type';
  }
  const validatedAt = parseDate(cell('validated_at'), now);
  if (validatedAt === 'bad') {
    return 'bad_date';
  }
  const source = cell('source').toLowerCase() || defaultSource;
  if (!SOURCE_NAME.test(source)) {
    return 'bad_source';
  }
  return { npi, email: address.email, type, validatedAt, source, name: cell('name') };
}

/**
 * Parses an ISO 8601 day, or a time with `Z` or an offset. A time up to a day in the future counts
 * as the current time, because clocks and time zones differ. A later time is invalid.
 */
function parseDate(text: string, now: number): Date | null | 'bad' {
  if (text === '') return null;
  const at = isDay(text) ? new Date(text) : parseMoment(text);
  if (at === null || at.getTime() - now >= DAY_MS) {
    return 'bad';
  }
  return new Date(Math.min(at.getTime(), now));
}
