import type { EmailType } from '../../db/words.ts';
import {
  at,
  type Field,
  FieldError,
  isAbsent,
  items,
  numberOf,
  present,
  requiredText,
  textOf,
  wordOf,
} from '../http/fields.ts';
import { usState } from '../person/us-states.ts';
import { type Claim, candidatesOf, nameOf, timestampOf } from './candidate.ts';
import type { Candidate, Identity, Verdict } from './vendor.ts';

// RocketReach's OpenAPI: ProfileAPIWithMetadataCompiledCompany, UniversalCreditPersonLookupOutputWithMetadata and
// ProfileEmailAPI, as far as they are used.

/** A profile as the adapter needs it. */
export interface Profile {
  readonly id: number;
  /** `complete`, `progress`, `searching`, `not queued`; `failed` is documented for single records only. */
  readonly status: string;
  readonly identity: Identity;
  readonly candidates: readonly Candidate[];
  /** The vendor's hint when to ask again; null where it gives none. */
  readonly retryAfterSeconds: number | null;
}

/** By `smtp_valid`, which is what the mail server said. */
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

/**
 * Reads one profile. Fields nobody reads may be anything; a field that is read and has a type the document does not
 * give it makes the whole profile unreadable, because what it means is then a guess.
 * @throws {FieldError}
 */
export function parseProfile(profile: Field): Profile {
  // In no document of the REST API, so its form is no one's promise.
  const { value: hint } = at(profile, 'retry_after_seconds');
  const status = requiredText(at(profile, 'status'));
  const emails = at(profile, 'emails');
  return {
    id: idOf(at(profile, 'id')),
    status,
    identity: {
      npi: npiOf(at(at(profile, 'npi_data'), 'npi_number')),
      name: nameOf(null, null, textOf(at(profile, 'name'))),
      state: usState(textOf(at(profile, 'region')), textOf(at(profile, 'country_code'))),
    },
    candidates: candidatesOf(
      // Null or absent while a lookup runs with `return_cached_emails=false`: then there are none yet.
      items(status === 'complete' ? present(emails) : emails).map(
        (entry) => [present(at(entry, 'email')), claimOf(entry)] as const,
      ),
    ),
    retryAfterSeconds: typeof hint === 'number' ? hint : null,
  };
}

function idOf(field: Field): number {
  const id = numberOf(field);
  if (id === null || !Number.isSafeInteger(id)) throw new FieldError(field);
  return id;
}

/**
 * A string by the document's schema, a number in its example. What is no NPI is passed on as it is: it equals no
 * NPI that was asked for, and so the answer is taken for one about somebody else.
 */
function npiOf(field: Field): string | null {
  if (isAbsent(field)) return null;
  return typeof field.value === 'number' ? String(field.value) : textOf(field);
}

function claimOf(entry: Field): Claim {
  const type = wordOf(at(entry, 'type'));
  return {
    type: TYPES.get(type) ?? null,
    verdict: judge(wordOf(present(at(entry, 'smtp_valid'))), type, wordOf(at(entry, 'grade'))),
    validatedAt: timestampOf(textOf(at(entry, 'last_validation_check'))),
  };
}

/**
 * `smtp_valid` decides (`inconclusive`, `unknown` and words not seen yet are `unknown`). Type and grade can only
 * lower it: a disposable mailbox is of no use, a role mailbox is not a person's, and F is the vendor's grade for an
 * address it gave up on. The better grades (A to D) weigh the likelihood that the address is this person's current
 * one, which is no word about the mailbox.
 */
function judge(smtpValid: string, type: string, grade: string): Verdict {
  const verdict = VERDICTS.get(smtpValid) ?? 'unknown';
  if (verdict === 'invalid' || type === 'disposable' || grade.startsWith('f')) return 'invalid';
  return verdict === 'valid' && type === 'role-based' ? 'risky' : verdict;
}
