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

/** What activities need of Temporal itself. Everything here is safe to repeat. */
export interface WorkflowControl {
  readonly namespace: string;
  /** Starts the batch workflow, again if it has closed. One that runs goes on. */
  startBatch(start: BatchStart): Promise<void>;
  /** Starts the workflow of a delivery that is sent again, in the place of one that may be open. */
  startDelivery(start: DeliveryStart): Promise<void>;
  /**
   * Returns the state of the newest run of a workflow. One that has closed is still known, one that
   * was lost is not.
   */
  stateOf(workflowId: string): Promise<WorkflowState>;
  /** Signals a batch workflow, if it runs, that one of its requests is final. */
  signalBatch(batchId: string, settled: Settled): Promise<void>;
}

export interface ActivityDeps {
  readonly db: Database;
  readonly log: Logger;
  readonly control: WorkflowControl;
  /** In the order in which they are asked. */
  readonly vendors: readonly VendorSource[];
  /** Those that `check` asks, in this order. */
  readonly verifiers: readonly Verifier[];
  /** Null if an NPI that no import has brought stays unknown. */
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
  /** The types it is asked for, of those that it gives. */
  readonly types: readonly EmailType[];
  /** How long a lookup waits for it before it goes on to the next one. */
  readonly capMs: number;
  /** Whether its license lets us keep what it finds for later requests. */
  readonly mayStore: boolean;
}

/** Times in milliseconds. */
export interface ActivityRules extends KnownWindows {
  /** How long a vendor that had nothing is not asked the same again. */
  readonly missMs: number;
  /** What makes an address valid here, as far as it is configured. */
  readonly policy: string;
  /** How long a mail server that greylists is given before it is asked again. */
  readonly greylistMs: number;
  readonly webhookScheduleMs: readonly number[];
  readonly retention: Retention;
  readonly sweep: {
    /** An accepted batch this old whose workflow is not started is started by the sweep. */
    readonly startAfterMs: number;
    /** How often the workflows of an unfinished batch are looked at. */
    readonly checkEveryMs: number;
  };
}
