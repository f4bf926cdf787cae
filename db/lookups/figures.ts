import { type SQL, sql } from 'drizzle-orm';
import { type Database, read } from '../client.ts';

/** What a vendor or verifier did for us since a moment, and how it is now. Times in milliseconds, money in its credits. */
export interface SourceFigures {
  readonly source: string;
  /** `other`: called under limits, but neither of the two, such as the NPI registry. */
  readonly role: 'vendor' | 'verifier' | 'other';
  /** Questions put to it; what was skipped was not asked. */
  readonly asked: number;
  /** Of them, those whose answer is still awaited. */
  readonly open: number;
  /** A vendor named addresses; a verifier judged an address valid. */
  readonly found: number;
  /** A vendor knew nobody; a verifier judged an address invalid. */
  readonly missed: number;
  readonly skipped: number;
  readonly credits: number;
  /** Of questions that are over, without those skipped; null where there is none. */
  readonly p50Ms: number | null;
  readonly p95Ms: number | null;
  /** Answers that were none, by what they were and why: `retry: rate_limit`. */
  readonly errors: Readonly<Record<string, number>>;
  /** `trial`: open, and due for the call that may close it. */
  readonly breaker: 'closed' | 'open' | 'trial';
  readonly openUntil: Date | null;
  /** By its own word, where that is not over. */
  readonly pausedUntil: Date | null;
  readonly lastError: string | null;
  /** On this day (UTC). */
  readonly creditsToday: number;
}

/**
 * The figures of every source that was called since then or has a state of its own, in the order of their names.
 * @throws {DatabaseError}
 */
export async function readSourceFigures(db: Database, since: Date): Promise<SourceFigures[]> {
  const from = sql`${since.toISOString()}::timestamptz`;
  const rows = await read(db, (tx) =>
    tx.execute<Row>(sql`
      with called as (
        select vendor as source, 'vendor' as role, state, reason, credits,
               extract(epoch from ended_at - started_at) * 1000 as ms
          from vendor_attempts where started_at >= ${from}
        union all
        select source, 'verifier',
               case verdict when 'valid' then 'found' when 'invalid' then 'miss' when 'unknown' then 'unknown'
                            else 'judged' end,
               reason, 0, duration_ms
          from email_checks where kind = 'verifier' and at >= ${from}
      ), figures as (
        select source, min(role) as role, count(*) filter (where state <> 'skip')::int as asked,
               count(*) filter (where state in ('submitting', 'pending'))::int as open,
               count(*) filter (where state = 'found')::int as found,
               count(*) filter (where state = 'miss')::int as missed,
               count(*) filter (where state = 'skip')::int as skipped,
               sum(credits)::float8 as credits,
               percentile_disc(0.5) within group (order by ms) filter (where state <> 'skip') as p50,
               percentile_disc(0.95) within group (order by ms) filter (where state <> 'skip') as p95
          from called group by source
      ), errors as (
        select source, jsonb_object_agg(what, times) as errors
          from (select source, concat_ws(': ', state, reason) as what, count(*)::int as times
                  from called where state in ('retry', 'fatal', 'blocked', 'lost', 'unknown') group by 1, 2) e
         group by source
      ), spent as (
        select source, sum(credits)::float8 as credits,
               coalesce(sum(credits) filter (where day = (clock_timestamp() at time zone 'UTC')::date), 0)::float8 as today
          from source_spend where day >= (${from} at time zone 'UTC')::date group by source
      )
      select source, coalesce(f.role, 'other') as role, coalesce(f.asked, 0) as asked, coalesce(f.open, 0) as open,
             coalesce(f.found, 0) as found, coalesce(f.missed, 0) as missed, coalesce(f.skipped, 0) as skipped,
             coalesce(case f.role when 'vendor' then f.credits else s.credits end, 0) as credits,
             round(f.p50)::float8 as p50, round(f.p95)::float8 as p95, coalesce(e.errors, '{}') as errors,
             case when h.state = 'open' and h.open_until <= clock_timestamp() then 'trial'
                  else coalesce(h.state, 'closed') end as breaker,
             case when h.state = 'open' then ${epochMs(sql`h.open_until`)} end as open_until,
             case when h.paused_until > clock_timestamp() then ${epochMs(sql`h.paused_until`)} end as paused_until,
             h.last_error, coalesce(s.today, 0) as today
        from figures f full join source_health h using (source) full join spent s using (source)
             left join errors e using (source)
       order by source`),
  );
  return rows.map((row) => ({
    ...{ source: row.source, role: row.role, asked: row.asked, open: row.open, found: row.found },
    ...{ missed: row.missed, skipped: row.skipped, credits: row.credits, p50Ms: row.p50, p95Ms: row.p95 },
    ...{ errors: row.errors, breaker: row.breaker, lastError: row.last_error, creditsToday: row.today },
    openUntil: row.open_until === null ? null : new Date(row.open_until),
    pausedUntil: row.paused_until === null ? null : new Date(row.paused_until),
  }));
}

function epochMs(time: SQL): SQL {
  return sql`(extract(epoch from ${time}) * 1000)::float8`;
}

interface Row extends Record<string, unknown> {
  readonly source: string;
  readonly role: SourceFigures['role'];
  readonly asked: number;
  readonly open: number;
  readonly found: number;
  readonly missed: number;
  readonly skipped: number;
  readonly credits: number;
  readonly p50: number | null;
  readonly p95: number | null;
  readonly errors: Readonly<Record<string, number>>;
  readonly breaker: SourceFigures['breaker'];
  readonly open_until: number | null;
  readonly paused_until: number | null;
  readonly last_error: string | null;
  readonly today: number;
}
