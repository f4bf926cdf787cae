import { setTimeout } from 'node:timers/promises';
import { DatabaseError } from '../db/errors.ts';
import { noteUsedCredits } from '../db/figures.ts';
import {
  type BatchStart,
  listOpen,
  listOverdueOwners,
  listToWake,
  markStarted,
  noteSweep,
  takeTurn,
  takeUnfinished,
} from '../db/requests/outbox.ts';
import { forgetOld } from '../db/requests/retention.ts';
import { giveRoomLeft, listWaitingOwners } from '../db/requests/room.ts';
import { settleOverdue } from '../db/requests/settle.ts';
import { listDeliveriesToLookAt, noteDeliveryLook, type WaitingDelivery } from '../db/webhooks/resends.ts';
import { type BatchDeps, logSettled, settleOne } from './batches.ts';

// The reconciler (DECISIONS.md, Requests and batches): PostgreSQL's facts against Temporal's workflows. A loop in every
// worker process, so that refunds need neither Temporal nor a Schedule.

/** How many of each kind are listed at once, and of what Temporal is asked about seen to side by side. */
const AT_MOST = 200;
const AT_ONCE = 10;
/** Overdue requests in one transaction, which keeps other writers of their organization waiting. */
const SETTLED_AT_ONCE = 500;
/** What a sweep gives Temporal, so that the next refunds are in time while it is slow or away. */
const TEMPORAL_MS = 10_000;

/**
 * Sweeps whenever it is this process's turn. Never ends on its own, whatever fails.
 * @param everyMs how often one of all processes sweeps
 * @returns once it was told to stop and the sweep that ran has ended
 */
export async function runSweeps(deps: BatchDeps, everyMs: number, stopped: AbortSignal): Promise<void> {
  while (!stopped.aborted) {
    let dueAt = Number.POSITIVE_INFINITY;
    try {
      const turn = await takeTurn(deps.db, everyMs, deps.control.namespace);
      if (turn) {
        dueAt = performance.now() + everyMs;
        await sweepOnce(deps, stopped, turn);
      }
    } catch (error) {
      deps.log.error({ err: error }, 'sweep failed, the next one tries again');
    }
    // When the next one is due, and more often: the turn of a process that died is taken soon, and no two clocks are the same.
    const waitMs = Math.max(0, Math.min(dueAt - performance.now(), everyMs / 4));
    await setTimeout(waitMs, null, { signal: stopped }).catch(() => {});
  }
}

/**
 * Settles what is overdue, which needs PostgreSQL alone; then starts what was never started, restarts what closed too
 * early, forgets what is old. Safe beside another sweep.
 * @returns how much it did
 */
export async function sweepOnce(deps: BatchDeps, stopped: AbortSignal, { isHome } = { isHome: true }) {
  const { db, log, control, rules } = deps;
  const { startAfterMs, checkEveryMs } = rules.sweep;

  /**
   * One that cannot be helped now must not keep the others from being helped. If `atMost` are taken at once, more are as
   * long as there are and nothing fails.
   */
  const each = async <T extends string | { readonly batchId: string }>(
    what: string,
    list: (atMost: number) => Promise<readonly T[]>,
    work: (item: T) => Promise<unknown>,
    isOver: () => boolean,
    atMost = Number.POSITIVE_INFINITY,
  ): Promise<number> => {
    let done = 0;
    let more = true;
    while (more && !isOver()) {
      const items = await list(atMost);
      more = items.length === atMost;
      const left = items.values();
      const help = async () => {
        for (const item of left) {
          if (isOver()) return;
          try {
            if ((await work(item)) !== false) done += 1;
          } catch (error) {
            if (error instanceof DatabaseError && error.isAway) throw error;
            more = false;
            const id = typeof item === 'string' ? item : item.batchId;
            log.warn({ err: error, what, id }, 'sweep: one item failed, the next sweep tries again');
          }
        }
      };
      await Promise.all(Array.from({ length: atMost === AT_MOST ? AT_ONCE : 1 }, help));
    }
    return done;
  };

  const overdue = new Set<string>();
  let settled = 0;
  const refund = async (organizationId: string) => {
    let round = SETTLED_AT_ONCE;
    while (round === SETTLED_AT_ONCE && !stopped.aborted) {
      const requests = await settleOverdue(db, { organizationId, limit: SETTLED_AT_ONCE });
      for (const request of requests) {
        overdue.add(request.batchId);
        logSettled(log, request, 'failed', 'deadline');
      }
      round = requests.length;
      settled += round;
    }
  };
  const isStopped = () => stopped.aborted;
  await each('settle', () => listOverdueOwners(db), refund, isStopped);
  const giveRoom = (id: string) => giveRoomLeft(db, id, rules.lookupsPerOrganization);
  await each('room', () => listWaitingOwners(db), giveRoom, isStopped);

  const endsAt = performance.now() + TEMPORAL_MS;
  // A Temporal where the API starts nothing knows nothing of what runs.
  const isOver = () => !isHome || stopped.aborted || performance.now() > endsAt;
  // Each batch is told once, because the lookups that should have told it may be stuck; first, because it is late.
  const untold = [...overdue];
  const tell = (batchId: string) => control.tellBatch(batchId);
  await each('signal', async (atMost) => untold.splice(0, atMost), tell, isOver, AT_MOST);
  const start = async (batch: BatchStart) => {
    await control.wakeBatch(batch);
    await markStarted(db, batch);
  };
  const waking = (atMost: number) => listToWake(db, startAfterMs, atMost);
  const started = await each('start', waking, start, isOver, AT_MOST);
  const unfinished = (atMost: number) => takeUnfinished(db, checkEveryMs, atMost);
  const restarted = await each('restart', unfinished, (batch) => restart(deps, batch), isOver, AT_MOST);
  const waiting = (atMost: number) => listDeliveriesToLookAt(db, startAfterMs, checkEveryMs, atMost);
  const send = async (delivery: WaitingDelivery) => {
    const isStarted = await redeliver(deps, delivery);
    // Only now: a look that failed is repeated by the next sweep.
    await noteDeliveryLook(db, delivery);
    return isStarted;
  };
  const redelivered = await each('deliver', waiting, send, isOver, AT_MOST);

  await noteUsedCredits(db);
  await forgetOld(db, rules.retention);
  await noteSweep(db);
  const result = { started, settled, restarted, redelivered };
  if (started + settled + restarted > 0) log.warn(result, 'sweep repaired');
  return result;
}

/** A batch whose workflow has closed although something is left: terminated, or lost with its cluster. */
async function restart(deps: BatchDeps, batch: BatchStart): Promise<boolean> {
  const { db, control } = deps;
  const { batchId } = batch;
  if (await control.isRunning(batchId)) return false;
  for (const requestId of await listOpen(db, batchId)) {
    if (await control.isRunning(requestId)) continue;
    await settleOne(deps, { requestId, batchId }, 'failed', 'lookup_lost');
  }
  await control.wakeBatch(batch);
  return true;
}

/** A new round does not wait for the workflow of the one before, which may sleep for a day. */
async function redeliver(
  { control }: BatchDeps,
  { round, resends: _resends, ...delivery }: WaitingDelivery,
): Promise<boolean> {
  if (round !== 'new' && (await control.isRunning(delivery.deliveryId))) return false;
  if (round === 'first' && (await control.isRunning(delivery.batchId))) return false;
  await control.startDelivery(delivery);
  return true;
}
