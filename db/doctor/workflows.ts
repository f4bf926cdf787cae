import { sql } from 'drizzle-orm';
import { type Database, read } from '../client.ts';
import { GRACE } from './check.ts';

// What the doctor compares with Temporal: which batches have something left to do, and which have not.

const SOMETHING_LEFT = sql`(b.completed_count < b.total
  or b.id in (select d.batch_id from webhook_deliveries d where d.state = 'pending'))`;

/**
 * Batches handed to Temporal 60 s ago or earlier that have an open request or a pending delivery: their workflows
 * have to be open (hardening.md, S4).
 * @param among only these; all where it is null
 * @throws {DatabaseError}
 */
export async function listUnfinished(db: Database, among: readonly string[] | null): Promise<string[]> {
  return await read(db, async (tx) =>
    ids(
      await tx.execute(sql`
        select b.id from batches b
         where b.started_at < clock_timestamp() - ${GRACE} and ${SOMETHING_LEFT} and ${within(among)}
         order by b.created_at`),
    ),
  );
}

/**
 * Of these batches those that were over 60 s ago: their workflows have to be closed.
 * @throws {DatabaseError}
 */
export async function listOver(db: Database, among: readonly string[]): Promise<string[]> {
  return await read(db, async (tx) =>
    ids(
      await tx.execute(sql`
        select b.id from batches b
         where b.updated_at < clock_timestamp() - ${GRACE} and not ${SOMETHING_LEFT} and ${within(among)}
         order by b.created_at`),
    ),
  );
}

function within(among: readonly string[] | null) {
  return among === null
    ? sql`true`
    : sql`b.id in (select jsonb_array_elements_text(${JSON.stringify(among)}::jsonb))`;
}

function ids(rows: Iterable<Record<string, unknown>>): string[] {
  return [...rows].map((row) => String(row.id));
}
