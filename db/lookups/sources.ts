import { type SQL, sql } from 'drizzle-orm';
import { type Database, only, run, span, type Transaction, transaction } from '../client.ts';

// Every call of a vendor, a verifier, or the registry is admitted here first. Breakers, pauses,
// rate limits, and budgets are kept in the database, so that they hold across workers.

/** At most `calls` in any `perMs` milliseconds. */
export interface Rate {
  readonly calls: number;
  readonly perMs: number;
}

export interface SourceLimits {
  readonly rates: readonly Rate[];
  /** Credits a day (UTC); null for no limit. */
  readonly dailyCredits: number | null;
}

/** A call that is to be admitted. */
export interface Call {
  readonly source: string;
  readonly limits: SourceLimits;
  /** In the source's credits. */
  readonly cost: number;
  /** The request that the call is made for; null on our own account. */
  readonly requestId: string | null;
  /** The time that the call may wait for a slot under the rate limits. A later slot is not kept. */
  readonly patienceMs: number;
  /**
   * The call is made only if one of these verifiers can be called. Empty if it needs no verifier.
   */
  readonly requiredVerifiers?: readonly RequiredVerifier[];
}

/** A verifier without which the response of a vendor would be of no use. */
export type RequiredVerifier = Pick<Call, 'source' | 'cost'> & Pick<SourceLimits, 'dailyCredits'>;

export type Admission = {
  /** The breaker's era: the outcome of the call is recorded with it. */
  readonly era: number;
  /** In milliseconds since the epoch. */
  readonly at: number;
} & (
  | {
      readonly kind: 'go';
      /** The time that the call waited for its slot. */
      readonly waitedMs: number;
    }
  | {
      readonly kind: 'wait';
      readonly why: 'paused' | 'rate_limit' | 'breaker_open' | 'verifier_unavailable';
      /** The time to wait before the next `admitCall`. */
      readonly afterMs: number;
    }
  /** Today's budget is spent. */
  | { readonly kind: 'spent' }
);

/** The outcome of a call, as far as it concerns the source's health. */
export type CallOutcome =
  | { readonly kind: 'answered' }
  | { readonly kind: 'rate_limit'; readonly afterMs: number | null }
  /** No usable response: a server error, a network error, or an undocumented response. */
  | { readonly kind: 'failed'; readonly why: string }
  /** A request failed again that has failed before. This says nothing new about the source. */
  | { readonly kind: 'failed_again'; readonly why: string }
  /**
   * The source will not serve us until an operator acts. `openMs` is the time until the breaker
   * admits the first trial call.
   */
  | { readonly kind: 'refused'; readonly why: string; readonly openMs?: number };

/** The change of the source's breaker that a call caused. */
export type BreakerChange = 'opened' | 'closed';

const FAILURES_TO_OPEN = 5;
/**
 * The time from the opening to the first trial call, and between trial calls, whether the earlier
 * one has ended or not. A call that hangs therefore delays no other trial. Together with the pauses
 * of waiting requests, a source that works again is called within 10 s.
 */
const TRIAL_EVERY_MS = 8000;
/**
 * The time to the first trial call after a refused key or an empty account. Neither is fixed within
 * seconds.
 */
const REFUSED_OPEN_MS = 300_000;
const DEFAULT_PAUSE_MS = 5000;

/**
 * Calls leave some milliseconds after their slots. Without this margin a window could hold one call
 * too many.
 */
const MARGIN = 1.03;

/**
 * Admits a call of a source, or returns how long to wait before the next try. An admitted call
 * takes everything it needs: its slot under the rate limits, its cost from the daily budget, and
 * the trial of an open breaker.
 * @param record a statement that records the row of `admission`. Both are committed together
 * @returns the admission, with the row that `record` returns, if any
 */
