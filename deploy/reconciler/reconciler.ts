import { setTimeout } from 'node:timers/promises';
import { WorkflowExecutionAlreadyStartedError } from '@temporalio/client';
import type { ActivityDeps } from '../../activities/deps.ts';
import { logLoss } from '../../activities/failures.ts';
import { logSettled, settleAndSignal } from '../../activities/settle.ts';
import { DatabaseError } from '../../db/connection/errors.ts';
import { noteUsedCredits } from '../../db/operations/stats.ts';
import {
  admitWaiting,
  type BatchStart,
  claimTurn,
  claimUnfinished,
  claimWorkflowTurn,
  listOpen,
  listOverdueOwners,
  listToStart,
  markStarted,
  noteSweep,
} from '../../db/requests/outbox.ts';
import { forgetOld } from '../../db/requests/retention.ts';
import { settleOverdue } from '../../db/requests/settle.ts';
import { claimUnsubmitted } from '../../db/uploads/parts.ts';
import {
  listDeliveriesToLookAt,
  noteDeliveryLook,
  type WaitingDelivery,
} from '../../db/webhooks/due.ts';

// The reconciler compares the requests, batches, and deliveries in PostgreSQL with the workflows in
// Temporal, and repairs differences (ARCHITECTURE.md, The reconciler). It is not a workflow. It
// runs in every worker process, but only one process at a time does its work, which we call that
// process's turn. Refunds have their own loop, so that they never wait for a call to Temporal.

export type ReconcilerDeps = Pick<ActivityDeps, 'db' | 'log' | 'control' | 'rules'>;

/** How often each process admits the batches that wait for their turn. */
const ADMIT_EVERY_MS = 500;
/** The number of items that are read and repaired together. */
const PAGE = 200;
/** The number of concurrent calls to Temporal. */
const CALL_CONCURRENCY = 10;
/**
 * The number of overdue requests that one transaction settles. While it runs, other transactions
 * cannot change the balance of the same organization.
 */
const SETTLE_PAGE = 500;
/**
 * The time that one turn may spend on calls to Temporal. The next turn, maybe of another process,
 * does the remaining work.
 */
const TEMPORAL_MS = 10_000;

/**
 * Does the reconciler's work whenever it is this process's turn. Continues after failures. Resolves
 * when `stopped` is aborted and the running turns have ended.
 * @param everyMs the interval between two turns, over all processes
 */
export async function runReconciler(
  deps: ReconcilerDeps,
  everyMs: number,
  stopped: AbortSignal,
): Promise<void> {
  const { db, control } = deps;
  const { namespace } = control;
  const books = {
    take: () => claimTurn(db, everyMs, namespace),
    work: () => keepBooks(deps, stopped),
  };
  const workflows = {
    take: () => claimWorkflowTurn(db, everyMs, namespace),
    work: () => tendWorkflows(deps, stopped),
  };
  // Its turn is a lock of `admitWaiting`.
  const admissions = {
    take: async () => true as const,
    work: () => startAdmitted(deps, stopped),
  };
  await Promise.all([
    runTurns(deps, everyMs, stopped, books),
    runTurns(deps, everyMs, stopped, workflows),
    runTurns(deps, ADMIT_EVERY_MS, stopped, admissions),
  ]);
}

interface Turn {
  /** Claims the turn. Returns null if it is not this process's turn. */
  take(): Promise<object | true | null>;
  work(): Promise<unknown>;
}

/** Takes turns until `stopped` is aborted. */
async function runTurns(
  { log }: ReconcilerDeps,
  everyMs: number,
  stopped: AbortSignal,
  turn: Turn,
): Promise<void> {
  while (!stopped.aborted) {
    // Another process may have the turn. If it dies, this one takes over soon.
    let waitUntil = performance.now() + everyMs / 4;
    try {
      if ((await turn.take()) !== null) {
        waitUntil = performance.now() + everyMs;
        await turn.work();
      }
    } catch (error) {
      log.error({ err: error }, 'sweep failed, the next one tries again');
    }
    const waitMs = Math.max(0, waitUntil - performance.now());
    await setTimeout(waitMs, null, { signal: stopped }).catch(() => {});
  }
}

/**
 * Refunds overdue requests, and deletes old data. Needs only PostgreSQL. It is safe if several
 * processes run this at the same time.
 * @returns the number of refunded requests
 */
export async function keepBooks(
  deps: ReconcilerDeps,
  stopped: AbortSignal,
): Promise<number> {
  const { db, log, rules } = deps;
  const refunded = await refundOverdue(deps, stopped);
  await noteUsedCredits(db);
  await forgetOld(db, rules.retention);
  await noteSweep(db);
  if (refunded > 0) log.warn({ refunded }, 'sweep refunded');
  return refunded;
}

