import type { Logger } from 'pino';
import type { Database } from '../db/client.ts';
import type { SourceLimits } from '../db/lookups/sources.ts';
import type { KnownWindows } from '../db/requests/entitlements.ts';
import type { BatchStart } from '../db/requests/outbox.ts';
import type { Retention } from '../db/requests/retention.ts';
import type { DeliveryStart } from '../db/webhooks/resends.ts';
import type { EmailType } from '../db/words.ts';
import type { Settled } from '../workflows/messages.ts';
import type { Registry } from './person/registry.ts';
import type { Vendor } from './vendors/vendor.ts';
import type { createCheck } from './verification/check.ts';
import type { createRequiredVerifiers } from './verification/consult.ts';
import type { Verifier } from './verification/verifiers/verifier.ts';
import type { createPost } from './webhooks/post.ts';

export type WorkflowState = 'open' | 'closed' | 'unknown';

/** The Temporal operations that activities use. Every one is safe to repeat. */
export interface WorkflowControl {
  readonly namespace: string;
  /**
   * Starts the batch workflow, or starts it again if it has closed. A running workflow continues.
   */
  startBatch(start: BatchStart): Promise<void>;
  /** Starts the workflow of a delivery that is sent again. Replaces a workflow that may be open. */
  startDelivery(start: DeliveryStart): Promise<void>;
  /**
   * Returns the state of the newest run of a workflow. Returns `unknown` for a workflow that was
   * lost; a closed one is still known.
   */
  stateOf(workflowId: string): Promise<WorkflowState>;
  /** Signals a batch workflow, if it is running, that one of its requests is final. */
  signalBatch(batchId: string, settled: Settled): Promise<void>;
}

export interface ActivityDeps {
  readonly db: Database;
  readonly log: Logger;
  readonly control: WorkflowControl;
  /** Vendors in the order of their calls. */
  readonly vendors: readonly VendorSource[];
  /** Verifiers in the order in which `check` calls them. */
  readonly verifiers: readonly Verifier[];
  /** Null if NPIs that are missing from our imports stay unknown. */
  readonly registry: Registry | null;
  readonly check: ReturnType<typeof createCheck>;
  readonly requiredVerifiers: ReturnType<typeof createRequiredVerifiers>;
  readonly post: ReturnType<typeof createPost>;
  readonly rules: ActivityRules;
}

/** A vendor as it is configured here. */
export interface VendorSource {
  readonly vendor: Vendor;
  readonly limits: SourceLimits;
  /** The email types we request from it, a subset of the types it finds. */
  readonly types: readonly EmailType[];
  /** The time a lookup waits for it before the next vendor is called. */
  readonly capMs: number;
  /** True if its license lets us keep its results for later requests. */
  readonly mayStore: boolean;
}

/** Rules that operators configure. Times are in milliseconds. */
export interface ActivityRules extends KnownWindows {
  /** The time before a vendor that found nothing is called again with the same data. */
  readonly missMs: number;
  /** The configured part of the rules that make an address valid. */
  readonly policy: string;
  /** The pause before a greylisting mail server is asked again. */
  readonly greylistMs: number;
  readonly webhookScheduleMs: readonly number[];
  readonly retention: Retention;
  readonly sweep: {
    /**
     * The age at which the sweep starts the workflow of an accepted batch, if it is not started.
     */
    readonly startAfterMs: number;
    /** The interval between checks of an unfinished batch's workflows. */
    readonly checkEveryMs: number;
  };
}
