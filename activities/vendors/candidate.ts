import type { NamedCandidate } from '../../db/lookups/candidates.ts';
import type { Field } from '../http/fields.ts';
import { usState } from '../person/us-states.ts';
import type { Identity, Step } from './vendor.ts';

/** Whatever else it is, it must be text that PostgreSQL stores: no NUL, no lone surrogate, no megabyte. */
const STORABLE = /^[^\p{C}]{1,320}$/u;

/** The field an address stands in, and what a vendor says of it. */
export interface Claim extends Omit<NamedCandidate, 'email'> {
  readonly email: Field;
}

/**
 * A candidate for each address that could be one, the first claim about it if it is named twice.
 * @throws {FieldError} if an address is something other than text
 */
export function candidatesOf(claims: Iterable<Claim>): NamedCandidate[] {
  const byEmail = new Map<string, NamedCandidate>();
  for (const { email: field, ...claim } of claims) {
    const email = field.text();
    if (email === null || !STORABLE.test(email) || byEmail.has(email.toLowerCase())) continue;
    byEmail.set(email.toLowerCase(), { email, ...claim });
  }
  return [...byEmail.values()];
}

/** What a vendor names, or a miss if nothing of it could be an address. */
export function stepOfCandidates(found: Omit<Extract<Step, { kind: 'found' }>, 'kind'>): Step {
  const { candidates, credits } = found;
  if (candidates.length > 0) return { kind: 'found', ...found };
  return { kind: 'miss', reason: 'no_email', ...(credits === undefined ? {} : { credits }) };
}

/**
 * Whom an answer is about, by the fields that say it; no name if too little of it is given.
 * @throws {FieldError} if a name or a state is something other than text
 */
export function identityOf(
  fields: {
    readonly [part in 'npi' | 'first' | 'last' | 'full' | 'state' | 'country']?: Field | null;
  },
): Identity {
  const textOf = (part: keyof typeof fields) => fields[part]?.text() ?? null;
  const [first, last, full] = [textOf('first'), textOf('last'), textOf('full')];
  const whole = full ? ({ kind: 'full', full } as const) : null;
  return {
    npi: fields.npi?.scalar() || null,
    name: first && last ? { kind: 'parts', first, last } : whole,
    state: usState(textOf('state'), textOf('country')),
  };
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
