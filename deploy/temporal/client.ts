import {
  Client,
  Connection,
  isGrpcServiceError,
  WorkflowNotFoundError,
} from '@temporalio/client';
import { loadClientConnectConfig } from '@temporalio/envconfig';
import type { WorkflowControl, WorkflowState } from '../../activities/deps.ts';
import { queuesOf, requestSettled } from '../../workflows/messages.ts';
import { startBatch, startDelivery, startUpload } from '../../workflows/starts.ts';

/**
 * Returns the address of the Temporal server and our credentials. They come from the environment
 * variables that Temporal defines, or from its TOML configuration file.
 */
export function temporalTarget(
  environment: Readonly<Record<string, string | undefined>>,
) {
  const env: Record<string, string> = {};
  for (const [name, value] of Object.entries(environment)) {
    if (value) env[name] = value;
  }
  return loadClientConnectConfig({ overrideEnvVars: env });
}

export type TemporalTarget = ReturnType<typeof temporalTarget>;

/**
 * Returns a client that connects when it is first used, so that the API can start while Temporal is
 * unavailable.
 */
export function lazyClient(target: TemporalTarget): Client {
  const connection = Connection.lazy(target.connectionOptions);
  return new Client({ connection, namespace: target.namespace || 'default' });
}

/**
 * Time-out of one call to Temporal. It is short, because the callers make such calls for many
 * requests, one after the other.
 */
const CALL_TIMEOUT_MS = 3000;

/** Makes a call to Temporal that fails if there is no response in time. */
export function inTime<T>(client: Client, call: () => Promise<T>): Promise<T> {
  return client.withDeadline(Date.now() + CALL_TIMEOUT_MS, call);
}

/** Returns the Temporal calls that activities need. */
export function createControl(client: Client, taskQueue: string): WorkflowControl {
  return {
    namespace: client.options.namespace,
    startBatch(start, reuse) {
      return inTime(client, () => startBatch(client, taskQueue, start, reuse));
    },
    startDelivery(start) {
      return inTime(client, () => startDelivery(client, taskQueue, start));
    },
    startUpload(start) {
      return inTime(client, () => startUpload(client, taskQueue, start));
    },
    stateOf(workflowId) {
      return inTime(client, () => stateOf(client, workflowId));
    },
    async signalBatch(batchId, settled) {
      const batch = client.workflow.getHandle(batchId);
      try {
        await inTime(client, () => batch.signal(requestSettled, settled));
      } catch (error) {
        // The workflow of the batch was terminated, or it ended because it no longer waited for
        // this request. If the batch is not finished, the reconciler starts the workflow again.
        if (!(error instanceof WorkflowNotFoundError)) throw error;
      }
    },
  };
}

/** Returns a condition for Temporal's workflow lists. It selects the workflows of our queues. */
export function onOurQueues(taskQueue: string): string {
  const { enrichment, webhooks } = queuesOf(taskQueue);
  return `TaskQueue in ('${enrichment}', '${webhooks}')`;
}

/**
 * Returns the newest run of a workflow, or null if Temporal does not know the workflow or has
 * deleted its data. The caller limits the time.
 */
export async function describeRun(client: Client, workflowId: string) {
  const run = client.workflow.getHandle(workflowId);
  try {
    return await run.describe();
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return null;
    throw error;
  }
}

/**
 * Returns the state of a workflow. The close time decides whether it is open and not the status,
 * because a workflow that an operator has paused is still open.
 */
async function stateOf(client: Client, workflowId: string): Promise<WorkflowState> {
  const run = await describeRun(client, workflowId);
  if (run === null) return 'unknown';
  if (run.closeTime === undefined) return 'open';
  return run.status.name === 'COMPLETED' ? 'completed' : 'ended';
}

/** Returns true if a workflow with this id is open. */
export async function isRunning(client: Client, workflowId: string): Promise<boolean> {
  return (await stateOf(client, workflowId)) === 'open';
}

/**
 * Returns the gRPC failure of an error, or null if the error has none. The SDK wraps some failures,
 * and then the failure is the cause of the error.
 */
export function grpcFailure(error: unknown) {
  const cause = error instanceof Error ? error.cause : null;
  return [error, cause].find(isGrpcServiceError) ?? null;
}

/**
 * Returns the message of an error from Temporal, with the code and details of its gRPC failure,
 * such as `Failed to count workflows (gRPC 4 DEADLINE_EXCEEDED: Deadline exceeded)`. Durations are
 * left out, so that repeated failures have the same message.
 */
export function messageOf(error: Error): string {
  const failure = grpcFailure(error);
  if (failure === null) return error.message;
  const stable = failure.message
    .replaceAll(/ after [\d.]+s|,[\w ]+: [\d.]+s/g, '')
    .replace(/ Resolution note: $/, '');
  if (failure === error) return `gRPC ${stable}`;
  return `${error.message} (gRPC ${stable})`;
}

// gRPC status codes.
export const NOT_FOUND = 5;
export const ALREADY_EXISTS = 6;
export const FAILED_PRECONDITION = 9;
export const UNIMPLEMENTED = 12;

/**
 * Waits for a call to the Temporal server. Returns its response, or null if it fails with the given
 * gRPC code.
 */
export async function unless<Result>(
  code: number,
  call: Promise<Result>,
): Promise<Result | null> {
  try {
    return await call;
  } catch (error) {
    if (isGrpcServiceError(error) && error.code === code) return null;
    throw error;
  }
}
