import { setTimeout } from 'node:timers/promises';
import { Client, Connection, isGrpcServiceError, WorkflowNotFoundError } from '@temporalio/client';
import { loadClientConnectConfig } from '@temporalio/envconfig';
import type { WorkflowControl, WorkflowState } from '../../activities/deps.ts';
import { startBatch, startDelivery } from '../../api/temporal.ts';
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

function inTime<T>(client: Client, call: () => Promise<T>): Promise<T> {
  return client.withDeadline(Date.now() + CALL_TIMEOUT_MS, call);
}

/** What settles within so long is told by one signal. The end of a lookup tells it too, at once. */
const TELL_MS = 1000;

/** What activities need of Temporal, over a client. */
export function createControl(client: Client, taskQueue: string): WorkflowControl {
  const settled = new Map<string, string[]>();
  return {
    namespace: client.options.namespace,
    wakeBatch: (start) => inTime(client, () => startBatch(client, taskQueue, start, { wake: true })),
    startDelivery: (start) => inTime(client, () => startDelivery(client, taskQueue, start)),
    isRunning: (workflowId) => isRunning(client, workflowId),
    stateOf: (workflowId) => stateOf(client, workflowId),
    async tellBatch(batchId, requestId) {
      const gathered = settled.get(batchId) ?? [];
      if (requestId && gathered.push(requestId) > 1) return;
      if (requestId) {
        settled.set(batchId, gathered);
        await setTimeout(TELL_MS, null, { ref: false });
        settled.delete(batchId);
      }
      try {
        const batch = client.workflow.getHandle(batchId);
        await inTime(client, () =>
          requestId ? batch.signal(requestSettled, ...gathered) : batch.signal(lookAgain),
        );
      } catch (error) {
        if (!(error instanceof WorkflowNotFoundError)) throw error;
      }
    },
  };
}

/** The newest run of a workflow; null where Temporal does not know it (any more). */
export async function describeRun(client: Client, workflowId: string) {
  const run = client.workflow.getHandle(workflowId);
  try {
    return await inTime(client, () => run.describe());
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return null;
    throw error;
  }
}

/** By its close, not by its status: a workflow that an operator has paused is open too. */
async function stateOf(client: Client, workflowId: string): Promise<WorkflowState> {
  const run = await describeRun(client, workflowId);
  if (run === null) return 'unknown';
  return run.closeTime ? 'closed' : 'open';
}

export async function isRunning(client: Client, workflowId: string): Promise<boolean> {
  return (await stateOf(client, workflowId)) === 'open';
}

/** Codes of gRPC. */
export const [NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, UNIMPLEMENTED] = [5, 6, 9, 12];

/** What Temporal's service answers; null where it refuses with this code. */
export async function unless<Answer>(code: number, asked: Promise<Answer>): Promise<Answer | null> {
  return await asked.catch((error: unknown) => {
    if (isGrpcServiceError(error) && error.code === code) return null;
    throw error;
  });
}
