import type { Client } from '@temporalio/client';
import type { BatchStart } from '../db/requests/outbox.ts';
import type { UploadStart } from '../db/uploads/parts.ts';
import type { DeliveryStart } from '../db/webhooks/due.ts';
import {
  type BatchInput,
  DELIVERY_TIMEOUT,
  type DeliverInput,
  NPI,
  ORGANIZATION_ID,
  queuesOf,
  type TestEventInput,
  type UploadInput,
  WORKFLOWS,
} from './messages.ts';

// How the API and the worker start workflows. No workflow imports this file.

/**
 * Starts the workflow of a batch, with the batch id as workflow id. Does nothing if the workflow
 * already runs.
 * @param reuse with `ALLOW_DUPLICATE`, a workflow that has already closed is started again
 * @throws {WorkflowExecutionAlreadyStartedError} with `REJECT_DUPLICATE`, if it has already closed
 * @throws an error if Temporal does not accept it
 */
export async function startBatch(
  client: Client,
  taskQueue: string,
  { batchId, organizationId, submittedAs, requestedType, npis }: BatchStart,
  reuse: 'REJECT_DUPLICATE' | 'ALLOW_DUPLICATE',
): Promise<void> {
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
}

/**
 * Starts the workflow of a webhook delivery, with the delivery id as workflow id. It is needed for
 * a resend, and for a delivery that the workflow of its batch did not handle. If an older workflow
 * of this delivery is waiting for its next attempt, it is terminated. Nothing is lost, because the
 * attempts are recorded in the database.
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
    staticSummary: 'upload of a file',
  });
}

/**
 * Starts the workflow of a test event. If one with this id runs, does nothing.
 * @param timeoutMs after this time, no worker sends the test event, because its sender no longer
 * waits for it
 * @throws {WorkflowExecutionAlreadyStartedError} if it has already closed
 * @throws an error if Temporal does not accept it
 */
export async function startTestEvent(
  client: Client,
  taskQueue: string,
  event: TestEventInput,
  timeoutMs: number,
): Promise<void> {
  const { testId, organizationId } = event;
  await client.workflow.start(WORKFLOWS.testEvent, {
    taskQueue: queuesOf(taskQueue).webhooks,
    workflowId: testId,
    workflowIdReusePolicy: 'REJECT_DUPLICATE',
    workflowIdConflictPolicy: 'USE_EXISTING',
    args: [event],
    workflowExecutionTimeout: timeoutMs,
    priority: { fairnessKey: organizationId },
    typedSearchAttributes: [{ key: ORGANIZATION_ID, value: organizationId }],
    memo: { organization_id: organizationId },
    staticSummary: 'test event from the console',
  });
}