export async function admitCall<Row = unknown>(
  db: Database,
  { source, limits, cost, requestId, patienceMs, requiredVerifiers = [] }: Call,
  record = sql`select`,
): Promise<Row & Admission> {
  const paces = JSON.stringify(limits.rates.map(paceOf));
  const verifiers = JSON.stringify(requiredVerifiers);
  const at = epochMs(sql`a.at`);
  const againAt = epochMs(sql`a.again_at`);
  const rows = await run<Row & Admission>(db)`
    with admission as materialized (
      select *, coalesce(extract(epoch from waited) * 1000, 0)::integer as waited_ms
        from admit_call(
               ${source}, ${requestId}, ${paces}::jsonb, ${limits.dailyCredits}, ${cost},
               ${span(patienceMs)}, ${span(TRIAL_EVERY_MS)}, ${verifiers}::jsonb)
    ), record as (${record})
    select record.*,
           a.kind,
           a.why,
           a.era,
           a.waited_ms as "waitedMs",
           ${at} as at,
           ceil(${againAt} - ${at}) as "afterMs"
      from admission a left join record on true`;
  return only(rows);
}

/**
 * Returns an even pace without bursts, so that no window of the rate holds more calls than it
 * allows.
 */
function paceOf({ calls, perMs }: Rate) {
  return { name: `${calls}/${perMs}`, pace: `${(perMs * MARGIN) / calls} milliseconds` };
}

/**
 * Records how a call went: opens the breaker, closes it, or pauses the source.
 *
 * Each opening and each closing of the breaker begins an era, and only calls of the current era
 * count. A problem that hits many concurrent calls therefore opens the breaker once, and a late
 * result from an earlier era changes nothing. While the breaker is open, the calls of the era are
 * its trials. This is one statement, so that it cannot overwrite a concurrent change.
 * @param era the era in which the call was admitted
 * @returns the change that this call caused; if several calls fail together, one of them gets
 * `opened`
 */
export async function recordCall(
  tx: Transaction,
  source: string,
  era: number,
  outcome: CallOutcome,
): Promise<BreakerChange | null> {
  const change = changeBy(outcome, sql`era = ${era}`);
  if (change === null) return null;
  const [changed] = await tx.execute<{ era: number; state: 'open' | 'closed' }>(sql`
    update source_health set ${change} and source = ${source} returning era, state`);
  if (changed === undefined) return null;
  if (outcome.kind === 'rate_limit' || changed.era === era) return null;
  return changed.state === 'open' ? 'opened' : 'closed';
}

/** Returns the assignments and the condition of the update that an outcome causes, if any. */

function changeBy(outcome: CallOutcome, ofThisEra: SQL): SQL | null {
  switch (outcome.kind) {
    case 'answered':
      // Most calls succeed at a healthy source and need no write.
      return sql`
        era = era + (state = 'open')::integer,
        state = 'closed',
        failures = 0,
        open_until = null,
        last_error = null
        where ${ofThisEra} and (state = 'open' or failures > 0)`;
    case 'rate_limit': {
      const pause = span(outcome.afterMs ?? DEFAULT_PAUSE_MS);
      return sql`paused_until = greatest(paused_until, clock_timestamp() + ${pause}) where true`;
    }
    case 'failed': {
      // A failed trial changes nothing. The time of the next trial was set when this one was
      // admitted.
      const opens = sql`failures + 1 >= ${FAILURES_TO_OPEN}`;
      return sql`
        failures = failures + 1,
        last_error = ${outcome.why},
        state = case when ${opens} then 'open' else state end,
        era = era + (${opens})::integer,
        open_until = case when ${opens} then clock_timestamp() + ${span(TRIAL_EVERY_MS)} end
        where ${ofThisEra} and state = 'closed'`;
    }
    case 'failed_again':
      // A request that always fails must not close the source for all others.
      return null;
    case 'refused': {
      // A refused trial keeps the breaker open for longer.
      const open = span(outcome.openMs ?? REFUSED_OPEN_MS);
      return sql`
        failures = failures + 1,
        last_error = ${outcome.why},
        state = 'open',
        era = era + (state = 'closed')::integer,
        open_until = clock_timestamp() + ${open}
        where ${ofThisEra}`;
    }
    default:
      return outcome satisfies never;
  }
}