/**
 * Starts the workflows of batches and deliveries that have no open workflow, because it was never
 * started or has closed too early. It is safe if several processes run this at the same time.
 * @returns how many batches were started for the first time, how many were started again, and how
 * many deliveries were started
 */
export async function tendWorkflows(deps: ReconcilerDeps, stopped: AbortSignal) {
  const endsAt = performance.now() + TEMPORAL_MS;
  const isOver = () => stopped.aborted || performance.now() > endsAt;
  const started = await startBatches(deps, isOver);
  const restarted = await restartBatches(deps, isOver);
  const redelivered = await startDeliveries(deps, isOver);
  await startUploads(deps, isOver);
  const result = { started, restarted, redelivered };
  if (started + restarted > 0) deps.log.warn(result, 'sweep repaired');
  return result;
}

/** Settles all overdue requests as `failed`, one organization after the other. */
async function refundOverdue(
  deps: ReconcilerDeps,
  stopped: AbortSignal,
): Promise<number> {
  let refunded = 0;
  for (const organizationId of await listOverdueOwners(deps.db)) {
    let settled = SETTLE_PAGE;
    while (settled === SETTLE_PAGE && !stopped.aborted) {
      settled = await refundPage(deps, organizationId);
      refunded += settled;
    }
  }
  return refunded;
}

/**
 * Settles some overdue requests of one organization in one transaction. If the transaction fails,
 * the next turn tries again.
 * @returns how many requests it settled
 */
async function refundPage(deps: ReconcilerDeps, organizationId: string): Promise<number> {
  try {
    const requests = await settleOverdue(deps.db, { organizationId, limit: SETTLE_PAGE });
    for (const request of requests) {
      logSettled(deps.log, { ...request, status: 'failed', reason: 'deadline' });
    }
    return requests.length;
  } catch (error) {
    logFailure(deps, 'refund', organizationId, error);
    return 0;
  }
}

/**
 * Admits the batches whose turn has come, and starts their workflows. If a start fails, the sweep
 * repeats it.
 */
export async function startAdmitted(
  deps: ReconcilerDeps,
  stopped: AbortSignal,
): Promise<number> {
  const { db, control } = deps;
  return await forEachPage(deps, () => stopped.aborted, {
    what: 'start',
    list: () => admitWaiting(db, control.namespace, PAGE),
    idOf: ({ batchId }) => batchId,
    work: (batch) => start(deps, batch),
  });
}

/** Starts the workflows of admitted batches whose workflow was never started. */
async function startBatches(
  deps: ReconcilerDeps,
  isOver: () => boolean,
): Promise<number> {
  const { db, rules } = deps;
  return await forEachPage(deps, isOver, {
    what: 'start',
    list: () => listToStart(db, rules.sweep.startAfterMs, PAGE),
    idOf: ({ batchId }) => batchId,
    work: (batch) => start(deps, batch),
  });
}

async function start(deps: ReconcilerDeps, batch: BatchStart): Promise<true> {
  try {
    await deps.control.startBatch(batch, 'REJECT_DUPLICATE');
  } catch (error) {
    // The workflow was started and has closed, but PostgreSQL does not know that.
    if (!(error instanceof WorkflowExecutionAlreadyStartedError)) throw error;
    await restart(deps, batch);
  }
  await markStarted(deps.db, batch.batchId);
  return true;
}

/**
 * Starts the workflows of batches again that have open requests but no running workflow. Such a
 * workflow was terminated, or Temporal has lost its data.
 */
async function restartBatches(
  deps: ReconcilerDeps,
  isOver: () => boolean,
): Promise<number> {
  const { db, rules } = deps;
  return await forEachPage(deps, isOver, {
    what: 'restart',
    list: () => claimUnfinished(db, rules.sweep.checkEveryMs, PAGE),
    idOf: ({ batchId }) => batchId,
    work: (batch) => restart(deps, batch),
  });
}

/**
 * Starts one batch again, because Temporal or PostgreSQL has lost data. The new run looks up the
 * open requests again. If a lookup workflow was ended by an operator, its request is refunded
 * instead.
 */
async function restart(deps: ReconcilerDeps, batch: BatchStart): Promise<boolean> {
  const { db, control } = deps;
  const { batchId } = batch;
  if ((await control.stateOf(batchId)) === 'open') return false;
  const completed = new Set<string>();
  for (const { requestId, npi } of await listOpen(db, batchId)) {
    const state = await control.stateOf(requestId);
    if (state === 'completed') completed.add(requestId);
    if (state !== 'ended') continue;
    await settleAndSignal(
      deps,
      { requestId, batchId, npi, reason: 'lookup_lost' },
      'failed',
    );
  }
  if (completed.size > 0) await reportLostResults(deps, batch, completed);
  await control.startBatch(batch, 'ALLOW_DUPLICATE');
  return true;
}

/**
 * Reports the requests whose result PostgreSQL has lost. A customer may have seen this result.
 * @param completed requests whose lookup workflow has completed
 */
