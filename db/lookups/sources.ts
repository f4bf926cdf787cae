import { and, eq, gt, notInArray, or, type SQL, sql } from 'drizzle-orm';
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
 */
export async function admitCall(db: Database, call: Call): Promise<Admission> {
  const { source, requestId, cost, limits } = call;
  const { paces, verifiers, patience, trialEvery } = termsOf(call);
  const rows = await run<Admission>(db)`
    select kind,
           why,
           era,
           waited_ms as "waitedMs",
           at_ms as at,
           after_ms as "afterMs"
      from admit_call(
             ${source}, ${requestId}, ${paces}::jsonb, ${limits.dailyCredits}, ${cost},
             ${patience}, ${trialEvery}, ${verifiers}::jsonb)`;
  return only(rows);
}

/** Converts a call to the types that `admit_call` in db/migrations expects. */
export function termsOf(call: Call) {
  return {
    paces: JSON.stringify(call.limits.rates.map(paceOf)),
    verifiers: JSON.stringify(call.requiredVerifiers ?? []),
    patience: span(call.patienceMs),
    trialEvery: span(TRIAL_EVERY_MS),
  };
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
 * is open, only trial calls are made. Each update requires the era, so that it cannot overwrite a
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
  switch (outcome.kind) {
    case 'responded':
      return await recordResponse(tx, source, era);
    case 'failed':
      return await recordFailure(tx, source, era, outcome.why);
    case 'refused': {
      const openMs = outcome.openMs ?? REFUSED_OPEN_MS;
      return await recordRefusal(tx, source, era, outcome.why, openMs);
    }
    case 'rate_limit':
      await pause(tx, source, outcome.afterMs ?? DEFAULT_PAUSE_MS);
      return null;
    case 'failed_again':
      // A request that always fails must not open the breaker, because that would stop the calls of
      // all other requests.
      return null;
    default:
      return outcome satisfies never;
  }
}

/** Closes the breaker. If the source is healthy, no row matches, so most calls write nothing. */
async function recordResponse(
  tx: Transaction,
  source: string,
  era: number,
): Promise<BreakerChange | null> {
  const isUnhealthy = or(eq(sourceHealth.state, 'open'), gt(sourceHealth.failures, 0));
  const [changed] = await tx
    .update(sourceHealth)
    .set({
      era: sql`era + (state = 'open')::integer`,
      state: 'closed',
      failures: 0,
      openedAt: null,
      openUntil: null,
      lastError: null,
    })
    .where(and(isOfEra(source, era), isUnhealthy))
    .returning({ era: sourceHealth.era });
  return changed === undefined || changed.era === era ? null : 'closed';
}

/**
 * Counts a failure, and opens the breaker after five in a row. A failed trial call
 * changes nothing. The time of the next trial was set when this one was admitted.
 */
async function recordFailure(
  tx: Transaction,
  source: string,
  era: number,
  why: string,
): Promise<BreakerChange | null> {
  const [counted] = await tx
    .update(sourceHealth)
    .set({ failures: sql`failures + 1`, lastError: why })
    .where(and(isOfEra(source, era), eq(sourceHealth.state, 'closed')))
    .returning({ failures: sourceHealth.failures });
  if (counted === undefined || counted.failures < FAILURES_TO_OPEN) {
    return null;
  }
  // The row is locked since it was counted, so no other failure opens the breaker.
  await tx
    .update(sourceHealth)
    .set({
      state: 'open',
      era: era + 1,
      openedAt: sql`clock_timestamp()`,
      openUntil: sql`clock_timestamp() + ${span(TRIAL_EVERY_MS)}`,
    })
    .where(eq(sourceHealth.source, source));
  return 'opened';
}

/** Opens the breaker. If the source rejects a trial call, the breaker stays open for longer. */
async function recordRefusal(
  tx: Transaction,
  source: string,
  era: number,
  why: string,
  openMs: number,
): Promise<BreakerChange | null> {
  const [changed] = await tx
    .update(sourceHealth)
    .set({
      failures: sql`failures + 1`,
      lastError: why,
      state: 'open',
      era: sql`era + (state = 'closed')::integer`,
      openedAt: sql`clock_timestamp()`,
      openUntil: sql`clock_timestamp() + ${span(openMs)}`,
    })
    .where(isOfEra(source, era))
    .returning({ era: sourceHealth.era });
  return changed === undefined || changed.era === era ? null : 'opened';
}

/** Pauses a source after its rate limit. An earlier pause that ends later stays. */
async function pause(tx: Transaction, source: string, ms: number): Promise<void> {
  const { pausedAt, pausedUntil } = sourceHealth;
  await tx
    .update(sourceHealth)
    .set({
      pausedAt: sql`clock_timestamp()`,
      // If the clock was set back since the last pause, its end says nothing (closed_until).
      pausedUntil: sql`greatest(
        case when ${isAhead(pausedAt)} then null else ${pausedUntil} end,
        clock_timestamp() + ${span(ms)})`,
    })
    .where(eq(sourceHealth.source, source));
}

/** Selects the source's row if its breaker has not changed since a call was admitted. */
function isOfEra(source: string, era: number): SQL | undefined {
  return and(eq(sourceHealth.source, source), eq(sourceHealth.era, era));
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
