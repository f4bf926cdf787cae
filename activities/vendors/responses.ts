import type { NamedCandidate } from '../../db/lookups/candidates.ts';
import type { Field } from '../http/fields.ts';
import { usState } from '../person/us-states.ts';
import { registrableDomain } from '../verification/domains.ts';
import type { GivenName, Identity, Step } from './vendor.ts';

// Reads the addresses, the identity, and the times in a vendor's response.

/**
 * Text that PostgreSQL can store, at most 320 characters: no NUL, no control character, no lone
 * surrogate.
 */
const STORABLE = /^[^\p{C}]{1,320}$/u;

/** The maximum number of candidates. Each may need a paid check. */
const MAX_CANDIDATES = 20;

/**
 * A vendor's claim about an address, in which the address is still a field of the response and not
 * yet checked.
 */
export interface Claim extends Omit<NamedCandidate, 'email'> {
  readonly email: Field;
}

/**
 * Returns a candidate for each usable address. If an address is named twice, the first claim is
 * used. Addresses that are valid according to the vendor come first, then those with the highest
 * confidence, and the list is cut after `MAX_CANDIDATES`.
 * @throws {FieldError} if an address is not a text
 */
export function candidatesOf(claims: Iterable<Claim>): NamedCandidate[] {
  const byEmail = new Map<string, NamedCandidate>();
  for (const { email: field, ...claim } of claims) {
    const email = field.text();
    if (email === null || !STORABLE.test(email)) continue;
    const key = email.toLowerCase();
    if (!byEmail.has(key)) byEmail.set(key, { email, ...claim });
  }
  return [...byEmail.values()].sort(byQuality).slice(0, MAX_CANDIDATES);
}

function byQuality(one: NamedCandidate, other: NamedCandidate): number {
  const isValid = ({ verdict }: NamedCandidate) => Number(verdict === 'valid');
  const confidenceOf = ({ confidence }: NamedCandidate) => confidence ?? 0;
  return isValid(other) - isValid(one) || confidenceOf(other) - confidenceOf(one);
}

type Found = Extract<Step, { kind: 'found' }>;

/** Returns the candidates as `found`, or a miss if the list is empty. */
export function stepOfCandidates(found: Omit<Found, 'kind'>): Step {
  const { candidates, credits } = found;
  if (candidates.length > 0) return { kind: 'found', ...found };
  if (credits === undefined) {
    return { kind: 'miss', reason: 'no_email' };
  }
  return { kind: 'miss', reason: 'no_email', credits };
}

/**
 * Reads the identity from the fields that the vendor has for it. The name is null unless the vendor
 * gives a full name or both a first and a last name. The employer's domain is null if it is not
 * below a public suffix.
 * @throws {FieldError} if a name, a state, or a domain is not a text
 */
export function identityOf(
  fields: {
    readonly [part in
      | 'npi'
      | 'first'
      | 'last'
      | 'full'
      | 'state'
      | 'country'
      | 'employerDomain']?: Field | null;
  },
): Identity {
  const textOf = (part: keyof typeof fields) => fields[part]?.text() ?? null;
  const first = textOf('first');
  const last = textOf('last');
  const full = textOf('full');
  return {
    npi: fields.npi?.scalar() || null,
    name: givenName(first, last, full),
    state: usState(textOf('state'), textOf('country')),
    employerDomain: registrableDomain(textOf('employerDomain')?.toLowerCase() ?? ''),
  };
}

function givenName(
  first: string | null,
  last: string | null,
  full: string | null,
): GivenName | null {
  if (first && last) return { kind: 'parts', first, last };
  if (full) return { kind: 'full', full };
  return null;
}

const TIMESTAMP =
  /^([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ]([0-9:]{5,8}(?:\.[0-9]+)?) ?([Zz]|UTC|[+-][0-9]{2}:?[0-9]{2})?)?$/;

/**
 * Reads an ISO 8601 time as vendors write it, in UTC if it has no zone.
 * @returns null if the text is absent or has another form
 */
export function timestampOf(text: string | null): Date | null {
  if (text === null) return null;
  const match = TIMESTAMP.exec(text);
  if (match === null) return null;
  const [, day, time = '00:00:00', zone = 'Z'] = match;
  const offset = zone === 'UTC' ? 'Z' : zone.toUpperCase();
  const date = new Date(`${day}T${time}${offset}`);
  const year = date.getUTCFullYear();
  // A date before 1970 must be wrong. PostgreSQL cannot even store the year 0.
  if (year >= 1970 && year < 9999) return date;
  return null;
}
