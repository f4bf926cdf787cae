import { and, eq, sql } from 'drizzle-orm';
import { type Database, query, run, span } from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { lookups, type vendorAttempts } from '../schema.ts';
import type { NpiRefusal, RequestedType } from '../words.ts';

// Requests that share a lookup take turns. Only the worker with the turn calls a vendor or checks
// addresses, and all others find its results in the database. Each request keeps its own workflow,
// deadline, and place at rate limits, so a request that is canceled, stuck, or paused delays the
// others by one turn at most.

/**
 * The turn for the check of an address by one verifier. It is the sum of the longest times: 16 s for
 * name servers, 5 s for a slot, 90 s for the verifier, and 12 s each for PostgreSQL to admit the
 * call, to count the mailboxes that the verifier misses, and to record its result. The turn is
 * renewed before the next verifier is called.
 */
export const CHECK_MS = 150_000;

/** A lookup's turn that a worker has taken for a request. */
export interface Turn {
  readonly lookupId: string;
  readonly requestId: string;
  /** The end of the turn. It also identifies the turn. Renewing the turn sets a later end. */
  until: Date;
}

type Attempt = Readonly<typeof vendorAttempts.$inferSelect>;

/** The facts that decide a step of a request, as `begin_step` in db/migrations returns it. */
export interface StepState {
  readonly isSettled: boolean;
  /** The reason why the NPI must not be looked up. */
  readonly refusal: NpiRefusal | null;
  /** True if an email that completes the request is known. */
  readonly isStored: boolean;
  /** Null if the request has joined no lookup. */
  readonly lookupId: string | null;
  readonly requestedType: RequestedType;
  /** The last attempt at the vendor. Null before the first one. */
  readonly n: Attempt['n'] | null;
  readonly state: Attempt['state'] | null;
  readonly reason: Attempt['reason'];
  /** The number of attempts whose response was lost. */
  readonly lost: number;
  /** The time until the next poll. Null or negative if the poll is due. */
  readonly pollMs: number | null;
  /**
   * The id of an earlier lookup of the same NPI and type that was closed before its job at this
   * vendor finished. The job may have been charged.
   */
  readonly orphanOf: string | null;
  /** The turn, if the step needs it and it was free. The caller must give it back. */
  readonly turn: Turn | null;
  /** The time until the current turn ends. Null if it was free, or if the step needs none. */
  readonly turnMs: number | null;
}

interface BegunStep extends Omit<StepState, 'turn'> {
  readonly until: Date | null;
}

/**
 * Begins a step of a request: reads what decides it, and takes the lookup's turn if the step needs
 * the turn.
 * @param step.vendor the vendor to call; null for a step that only checks addresses
 * @param step.turnMs the longest duration of the step
 * @throws {Refusal} `request_missing` for an unknown id
 */
export async function beginStep(
  db: Database,
  step: {
    readonly requestId: string;
    readonly vendor: string | null;
    readonly turnMs: number;
    readonly freshnessMs: number;
  },
): Promise<StepState> {
  const { requestId, vendor, turnMs, freshnessMs } = step;
  const [begun] = await run<BegunStep>(db)`
    select is_settled as "isSettled",
           refusal,
           is_stored as "isStored",
           lookup as "lookupId",
           wanted as "requestedType",
           n,
           state,
           reason,
           coalesce(lost, 0) as lost,
           (extract(epoch from poll_in) * 1000)::float8 as "pollMs",
           orphan_of as "orphanOf",
           until,
           (extract(epoch from free_in) * 1000)::float8 as "turnMs"
      from begin_step(${requestId}, ${vendor}, ${span(turnMs)}, ${span(freshnessMs)})
     where is_settled is not null`;
  if (begun === undefined) throw new Refusal('request_missing');
  const { until, ...state } = begun;
  if (until === null || state.lookupId === null) {
    return { ...state, turn: null };
  }
  return { ...state, turn: { lookupId: state.lookupId, requestId, until } };
}

/**
 * Renews the turn between two steps of a check.
 * @returns false if another request has taken the turn
 */
export async function renewTurn(db: Database, turn: Turn): Promise<boolean> {
  const until = sql`clock_timestamp() + ${span(CHECK_MS)}`;
  const [renewed] = await query(db, (tx) =>
    tx
      .update(lookups)
      .set({ turnUntil: until })
      .where(isHeld(turn))
      .returning({ until: lookups.turnUntil }),
  );
  if (!renewed?.until) return false;
  turn.until = renewed.until;
  return true;
}

/**
 * Gives back exactly this turn. Changes nothing if the turn is over and another request has taken
 * its own.
 */
export async function giveBackTurn(db: Database, turn: Turn): Promise<void> {
  await query(db, (tx) =>
    tx.update(lookups).set({ turnOf: null, turnUntil: null }).where(isHeld(turn)),
  );
}

function isHeld({ lookupId, requestId, until }: Turn) {
  return and(
    eq(lookups.id, lookupId),
    eq(lookups.turnOf, requestId),
    eq(lookups.turnUntil, until),
  );
}

/** Does the work of a turn, and gives the turn back at its end, even if the work fails. */
export async function inTurn<T>(
  db: Database,
  turn: Turn,
  work: () => Promise<T>,
): Promise<T> {
  try {
    return await work();
  } finally {
    await giveBackTurn(db, turn);
  }
}
