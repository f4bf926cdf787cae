import { WorkflowExecutionAlreadyStartedError } from '@temporalio/common';
import {
  CancellationScope,
  CancelledFailure,
  condition,
  getExternalWorkflowHandle,
  isCancellation,
  ParentClosePolicy,
  proxyActivities,
  setCurrentDetails,
  setHandler,
  sleep,
  startChild,
  TemporalFailure,
} from '@temporalio/workflow';
import type { Activities } from '../activities/index.ts';
import { lookUpEmail, RESERVE_MS } from './lookup.ts';
import {
  type BatchInput,
  type BatchResult,
  DELIVERY_TIMEOUT,
  type LookupInput,
  lookAgain,
  NPI,
  ORGANIZATION_ID,
  type Planned,
  requestSettled,
  type Unknown,
} from './messages.ts';
import { deliver } from './one-step.ts';
import { atOnce, onLookupsQueue, onWebhooksQueue, REFUND, throwBug } from './options.ts';

const planBatch = atOnce('planBatch');
type BatchPlan = Awaited<ReturnType<typeof planBatch>>;
type DueDelivery = BatchPlan['due'][number];
const { refundCredits } = proxyActivities<Activities>(REFUND);

/** A lookup that is still open so long after its deadline hangs: Temporal ends it. The sweep has settled what it owed. */
const OVERTIME_MS = 5 * 60_000;
/** So long after a deadline the sweep has settled what is overdue. */
const SETTLED_AFTER_MS = 60_000;
/** How long the ends of lookups are waited for whose requests are final. */
const LAST_ENDS_MS = 10_000;
/** The registry's answer is worth a minute's wait. */
const IDENTIFY_MS = 60_000;
/** The longest and the shortest time until a lookup that an earlier run of the batch started is asked after. */
const [ASK_AT_MOST_MS, ASK_AT_LEAST_MS] = [30_000, 1000];

/**
 * One submit: a lookup per request that is still open, progress by their signals, webhooks as they come. It ends when
 * PostgreSQL says that every request is final, and takes nobody else's word for it: signals, and the ends of lookups,
 * only make it look again. So it can be started again after a termination and goes on where things stand.
 */
export async function enrichBatch(input: BatchInput): Promise<BatchResult> {
  // What runs on the side reports its bugs here. A rejection that nothing handles would end the whole worker.
  return await new Promise((resolve, reject) => {
    runBatch(input, reject).then(resolve, reject);
  });
}

