import { Client, Connection, WorkflowNotFoundError } from '@temporalio/client';
import { loadClientConnectConfig } from '@temporalio/envconfig';
import type { WorkflowControl } from '../../activities/deps.ts';
import { startBatch, startDelivery } from '../../api/start.ts';
import { lookAgain, requestSettled } from '../../workflows/messages.ts';

/** Where Temporal is and how to get in, by Temporal's own environment variables (or its TOML profile). */
export function temporalTarget(environment: Readonly<Record<string, string | undefined>>) {
  const env = Object.fromEntries(
    Object.entries(environment).filter((entry): entry is [string, string] => !!entry[1]),
  );
  return loadClientConnectConfig({ overrideEnvVars: env });
}

export type TemporalTarget = ReturnType<typeof temporalTarget>;

/** A client that connects when it is first used, so that the API starts while Temporal is away. */
export function lazyClient(target: TemporalTarget): Client {
  const connection = Connection.lazy(target.connectionOptions);
  return new Client({ connection, ...(target.namespace ? { namespace: target.namespace } : {}) });
}

/** Whoever signals or asks does something for many, so one may not take long. */
const CALL_TIMEOUT_MS = 3000;

/** What activities need of Temporal, over a client. */
export function createControl(client: Client, taskQueue: string): WorkflowControl {
  return {
    namespace: client.options.namespace,
    wakeBatch: (start) => startBatch(client, taskQueue, start, { wake: true }),
    startDelivery: (start) => startDelivery(client, taskQueue, start),
    async isRunning(workflowId) {
      return (await closedAt(client, workflowId)) === null;
    },
    async tellBatch(batchId, settled) {
      try {
        const batch = client.workflow.getHandle(batchId);
        await client.withDeadline(Date.now() + CALL_TIMEOUT_MS, () =>
          settled ? batch.signal(requestSettled, settled) : batch.signal(lookAgain),
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
    const description = await client.withDeadline(Date.now() + CALL_TIMEOUT_MS, () =>
      client.workflow.getHandle(workflowId).describe(),
    );
    return description.closeTime ?? null;
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return new Date(0);
    throw error;
  }
}
