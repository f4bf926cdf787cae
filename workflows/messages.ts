import { defineSearchAttributeKey, SearchAttributeType } from '@temporalio/common';
import { defineSignal } from '@temporalio/workflow';
import type { TestTarget } from '../db/webhooks/test-events.ts';
import type { AttemptReason } from '../db/words.ts';

// The types of all data that passes through Temporal: ids, outcomes, and numbers. The data never
// contains an email, a readable URL, a key, or `custom_data`, so histories reveal nothing confidential.

export type FinalStatus = 'completed' | 'not_found' | 'failed';
export type RequestedType = 'any' | 'professional' | 'personal';

/** Input of `enrichBatch`. Its workflow id is the batch id. */
export interface BatchInput {
  readonly batchId: string;
}

/** Result of `enrichBatch`: the number of the batch's requests with each final status. */
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
  /** Maps the id of each request to its NPI, in the order of the client's list. */
  readonly npis: Readonly<Record<string, string>>;
  /** Requests that are not final. */
  readonly open: readonly LookupInput[];
  /** Webhooks that are due and have not been sent yet. */
  readonly due: readonly DueDelivery[];
}

export interface DueDelivery {
  readonly deliveryId: string;
  /** The request that the webhook reports, or null if the webhook reports the whole batch. */
  readonly requestId: string | null;
}

/** Input of `lookUpEmail`. Its workflow id is the request id. */
export interface LookupInput {
  readonly requestId: string;
  readonly batchId: string;
  readonly npi: string;
  /**
   * The deadline of the request in milliseconds since the epoch. By default it is 15 minutes after
   * the request was accepted.
   */
  readonly deadline: number;
}

export interface LookupResult {
  readonly status: FinalStatus;
  /** The reason why there is no email, or null if an email was found. */
  readonly reason: string | null;
}

/**
 * The signal that an activity sends to the batch workflow after it has settled a request of the
 * batch. A false or repeated signal does no harm, because PostgreSQL decides whether a webhook is
 * due before it is sent.
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
  /** The imported NPPES files do not contain the NPI, so the NPI Registry must be asked first. */
  | { readonly kind: 'unidentified' }
  | SourcePlan;

export interface SourcePlan {
  readonly kind: 'ask';
  readonly lookupId: string;
  readonly requestedType: RequestedType;
  /**
   * Milliseconds to wait before an address is checked again after its mail server greylisted it.
   * RFC 6647 recommends a few minutes.
   */
  readonly greylistMs: number;
  /**
   * The reason why the registry did not respond, if a vendor is skipped because the person is
   * unknown. Such a request can't end as `not_found`. Otherwise null.
   */
  readonly unidentified: string | null;
  /** Sources in the order in which they are asked. */
  readonly sources: readonly PlannedSource[];
}

export interface PlannedSource {
  /**
   * The id of a vendor. Null stands for addresses that are already known, which are checked before
   * any vendor is paid.
   */
  readonly vendor: string | null;
  /** Milliseconds to wait for this source before the next one is asked. */
  readonly capMs: number;
}

/**
 * The possible results of asking one source, and what each result means for the request.
 * - `final`: the search ends here, and no other source is asked.
 * - `definitive`: this source has no email that passes our checks. If all sources are definitive,
 *   the request ends as `not_found`.
 * - `failed`: the source failed, and asking it again would not help.
 * - `open`: the source has not responded yet. It is asked again after all other sources.
 */
export const MEANING = {
  found: 'final',
  stored: 'final',
  settled: 'final',
  // The person objected at the vendor, or the NPI must no longer be looked up (`refusal_of`).
  blocked: 'final',
  miss: 'definitive',
  skip: 'definitive',
  unusable: 'definitive',
  fatal: 'failed',
  lost: 'open',
  // The mail server asked us to try again later (greylisting).
  later: 'open',
  unresolved: 'open',
} as const;

export interface VendorResult {
  readonly kind: keyof typeof MEANING;
  readonly reason: string | null;
  /** The result of the request, if this response settled it. */
  readonly settled?: LookupResult;
}

/** Input of `deliver`. Its workflow id is the delivery id. */
export interface DeliverInput {
  readonly deliveryId: string;
}

/**
 * The longest time that the workflow of a delivery may run. A delivery normally succeeds or fails
 * within a week. It takes longer if the receiver is down or if deliveries are suspended.
 */
export const DELIVERY_TIMEOUT = '30d';

export type DeliveryResult = 'delivered' | 'failed' | 'none';

/** Input of `submitUpload`. Its workflow id is the upload id. */
export interface UploadInput {
  readonly uploadId: string;
}

/** The result of submitting the next part of an upload. */
export type UploadStep =
  | { readonly kind: 'submitted'; readonly submitted: number; readonly parts: number }
  /** There is no part left to submit, or the upload was stopped. */
  | {
      readonly kind: 'ended';
      /** True if an email about the end is to be sent. */
      readonly hasNotice?: boolean;
    };

/** Input of `sendTestEvent`. Its workflow id is the id of the test event. */
export type TestEventInput = TestTarget;

/** The result of a test event. */
export type TestEventResult =
  | {
      readonly kind: 'sent';
      readonly statusCode: number | null;
      readonly reason: AttemptReason | null;
      readonly durationMs: number;
    }
  | { readonly kind: 'unsent'; readonly why: UnsentReason };

export type UnsentReason =
  | 'suspended'
  | 'host_away'
  | 'no_room'
  | 'counted_too_late'
  | 'secret_unreadable';

/** The names of the workflow types, as the Temporal UI shows them. */
export const WORKFLOWS = {
  batch: 'enrichBatch',
  lookup: 'lookUpEmail',
  deliver: 'deliver',
  reverify: 'reverify',
  upload: 'submitUpload',
  testEvent: 'sendTestEvent',
} as const;

/**
 * Search attributes. In the Temporal UI, batches and lookups can be found by organization or NPI. A
 * lookup without an email can also be found by its status and reason, such as `failed: deadline`.
 */
export const ORGANIZATION_ID = defineSearchAttributeKey(
  'OrganizationId',
  SearchAttributeType.KEYWORD,
);
export const NPI = defineSearchAttributeKey('Npi', SearchAttributeType.KEYWORD_LIST);
export const OUTCOME = defineSearchAttributeKey('Outcome', SearchAttributeType.KEYWORD);

/**
 * The default name of the enrichment queue. Two environments on one Temporal server can both use
 * this name, because each has its own namespace.
 */
export const TASK_QUEUE = 'enrichment';

/**
 * Returns the names of the three queues of a deployment from the name of its enrichment queue. For
 * example, the other queues of `enrichment-x` are `lookups-x` and `webhooks-x`.
 */
export function queuesOf(enrichment: string) {
  const suffix = suffixOf(enrichment);
  return {
    /** Batches, lookups, and short activities. */
    enrichment,
    /**
     * Activities that call vendors and other sources. They have their own queue because one
     * activity may occupy a worker's slot for minutes.
     */
    lookups: `lookups${suffix}`,
    /**
     * Deliveries and their workflows. They have their own queue so that many failing receivers do
     * not delay batches.
     */
    webhooks: `webhooks${suffix}`,
  };
}

function suffixOf(enrichment: string): string {
  if (enrichment.startsWith(TASK_QUEUE)) {
    return enrichment.slice(TASK_QUEUE.length);
  }
  return `-${enrichment}`;
}
