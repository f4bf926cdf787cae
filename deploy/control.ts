import { type Client, WorkflowNotFoundError } from '@temporalio/client';
import type { WorkflowControl } from '../activities/index.ts';
import { startBatch } from '../api/start.ts';
import { requestSettled } from '../workflows/messages.ts';

/** A signal is a courtesy, so it may not take long. */
const SIGNAL_TIMEOUT_MS = 3000;

/** What activities need of Temporal, over a client. */
export function createControl(client: Client, taskQueue: string): WorkflowControl {
  return {
    startBatch: (start) => startBatch(client, taskQueue, start),
    restartBatch: (start) => startBatch(client, taskQueue, start, true),
    async isRunning(workflowId) {
      try {
        // By its close, not by its status: a workflow that an operator has paused is open too.
        return (await client.workflow.getHandle(workflowId).describe()).closeTime === undefined;
      } catch (error) {
        if (error instanceof WorkflowNotFoundError) return false;
        throw error;
      }
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
