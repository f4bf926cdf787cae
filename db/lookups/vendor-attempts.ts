import { and, eq, gt, inArray, notExists, type SQL, sql } from 'drizzle-orm';
import { alias } from 'drizzle-orm/pg-core';
import { type Database, run, span, transaction } from '../client.ts';
import { DatabaseError, Refusal } from '../errors.ts';
import { isUsable } from '../requests/entitlements.ts';
import { clockTime } from '../schema/columns.ts';
import { vendorAttempts } from '../schema.ts';
import type { RequestedType, VendorAttemptState } from '../words.ts';
import { type NamedCandidates, storeCandidates } from './candidates.ts';
import { joinLookups } from './lookups.ts';
import {
  admitCall,
  type BreakerChange,
  type Call,
  type CallOutcome,
  epochMs,
  giveBack,
  recordCall,
} from './sources.ts';

// Calls to vendors, and their responses. All requests of one lookup share its vendor calls. The
// first request that needs a vendor calls it, and the others read the recorded response. Each call
// is recorded before it is made and after it ends, so that an interrupted lookup continues where it
// stopped.

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

export type AnsweredState = Exclude<
  VendorAttemptState,
  'submitting' | 'pending' | 'lost' | 'retry'
>;

type AttemptId = Readonly<{ lookupId: string; vendor: string; n: number }>;

/** Identifies one call to a vendor, with the values that are needed to record its outcome. */
export interface AttemptKey extends AttemptId {
  /** The reserved cost of the call, in the vendor's credits. */
  readonly cost: number;
  /** The time when the call was admitted, in milliseconds since the epoch. */
  readonly askedAt: number;
  /** The era of the circuit breaker in which the call was admitted (see `recordCall`). */
  readonly era: number;
}

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
  const state = await readState(db, call);
  if (!state) throw new Refusal('request_missing');
  if (state.settled) return { kind: 'settled' };
  const { lookupId } = state;
  if (lookupId === null) {
    await joinLookups(db, [call.requestId]);
    return await beginVendorStep(db, call);
  }
  const joined = { ...state, lookupId };
  // The person was suppressed while this lookup ran.
  if (state.suppressed) return over(joined, 'blocked', 'suppressed');
  if (state.stored) return { kind: 'stored' };
  try {
    return await claimNext(db, call, joined);
  } catch (error) {
    // Another request of the lookup has started the call since we read the state.
    const isTaken = error instanceof DatabaseError && error.code === '23505';
    if (!isTaken) throw error;
    return { kind: 'wait', why: 'asked_already', afterMs: CHECK_AGAIN_MS };
  }
}

/** The state of a request that has a lookup. */
type JoinedState = RequestState & { readonly lookupId: string };

function over(
  { lookupId, requestedType }: JoinedState,
  state: AnsweredState | 'lost',
  reason: string | null,
): NextStep {
  return { kind: 'over', state, reason, lookupId, requestedType };
}

/** Claims the next call to the vendor, or returns the reason why no call is made now. */
async function claimNext(
  db: Database,
  call: VendorCall,
  seen: JoinedState,
): Promise<NextStep> {
  const last = { lookupId: seen.lookupId, vendor: call.vendor, n: seen.n ?? 0 };
  const leaseMs = seen.leaseMs ?? 0;
  switch (seen.state) {
    case 'pending': {
      if (leaseMs <= 0) return await claimPoll(db, call, last, seen);
      // While a worker polls, the lease lasts as long as one call at most. A longer lease means
      // that the next poll is not due yet.
      const pauseMs = leaseMs - (call.callMs + LEASE_MARGIN_MS);
      const afterMs = Math.max(Math.min(leaseMs, CHECK_AGAIN_MS), pauseMs);
      return { kind: 'wait', why: 'pending', afterMs };
    }
    case 'submitting':
      if (leaseMs > 0) {
        return {
          kind: 'wait',
          why: 'asked_already',
          afterMs: Math.min(leaseMs, CHECK_AGAIN_MS),
        };
      }
      await recordLost(db, last, 'no answer recorded');
      return await beginVendorStep(db, call);
    case 'found':
    case 'miss':
    case 'blocked':
    case 'fatal':
      return over(seen, seen.state, seen.reason);
    case 'lost':
      if (!call.mayRepeat || seen.lost >= MAX_LOST_CALLS) {
        return over(seen, 'lost', 'no answer recorded');
      }
      return await claimNewCall(db, call, last, seen);
    case null:
      if (seen.orphanOf === null) return await claimNewCall(db, call, last, seen);
      await adoptJob(db, call, seen.lookupId, seen.orphanOf);
      return await beginVendorStep(db, call);
    // A skipped vendor was not called. It may be called now, for example because the input that it
    // needs is known.
    case 'skip':
    case 'retry':
      return await claimNewCall(db, call, last, seen);
  }
}

