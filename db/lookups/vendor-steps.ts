import { type SQL, sql } from 'drizzle-orm';
import { type Database, isAhead, run, span } from '../client.ts';
import { DatabaseError, Refusal } from '../errors.ts';
import { isUsable } from '../requests/entitlements.ts';
import type { requests, vendorAttempts } from '../schema.ts';
import { accountOf, type RequestedType, type VendorAttemptState } from '../words.ts';
import { joinLookups } from './lookups.ts';
import { admitCall, type Call, epochMs } from './sources.ts';
import {
  type AnsweredState,
  type AttemptId,
  type AttemptKey,
  recordLost,
} from './vendor-attempts.ts';

// Decides whether a vendor is called for a request. All requests of one lookup share its vendor
// calls. The first request that needs a vendor calls it, and the others read the recorded response.

/** The next step for a request and a vendor. */
export type NextStep =
  /** The request is final. */
  | { readonly kind: 'settled' }
  /** The directory holds a fresh email of the requested type, so no vendor is called. */
  | { readonly kind: 'stored' }
  /**
   * The vendor is not called again, because its response is recorded or was lost. `found` means
   * that the addresses in the response are stored.
   */
  | {
      readonly kind: 'over';
      readonly state: AnsweredState | 'lost';
      readonly reason: string | null;
      readonly lookupId: string;
      readonly requestedType: RequestedType;
    }
  /** Another request is calling the vendor, or no call is allowed yet. */
  | { readonly kind: 'wait'; readonly why: string; readonly afterMs: number }
  /** The vendor may be called now. With a `jobRef`, poll that job. */
  | {
      readonly kind: 'ask';
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
  /**
   * The maximum duration of a call. If a call is still open after this time, its worker has died.
   */
  readonly callMs: number;
  readonly freshnessMs: number;
}

/**
 * The maximum number of lost calls per lookup and vendor. A lost call may have been charged, and
 * repeating it costs again. Not repeating it may cost the client a result. One repetition is the
 * compromise.
 */
const MAX_LOST_CALLS = 2;
/** How long a request waits before it checks again for the response to another request's call. */
const CHECK_AGAIN_MS = 1000;
/** How much longer the lease lasts than the call, so that there is time to record the response. */
const LEASE_MARGIN_MS = 5000;

/**
 * Decides the next step and records it, so that the attempt exists before the vendor is called. One
 * statement reads the state, and another one claims the call. If a concurrent request claimed the
 * call between the two, the second statement fails or claims nothing. The caller then waits and
 * calls this function again.
 * @throws {Refusal} `request_missing` for an unknown id
 */
export async function beginVendorStep(db: Database, call: VendorCall): Promise<NextStep> {
  for (;;) {
    const state = await readState(db, call);
    if (!state) throw new Refusal('request_missing');
    if (state.settled) return { kind: 'settled' };
    const { lookupId } = state;
    if (lookupId === null) {
      await joinLookups(db, [call.requestId]);
    } else {
      const joined = { ...state, lookupId };
      const step = await perform(db, call, joined, decide(call, joined));
      // If there is no step, the state has changed, so it is read again.
      if (step) return step;
    }
  }
}

/** The state of a request that has a lookup. */
type JoinedState = RequestState & { readonly lookupId: string };

/** A step that needs no statement, or a statement to run. */
type Decision =
  | Exclude<NextStep, { kind: 'ask' }>
  /** Claim a new call to the vendor. */
  | { readonly kind: 'call' }
  /** Claim the next poll of the vendor's job. */
  | { readonly kind: 'poll' }
  /** Record that the last call was lost, because its worker died. */
  | { readonly kind: 'lose' }
  /** Take over the job that an earlier lookup started. */
  | { readonly kind: 'adopt'; readonly orphanOf: string }
  /** Replace a lease that began in the future, because the clock was set back since then. */
  | { readonly kind: 'renew' };

function decide(call: VendorCall, state: JoinedState): Decision {
  // The person was suppressed while this lookup ran.
  if (state.suppressed) return over(state, 'blocked', 'suppressed');
  if (state.stored) return { kind: 'stored' };
  if (state.isLeaseAhead) return { kind: 'renew' };
  if (state.state !== null) return DECISIONS[state.state](state, call);
  if (state.orphanOf !== null) return { kind: 'adopt', orphanOf: state.orphanOf };
  return { kind: 'call' };
}

type Decide = (state: JoinedState, call: VendorCall) => Decision;

/** The decision by the state of the last attempt at the vendor. */
const DECISIONS: Readonly<Record<VendorAttemptState, Decide>> = {
  submitting: decideForOpenCall,
  pending: decideForJob,
  found: (state) => over(state, 'found', state.reason),
  miss: (state) => over(state, 'miss', state.reason),
  blocked: (state) => over(state, 'blocked', state.reason),
  fatal: (state) => over(state, 'fatal', state.reason),
  lost: decideForLostCall,
  retry: () => ({ kind: 'call' }),
  // A skipped vendor was not called. It may be called now, for example because the input that it
  // needs is known.
  skip: () => ({ kind: 'call' }),
};

