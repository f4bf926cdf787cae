import {
  byStatus,
  type HttpHeaders,
  jsonApi,
  type Meanings,
  type SourceRequest,
  type Trouble,
} from '../../http/client.ts';
import type { SourceFacts, Verdict } from '../../vendors/vendor.ts';

/** The reason for a verdict on a mailbox. */
export type MailboxReason =
  /** All checks passed, and the vendor or a verifier recently saw the mailbox respond. */
  | 'mailbox_ok'
  /** Mail to the address bounces. */
  | ('mailbox_missing' | 'mailbox_full' | 'mailbox_disabled' | 'no_mx')
  /** A real address, but not a person's mailbox. */
  | ('disposable' | 'role')
  /** The verifier checked and could not decide. */
  | ('blocked' | 'timeout' | 'inconclusive')
  /** The verifier says that the mailbox is missing, but it says so of too many mailboxes. */
  | 'verifier_suspect';

/**
 * A verifier's result for one address.
 * - `judgment`: the verifier's verdict about the mailbox
 * - `greylisted`: the mail server asked to retry; a later request may succeed
 * - `working`: the verifier has not finished; repeating the request later is not charged again
 * - `retry`, `fatal`: no response, for the same reasons as with a vendor
 */
export type VerifierStep =
  | {
      readonly kind: 'judgment';
      readonly verdict: Verdict;
      /** Null if the verdict needs no reason: `catch_all`, `risky`. */
      readonly reason: MailboxReason | null;
    }
  | { readonly kind: 'greylisted' }
  | { readonly kind: 'working'; readonly afterMs: number }
  | Trouble;

/**
 * The reason for a missing judgment, as stored with the address. `unavailable` means that the
 * verifier cannot be called.
 */
export type VerifierTrouble = `verifier_${Trouble['why'] | 'working' | 'unavailable'}`;

/** @param reason null if the verdict needs no reason */
export function judgment(verdict: Verdict, reason: MailboxReason | null): VerifierStep {
  return { kind: 'judgment', verdict, reason };
}

/** The judgment for words that a verifier does not document. Their meaning is never guessed. */
export const INCONCLUSIVE = judgment('unknown', 'inconclusive');

/** Facts from a verifier's documentation, and the way to call it. */
export interface VerifierKind extends SourceFacts {
  /** The cost of one check, in the verifier's credits. */
  readonly cost: number;
  headersOf(apiKey: string): HttpHeaders;
  requestFor(email: string, apiKey: string): SourceRequest;
  /** Explains the HTTP statuses that have an unusual meaning in this verifier's API. */
  readonly meanings: Meanings<VerifierStep>;
}

/**
 * No call was made, because the breaker is open, the budget is spent, or the rate limit has no slot
 * soon.
 */
export interface Unavailable {
  readonly kind: 'unavailable';
  readonly why: 'rate_limit' | 'unavailable';
  /** The wait until the next possible call in milliseconds; null if unknown. */
  readonly afterMs: number | null;
}

/** A verifier's result, the duration of its call, and the wait for a slot before the call. */
export type Asked = VerifierStep & {
  readonly durationMs: number;
  readonly waitedMs: number;
};

/** The work that a check is made for. */
export interface CheckedFor {
  readonly signal: AbortSignal;
  /** Null if no request waits for the check. */
  readonly requestId: string | null;
  /**
   * Renews the lookup's turn before the next verifier is called. Returns false if another request
   * has taken the turn. Then the check ends, so that no verifier is paid twice for one address. Null
   * if the check belongs to no lookup.
   */
  readonly renewTurn: (() => Promise<boolean>) | null;
}

/** A service that checks whether a mailbox accepts mail. */
export interface Verifier extends Pick<VerifierKind, 'id' | 'cost'> {
  check(email: string, work: CheckedFor): Promise<Asked | Unavailable>;
}

/**
 * Creates a verifier that is called over HTTP. `check` throws only the reason that `signal` was
 * aborted with. Some verifiers need the key or the address in the URL, so errors and results never
 * contain the URL.
 * @param at.baseUrl the URL without the version. Only Hunter's URL has the version, because the
 * vendor Hunter uses the same URL
 * @param at.apiKey empty for a self-hosted server without a key
 */
export function createVerifier(
  { id, url, cost, callMs, headersOf, requestFor, meanings }: VerifierKind,
  { baseUrl, apiKey }: { readonly baseUrl: string; readonly apiKey: string },
) {
  const ask = jsonApi(baseUrl, headersOf(apiKey), callMs);
  const read = byStatus(meanings);
  const check = (email: string, signal: AbortSignal) =>
    ask(requestFor(email, apiKey), signal, read);
  return { id, cost, isSelfHosted: url === null, check };
}