async function reportLostResults(
  { db, log }: ReconcilerDeps,
  { batchId, organizationId }: BatchStart,
  completed: ReadonlySet<string>,
): Promise<void> {
  // The requests are listed again, because some may have been settled in the meantime.
  for (const { requestId } of await listOpen(db, batchId)) {
    if (!completed.has(requestId)) continue;
    logLoss(log, {
      what: 'result',
      request_id: requestId,
      batch_id: batchId,
      organization_id: organizationId,
    });
  }
}

/** Starts the missing workflows of due deliveries. */
async function startDeliveries(
  deps: ReconcilerDeps,
  isOver: () => boolean,
): Promise<number> {
  const { db, rules } = deps;
  const { startAfterMs, checkEveryMs } = rules.sweep;
  return await forEachPage(deps, isOver, {
    what: 'deliver',
    list: () => listDeliveriesToLookAt(db, startAfterMs, checkEveryMs, PAGE),
    idOf: ({ deliveryId }) => deliveryId,
    async work(delivery) {
      const isStarted = await redeliver(deps, delivery);
      // The check of a delivery is recorded only if it succeeded. Otherwise the next turn repeats
      // it.
      await noteDeliveryLook(db, delivery);
      return isStarted;
    },
  });
}

/**
 * Starts the workflows of uploads that have parts to submit. A workflow that is still running is
 * not affected.
 */
async function startUploads(
  deps: ReconcilerDeps,
  isOver: () => boolean,
): Promise<number> {
  const { db, control, rules } = deps;
  return await forEachPage(deps, isOver, {
    what: 'upload',
    list: () => claimUnsubmitted(db, rules.sweep.checkEveryMs, PAGE),
    idOf: ({ uploadId }) => uploadId,
    async work(upload) {
      await control.startUpload(upload);
      return true;
    },
  });
}

/**
 * Starts the workflow of a delivery, unless a running workflow is already responsible for it. If
 * the delivery is `new`, a workflow is always started, because the previous one may wait for
 * up to a day.
 * @returns true if a workflow was started
 */
async function redeliver(
  { control }: ReconcilerDeps,
  waiting: WaitingDelivery,
): Promise<boolean> {
  const { round, deliveryId, batchId } = waiting;
  if (round !== 'new' && (await control.stateOf(deliveryId)) === 'open') {
    return false;
  }
  if (round === 'first' && (await control.stateOf(batchId)) === 'open') {
    return false;
  }
  await control.startDelivery(waiting);
  return true;
}

interface Repair<Item> {
  /** The kind of repair, for the log. */
  readonly what: string;
  /** Returns the next items, at most `PAGE` of them. */
  list(): Promise<readonly Item[]>;
  /** Returns the id of an item, for the log. */
  idOf(item: Item): string;
  /** Repairs one item. Returns false if nothing had to be done. */
  work(item: Item): Promise<boolean>;
}

/**
 * Repairs one page of items after the other. Stops after a page that is not full or that has a
 * failed item.
 * @returns the number of repaired items
 */
async function forEachPage<Item>(
  deps: ReconcilerDeps,
  isOver: () => boolean,
  repair: Repair<Item>,
): Promise<number> {
  let done = 0;
  let hasMore = true;
  while (hasMore && !isOver()) {
    const items = await repair.list();
    const result = await forEachItem(deps, isOver, repair, items);
    done += result.done;
    hasMore = items.length === PAGE && result.failed === 0;
  }
  return done;
}

/**
 * Repairs the items of a page, `CALL_CONCURRENCY` at a time. If one item fails, the others are
 * still repaired.
 */
async function forEachItem<Item>(
  deps: ReconcilerDeps,
  isOver: () => boolean,
  repair: Repair<Item>,
  items: readonly Item[],
): Promise<{ readonly done: number; readonly failed: number }> {
  const result = { done: 0, failed: 0 };
  // All concurrent loops read from the same iterator, so the first loop that is free gets the next
  // item.
  const left = items.values();
  const runLane = async () => {
    for (const item of left) {
      if (isOver()) return;
      try {
        if (await repair.work(item)) result.done += 1;
      } catch (error) {
        logFailure(deps, repair.what, repair.idOf(item), error);
        result.failed += 1;
      }
    }
  };
  await Promise.all(Array.from({ length: CALL_CONCURRENCY }, runLane));
  return result;
}

/**
 * Logs that one item failed.
 * @throws {DatabaseError} the given error, if PostgreSQL is unavailable, because all other items
 * would fail too
 */
function logFailure(
  { log }: ReconcilerDeps,
  what: string,
  id: string,
  error: unknown,
): void {
  if (error instanceof DatabaseError && error.isAway) throw error;
  log.warn(
    { err: error, what, id },
    'sweep: one item failed, the next sweep tries again',
  );
}