function decideForOpenCall({ leaseMs }: JoinedState): Decision {
  if (leaseMs === null || leaseMs <= 0) return { kind: 'lose' };
  const afterMs = Math.min(leaseMs, CHECK_AGAIN_MS);
  return { kind: 'wait', why: 'asked_already', afterMs };
}

function decideForJob({ leaseMs }: JoinedState, { callMs }: VendorCall): Decision {
  if (leaseMs === null || leaseMs <= 0) return { kind: 'poll' };
  // While a worker polls, the lease lasts as long as one call at most. A longer lease means that
  // the next poll is not due yet.
  const pauseMs = leaseMs - (callMs + LEASE_MARGIN_MS);
  const afterMs = Math.max(Math.min(leaseMs, CHECK_AGAIN_MS), pauseMs);
  return { kind: 'wait', why: 'pending', afterMs };
}

function decideForLostCall(state: JoinedState, { mayRepeat }: VendorCall): Decision {
  if (mayRepeat && state.lost < MAX_LOST_CALLS) return { kind: 'call' };
  return over(state, 'lost', 'no answer recorded');
}

function over(
  { lookupId, requestedType }: JoinedState,
  state: AnsweredState | 'lost',
  reason: string | null,
): Extract<NextStep, { kind: 'over' }> {
  return { kind: 'over', state, reason, lookupId, requestedType };
}

/**
 * Runs the statement of a decision.
 * @returns null if the next step depends on the state after the statement
 */
async function perform(
  db: Database,
  call: VendorCall,
  state: JoinedState,
  decision: Decision,
): Promise<NextStep | null> {
  const last = { lookupId: state.lookupId, vendor: call.vendor, n: state.n ?? 0 };
  try {
    switch (decision.kind) {
      case 'call':
        return await claimNewCall(db, call, last, state);
      case 'poll':
        return await claimPoll(db, call, last, state);
      case 'lose':
        await recordLost(db, last, 'no answer recorded');
        return null;
      case 'adopt':
        await adoptJob(db, call, state.lookupId, decision.orphanOf);
        return null;
      case 'renew':
        await renewLease(db, call, last);
        return null;
      default:
        return decision;
    }
  } catch (error) {
    // Another request of the lookup has started the call since we read the state.
    const isTaken = error instanceof DatabaseError && error.code === '23505';
    if (!isTaken) throw error;
    return { kind: 'wait', why: 'asked_already', afterMs: CHECK_AGAIN_MS };
  }
}

type OfRequest = Readonly<
  Pick<typeof requests.$inferSelect, 'lookupId' | 'requestedType'>
>;
type Attempt = Readonly<typeof vendorAttempts.$inferSelect>;

/**
 * The state that decides a request's next step. `n`, `state`, `reason`, and `leaseMs` are from the
 * last attempt at this vendor. They are null before the first attempt.
 */
interface RequestState extends OfRequest {
  readonly settled: boolean;
  readonly suppressed: boolean;
  readonly stored: boolean;
  readonly n: Attempt['n'] | null;
  readonly state: Attempt['state'] | null;
  readonly reason: Attempt['reason'];
  readonly leaseMs: number | null;
  /** True if the lease of an open attempt began in the future. */
  readonly isLeaseAhead: boolean;
  /** The number of attempts whose response was lost. */
  readonly lost: number;
  /**
   * The id of an earlier lookup of the same NPI and type that was closed before its job at this
   * vendor finished. The job may have been charged.
   */
  readonly orphanOf: string | null;
}

async function readState(
  db: Database,
  { requestId, vendor, freshnessMs }: VendorCall,
): Promise<RequestState | undefined> {
  const asked = {
    requestedType: sql`r.requested_type`,
    lookupId: sql`r.lookup_id`,
    at: sql`now()`,
  };
  const usable = isUsable(asked, freshnessMs);
  const [state] = await run<RequestState>(db)`
    select r.settled_at is not null as settled,
           r.lookup_id as "lookupId",
           r.requested_type as "requestedType",
           is_suppressed(r.npi, null) as suppressed,
           exists (select from stored_emails where npi = r.npi and ${usable}) as stored,
           last.n,
           last.state,
           last.reason,
           coalesce(last.lost, 0) as lost,
           (extract(epoch from last.lease_until - clock_timestamp()) * 1000)::float8 as "leaseMs",
           coalesce(last.ended_at is null and ${isAhead(sql`last.leased_at`)}, false)
             as "isLeaseAhead",
           case when last.n is null then (
             select o.lookup_id
               from lookups l join vendor_attempts o on o.lookup_id = l.id
              where l.npi = r.npi and l.requested_type = r.requested_type
                and l.closed_at is not null and l.id <> r.lookup_id
                and o.vendor = ${vendor} and o.state = 'pending'
                and o.started_at > now() - interval '1 day'
              order by o.started_at desc limit 1) end as "orphanOf"
      from requests r
      left join lateral (
        select n, state, reason, lease_until, leased_at, ended_at,
               (count(*) filter (where state = 'lost') over ())::int as lost
          from vendor_attempts
         where lookup_id = r.lookup_id and vendor = ${vendor}
         order by n desc limit 1
      ) last on true
     where r.id = ${requestId}`;
  return state;
}

