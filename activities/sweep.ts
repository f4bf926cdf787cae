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
  takeWorkflowTurn,
} from '../db/requests/outbox.ts';
import { forgetOld } from '../db/requests/retention.ts';
import { giveRoomLeft, listWaitingOwners } from '../db/requests/room.ts';
import { settleOverdue } from '../db/requests/settle.ts';
import { listDeliveriesToLookAt, noteDeliveryLook, type WaitingDelivery } from '../db/webhooks/resends.ts';
import { type BatchDeps, logSettled, settleOne } from './batches.ts';

// The reconciler (DECISIONS.md, Requests and batches): PostgreSQL's facts against Temporal's workflows. Two loops in every
// worker process: refunds need neither Temporal nor a Schedule, and never wait for a call to Temporal.

/** How many of each kind are listed at once, and how many calls to Temporal run side by side. */
const AT_MOST = 200;
const AT_ONCE = 10;
/** Overdue requests in one transaction, which keeps other writers of their organization waiting. */
const SETTLED_AT_ONCE = 500;
/** How long one turn calls Temporal. What is left is for the next turn, which another process may take. */
const TEMPORAL_MS = 10_000;

/**
 * Sweeps whenever it is this process's turn. Never ends on its own, whatever fails.
 * @param everyMs how often one of all processes sweeps
 * @returns once it was told to stop and the sweeps that ran have ended
 */
export async function runSweeps(deps: BatchDeps, everyMs: number, stopped: AbortSignal): Promise<void> {
  const { db, control } = deps;
  const unsignaled = new Set<string>();
  const refund = async ({ isHome }: { readonly isHome: boolean }) => {
    const { batchIds } = await settleOnce(deps, stopped);
    // A Temporal where the API starts nothing does not have these batches.
    if (!isHome) return;
    for (const batchId of batchIds) unsignaled.add(batchId);
  };
  const takeWorkflows = async () => {
    await signalBatches(deps, unsignaled, stopped);
    return await takeWorkflowTurn(db, everyMs, control.namespace);
  };
  const loop = { deps, everyMs, stopped };
  await Promise.all([
    runTurns(loop, () => takeTurn(db, everyMs, control.namespace), refund),
    runTurns(loop, takeWorkflows, () => tendWorkflows(deps, stopped)),
  ]);
}

interface Loop {
  readonly deps: BatchDeps;
  readonly everyMs: number;
  readonly stopped: AbortSignal;
}

