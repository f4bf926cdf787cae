import { sql } from 'drizzle-orm';
import { type Database, isAhead, only, run } from '../connection/client.ts';
import { DatabaseError } from '../connection/errors.ts';
import { accountOf, type RequestedType } from '../words.ts';
import { joinLookup } from './lookups.ts';
import { type Admission, type Call, epochMs, termsOf } from './sources.ts';
import { beginStep, giveBackTurn, type StepState, type Turn } from './turns.ts';
import {
  type AttemptId,
  type AttemptKey,
  type ResponseState,
  recordLost,
} from './vendor-attempts.ts';

// Decides whether a vendor is called for a request. All requests of one lookup share its vendor
// calls. The request that has the lookup's turn calls the vendor, and the others read the recorded
// response.

/** The next step for a request and a vendor. */
export type NextStep =
  /** The request is final. */
  | { readonly kind: 'settled' }
  /** An email that completes the request is known, so no vendor is called. */
  | { readonly kind: 'stored' }
  /** The vendor is not called again, because its response is recorded or was lost. */
  | {
      readonly kind: 'over';
      readonly state: ResponseState | 'lost';
      readonly reason: string | null;
    }
  /** Another request has the turn, or no call is allowed yet. */
  | { readonly kind: 'wait'; readonly why: string; readonly afterMs: number }
  /** The addresses of the recorded response may have to be checked. */
  | {
      readonly kind: 'check';
      readonly turn: Turn;
      readonly requestedType: RequestedType;
    }
  /** The vendor may be called now. With a `jobRef`, poll that job. */
  | {
      readonly kind: 'ask';
      readonly turn: Turn;
      readonly key: AttemptKey;
      readonly jobRef: string | null;
      readonly requestedType: RequestedType;
    };

/** The call to a vendor that a request needs. */
export interface VendorCall
  extends Pick<Call, 'limits' | 'patienceMs' | 'requiredVerifiers'> {
  readonly requestId: string;
  readonly vendor: string;
  readonly cost: (requestedType: RequestedType) => number;
  /** True if a call may be repeated after its response was lost. */
  readonly mayRepeat: boolean;
  /** The maximum duration of a call. */
  readonly callMs: number;
  readonly freshnessMs: number;
}

/**
 * The maximum number of lost calls per lookup and vendor. A lost call may have been charged, and
 * repeating it costs again. Not repeating it may cost the client a result. One repetition is the
 * compromise.
 */
const MAX_LOST_CALLS = 2;
/** How long a request waits, at most, before it tries again to take the turn. */
const CHECK_AGAIN_MS = 1000;
/**
 * How much longer the turn lasts than the call. Before the call, PostgreSQL admits it, and afterwards
 * it records the response. Each takes up to 12 s if PostgreSQL is slow. If the turn ended during the
 * call, another request would call the vendor, too.
 */
const MARGIN_MS = 25_000;

/** The reason of a wait for the turn. */
export const SHARED = 'shared_lookup';

/** Returns the wait for the current turn, which may be an earlier one of the same request. */
export function waitForTurn({ turnMs }: StepState): Extract<NextStep, { kind: 'wait' }> {
  return {
    kind: 'wait',
    why: SHARED,
    afterMs: Math.min(turnMs ?? CHECK_AGAIN_MS, CHECK_AGAIN_MS),
  };
}

/**
 * Decides the next step and records it, so that the attempt exists before the vendor is called. The
 * steps `check` and `ask` have the lookup's turn, and the caller must give it back. All other steps
 * have given it back.
 * @throws {Refusal} `request_missing` for an unknown id
 */
export async function beginVendorStep(db: Database, call: VendorCall): Promise<NextStep> {
  const turnMs = call.callMs + MARGIN_MS;
  const state = await beginStep(db, { ...call, turnMs });
  if (state.isSettled) return { kind: 'settled' };
  if (state.lookupId === null) {
    // PostgreSQL has lost the lookup, for example in a restore.
    await joinLookup(db, call.requestId);
    return await beginVendorStep(db, call);
  }
  // The person was suppressed, or is known to be inactive, since this lookup began.
  if (state.refusal !== null) return over('blocked', state.refusal);
  if (state.isStored) return { kind: 'stored' };
  const { turn } = state;
  if (turn !== null) return await takeStep(db, call, state, turn);
  if (state.turnMs !== null) return waitForTurn(state);
  return over(state.state as ResponseState, state.reason);
}

