import type { EmailType } from '../../db/words.ts';
import { type Field, textOf } from '../http/fields.ts';
import type { Candidate, GivenName, Verdict } from './vendor.ts';

/** Whatever else it is, it must be text that PostgreSQL stores: no NUL, no lone surrogate, no megabyte. */
const STORABLE = /^[^\p{C}]{1,320}$/u;

/** What a vendor says of one address. */
export interface Claim {
  readonly type: EmailType | null;
  readonly verdict: Verdict;
  readonly validatedAt: Date | null;
}

/**
 * A candidate for each address that could be one, the first claim about it if it is named twice.
 * @param claims the field an address stands in, and what is said of it
 * @throws {FieldError} if an address is something other than text
 */
export function candidatesOf(claims: Iterable<readonly [email: Field, claim: Claim]>): Candidate[] {
  const byEmail = new Map<string, Candidate>();
  for (const [field, { type, verdict, validatedAt }] of claims) {
    const email = textOf(field);
    if (email === null || !STORABLE.test(email) || byEmail.has(email.toLowerCase())) continue;
    byEmail.set(email.toLowerCase(), { email, vendorType: type, verdict, validatedAt });
  }
  return [...byEmail.values()];
}

/**
 * The name of the person an answer is about, null if too little of it is given.
 * @throws {FieldError} if a part of it is something other than text
 */
export function nameOf(first: Field | null, last: Field | null, full: Field | null): GivenName | null {
  const [firstName, lastName, fullName] = [first, last, full].map((field) => field && textOf(field));
  if (firstName && lastName) return { kind: 'parts', first: firstName, last: lastName };
  return fullName ? { kind: 'full', full: fullName } : null;
}

/** ISO 8601, as vendors write it; UTC if it names no zone. @returns null if it is absent or anything else */
export function timestampOf(text: string | null): Date | null {
  const match =
    /^([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ]([0-9:]{5,8}(?:\.[0-9]+)?) ?([Zz]|UTC|[+-][0-9]{2}:?[0-9]{2})?)?$/.exec(
      text ?? '',
    );
  if (!match) return null;
  const [, day, time = '00:00:00', zone = 'Z'] = match;
  const date = new Date(`${day}T${time}${zone === 'UTC' ? 'Z' : zone.toUpperCase()}`);
  return Number.isNaN(date.getTime()) ? null : date;
}
