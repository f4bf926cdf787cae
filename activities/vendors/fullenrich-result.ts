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
import { type Claim, candidatesOf, nameOf } from './candidate.ts';
import type { Candidate, Identity, Verdict } from './vendor.ts';

// FullEnrich's OpenAPI, version 2: ResponseGetContactBulkEnrich, as far as it is used.

/** A job's result as the adapter needs it. */
export interface EnrichmentResult {
  /** `CREATED`, `IN_PROGRESS`, `CANCELED`, `CREDITS_INSUFFICIENT`, `FINISHED`, `RATE_LIMIT` or `UNKNOWN`. */
  readonly status: string;
  readonly candidates: readonly Candidate[];
  readonly identity: Identity;
  /** What the job cost so far; null where the vendor does not say. */
  readonly credits: number | null;
}

/** docs.fullenrich.com, "Email verification status": HIGH_PROBABILITY is a catch-all that is likely to be right. */
const VERDICTS: ReadonlyMap<string, Verdict> = new Map([
  ['deliverable', 'valid'],
  ['high_probability', 'risky'],
  ['catch_all', 'catch_all'],
  ['invalid', 'invalid'],
  ['invalid_domain', 'invalid'],
]);

/**
 * Reads a result of the one contact that a job of ours is about. The vendor leaves out what it has not found.
 * @throws {FieldError}
 */
export function parseResult(body: Field): EnrichmentResult {
  const status = requiredText(at(body, 'status'));
  const data = at(body, 'data');
  const records = items(data);
  // A finished job has the contact it is about, found or not.
  if (status === 'FINISHED' && records.length === 0) throw new FieldError(data);
  return {
    status,
    candidates: candidatesOf(records.flatMap((record) => claimsOf(at(record, 'contact_info')))),
    identity: identityOf(records[0]),
    credits: numberOf(at(at(body, 'cost'), 'credits')),
  };
}

/** The most probable of each type first: where an address is named twice, the first counts. */
function claimsOf(contact: Field): (readonly [Field, Claim])[] {
  const work = [at(contact, 'most_probable_work_email'), ...items(at(contact, 'work_emails'))];
  const personal = [at(contact, 'most_probable_personal_email'), ...items(at(contact, 'personal_emails'))];
  return [
    ...work.filter(isPresent).map((entry) => claimOf(entry, 'professional')),
    ...personal.filter(isPresent).map((entry) => claimOf(entry, 'personal')),
  ];
}

function isPresent(field: Field): boolean {
  return !isAbsent(field);
}

function claimOf(entry: Field, type: EmailType): readonly [Field, Claim] {
  const verdict = VERDICTS.get(wordOf(present(at(entry, 'status')))) ?? 'unknown';
  // No date is given, and a contact asked for within three months before is answered from store.
  return [present(at(entry, 'email')), { type, verdict, validatedAt: null }];
}

/**
 * Whom the vendor says it found. It has a profile only of people it was given a LinkedIn URL of, which NPPES has none
 * of; else its word is that the addresses are of the person in `input`.
 */
function identityOf(record: Field | undefined): Identity {
  if (!record) return { npi: null, name: null, state: null };
  const profile = at(record, 'profile');
  const person = isAbsent(profile) ? at(record, 'input') : profile;
  const location = at(profile, 'location');
  return {
    npi: null,
    name: nameOf(
      textOf(at(person, 'first_name')),
      textOf(at(person, 'last_name')),
      textOf(at(person, 'full_name')),
    ),
    state: usState(textOf(at(location, 'region')), textOf(at(location, 'country_code'))),
  };
}
