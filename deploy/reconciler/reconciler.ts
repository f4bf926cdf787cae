import { setTimeout } from 'node:timers/promises';
import type { ActivityDeps } from '../../activities/deps.ts';
import { logSettled, settleAndSignal } from '../../activities/settle.ts';
import { DatabaseError } from '../../db/errors.ts';
import { noteUsedCredits } from '../../db/figures.ts';
import {
  type BatchStart,
  listOpen,
  listOverdueOwners,
  listToStart,
  markStarted,
  noteSweep,
  takeTurn,
  takeUnfinished,
  takeWorkflowTurn,
} from '../../db/requests/outbox.ts';
import { forgetOld } from '../../db/requests/retention.ts';
import { settleOverdue } from '../../db/requests/settle.ts';
import {
  listDeliveriesToLookAt,
  noteDeliveryLook,
  type WaitingDelivery,
} from '../../db/webhooks/resends.ts';

// The reconciler (ARCHITECTURE.md, The reconciler): it compares PostgreSQL's facts with Temporal's
// workflows, outside Temporal, in every worker process. Refunds have their own loop, so that they
// never wait for a call to Temporal.

export type ReconcilerDeps = Pick<ActivityDeps, 'db' | 'log' | 'control' | 'rules'>;

/** Items per page, and concurrent calls to Temporal. */
const PAGE = 200;
const CALL_CONCURRENCY = 10;
/** Overdue requests per transaction. A transaction blocks other writers of its organization. */
const SETTLE_PAGE = 500;
/**
 * Time that one turn may spend on calls to Temporal. The rest is for the next turn, which another
 * process may take.
 */
const TEMPORAL_MS = 10_000;

/**
 * Reconciles whenever it is this process's turn, and goes on after failures.
 * @param everyMs interval between turns over all processes
 * @returns when `stopped` is aborted and running turns have ended
 */
export async function runReconciler(
  deps: ReconcilerDeps,
  everyMs: number,
  stopped: AbortSignal,
): Promise<void> {
  const { db, control } = deps;
  const { namespace } = control;
  await Promise.all([
    runTurns(deps, everyMs, stopped, async () => {
      if (await takeTurn(db, everyMs, namespace)) return () => keepBooks(deps, stopped);
      return null;
    }),
    runTurns(deps, everyMs, stopped, async () => {
      if (await takeWorkflowTurn(db, everyMs, namespace)) return () => tendWorkflows(deps, stopped);
      return null;
    }),
  ]);
}

/**
 * Takes turns until `stopped` is aborted.
 * @param take returns the work of a turn, or null if it is the turn of another process
 */
async function runTurns(
  { log }: ReconcilerDeps,
  everyMs: number,
  stopped: AbortSignal,
  take: () => Promise<(() => Promise<unknown>) | null>,
): Promise<void> {
  while (!stopped.aborted) {
    let dueAt = Number.POSITIVE_INFINITY;
    try {
      const work = await take();
      if (work) {
        dueAt = performance.now() + everyMs;
        await work();
      }
    } catch (error) {
      log.error({ err: error }, 'sweep failed, the next one tries again');
    }
    // Tries to take turns early, so that the turn of a dead process is taken soon, and because
    // clocks differ.
    const waitMs = Math.max(0, Math.min(dueAt - performance.now(), everyMs / 4));
    await setTimeout(waitMs, null, { signal: stopped }).catch(() => {});
  }
}

/**
 * Refunds overdue requests and deletes old data. Needs only PostgreSQL. Safe to run concurrently
 * with another turn.
 * @returns how many requests it refunded
 */
export async function keepBooks(deps: ReconcilerDeps, stopped: AbortSignal): Promise<number> {
  const { db, log, rules } = deps;
  const refunded = await refundOverdue(deps, stopped);
  await noteUsedCredits(db);
  await forgetOld(db, rules.retention);
  await noteSweep(db);
  if (refunded > 0) log.warn({ refunded }, 'sweep refunded');
  return refunded;
}

/**
 * Starts workflows that were never started, and starts those again that closed too early. Safe to
 * run concurrently with another turn.
 * @returns how many of each
 */
export async function tendWorkflows(deps: ReconcilerDeps, stopped: AbortSignal) {
  const endsAt = performance.now() + TEMPORAL_MS;
  const isOver = () => stopped.aborted || performance.now() > endsAt;
  const started = await startBatches(deps, isOver);
  const restarted = await restartBatches(deps, isOver);
  const redelivered = await startDeliveries(deps, isOver);
  const result = { started, restarted, redelivered };
  if (started + restarted > 0) deps.log.warn(result, 'sweep repaired');
  return result;
}

