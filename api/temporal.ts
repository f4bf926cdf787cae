import { setTimeout } from 'node:timers/promises';
import { type Client, WorkflowExecutionAlreadyStartedError } from '@temporalio/client';
import type { Logger } from 'pino';
import type { BatchStart } from '../db/requests/outbox.ts';
import type { DeliveryStart } from '../db/webhooks/resends.ts';
import {
  type BatchInput,
  DELIVERY_TIMEOUT,
  type DeliverInput,
  NPI,
  ORGANIZATION_ID,
  queuesOf,
  WORKFLOWS,
} from '../workflows/messages.ts';

/** The API's access to Temporal. */
export interface TemporalDeps {
  readonly client: Client;
  /** The enrichment queue. */
  readonly taskQueue: string;
  /** Returns the reason why Temporal cannot be used, in one sentence, or null if it can. */
  readonly trouble: () => Promise<string | null>;
}

/** Pause after a failed start. In that time, the sweep starts what is committed. */
const PAUSE_MS = 5000;

/**
 * Time limit of a start, because an outage of Temporal must not delay a client's response. The
 * sweep starts the rest later.
 */
const START_TIMEOUT_MS = 3000;

type Start = (client: Client, taskQueue: string) => Promise<void>;

/**
 * Starts workflows, and makes only one client wait while Temporal is down: after a failure, one of
 * them tries the next start some seconds later. Logs when an outage begins and when it ends.
 */
export class Starter {
  readonly #temporal: TemporalDeps;
  readonly #log: Logger;
  readonly #underWay = new Set<Promise<void>>();
  #isAway = false;
  #pausedUntil = 0;

  constructor(temporal: TemporalDeps, log: Logger) {
    this.#temporal = temporal;
    this.#log = log;
  }

  /**
   * Tries to start a workflow by a deadline (milliseconds since the epoch). A start that is too slow
   * continues in the background.
   * @returns false if it did not start, or if Temporal was down a moment ago
   */
  async start(start: Start, deadline = Date.now() + START_TIMEOUT_MS): Promise<boolean> {
    if (this.#isAway && performance.now() < this.#pausedUntil) return false;
    this.#pausedUntil = performance.now() + PAUSE_MS;
    const { client, taskQueue } = this.#temporal;
    const started = client.withDeadline(deadline, () => start(client, taskQueue));
    this.#underWay.add(started);
    void started.catch(() => {}).then(() => this.#underWay.delete(started));
    // The SDK may take a second longer, because it retries before it checks the time.
    const late = setTimeout(Math.max(1, deadline - Date.now()), 'late', { ref: false });
    try {
      if ((await Promise.race([started, late])) === 'late') throw new Error('no response in time');
    } catch (error) {
      this.#pausedUntil = performance.now() + PAUSE_MS;
      // The client does not wait for the reason.
      if (!this.#isAway) void this.#logOutage(error);
      this.#isAway = true;
      return false;
    }
    if (this.#isAway) this.#log.info('workflows can be started again');
    this.#isAway = false;
    return true;
  }

  async #logOutage(err: unknown): Promise<void> {
    const why = await this.#temporal.trouble().catch(() => null);
    this.#log.error({ err, why }, 'workflows cannot be started, the sweep will');
  }

  /**
   * Resolves once no start continues in the background. The SDK retries in a timer, and over a
   * connection that was closed in the meantime that would end the process.
   */
  async ended(): Promise<void> {
    await Promise.allSettled(this.#underWay);
  }
}

/**
 * Starts the batch workflow, with the batch id as workflow id. It is a success if the workflow
 * already runs.
 * @param reuse `ALLOW_DUPLICATE` starts it again if it has closed
 * @throws an error if Temporal does not accept it
 */
export async function startBatch(
  client: Client,
  taskQueue: string,
  { batchId, organizationId, submittedAs, requestedType, npis }: BatchStart,
  reuse: 'REJECT_DUPLICATE' | 'ALLOW_DUPLICATE' = 'REJECT_DUPLICATE',
): Promise<void> {
  try {
    await client.workflow.start(WORKFLOWS.batch, {
      taskQueue,
      workflowId: batchId,
      workflowIdConflictPolicy: 'USE_EXISTING',
      workflowIdReusePolicy: reuse,
      args: [{ batchId } satisfies BatchInput],
      // Safety limit: a workflow that hangs ends. If it left anything open, the reconciler starts
      // it again.
      workflowExecutionTimeout: '2h',
      // Temporal shares its queues fairly among organizations. Children and activities inherit the
      // key.
      priority: { fairnessKey: organizationId },
      typedSearchAttributes: [
        { key: ORGANIZATION_ID, value: organizationId },
        { key: NPI, value: [...new Set(npis)] },
      ],
      memo: {
        organization_id: organizationId,
        submitted_as: submittedAs,
        requested_type: requestedType,
        total: npis.length,
      },
      staticSummary: npis.length === 1 ? `NPI ${npis[0]}` : `${npis.length} NPIs`,
      staticDetails: `${submittedAs} submit of ${organizationId}, requested type ${requestedType}`,
    });
  } catch (error) {
    if (!(error instanceof WorkflowExecutionAlreadyStartedError)) throw error;
  }
}

/**
 * Starts the workflow of a delivery that is resent, or that its batch did not handle, with the
 * delivery id as workflow id. Terminates an older workflow of the same delivery, which sleeps until
 * its next attempt. The database knows its place in the schedule.
 * @throws an error if Temporal does not accept it
 */
export async function startDelivery(
  client: Client,
  taskQueue: string,
  { deliveryId, batchId, organizationId, npis }: DeliveryStart,
): Promise<void> {
  await client.workflow.start(WORKFLOWS.deliver, {
    taskQueue: queuesOf(taskQueue).webhooks,
    workflowId: deliveryId,
    workflowIdReusePolicy: 'ALLOW_DUPLICATE',
    workflowIdConflictPolicy: 'TERMINATE_EXISTING',
    args: [{ deliveryId } satisfies DeliverInput],
    workflowExecutionTimeout: DELIVERY_TIMEOUT,
    priority: { fairnessKey: organizationId },
    typedSearchAttributes: [
      { key: ORGANIZATION_ID, value: organizationId },
      { key: NPI, value: [...new Set(npis)] },
    ],
    memo: { organization_id: organizationId, batch_id: batchId },
    staticSummary: `webhook of ${batchId}`,
  });
}
