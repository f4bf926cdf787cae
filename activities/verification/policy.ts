import type { CandidateToCheck } from '../../db/lookups/candidate-checks.ts';
import type { Verdict } from '../vendors/vendor.ts';
import type { Owner } from './local-part.ts';
import type { MailboxReason, VerifierTrouble } from './verifiers/verifier.ts';

// One table contains the rules that decide whether an address is `valid`. All functions here use
// this table, so that a change of the rules changes only its rows.

/**
 * The evidence that makes an address valid.
 * - `verify-always`: a verifier's current result. If no verifier can decide, the vendor's recent
 *   check of the mailbox is enough
 * - `vendor-or-verifier`: the vendor's recent check of the mailbox, or a verifier's current result
 * - `verifier-required`: only a verifier's current result
 */
export const POLICIES = [
  'verify-always',
  'vendor-or-verifier',
  'verifier-required',
] as const;
export type Policy = (typeof POLICIES)[number];

/** Decides whether an address on a catch-all domain can be valid if two sources named it. */
export const CATCH_ALL_POLICIES = ['reject', 'two-sources'] as const;
export type CatchAllPolicy = (typeof CATCH_ALL_POLICIES)[number];

/**
 * The claim about an address by its finder, which is the source that named it. It may be a verdict
 * of the finder. `valid` then means that the finder checked the mailbox recently. The other words
 * are:
 * - `stale`: the finder's check is too old
 * - `undated`: the finder claims that the address is valid, but not when it checked
 * - `registry`: the finder is NPPES, which makes no claim and is often wrong
 * - `unclear`: used instead of the claim if nothing shows that the address belongs to the person
 */
export type FinderWord = Verdict | 'stale' | 'undated' | 'registry' | 'unclear';

/**
 * The verifier's current result. `none` means that no verifier was called, or that no call got a
 * response.
 */
export const VERIFIER_WORDS = [
  'valid',
  'catch_all',
  'risky',
  'invalid',
  'unknown',
  'none',
] as const;
export type VerifierWord = (typeof VERIFIER_WORDS)[number];

/** The reason for a verdict. Stored with the address and shown to operators, never to clients. */
export type Reason =
  | MailboxReason
  | VerifierTrouble
  /** The domain accepts all mail, but two sources named the address. */
  | 'two_sources'
  /** Our own checks passed. Only evidence has this reason, never a final verdict. */
  | 'local_checks'
  /**
   * `no_evidence`: no source has seen the mailbox respond. `stale_evidence`: a source has, but too
   * long ago.
   */
  | ('no_evidence' | 'stale_evidence')
  /** Only the vendor has checked the mailbox, but the policy requires a check by a verifier. */
  | 'not_verified'
  /** Nothing shows that the address belongs to this person. See doubts.ts. */
  | 'unclear_owner'
  /** A verifier could not decide, because the mail server asked it to retry. */
  | 'greylisted'
  /**
   * Mail on the internet cannot reach the address, because its form is wrong or its domain is not
   * below an existing public suffix.
   */
  | ('syntax' | 'no_suffix')
  /**
   * The domain takes no mail. Its mail exchangers are not on the internet, or belong to a parking
   * service.
   */
  | ('null_mx' | 'nxdomain' | 'bad_mx' | 'parked')
  /** A misspelled or imitated domain, or a text that fills in for a missing address. */
  | ('lookalike' | 'placeholder')
  /** A real address, but not a person's ordinary mailbox. */
  | ('relay' | 'direct')
  /** The local part names a role, a practice, several people, or another person. */
  | Exclude<Owner, 'person' | 'unclear' | 'doubtful'>;

/** The facts that decide about an address: the input for `POLICY_TABLE`. */
export interface Case {
  readonly policy: Policy;
  readonly finder: FinderWord;
  readonly verifier: VerifierWord;
  /** True if CATCH_ALL is `two-sources` and at least two sources named the address. */
  readonly agreed: boolean;
}

/** `verifier` stands for the verifier's own reason. Null means that the verdict needs no reason. */
export type Outcome = readonly [verdict: Verdict, reason: Reason | 'verifier' | null];

type Row = readonly [
  policies: '*' | readonly Policy[],
  finder: '*' | readonly FinderWord[],
  verifier: '*' | readonly VerifierWord[],
  agreed: '*' | boolean,
  outcome: Outcome,
];

const NOT_DOUBTED: readonly FinderWord[] = [
  'valid',
  'stale',
  'undated',
  'catch_all',
  'unknown',
  'registry',
];

