import type { Logger } from 'pino';
import { type LookupEnd, settle } from '../db/requests/settle.ts';
import { spanIdOf, tellSpan, traced } from '../db/traces.ts';
import { findDueDelivery } from '../db/webhooks/deliveries.ts';
import type { LookupResult, VendorAnswer } from '../workflows/messages.ts';
import type { ActivityDeps } from './deps.ts';

/** A request, and the batch whose workflow is signaled when it is final. */
export interface RequestIds {
  readonly requestId: string;
  readonly batchId: string;
  readonly npi: string;
}

export type SettleDeps = Pick<ActivityDeps, 'db' | 'log' | 'control' | 'rules'>;

type Ending = RequestIds & { readonly reason: string };

/**
 * Returns the activities that end a lookup. All are safe to repeat, because settling is idempotent
 * by request id.
 */
export function createSettleActivities(deps: SettleDeps) {
  return {
    /**
     * Settles a request whose sources have all responded: charges for the addresses that the
     * directory now holds, or releases the credits.
     */
    settleRequest: (ending: Ending): Promise<LookupResult> =>
      settleAndSignal(deps, ending, 'answered'),

    /**
     * Compensates for a failed lookup: returns the credits and settles as `failed`, unless the
     * request is already final.
     */
    refundCredits: (ending: Ending): Promise<LookupResult> =>
      settleAndSignal(deps, ending, 'failed'),
  };
}

/** Settles the request if the result ends the lookup, inside the activity that produced it. */
export async function settleFound(
  deps: SettleDeps,
  request: RequestIds,
  answer: VendorAnswer,
): Promise<VendorAnswer> {
  if (answer.kind !== 'found' && answer.kind !== 'stored') return answer;
  const settled = await settleAndSignal(deps, { ...request, reason: 'no_source' }, 'answered');
  return { ...answer, settled };
}

/**
 * Settles a request and signals its batch. If the signal fails, the activity is retried: settling
 * again changes nothing, and the signal is sent again.
 * @returns the status and reason that are recorded, which may be those of an earlier settlement
 */
export async function settleAndSignal(
  deps: SettleDeps,
  { requestId, batchId, reason }: Ending,
  end: LookupEnd,
): Promise<LookupResult> {
  const { db, control, log, rules } = deps;
  const settling = () => settle(db, requestId, end, reason, rules);
  const settled = await traced({ name: 'settle' }, settling, ({ status }) => ({
    attributes: { request_id: requestId, status },
  }));
  if (settled.settledNow) logSettled(log, { requestId, batchId, ...settled });
  const deliveryId = await findDueDelivery(db, batchId, requestId);
  await control.signalBatch(batchId, { requestId, deliveryId });
  return { status: settled.status, reason: settled.reason };
}

/** Writes the one log line and the one trace span that record how a request ended. */
export function logSettled(
  log: Logger,
  settled: LookupResult &
    Pick<RequestIds, 'requestId' | 'batchId'> & {
      /** Time from acceptance to settlement. */
      readonly seconds: number;
    },
): void {
  const { requestId, batchId, status, reason, seconds } = settled;
  const attributes = {
    request_id: requestId,
    batch_id: batchId,
    status,
    reason: reason ?? undefined,
  };
  log.info(attributes, 'request settled');
  const spanId = spanIdOf(requestId);
  const isError = status === 'failed';
  tellSpan({ batchId, spanId, name: 'request', durationMs: seconds * 1000, attributes, isError });
}
