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
export interface BatchResult {
  readonly completed: number;
  readonly notFound: number;
  readonly failed: number;
  readonly delivered: number;
  readonly undelivered: number;
}

/** Input of `lookUpEmail`; its workflow id is the request id. */
export interface LookupInput {
  readonly requestId: string;
  readonly batchId: string;
  readonly npi: string;
  /** Milliseconds since the epoch: 15 minutes after the request was accepted. */
  readonly deadline: number;
}

export type WantedType = 'any' | 'professional' | 'personal';

/** How an NPI is looked up: the activity `planLookup` decides it from what is known of the NPI. */
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
}

/** What a batch workflow starts from: the activity `planBatch` reads it from the database. */
export interface BatchPlan {
  readonly organizationId: string;
  readonly deliveryId: string | null;
  readonly requests: readonly PlannedRequest[];
}

export interface PlannedRequest {
  readonly requestId: string;
  readonly npi: string;
  readonly status: FinalStatus | null;
  readonly deadline: number;
  readonly deliveryId: string | null;
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

/** Input of `deliverAgain`; its workflow id is the delivery id. */
export interface DeliverInput {
  readonly deliveryId: string;
  readonly organizationId: string;
}

export type DeliveryResult = 'delivered' | 'failed' | 'none';

/** What one round of re-verification did. */
export interface ReverifyResult {
  readonly valid: number;
  readonly notValid: number;
  readonly undecided: number;
}

/** Sent to the batch workflow by the activity that settled a request. */
export const requestSettled =
  defineSignal<[{ readonly requestId: string; readonly status: FinalStatus }]>('requestSettled');

/** Workflow types, as operators see them. */
export const WORKFLOWS = {
  batch: 'enrichBatch',
  lookup: 'lookUpEmail',
  deliver: 'deliverAgain',
  reverify: 'reverify',
} as const;

/** Search attributes, so that the Temporal UI finds a batch by its organization, status or any of its NPIs. */
export const ORGANIZATION_ID = defineSearchAttributeKey('OrganizationId', SearchAttributeType.KEYWORD);
export const BATCH_STATUS = defineSearchAttributeKey('BatchStatus', SearchAttributeType.KEYWORD);
export const NPI = defineSearchAttributeKey('Npi', SearchAttributeType.KEYWORD_LIST);

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