function over(
  state: ResponseState | 'lost',
  reason: string | null,
): Extract<NextStep, { kind: 'over' }> {
  return { kind: 'over', state, reason };
}

/** Takes the step that has the turn, and gives the turn back if the step does not need it. */
async function takeStep(
  db: Database,
  call: VendorCall,
  state: StepState,
  turn: Turn,
): Promise<NextStep> {
  let step: NextStep | null = null;
  try {
    step = await decide(db, call, state, turn);
    return step;
  } catch (error) {
    // Another request has recorded since the turn began that this vendor is skipped.
    const isTaken = error instanceof DatabaseError && error.code === '23505';
    if (!isTaken) throw error;
    return waitForTurn(state);
  } finally {
    if (step?.kind !== 'ask' && step?.kind !== 'check') {
      await giveBackTurn(db, turn);
    }
  }
}

/**
 * Decides by the last attempt at the vendor. An attempt that is still `submitting` was lost, because
 * its worker would have the turn. The states that need no turn are not among these.
 */
async function decide(
  db: Database,
  call: VendorCall,
  { state, n, lost, pollMs, orphanOf, requestedType }: StepState,
  turn: Turn,
): Promise<NextStep> {
  const { lookupId } = turn;
  const last = { lookupId, vendor: call.vendor, n: n ?? 0 };
  switch (state) {
    case 'found':
      return { kind: 'check', turn, requestedType };
    case 'pending':
      return await pollOrWait(db, call, last, requestedType, turn, pollMs);
    case 'submitting':
      await recordLost(db, last, 'no response recorded');
      if (!mayRepeat(call, lost + 1)) {
        return over('lost', 'no response recorded');
      }
      break;
    case 'lost':
      if (!mayRepeat(call, lost)) {
        return over('lost', 'no response recorded');
      }
      break;
    default:
      if (orphanOf !== null) {
        const adopted = await adoptJob(db, call, lookupId, orphanOf);
        if (adopted) {
          const first = { ...last, n: 1 };
          return await pollOrWait(db, call, first, requestedType, turn, adopted.pollMs);
        }
      }
  }
  return await claimNewCall(db, call, last, requestedType, turn);
}

function mayRepeat(call: VendorCall, lost: number): boolean {
  return call.mayRepeat && lost < MAX_LOST_CALLS;
}

/**
 * Claims a new call. One statement admits it and records its attempt, so that no call is made
 * without a row, and no row exists without its reserved credits.
 */
async function claimNewCall(
  db: Database,
  call: VendorCall,
  last: AttemptId,
  requestedType: RequestedType,
  turn: Turn,
): Promise<NextStep> {
  const { requestId, vendor, limits } = call;
  const { lookupId } = last;
  const n = last.n + 1;
  const source = accountOf(vendor);
  const cost = call.cost(requestedType);
  const { paces, verifiers, patience, trialEvery } = termsOf({ ...call, source, cost });
  const rows = await run<Admission>(db)`
    with admission as materialized (
      select *
        from admit_call(
               ${source}, ${requestId}, ${paces}::jsonb, ${limits.dailyCredits}, ${cost},
               ${patience}, ${trialEvery}, ${verifiers}::jsonb)
    ), submitting as (
      insert into vendor_attempts (
        lookup_id, vendor, n, request_id, state, credits, started_at, waited_ms
      )
      select ${lookupId}, ${vendor}, ${n}, ${requestId}, 'submitting', ${cost}, at, waited_ms
        from admission
       where kind = 'go'
    ), skipped as (
      insert into vendor_attempts (
        lookup_id, vendor, n, request_id, state, reason, credits, started_at, ended_at
      )
      select ${lookupId}, ${vendor}, ${n}, ${requestId}, 'skip', 'daily_credits', 0, at, at
        from admission
       where kind = 'spent'
    )
    select kind,
           why,
           era,
           at_ms as at,
           after_ms as "afterMs"
      from admission`;
  const admission = only(rows);
  if (admission.kind === 'wait') return admission;
  // Our own budget stopped the call, so this does not count as a vendor's response without a
  // result.
  if (admission.kind === 'spent') return over('fatal', 'daily_credits');
  // Uses the exact time of the admission, because its day is the day whose budget pays for the
  // call. The time in the row is rounded and may be on the next day.
  const key = { lookupId, vendor, n, cost, askedAt: admission.at, era: admission.era };
  return { kind: 'ask', turn, key, jobRef: null, requestedType };
}