/**
 * The state that decides a request's next step. `n`, `state`, `reason`, and `leaseMs` are from the
 * last attempt at this vendor. They are null before the first attempt.
 */
interface RequestState extends Record<string, unknown> {
  readonly settled: boolean;
  readonly lookupId: string | null;
  readonly requestedType: RequestedType;
  readonly suppressed: boolean;
  readonly stored: boolean;
  readonly n: number | null;
  readonly state: VendorAttemptState | null;
  readonly reason: string | null;
  readonly leaseMs: number | null;
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
        select n, state, reason, lease_until,
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

interface Claimed {
  readonly jobRef: string | null;
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
      state, reason, credits, ended_at, lease_until
    )
    select ${lookupId}, ${vendor}, ${n}, ${requestId}, at, waited_ms, one.*
      from admission, lateral (
             select 'submitting', null, ${cost}::numeric, null::timestamptz, ${leaseUntil(call)}
              where kind = 'go'
             union all
             select 'skip', 'daily_credits', 0, at, null
              where kind = 'spent') one
    returning ${CLAIMED}`;
  const claimed = await admitCall<Claimed>(db, { ...call, source: vendor, cost }, record);
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
       set lease_until = ${leaseUntil(call)}, polls = polls + 1
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
  const poll = { ...call, limits, source: call.vendor, cost: 0, requiredVerifiers: [] };
  const claimed = await admitCall<Claimed>(db, poll, record);
  if (claimed.kind === 'wait') return claimed;
  const { era, jobRef, cost, askedAt } = claimed;
  // Another request of the lookup has started the poll since we read the state.
  if (jobRef === null) return { kind: 'wait', why: 'pending', afterMs: CHECK_AGAIN_MS };
  return { kind: 'ask', key: { ...attempt, cost, askedAt, era }, jobRef, requestedType };
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
      lookup_id, vendor, n, request_id, state, credits, job_ref, lease_until, started_at
    )
    select ${lookupId}, ${vendor}, 1, ${requestId}, 'pending',
           credits, job_ref, lease_until, started_at
      from orphan`;
}

/**
 * A lookup, with the reason (`obstacle`) why each vendor cannot be called. `obstacle` is null if
 * the vendor can be called.
 */
export interface Judged {
  readonly requestId: string;
  readonly lookupId: string;
  readonly judged: readonly Readonly<{
    vendor: string;
    capMs: number;
    obstacle: string | null;
  }>[];
}

/** Records the vendors that a lookup skips, with the reasons. Safe to repeat. */
export async function recordSkipped(
  db: Database,
  lookups: readonly Judged[],
): Promise<void> {
  const skipped = lookups.flatMap(({ requestId, lookupId, judged }) => {
    const obstructed = judged.filter(({ obstacle }) => obstacle !== null);
    return obstructed.map(({ vendor, obstacle }) => ({
      requestId,
      lookupId,
      vendor,
      obstacle,
    }));
  });
  if (skipped.length === 0) return;
  await run(db)`
    insert into vendor_attempts (
      lookup_id, vendor, n, request_id, state, reason, started_at, ended_at
    )
    select "lookupId", vendor, 1, "requestId", 'skip', obstacle, at, at
      from jsonb_to_recordset(${JSON.stringify(skipped)}::jsonb)
             skipped ("lookupId" text, vendor text, "requestId" text, obstacle text),
           clock_timestamp() at
     order by "lookupId", vendor
        on conflict do nothing`;
}

/**
 * Records the job id that an asynchronous vendor returned, so that the result is fetched by polling
 * and not paid for twice. After each poll, records when the next poll is due. Also works for an
 * attempt that was marked as lost in the meantime.
 */