async function runBatch({ batchId }: BatchInput, fail: (bug: unknown) => void): Promise<BatchResult> {
  const report = (error: unknown) => {
    if (!(error instanceof TemporalFailure)) fail(error);
  };
  let signals = 0;
  let ended = 0;
  let show = () => {};
  setHandler(requestSettled, (...settled) => {
    signals += settled.length;
    show();
  });
  setHandler(lookAgain, () => {
    signals = Number.POSITIVE_INFINITY;
  });
  const root = CancellationScope.current();
  const known: string[] = [];
  const look = () => planBatch({ batchId, known });
  // Cancelled or not: without the plan, nobody knows what to give back.
  let plan = await CancellationScope.nonCancellable(look);
  const webhooks: Webhooks = { taken: new Set(), attempts: [], waiting: [] };
  let story = '';
  show = () => setCurrentDetails(story + progress(plan, signals, webhooks));
  const lookUp = (lookup: LookupInput) => {
    if (plan.total > 1) return follow(lookup, plan);
    // Alone in its batch, it needs no workflow of its own: half of the history would be its parent's.
    return lookUpEmail(lookup, (text) => {
      story = `${text}\n\n`;
      show();
    });
  };
  const begin = (lookup: Planned) => {
    // Where a cancellation reaches it.
    void root
      .run(async () => void (await lookUp({ deadline: plan.deadline, ...lookup, batchId })))
      .catch(report)
      .finally(() => {
        ended += 1;
      });
  };
  // Requests that ended without a lookup.
  const endEarly = (count: number) => {
    ended += count;
    signals += count;
  };
  const identifyAll = async (unknown: readonly Unknown[]) => {
    const [first] = unknown;
    if (!first) return;
    const msLeft = plan.deadline - Date.now();
    const about = unknown.length === 1 ? `NPI ${first.npi}` : `${unknown.length} NPIs`;
    const { identify } = proxyActivities<Activities>(
      onLookupsQueue(`registry-${first.requestId}`, `registry for ${about}`, msLeft),
    );
    const until = Date.now() + Math.min(IDENTIFY_MS, msLeft - RESERVE_MS);
    let left = unknown;
    try {
      while (left.length > 0) {
        const { lookups, later } = await identify({ batchId, unknown: left, until });
        lookups.forEach(begin);
        endEarly(left.length - lookups.length - later.length);
        left = later;
      }
    } catch (error) {
      throwBug(error);
      const reason = isCancellation(error) ? 'cancelled' : 'lookup_failed';
      const giveBack = (one: Unknown) => refundCredits({ ...one, batchId, reason });
      await CancellationScope.nonCancellable(() => Promise.all(left.map(giveBack)));
      endEarly(left.length);
    }
  };

  // Whatever has been lost on the way, in a reset say: when the deadline has passed, the sweep has settled the rest.
  const lookAtDeadline = async () => {
    for (;;) {
      await sleep(Math.max(plan.deadline + SETTLED_AFTER_MS - Date.now(), SETTLED_AFTER_MS));
      signals = Number.POSITIVE_INFINITY;
    }
  };
  if (plan.open > 0) void CancellationScope.nonCancellable(lookAtDeadline);

  const untilFinal = async () => {
    for (;;) {
      for (const { requestId } of [...plan.lookups, ...plan.unknown]) known.push(requestId);
      plan.lookups.forEach(begin);
      void root.run(() => identifyAll(plan.unknown)).catch(report);
      attempt(plan, webhooks, show, report);
      show();
      if (plan.open === 0) return;
      // The facts are worth reading once they can say that something is to be done: for real-time webhooks each time
      // that something is final, else when everything may be that has room. A lookup whose signal got lost has ended at
      // least.
      const lookedUp = plan.open - plan.waiting;
      const enough = plan.realTime ? 1 : Math.max(lookedUp, 1);
      const before = ended;
      const unsaid = () => ended - (known.length - lookedUp);
      const wakes = () => signals >= enough || (unsaid() >= enough && ended > before);
      if (!plan.more) await condition(wakes);
      signals = 0;
      plan = await look();
    }
  };
  try {
    await untilFinal();
  } catch (error) {
    if (!isCancellation(error)) throw error;
    // The lookups are cancelled too, and give back what they hold; so does what waits, as their room comes to it: a batch
    // that runs is the first in line.
    await CancellationScope.nonCancellable(async () => {
      plan = await look();
      await untilFinal();
    });
  }
  await CancellationScope.nonCancellable(async () => {
    await Promise.all(webhooks.attempts);
    // An end that comes while the batch completes costs a failed workflow task; one that hangs is not waited for.
    if (ended < known.length) await condition(() => ended === known.length, LAST_ENDS_MS);
  });
  if (root.consideredCancelled) {
    throw new CancelledFailure('cancelled by an operator; open requests were refunded');
  }
  const { completed, notFound, failed } = plan;
  return { completed, notFound, failed };
}

/** Runs one lookup as a workflow of its own until that is over, and makes sure that its request is final then. */
async function follow(lookup: LookupInput, { organizationId }: BatchPlan): Promise<void> {
  const { requestId, batchId, npi, deadline } = lookup;
  const giveBack = (reason: string) => refundCredits({ requestId, batchId, npi, reason });
  for (;;) {
    try {
      const child = await startChild(lookUpEmail, {
        workflowId: requestId,
        args: [lookup],
        // A batch that ends early must not take lookups with it that someone is paying for.
        parentClosePolicy: ParentClosePolicy.ABANDON,
        workflowExecutionTimeout: Math.max(deadline - Date.now(), 0) + OVERTIME_MS,
        typedSearchAttributes: [
          { key: ORGANIZATION_ID, value: organizationId },
          { key: NPI, value: [npi] },
        ],
        staticSummary: `NPI ${npi}`,
      });
      await child.result();
      return;
    } catch (error) {
      throwBug(error);
      if (!(error instanceof WorkflowExecutionAlreadyStartedError)) {
        // The lookup compensates by itself; this covers one that was terminated, or never was.
        const reason = isCancellation(error) ? 'cancelled' : 'lookup_lost';
        await CancellationScope.nonCancellable(() => giveBack(reason));
        return;
      }
    }
    // An earlier run of this batch started it, and it signals this one when it settles. If it is terminated before, it
    // is started again; if it has settled meanwhile, the new one ends at once.
    try {
      const left = deadline - Date.now();
      await sleep(left <= 0 ? ASK_AT_MOST_MS : Math.min(Math.max(left / 8, ASK_AT_LEAST_MS), ASK_AT_MOST_MS));
    } catch (error) {
      throwBug(error);
      await CancellationScope.nonCancellable(async () => {
        await giveBack('cancelled');
        await getExternalWorkflowHandle(requestId).cancel();
      });
      return;
    }
  }
}

