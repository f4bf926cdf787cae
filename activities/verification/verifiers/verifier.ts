import type { RetryReason, Verdict } from '../../vendors/vendor.ts';

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
 * - `answer`: a judgement
 * - `greylisted`: the mail server asked to come back; the same question later may be answered
 * - `retry`: not answered, for the same reasons as a vendor; the same question may be asked again after `afterMs` (null:
 *   our own backoff)
 * - `fatal`: the verifier will not serve us until an operator acts; `protocol` names the field that was not as documented
 */
export type VerifierStep =
  | {
      readonly kind: 'answer';
      readonly verdict: Verdict;
      /** Null where the verdict says it all: `catch_all`, `risky`. */
      readonly reason: MailboxReason | null;
    }
  | { readonly kind: 'greylisted' }
  | {
      readonly kind: 'retry';
      readonly why: RetryReason;
      readonly afterMs: number | null;
    }
  | { readonly kind: 'fatal'; readonly why: 'auth' | 'credits' | 'plan' }
  | { readonly kind: 'fatal'; readonly why: 'protocol'; readonly field: string };

/**
 * Asks over HTTP whether a mailbox takes mail. Throws only what aborting `signal` throws.
 */
export interface Verifier {
  /** Short, stable, lower case: stored with what it said, shown to operators. */
  readonly id: string;
  /** What one check costs, in the verifier's credits. */
  readonly cost: number;
  check(email: string, signal: AbortSignal): Promise<VerifierStep>;
}
