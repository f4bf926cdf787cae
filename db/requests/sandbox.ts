import { and, eq, isNull, sql } from 'drizzle-orm';
import { type Database, query } from '../client.ts';
import { requests } from '../schema.ts';

/**
 * Marks a sandbox request as `in-progress`, as `joinLookups` does with other requests. Safe to
 * repeat.
 * @returns the requested type and the test outcome; null if the request is already final
 */
export async function beginForSandbox(db: Database, requestId: string) {
  const startedAt = sql`coalesce(started_at, date_trunc('milliseconds', clock_timestamp()))`;
  return await query(db, async (tx) => {
    const [begun] = await tx
      .update(requests)
      .set({ status: 'in-progress', startedAt })
      .where(and(eq(requests.id, requestId), isNull(requests.settledAt)))
      .returning({
        requestedType: requests.requestedType,
        outcome: requests.testOutcome,
      });
    return begun ?? null;
  });
}