/** The rules. The first row that matches decides. If none matches, the outcome is NOTHING_KNOWN. */
export const POLICY_TABLE: readonly Row[] = [
  // An address is never returned if the vendor or a verifier says that its mailbox does not exist.
  ['*', '*', ['invalid'], '*', ['invalid', 'verifier']],
  ['*', ['invalid'], '*', '*', ['invalid', 'mailbox_missing']],

  // A mailbox that responds does not prove whose it is, so a verifier cannot help here.
  ['*', ['unclear'], '*', '*', ['unknown', 'unclear_owner']],

  // A verifier checks the mailbox now, so its result outweighs the vendor's.
  ['*', NOT_DOUBTED, ['catch_all'], true, ['valid', 'two_sources']],
  ['*', '*', ['catch_all'], '*', ['catch_all', null]],
  ['*', '*', ['risky'], '*', ['risky', 'verifier']],
  ['*', '*', ['valid'], '*', ['valid', 'mailbox_ok']],

  // In the rows below, no verifier has decided, so only the vendor's claim is left.
  [['vendor-or-verifier'], ['valid'], '*', '*', ['valid', 'mailbox_ok']],
  [['vendor-or-verifier'], ['catch_all'], '*', true, ['valid', 'two_sources']],
  [['verify-always'], ['valid'], ['unknown'], '*', ['valid', 'mailbox_ok']],
  [['verify-always'], ['catch_all'], ['unknown'], true, ['valid', 'two_sources']],
  ['*', ['catch_all'], '*', '*', ['catch_all', null]],
  ['*', ['risky'], '*', '*', ['risky', null]],

  ['*', '*', ['unknown'], '*', ['unknown', 'verifier']],
  ['*', ['valid'], '*', '*', ['unknown', 'not_verified']],
  ['*', ['stale'], '*', '*', ['unknown', 'stale_evidence']],
];
const NOTHING_KNOWN: Outcome = ['unknown', 'no_evidence'];

/** Returns the outcome of a case. */
export function judge(one: Case): Outcome {
  for (const [policies, finder, verifier, agreed, outcome] of POLICY_TABLE) {
    const isMatch =
      (policies === '*' || policies.includes(one.policy)) &&
      (finder === '*' || finder.includes(one.finder)) &&
      (verifier === '*' || verifier.includes(one.verifier)) &&
      (agreed === '*' || agreed === one.agreed);
    if (isMatch) return outcome;
  }
  return NOTHING_KNOWN;
}

/**
 * Returns true if a verifier can still make the address valid. Checks cost money, so a check that
 * changes nothing is not made.
 */
export function verifierCanHelp(one: Omit<Case, 'verifier'>): boolean {
  const [verdict] = judge({ ...one, verifier: 'none' });
  if (verdict === 'valid') return false;
  return VERIFIER_WORDS.some((verifier) => judge({ ...one, verifier })[0] === 'valid');
}

const DAY_MS = 86_400_000;

/** An address with the sources that named it and their claims. */
export type NamedCandidate = Omit<CandidateToCheck, 'waitedMs'>;

/** The finder's claim about a mailbox, and the time when the finder last checked it, if known. */
export interface Claim {
  readonly word: FinderWord;
  readonly seenAt: Date | null;
}

/**
 * Returns the finder's claim about a candidate. Evidence older than `freshnessMs` is stale, because
 * two to three percent of addresses stop working each month. A date is ignored if it is a day or
 * more ahead of our clock. If it is less than a day ahead, it counts as now.
 * @param isOwnerDoubtful true if nothing shows that the address belongs to the person
 * @param now the time in milliseconds
 */
export function claimOf(
  { verdict, validatedAt, source }: NamedCandidate,
  isOwnerDoubtful: boolean,
  now: number,
  freshnessMs: number,
): Claim {
  const isDoubted = verdict === 'invalid' || verdict === 'risky';
  if (isOwnerDoubtful && !isDoubted) {
    return { word: 'unclear', seenAt: null };
  }
  if (verdict === 'unknown') {
    const word = source === 'nppes' ? 'registry' : 'unknown';
    return { word, seenAt: null };
  }
  if (verdict !== 'valid') return { word: verdict, seenAt: null };
  const time = validatedAt?.getTime();
  if (time === undefined || Number.isNaN(time) || time - now >= DAY_MS) {
    return { word: 'undated', seenAt: null };
  }
  const word = now - time > freshnessMs ? 'stale' : 'valid';
  return { word, seenAt: new Date(Math.min(time, now)) };
}

/** A verdict with its reason and date. */
export interface Ruling {
  readonly verdict: Verdict;
  /** Null if the verdict needs no reason: `catch_all` and `risky`. */
  readonly reason: Reason | null;
  /**
   * The time of the check that made the address valid. For `unknown`, the finder's last successful
   * check.
   */
  readonly validatedAt: Date | null;
}

/** A verifier's judgment on an address. */
export type Word = Pick<Ruling, 'verdict' | 'reason'>;

const NOT_ASKED = { verdict: 'none', reason: null } as const;

/**
 * Looks up the outcome in the policy table, and adds the date of the check that it is based on.
 * @param word null if no verifier was called or no call got a response
 * @param now the time in milliseconds
 */
export function rule(
  known: Omit<Case, 'verifier'>,
  claim: Claim,
  word: Word | null,
  now: number,
): Ruling {
  const verifier = word === null ? NOT_ASKED : word;
  const [verdict, why] = judge({ ...known, verifier: verifier.verdict });
  const reason = why === 'verifier' ? verifier.reason : why;
  const validatedAt = dateOf(verdict, reason, claim, word, new Date(now));
  return { verdict, reason, validatedAt };
}

/**
 * Returns the date of the check that the verdict is based on. If the finder's check made the
 * address valid, this is the date of that check.
 */
function dateOf(
  verdict: Verdict,
  reason: Reason | null,
  claim: Claim,
  word: Word | null,
  now: Date,
) {
  if (verdict === 'unknown') return claim.seenAt;
  if (verdict !== 'valid') return null;
  const isFinders = reason === 'mailbox_ok' && word?.verdict !== 'valid';
  return isFinders ? claim.seenAt : now;
}
