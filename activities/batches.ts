import { gate } from '../db/providers/subject.ts';
import { readBatch } from '../db/requests/plan.ts';
import { type LookupEnd, settle } from '../db/requests/settle.ts';
import type { BatchPlan, LookupResult, PlannedRequest } from '../workflows/messages.ts';
import type { ActivityDeps } from './deps.ts';
import { hasNpiCheckDigit } from './person/npi.ts';

interface Ending {
  readonly requestId: string;
  readonly batchId: string;
  readonly reason: string;
}

type BatchDeps = Pick<ActivityDeps, 'db' | 'log' | 'control' | 'rules'>;

/** The activities that read and settle what is owed. All are safe to repeat: settling is idempotent by request id. */
export function createBatchActivities(deps: BatchDeps) {
  const { db, rules } = deps;
  return {
    /**
     * What a batch has left to do. NPIs that cannot be an active individual, or that nobody may look up, end
     * `not_found` here, all in the same way: without a child and without a vendor.
     */
    async planBatch({ batchId }: { batchId: string }): Promise<BatchPlan> {
      const { requests, ...batch } = await readBatch(db, batchId);
      const open = requests.filter(({ status }) => status === null).map(({ npi }) => npi);
      const refusals = await gate(db, open);
      const planned: PlannedRequest[] = [];
      for (const request of requests) {
        const { requestId, npi, status } = request;
        const refusal = hasNpiCheckDigit(npi) ? refusals.get(npi) : 'check_digit';
        const refused = status === null && refusal !== undefined;
        const known = refused ? (await settle(db, requestId, 'answered', refusal, rules)).status : status;
        planned.push({ ...request, status: known });
      }
      return { ...batch, requests: planned };
    },

    /** Settles a request whose vendors have answered: charges for what the directory now holds, or releases. */
    settleRequest: (ending: Ending): Promise<LookupResult> => endLookup(deps, ending, 'answered'),

    /** The compensation: gives the credits back and settles as `failed`, unless the request is final already. */
    refundCredits: (ending: Ending): Promise<LookupResult> => endLookup(deps, ending, 'failed'),
  };
}

async function endLookup(
  { db, log, control, rules }: BatchDeps,
  { requestId, batchId, reason }: Ending,
  how: LookupEnd,
): Promise<LookupResult> {
  const { status, settledNow } = await settle(db, requestId, how, reason, rules);
  if (settledNow) log.info({ request_id: requestId, batch_id: batchId, status, reason }, 'request settled');
  // Not waited for: the child's result tells the batch the same, and the closer the two come the more often they
  // share one workflow task.
  void control.signalSettled(batchId, { requestId, status }).catch((error: unknown) => {
    log.warn({ request_id: requestId, batch_id: batchId, err: error }, 'batch not signalled');
  });
  return { status };
}
