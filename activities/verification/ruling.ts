import type { Verdict } from '../vendors/vendor.ts';
import type { Claim } from './finder.ts';
import { type Case, judge } from './policy.ts';
import type { Reason } from './reasons.ts';
import type { MailboxReason } from './verifiers/verifier.ts';

/** A verdict with its reason and date. */
export interface Ruling {
  readonly verdict: Verdict;
  readonly reason: Reason | null;
  /** When the check that called it valid was made; of an `unknown` one, when its finder last saw it answer. */
  readonly validatedAt: Date | null;
}

/** What a verifier judged. */
export interface Word {
  readonly verdict: Verdict;
  readonly reason: MailboxReason | null;
}

/**
 * Looks a case up in the policy and dates the outcome.
 * @param word null where no verifier was asked or none answered
 * @param now milliseconds
 */
export function rule(known: Omit<Case, 'verifier'>, claim: Claim, word: Word | null, now: number): Ruling {
  const [verdict, why] = judge({ ...known, verifier: word?.verdict ?? 'none' });
  const reason = why === 'verifier' ? (word?.reason ?? null) : why;
  return { verdict, reason, validatedAt: dateOf(verdict, reason, claim, word, new Date(now)) };
}

/** Where the finder's own look at the mailbox is what made it valid, that look's date is the date. */
function dateOf(verdict: Verdict, reason: Reason | null, claim: Claim, word: Word | null, now: Date) {
  switch (verdict) {
    case 'valid':
      return reason === 'mailbox_ok' && word?.verdict !== 'valid' ? claim.seenAt : now;
    case 'unknown':
      return claim.seenAt;
    case 'catch_all':
    case 'risky':
    case 'invalid':
      return null;
    default:
      return verdict satisfies never;
  }
}
