import { Context } from '@temporalio/activity';
import { listRegistryDue } from '../db/providers/providers.ts';
import { gate } from '../db/providers/subject.ts';
import { listOpenRequests, readFacts } from '../db/requests/plan.ts';
import { type LookupEnd, settle, settleOverdue } from '../db/requests/settle.ts';
import type { BatchFacts, BatchInput, BatchPlan, LookupResult, VendorAnswer } from '../workflows/messages.ts';
import type { ActivityDeps } from './deps.ts';
import { hasNpiCheckDigit } from './person/npi.ts';

/** A request, and the batch whose workflow is told that it is final. */
export interface RequestIds {
  readonly requestId: string;
  readonly batchId: string;
  readonly npi: string;
}

type Ending = RequestIds & { readonly reason: string };

type BatchDeps = Pick<ActivityDeps, 'db' | 'log' | 'control' | 'rules'>;

/** The activities that read and settle what is owed. All are safe to repeat: settling is idempotent by request id. */
export function createBatchActivities(deps: BatchDeps & Pick<ActivityDeps, 'registry'>) {
  const { db, registry, rules } = deps;
  return {
    /**
     * What a batch has left to do. NPIs that cannot be an active individual, or that nobody may look up, end
     * `not_found` here, all in the same way: without a child and without a vendor.
     * @throws {Refusal} `batch_missing` for an unknown id
     */
    async planBatch({ batchId }: BatchInput): Promise<BatchPlan> {
      const { overdue, open, ...batch } = await listOpenRequests(db, batchId);
      // No lookup comes in time for these, and after an outage there are thousands.
      const { organizationId } = batch;
      if (overdue > 0) await settleOverdue(db, { organizationId, batchId, limit: overdue });
      const npis = open.map(({ npi }) => npi);
      const refusals = await gate(db, npis);
      const unknown = new Set(registry === null ? [] : await listRegistryDue(db, npis));
      const lookups: BatchPlan['lookups'][number][] = [];
      for (const request of open) {
        const { requestId, npi } = request;
        const refusal = hasNpiCheckDigit(npi) ? refusals.get(npi) : 'check_digit';
        if (refusal) await settle(db, requestId, 'answered', refusal, rules);
        else lookups.push({ ...request, unknown: unknown.has(npi) });
      }
      return { ...batch, lookups, ...(await readFacts(db, batchId)) };
    },

    /** How far a batch is. */
    readBatchFacts: ({ batchId }: BatchInput): Promise<BatchFacts> => readFacts(db, batchId),

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
  { db, log, control, rules }: BatchDeps,
  { requestId, batchId, npi, reason }: Ending,
  how: LookupEnd,
): Promise<LookupResult> {
  const { status, settledNow } = await settle(db, requestId, how, reason, rules);
  if (settledNow) log.info({ request_id: requestId, batch_id: batchId, status, reason }, 'request settled');
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
