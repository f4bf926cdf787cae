import { createHash } from 'node:crypto';
import { PRACTICE_DOMAINS, personOf, type SimPerson } from './people.ts';

// How the simulated RocketReach treats an NPI, which it alone can be asked about.

/** An email as the simulated vendor knows it. */
export interface SimulatedEmail {
  readonly email: string;
  readonly type: 'professional' | 'personal';
  readonly smtpValid: 'valid' | 'accept-all' | 'inconclusive';
  readonly grade: string;
}

/** What the vendor says of a lookup that is not `complete` yet. */
export type Unfinished = 'searching' | 'progress';

/** How the simulated vendor treats one NPI; latencies before the speed factor. */
export type Behaviour =
  | {
      readonly kind: 'profile';
      readonly latencyMs: number;
      readonly emails: readonly SimulatedEmail[];
      /** The NPI that the profile names. */
      readonly npi: string;
      /** The name that the profile gives. */
      readonly name: string;
      /** What the lookup and the status checks after it say, in turn, before `complete`. */
      readonly unfinished: readonly Unfinished[];
    }
  | { readonly kind: 'refusal'; readonly latencyMs: number; readonly status: 404 | 500 }
  /** The first question gets 429 and `Retry-After: 1`, the next ones the profile. */
  | { readonly kind: 'limited_once'; readonly profile: Extract<Behaviour, { kind: 'profile' }> }
  | { readonly kind: 'hang' };

const MIN_LATENCY_MS = 200;
const LATENCY_RANGE_MS = 2000;

/** A valid work address. */
export function work(local: string, domain: string = PRACTICE_DOMAINS[0] ?? ''): SimulatedEmail {
  return atWork(`${local}@${domain}`);
}

/** The valid personal address of an NPI. */
export function home(npi: string): SimulatedEmail {
  return atHome(personOf(npi).homeEmail);
}

/**
 * An answer for any NPI, derived from its digits, so that a number behaves the same in every run: 60 % have a
 * professional address (a third of them a personal one too), 15 % only a personal one, 20 % are unknown, and 5 %
 * have a professional one that takes the vendor a while.
 * @param npi 10 digits
 */
export function ordinaryBehaviour(npi: string): Behaviour {
  const latencyMs = MIN_LATENCY_MS + (digestOf(npi).readUInt16BE(0) / 0xffff) * LATENCY_RANGE_MS;
  const person = personOf(npi);
  const profile = { kind: 'profile', latencyMs, npi, name: fullName(person), unfinished: [] } as const;
  switch (shareOf(npi)) {
    case 'both':
      return { ...profile, emails: [atWork(person.workEmail), atHome(person.homeEmail)] };
    case 'professional':
      return { ...profile, emails: [atWork(person.workEmail)] };
    case 'personal':
      return { ...profile, emails: [atHome(person.homeEmail)] };
    case 'slow':
      return { ...profile, emails: [atWork(person.workEmail)], unfinished: ['searching', 'progress'] };
    case 'other_vendor':
    case 'nobody':
      return { kind: 'refusal', latencyMs, status: 404 };
  }
}

/** What there is to find about a provider who is not magic; `other_vendor` knows them and RocketReach does not. */
export type Share = 'both' | 'professional' | 'personal' | 'slow' | 'other_vendor' | 'nobody';

/** Drawn from the digits of an NPI: 20, 40, 15, 5, 5 and 15 in a hundred. */
export function shareOf(npi: string): Share {
  const percent = digestOf(npi).readUInt16BE(2) % 100;
  if (percent < 20) return 'both';
  if (percent < 60) return 'professional';
  if (percent < 75) return 'personal';
  if (percent < 80) return 'slow';
  return percent < 85 ? 'other_vendor' : 'nobody';
}

/** `Rowan Ashdown` */
export function fullName({ first, last }: Pick<SimPerson, 'first' | 'last'>): string {
  return `${first} ${last}`;
}

function atWork(email: string): SimulatedEmail {
  return { email, type: 'professional', smtpValid: 'valid', grade: 'A' };
}

function atHome(email: string): SimulatedEmail {
  return { email, type: 'personal', smtpValid: 'valid', grade: 'A-' };
}

function digestOf(npi: string): Buffer {
  return createHash('sha256').update(npi).digest();
}
