import type { Trouble } from '../../http/client.ts';
import type { SourceFacts, Verdict } from '../../vendors/vendor.ts';

/** Why a mailbox check came to its verdict. */
export type MailboxReason =
  | 'mailbox_ok'
  | 'mailbox_missing'
  | 'mailbox_full'
  | 'mailbox_disabled'
  | 'no_mx'
  | 'disposable'
  | 'role'
  | 'blocked'
  | 'timeout'
  | 'inconclusive';

/**
 * What a verifier made of one address.
 * - `answer`: a judgment
 * - `greylisted`: the mail server asked to come back; the same question later may be answered
 * - `working`: not judged yet; the same question after a while is not another one
 * - `retry`, `fatal`: not answered, for the same reasons as a vendor
 */
export type VerifierStep =
  | {
      readonly kind: 'answer';
      readonly verdict: Verdict;
      /** Null if the verdict says it all: `catch_all`, `risky`. */
      readonly reason: MailboxReason | null;
    }
  | { readonly kind: 'greylisted' }
  | { readonly kind: 'working'; readonly afterMs: number }
  | Trouble;

/** Why a verifier gave no judgment, as it is kept with the address; `unavailable`: it may not be asked. */
export type VerifierTrouble = `verifier_${Trouble['why'] | 'working' | 'unavailable'}`;

/** @param reason null if the verdict says it all */
export function answer(verdict: Verdict, reason: MailboxReason | null): VerifierStep {
  return { kind: 'answer', verdict, reason };
}

/** For words that a verifier does not document: nothing is guessed from them. */
export const INCONCLUSIVE = answer('unknown', 'inconclusive');

export interface VerifierFacts extends SourceFacts {
  /** What one check costs, in the verifier's credits. */
  readonly cost: number;
}

export interface VerifierOptions {
  /** Without the version, but for Hunter's, which is the finder's. */
  readonly baseUrl: string;
  /** Empty for a server of one's own that asks for none. */
  readonly apiKey: string;
}

/** Asks over HTTP whether a mailbox takes mail. Throws only what aborting `signal` throws. */
export interface Verifier extends Pick<VerifierFacts, 'id' | 'cost'> {
  check(email: string, signal: AbortSignal): Promise<VerifierStep>;
}