async function runTurns<Turn>(
  { deps, everyMs, stopped }: Loop,
  take: () => Promise<Turn | null>,
  work: (turn: Turn) => Promise<unknown>,
): Promise<void> {
  while (!stopped.aborted) {
    let dueAt = Number.POSITIVE_INFINITY;
    try {
      const turn = await take();
      if (turn) {
        dueAt = performance.now() + everyMs;
        await work(turn);
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
 * Settles what is overdue, gives room to what waits, and forgets what is old. Needs only PostgreSQL. Safe beside another
 * sweep.
 * @returns how many requests it settled, and of which batches
 */
export async function settleOnce(deps: BatchDeps, stopped: AbortSignal) {
  const { db, log, rules } = deps;
  const batchIds = new Set<string>();
  let settled = 0;
  const refund = async (organizationId: string) => {
    let round = SETTLED_AT_ONCE;
    while (round === SETTLED_AT_ONCE && !stopped.aborted) {
      const requests = await settleOverdue(db, { organizationId, limit: SETTLED_AT_ONCE });
      for (const request of requests) {
        batchIds.add(request.batchId);
        logSettled(log, request, 'failed', 'deadline');
      }
      round = requests.length;
      settled += round;
    }
  };
  const isOver = () => stopped.aborted;
  await forEach(deps, 'settle', await listOverdueOwners(db), refund, isOver);
  const giveRoom = (id: string) => giveRoomLeft(db, id, rules.lookupsPerOrganization);
  await forEach(deps, 'room', await listWaitingOwners(db), giveRoom, isOver);
  await noteUsedCredits(db);
  await forgetOld(db, rules.retention);
  await noteSweep(db);
  if (settled > 0) log.warn({ settled }, 'sweep refunded');
  return { settled, batchIds };
}

/**
 * Signals each batch once, because the lookups that should have signaled it may be stuck.
 * @param batchIds is empty afterwards, unless time ran out
 */
export async function signalBatches(
  deps: BatchDeps,
  batchIds: Set<string>,
  stopped: AbortSignal,
): Promise<void> {
  const isOver = timeLimit(stopped);
  const signal = (batchId: string) => {
    batchIds.delete(batchId);
    return deps.control.tellBatch(batchId);
  };
  await forEach(deps, 'signal', [...batchIds], signal, isOver, AT_ONCE);
}

/**
 * Starts the workflows that were never started, and restarts what closed too early. Safe beside another sweep.
 * @returns how many of each
 */
export async function tendWorkflows(deps: BatchDeps, stopped: AbortSignal) {
  const { db, log, control, rules } = deps;
  const { startAfterMs, checkEveryMs } = rules.sweep;
  const isOver = timeLimit(stopped);
  /** Lists more as long as there are and nothing fails. */
  const each = async <T extends { readonly batchId: string }>(
    what: string,
    list: () => Promise<readonly T[]>,
    work: (item: T) => Promise<unknown>,
  ): Promise<number> => {
    let done = 0;
    let more = true;
    while (more && !isOver()) {
      const items = await list();
      const result = await forEach(deps, what, items, work, isOver, AT_ONCE);
      done += result.done;
      more = items.length === AT_MOST && result.failed === 0;
    }
    return done;
  };
  const start = async (batch: BatchStart) => {
    await control.wakeBatch(batch);
    await markStarted(db, batch);
  };
  const started = await each('start', () => listToWake(db, startAfterMs, AT_MOST), start);
  const unfinished = () => takeUnfinished(db, checkEveryMs, AT_MOST);
  const restarted = await each('restart', unfinished, (batch) => restart(deps, batch));
  const waiting = () => listDeliveriesToLookAt(db, startAfterMs, checkEveryMs, AT_MOST);
  const send = async (delivery: WaitingDelivery) => {
    const isStarted = await redeliver(deps, delivery);
    // Only now: a look that failed is repeated by the next sweep.
    await noteDeliveryLook(db, delivery);
    return isStarted;
  };
  const redelivered = await each('deliver', waiting, send);
  const result = { started, restarted, redelivered };
  if (started + restarted > 0) log.warn(result, 'sweep repaired');
  return result;
}

function timeLimit(stopped: AbortSignal): () => boolean {
  const endsAt = performance.now() + TEMPORAL_MS;
  return () => stopped.aborted || performance.now() > endsAt;
}

/** Works on each item. One that cannot be helped now must not keep the others from being helped. */
async function forEach<T extends string | { readonly batchId: string }>(
  { log }: BatchDeps,
  what: string,
  items: readonly T[],
  work: (item: T) => Promise<unknown>,
  isOver: () => boolean,
  atOnce = 1,
): Promise<{ readonly done: number; readonly failed: number }> {
  let done = 0;
  let failed = 0;
  const left = items.values();
  const help = async () => {
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
  await Promise.all(Array.from({ length: atOnce }, help));
  return { done, failed };
}

/**
 * Restarts a batch whose workflow is gone although requests are open. If Temporal still knows a lookup as closed, an
 * operator has ended it: its request is refunded. A lookup that Temporal does not know was never started or was lost with
 * Temporal's database: the new run of the batch starts it again.
 */
async function restart(deps: BatchDeps, batch: BatchStart): Promise<boolean> {
  const { db, control } = deps;
  const { batchId } = batch;
  const state = await control.stateOf(batchId);
  if (state === 'open') return false;
  for (const requestId of await listOpen(db, batchId)) {
    let lookup = await control.stateOf(requestId);
    // The lookup of a single request runs in the workflow of its batch.
    if (lookup === 'unknown' && batch.npis.length === 1) lookup = state;
    if (lookup === 'closed') await settleOne(deps, { requestId, batchId }, 'failed', 'lookup_lost');
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
