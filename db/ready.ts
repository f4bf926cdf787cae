import { sql } from 'drizzle-orm';
import { type Database, read } from './client.ts';
import { DatabaseError } from './errors.ts';
import journal from './migrations/meta/_journal.json' with { type: 'json' };

export type Readiness = 'ready' | 'migrations_missing' | 'database_away';

/** SQLSTATE of an unknown table or schema: nothing was ever migrated. */
const UNDEFINED: readonly string[] = ['42P01', '3F000'];

/**
 * Whether PostgreSQL answers and holds every migration this code was written for. A newer schema is fine: migrations
 * only go forward and stay compatible with the release before.
 */
export async function readiness(db: Database): Promise<Readiness> {
  try {
    const [row] = await read(db, (tx) =>
      tx.execute<{ applied: number }>(sql`select count(*)::int as applied from drizzle.__drizzle_migrations`),
    );
    return row && row.applied >= journal.entries.length ? 'ready' : 'migrations_missing';
  } catch (error) {
    return error instanceof DatabaseError && UNDEFINED.includes(error.code)
      ? 'migrations_missing'
      : 'database_away';
  }
}
