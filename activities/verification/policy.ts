import type { Verdict } from '../vendors/vendor.ts';
import type { Reason } from './reasons.ts';

// What it takes to call an address `valid`, as one table. Everything else about it is looked up in the table, so
// that a change of the rules is a change of rows.

/**
 * - `vendor-or-verifier`: a verifier says so now, or the vendor that named the address saw the mailbox answer recently
 * - `verifier-required`: a verifier says so now
 * - `local-only`: our own checks pass and nobody contradicts; no verifier is asked. For demonstrations: it says
 *   nothing about the mailbox
 */
export const POLICIES = ['vendor-or-verifier', 'verifier-required', 'local-only'] as const;
export type Policy = (typeof POLICIES)[number];

/** Whether an address of a domain that takes mail for anything may be valid where two sources gave it. */
export const CATCH_ALL_POLICIES = ['reject', 'two-sources'] as const;
export type CatchAllPolicy = (typeof CATCH_ALL_POLICIES)[number];

/**
 * What whoever named the address says of it. `valid` is recent evidence, `stale` old evidence, `undated` a claim
 * without a date; `registry` is NPPES, which claims nothing and is known to be wrong often.
 */
export const FINDER_WORDS = [
  'valid',
  'stale',
  'undated',
  'catch_all',
  'risky',
  'invalid',
  'unknown',
  'registry',
] as const;
export type FinderWord = (typeof FINDER_WORDS)[number];

/** What a verifier says now; `none`: nobody was asked, or nobody answered. */
export const VERIFIER_WORDS = ['valid', 'catch_all', 'risky', 'invalid', 'unknown', 'none'] as const;
export type VerifierWord = (typeof VERIFIER_WORDS)[number];

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

const ASKING: readonly Policy[] = ['vendor-or-verifier', 'verifier-required'];
const TRUSTING: readonly Policy[] = ['vendor-or-verifier', 'local-only'];
const NOT_DOUBTED: readonly FinderWord[] = ['valid', 'stale', 'undated', 'catch_all', 'unknown', 'registry'];

/** The first row that matches decides; where none does, nobody knows anything. */
export const POLICY_TABLE: readonly Row[] = [
  // A mailbox that is said not to exist, by whomever, is not handed out.
  ['*', '*', ['invalid'], '*', ['invalid', 'verifier']],
  ['*', ['invalid'], '*', '*', ['invalid', 'mailbox_missing']],

  // A verifier looks now; what it sees outweighs what a vendor saw.
  ['*', NOT_DOUBTED, ['catch_all'], true, ['valid', 'two_sources']],
  ['*', '*', ['catch_all'], '*', ['catch_all', null]],
  ['*', '*', ['risky'], '*', ['risky', 'verifier']],
  [ASKING, '*', ['valid'], '*', ['valid', 'mailbox_ok']],

  // From here on no verifier could tell: the vendor's word is all there is.
  [TRUSTING, ['valid'], '*', '*', ['valid', 'mailbox_ok']],
  [TRUSTING, ['catch_all'], '*', true, ['valid', 'two_sources']],
  ['*', ['catch_all'], '*', '*', ['catch_all', null]],
  ['*', ['risky'], '*', '*', ['risky', null]],
  [['local-only'], ['stale', 'undated', 'unknown'], '*', '*', ['valid', 'local_checks']],

  ['*', '*', ['unknown'], '*', ['unknown', 'verifier']],
  [['verifier-required'], ['valid'], '*', '*', ['unknown', 'not_verified']],
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
 * Whether a verifier's answer can still make an address valid that is not: checks cost money, so one that changes
 * nothing is not bought.
 */
export function verifierCanHelp(one: Omit<Case, 'verifier'>): boolean {
  const [verdict] = judge({ ...one, verifier: 'none' });
  if (verdict === 'valid' || one.policy === 'local-only') return false;
  return VERIFIER_WORDS.some((verifier) => judge({ ...one, verifier })[0] === 'valid');
}
