import { notInArray, type SQL, sql } from 'drizzle-orm';
import {
  type Database,
  isAhead,
  only,
  query,
  run,
  span,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { sourceHealth } from '../schema.ts';

// A source is a vendor, a verifier, or the NPI registry. Before each call, a worker asks
// `admitCall` whether the call is allowed now. Circuit breakers, pauses, rate limits, and daily
// budgets are kept in the database, so that they apply to all workers together.

/** A rate limit: at most `calls` calls in any period of `perMs` milliseconds. */
export interface Rate {
  readonly calls: number;
  readonly perMs: number;
  /** True if polls of a vendor's jobs do not count. By default, all calls count. */
  readonly exceptPolls?: boolean;
}

export interface SourceLimits {
  readonly rates: readonly Rate[];
  /** The maximum number of credits per day (UTC); null for no limit. */
  readonly dailyCredits: number | null;
}

/** A call that a worker wants to make. */
export interface Call {
  readonly source: string;
  readonly limits: SourceLimits;
  /** The cost of the call in the source's credits. */
  readonly cost: number;
  /** The request that the call is made for; null if no request waits for it. */
  readonly requestId: string | null;
  /**
   * How long the call may wait for a slot under the rate limits, in milliseconds. If the first free
   * slot is later than that, no slot is reserved.
   */
  readonly patienceMs: number;
  /**
   * The call is admitted only if at least one of these verifiers can be called. Empty if the call
   * needs no verifier.
   */
  readonly requiredVerifiers?: readonly RequiredVerifier[];
}

/**
 * A verifier that can check the addresses of a vendor. Without one, the vendor's response would be
 * useless.
 */
export type RequiredVerifier = Pick<Call, 'source' | 'cost'> &
  Pick<SourceLimits, 'dailyCredits'>;

export type Admission = {
  /**
   * The current era of the circuit breaker. Pass it to `recordCall` with the outcome of the call.
   */
  readonly era: number;
  /** The time of this decision, in milliseconds since the epoch. */
  readonly at: number;
} & (
  | {
      readonly kind: 'go';
      /** How long the call waited for its slot under the rate limits, in milliseconds. */
      readonly waitedMs: number;
    }
  | {
      readonly kind: 'wait';
      readonly why: 'paused' | 'rate_limit' | 'breaker_open' | 'verifier_unavailable';
      /** The time to wait before the next `admitCall`, in milliseconds. */
      readonly afterMs: number;
    }
  /** The call would exceed today's budget. */
  | { readonly kind: 'spent' }
);

/** The outcome of a call, as far as it concerns the health of the source. */
export type CallOutcome =
  | { readonly kind: 'responded' }
  | { readonly kind: 'rate_limit'; readonly afterMs: number | null }
  /** No usable response: a server error, a network error, or an undocumented response. */
  | { readonly kind: 'failed'; readonly why: string }
  /**
   * The call failed, as earlier calls for the same request did. The cause may be the request, so
   * this does not count as a failure of the source.
   */
  | { readonly kind: 'failed_again'; readonly why: string }
  /**
   * The source rejects all our calls until an operator acts, for example because the API key is
   * invalid. `openMs` is the time until the breaker admits the first trial call.
   */
  | { readonly kind: 'refused'; readonly why: string; readonly openMs?: number };

type SourceHealth = typeof sourceHealth.$inferSelect;

/** The change of the source's breaker that a call caused. */
export type BreakerChange = 'opened' | 'closed';

const FAILURES_TO_OPEN = 5;
/**
 * The time from the opening of the breaker to the first trial call, and between trial calls. The
 * next trial starts even if the earlier one has not ended, so a call that hangs does not delay it.
 * A source that works again is called within 10 s: the next trial is due after 8 s at most, and a
 * waiting request makes it soon after that.
 */
const TRIAL_EVERY_MS = 8000;
/**
 * The time to the first trial call after the source rejected our key or our account ran out of
 * credits. It is longer than after other failures, because an operator needs minutes to fix this.
 */
const REFUSED_OPEN_MS = 300_000;
const DEFAULT_PAUSE_MS = 5000;
/**
 * The distance between two calls is 3% longer than the rate limit requires. Calls start some
 * milliseconds later than their slots, so without this margin a period could contain one call too
 * many.
 */
const MARGIN = 1.03;
const MINUTE_MS = 60_000;

/**
 * Admits a call to a source, or returns how long to wait before the next try. For an admitted call,
 * the slot under the rate limits, the cost in the daily budget, and the trial of an open breaker
 * are reserved in the same statement.
 * @param record a statement that reads the decision from the table expression `admission` and
 * stores it, for example as a vendor attempt. It is committed together with the admission
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
 * Converts a rate limit to the time between two calls, and to the time by which calls may be ahead
 * of this pace. In a period of a minute or less, calls are evenly spaced. In a longer one, half of
 * the calls may be made at once, and the others are spaced over the whole period. Otherwise a limit
 * of 500 calls a day would allow only one call every three minutes. In both cases, the calls in any
 * period are at most as many as the limit allows.
 */
export function paceOf({ calls, perMs }: Rate) {
  const burst = perMs > MINUTE_MS ? Math.ceil(calls / 2) : 1;
  const paceMs = (perMs * MARGIN) / (calls - burst + 1);
  return {
    name: `${calls}/${perMs}`,
    pace: `${paceMs} milliseconds`,
    burst: `${paceMs * (burst - 1)} milliseconds`,
    burstMs: paceMs * (burst - 1),
  };
}

/**
 * Records the outcome of a call. This can open or close the circuit breaker, or pause the source.
 *
 * The era is a number that increases whenever the breaker opens or closes. The outcome of a call
 * that was admitted in an earlier era is ignored, except for a rate limit. If many concurrent calls
 * fail, the breaker therefore opens only once, and late results change nothing. While the breaker
 * is open, only trial calls are made. This is one statement, so that it cannot overwrite a
 * concurrent change.
 * @param era the era in which the call was admitted
 * @returns the change that this call caused, or null. If several concurrent calls fail, only one of
 * them returns `opened`
 */
export async function recordCall(
  tx: Transaction,
  source: string,
  era: number,
  outcome: CallOutcome,
): Promise<BreakerChange | null> {
  const change = changeBy(outcome, sql`era = ${era}`);
  if (change === null) return null;
  const [changed] = await tx.execute<Pick<SourceHealth, 'era' | 'state'>>(sql`
    update source_health set ${change} and source = ${source} returning era, state`);
  if (changed === undefined) return null;
  if (outcome.kind === 'rate_limit' || changed.era === era) return null;
  return changed.state === 'open' ? 'opened' : 'closed';
}

/**
 * Returns the assignments and the condition of the update for an outcome, or null if nothing
 * changes.
 */
function changeBy(outcome: CallOutcome, ofThisEra: SQL): SQL | null {
  switch (outcome.kind) {
    case 'responded':
      // If the source is healthy, no row matches. Most calls therefore write nothing.
      return sql`
        era = era + (state = 'open')::integer,
        state = 'closed',
        failures = 0,
        opened_at = null,
        open_until = null,
        last_error = null
        where ${ofThisEra} and (state = 'open' or failures > 0)`;
    case 'rate_limit': {
      const pause = span(outcome.afterMs ?? DEFAULT_PAUSE_MS);
      // If the clock was set back since the last pause, its end says nothing (closed_until).
      return sql`
        paused_at = clock_timestamp(),
        paused_until = greatest(
          case when ${isAhead(sql`paused_at`)} then null else paused_until end,
          clock_timestamp() + ${pause})
        where true`;
    }
    case 'failed': {
      // A failed trial call changes nothing. The time of the next trial was set when this one was
      // admitted.
      const opens = sql`failures + 1 >= ${FAILURES_TO_OPEN}`;
      return sql`
        failures = failures + 1,
        last_error = ${outcome.why},
        state = case when ${opens} then 'open' else state end,
        era = era + (${opens})::integer,
        opened_at = case when ${opens} then clock_timestamp() end,
        open_until = case when ${opens} then clock_timestamp() + ${span(TRIAL_EVERY_MS)} end
        where ${ofThisEra} and state = 'closed'`;
    }
    case 'failed_again':
      // A request that always fails must not open the breaker, because that would stop the calls of
      // all other requests.
      return null;
    case 'refused': {
      // If the source rejects a trial call in this way, the breaker stays open for longer.
      const open = span(outcome.openMs ?? REFUSED_OPEN_MS);
      return sql`
        failures = failures + 1,
        last_error = ${outcome.why},
        state = 'open',
        era = era + (state = 'closed')::integer,
        opened_at = clock_timestamp(),
        open_until = clock_timestamp() + ${open}
        where ${ofThisEra}`;
    }
    default:
      return outcome satisfies never;
  }
}

/** Forgets the health of all sources except these, because an operator has removed them. */
export async function forgetSources(
  db: Database,
  kept: readonly string[],
): Promise<void> {
  await query(db, (tx) =>
    tx.delete(sourceHealth).where(notInArray(sourceHealth.source, [...kept])),
  );
}

/**
 * Records the outcome of a call that has no row in vendor_attempts, such as a verifier's, and
 * returns its unspent credits to the daily budget.
 */
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

/** The credits that were reserved for a call but not spent. */
interface Unspent {
  /** Negative if the call cost more than was reserved. */
  readonly credits: number;
  /** The time when the credits were reserved, in milliseconds since the epoch. */
  readonly askedAt: number;
  readonly requestId: string | null;
}

/**
 * Returns unspent credits to the daily budget. Call it after `recordCall`. `admit_call` locks
 * source_health before source_spend, and the opposite order could deadlock.
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

export function epochMs(time: SQL): SQL {
  return sql`(extract(epoch from ${time}) * 1000)::float8`;
}
