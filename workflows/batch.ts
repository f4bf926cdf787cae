import { WorkflowExecutionAlreadyStartedError } from '@temporalio/common';
import {
  CancellationScope,
  CancelledFailure,
  condition,
  isCancellation,
  ParentClosePolicy,
  proxyActivities,
  proxyLocalActivities,
  setCurrentDetails,
  setHandler,
  startChild,
  upsertSearchAttributes,
} from '@temporalio/workflow';
import type { Activities } from '../activities/index.ts';
import { lookUpEmail } from './lookup.ts';
import {
  BATCH_STATUS,
  type BatchInput,
  type BatchPlan,
  type BatchResult,
  type DeliveryResult,
  type FinalStatus,
  NPI,
  ORGANIZATION_ID,
  type PlannedRequest,
  requestSettled,
} from './messages.ts';
import { onWebhooksQueue, PLAN, REFUND } from './options.ts';

const { planBatch } = proxyLocalActivities<Activities>(PLAN);
const { refundCredits } = proxyActivities<Activities>(REFUND);

/** How long after its deadline a lookup that an earlier run of the batch started is waited for. */
const GRACE_MS = 10_000;
/** The longest and the shortest time until such a lookup is asked after again. */
const [CHECK_AT_MOST_MS, CHECK_AT_LEAST_MS] = [30_000, 1000];

/**
 * One submit: a child workflow per request that is still open, progress by their signals, webhooks as they come.
 * Ends when every request is final and every delivery is decided. Everything it needs to know is in the database,
 * so that it can be started again after a termination and goes on where things stand.
 */
export async function enrichBatch({ batchId }: BatchInput): Promise<BatchResult> {
  const settled = new Map<string, FinalStatus>();
  const deliveries = new Map<string, Promise<DeliveryResult>>();
  const decided: DeliveryResult[] = [];
  let plan: BatchPlan | null = null;

  // A signal and a child's result tell the same, in either order, and a signal may come before the plan does.
  const note = (requestId: string, status: FinalStatus) => {
    settled.set(requestId, status);
    const deliveryId = plan?.requests.find((request) => request.requestId === requestId)?.deliveryId;
    if (deliveryId) deliver(deliveryId, requestId);
    show();
  };
  const deliver = (deliveryId: string, what: string) => {
    if (!plan || deliveries.has(deliveryId)) return;
    const { deliverWebhook } = proxyActivities<Activities>(
      onWebhooksQueue(`webhook for ${what}`, plan.organizationId),
    );
    const delivery = CancellationScope.nonCancellable(() => deliverWebhook({ deliveryId }));
    deliveries.set(
      deliveryId,
      delivery.then((result) => {
        decided.push(result);
        show();
        return result;
      }),
    );
  };
  const show = () => {
    if (plan) setCurrentDetails(progress(plan.requests.length, settled, decided.length, deliveries.size));
  };

  setHandler(requestSettled, ({ requestId, status }) => note(requestId, status));
  // Cancelled or not: without the plan, nobody knows what to give back.
  plan = await CancellationScope.nonCancellable(() => planBatch({ batchId }));
  for (const { requestId, status } of plan.requests) {
    const known = status ?? settled.get(requestId);
    if (known) note(requestId, known);
  }
  show();

  const { organizationId } = plan;
  const follow = async (request: PlannedRequest) => {
    try {
      note(request.requestId, await lookUp(batchId, organizationId, request, settled));
    } catch (error) {
      // The child compensates by itself; this covers one that was terminated, or never was.
      const { requestId } = request;
      const refund = { requestId, batchId, reason: isCancellation(error) ? 'cancelled' : 'lookup_lost' };
      note(requestId, (await CancellationScope.nonCancellable(() => refundCredits(refund))).status);
    }
  };
  await Promise.all(plan.requests.filter(({ requestId }) => !settled.has(requestId)).map(follow));

  upsertSearchAttributes([{ key: BATCH_STATUS, value: 'completed' }]);
  if (plan.deliveryId) deliver(plan.deliveryId, batchId);
  await Promise.all(deliveries.values());
  if (CancellationScope.current().consideredCancelled) {
    throw new CancelledFailure('cancelled by an operator; open requests were refunded');
  }
  return summary(settled, decided);
}

async function lookUp(
  batchId: string,
  organizationId: string,
  { requestId, npi, deadline }: PlannedRequest,
  settled: ReadonlyMap<string, FinalStatus>,
): Promise<FinalStatus> {
  for (;;) {
    try {
      const child = await startChild(lookUpEmail, {
        workflowId: requestId,
        args: [{ requestId, batchId, npi, deadline }],
        // A batch that ends early must not take lookups with it that someone is paying for.
        parentClosePolicy: ParentClosePolicy.ABANDON,
        typedSearchAttributes: [
          { key: ORGANIZATION_ID, value: organizationId },
          { key: NPI, value: [npi] },
        ],
        staticSummary: `NPI ${npi}`,
      });
      return (await child.result()).status;
    } catch (error) {
      if (!(error instanceof WorkflowExecutionAlreadyStartedError)) throw error;
      // An earlier run of this batch started it: its settlement comes as a signal. A signal can be lost and that
      // lookup can be terminated, so it is started again from time to time; one that is final ends at once.
      const left = deadline + GRACE_MS - Date.now();
      const wait = Math.min(Math.max(left / 8, CHECK_AT_LEAST_MS), CHECK_AT_MOST_MS);
      await condition(() => settled.has(requestId), wait);
      const status = settled.get(requestId);
      if (status) return status;
      if (left <= 0) throw error;
    }
  }
}

function progress(
  total: number,
  settled: ReadonlyMap<string, FinalStatus>,
  decided: number,
  sent: number,
): string {
  const counts = summary(settled, []);
  const webhooks = sent > 0 ? `\n\nwebhooks decided: ${decided}/${sent}` : '';
  return (
    `**${settled.size}/${total}** final: ${counts.completed} completed, ${counts.notFound} not_found, ` +
    `${counts.failed} failed${webhooks}`
  );
}

function summary(settled: ReadonlyMap<string, FinalStatus>, decided: readonly DeliveryResult[]): BatchResult {
  const count = (status: FinalStatus) => [...settled.values()].filter((value) => value === status).length;
  const delivered = decided.filter((result) => result === 'delivered').length;
  return {
    completed: count('completed'),
    notFound: count('not_found'),
    failed: count('failed'),
    delivered,
    undelivered: decided.length - delivered,
  };
}
