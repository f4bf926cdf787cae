import {
  byStatus,
  type HttpHeaders,
  jsonApi,
  type Meanings,
  type Question,
  type Trouble,
} from '../../http/client.ts';
import type { SourceFacts, Verdict } from '../../vendors/vendor.ts';

/** Why a mailbox check came to its verdict. */
export type MailboxReason =
  /** Everything passed, and the vendor or a verifier saw the mailbox answer recently. */
  | 'mailbox_ok'
  /** Mail to it bounces. */
  | ('mailbox_missing' | 'mailbox_full' | 'mailbox_disabled' | 'no_mx')
  /** An address, but not one of a person's own mailbox. */
  | ('disposable' | 'role')
  /** It looked and could not tell. */
  | ('blocked' | 'timeout' | 'inconclusive');

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

/**
 * Why a verifier gave no judgment, as it is kept with the address; `unavailable`: it may not be
 * asked.
 */
export type VerifierTrouble = `verifier_${Trouble['why'] | 'working' | 'unavailable'}`;

/** @param reason null if the verdict says it all */
export function answer(verdict: Verdict, reason: MailboxReason | null): VerifierStep {
  return { kind: 'answer', verdict, reason };
}

/** For words that a verifier does not document: nothing is guessed from them. */
export const INCONCLUSIVE = answer('unknown', 'inconclusive');

/** What a verifier's document says of it, and how it is talked to. */
export interface VerifierKind extends SourceFacts {
  /** What one check costs, in the verifier's credits. */
  readonly cost: number;
  headersOf(apiKey: string): HttpHeaders;
  questionAbout(email: string, apiKey: string): Question;
  /** By status, where it means something by one that HTTP does not. */
  readonly meanings: Meanings<VerifierStep>;
}

/** Not asked: it is closed to calls, its budget is spent, or its rate limit has no slot soon. */
export interface Unavailable {
  readonly kind: 'unavailable';
  readonly why: 'rate_limit' | 'unavailable';
  /** When to ask again; null if that is not known. */
  readonly afterMs: number | null;
}

/**
 * What a verifier made of an address, how long its call took, and how long that waited for a slot
 * before.
 */
type Asked = VerifierStep & { readonly durationMs: number; readonly waitedMs: number };

/** Says whether a mailbox takes mail. */
export interface Verifier extends Pick<VerifierKind, 'id' | 'cost'> {
  /** @param requestId for which it is asked; null if for none */
  check(email: string, signal: AbortSignal, requestId: string | null): Promise<Asked | Unavailable>;
}

/**
 * Asks over HTTP. `check` throws only what aborting `signal` throws.
 *
 * Some have key or address in the URL: what is thrown or returned never holds it.
 * @param at.baseUrl without the version, but for Hunter's, which is the finder's
 * @param at.apiKey empty for a server of one's own that asks for none
 */
export function createVerifier(
  { id, cost, callMs, headersOf, questionAbout, meanings }: VerifierKind,
  { baseUrl, apiKey }: { readonly baseUrl: string; readonly apiKey: string },
) {
  const ask = jsonApi(baseUrl, headersOf(apiKey), callMs);
  const read = byStatus(meanings);
  const check = (email: string, signal: AbortSignal) =>
    ask(questionAbout(email, apiKey), signal, read);
  return { id, cost, check };
}
