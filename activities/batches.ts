import { Context } from '@temporalio/activity';
import { listRegistryDue } from '../db/providers/providers.ts';
import { gate } from '../db/providers/subject.ts';
import { type BatchStart, markStarted } from '../db/requests/outbox.ts';
import { listOpenRequests, readFacts } from '../db/requests/plan.ts';
import { type LookupEnd, settle, settleOverdue } from '../db/requests/settle.ts';
import type { BatchPlan, LookupResult, PlanInput, VendorAnswer } from '../workflows/messages.ts';
import type { ActivityDeps } from './deps.ts';
import { type LookupDeps, makePlan } from './lookup.ts';
import { hasNpiCheckDigit } from './person/npi.ts';

/** A request, and the batch whose workflow is told that it is final. */
export interface RequestIds {
  readonly requestId: string;
  readonly batchId: string;
  readonly npi: string;
}

type Ending = RequestIds & { readonly reason: string };

/** So long a batch plans before it begins what it has planned, and so many lookups at once. */
const PLAN_MS = 1000;
const PLANS_AT_ONCE = 5;

type BatchDeps = Pick<ActivityDeps, 'db' | 'log' | 'control' | 'rules'>;

/** The activities that read and settle what is owed. All are safe to repeat: settling is idempotent by request id. */
export function createBatchActivities(deps: BatchDeps & LookupDeps) {
  const { db, registry, rules } = deps;
  return {
    /**
     * How far a batch is, and what it has left to look up that its workflow does not know of yet. NPIs that cannot be an
     * active individual, or that nobody may look up, end `not_found` here, all in the same way: without a child and
     * without a vendor.
     * @throws {Refusal} `batch_missing` for an unknown id
     */
    async planBatch({ batchId, known, all }: PlanInput): Promise<BatchPlan> {
      const { overdue, open, ...batch } = await listOpenRequests(db, batchId);
      // No lookup comes in time for these, and after an outage there are thousands.
      const { organizationId } = batch;
      if (overdue > 0) await settleOverdue(db, { organizationId, batchId, limit: overdue });
      const begun = new Set(known);
      const due = open.filter(({ requestId, hasRoom }) => (hasRoom || all) && !begun.has(requestId));
      const npis = due.map(({ npi }) => npi);
      const refusals = await gate(db, npis);
      const unknown = new Set(registry === null ? [] : await listRegistryDue(db, npis));
      const lookups: BatchPlan['lookups'][number][] = [];
      const until = performance.now() + PLAN_MS;
      while (due.length > 0 && performance.now() < until) {
        const planning = due.splice(0, PLANS_AT_ONCE).map(async ({ requestId, npi }) => {
          const refusal = hasNpiCheckDigit(npi) ? refusals.get(npi) : 'check_digit';
          const plan = refusal
            ? ({ kind: 'end', reason: refusal } as const)
            : unknown.has(npi)
              ? null
              : await makePlan(deps, { requestId, npi }, null);
          if (plan?.kind !== 'end') return [{ requestId, npi, plan }];
          wakeAll(deps, (await settle(db, requestId, 'answered', plan.reason, rules)).wake);
          return [];
        });
        lookups.push(...(await Promise.all(planning)).flat());
      }
      return { ...batch, lookups, more: due.length > 0, ...(await readFacts(db, batchId)) };
    },

    /** Settles a request whose vendors have answered: charges for what the directory now holds, or releases. */
    settleRequest: (ending: Ending): Promise<LookupResult> => endLookup(deps, ending, 'answered'),

    /** The compensation: gives the credits back and settles as `failed`, unless the request is final already. */
    refundCredits: (ending: Ending): Promise<LookupResult> => endLookup(deps, ending, 'failed'),
  };
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
  { requestId, batchId, npi, reason }: Ending,
  how: LookupEnd,
): Promise<LookupResult> {
  const { db, log, control, rules } = deps;
  const { status, settledNow, wake } = await settle(db, requestId, how, reason, rules);
  if (settledNow) log.info({ request_id: requestId, batch_id: batchId, status, reason }, 'request settled');
  wakeAll(deps, wake);
  // A lookup that runs in the batch's own workflow has nobody to tell.
  if (Context.current().info.workflowExecution?.workflowId !== batchId) {
    // Not waited for: the lookup's end makes the batch look too, and the closer the two come the more often they share
    // one workflow task.
    void control.tellBatch(batchId, { requestId, npi, status }).catch((error: unknown) => {
      log.warn({ request_id: requestId, batch_id: batchId, err: error }, 'batch not signaled');
    });
  }
  return { status, reason: status === 'completed' ? null : reason };
}

/** Tells batches that more of their requests have room. Not waited for: what gets lost is in the outbox. */
function wakeAll({ db, log, control }: BatchDeps, wake: readonly BatchStart[]): void {
  for (const batch of wake) {
    void control
      .wakeBatch(batch)
      .then(() => markStarted(db, batch))
      .catch((err: unknown) => log.warn({ batch_id: batch.batchId, err }, 'batch not told, the sweep will'));
  }
}