/** The columns that a statement returns for a claimed attempt. */
const CLAIMED = sql`
  job_ref as "jobRef", credits::float8 as cost, ${epochMs(sql`started_at`)} as "askedAt"`;

interface Claimed extends Pick<Attempt, 'jobRef'> {
  readonly cost: number;
  readonly askedAt: number;
}

/** Returns the end of a call's lease. `at` is the time when the call was admitted. */
function leaseUntil({ callMs }: VendorCall): SQL {
  return sql`at + ${span(callMs + LEASE_MARGIN_MS)}`;
}

/** Claims a new call and records its attempt in the same statement. */
async function claimNewCall(
  db: Database,
  call: VendorCall,
  last: AttemptId,
  state: JoinedState,
): Promise<NextStep> {
  const { lookupId, requestedType } = state;
  const { requestId, vendor } = call;
  const n = last.n + 1;
  const cost = call.cost(requestedType);
  const record = sql`
    insert into vendor_attempts (
      lookup_id, vendor, n, request_id, started_at, waited_ms,
      state, reason, credits, ended_at, leased_at, lease_until
    )
    select ${lookupId}, ${vendor}, ${n}, ${requestId}, admission.at, waited_ms, one.*
      from admission, lateral (
             select 'submitting', null, ${cost}::numeric, null::timestamptz, at, ${leaseUntil(call)}
              where kind = 'go'
             union all
             select 'skip', 'daily_credits', 0, at, null, null
              where kind = 'spent') one
    returning ${CLAIMED}`;
  const source = accountOf(vendor);
  const claimed = await admitCall<Claimed>(db, { ...call, source, cost }, record);
  if (claimed.kind === 'wait') return claimed;
  // Our own budget stopped the call, so this does not count as a vendor's response without a
  // result.
  if (claimed.kind === 'spent') return over(state, 'fatal', 'daily_credits');
  // Uses the exact time of the admission, because its day is the day whose budget pays for the
  // call. The time in the row is rounded and may be on the next day.
  const askedAt = claimed.at;
  const key = { lookupId, vendor, n, cost: claimed.cost, askedAt, era: claimed.era };
  return { kind: 'ask', key, jobRef: null, requestedType };
}

/** Claims the next poll of a job and records it in the same statement. */
async function claimPoll(
  db: Database,
  call: VendorCall,
  attempt: AttemptId,
  { requestedType }: JoinedState,
): Promise<NextStep> {
  const record = sql`
    update vendor_attempts
       set leased_at = at, lease_until = ${leaseUntil(call)}, polls = polls + 1
      from admission
     where kind = 'go'
       and lookup_id = ${attempt.lookupId}
       and vendor = ${attempt.vendor}
       and n = ${attempt.n}
       and state = 'pending'
       and (lease_until is null or lease_until <= at)
    returning ${CLAIMED}`;
  const { rates, dailyCredits } = call.limits;
  const limits = { rates: rates.filter(({ exceptPolls }) => !exceptPolls), dailyCredits };
  const source = accountOf(call.vendor);
  const poll = { ...call, limits, source, cost: 0, requiredVerifiers: [] };
  const claimed = await admitCall<Claimed>(db, poll, record);
  if (claimed.kind === 'wait') return claimed;
  const { era, jobRef, cost, askedAt } = claimed;
  // Another request of the lookup has started the poll since we read the state.
  if (jobRef === null) return { kind: 'wait', why: 'pending', afterMs: CHECK_AGAIN_MS };
  return { kind: 'ask', key: { ...attempt, cost, askedAt, era }, jobRef, requestedType };
}

/**
 * Replaces a lease that began in the future. The call may still be running, so its lease begins
 * again. A job is polled at once.
 */
async function renewLease(
  db: Database,
  { callMs }: VendorCall,
  { lookupId, vendor, n }: AttemptId,
): Promise<void> {
  await run(db)`
    update vendor_attempts
       set leased_at = clock_timestamp(),
           lease_until = clock_timestamp() + case
             when state = 'submitting' then ${span(callMs + LEASE_MARGIN_MS)}
             else interval '0'
           end
     where lookup_id = ${lookupId} and vendor = ${vendor} and n = ${n} and ended_at is null
       and ${isAhead(sql`leased_at`)}`;
}

/**
 * Takes over a job that an earlier lookup started. The job is then polled, and the vendor is not
 * paid twice. The time of the next poll, the reserved credits, and the start time are copied. A job
 * that started more than a day ago is not taken over, and the vendor is called again.
 */
async function adoptJob(
  db: Database,
  { vendor, requestId }: VendorCall,
  lookupId: string,
  orphanOf: string,
): Promise<void> {
  await run(db)`
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
      lookup_id, vendor, n, request_id, state, credits, job_ref, leased_at, lease_until, started_at
    )
    select ${lookupId}, ${vendor}, 1, ${requestId}, 'pending',
           credits, job_ref, leased_at, lease_until, started_at
      from orphan`;
}
