import type { Logger } from 'pino';
import type { Database } from '../db/connection/client.ts';
import type { SourceLimits } from '../db/lookups/sources.ts';
import type { BatchStart } from '../db/requests/outbox.ts';
import type { Retention } from '../db/requests/retention.ts';
import type { SubmitRules } from '../db/requests/submit.ts';
import type { UploadStart } from '../db/uploads/parts.ts';
import type { DeliveryStart } from '../db/webhooks/due.ts';
import type { EmailType } from '../db/words.ts';
import type { Settled } from '../workflows/messages.ts';
import type { SendNotice } from './mail.ts';
import type { Registry } from './person/registry.ts';
import type { Spending } from './spending.ts';
import type { Vendor } from './vendors/vendor.ts';
import type { createCheck } from './verification/check.ts';
import type { createRequiredVerifiers } from './verification/consult.ts';
import type { Verifier } from './verification/verifiers/verifier.ts';
import type { createPost } from './webhooks/post.ts';

/**
 * `completed`: the workflow returned its result. `ended`: it was terminated or canceled, failed, or
 * timed out.
 */
export type WorkflowState = 'open' | 'completed' | 'ended' | 'unknown';

/** The Temporal operations that activities use. Every one is safe to repeat. */
export interface WorkflowControl {
  readonly namespace: string;
  /**
   * Starts the batch workflow. Does nothing if it is running.
   * @param reuse with `ALLOW_DUPLICATE`, a workflow that has already closed is started again
   * @throws {WorkflowExecutionAlreadyStartedError} with `REJECT_DUPLICATE`, if it has already closed
   */
  startBatch(
    start: BatchStart,
    reuse: 'REJECT_DUPLICATE' | 'ALLOW_DUPLICATE',
  ): Promise<void>;
  /**
   * Starts the workflow of a delivery that is sent again. If a workflow of this delivery is still
   * running, replaces it.
   */
  startDelivery(start: DeliveryStart): Promise<void>;
  /** Starts the workflow of an upload. Does nothing if it is running. */
  startUpload(start: UploadStart): Promise<void>;
  /**
   * Returns the state of the newest run of a workflow. Returns `unknown` if Temporal has no such
   * workflow.
   */
  stateOf(workflowId: string): Promise<WorkflowState>;
  /**
   * Signals a batch workflow that one of its requests is final. Does nothing if the workflow is not
   * running.
   */
  signalBatch(batchId: string, settled: Settled): Promise<void>;
}

export interface ActivityDeps {
  readonly db: Database;
  readonly log: Logger;
  readonly control: WorkflowControl;
  /** The vendors, in the order in which a lookup calls them. */
  readonly vendors: readonly VendorSource[];
  readonly spending: Spending;
  /** Verifiers in the order in which `check` calls them. */
  readonly verifiers: readonly Verifier[];
  /**
   * The client of the NPI Registry, which we ask about NPIs that the imported NPPES files do not
   * contain. Null unless the sources file turns the registry on.
   */
  readonly registry: Registry | null;
  readonly check: ReturnType<typeof createCheck>;
  readonly requiredVerifiers: ReturnType<typeof createRequiredVerifiers>;
  readonly post: ReturnType<typeof createPost>;
  /** Sends emails. Null if the operator has configured no mail server. */
  readonly mail: SendNotice | null;
  readonly rules: ActivityRules;
}

/** A vendor with the operator's configuration for it. */
export interface VendorSource {
  readonly vendor: Vendor;
  readonly limits: SourceLimits;
  /** The email types that we request from the vendor. The vendor may offer more types. */
  readonly types: readonly EmailType[];
  /** The time that a lookup waits for the vendor before it calls the next one. */
  readonly capMs: number;
  /** The price of the vendor's credit. Null if the operator has not set it. */
  readonly dollarsPerCredit: number | null;
  /** True if the vendor's license lets us keep its results for later requests. */
  readonly mayStore: boolean;
}

/** Rules that operators configure. Times are in milliseconds. */
export interface ActivityRules extends SubmitRules {
  /** The window of the rate limit of keys. */
  readonly rateWindowMs: number;
  /** If a vendor found nothing, it is not called again with the same data for this long. */
  readonly missMs: number;
  /** The part of the verification policy that operators configure, as text. */
  readonly policy: string;
  /** The pause before an address is checked again after its mail server greylisted it. */
  readonly greylistMs: number;
  readonly webhookScheduleMs: readonly number[];
  /** The longest pause between two attempts to reach a receiver that does not respond. */
  readonly webhookLongestRestMs: number;
  readonly retention: Retention;
  readonly sweep: {
    /**
     * If the workflow of a batch has not started this long after the batch was accepted, the
     * reconciler starts it.
     */
    readonly startAfterMs: number;
    /**
     * The interval at which the reconciler checks whether an unfinished batch still has its
     * workflow.
     */
    readonly checkEveryMs: number;
  };
}
