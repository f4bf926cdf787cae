import type { EmailType, StoredVerdict, WantedType } from '../../db/words.ts';

/** What is thought of one address. Only `valid` is ever given to a client. */
export type Verdict = StoredVerdict;

/** An address a vendor proposes for an NPI, before our own checks. */
export interface Candidate {
  readonly email: string;
  /** What the vendor calls it; our own classification decides, this breaks ties. */
  readonly vendorType: EmailType | null;
  readonly verdict: Verdict;
  /** When the vendor last saw the mailbox answer, if it says so. */
  readonly validatedAt: Date | null;
}

/** What is known of the provider when a vendor is asked. */
export interface Subject {
  /** 10 ASCII digits with a correct check digit. */
  readonly npi: string;
  readonly wantedType: WantedType;
}

/**
 * One step of a conversation with a vendor.
 * - `pending`: the vendor works on it; ask again with `jobRef` after `pollAfterMs`
 * - `found`: an answer with candidates, good or bad
 * - `miss`: a definitive "nobody" or "nothing"
 * - `skip`: not asked, because what the vendor needs is not known
 * - `blocked`: the person asked not to be processed
 * - `retry`: not answered; the same question may be asked again after `afterMs` (null: our own backoff)
 * - `fatal`: the vendor will not serve us until an operator acts
 */
export type Step =
  | { readonly kind: 'pending'; readonly jobRef: string; readonly pollAfterMs: number }
  | { readonly kind: 'found'; readonly candidates: readonly Candidate[] }
  | { readonly kind: 'miss'; readonly reason: string }
  | { readonly kind: 'skip'; readonly missing: readonly string[] }
  | { readonly kind: 'blocked' }
  | {
      readonly kind: 'retry';
      readonly why: 'rate_limit' | 'upstream' | 'network';
      readonly afterMs: number | null;
    }
  | { readonly kind: 'fatal'; readonly why: 'auth' | 'credits' | 'plan' | 'protocol' };

/**
 * A vendor that turns a provider into candidates. Synchronous vendors answer from `submit`; asynchronous ones
 * answer `pending` and are asked again through `poll`. Neither waits: the workflow owns every delay.
 * Both throw only what aborting `signal` throws; every answer of the vendor, and its absence, is a `Step`.
 */
export interface Provider {
  /** Short, stable, lower case: stored with what it found, shown to operators. */
  readonly id: string;
  submit(subject: Subject, signal: AbortSignal): Promise<Step>;
  poll(jobRef: string, subject: Subject, signal: AbortSignal): Promise<Step>;
}
