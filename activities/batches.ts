import { Context } from '@temporalio/activity';
import type { ApplicationFailure } from '@temporalio/common';
import type { Logger } from 'pino';
import { isSandbox } from '../db/accounts/organizations.ts';
import { listRegistryDue } from '../db/providers/providers.ts';
import { gate } from '../db/providers/subject.ts';
import { markStarted } from '../db/requests/outbox.ts';
import { readBatch } from '../db/requests/plan.ts';
import { type LookupEnd, settle, settleOverdue } from '../db/requests/settle.ts';
import { spanIdOf, tellSpan, traced } from '../db/traces.ts';
import type { FinalStatus } from '../db/words.ts';
import type { BatchInput, LookupResult, Planned, Unknown, VendorAnswer } from '../workflows/messages.ts';
import type { ActivityDeps } from './deps.ts';
import { retryLater } from './failures.ts';
import { withHeartbeat } from './heartbeat.ts';
import { askRegistry, type LookupDeps, makePlans, REGISTRY } from './lookup.ts';
import { hasNpiCheckDigit } from './person/npi.ts';
import { planForSandbox } from './sandbox.ts';

/** A request, and the batch whose workflow is told that it is final. */
export interface RequestIds {
  readonly requestId: string;
  readonly batchId: string;
  readonly npi: string;
}

type Ending = RequestIds & { readonly reason: string };

/** So long a batch plans before it begins what it has planned, and so many lookups at once. */
const PLAN_MS = 1000;
const PLANS_AT_ONCE = 20;
/** What the registry can tell in so long is begun together: it costs Temporal less than one by one. */
const IDENTIFIED_MS = 5000;

export type BatchDeps = Pick<ActivityDeps, 'db' | 'log' | 'control' | 'rules'>;

/** The activities that read and settle what is owed. All are safe to repeat: settling is idempotent by request id. */
export function createBatchActivities(deps: BatchDeps & LookupDeps) {
  const { db, registry } = deps;
  return {
    /**
     * How far a batch is, and what it has left to look up that its workflow does not know of yet. NPIs that cannot be an
     * active individual, or that nobody may look up, end `not_found` here, all in the same way: without a child and
     * without a vendor.
     * @param batch.known the requests whose lookups the workflow has begun
     * @throws {Refusal} `batch_missing` for an unknown id
     */
    async planBatch({ batchId, known }: BatchInput & { readonly known: readonly string[] }) {
      let batch = await readBatch(db, batchId);
      const { organizationId, open } = batch;
      // No lookup comes in time for these, and after an outage there are thousands.
      const isLate = open.some(({ isOverdue }) => isOverdue);
      const late = isLate ? await settleOverdue(db, { organizationId, batchId, limit: open.length }) : [];
      for (const request of late) logSettled(deps.log, request, 'failed', 'deadline');
      const begun = new Set(known);
      const news = open.filter(
        ({ requestId, hasRoom, isOverdue }) => !isOverdue && hasRoom && !begun.has(requestId),
      );
      const lookups: Planned[] = isSandbox(organizationId) ? await planForSandbox(db, news.splice(0)) : [];
      const npis = news.map(({ npi }) => npi);
      const refusals: ReadonlyMap<string, string> = npis.length > 0 ? await gate(db, npis) : new Map();
      const due = new Set(registry && npis.length > 0 ? await listRegistryDue(db, npis) : []);
      const unknown: Unknown[] = [];
      const until = performance.now() + PLAN_MS;
      while (news.length > 0 && performance.now() < until) {
        const ready: Unknown[] = [];
        const settling: Promise<FinalStatus>[] = [];
        for (const { requestId, npi } of news.splice(0, PLANS_AT_ONCE)) {
          const refusal = hasNpiCheckDigit(npi) ? refusals.get(npi) : 'check_digit';
          if (refusal) settling.push(settleOne(deps, { requestId, batchId }, 'answered', refusal));
          else (due.has(npi) ? unknown : ready).push({ requestId, npi });
        }
        const [planned] = await Promise.all([planAll(deps, batchId, ready), ...settling]);
        lookups.push(...planned);
      }
      const isSettled = lookups.length + unknown.length + news.length < npis.length;
      if (isLate || isSettled) batch = await readBatch(db, batchId);
      return {
        ...batch,
        /** What is to be begun now. */
        lookups,
        /** What is to be identified before it is begun. */
        unknown,
        /** Whether there is more to begin, which would have taken too long. */
        more: news.length > 0,
        /** Requests that are not final. */
        open: batch.open.length,
        /** Those of them that wait for others of their organization to end. */
        waiting: batch.open.filter(({ hasRoom }) => !hasRoom).length,
      };
    },

    /**
     * Asks the NPI Registry who these are, and plans their lookups by what it says, or without it once there is no more
     * time. As in `planBatch`, some end here.
     * @param batch.until after this, in milliseconds since the epoch, they are planned without the registry
     * @returns the lookups to begin, and those that the registry is not done with
     * @throws {ApplicationFailure} retryable, if the registry is away or our limit is reached, and none could be planned
     */
    async identify(batch: BatchInput & { readonly unknown: readonly Unknown[]; readonly until: number }) {
      const { batchId, unknown, until } = batch;
      const npis = unknown.map(({ npi }) => npi);
      // Another batch may have asked about them, or an attempt of this one that died.
      const due = new Set(await listRegistryDue(db, npis));
      return await withHeartbeat(Context.current(), async (signal, now) => {
        const time = { signal, now, until, turnBy: now() + IDENTIFIED_MS };
        const lookups: Planned[] = [];
        const later: Unknown[] = [];
        let notYet: ApplicationFailure | null = null;
        const asking = unknown.map(async (who) => {
          const trouble = due.has(who.npi) ? await askRegistry(deps, who, time) : null;
          if (trouble?.again) {
            later.push(who);
            notYet ??= retryLater(REGISTRY, trouble.why, trouble.afterMs);
          } else lookups.push(...(await planAll(deps, batchId, [who], trouble?.why)));
        });
        await Promise.all(asking);
        if (notYet && later.length === unknown.length) throw notYet;
        return { lookups, later };
      });
    },

    /** Settles a request whose vendors have answered: charges for what the directory now holds, or releases. */
    settleRequest: (ending: Ending): Promise<LookupResult> => endLookup(deps, ending, 'answered'),

    /** The compensation: gives the credits back and settles as `failed`, unless the request is final already. */
    refundCredits: (ending: Ending): Promise<LookupResult> => endLookup(deps, ending, 'failed'),
  };
}

