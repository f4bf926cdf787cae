import { defineSearchAttributeKey, SearchAttributeType } from '@temporalio/common';
import { defineSignal } from '@temporalio/workflow';

// What crosses Temporal: ids, outcomes and numbers. Never an email, a URL, a key or custom_data, so that any history
// may be shown to anyone.

export type FinalStatus = 'completed' | 'not_found' | 'failed';

/** Input of `enrichBatch`; its workflow id is the batch id. */
export interface BatchInput {
  readonly batchId: string;
}

/** Result of `enrichBatch`: how its requests ended. */
export interface BatchResult {
  readonly completed: number;
  readonly notFound: number;
  readonly failed: number;
}

/** Input of `lookUpEmail`; its workflow id is the request id. */
export interface LookupInput {
  readonly requestId: string;
  readonly batchId: string;
  readonly npi: string;
  /** Milliseconds since the epoch: 15 minutes after the request was accepted. */
  readonly deadline: number;
  readonly plan: AskPlan;
}

/** A lookup that is to be begun; with a deadline if that is another than its batch's. */
export type Planned = Pick<LookupInput, 'requestId' | 'npi' | 'plan'> &
  Partial<Pick<LookupInput, 'deadline'>>;

/** A request whose NPI no import has brought: it is planned once the registry has said who that is. */
export type Unknown = Pick<LookupInput, 'requestId' | 'npi'>;

export type WantedType = 'any' | 'professional' | 'personal';

/** How an NPI is looked up, by what is known of it. */
export type LookupPlan =
  /** Nobody is asked; the reason says why. */
  { readonly kind: 'end'; readonly reason: string } | AskPlan;

export interface AskPlan {
  readonly kind: 'ask';
  readonly lookupId: string;
  readonly wantedType: WantedType;
  /** How long a mail server that greylists is given before it is asked again (RFC 6647: a few minutes). */
  readonly greylistMs: number;
  /**
   * Why nobody could tell who the NPI is, if a vendor is left out because of that: no ground to say `not_found`. Null
   * if nothing is in doubt.
   */
  readonly unidentified: string | null;
  /** In the order in which they are asked. */
  readonly sources: readonly PlannedSource[];
}

export interface PlannedSource {
  /** Null for the addresses that are known already: they are checked before money is spent. */
  readonly vendor: string | null;
  /** How long it is waited for before the next one is asked. */
  readonly capMs: number;
}

export interface LookupResult {
  readonly status: FinalStatus;
  /** Why there is no email; null if there is one. */
  readonly reason: string | null;
}

/**
 * How asking one vendor, or checking what is known, may end, and what that means for the request.
 * - `final`: nobody else is asked
 * - `definitive`: this source has nothing that passes our checks; `not_found` needs that of every source
 * - `failed`: it could not answer, and asking again would not help
 * - `open`: it has not answered yet, and is asked again after all the others
 */
export const MEANING = {
  found: 'final',
  stored: 'final',
  settled: 'final',
  // The person asked the vendor not to be processed.
  blocked: 'final',
  miss: 'definitive',
  skip: 'definitive',
  unusable: 'definitive',
  fatal: 'failed',
  lost: 'open',
  // A mail server asked to come back before it says whether the mailbox is there.
  later: 'open',
  unresolved: 'open',
} as const;

export interface VendorAnswer {
  readonly kind: keyof typeof MEANING;
  readonly reason: string | null;
  /** How the request was settled with it; absent if nothing was. */
  readonly settled?: LookupResult;
}

/** Input of `deliver`; its workflow id is the delivery id. */
export interface DeliverInput {
  readonly deliveryId: string;
}

/** The last net of a delivery: its schedule is over within a week, unless its host is away or it is suspended. */
export const DELIVERY_TIMEOUT = '30d';

export type DeliveryResult = 'delivered' | 'failed' | 'none';

/**
 * Sent to the batch workflow with the ids of requests that were settled lately. It wakes the workflow, which then reads the
 * facts; what it says is for whoever reads the history.
 */
export const requestSettled = defineSignal<string[]>('requestSettled');

/** Sent to the batch workflow when many of its requests may have become final, or have room: it reads the facts. */
export const lookAgain = defineSignal('lookAgain');

/** Workflow types, as operators see them. */
export const WORKFLOWS = {
  batch: 'enrichBatch',
  lookup: 'lookUpEmail',
  deliver: 'deliver',
  reverify: 'reverify',
} as const;

/**
 * Search attributes, so that the Temporal UI finds a batch by its organization or any of its NPIs, and a lookup that
 * brought no email by its status and reason, such as `failed: deadline`. A batch is in progress as long as it runs.
 */
export const ORGANIZATION_ID = defineSearchAttributeKey('OrganizationId', SearchAttributeType.KEYWORD);
export const NPI = defineSearchAttributeKey('Npi', SearchAttributeType.KEYWORD_LIST);
export const OUTCOME = defineSearchAttributeKey('Outcome', SearchAttributeType.KEYWORD);

/** The enrichment queue of a deployment; a namespace per environment keeps deployments apart. */
export const TASK_QUEUE = 'enrichment';

/** The queues that belong to an enrichment queue: `enrichment-x` has `lookups-x` and `webhooks-x`. */
export function queuesOf(enrichment: string) {
  const suffix = enrichment.startsWith(TASK_QUEUE) ? enrichment.slice(TASK_QUEUE.length) : `-${enrichment}`;
  return {
    /** Workflows and short activities. */
    enrichment,
    /** Vendor activities only: a look-up may hold its slot for minutes. */
    lookups: `lookups${suffix}`,
    /** Deliveries only: a slow receiver may hold its slot for 15 seconds and must not delay a refund. */
    webhooks: `webhooks${suffix}`,
  };
}
