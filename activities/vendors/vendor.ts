import type { Rate } from '../../db/lookups/sources.ts';
import type { EmailType, StoredVerdict, WantedType } from '../../db/words.ts';

/** What is thought of one address. Only `valid` is ever given to a client. */
export type Verdict = StoredVerdict;

/** A name as somebody gives it: in parts, or in one piece. */
export type GivenName =
  | { readonly kind: 'parts'; readonly first: string; readonly last: string }
  | { readonly kind: 'full'; readonly full: string };

/** An address a vendor proposes for an NPI, before our own checks. */
export interface Candidate {
  readonly email: string;
  /** What the vendor calls it; our own classification decides, this breaks ties. */
  readonly vendorType: EmailType | null;
  readonly verdict: Verdict;
  /** When the vendor last saw the mailbox answer, if it says so. */
  readonly validatedAt: Date | null;
}

/** Whom the vendor's answer is about, as far as the vendor says; compared with NPPES before anything is accepted. */
export interface Identity {
  /** 10 digits. */
  readonly npi: string | null;
  readonly name: GivenName | null;
  /** Two-letter code of a US state. */
  readonly state: string | null;
}

export interface PersonName {
  /** As people write it: `Mary Jo`, `O'Brien`. */
  readonly first: string;
  readonly last: string;
}

/** An individual as NPPES has them. */
export interface Person extends PersonName {
  readonly middle: string | null;
  readonly suffix: string | null;
  readonly credential: string | null;
  /** Other names on record, such as one before a marriage. */
  readonly otherNames: readonly PersonName[];
  readonly practice: {
    readonly line1: string | null;
    readonly city: string | null;
    readonly state: string | null;
    /** Five digits. */
    readonly zip: string | null;
    /** Ten digits. */
    readonly phone: string | null;
  };
  /** Two-letter codes of the states they practise in beside the primary one. */
  readonly otherStates: readonly string[];
}

/** Where the person works, as far as it can be derived; what vendors that search by name need beside the name. */
export interface Organization {
  readonly name: string | null;
  /** Registrable, lower case. */
  readonly domain: string | null;
  readonly source: 'endpoint_domain' | 'affiliation' | 'same_phone' | 'same_address';
  /** 0 to 1. */
  readonly confidence: number;
}

/** What is known of the provider when a vendor is asked. */
export interface Subject {
  /** 10 ASCII digits with a correct check digit. */
  readonly npi: string;
  readonly wantedType: WantedType;
  /** Null where neither NPPES nor the registry has the NPI. */
  readonly person: Person | null;
  readonly organization: Organization | null;
}

/**
 * Why a question was not answered.
 * - `rate_limit`: too many questions; nothing was done
 * - `upstream`: the vendor's own word that it failed or gave up (500, 503, an error in a body, a job that has failed,
 *   been canceled or is no longer known)
 * - `unsent`: no connection was made, so nobody was asked and nothing is charged
 * - `unanswered`: the question was sent, or may have been, and the answer was lost on its way or at a gateway (502,
 *   504): the vendor may have done the work, and may have charged
 */
export type RetryReason = 'rate_limit' | 'upstream' | 'unsent' | 'unanswered';

/**
 * One step of a conversation with a vendor.
 * - `pending`: the vendor works on it; ask again with `jobRef` after `pollAfterMs`
 * - `found`: an answer with candidates, good or bad
 * - `miss`: a definitive "nobody" or "nothing"; never what a vendor says that gave up
 * - `skip`: not asked, because what the vendor needs is not known
 * - `blocked`: the person asked not to be processed
 * - `retry`: not answered; the same question may be asked again after `afterMs` (null: our own backoff), which costs
 *   again where `why` is `unanswered` and the vendor's `repeatIsFree` is false
 * - `fatal`: the vendor will not serve us until an operator acts; `protocol` names the field that was not as documented
 */
export type Step =
  | { readonly kind: 'pending'; readonly jobRef: string; readonly pollAfterMs: number }
  | {
      readonly kind: 'found';
      readonly candidates: readonly Candidate[];
      readonly identity: Identity;
      /** What the answer cost, in the vendor's credits, if it says or documents it. */
      readonly credits?: number;
    }
  | { readonly kind: 'miss'; readonly reason: string; readonly credits?: number }
  | { readonly kind: 'skip'; readonly missing: readonly string[] }
  | { readonly kind: 'blocked' }
  | {
      readonly kind: 'retry';
      readonly why: RetryReason;
      readonly afterMs: number | null;
    }
  | { readonly kind: 'fatal'; readonly why: 'auth' | 'credits' | 'plan' }
  /** Where in the answer, such as `emails[0].smtp_valid` or `body`; never a value. */
  | { readonly kind: 'fatal'; readonly why: 'protocol'; readonly field: string };

/** What a source's documents say of it, written once, in its adapter's file: configuration starts from it. */
export interface SourceFacts {
  /** What the paths in the adapter are added to; null for a server that everybody runs on their own. */
  readonly url: string | null;
  readonly rates: readonly Rate[];
}

export interface VendorFacts extends SourceFacts {
  /** How long a lookup waits for it before it goes on to the next vendor. */
  readonly capMs: number;
}

/** What a vendor needs to be told about a person before it can be asked. */
export type Need = 'npi' | 'name' | 'organization' | 'address';

/**
 * A vendor that turns a provider into candidates. Synchronous vendors answer from `submit`; asynchronous ones
 * answer `pending` and are asked again through `poll`. Neither waits: the workflow owns every delay.
 * Both throw only what aborting `signal` throws; every answer of the vendor, and its absence, is a `Step`.
 */
export interface Provider {
  /** Short, stable, lower case: stored with what it found, shown to operators. */
  readonly id: string;
  /** `organization`: a name or a domain of it. */
  readonly needs: readonly Need[];
  /** The types of email it can find. */
  readonly gives: readonly EmailType[];
  /** Whether a question whose answer was lost may be asked again at no cost. */
  readonly repeatIsFree: boolean;
  /** The most one question may cost, in the vendor's credits: set aside before it is asked. */
  cost(wantedType: WantedType): number;
  submit(subject: Subject, signal: AbortSignal): Promise<Step>;
  poll(jobRef: string, subject: Subject, signal: AbortSignal): Promise<Step>;
}
