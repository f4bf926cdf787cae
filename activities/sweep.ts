import { Context } from '@temporalio/activity';
import { forgetUnkept } from '../db/lookups/directory.ts';
import {
  listNotStarted,
  listOpen,
  listOverdue,
  markStarted,
  type OverdueRequest,
  takeUnfinished,
} from '../db/requests/outbox.ts';
import { settle } from '../db/requests/settle.ts';
import { type BatchStart, forgetExpiredKeys } from '../db/requests/submit.ts';
import { forgetHosts } from '../db/webhooks/hosts.ts';
import { forgetAttempts } from '../db/webhooks/log.ts';
import { takeDeliveries } from '../db/webhooks/resends.ts';
import type { SweepResult } from '../workflows/messages.ts';
import type { ActivityDeps } from './deps.ts';
import { withHeartbeat } from './heartbeat.ts';

/** How many of each kind one sweep takes; the rest waits for the next one. */
const AT_MOST = 200;
const EXPIRED_AT_MOST = 5000;

type SweepDeps = Pick<ActivityDeps, 'db' | 'log' | 'control' | 'rules'>;

/** The reconciler (DECISIONS.md, Requests and batches): PostgreSQL's facts against Temporal's workflows. */
export function createSweepActivities({ db, log, control, rules }: SweepDeps) {
  const start = async (batch: BatchStart) => {
    await control.startBatch(batch);
    await markStarted(db, batch.batchId);
  };

  const settleFailed = async (requestId: string, batchId: string, reason: string) => {
    const { status, settledNow } = await settle(db, requestId, 'failed', reason, rules);
    if (settledNow) log.info({ request_id: requestId, batch_id: batchId, status, reason }, 'request settled');
    return status;
  };

  /** The batch is told, because the lookup that should have told it may be stuck. */
  const settleOverdue = async ({ requestId, batchId, npi }: OverdueRequest) => {
    const status = await settleFailed(requestId, batchId, 'deadline');
    await control.signalSettled(batchId, { requestId, npi, status });
  };

  /** A batch whose workflow has closed although something is left: terminated, or lost with its cluster. */
  const restart = async (batch: BatchStart): Promise<boolean> => {
    if (await control.isRunning(batch.batchId)) return false;
    for (const requestId of await listOpen(db, batch.batchId)) {
      if (!(await control.isRunning(requestId))) await settleFailed(requestId, batch.batchId, 'lookup_lost');
    }
    await control.restartBatch(batch);
    return true;
  };

  /** A new round does not wait for the workflow of the one before, which may sleep for a day. */
  const redeliver = async ({ round, ...delivery }: Awaited<ReturnType<typeof takeDeliveries>>[number]) => {
    if (round !== 'new' && (await control.isRunning(delivery.deliveryId))) return false;
    if (round === 'first' && (await control.isRunning(delivery.batchId))) return false;
    await control.startDelivery(delivery);
    return true;
  };

  /** One that cannot be helped now must not keep the others from being helped. */
  const each = async <T>(
    items: readonly T[],
    what: string,
    work: (item: T) => Promise<unknown>,
  ): Promise<number> => {
    let done = 0;
    for (const item of items) {
      try {
        if ((await work(item)) !== false) done += 1;
      } catch (error) {
        log.warn({ err: error, what }, 'sweep: one item failed, the next sweep tries again');
      }
    }
    return done;
  };

  return {
    /** Starts what was never started, settles what is overdue, restarts what closed too early, forgets what is old. */
    async sweepOnce(): Promise<SweepResult> {
      const { startAfterMs, settleAfterMs, checkEveryMs } = rules.sweep;
      return await withHeartbeat(Context.current(), async () => {
        const started = await each(await listNotStarted(db, startAfterMs, AT_MOST), 'start', start);
        const settled = await each(await listOverdue(db, settleAfterMs, AT_MOST), 'settle', settleOverdue);
        const restarted = await each(await takeUnfinished(db, checkEveryMs, AT_MOST), 'restart', restart);
        const waiting = await takeDeliveries(db, startAfterMs, checkEveryMs, AT_MOST);
        const redelivered = await each(waiting, 'deliver', redeliver);
        await forgetExpiredKeys(db, EXPIRED_AT_MOST);
        await forgetAttempts(db, rules.webhookLogMs, EXPIRED_AT_MOST);
        await forgetHosts(db, rules.webhookLogMs);
        await forgetUnkept(db);
        const result = { started, settled, restarted, redelivered };
        if (started + settled + restarted > 0) log.warn(result, 'sweep repaired');
        return result;
      });
    },
  };
}
