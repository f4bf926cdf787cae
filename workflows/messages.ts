import { defineSearchAttributeKey, SearchAttributeType } from '@temporalio/common';
import { defineSignal } from '@temporalio/workflow';

// What crosses Temporal: ids, outcomes and numbers. Never an email, a URL, a key or custom_data, so that any history
// may be shown to anyone.

export type FinalStatus = 'completed' | 'not_found' | 'failed';

/** Input of `enrichBatch`; its workflow id is the batch id. */
export interface BatchInput {
  readonly batchId: string;
}

/** Result of `enrichBatch`. */
export type BatchResult = Counts;

/** How the requests of a batch ended. */
export interface Counts {
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

/** Input of the activity `identify`. */
export interface IdentifyInput extends BatchInput {
  readonly unknown: readonly Unknown[];
  /** After this, in milliseconds since the epoch, they are planned without the registry. */
  readonly until: number;
}

/** What `identify` has come to; those that are in neither list it has settled. */
export interface Identified {
  readonly lookups: readonly Planned[];
  /** The registry is not done with these. */
  readonly later: readonly Unknown[];
}

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

/** Input of the activity `planBatch`. */
export interface PlanInput extends BatchInput {
  /** The requests whose lookups the workflow has begun. */
  readonly known: readonly string[];
}

/** How far a batch is, by PostgreSQL: the activity `planBatch` reads it each time something wakes the workflow. */
export interface BatchPlan extends Counts {
  readonly organizationId: string;
  readonly total: number;
  /** In milliseconds since the epoch. */
  readonly deadline: number;
  /** Whether each request that is final is reported at once. */
  readonly realTime: boolean;
  /** Requests that are not final. */
  readonly open: number;
  /** Those of them that wait for others of their organization to end. */
  readonly waiting: number;
  /** What is to be begun now. */
  readonly lookups: readonly Planned[];
  /** What is to be identified before it is begun. */
  readonly unknown: readonly Unknown[];
  /** Whether there is more to begin, which would have taken too long. */
  readonly more: boolean;
  /** Deliveries that report something final and were never attempted. */
  readonly due: readonly DueDelivery[];
}

export interface DueDelivery {
  readonly deliveryId: string;
  /** The NPI that it reports; null if it reports the whole batch. */
  readonly npi: string | null;
}

/**
 * How asking one vendor, or checking what is known, ended.
 * - `found`, `stored`, `settled`: nobody else needs to be asked
 * - `miss`, `skip`, `unusable`: a definitive answer, with nothing that passes our checks
 * - `blocked`: the person asked the vendor not to be processed
 * - `later`: a mail server asked to come back before it says whether the mailbox is there
 * - `fatal`, `lost`, `unresolved`: no definitive answer
 */
export interface VendorAnswer {
  /** How the request was settled with it; absent if nothing was. */
  readonly settled?: LookupResult;
  readonly kind:
    | 'found'
    | 'stored'
    | 'settled'
    | 'miss'
    | 'skip'
    | 'unusable'
    | 'blocked'
    | 'later'
    | 'fatal'
    | 'lost'
    | 'unresolved';
  readonly reason: string | null;
}

/** Input of `deliver`; its workflow id is the delivery id. */
export interface DeliverInput {
  readonly deliveryId: string;
}

/** The last net of a delivery: its schedule is over within a week, unless its host is away or it is suspended. */
export const DELIVERY_TIMEOUT = '30d';

export type DeliveryResult = 'delivered' | 'failed' | 'none';

/** What one round of re-verification did. */
export interface ReverifyResult {
  readonly valid: number;
  readonly notValid: number;
  readonly undecided: number;
}

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

/** The task queues of one deployment. */
export interface Queues {
  /** Workflows and short activities. */
  readonly enrichment: string;
  /** Vendor activities only: a look-up may hold its slot for minutes. */
  readonly lookups: string;
  /** Deliveries only: a slow receiver may hold its slot for 15 seconds and must not delay a refund. */
  readonly webhooks: string;
}

/** The enrichment queue of a deployment; a namespace per environment keeps deployments apart. */
export const TASK_QUEUE = 'enrichment';

/** The queues that belong to an enrichment queue: `enrichment-x` has `lookups-x` and `webhooks-x`. */
export function queuesOf(enrichment: string): Queues {
  const suffix = enrichment.startsWith(TASK_QUEUE) ? enrichment.slice(TASK_QUEUE.length) : `-${enrichment}`;
  return { enrichment, lookups: `lookups${suffix}`, webhooks: `webhooks${suffix}` };
}