/** Plans lookups. Requests that nobody is to be asked about are settled instead. */
async function planAll(
  deps: BatchDeps & LookupDeps,
  batchId: string,
  requests: readonly Unknown[],
  trouble?: string,
): Promise<Planned[]> {
  const planning = (await makePlans(deps, requests, trouble)).map(async ({ plan, ...request }) => {
    if (plan.kind === 'ask') return [{ ...request, plan }];
    await settleOne(deps, { ...request, batchId }, 'answered', plan.reason);
    return [];
  });
  return (await Promise.all(planning)).flat();
}

/** Settles with an answer that nobody else needs to be asked after, in the activity that brought it. */
export async function settleFound(
  deps: BatchDeps,
  request: RequestIds,
  answer: VendorAnswer,
): Promise<VendorAnswer> {
  if (answer.kind !== 'found' && answer.kind !== 'stored') return answer;
  return { ...answer, settled: await endLookup(deps, { ...request, reason: 'no_source' }, 'answered') };
}

async function endLookup(
  deps: BatchDeps,
  { requestId, batchId, reason }: Ending,
  how: LookupEnd,
): Promise<LookupResult> {
  const { log, control } = deps;
  const status = await settleOne(deps, { requestId, batchId }, how, reason);
  // A lookup that runs in the batch's own workflow has nobody to tell.
  if (Context.current().info.workflowExecution?.workflowId !== batchId) {
    // Not waited for: the lookup's end makes the batch look too, and the closer the two come the more often they share
    // one workflow task.
    void control.tellBatch(batchId, requestId).catch((error: unknown) => {
      log.warn({ request_id: requestId, batch_id: batchId, err: error }, 'batch not signaled');
    });
  }
  return { status, reason: status === 'completed' ? null : reason };
}

/**
 * Settles a request, and tells the batches that more of their requests have room by it. They are not waited for: what
 * gets lost is in the outbox.
 */
export async function settleOne(
  { db, log, control, rules }: BatchDeps,
  { requestId, batchId }: Pick<RequestIds, 'requestId' | 'batchId'>,
  how: LookupEnd,
  reason: string,
): Promise<FinalStatus> {
  const settling = () => settle(db, requestId, how, reason, rules);
  const { status, settledNow, seconds, wake } = await traced({ name: 'settle' }, settling, ({ status }) => ({
    attributes: { request_id: requestId, status },
  }));
  if (settledNow) logSettled(log, { requestId, batchId, seconds }, status, reason);
  for (const batch of wake) {
    void control
      .wakeBatch(batch)
      .then(() => markStarted(db, batch))
      .catch((err: unknown) => log.warn({ batch_id: batch.batchId, err }, 'batch not told, the sweep will'));
  }
  return status;
}

/** The one line of the log, and the one span, that say how a request ended. */
export function logSettled(
  log: Logger,
  { requestId, batchId, seconds }: Pick<RequestIds, 'requestId' | 'batchId'> & { readonly seconds: number },
  status: FinalStatus,
  reason: string,
): void {
  const attributes = { request_id: requestId, batch_id: batchId, status, reason };
  log.info(attributes, 'request settled');
  const spanId = spanIdOf(requestId);
  const isError = status === 'failed';
  tellSpan({ batchId, spanId, name: 'request', durationMs: seconds * 1000, attributes, isError });
}
