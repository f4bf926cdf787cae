import { sql } from 'drizzle-orm';
import type { Sql } from 'postgres';
import { eventually } from './organization.ts';
import type { Stack } from './stack.ts';

// Holds requests in a step of their lookups, and looks at the turns of these lookups.

/** Returns true if the last attempt of a request's activity found that the turn is taken. */
export async function isWaitingForTurn(
  { client }: Pick<Stack, 'client'>,
  requestId: string,
): Promise<boolean> {
  const workflow = client.workflow.getHandle(requestId);
  // The workflow may not have started yet.
  const description = await workflow.describe().catch(() => null);
  const pending = description?.raw.pendingActivities ?? [];
  const failures = pending.map(({ lastFailure }) => {
    return lastFailure?.applicationFailureInfo?.type;
  });
  return failures.includes('Source.shared_lookup');
}

/** Waits until the activity of a request has found that the turn is taken. */
export async function waitsForTurn(
  stack: Pick<Stack, 'client'>,
  requestId: string,
): Promise<void> {
  await eventually(async () => (await isWaitingForTurn(stack, requestId)) || null);
}

/**
 * Ends the turn of a request, as if its time was over.
 * @returns the time for which the turn would have lasted, in milliseconds; null without a turn
 */
export async function endTurn(
  { db }: Pick<Stack, 'db'>,
  requestId: string,
): Promise<number | null> {
  const [ended] = await db.drizzle.execute<{ ms: number }>(sql`
    with taken as (
      select id, turn_until from lookups where turn_of = ${requestId} for update
    )
    update lookups l
       set turn_until = clock_timestamp()
      from taken
     where l.id = taken.id
    returning (extract(epoch from taken.turn_until - clock_timestamp()) * 1000)::float8 as ms`);
  return ended?.ms ?? null;
}

/** Locks rows of a table until `release` is called. */
export async function lockRows(
  admin: Sql,
  table: string,
  column: string,
  values: readonly string[],
) {
  const connection = await admin.reserve();
  await connection`begin`;
  const [locker] = await connection`
    select pg_backend_pid() as pid from ${connection(table)}
     where ${connection(column)} = any(${[...values]}) for update`;
  return {
    /** The connection that may change these rows. */
    sql: connection,
    /** Waits until a statement waits for these rows. */
    isInTheWay: () =>
      eventually(async () => {
        const waiting = await admin`
          select from pg_stat_activity where ${locker?.pid} = any(pg_blocking_pids(pid))`;
        return waiting.length > 0 ? true : null;
      }),
    async release() {
      await connection`commit`;
    },
  };
}
