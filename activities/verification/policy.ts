import type { ClaimedEmail } from '../../db/lookups/candidates.ts';
import type { Verdict } from '../vendors/vendor.ts';
import type { Owner } from './local-part.ts';
import type { MailboxReason, VerifierTrouble } from './verifiers/verifier.ts';

// What it takes to call an address `valid`, as one table. Everything else about it is looked up in
// the table, so that a change of the rules is a change of rows.

/**
 * - `verify-always`: a verifier says so now; if it can't tell, the vendor that named the address
 *   saw the mailbox answer recently
 * - `vendor-or-verifier`: either says so
 * - `verifier-required`: a verifier says so now
 */
export const POLICIES = ['verify-always', 'vendor-or-verifier', 'verifier-required'] as const;
export type Policy = (typeof POLICIES)[number];

/**
 * Whether an address of a domain that takes mail for anything may be valid if two sources gave it.
 */
export const CATCH_ALL_POLICIES = ['reject', 'two-sources'] as const;
export type CatchAllPolicy = (typeof CATCH_ALL_POLICIES)[number];

/**
 * What whoever named the address says of it. `valid` is recent evidence, `stale` old evidence,
 * `undated` a claim without a date; `registry` is NPPES, which claims nothing and is known to be
 * wrong often. `unclear`: whatever it says of the mailbox, it only repeats whom we asked about, and
 * the address does not tell whose it is either.
 */
export type FinderWord = Verdict | 'stale' | 'undated' | 'registry' | 'unclear';

/** What a verifier says now; `none`: nobody was asked, or nobody answered. */
export const VERIFIER_WORDS = [
  'valid',
  'catch_all',
  'risky',
  'invalid',
  'unknown',
  'none',
] as const;
export type VerifierWord = (typeof VERIFIER_WORDS)[number];

/** Why an address got its verdict, as stored with it and shown to operators; never to clients. */
export type Reason =
  | MailboxReason
  | VerifierTrouble
  /** The domain takes mail for anything, but two sources gave the address. */
  | 'two_sources'
  /** Our own checks passed, and no more was asked for. */
  | 'local_checks'
  /** Nobody has seen the mailbox answer, or too long ago. */
  | ('no_evidence' | 'stale_evidence')
  /** Only the vendor has, and a verifier is required. */
  | 'not_verified'
  /** Nobody but our own question says that it is this person's. */
  | 'unclear_owner'
  /** A verifier looked and could not tell: the mail server asked it to come back. */
  | 'greylisted'
  /** Not an address that mail on the internet could reach. */
  | ('syntax' | 'no_suffix')
  /**
   * The domain takes no mail; its mail exchangers are nowhere on the internet, or belong to who
   * parks the domain.
   */
  | ('null_mx' | 'nxdomain' | 'bad_mx' | 'parked')
  /** A misspelled or imitated domain, or what stands where an address is missing. */
  | ('lookalike' | 'placeholder')
  /** An address, but not one of a person's own mailbox. */
  | ('relay' | 'direct')
  /** Its local part names a role, a practice or several people; somebody else. */
  | Exclude<Owner, 'person' | 'unclear'>;

/** One case. */
export interface Case {
  readonly policy: Policy;
  readonly finder: FinderWord;
  readonly verifier: VerifierWord;
  /** CATCH_ALL is `two-sources` and at least two named the address. */
  readonly agreed: boolean;
}

/** `verifier`: the reason that the verifier gave. Null: the verdict says it all. */
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

/** The first row that matches decides; if none does, nobody knows anything. */
export const POLICY_TABLE: readonly Row[] = [
  // A mailbox that is said not to exist, by whomever, is not handed out.
  ['*', '*', ['invalid'], '*', ['invalid', 'verifier']],
  ['*', ['invalid'], '*', '*', ['invalid', 'mailbox_missing']],

  // A verifier looks now; what it sees outweighs what a vendor saw.
  ['*', NOT_DOUBTED, ['catch_all'], true, ['valid', 'two_sources']],
  ['*', '*', ['catch_all'], '*', ['catch_all', null]],
  ['*', '*', ['risky'], '*', ['risky', 'verifier']],
  ['*', '*', ['valid'], '*', ['valid', 'mailbox_ok']],

  // From here on no verifier could tell: the vendor's word is all there is.
  [['vendor-or-verifier'], ['valid'], '*', '*', ['valid', 'mailbox_ok']],
  [['vendor-or-verifier'], ['catch_all'], '*', true, ['valid', 'two_sources']],
  [['verify-always'], ['valid'], ['unknown'], '*', ['valid', 'mailbox_ok']],
  [['verify-always'], ['catch_all'], ['unknown'], true, ['valid', 'two_sources']],
  ['*', ['catch_all'], '*', '*', ['catch_all', null]],
  ['*', ['risky'], '*', '*', ['risky', null]],

  ['*', ['unclear'], '*', '*', ['unknown', 'unclear_owner']],
  ['*', '*', ['unknown'], '*', ['unknown', 'verifier']],
  ['*', ['valid'], '*', '*', ['unknown', 'not_verified']],
  ['*', ['stale'], '*', '*', ['unknown', 'stale_evidence']],
];
const NOTHING_KNOWN: Outcome = ['unknown', 'no_evidence'];

