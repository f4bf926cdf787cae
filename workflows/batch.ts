import { WorkflowExecutionAlreadyStartedError } from '@temporalio/common';
import {
  CancellationScope,
  CancelledFailure,
  condition,
  executeChild,
  getExternalWorkflowHandle,
  isCancellation,
  ParentClosePolicy,
  setCurrentDetails,
  setHandler,
  TemporalFailure,
} from '@temporalio/workflow';
import { Webhooks } from './delivery.ts';
import { lookUpEmail } from './lookup.ts';
import {
  type BatchFacts,
  type BatchInput,
  type BatchResult,
  type DueDelivery,
  type LookupInput,
  NPI,
  ORGANIZATION_ID,
  requestSettled,
  type Settled,
} from './messages.ts';
import { local, refundCredits } from './options.ts';

/** If a lookup is still running this long after its deadline, Temporal ends it. */
const GRACE_MS = 5 * 60_000;
/** The reconciler settles every open request within this time after its deadline. */
const SETTLED_AFTER_MS = 60_000;

/** An event that the batch workflow waits for. */
type News =
  | ({ readonly kind: 'settled' } & Settled)
  | { readonly kind: 'all lookups ended' }
  | { readonly kind: 'bug'; readonly bug: unknown };

/**
 * Runs one batch: starts a lookup for each open request, and sends the webhooks of settled
 * requests. All facts are in PostgreSQL, so a batch that was terminated can be started again and
 * continues where it stopped.
 */
export async function enrichBatch({ batchId }: BatchInput): Promise<BatchResult> {
  const inbox: News[] = [];
  setHandler(requestSettled, (signal) => {
    // An operator can send a signal by hand, with any content, so we check its fields.
    if (typeof signal?.requestId !== 'string') return;
    const deliveryId = typeof signal.deliveryId === 'string' ? signal.deliveryId : null;
    inbox.push({ kind: 'settled', requestId: signal.requestId, deliveryId });
  });

  // A canceled batch still reads its open requests here, because their credits must be refunded.
  const batch = await CancellationScope.nonCancellable(() =>
    local.readBatch({ batchId }),
  );
  const settled = new Set<string>();
  const lookups = batch.open.map((request) => lookUp(request, batch, settled));
  const onBug = (bug: unknown) => void inbox.push({ kind: 'bug', bug });
  void Promise.all(lookups).then(() => inbox.push({ kind: 'all lookups ended' }), onBug);

  // Canceling the batch cancels its lookups, and each lookup refunds its credits. The batch itself
  // continues until all lookups have ended.
  const webhooks = new Webhooks(batch, onBug);
  const result = await CancellationScope.nonCancellable(() =>
    report(batch, inbox, settled, webhooks),
  );
  if (CancellationScope.current().consideredCancelled) {
    throw new CancelledFailure('canceled by an operator; open requests were refunded');
  }
  return result;
}

/** Shows the progress and dispatches webhooks until all lookups have ended. */
async function report(
  batch: BatchFacts,
  inbox: News[],
  settled: Set<string>,
  webhooks: Webhooks,
): Promise<BatchResult> {
  webhooks.dispatch(batch.due);
  let hasEnded = batch.open.length === 0;
  while (!hasEnded) {
    await condition(() => inbox.length > 0);
    const due: DueDelivery[] = [];
    for (const news of inbox.splice(0)) {
      switch (news.kind) {
        case 'settled':
          settled.add(news.requestId);
          due.push(...webhooks.dueBy(news));
          break;
        case 'all lookups ended':
          hasEnded = true;
          break;
        case 'bug':
          throw news.bug;
        default:
          news satisfies never;
      }
    }
    webhooks.dispatch(due);
    show(batch, settled.size, webhooks.count);
  }
  // The numbers of the result come from PostgreSQL, not from signals. PostgreSQL also knows the due
  // webhooks whose signals were lost.
  const end =
    batch.open.length === 0 ? batch : await local.readBatch({ batchId: batch.batchId });
  webhooks.dispatch(end.due);
  show(end, 0, webhooks.count);
  await webhooks.attempted();
  const { completed, notFound, failed } = end;
  return { completed, notFound, failed };
}

/**
 * Runs one lookup to its end. If the lookup ends without settling its request, this function
 * settles the request as failed.
 */
async function lookUp(
  request: LookupInput,
  { organizationId }: BatchFacts,
  settled: ReadonlySet<string>,
): Promise<void> {
  const { requestId, npi, deadline } = request;
  try {
    await executeChild(lookUpEmail, {
      workflowId: requestId,
      args: [request],
      // If the batch is terminated, its lookups continue, because the customer pays for their
      // results.
      parentClosePolicy: ParentClosePolicy.ABANDON,
      workflowExecutionTimeout: Math.max(deadline - Date.now(), 0) + GRACE_MS,
      typedSearchAttributes: [
        { key: ORGANIZATION_ID, value: organizationId },
        { key: NPI, value: [npi] },
      ],
      staticSummary: `NPI ${npi}`,
    });
  } catch (error) {
    if (error instanceof WorkflowExecutionAlreadyStartedError)
      return await adopt(request, settled);
    if (!(error instanceof TemporalFailure)) throw error;
    // A terminated lookup has not refunded its credits, so we refund them here. A failed or
    // canceled lookup has done so itself, and a second refund changes nothing.
    const reason = isCancellation(error) ? 'cancelled' : 'lookup_lost';
    await CancellationScope.nonCancellable(() => refundCredits({ ...request, reason }));
  }
}

/**
 * Waits for a lookup that an earlier run of this batch started. The lookup sends its signal to the
 * batch id, so this run receives it.
 */
async function adopt(request: LookupInput, settled: ReadonlySet<string>): Promise<void> {
  const { requestId, npi, deadline } = request;
  const patienceMs = Math.max(deadline - Date.now(), 0) + SETTLED_AFTER_MS;
  try {
    await condition(() => settled.has(requestId), patienceMs, {
      summary: `lookup of NPI ${npi}`,
    });
  } catch (error) {
    if (!isCancellation(error)) throw error;
    await CancellationScope.nonCancellable(async () => {
      await refundCredits({ ...request, reason: 'cancelled' });
      // Canceling fails if the lookup has already closed. We ignore that error.
      await getExternalWorkflowHandle(requestId)
        .cancel()
        .catch(() => {});
    });
  }
}

/**
 * Shows the progress of the batch in the Temporal UI. While lookups run, the numbers count signals
 * and may be wrong. At the end they come from PostgreSQL and are exact.
 */
function show(batch: BatchFacts, signals: number, webhooks: number): void {
  const { completed, notFound, failed, open } = batch;
  const total = Object.keys(batch.npis).length;
  const final = Math.min(total - open.length + signals, total);
  const lines = [`**${final} of ${total}** final`];
  if (open.length === 0) {
    lines.push(`${completed} completed, ${notFound} not_found, ${failed} failed`);
  }
  if (webhooks > 0) lines.push(`webhooks: ${webhooks} dispatched`);
  setCurrentDetails(lines.join('\n\n'));
}
