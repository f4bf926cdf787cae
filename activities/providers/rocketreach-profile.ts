import type { EmailType } from '../../db/words.ts';
import type { Candidate, Verdict } from './port.ts';

// RocketReach's OpenAPI: ProfileAPIWithMetadataCompiledCompany and ProfileEmailAPI, as far as they are used.

/** A profile as the adapter needs it. */
export interface Profile {
  readonly id: number;
  /** `complete`, `progress`, `searching`, `not queued`; `failed` is documented for single records only. */
  readonly status: string;
  /** Digits; null where the vendor does not say. */
  readonly npi: string | null;
  readonly candidates: readonly Candidate[];
  /** The vendor's hint when to ask again; null where it gives none. */
  readonly retryAfterSeconds: number | null;
}

const VERDICTS: ReadonlyMap<string, Verdict> = new Map([
  ['valid', 'valid'],
  ['invalid', 'invalid'],
  ['accept-all', 'catch_all'],
  ['accept_all', 'catch_all'],
  ['catch-all', 'catch_all'],
  ['catch_all', 'catch_all'],
  ['catchall', 'catch_all'],
]);

const TYPES: ReadonlyMap<string, EmailType> = new Map([
  ['personal', 'personal'],
  ['professional', 'professional'],
]);

/** Whatever else it is, it must be text that PostgreSQL stores: no NUL, no lone surrogate, no megabyte. */
const STORABLE = /^[^\p{C}]{1,320}$/u;

/**
 * Reads one profile out of parsed JSON. Fields nobody reads may be anything; a field that is read and has a type
 * the document does not give it makes the whole profile unreadable, because what it means is then a guess.
 * @returns null where it is not a profile
 */
export function parseProfile(json: unknown): Profile | null {
  if (!isRecord(json)) return null;
  const { id, status, emails, npi_data: npiData, retry_after_seconds: hint } = json;
  if (typeof id !== 'number' || !Number.isSafeInteger(id) || typeof status !== 'string') return null;
  const npi = parseNpi(npiData);
  const candidates = parseEmails(emails);
  if (npi === undefined || candidates === null) return null;
  return { id, status, npi, candidates, retryAfterSeconds: typeof hint === 'number' ? hint : null };
}

/** A string by the document's schema, a number in its example; undefined where it is neither. */
function parseNpi(npiData: unknown): string | null | undefined {
  if (npiData === undefined || npiData === null) return null;
  if (!isRecord(npiData)) return undefined;
  const { npi_number: npi } = npiData;
  if (npi === undefined || npi === null || npi === '') return null;
  return typeof npi === 'string' || typeof npi === 'number' ? String(npi) : undefined;
}

/** Null or absent while a lookup runs with `return_cached_emails=false`: then there are none yet. */
function parseEmails(emails: unknown): Candidate[] | null {
  if (emails === undefined || emails === null) return [];
  if (!Array.isArray(emails)) return null;
  const candidates: Candidate[] = [];
  for (const entry of emails) {
    const candidate = parseEmail(entry);
    if (candidate === null) return null;
    if (candidate !== 'unusable') candidates.push(candidate);
  }
  return candidates;
}

function parseEmail(entry: unknown): Candidate | 'unusable' | null {
  if (!isRecord(entry)) return null;
  const { email } = entry;
  if (email === undefined || email === null || email === '') return 'unusable';
  const smtpValid = optionalText(entry.smtp_valid);
  const type = optionalText(entry.type);
  const checkedAt = optionalText(entry.last_validation_check);
  const grade = optionalText(entry.grade);
  if (typeof email !== 'string' || smtpValid === null || type === null) return null;
  if (checkedAt === null || grade === null) return null;
  if (!STORABLE.test(email)) return 'unusable';
  return {
    email,
    vendorType: TYPES.get(type) ?? null,
    verdict: judge(smtpValid, type, grade),
    validatedAt: parseTimestamp(checkedAt),
  };
}

/** Lower case, empty where absent; null where it is not text. */
function optionalText(value: unknown): string | null {
  if (value === undefined || value === null) return '';
  return typeof value === 'string' ? value.trim().toLowerCase() : null;
}

/**
 * `smtp_valid` is what the mail server said, so it decides (`inconclusive`, `unknown` and words not seen yet are
 * `unknown`). Type and grade can only lower it: a disposable mailbox is of no use, a role mailbox is not a
 * person's, and F is the vendor's grade for an address it gave up on. The better grades (A to D) weigh the
 * likelihood that the address is this person's current one, which is no word about the mailbox.
 */
function judge(smtpValid: string, type: string, grade: string): Verdict {
  const verdict = VERDICTS.get(smtpValid) ?? 'unknown';
  if (verdict === 'invalid' || type === 'disposable' || grade.startsWith('f')) return 'invalid';
  return verdict === 'valid' && type === 'role-based' ? 'risky' : verdict;
}

/** ISO 8601; UTC where it names no zone, as the vendor's examples are. Null where it is anything else. */
function parseTimestamp(text: string): Date | null {
  const match =
    /^([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[t ]([0-9:]{5,8}(?:\.[0-9]+)?)(z|[+-][0-9]{2}:?[0-9]{2})?)?$/.exec(text);
  if (!match) return null;
  const [, day, time = '00:00:00', zone = 'z'] = match;
  const date = new Date(`${day}T${time}${zone.toUpperCase()}`);
  return Number.isNaN(date.getTime()) ? null : date;
}

/** Whether parsed JSON is an object. */
export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
