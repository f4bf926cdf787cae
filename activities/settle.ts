import type { Logger } from 'pino';
import { publishSpan, spanIdOf, traced } from '../db/connection/traces.ts';
import { type LookupEnd, settle } from '../db/requests/settle.ts';
import { findDueDelivery } from '../db/webhooks/deliveries.ts';
import type { LookupResult, VendorResult } from '../workflows/messages.ts';
import type { ActivityDeps } from './deps.ts';

/** A request, and its batch. The workflow of the batch is signaled when the request is final. */
export interface RequestIds {
  readonly requestId: string;
  readonly batchId: string;
  readonly npi: string;
}

export type SettleDeps = Pick<ActivityDeps, 'db' | 'log' | 'control' | 'rules'>;

type Ending = RequestIds & {
  /** The reason for a missing email. Null if an email was found. */
  readonly reason: string | null;
};

/**
 * Returns the activities that end a lookup. They are safe to repeat, because a request is settled
 * only once.
 */
export function createSettleActivities(deps: SettleDeps) {
  return {
    /**
     * Settles a request after all its sources have responded. If there is an address for it now, the
     * organization is charged. Otherwise, the credits are released.
     */
    settleRequest: (ending: Ending): Promise<LookupResult> =>
      settleAndSignal(deps, ending, 'finished'),

    /**
     * Compensates for a failed lookup: returns the credits and settles the request as `failed`.
     * Does nothing if the request is already final.
     */
    refundCredits: (ending: Ending): Promise<LookupResult> =>
      settleAndSignal(deps, ending, 'failed'),
  };
}

/**
 * Settles the request if a source or a check found an email. This happens inside the activity that
 * found the email, so no other activity is needed.
 */
export async function settleFound(
  deps: SettleDeps,
  request: RequestIds,
  result: VendorResult,
): Promise<VendorResult> {
  if (result.kind !== 'found' && result.kind !== 'stored') {
    return result;
  }
  const found = { ...request, reason: null };
  const settled = await settleAndSignal(deps, found, 'finished');
  return { ...result, settled };
}

/**
 * Settles a request and signals its batch. If the signal fails, the activity is retried. The retry
 * sends the signal again, and settling again changes nothing.
 * @returns the recorded status and reason. If the request was settled earlier, they are from that
 * time.
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
  if (settled.settledNow) {
    logSettled(log, { requestId, batchId, ...settled });
  }
  const deliveryId = await findDueDelivery(db, batchId, requestId);
  await control.signalBatch(batchId, { requestId, deliveryId });
  return { status: settled.status, reason: settled.reason };
}

/** Writes the log line and the trace span about the end of a request. */
export function logSettled(
  log: Logger,
  settled: LookupResult &
    Pick<RequestIds, 'requestId' | 'batchId'> & {
      /** Seconds between the acceptance of the request and its settlement. */
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
  publishSpan({
    batchId,
    spanId,
    name: 'request',
    durationMs: seconds * 1000,
    attributes,
    isError,
  });
}
