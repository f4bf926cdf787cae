import { sql } from 'drizzle-orm';
import { type Database, query } from '../client.ts';

/** What the sliding window says of one request. */
export interface RateVerdict {
  readonly admitted: boolean;
  /** Requests that would still be admitted now. */
  readonly remaining: number;
  /** Until the next place becomes free; 0 where one is. */
  readonly retryAfterMs: number;
  /** Until the whole window is empty again. */
  readonly resetMs: number;
}

/**
 * Counts one request of a key in its exact sliding window, or refuses it: one statement on one row, so that all API
 * processes share one window (ARCHITECTURE.md, Invariants, R1). The row holds the times of the admitted requests of the
 * last `windowMs`; an admission adds one, a refusal changes nothing.
 * @throws {DatabaseError}
 */
export async function admit(
  db: Database,
  apiKeyId: string,
  limit: number,
  windowMs: number,
): Promise<RateVerdict> {
  // The expressions of DO UPDATE run after the row is locked, so that clock_timestamp() never runs backwards in it.
  const [row] = await query(db, (tx) =>
    tx.execute<{ admitted: boolean; used: number; free_in_ms: number; empty_in_ms: number }>(sql`
      with window_row as (
        insert into rate_windows as w (api_key_id, hits, admitted)
        values (${apiKeyId}, array[clock_timestamp()], true)
        on conflict (api_key_id) do update set (hits, admitted) = (
          select case when count(hit) < ${limit}::int then array_append(coalesce(array_agg(hit order by hit) filter (where hit is not null), '{}'), now.at)
                      else array_agg(hit order by hit) end,
                 count(hit) < ${limit}::int
            from (select clock_timestamp() as at) now
            left join lateral (
              select hit from unnest(w.hits) hit where hit > now.at - make_interval(secs => ${windowMs / 1000})
            ) live on true
           group by now.at
        )
        returning hits, admitted
      )
      select admitted,
             cardinality(hits)::int as used,
             (extract(epoch from hits[greatest(1, cardinality(hits) - ${limit}::int + 1)] - clock_timestamp()) * 1000
               + ${windowMs})::float8 as free_in_ms,
             (extract(epoch from hits[cardinality(hits)] - clock_timestamp()) * 1000 + ${windowMs})::float8 as empty_in_ms
        from window_row`),
  );
  if (!row) throw new Error('no row');
  const remaining = Math.max(0, limit - row.used);
  return {
    admitted: row.admitted,
    remaining,
    retryAfterMs: remaining > 0 ? 0 : Math.max(0, row.free_in_ms),
    resetMs: Math.max(0, row.empty_in_ms),
  };
}
