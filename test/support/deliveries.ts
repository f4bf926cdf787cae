import type { Database } from '../../db/client.ts';
import { claimDelivery, recordAttempt } from '../../db/webhooks/attempts.ts';
import type { AttemptReason } from '../../db/words.ts';

/** A schedule whose waits are over when the next statement runs. */
const AT_ONCE = { webhookScheduleMs: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0] };

/** Logs one attempt that a receiver answered, as a worker would. */
export async function logAttempt(
  db: Database,
  deliveryId: string,
  statusCode: number,
  state: 'pending' | 'delivered' | 'failed',
  over: {
    readonly reason?: AttemptReason;
    readonly responseExcerpt?: Buffer;
    readonly durationMs?: number;
  } = {},
): Promise<void> {
  const claimed = await claimDelivery(db, deliveryId, AT_ONCE);
  if (claimed.kind !== 'attempt') throw new Error(`no attempt can be made: ${JSON.stringify(claimed)}`);
  const outcome = state === 'pending' ? { state, afterMs: 0 } : { state };
  const record = { startedAt: new Date(), durationMs: 5, statusCode, reason: null, responseExcerpt: null };
  await recordAttempt(db, claimed.claim, { ...record, ...over }, outcome, { kind: 'answered' });
}