interface Webhooks {
  /** The ids of deliveries whose first attempt was begun. */
  readonly taken: Set<string>;
  readonly attempts: Promise<void>[];
  /** What the first attempt did not decide. */
  readonly waiting: DueDelivery[];
}

/**
 * Makes the first attempt of what has become due, all that became due in the same moment by one activity. What that
 * doesn't decide is a workflow of its own from then on, because it may wait for days.
 */
function attempt(
  { due, organizationId }: BatchPlan,
  { taken, attempts, waiting }: Webhooks,
  show: () => void,
  report: (error: unknown) => void,
): void {
  const deliveries = due.filter(({ deliveryId }) => !taken.has(deliveryId));
  const [first] = deliveries;
  if (!first) return;
  for (const { deliveryId } of deliveries) taken.add(deliveryId);
  const about = deliveries.length === 1 ? `webhook of ${nameOf(first)}` : `${deliveries.length} webhooks`;
  const { attemptDeliveries } = proxyActivities<Activities>(onWebhooksQueue(about));
  const run = async () => {
    const undecided = await attemptDeliveries({
      deliveryIds: deliveries.map(({ deliveryId }) => deliveryId),
    });
    const left = deliveries.filter(({ deliveryId }) => undecided.includes(deliveryId));
    waiting.push(...left);
    show();
    for (const delivery of left) await startDelivery(delivery, organizationId);
  };
  // What it leaves because it failed for good, the sweep takes up.
  attempts.push(CancellationScope.nonCancellable(run).catch(report));
}

async function startDelivery(delivery: DueDelivery, organizationId: string): Promise<void> {
  const { deliveryId } = delivery;
  try {
    await startChild(deliver, {
      workflowId: deliveryId,
      args: [{ deliveryId }],
      parentClosePolicy: ParentClosePolicy.ABANDON,
      workflowExecutionTimeout: DELIVERY_TIMEOUT,
      typedSearchAttributes: [{ key: ORGANIZATION_ID, value: organizationId }],
      staticSummary: `webhook of ${nameOf(delivery)}`,
    });
  } catch (error) {
    // Somebody has asked for it to be sent again, and that is on its way.
    if (!(error instanceof WorkflowExecutionAlreadyStartedError)) throw error;
  }
}

function nameOf({ npi }: DueDelivery): string {
  return npi === null ? 'the batch' : `NPI ${npi}`;
}

const NAMED_AT_MOST = 10;

/** What the signals since the last look say is shown, and believed by nobody. */
function progress(plan: BatchPlan, signals: number, { taken, waiting }: Webhooks): string {
  const { total, completed, notFound, failed, open } = plan;
  const final = `**${Math.min(total - open + signals, total)} of ${total}** final`;
  const counts =
    open > 0 ? final : `${final}: ${completed} completed, ${notFound} not_found, ${failed} failed`;
  if (taken.size === 0) return counts;
  const named = waiting.slice(0, NAMED_AT_MOST).map((one) => `${nameOf(one)} (${one.deliveryId})`);
  const rest = waiting.length > NAMED_AT_MOST ? ` and ${waiting.length - NAMED_AT_MOST} more` : '';
  const sentLater = waiting.length > 0 ? `, to be sent again: ${named.join(', ')}${rest}` : '';
  return `${counts}\n\nwebhooks: ${taken.size} attempted${sentLater}`;
}