/** The admission of a poll. The rest is null if the poll is not admitted or its job has ended. */
type AdmittedPoll = Admission & {
  readonly jobRef: string | null;
  /** The cost of the call that started the job. */
  readonly cost: number;
  /** The time of that call, in milliseconds since the epoch. */
  readonly askedAt: number;
};

/**
 * Claims the next poll of a job. One statement admits and counts it. The poll costs nothing, and
 * needs no verifier, because the job is paid for.
 * @param pollMs the time until the poll is due; null or negative if it is
 */
async function pollOrWait(
  db: Database,
  call: VendorCall,
  attempt: AttemptId,
  requestedType: RequestedType,
  turn: Turn,
  pollMs: number | null,
): Promise<NextStep> {
  if (pollMs !== null && pollMs > 0)
    return { kind: 'wait', why: 'pending', afterMs: pollMs };
  const { requestId, vendor, patienceMs } = call;
  const { dailyCredits } = call.limits;
  const rates = call.limits.rates.filter(({ exceptPolls }) => !exceptPolls);
  const source = accountOf(vendor);
  const poll = {
    source,
    requestId,
    patienceMs,
    cost: 0,
    limits: { rates, dailyCredits },
  };
  const { paces, verifiers, patience, trialEvery } = termsOf(poll);
  const rows = await run<AdmittedPoll>(db)`
    with admission as materialized (
      select *
        from admit_call(
               ${source}, ${requestId}, ${paces}::jsonb, ${dailyCredits}, ${poll.cost},
               ${patience}, ${trialEvery}, ${verifiers}::jsonb)
    ), poll as (
      update vendor_attempts
         set polls = polls + 1
        from admission
       where kind = 'go'
         and lookup_id = ${attempt.lookupId}
         and vendor = ${attempt.vendor}
         and n = ${attempt.n}
         and state = 'pending'
      returning job_ref, credits, started_at
    )
    select kind,
           why,
           era,
           at_ms as at,
           after_ms as "afterMs",
           job_ref as "jobRef",
           credits::float8 as cost,
           ${epochMs(sql`started_at`)} as "askedAt"
      from admission left join poll on true`;
  const polled = only(rows);
  if (polled.kind === 'wait') {
    return { kind: 'wait', why: polled.why, afterMs: polled.afterMs };
  }
  const { era, jobRef, cost, askedAt } = polled;
  // A later lookup has taken the job over since we read the state.
  if (jobRef === null) {
    return { kind: 'wait', why: 'pending', afterMs: CHECK_AGAIN_MS };
  }
  const key = { ...attempt, cost, askedAt, era };
  return { kind: 'ask', turn, key, jobRef, requestedType };
}

/**
 * Takes over a job that an earlier lookup started. The job is then polled, and the vendor is not
 * paid twice. The time of the next poll, the reserved credits, and the start time are copied. A job
 * that started more than a day ago is not taken over, and the vendor is called again.
 * @returns the time until the next poll, null if it is due; undefined if the job has ended
 */
async function adoptJob(
  db: Database,
  { vendor, requestId }: VendorCall,
  lookupId: string,
  orphanOf: string,
): Promise<{ pollMs: number | null } | undefined> {
  const [adopted] = await run<{ pollMs: number | null }>(db)`
    with orphan as (
      select * from vendor_attempts
       where lookup_id = ${orphanOf} and vendor = ${vendor} and state = 'pending' for update
    ), ended as (
      update vendor_attempts a
         set state = 'lost',
             reason = 'taken over',
             credits = 0,
             ended_at = clock_timestamp()
        from orphan o
       where (a.lookup_id, a.vendor, a.n) = (o.lookup_id, o.vendor, o.n)
    )
    insert into vendor_attempts (
      lookup_id, vendor, n, request_id, state, credits, job_ref, polled_at, next_poll_at, started_at
    )
    select ${lookupId}, ${vendor}, 1, ${requestId}, 'pending',
           credits, job_ref, polled_at, next_poll_at, started_at
      from orphan
    returning case when not ${isAhead(sql`polled_at`)}
                then extract(epoch from next_poll_at - clock_timestamp())::float8 * 1000
              end as "pollMs"`;
  return adopted;
}
