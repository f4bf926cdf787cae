import { sql } from 'drizzle-orm';
import { type Database, query } from './client.ts';
import { DatabaseError } from './errors.ts';
import journal from './migrations/meta/_journal.json' with { type: 'json' };

export type Readiness = 'ready' | 'migrations_missing' | 'database_away';

/** SQLSTATE of an unknown table or schema: nothing was ever migrated. */
const UNDEFINED: readonly string[] = ['42P01', '3F000'];

/** drizzle notes an applied migration by its moment. */
const CARRIED = journal.entries.map((entry) => entry.when);

/**
 * Whether PostgreSQL answers and holds every migration that this code carries. More than these are fine: migrations
 * only go forward and stay compatible with the release before, which runs on while a new one is rolled out.
 */
export async function readiness(db: Database): Promise<Readiness> {
  try {
    const [row] = await query(db, (tx) =>
      tx.execute<{ applied: number }>(
        sql`select count(distinct created_at)::int as applied from drizzle.__drizzle_migrations
             where created_at = any(${sql.param(CARRIED)}::bigint[])`,
      ),
    );
    return row?.applied === CARRIED.length ? 'ready' : 'migrations_missing';
  } catch (error) {
    return error instanceof DatabaseError && UNDEFINED.includes(error.code)
      ? 'migrations_missing'
      : 'database_away';
  }
}
