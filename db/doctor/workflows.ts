import { type SQL, sql } from 'drizzle-orm';
import { type Database, read } from '../client.ts';
import { GRACE } from './check.ts';

// What the doctor compares with Temporal: what has something left to do, and what has not.

const OPEN = sql`b.completed_count < b.total`;

/**
 * Ids of workflows that have to be open (ARCHITECTURE.md, Invariants, S4), because they were to be started 60 s ago or
 * earlier: of batches with an open request or a delivery of the first round, and of deliveries that are being sent
 * again.
 * @param among only these; all where it is null
 * @throws {DatabaseError}
 */
export async function listUnfinished(db: Database, among: readonly string[] | null): Promise<string[]> {
  return await read(db, async (tx) =>
    ids(
      await tx.execute(sql`
        select u.id from (
          select b.id, b.created_at from batches b
           where b.started_at < clock_timestamp() - ${GRACE}
             and (${OPEN} or b.id in (
               select d.batch_id from webhook_deliveries d where d.state = 'pending' and d.resends = 0))
          union all
          -- Before the first attempt of its round a resend is due when it was asked for, or until when it was put off.
          select d.id, d.due_at from webhook_deliveries d
           where d.state = 'pending' and d.resends > 0
             and (d.step > 0 or d.due_at < clock_timestamp() - ${GRACE})
        ) u where ${within(sql`u.id`, among)}
         order by u.created_at`),
    ),
  );
}

/**
 * Of these batches those that were over 60 s ago: their workflows have to be closed. Not those with a resend: their
 * own workflow may sleep until what would have been the next attempt.
 * @throws {DatabaseError}
 */
export async function listOver(db: Database, among: readonly string[]): Promise<string[]> {
  return await read(db, async (tx) =>
    ids(
      await tx.execute(sql`
        select b.id from batches b
         where b.updated_at < clock_timestamp() - ${GRACE} and not ${OPEN} and ${within(sql`b.id`, among)}
           and not exists (
             select from webhook_deliveries d
              where d.batch_id = b.id and (d.state = 'pending' or d.resends > 0))
         order by b.created_at`),
    ),
  );
}

function within(id: SQL, among: readonly string[] | null) {
  return among === null
    ? sql`true`
    : sql`${id} in (select jsonb_array_elements_text(${JSON.stringify(among)}::jsonb))`;
}

function ids(rows: Iterable<Record<string, unknown>>): string[] {
  return [...rows].map((row) => String(row.id));
}