/** Records the outcome of a call that has no attempt row, and gives back its unspent credits. */
export async function recordOne(
  db: Database,
  source: string,
  era: number,
  outcome: CallOutcome,
  unspent?: Unspent,
): Promise<BreakerChange | null> {
  return await transaction(db, async (tx) => {
    const change = await recordCall(tx, source, era, outcome);
    if (unspent) await giveBack(tx, source, unspent);
    return change;
  });
}

/** The credits that were set aside for a call but not spent. */
interface Unspent {
  /** Negative if the call cost more. */
  readonly credits: number;
  /** The time they were set aside, in milliseconds since the epoch. */
  readonly askedAt: number;
  readonly requestId: string | null;
}

/**
 * Gives unspent credits back to the daily budget. Call it after `recordCall`: `admit_call` locks
 * health before spend, and the opposite order could deadlock.
 */
export async function giveBack(
  tx: Transaction,
  source: string,
  { credits, askedAt, requestId }: Unspent,
): Promise<void> {
  if (credits === 0) return;
  await tx.execute(sql`
    update source_spend
       set credits = greatest(0, credits - ${credits}::numeric)
     where source = ${source}
       and day = (to_timestamp(${askedAt / 1000}) at time zone 'UTC')::date
       and organization_id = coalesce(
         (select organization_id from requests where id = ${requestId}), '')`);
}

/**
 * The activity of a source since a given time, and its state now. Times are in milliseconds, and
 * credits are the source's own.
 */
export interface SourceStats extends Record<string, unknown> {
  readonly source: string;
  /** `other`: neither of the two, but called under limits, such as the NPI registry. */
  readonly role: 'vendor' | 'verifier' | 'other';
  /** Calls made. Skipped calls do not count. `open`: still waiting for the response. */
  readonly asked: number;
  readonly open: number;
  /** Calls in which a vendor named addresses, or a verifier judged an address valid. */
  readonly found: number;
  /** Calls of a vendor whose addresses were returned to a client. Null for other sources. */
  readonly returned: number | null;
  /** Calls in which a vendor had no result, or a verifier judged an address invalid. */
  readonly missed: number;
  readonly skipped: number;
  readonly credits: number;
  /** Durations of finished calls; null if there are no such calls. */
  readonly p50Ms: number | null;
  readonly p95Ms: number | null;
  /** The time those calls waited for a slot under the rate limits. */
  readonly p95WaitedMs: number | null;
  /** Requests that are waiting for a slot now. */
  readonly waiting: number;
  /** Failed calls, counted by state and reason, such as `retry: rate_limit`. */
  readonly errors: Readonly<Record<string, number>>;
  /** `trial`: open, and due for the call that may close it. */
  readonly breaker: 'closed' | 'open' | 'trial';
  readonly openUntil: string | null;
  /** The end of the pause that the source asked for, if that is still ahead. */
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
  return await run<SourceStats>(db)`
    with called as (
      select vendor as source,
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
           coalesce(case f.role when 'vendor' then f.credits else s.credits end, 0) as credits,
           round(f.p50)::float8 as "p50Ms",
           round(f.p95)::float8 as "p95Ms",
           f.p95_waited as "p95WaitedMs",
           coalesce(w.requests, 0) as waiting,
           coalesce(e.errors, '{}') as errors,
           case
             when h.state = 'open' and h.open_until <= clock_timestamp() then 'trial'
             else coalesce(h.state, 'closed')
           end as breaker,
           case when h.state = 'open' then ${openUntil} end as "openUntil",
           case when h.paused_until > clock_timestamp() then ${pausedUntil} end as "pausedUntil",
           h.last_error as "lastError",
           coalesce(s.today, 0) as "creditsToday"
      from stats f
      full join source_health h using (source)
      full join spent s using (source)
      left join errors e using (source)
      left join waiting w using (source)
     order by source`;
}

function isoTime(time: SQL): SQL {
  return sql`to_char(${time} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`;
}

export function epochMs(time: SQL): SQL {
  return sql`(extract(epoch from ${time}) * 1000)::float8`;
}