/** What a case comes to. */
export function judge(one: Case): Outcome {
  const row = POLICY_TABLE.find(
    ([policies, finder, verifier, agreed]) =>
      (policies === '*' || policies.includes(one.policy)) &&
      (finder === '*' || finder.includes(one.finder)) &&
      (verifier === '*' || verifier.includes(one.verifier)) &&
      (agreed === '*' || agreed === one.agreed),
  );
  return row?.[4] ?? NOTHING_KNOWN;
}

/**
 * Whether a verifier's answer can still make an address valid that is not: checks cost money, so
 * one that changes nothing is not bought.
 */
export function verifierCanHelp(one: Omit<Case, 'verifier'>): boolean {
  const [verdict] = judge({ ...one, verifier: 'none' });
  if (verdict === 'valid') return false;
  return VERIFIER_WORDS.some((verifier) => judge({ ...one, verifier })[0] === 'valid');
}

const DAY_MS = 86_400_000;

/** An address with who named it, and what is known of it. */
export type NamedCandidate = Omit<ClaimedEmail, 'waitedMs' | 'hasRival'>;

/** What whoever named an address says of its mailbox, and when it was seen to answer, if it was. */
export interface Claim {
  readonly word: FinderWord;
  readonly seenAt: Date | null;
}

/**
 * Reads a candidate as a claim. Evidence older than `freshnessMs` is stale: two to three addresses
 * in a hundred die each month. A date a day or more ahead of our clock isn't a date, and one that
 * is a little ahead is now.
 * @param owner what its local part says
 * @param now milliseconds
 */
export function claimOf(
  { verdict, validatedAt, source, isEcho }: NamedCandidate,
  owner: Owner,
  now: number,
  freshnessMs: number,
): Claim {
  const isDoubted = verdict === 'invalid' || verdict === 'risky';
  if (isEcho && owner !== 'person' && !isDoubted) return { word: 'unclear', seenAt: null };
  if (verdict === 'unknown')
    return { word: source === 'nppes' ? 'registry' : 'unknown', seenAt: null };
  if (verdict !== 'valid') return { word: verdict, seenAt: null };
  const time = validatedAt?.getTime() ?? Number.NaN;
  if (Number.isNaN(time) || time - now >= DAY_MS) return { word: 'undated', seenAt: null };
  return {
    word: now - time > freshnessMs ? 'stale' : 'valid',
    seenAt: new Date(Math.min(time, now)),
  };
}

/** A verdict with its reason and date. */
export interface Ruling {
  readonly verdict: Verdict;
  /** Null if the verdict says it all: `catch_all` and `risky`. */
  readonly reason: Reason | null;
  /**
   * When the check that called it valid was made; of an `unknown` one, when its finder last saw it
   * answer.
   */
  readonly validatedAt: Date | null;
}

/** What a verifier judged. */
export type Word = Pick<Ruling, 'verdict' | 'reason'>;

/**
 * Looks a case up in the policy and dates the outcome.
 * @param word null if no verifier was asked or none answered
 * @param now milliseconds
 */
export function rule(
  known: Omit<Case, 'verifier'>,
  claim: Claim,
  word: Word | null,
  now: number,
): Ruling {
  const [verdict, why] = judge({ ...known, verifier: word?.verdict ?? 'none' });
  const reason = why === 'verifier' ? (word?.reason ?? null) : why;
  return { verdict, reason, validatedAt: dateOf(verdict, reason, claim, word, new Date(now)) };
}

/**
 * Where the finder's own look at the mailbox is what made it valid, that look's date is the date.
 */
function dateOf(
  verdict: Verdict,
  reason: Reason | null,
  claim: Claim,
  word: Word | null,
  now: Date,
) {
  if (verdict === 'valid')
    return reason === 'mailbox_ok' && word?.verdict !== 'valid' ? claim.seenAt : now;
  return verdict === 'unknown' ? claim.seenAt : null;
}
