import { sql } from 'drizzle-orm';
import { eventually } from './organization.ts';
import type { Stack } from './stack.ts';

// Looks at the turns of lookups that several requests share.

/** Waits until the activity of a request was told that another request has the turn. */
export async function waitsForTurn(
  { client }: Pick<Stack, 'client'>,
  requestId: string,
): Promise<void> {
  const workflow = client.workflow.getHandle(requestId);
  await eventually(async () => {
    // The workflow may not have started yet.
    const description = await workflow.describe().catch(() => null);
    const pending = description?.raw.pendingActivities ?? [];
    const failures = pending.map(({ lastFailure }) => {
      return lastFailure?.applicationFailureInfo?.type;
    });
    return failures.includes('Source.shared_lookup') ? true : null;
  });
}

/**
 * Ends the turn of a lookup, as if its time was over.
 * @returns the time for which the turn would have lasted, in milliseconds; null if it was free
 */
export async function endTurn(
  { db }: Pick<Stack, 'db'>,
  npi: string,
): Promise<number | null> {
  const [ended] = await db.drizzle.execute<{ ms: number }>(sql`
    with taken as (
      select id, turn_until from lookups where npi = ${npi} and turn_until is not null for update
    )
    update lookups l
       set turn_until = clock_timestamp()
      from taken
     where l.id = taken.id
    returning (extract(epoch from taken.turn_until - clock_timestamp()) * 1000)::float8 as ms`);
  return ended?.ms ?? null;
}
