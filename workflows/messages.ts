import { defineSearchAttributeKey, SearchAttributeType } from '@temporalio/common';
import { defineSignal } from '@temporalio/workflow';

// Everything that passes through Temporal: ids, outcomes, and numbers. Never an email, a URL, a
// key, or custom_data, so any history can be shown to anyone.

export type FinalStatus = 'completed' | 'not_found' | 'failed';
export type WantedType = 'any' | 'professional' | 'personal';

/** Input of `enrichBatch`. Its workflow id is the batch id. */
export interface BatchInput {
  readonly batchId: string;
}

/** Result of `enrichBatch`: how its requests ended. */
export interface BatchResult {
  readonly completed: number;
  readonly notFound: number;
  readonly failed: number;
}

/** A batch as stored in PostgreSQL. */
export interface BatchFacts extends BatchResult {
  readonly batchId: string;
  readonly organizationId: string;
  readonly webhookMode: 'real-time' | 'batch' | null;
  /** The NPI of each request, in the order of the submit. */
  readonly npis: Readonly<Record<string, string>>;
  /** Requests that are not final. */
  readonly open: readonly LookupInput[];
  /** Webhooks that are due and were never attempted. */
  readonly due: readonly DueDelivery[];
}

export interface DueDelivery {
  readonly deliveryId: string;
  /** The request that it reports; null if it reports the whole batch. */
  readonly requestId: string | null;
}

/** Input of `lookUpEmail`. Its workflow id is the request id. */
export interface LookupInput {
  readonly requestId: string;
  readonly batchId: string;
  readonly npi: string;
  /** Milliseconds since the epoch: 15 minutes after the request was accepted. */
  readonly deadline: number;
}

export interface LookupResult {
  readonly status: FinalStatus;
  /** The reason for a missing email; null if an email was found. */
  readonly reason: string | null;
}

/**
 * Signal that a batch gets from the activity that settles one of its requests. The signal changes
 * no fact: before a webhook is sent, PostgreSQL decides whether it is due.
 */
export interface Settled {
  readonly requestId: string;
  /** The webhook that became due, or null. */
  readonly deliveryId: string | null;
}

export const requestSettled = defineSignal<[Settled]>('requestSettled');

/** The plan for the lookup of one NPI. */
export type LookupPlan =
  /** The request is already final. */
  | { readonly kind: 'settled'; readonly result: LookupResult }
  /** The NPI Registry is asked first, because no import knows the NPI. */
  | { readonly kind: 'unidentified' }
  | SourcePlan;

export interface SourcePlan {
  readonly kind: 'ask';
  readonly lookupId: string;
  readonly wantedType: WantedType;
  /**
   * Milliseconds to wait before a mail server that greylists is asked again (RFC 6647: a few
   * minutes).
   */
  readonly greylistMs: number;
  /**
   * The reason why the registry could not identify the NPI, if a vendor is skipped because of that.
   * Such a request can't end as `not_found`. Null if no vendor is skipped.
   */
  readonly unidentified: string | null;
  /** Sources in the order in which they are asked. */
  readonly sources: readonly PlannedSource[];
}

export interface PlannedSource {
  /** Null for addresses that are already known. They are checked before money is spent. */
  readonly vendor: string | null;
  /** Milliseconds to wait for this source before the next one is asked. */
  readonly capMs: number;
}

/**
 * Possible results of asking one source, and what each means for the request.
 * - `final`: no other source is asked
 * - `definitive`: this source has nothing that passes our checks; `not_found` needs that of every
 *   source
 * - `failed`: the source failed, and asking again would not help
 * - `open`: the source has not responded yet, and is asked again after all the others
 */
export const MEANING = {
  found: 'final',
  stored: 'final',
  settled: 'final',
  // The person asked the vendor not to process their data.
  blocked: 'final',
  miss: 'definitive',
  skip: 'definitive',
  unusable: 'definitive',
  fatal: 'failed',
  lost: 'open',
  // The mail server wants us to retry later before it says whether the mailbox exists.
  later: 'open',
  unresolved: 'open',
} as const;

export interface VendorAnswer {
  readonly kind: keyof typeof MEANING;
  readonly reason: string | null;
  /** The result of the request if this response settled it; otherwise absent. */
  readonly settled?: LookupResult;
}

/** Input of `deliver`. Its workflow id is the delivery id. */
export interface DeliverInput {
  readonly deliveryId: string;
}

/**
 * Safety limit of a delivery. It is decided within a week, unless its receiver is down or
 * deliveries are suspended.
 */
export const DELIVERY_TIMEOUT = '30d';

export type DeliveryResult = 'delivered' | 'failed' | 'none';

/** Workflow types, as operators see them. */
export const WORKFLOWS = {
  batch: 'enrichBatch',
  lookup: 'lookUpEmail',
  deliver: 'deliver',
  reverify: 'reverify',
} as const;

/**
 * Search attributes. The Temporal UI finds a batch by its organization or any of its NPIs, and a
 * lookup without an email by its status and reason, such as `failed: deadline`. A batch is in
 * progress as long as it runs.
 */
export const ORGANIZATION_ID = defineSearchAttributeKey(
  'OrganizationId',
  SearchAttributeType.KEYWORD,
);
export const NPI = defineSearchAttributeKey('Npi', SearchAttributeType.KEYWORD_LIST);
export const OUTCOME = defineSearchAttributeKey('Outcome', SearchAttributeType.KEYWORD);

/** The enrichment queue of a deployment. A namespace per environment keeps deployments apart. */
export const TASK_QUEUE = 'enrichment';

/**
 * Returns the queues that belong to an enrichment queue: `enrichment-x` has `lookups-x` and
 * `webhooks-x`.
 */
export function queuesOf(enrichment: string) {
  const suffix = suffixOf(enrichment);
  return {
    /** Batches, lookups, and short activities. */
    enrichment,
    /** Vendor activities only, because a lookup may hold its slot for minutes. */
    lookups: `lookups${suffix}`,
    /**
     * Deliveries only, including their workflows, so that a storm of failing receivers doesn't
     * delay a batch.
     */
    webhooks: `webhooks${suffix}`,
  };
}

function suffixOf(enrichment: string): string {
  if (enrichment.startsWith(TASK_QUEUE)) return enrichment.slice(TASK_QUEUE.length);
  return `-${enrichment}`;
}
