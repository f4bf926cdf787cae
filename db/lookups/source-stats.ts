import { type SQL, sql } from 'drizzle-orm';
import { type Database, isAhead, run } from '../connection/client.ts';
import { paceOf } from './sources.ts';

// Statistics of the sources for operators: calls, results, costs, and circuit breakers.

/**
 * The state of a source's breaker, from its row `h` of source_health. If a trial call has been due
 * for 15 minutes, no request has needed the source. It is unknown whether the source works again,
 * so it is not reported as a problem.
 */
export const BREAKER = sql`case
  when h.state = 'open' and h.open_until <= clock_timestamp() - interval '15 minutes' then 'idle'
  when h.state = 'open' and (h.open_until <= clock_timestamp() or ${isAhead(sql`h.opened_at`)})
    then 'half_open'
  else coalesce(h.state, 'closed')
end`;

/**
 * The activity of a source since a given time, and its current state. Durations are in
 * milliseconds. Credits are the source's, not our customers'.
 */
export interface SourceStats extends Record<string, unknown> {
  readonly source: string;
  /** `other`: neither a vendor nor a verifier, such as the NPI registry. */
  readonly role: 'vendor' | 'verifier' | 'other';
  /** Calls that were made. Skipped calls are not included. */
  readonly asked: number;
  /** Calls that still wait for the response. */
  readonly open: number;
  /** Calls in which a vendor named addresses, or a verifier judged an address valid. */
  readonly found: number;
  /** Calls to a vendor that found an address which a client received. Null for other sources. */
  readonly returned: number | null;
  /** Calls in which a vendor had no result, or a verifier judged an address invalid. */
  readonly missed: number;
  readonly skipped: number;
  readonly credits: number;
  /** The cost of the credits by the configured price. Null if the source has no price. */
  readonly dollars: number | null;
  /** The median duration of finished calls; null without such calls. */
  readonly p50Ms: number | null;
  /** The 95th percentile of the duration. */
  readonly p95Ms: number | null;
  /** The 95th percentile of the time that calls waited for a slot under the rate limits. */
  readonly p95WaitedMs: number | null;
  /** Requests that are waiting for a slot now. */
  readonly waiting: number;
  /** The time of the next free slot under the rate limits; null if a call can be made now. */
  readonly nextSlotAt: string | null;
  /** The number of failed calls by state and reason, such as `retry: rate_limit`. */
  readonly errors: Readonly<Record<string, number>>;
  /**
   * `half_open`: the next call is admitted as a trial that may close the breaker. `idle`: no request
   * has needed this trial for 15 minutes.
   */
  readonly breaker: 'closed' | 'half_open' | 'idle' | 'open';
  readonly openUntil: string | null;
  /** The end of the pause that the source asked for; null if it has passed. */
  readonly pausedUntil: string | null;
  readonly lastError: string | null;
  /** Credits spent today (UTC). */
  readonly creditsToday: number;
}

/**
 * Returns the stats of every source that was called since the given time or has a health state,
 * sorted by name.
 */
