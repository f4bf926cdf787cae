import { and, asc, eq, isNotNull, isNull, sql } from 'drizzle-orm';
import { type Database, query } from '../client.ts';
import { batches, requests, sweeps } from '../schema.ts';
import type { BatchStart } from './submit.ts';

// What the sweep asks. A batch without `started_at` is the outbox entry of its own workflow.

/**
 * Takes the turn to sweep if it is due: one process of all gets it, once per interval.
 * @throws {DatabaseError}
 */
export async function takeTurn(db: Database, everyMs: number): Promise<boolean> {
  const [taken] = await query(db, (tx) =>
    tx
      .insert(sweeps)
      .values({ dueAt: sql`clock_timestamp() + ${span(everyMs)}` })
      .onConflictDoUpdate({
        target: sweeps.one,
        set: { dueAt: sql`excluded.due_at` },
        // What lies further ahead than two intervals was written before the clock or the interval was set back.
        setWhere: sql`${sweeps.dueAt} not between clock_timestamp() and clock_timestamp() + 2 * ${span(everyMs)}`,
      })
      .returning({ one: sweeps.one }),
  );
  return taken !== undefined;
}

/**
 * Notes that a sweep came to its end.
 * @throws {DatabaseError}
 */
export async function noteSweep(db: Database): Promise<void> {
  await query(db, (tx) => tx.update(sweeps).set({ sweptAt: sql`clock_timestamp()` }));
}

/**
 * Notes that Temporal has the batch workflow.
 * @throws {DatabaseError}
 */
export async function markStarted(db: Database, batchId: string): Promise<void> {
  await query(db, (tx) =>
    tx
      .update(batches)
      .set({ startedAt: sql`clock_timestamp()` })
      .where(and(eq(batches.id, batchId), isNull(batches.startedAt))),
  );
}

/**
 * Batches accepted at least `olderThanMs` ago whose workflow was never started, the oldest first. Younger ones are
 * still being started by the API that accepted them.
 * @throws {DatabaseError}
 */
export async function listNotStarted(
  db: Database,
  olderThanMs: number,
  limit: number,
): Promise<BatchStart[]> {
  return await query(db, (tx) =>
    tx
      .select(START)
      .from(batches)
      .where(and(isNull(batches.startedAt), sql`${batches.createdAt} < ${ago(olderThanMs)}`))
      .orderBy(asc(batches.createdAt))
      .limit(limit),
  );
}

/**
 * Organizations with an open request past its deadline, the longest overdue first.
 * @throws {DatabaseError}
 */
export async function listOverdueOwners(db: Database): Promise<string[]> {
  const rows = await query(db, (tx) =>
    tx
      .select({ id: requests.organizationId })
      .from(requests)
      .where(and(isNull(requests.settledAt), sql`${requests.deadlineAt} < now()`))
      .groupBy(requests.organizationId)
      .orderBy(sql`min(${requests.deadlineAt})`),
  );
  return rows.map((row) => row.id);
}

/**
 * Takes started batches with an open request that were not looked at for `everyMs`, and marks them as looked at, so that
 * sweeps share the work.
 * @throws {DatabaseError}
 */
export async function takeUnfinished(db: Database, everyMs: number, limit: number): Promise<BatchStart[]> {
  return await query(db, (tx) => {
    const due = tx
      .select({ id: batches.id })
      .from(batches)
      .where(
        and(
          isNotNull(batches.startedAt),
          sql`coalesce(${batches.checkedAt}, ${batches.startedAt}) < ${ago(everyMs)}`,
          eq(batches.status, 'in-progress'),
        ),
      )
      .orderBy(sql`coalesce(${batches.checkedAt}, ${batches.startedAt})`)
      .limit(limit)
      .for('update', { skipLocked: true });
    return tx
      .update(batches)
      .set({ checkedAt: sql`clock_timestamp()` })
      .where(sql`${batches.id} in (${due})`)
      .returning(START);
  });
}

/**
 * The open requests of a batch.
 * @throws {DatabaseError}
 */
export async function listOpen(db: Database, batchId: string): Promise<string[]> {
  const rows = await query(db, (tx) =>
    tx
      .select({ id: requests.id })
      .from(requests)
      .where(and(eq(requests.batchId, batchId), isNull(requests.settledAt))),
  );
  return rows.map((row) => row.id);
}

/** For subqueries: drizzle writes a column of a statement's only table without the table, and `id` is then theirs. */
const BATCH_ID = sql`batches.id`;

const START = {
  batchId: batches.id,
  organizationId: batches.organizationId,
  submittedAs: batches.submittedAs,
  wantedType: batches.wantedType,
  npis: sql<
    string[]
  >`(select array_agg(r.npi order by r.position) from requests r where r.batch_id = ${BATCH_ID})`,
};

function ago(ms: number) {
  return sql`now() - ${span(ms)}`;
}

function span(ms: number) {
  return sql`make_interval(secs => ${ms / 1000})`;
}
