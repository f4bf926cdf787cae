import type { Logger } from 'pino';
import type { Database } from '../db/client.ts';
import type { BatchStart } from '../db/submit.ts';
import { createLedgerActivities } from './ledger.ts';
import { createLookupActivities } from './lookup.ts';
import type { createPost } from './post.ts';
import type { Provider } from './providers/port.ts';
import { createSweepActivities } from './sweep.ts';
import type { createCheck } from './verification/check.ts';
import { createWebhookActivities } from './webhook.ts';

/** What activities need of Temporal itself. Everything here is safe to repeat. */
export interface WorkflowControl {
  /** Starts the batch workflow; one that was ever started counts as success. */
  startBatch(start: BatchStart): Promise<void>;
  /** Starts a batch workflow that has closed before its work was done. */
  restartBatch(start: BatchStart): Promise<void>;
  /** Whether a workflow with this id is open. */
  isRunning(workflowId: string): Promise<boolean>;
  /** Tells a batch workflow that one of its requests is final. A closed workflow is not an error. */
  signalSettled(
    batchId: string,
    message: { requestId: string; status: 'completed' | 'not_found' | 'failed' },
  ): Promise<void>;
}

export interface ActivityDeps {
  readonly db: Database;
  readonly log: Logger;
  readonly control: WorkflowControl;
  /** In the order in which they are asked. */
  readonly providers: readonly Provider[];
  readonly check: ReturnType<typeof createCheck>;
  readonly post: ReturnType<typeof createPost>;
  readonly rules: ActivityRules;
}

/** Times in milliseconds. */
export interface ActivityRules {
  readonly freshnessMs: number;
  readonly replayMs: number;
  readonly webhookScheduleMs: readonly number[];
  readonly sweep: SweepRules;
}

export interface SweepRules {
  /** An accepted batch this old whose workflow is not started is started by the sweep. */
  readonly startAfterMs: number;
  /** An open request this long past its deadline is settled by the sweep. */
  readonly settleAfterMs: number;
  /** How often the workflows of an unfinished batch are looked at. */
  readonly checkEveryMs: number;
}

/** The activities of all three queues; each worker registers them all and takes only what its queue brings. */
export function createActivities(deps: ActivityDeps) {
  return {
    ...createLedgerActivities(deps),
    ...createLookupActivities(deps),
    ...createWebhookActivities(deps),
    ...createSweepActivities(deps),
  };
}

export type Activities = ReturnType<typeof createActivities>;
