import { Client, Connection, isGrpcServiceError, WorkflowNotFoundError } from '@temporalio/client';
import { loadClientConnectConfig } from '@temporalio/envconfig';
import type { WorkflowControl, WorkflowState } from '../../activities/deps.ts';
import { startBatch, startDelivery } from '../../api/temporal.ts';
import { queuesOf, requestSettled } from '../../workflows/messages.ts';

/**
 * Returns the address of Temporal and the credentials for it, from Temporal's own environment
 * variables (or its TOML profile).
 */
export function temporalTarget(environment: Readonly<Record<string, string | undefined>>) {
  const env: Record<string, string> = {};
  for (const [name, value] of Object.entries(environment)) {
    if (value) env[name] = value;
  }
  return loadClientConnectConfig({ overrideEnvVars: env });
}

export type TemporalTarget = ReturnType<typeof temporalTarget>;

/**
 * Returns a client that connects when it is first used, so that the API starts while Temporal is
 * away.
 */
export function lazyClient(target: TemporalTarget): Client {
  const connection = Connection.lazy(target.connectionOptions);
  return new Client({ connection, namespace: target.namespace || 'default' });
}

/** Short, because the code that makes these calls works for many requests in turn. */
const CALL_TIMEOUT_MS = 3000;

function inTime<T>(client: Client, call: () => Promise<T>): Promise<T> {
  return client.withDeadline(Date.now() + CALL_TIMEOUT_MS, call);
}

/** Returns the Temporal calls that activities need. */
export function createControl(client: Client, taskQueue: string): WorkflowControl {
  return {
    namespace: client.options.namespace,
    startBatch(start) {
      return inTime(client, () => startBatch(client, taskQueue, start, 'ALLOW_DUPLICATE'));
    },
    startDelivery(start) {
      return inTime(client, () => startDelivery(client, taskQueue, start));
    },
    stateOf(workflowId) {
      return stateOf(client, workflowId);
    },
    async signalBatch(batchId, settled) {
      const batch = client.workflow.getHandle(batchId);
      try {
        await inTime(client, () => batch.signal(requestSettled, settled));
      } catch (error) {
        // The workflow was terminated, or ended because it stopped waiting. The reconciler finds
        // the work that it left.
        if (!(error instanceof WorkflowNotFoundError)) throw error;
      }
    },
  };
}

/**
 * Returns the part of a visibility query that finds the workflows of a deployment: those of batches
 * and of deliveries.
 */
export function onOurQueues(taskQueue: string): string {
  const { enrichment, webhooks } = queuesOf(taskQueue);
  return `TaskQueue in ('${enrichment}', '${webhooks}')`;
}

/** Returns the newest run of a workflow, or null if Temporal does not know it (any more). */
export async function describeRun(client: Client, workflowId: string) {
  const run = client.workflow.getHandle(workflowId);
  try {
    return await inTime(client, () => run.describe());
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return null;
    throw error;
  }
}

/**
 * Returns the state by the close time, not by the status: a workflow that an operator has paused is
 * open too.
 */
async function stateOf(client: Client, workflowId: string): Promise<WorkflowState> {
  const run = await describeRun(client, workflowId);
  if (run === null) return 'unknown';
  return run.closeTime ? 'closed' : 'open';
}

/** Returns whether a workflow with this id is open. */
export async function isRunning(client: Client, workflowId: string): Promise<boolean> {
  return (await stateOf(client, workflowId)) === 'open';
}

// gRPC status codes.
export const NOT_FOUND = 5;
export const ALREADY_EXISTS = 6;
export const FAILED_PRECONDITION = 9;
export const UNIMPLEMENTED = 12;

/** Returns the response of Temporal's service, or null if the call fails with this gRPC code. */
export async function unless<Result>(code: number, call: Promise<Result>): Promise<Result | null> {
  try {
    return await call;
  } catch (error) {
    if (isGrpcServiceError(error) && error.code === code) return null;
    throw error;
  }
}
