import type { Candidate } from '../vendors/vendor.ts';
import type { FinderWord } from './policy.ts';

const DAY_MS = 86_400_000;

/** An address with who named it. */
export interface NamedCandidate extends Candidate {
  /** Vendor, or `nppes`. */
  readonly source: string;
  /** How many distinct sources named it, at least 1. */
  readonly namedBy: number;
}

/** What whoever named an address says of its mailbox, and when it was seen to answer, if it was. */
export interface Claim {
  readonly word: FinderWord;
  readonly seenAt: Date | null;
}

/**
 * Reads a candidate as a claim. Evidence older than `freshnessMs` is stale: two to three addresses in a hundred die
 * each month. A date a day or more ahead of our clock is no date, and one that is a little ahead is now.
 * @param now milliseconds
 */
export function claimOf(
  { verdict, validatedAt, source }: NamedCandidate,
  now: number,
  freshnessMs: number,
): Claim {
  if (verdict === 'unknown') return { word: source === 'nppes' ? 'registry' : 'unknown', seenAt: null };
  if (verdict !== 'valid') return { word: verdict, seenAt: null };
  const time = validatedAt?.getTime() ?? Number.NaN;
  if (Number.isNaN(time) || time - now >= DAY_MS) return { word: 'undated', seenAt: null };
  return { word: now - time > freshnessMs ? 'stale' : 'valid', seenAt: new Date(Math.min(time, now)) };
}