export async function readSourceStats(db: Database, since: Date): Promise<SourceStats[]> {
  const from = sql`${since.toISOString()}::timestamptz`;
  const openUntil = isoTime(sql`h.open_until`);
  const pausedUntil = isoTime(sql`h.paused_until`);
  const rows = await run<SourceStats & { rates: UsedRates }>(db)`
    with called as (
      select account_of(vendor) as source,
             'vendor' as role,
             state,
             returned,
             reason,
             credits,
             extract(epoch from ended_at - started_at) * 1000 as ms,
             waited_ms
        from vendor_attempts
       where started_at >= ${from}
      union all
      select source,
             'verifier',
             case verdict
               when 'valid' then 'found'
               when 'invalid' then 'miss'
               when 'unknown' then 'unknown'
               else 'judged'
             end,
             null,
             reason,
             0,
             duration_ms,
             waited_ms
        from email_checks
       where kind = 'verifier' and at >= ${from}
    ), stats as (
      select source,
             min(role) as role,
             count(*) filter (where state <> 'skip')::int as asked,
             count(*) filter (where state in ('submitting', 'pending'))::int as open,
             count(*) filter (where state = 'found')::int as found,
             (sum(returned::int) filter (where state <> 'skip'))::int as returned,
             count(*) filter (where state = 'miss')::int as missed,
             count(*) filter (where state = 'skip')::int as skipped,
             sum(credits)::float8 as credits,
             percentile_disc(0.5) within group (order by ms)
               filter (where state <> 'skip') as p50,
             percentile_disc(0.95) within group (order by ms)
               filter (where state <> 'skip') as p95,
             percentile_disc(0.95) within group (order by waited_ms)
               filter (where state <> 'skip') as p95_waited
        from called
       group by source
    ), errors as (
      select source, jsonb_object_agg(what, times) as errors
        from (
          select source, concat_ws(': ', state, reason) as what, count(*)::int as times
            from called
           where state in ('retry', 'fatal', 'blocked', 'lost', 'unknown')
           group by 1, 2
        ) e
       group by source
    ), waiting as (
      select source, count(*)::int as requests from source_slots group by source
    ), rates as (
      select source, jsonb_object_agg(limit_name, extract(epoch from next_at) * 1000) as rates
        from source_rates
       group by source
    ), spent as (
      select source,
             sum(credits)::float8 as credits,
             coalesce(
               sum(credits) filter (where day = (clock_timestamp() at time zone 'UTC')::date), 0
             )::float8 as today
        from source_spend
       where day >= (${from} at time zone 'UTC')::date
       group by source
    )
    select source,
           coalesce(f.role, 'other') as role,
           coalesce(f.asked, 0) as asked,
           coalesce(f.open, 0) as open,
           coalesce(f.found, 0) as found,
           f.returned,
           coalesce(f.missed, 0) as missed,
           coalesce(f.skipped, 0) as skipped,
           cost.credits,
           round((cost.credits * p.dollars)::numeric, 3)::float8 as dollars,
           round(f.p50)::float8 as "p50Ms",
           round(f.p95)::float8 as "p95Ms",
           f.p95_waited as "p95WaitedMs",
           coalesce(w.requests, 0) as waiting,
           coalesce(r.rates, '{}') as rates,
           coalesce(e.errors, '{}') as errors,
           ${BREAKER} as breaker,
           case when h.state = 'open' then ${openUntil} end as "openUntil",
           case when h.paused_until > clock_timestamp() and ${isAhead(sql`h.paused_at`)} is not true
                then ${pausedUntil} end as "pausedUntil",
           h.last_error as "lastError",
           coalesce(s.today, 0) as "creditsToday"
      from stats f
      full join source_health h using (source)
      full join spent s using (source)
      left join errors e using (source)
      left join waiting w using (source)
      left join rates r using (source)
      left join source_prices p using (source)
     cross join lateral (
       select coalesce(case f.role when 'vendor' then f.credits else s.credits end, 0) as credits
     ) cost
     order by source`;
  return rows.map(({ rates, ...row }) =>
    Object.assign(row, { nextSlotAt: nextSlotOf(rates) }),
  );
}

/** The times of the next evenly spaced calls, in milliseconds since the epoch, by rate limit. */
type UsedRates = Readonly<Record<string, number>>;

function nextSlotOf(rates: UsedRates): string | null {
  const slots = Object.entries(rates).map(([name, nextMs]) => {
    const [calls = 0, perMs = 0] = name.split('/').map(Number);
    return nextMs - paceOf({ calls, perMs }).burstMs;
  });
  const at = Math.max(...slots);
  return at > Date.now() ? new Date(at).toISOString() : null;
}

function isoTime(time: SQL): SQL {
  return sql`to_char(${time} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`;
}
