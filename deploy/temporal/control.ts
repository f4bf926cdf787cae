import { type Client, WorkflowNotFoundError } from '@temporalio/client';
import type { WorkflowControl } from '../../activities/deps.ts';
import { startBatch, startDelivery } from '../../api/start.ts';
import { requestSettled } from '../../workflows/messages.ts';

/** A signal is a courtesy, so it may not take long. */
const SIGNAL_TIMEOUT_MS = 3000;

/** What activities need of Temporal, over a client. */
export function createControl(client: Client, taskQueue: string): WorkflowControl {
  return {
    startBatch: (start) => startBatch(client, taskQueue, start),
    restartBatch: (start) => startBatch(client, taskQueue, start, { restart: true }),
    startDelivery: (start) => startDelivery(client, taskQueue, start),
    async isRunning(workflowId) {
      return (await closedAt(client, workflowId)) === null;
    },
    async signalSettled(batchId, message) {
      try {
        await client.withDeadline(Date.now() + SIGNAL_TIMEOUT_MS, () =>
          client.workflow.getHandle(batchId).signal(requestSettled, message),
        );
      } catch (error) {
        if (!(error instanceof WorkflowNotFoundError)) throw error;
      }
    },
  };
}

/**
 * When a workflow closed; null while it is open, the epoch where Temporal does not know it (any more). By its close,
 * not by its status: a workflow that an operator has paused is open too.
 */
export async function closedAt(client: Client, workflowId: string): Promise<Date | null> {
  try {
    return (await client.workflow.getHandle(workflowId).describe()).closeTime ?? null;
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return new Date(0);
    throw error;
  }
}
