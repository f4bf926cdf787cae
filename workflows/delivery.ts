import { WorkflowExecutionAlreadyStartedError } from '@temporalio/common';
import {
  ActivityFailure,
  ParentClosePolicy,
  setWorkflowOptions,
  startChild,
  workflowInfo,
} from '@temporalio/workflow';
import {
  type BatchFacts,
  DELIVERY_TIMEOUT,
  type DeliverInput,
  type DueDelivery,
  NPI,
  ORGANIZATION_ID,
  queuesOf,
  type Settled,
} from './messages.ts';
import { deliveries, upgrading } from './options.ts';

/** Attempts one delivery until it succeeds or its schedule ends. Runs on the webhooks queue. */
export async function deliver({ deliveryId }: DeliverInput) {
  const { deliverWebhook } = deliveries(
    workflowInfo().taskQueue,
    `webhook ${deliveryId}`,
  );
  return await deliverWebhook({ deliveryId });
}

setWorkflowOptions(upgrading, deliver);

/** Sends the webhooks of a batch, during one run of its workflow. */
export class Webhooks {
  private readonly batch: BatchFacts;
  private readonly dispatched = new Set<string>();
  private readonly onBug: (bug: unknown) => void;
  private readonly attempts: Promise<void>[] = [];

  constructor(batch: BatchFacts, onBug: (bug: unknown) => void) {
    this.batch = batch;
    this.onBug = onBug;
  }

  /**
   * Starts one activity that makes the first attempts of these deliveries. Skips deliveries that
   * were dispatched before.
   */
  dispatch(due: readonly DueDelivery[]): void {
    const fresh: DueDelivery[] = [];
    for (const delivery of due) {
      // The same report may come twice in one workflow task.
      if (this.dispatched.has(delivery.deliveryId)) continue;
      this.dispatched.add(delivery.deliveryId);
      fresh.push(delivery);
    }
    if (fresh.length === 0) return;
    const attempt = this.attempt(fresh);
    attempt.catch(this.onBug);
    this.attempts.push(attempt);
  }

  /**
   * Returns a list with the delivery that a signal reports as due. It is empty if there isn't one.
   */
  dueBy({ requestId, deliveryId }: Settled): DueDelivery[] {
    if (deliveryId === null) return [];
    if (this.batch.webhookMode === 'batch') {
      return [{ deliveryId, requestId: null }];
    }
    return [{ deliveryId, requestId }];
  }

  get count(): number {
    return this.dispatched.size;
  }

  /**
   * Resolves when each dispatched delivery has succeeded, has finally failed, or has its own
   * workflow.
   */
  async attempted(): Promise<void> {
    await Promise.all(this.attempts);
  }

  private async attempt(due: readonly DueDelivery[]): Promise<void> {
    const { webhooks } = queuesOf(workflowInfo().taskQueue);
    const { attemptDeliveries } = deliveries(webhooks, this.nameOfAll(due));
    const deliveryIds = due.map(({ deliveryId }) => deliveryId);
    try {
      const undecided = await attemptDeliveries({ deliveryIds });
      for (const delivery of due) {
        if (undecided.includes(delivery.deliveryId)) {
          await this.startDelivery(delivery);
        }
      }
    } catch (error) {
      // The activity has finally failed. The reconciler starts these deliveries later.
      if (!(error instanceof ActivityFailure)) throw error;
    }
  }

  /**
   * Starts the workflow of one delivery. It may run for days, so it continues after the batch has
   * ended.
   */
  private async startDelivery(delivery: DueDelivery): Promise<void> {
    const { batchId, organizationId } = this.batch;
    const { deliveryId } = delivery;
    try {
      await startChild(deliver, {
        workflowId: deliveryId,
        args: [{ deliveryId }],
        taskQueue: queuesOf(workflowInfo().taskQueue).webhooks,
        parentClosePolicy: ParentClosePolicy.ABANDON,
        workflowExecutionTimeout: DELIVERY_TIMEOUT,
        typedSearchAttributes: [
          { key: ORGANIZATION_ID, value: organizationId },
          { key: NPI, value: this.npis(delivery) },
        ],
        memo: { organization_id: organizationId, batch_id: batchId },
        staticSummary: this.name(delivery),
      });
    } catch (error) {
      // An earlier run of the batch, or a request to resend the webhook, has already started it.
      if (!(error instanceof WorkflowExecutionAlreadyStartedError)) {
        throw error;
      }
    }
  }

  private npis({ requestId }: DueDelivery): string[] {
    const { npis } = this.batch;
    if (requestId === null) return Object.values(npis);
    const npi = npis[requestId];
    return npi === undefined ? [] : [npi];
  }

  private nameOfAll(due: readonly DueDelivery[]): string {
    const [first] = due;
    if (first !== undefined && due.length === 1) return this.name(first);
    return `${due.length} webhooks`;
  }

  private name({ requestId }: DueDelivery): string {
    if (requestId === null) return 'webhook of the batch';
    return `webhook of NPI ${this.batch.npis[requestId]}`;
  }
}
