import { and, asc, eq, isNotNull, isNull, sql } from 'drizzle-orm';
import { type Database, query, span } from '../client.ts';
import { batches, requests, sweeps } from '../schema.ts';
import type { SubmittedAs, WantedType } from '../words.ts';

// What the sweep asks. A batch with `wake_at` is in the outbox: its workflow is to be started, or told that more of its
// requests have room.

/** What the start of a batch workflow needs to know; nothing personal. */
export interface BatchStart {
  readonly batchId: string;
  readonly organizationId: string;
  readonly submittedAs: SubmittedAs;
  readonly wantedType: WantedType;
  readonly npis: readonly string[];
  /** Since when it is in the outbox; null if it is not. */
  readonly wakeAt: Date | null;
}

/**
 * Takes the turn to sweep if it is due: one process of all gets it, once per interval. One in another namespace than the
 * API's stands in where nobody else sweeps.
 * @returns whether it is in the API's namespace; null if it is not its turn
 */
export async function takeTurn(
  db: Database,
  everyMs: number,
  namespace: string,
): Promise<{ readonly isHome: boolean } | null> {
  const isHome = sql<boolean>`coalesce(${sweeps.namespace} = ${namespace}, true)`;
  const [taken] = await query(db, (tx) =>
    tx
      .insert(sweeps)
      .values({ dueAt: sql`clock_timestamp() + ${span(everyMs)}` })
      .onConflictDoUpdate({
        target: sweeps.one,
        set: { dueAt: sql`excluded.due_at` },
        // What lies further ahead than two intervals was written before the clock or the interval was set back.
        setWhere: sql`${sweeps.dueAt} not between clock_timestamp() - case when ${isHome} then 0 else 1 end * ${span(everyMs)}
          and clock_timestamp() + 2 * ${span(everyMs)}`,
      })
      .returning({ isHome }),
  );
  return taken ?? null;
}

/** Notes in which namespace the API starts workflows: nobody can say from another one whether they run. */
export async function noteHome(db: Database, namespace: string): Promise<void> {
  await query(db, (tx) =>
    tx
      .insert(sweeps)
      .values({ dueAt: sql`clock_timestamp()`, namespace })
      .onConflictDoUpdate({
        target: sweeps.one,
        set: { namespace },
        setWhere: sql`${sweeps.namespace} is distinct from ${namespace}`,
      }),
  );
}

/** Notes that a sweep came to its end. */
export async function noteSweep(db: Database): Promise<void> {
  await query(db, (tx) => tx.update(sweeps).set({ sweptAt: sql`clock_timestamp()` }));
}

/** Notes that the batch workflow runs, and takes the batch out of the outbox unless it came in again meanwhile. */
export async function markStarted(
  db: Database,
  { batchId, wakeAt }: Pick<BatchStart, 'batchId' | 'wakeAt'>,
): Promise<void> {
  await query(db, (tx) =>
    tx
      .update(batches)
      .set({ startedAt: sql`coalesce(${batches.startedAt}, clock_timestamp())`, wakeAt: null })
      .where(
        and(eq(batches.id, batchId), sql`${batches.wakeAt} = ${wakeAt?.toISOString() ?? null}::timestamptz`),
      ),
  );
}

/**
 * The outbox: batches that came in at least `olderThanMs` ago, the oldest first. Younger ones are still being seen to
 * by whoever put them there.
 */
export async function listToWake(db: Database, olderThanMs: number, limit: number): Promise<BatchStart[]> {
  return await query(db, (tx) =>
    tx
      .select(START)
      .from(batches)
      .where(sql`${batches.wakeAt} < ${ago(olderThanMs)}`)
      .orderBy(asc(batches.wakeAt))
      .limit(limit),
  );
}

/** Organizations with an open request past its deadline, the longest overdue first. */
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

/** The requests of a batch that are or may be looked up. */
export async function listOpen(db: Database, batchId: string): Promise<string[]> {
  const rows = await query(db, (tx) =>
    tx
      .select({ id: requests.id })
      .from(requests)
      .where(and(eq(requests.batchId, batchId), isNull(requests.settledAt), requests.hasRoom)),
  );
  return rows.map((row) => row.id);
}

/** For subqueries: drizzle writes a column of a statement's only table without the table, and `id` is then theirs. */
const BATCH_ID = sql`batches.id`;

export const START = {
  batchId: batches.id,
  wakeAt: batches.wakeAt,
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