export async function recordVendorJob(
  db: Database,
  key: AttemptKey,
  jobRef: string,
  nextPollMs: number,
  outcome: CallOutcome,
): Promise<BreakerChange | null> {
  return await transaction(db, async (tx) => {
    const change = await recordCall(tx, key.vendor, key.era, outcome);
    const later = alias(vendorAttempts, 'later');
    const isRepeated = tx
      .select({ n: later.n })
      .from(later)
      .where(
        and(
          eq(later.lookupId, key.lookupId),
          eq(later.vendor, key.vendor),
          gt(later.n, key.n),
        ),
      );
    // Changes nothing if the call was already repeated. The newer attempt continues.
    await tx
      .update(vendorAttempts)
      .set({
        state: 'pending',
        jobRef,
        endedAt: null,
        reason: null,
        leaseUntil: sql`clock_timestamp() + ${span(nextPollMs)}`,
      })
      .where(and(isUnanswered(key), notExists(isRepeated)));
    return change;
  });
}

/**
 * Ends a call that was aborted, or whose worker died. Its response is lost, and other requests no
 * longer wait for it. If a poll was lost, the job continues and only its lease ends.
 */
export async function recordLost(
  db: Database,
  attempt: AttemptId,
  reason: string,
): Promise<void> {
  await transaction(db, async (tx) => {
    await tx
      .update(vendorAttempts)
      .set({ leaseUntil: clockTime })
      .where(and(isAttempt(attempt), eq(vendorAttempts.state, 'pending')));
    await tx
      .update(vendorAttempts)
      .set({ state: 'lost', reason, endedAt: clockTime, leaseUntil: null })
      .where(and(isAttempt(attempt), eq(vendorAttempts.state, 'submitting')));
  });
}

export interface VendorAnswerRecord {
  /** `lost`: the vendor may have responded and charged, but the response was not received. */
  readonly state: AnsweredState | 'retry' | 'lost';
  readonly reason: string | null;
  /** The cost of the response, in the vendor's credits. */
  readonly credits: number;
  readonly outcome: CallOutcome;
  readonly named: NamedCandidates | null;
  readonly freshnessMs: number;
}

/**
 * Ends an attempt and stores the addresses that the vendor named. The cost and the vendor's health
 * are recorded in the same transaction. Also works for an attempt that was marked as lost in the
 * meantime, because its addresses were paid for.
 */
export async function recordVendorAnswer(
  db: Database,
  key: AttemptKey,
  { state, reason, credits, outcome, named, freshnessMs }: VendorAnswerRecord,
): Promise<BreakerChange | null> {
  const { lookupId, vendor, era, cost, askedAt } = key;
  return await transaction(db, async (tx) => {
    const change = await recordCall(tx, vendor, era, outcome);
    const [ended] = await tx
      .update(vendorAttempts)
      .set({
        state,
        reason,
        credits,
        endedAt: clockTime,
        candidates: named?.candidates.length ?? 0,
        leaseUntil: null,
      })
      .where(isUnanswered(key))
      .returning({
        requestId: vendorAttempts.requestId,
        at: sql`ended_at`.mapWith(vendorAttempts.endedAt),
      });
    // Another worker has already recorded the result of the same job.
    if (!ended) return change;
    const { requestId, at } = ended;
    if (named) {
      await storeCandidates(tx, { ...named, lookupId, source: vendor, at, freshnessMs });
    }
    await giveBack(tx, vendor, { requestId, credits: cost - credits, askedAt });
    return change;
  });
}

/**
 * Marks the vendor responses of a lookup that contained no valid address, so that later lookups
 * skip these vendors for up to a day. A response is not marked while the check of one of its
 * addresses is undecided.
 * @param unwanted addresses of another type than the requested one; they are not checked
 */
export async function recordRefused(
  db: Database,
  lookupId: string,
  unwanted: readonly string[],
): Promise<void> {
  await run(db)`
    update vendor_attempts a
       set reason = 'none_valid'
     where a.lookup_id = ${lookupId}
       and a.state = 'found'
       and a.reason is null
       and not exists (
         select from email_checks c join stored_emails s on (s.npi, s.email) = (c.npi, c.email)
          where c.lookup_id = a.lookup_id
            and c.source = a.vendor
            and c.kind = 'named'
            and (s.unchecked and s.email <> all(${sql.param([...unwanted])}::text[])
                 or s.reason in ('greylisted', 'timeout', 'verifier_unavailable')))`;
}

/** Selects the row of an attempt that has no response yet. */
function isUnanswered(attempt: AttemptId) {
  return and(
    isAttempt(attempt),
    inArray(vendorAttempts.state, ['submitting', 'pending', 'lost']),
  );
}

/** Selects the row of one attempt. */
function isAttempt({ lookupId, vendor, n }: AttemptId) {
  return and(
    eq(vendorAttempts.lookupId, lookupId),
    eq(vendorAttempts.vendor, vendor),
    eq(vendorAttempts.n, n),
  );
}
