import {
  type Client,
  WorkflowExecutionAlreadyStartedError,
  type WorkflowStartOptions,
} from '@temporalio/client';
import type { BatchStart } from '../db/requests/outbox.ts';
import type { DeliveryStart } from '../db/webhooks/resends.ts';
import {
  type BatchInput,
  DELIVERY_TIMEOUT,
  type DeliverInput,
  lookAgain,
  NPI,
  ORGANIZATION_ID,
  WORKFLOWS,
} from '../workflows/messages.ts';

/** Temporal being away must not hold a client's answer: the sweep starts later what this could not. */
const START_TIMEOUT_MS = 3000;
/** The last net: one that hangs ends, and if it has left anything the sweep starts it again. */
const BATCH_TIMEOUT = '2h';

/**
 * Starts the batch workflow, with the batch id as workflow id. That it was started already is success.
 * @param wake if it runs it is told to look again, and if it has closed it is started again
 * @param deadline as `Date.now()` has it
 * @throws whatever keeps Temporal from taking it, by the deadline
 */
export async function startBatch(
  client: Client,
  taskQueue: string,
  { batchId, organizationId, submittedAs, wantedType, npis }: BatchStart,
  { wake = false, deadline = Date.now() + START_TIMEOUT_MS } = {},
): Promise<void> {
  const input: BatchInput = { batchId };
  const options = {
    taskQueue,
    workflowId: batchId,
    workflowIdConflictPolicy: 'USE_EXISTING',
    args: [input],
    workflowExecutionTimeout: BATCH_TIMEOUT,
    priority: fairTo(organizationId),
    typedSearchAttributes: [
      { key: ORGANIZATION_ID, value: organizationId },
      { key: NPI, value: [...new Set(npis)] },
    ],
    memo: {
      organization_id: organizationId,
      submitted_as: submittedAs,
      wanted_type: wantedType,
      total: npis.length,
    },
    staticSummary: npis.length === 1 ? `NPI ${npis[0]}` : `${npis.length} NPIs`,
    staticDetails: `${submittedAs} submit of ${organizationId}, wanted type ${wantedType}`,
  } satisfies WorkflowStartOptions;
  const { workflow } = client;
  try {
    await client.withDeadline<unknown>(deadline, () =>
      wake
        ? workflow.signalWithStart(WORKFLOWS.batch, { ...options, signal: lookAgain })
        : workflow.start(WORKFLOWS.batch, { ...options, workflowIdReusePolicy: 'REJECT_DUPLICATE' }),
    );
  } catch (error) {
    if (!(error instanceof WorkflowExecutionAlreadyStartedError)) throw error;
  }
}

/**
 * Starts the workflow of a delivery that is sent again, or that its batch did not see to, with the delivery id as
 * workflow id. An older one of the same delivery, which sleeps until its next attempt, is ended: its place in the
 * schedule is in the database.
 * @throws whatever keeps Temporal from taking it, within 3 s
 */
export async function startDelivery(
  client: Client,
  taskQueue: string,
  { deliveryId, batchId, organizationId }: DeliveryStart,
): Promise<void> {
  const input: DeliverInput = { deliveryId };
  await client.withDeadline(Date.now() + START_TIMEOUT_MS, () =>
    client.workflow.start(WORKFLOWS.deliver, {
      taskQueue,
      workflowId: deliveryId,
      workflowIdReusePolicy: 'ALLOW_DUPLICATE',
      workflowIdConflictPolicy: 'TERMINATE_EXISTING',
      args: [input],
      workflowExecutionTimeout: DELIVERY_TIMEOUT,
      priority: fairTo(organizationId),
      typedSearchAttributes: [{ key: ORGANIZATION_ID, value: organizationId }],
      memo: { organization_id: organizationId, batch_id: batchId },
      staticSummary: `webhook of ${batchId}`,
    }),
  );
}

/** If the cluster has fairness switched on, backlogs are shared out by organization; children and activities inherit it. */
function fairTo(organizationId: string) {
  return { fairnessKey: organizationId };
}
