import { type SQL, sql } from 'drizzle-orm';
import { type Database, run } from './client.ts';
import { toDatabaseError } from './errors.ts';

/** PostgreSQL ends a cursor whose rows are not used within this time. */
const CURSOR_IDLE_MS = 60_000;

/** Carries an error of `work` out of the transaction. Its `code` is not one of PostgreSQL's. */
class WorkFailed extends Error {}

/**
 * Reads a long result through a cursor in PostgreSQL, `size` rows at a time, and waits for `work`
 * before it fetches more. It keeps a connection until its end, so callers limit how many of these
 * reads run, and for how long. PostgreSQL ends one that waits longer than `CURSOR_IDLE_MS`.
 *
 * These are statements, not a cursor of postgres.js. If such a cursor fails while its rows are used, its
 * iterator ends without the error, and its callback fetches from a connection that may already serve
 * another call. FETCH has no parameters, so the driver does not prepare it, and reads the columns of
 * each cursor again.
 * @throws {DatabaseError} like `query`, and any error of `work`, which ends the reading
 */
export async function readByCursor<Row>(
  { drizzle: by, pool }: Database,
  statement: SQL,
  size: number,
  work: (rows: readonly Row[]) => Promise<void>,
): Promise<void> {
  const fetch = sql.raw(`fetch ${size} from result`);
  pool.asked += 1;
  try {
    await by.transaction(
      async (tx) => {
        const idle = String(CURSOR_IDLE_MS);
        await run(tx)`
          select set_config('idle_in_transaction_session_timeout', ${idle}, true)`;
        await run(tx)`declare result no scroll cursor for ${statement}`;
        for (let isOver = false; !isOver; ) {
          const rows = await run<Row>(tx)`${fetch}`;
          await work(rows).catch((cause) => {
            throw new WorkFailed('', { cause });
          });
          isOver = rows.length < size;
        }
      },
      { accessMode: 'read only' },
    );
  } catch (error) {
    throw error instanceof WorkFailed ? error.cause : toDatabaseError(error);
  } finally {
    pool.asked -= 1;
  }
}
