import { setTimeout } from 'node:timers/promises';
import { type Client, WorkflowExecutionAlreadyStartedError } from '@temporalio/client';
import type { Logger } from 'pino';
import type { BatchStart } from '../db/requests/outbox.ts';
import type { UploadStart } from '../db/uploads/parts.ts';
import type { DeliveryStart } from '../db/webhooks/resends.ts';
import {
  type BatchInput,
  DELIVERY_TIMEOUT,
  type DeliverInput,
  NPI,
  ORGANIZATION_ID,
  queuesOf,
  type UploadInput,
  WORKFLOWS,
} from '../workflows/messages.ts';

/** The dependencies of functions that start workflows in Temporal. */
export interface TemporalDeps {
  readonly client: Client;
  /** Name of the enrichment task queue. */
  readonly taskQueue: string;
  /** Returns a sentence that says why Temporal cannot be used, or null if it can. */
  readonly trouble: () => Promise<string | null>;
}

/**
 * After a failed start, the API starts no workflows for this time. The reconciler's sweep starts
 * them instead.
 */
const PAUSE_MS = 5000;

/**
 * Time limit for starting a workflow, so that an outage of Temporal doesn't delay responses. The
 * reconciler's sweep starts the workflow later.
 */
const START_TIMEOUT_MS = 3000;

type Start = (client: Client, taskQueue: string) => Promise<void>;

/**
 * Starts workflows. While Temporal is down, only one request every 5 seconds tries to start its
 * workflow, so other requests don't wait for a time-out. Logs when an outage begins and when it
 * ends.
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
   * Tries to start a workflow by a deadline (milliseconds since the epoch). If the deadline passes,
   * the attempt continues in the background.
   * @returns true if the workflow was started in time. False if it was not, or if no attempt was
   * made because Temporal was down a few seconds ago
   */
  async start(start: Start, deadline = Date.now() + START_TIMEOUT_MS): Promise<boolean> {
    if (this.#isAway && performance.now() < this.#pausedUntil) return false;
    this.#pausedUntil = performance.now() + PAUSE_MS;
    const { client, taskQueue } = this.#temporal;
    const started = client.withDeadline(deadline, () => start(client, taskQueue));
    this.#underWay.add(started);
    void started.catch(() => {}).then(() => this.#underWay.delete(started));
    // This timer is needed because the SDK may exceed the deadline by a second.
    const late = setTimeout(Math.max(1, deadline - Date.now()), 'late', { ref: false });
    try {
      if ((await Promise.race([started, late])) === 'late')
        throw new Error('no response in time');
    } catch (error) {
      this.#pausedUntil = performance.now() + PAUSE_MS;
      // This is not awaited, because finding the reason takes time and the client waits for its
      // response.
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
    this.#log.error(
      { err, why },
      'workflows cannot be started; the sweep starts them later',
    );
  }

  /**
   * Resolves when no attempt continues in the background. Call it before the connection to Temporal
   * is closed. Otherwise, a retry of the SDK on the closed connection would crash the process.
   */
  async ended(): Promise<void> {
    await Promise.allSettled(this.#underWay);
  }
}

/**
 * Starts the workflow of a batch, with the batch id as workflow id. Does nothing if the workflow
 * already runs.
 * @param reuse with `ALLOW_DUPLICATE`, a workflow that has already closed is started again
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
      // Ends a workflow that hangs. If requests of its batch are still open, the reconciler starts
      // it again.
      workflowExecutionTimeout: '2h',
      // With this key, Temporal shares its queues fairly among organizations. Child workflows and
      // activities inherit it.
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
 * Starts the workflow of a webhook delivery, with the delivery id as workflow id. It is needed for
 * a resend, for a delivery that the workflow of its batch did not handle, and for a message without
 * a batch. If an older workflow of this delivery is waiting for its next attempt, it is terminated.
 * Nothing is lost, because the attempts are recorded in the database.
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
    staticSummary: batchId === null ? 'webhook' : `webhook of ${batchId}`,
  });
}

/**
 * Starts the workflow of an upload, with the upload id as workflow id.
 * @param running what happens to a workflow of this upload that already runs. A stopped upload that
 * continues ends it, because it may be about to close
 * @throws an error if Temporal does not accept it
 */
export async function startUpload(
  client: Client,
  taskQueue: string,
  { uploadId, organizationId }: UploadStart,
  running: 'USE_EXISTING' | 'TERMINATE_EXISTING' = 'USE_EXISTING',
): Promise<void> {
  await client.workflow.start(WORKFLOWS.upload, {
    taskQueue,
    workflowId: uploadId,
    workflowIdReusePolicy: 'ALLOW_DUPLICATE',
    workflowIdConflictPolicy: running,
    args: [{ uploadId } satisfies UploadInput],
    // The upload is deleted seven days after its start.
    workflowExecutionTimeout: '7d',
    priority: { fairnessKey: organizationId },
    typedSearchAttributes: [{ key: ORGANIZATION_ID, value: organizationId }],
    memo: { organization_id: organizationId },
    staticSummary: 'upload of a CSV file',
  });
}