/** Settles overdue requests as `failed`, organization by organization. */
async function refundOverdue(deps: ReconcilerDeps, stopped: AbortSignal): Promise<number> {
  const { db, log } = deps;
  let refunded = 0;
  const refund = async (organizationId: string) => {
    for (let settled = SETTLE_PAGE; settled === SETTLE_PAGE && !stopped.aborted; ) {
      const requests = await settleOverdue(db, { organizationId, limit: SETTLE_PAGE });
      for (const request of requests) {
        logSettled(log, { ...request, status: 'failed', reason: 'deadline' });
      }
      settled = requests.length;
      refunded += settled;
    }
  };
  const owners = await listOverdueOwners(db);
  await forEach(deps, 'refund', owners, refund, () => stopped.aborted, 1);
  return refunded;
}

/** Starts the batches of the outbox. */
async function startBatches(deps: ReconcilerDeps, isOver: () => boolean): Promise<number> {
  const { db, control, rules } = deps;
  const list = () => listToStart(db, rules.sweep.startAfterMs, PAGE);
  return await forEachPage(deps, 'start', list, isOver, async (batch) => {
    await control.startBatch(batch);
    await markStarted(db, batch.batchId);
    return true;
  });
}

/**
 * Starts batches again that have open requests but no workflow: it was terminated, or lost with
 * Temporal's database.
 */
async function restartBatches(deps: ReconcilerDeps, isOver: () => boolean): Promise<number> {
  const { db, rules } = deps;
  const list = () => takeUnfinished(db, rules.sweep.checkEveryMs, PAGE);
  return await forEachPage(deps, 'restart', list, isOver, (batch) => restart(deps, batch));
}

/**
 * Starts one batch again. A lookup that Temporal still knows as closed was ended by an operator, so
 * its request is refunded. One that Temporal does not know was lost, and the new run of the batch
 * starts it again.
 */
async function restart(deps: ReconcilerDeps, batch: BatchStart): Promise<boolean> {
  const { db, control } = deps;
  const { batchId } = batch;
  if ((await control.stateOf(batchId)) === 'open') return false;
  for (const { requestId, npi } of await listOpen(db, batchId)) {
    if ((await control.stateOf(requestId)) !== 'closed') continue;
    await settleAndSignal(deps, { requestId, batchId, npi, reason: 'lookup_lost' }, 'failed');
  }
  await control.startBatch(batch);
  return true;
}

/** Starts workflows for deliveries without one. */
async function startDeliveries(deps: ReconcilerDeps, isOver: () => boolean): Promise<number> {
  const { db, rules } = deps;
  const { startAfterMs, checkEveryMs } = rules.sweep;
  const list = () => listDeliveriesToLookAt(db, startAfterMs, checkEveryMs, PAGE);
  return await forEachPage(deps, 'deliver', list, isOver, async (delivery) => {
    const isStarted = await redeliver(deps, delivery);
    // Comes after success, so that the next sweep repeats a check that failed.
    await noteDeliveryLook(db, delivery);
    return isStarted;
  });
}

/** A new round does not wait for the workflow of the round before, which may sleep for a day. */
async function redeliver({ control }: ReconcilerDeps, waiting: WaitingDelivery): Promise<boolean> {
  const { round, deliveryId, batchId } = waiting;
  if (round !== 'new' && (await control.stateOf(deliveryId)) === 'open') return false;
  if (round === 'first' && (await control.stateOf(batchId)) === 'open') return false;
  await control.startDelivery(waiting);
  return true;
}

/** Lists and processes page by page, as long as pages are full and nothing fails. */
async function forEachPage<Item extends { readonly batchId: string }>(
  deps: ReconcilerDeps,
  what: string,
  list: () => Promise<readonly Item[]>,
  isOver: () => boolean,
  work: (item: Item) => Promise<boolean>,
): Promise<number> {
  let done = 0;
  let more = true;
  while (more && !isOver()) {
    const items = await list();
    const result = await forEach(deps, what, items, work, isOver, CALL_CONCURRENCY);
    done += result.done;
    more = items.length === PAGE && result.failed === 0;
  }
  return done;
}

/** Processes each item, `concurrency` at a time. A failed item does not stop the others. */
async function forEach<Item extends string | { readonly batchId: string }>(
  { log }: ReconcilerDeps,
  what: string,
  items: readonly Item[],
  work: (item: Item) => Promise<unknown>,
  isOver: () => boolean,
  concurrency: number,
): Promise<{ readonly done: number; readonly failed: number }> {
  let done = 0;
  let failed = 0;
  const left = items.values();
  const runLane = async () => {
    for (const item of left) {
      if (isOver()) return;
      try {
        if ((await work(item)) !== false) done += 1;
      } catch (error) {
        if (error instanceof DatabaseError && error.isAway) throw error;
        failed += 1;
        const id = typeof item === 'string' ? item : item.batchId;
        log.warn({ err: error, what, id }, 'sweep: one item failed, the next sweep tries again');
      }
    }
  };
  await Promise.all(Array.from({ length: concurrency }, runLane));
  return { done, failed };
}
