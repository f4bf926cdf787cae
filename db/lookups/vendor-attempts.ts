import { sql } from 'drizzle-orm';
import { type Database, run, span, transaction } from '../client.ts';
import { DatabaseError, Refusal } from '../errors.ts';
import { isUsable } from '../requests/entitlements.ts';
import type { VendorAttemptState, WantedType } from '../words.ts';
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

// The calls of vendors and their responses. All requests of one lookup share its vendor calls. The
// first request that needs a vendor calls it, and the others read the recorded response. Every step
// is recorded before and after the call, so that a lookup that is interrupted continues where it
// stopped.

/** The next step for a request and a vendor. */
export type NextStep =
  /** The request is final. */
  | { readonly kind: 'settled' }
  /** The directory holds a fresh email of the requested type, so no vendor is called. */
  | { readonly kind: 'stored' }
  /** The vendor's response is recorded. `found` means that its candidates are stored. */
  | {
      readonly kind: 'over';
      readonly state: AnsweredState | 'lost';
      readonly reason: string | null;
      readonly lookupId: string;
      readonly wantedType: WantedType;
    }
  /** Another request is calling the vendor, or no call is allowed yet. */
  | { readonly kind: 'wait'; readonly why: string; readonly afterMs: number }
  /** The vendor may be called now. With a `jobRef`, poll that job. */
  | {
      readonly kind: 'ask';
      readonly key: AttemptKey;
      readonly jobRef: string | null;
      readonly wantedType: WantedType;
    };

export type AnsweredState = Exclude<
  VendorAttemptState,
  'submitting' | 'pending' | 'lost' | 'retry'
>;

type AttemptId = Readonly<{ lookupId: string; vendor: string; n: number }>;

/** The key of one vendor call. */
export interface AttemptKey extends AttemptId {
  /** Credits set aside for the call, in the vendor's credits. */
  readonly cost: number;
  /** In milliseconds since the epoch. */
  readonly askedAt: number;
  /** The breaker's era when this call was admitted. */
  readonly era: number;
}

export interface Question extends Pick<Call, 'limits' | 'patienceMs' | 'requiredVerifiers'> {
  readonly requestId: string;
  readonly vendor: string;
  readonly cost: (wantedType: WantedType) => number;
  /** True if a call may be repeated after its response was lost. */
  readonly mayRepeat: boolean;
  /** How long a call may take. A longer call has died with its worker. */
  readonly callMs: number;
  readonly freshnessMs: number;
}

/**
 * The maximum number of lost calls per lookup and vendor. A lost call may have been paid for. One
 * repetition balances the cost against the client's result.
 */
const LOST_CALLS_AT_MOST = 2;
/** How often a request that waits for another request's call checks for its response. */
const LOOK_AGAIN_MS = 1000;
/** The time to record a response after its call has ended. */
const LEASE_MARGIN_MS = 5000;

/**
 * Decides the next step and records it, so that the attempt exists before the vendor is called. One
 * statement reads the state, and another one claims the call. If a concurrent request changed the
 * state between the two, the table's constraints reject the claim, and the next call reads the new
 * state.
 * @throws {Refusal} `request_missing` for an unknown id
 */
export async function beginVendorStep(db: Database, question: Question): Promise<NextStep> {
  const { requestId, vendor } = question;
  const seen = await look(db, question);
  if (!seen) throw new Refusal('request_missing');
  if (seen.settled) return { kind: 'settled' };
  const { lookupId, wantedType } = seen;
  if (lookupId === null) {
    await joinLookups(db, [requestId]);
    return await beginVendorStep(db, question);
  }
  const over = (state: AnsweredState | 'lost', reason: string | null) =>
    ({ kind: 'over', state, reason, lookupId, wantedType }) as const;
  // The person was suppressed while this lookup ran.
  if (seen.suppressed) return over('blocked', 'suppressed');
  if (seen.stored) return { kind: 'stored' };

  const last = { lookupId, vendor, n: seen.n ?? 0 };
  const leaseMs = seen.leaseMs ?? 0;
  const holdMs = question.callMs + LEASE_MARGIN_MS;
  const afterMs = Math.min(leaseMs, LOOK_AGAIN_MS);
  try {
    switch (seen.state) {
      case 'pending':
        // A polling worker holds the lease for one call at most. A longer lease is the vendor's
        // pause.
        if (afterMs > 0)
          return { kind: 'wait', why: 'pending', afterMs: Math.max(afterMs, leaseMs - holdMs) };
        return await take(db, question, last, seen);
      case 'submitting':
        if (afterMs > 0) return { kind: 'wait', why: 'asked_already', afterMs };
        await recordLost(db, last, 'no answer recorded');
        return await beginVendorStep(db, question);
      case 'found':
      case 'miss':
      case 'blocked':
      case 'fatal':
        return over(seen.state, seen.reason);
      case 'lost':
        if (question.mayRepeat && seen.lost < LOST_CALLS_AT_MOST) break;
        return over('lost', 'no answer recorded');
      case null:
        if (seen.orphanOf === null) break;
        await adoptJob(db, question, lookupId, seen.orphanOf);
        return await beginVendorStep(db, question);
      // A skipped vendor was not called. The data it was missing may exist now.
      case 'skip':
      case 'retry':
        break;
    }
    return await take(db, question, last, seen);
  } catch (error) {
    // Another request of the lookup has started the call since we read the state.
    if (!(error instanceof DatabaseError && error.code === '23505')) throw error;
    return { kind: 'wait', why: 'asked_already', afterMs: LOOK_AGAIN_MS };
  }
}

/**
 * The state that decides a request's next step. The attempt fields are those of this vendor's last
 * attempt.
 */
interface Seen extends Record<string, unknown> {
  readonly settled: boolean;
  readonly lookupId: string | null;
  readonly wantedType: WantedType;
  readonly suppressed: boolean;
  readonly stored: boolean;
  readonly n: number | null;
  readonly state: VendorAttemptState | null;
  readonly reason: string | null;
  readonly leaseMs: number | null;
  /** The number of attempts whose response was lost. */
  readonly lost: number;
  /**
   * An earlier lookup of the same NPI and type that bought a job and closed before the job
   * finished.
   */
  readonly orphanOf: string | null;
}

async function look(
  db: Database,
  { requestId, vendor, freshnessMs }: Question,
): Promise<Seen | undefined> {
  const asked = { wantedType: sql`r.wanted_type`, lookupId: sql`r.lookup_id`, at: sql`now()` };
  const [seen] = await run<Seen>(db)`
    select r.settled_at is not null as settled, r.lookup_id as "lookupId", r.wanted_type as "wantedType",
           is_suppressed(r.npi, null) as suppressed,
           exists (select from stored_emails where npi = r.npi and ${isUsable(asked, freshnessMs)}) as stored,
           last.n, last.state, last.reason, coalesce(last.lost, 0) as lost,
           (extract(epoch from last.lease_until - clock_timestamp()) * 1000)::float8 as "leaseMs",
           case when last.n is null then (
             select o.lookup_id from lookups l join vendor_attempts o on o.lookup_id = l.id
              where l.npi = r.npi and l.wanted_type = r.wanted_type and l.closed_at is not null
                and l.id <> r.lookup_id and o.vendor = ${vendor} and o.state = 'pending'
                and o.started_at > now() - interval '1 day'
              order by o.started_at desc limit 1) end as "orphanOf"
      from requests r left join lateral (
             select n, state, reason, lease_until,
                    (count(*) filter (where state = 'lost') over ())::int as lost
               from vendor_attempts where lookup_id = r.lookup_id and vendor = ${vendor}
              order by n desc limit 1) last on true
     where r.id = ${requestId}`;
  return seen;
}

/**
 * Claims the next call, either a new one or the poll of a job, and records it in the same
 * statement.
 */
async function take(
  db: Database,
  question: Question,
  last: AttemptId,
  { state, wantedType }: Seen,
): Promise<NextStep> {
  const { requestId, vendor } = question;
  const { lookupId } = last;
  const isPoll = state === 'pending';
  const attempt = isPoll ? last : { ...last, n: last.n + 1 };
  const call = isPoll ? { cost: 0, requiredVerifiers: [] } : { cost: question.cost(wantedType) };
  const leaseUntil = sql`at + ${span(question.callMs + LEASE_MARGIN_MS)}`;
  const record = isPoll
    ? sql`update vendor_attempts set lease_until = ${leaseUntil}, polls = polls + 1 from admission
           where kind = 'go' and ${sameAttempt(attempt)} and state = 'pending'
             and (lease_until is null or lease_until <= at)`
    : sql`insert into vendor_attempts (lookup_id, vendor, n, request_id, started_at, waited_ms, state, reason, credits, ended_at, lease_until)
          select ${lookupId}, ${vendor}, ${attempt.n}, ${requestId}, at, waited_ms, one.*
            from admission, lateral (
                   select 'submitting', null, ${call.cost}::numeric, null::timestamptz, ${leaseUntil} where kind = 'go'
                   union all
                   select 'skip', 'daily_credits', 0, at, null where kind = 'spent') one`;
  const taken = await admitCall<{ jobRef: string | null; cost: number; askedAt: number }>(
    db,
    { ...question, source: vendor, ...call },
    sql`${record} returning job_ref as "jobRef", credits::float8 as cost, ${epochMs(sql`started_at`)} as "askedAt"`,
  );
  if (taken.kind === 'wait') return taken;
  // Our own budget stopped the call, so this does not count as a miss of the vendor.
  if (taken.kind === 'spent')
    return { kind: 'over', state: 'fatal', reason: 'daily_credits', lookupId, wantedType };
  // A new call uses the unrounded time of its admission, because its credits are booked on that
  // day. The time in the row is rounded.
  const askedAt = isPoll ? taken.askedAt : taken.at;
  const { era, jobRef, cost } = taken;
  // Another request of the lookup has started the poll since we read the state.
  if (isPoll && jobRef === null) return { kind: 'wait', why: 'pending', afterMs: LOOK_AGAIN_MS };
  return { kind: 'ask', key: { ...attempt, cost, askedAt, era }, jobRef, wantedType };
}

/**
 * Takes over a job that an earlier lookup bought, so that it is polled and not bought again. The
 * earliest next poll, the credits set aside, and the start time are copied. A job that never ends
 * is bought again a day after its start.
 */
async function adoptJob(
  db: Database,
  { vendor, requestId }: Question,
  lookupId: string,
  orphanOf: string,
): Promise<void> {
  await run(db)`
    with orphan as (
      select * from vendor_attempts
       where lookup_id = ${orphanOf} and vendor = ${vendor} and state = 'pending' for update
    ), ended as (
      update vendor_attempts a set state = 'lost', reason = 'taken over', credits = 0, ended_at = clock_timestamp()
        from orphan o where (a.lookup_id, a.vendor, a.n) = (o.lookup_id, o.vendor, o.n)
    )
    insert into vendor_attempts (lookup_id, vendor, n, request_id, state, credits, job_ref, lease_until, started_at)
    select ${lookupId}, ${vendor}, 1, ${requestId}, 'pending', credits, job_ref, lease_until, started_at from orphan`;
}

/**
 * A lookup with the reason why each vendor cannot be called. `obstacle` is null if the vendor can
 * be called.
 */
export interface Judged {
  readonly requestId: string;
  readonly lookupId: string;
  readonly judged: readonly Readonly<{ vendor: string; capMs: number; obstacle: string | null }>[];
}

/** Records the skipped vendors with their reasons, once per lookup. */
export async function recordSkipped(db: Database, lookups: readonly Judged[]): Promise<void> {
  const skipped = lookups.flatMap(({ requestId, lookupId, judged }) =>
    judged.flatMap(({ vendor, obstacle }) =>
      obstacle ? { requestId, lookupId, vendor, obstacle } : [],
    ),
  );
  if (skipped.length === 0) return;
  await run(db)`
    insert into vendor_attempts (lookup_id, vendor, n, request_id, state, reason, started_at, ended_at)
    select "lookupId", vendor, 1, "requestId", 'skip', obstacle, at, at
      from jsonb_to_recordset(${JSON.stringify(skipped)}::jsonb)
             skipped ("lookupId" text, vendor text, "requestId" text, obstacle text), clock_timestamp() at
     order by "lookupId", vendor on conflict do nothing`;
}

/**
 * Records an asynchronous vendor's job id before anything else happens, so that its response is
 * fetched and never bought twice. After a poll, records when the next poll is due. Also works for
 * an attempt that was marked as lost in the meantime.
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
    // If the call was repeated in the meantime, the newer attempt continues.
    await tx.execute(sql`
      update vendor_attempts set state = 'pending', job_ref = ${jobRef}, ended_at = null, reason = null,
                                 lease_until = clock_timestamp() + ${span(nextPollMs)}
       where ${unanswered(key)} and not exists (
         select from vendor_attempts later where later.lookup_id = ${key.lookupId}
            and later.vendor = ${key.vendor} and later.n > ${key.n})`);
    return change;
  });
}

/**
 * Ends a call that was aborted, or whose worker died. Its response is lost, and the next request
 * does not wait for it. A job only has its lease released.
 */
export async function recordLost(db: Database, attempt: AttemptId, reason: string): Promise<void> {
  await run(db)`
    update vendor_attempts
       set lease_until = case state when 'pending' then clock_timestamp() end,
           ended_at = case state when 'submitting' then clock_timestamp() end,
           reason = case state when 'submitting' then ${reason} end,
           state = case state when 'submitting' then 'lost' else state end
     where ${sameAttempt(attempt)} and ended_at is null`;
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
  const answer = sql`
    update vendor_attempts set state = ${state}, reason = ${reason}, credits = ${credits}::numeric, ended_at = clock_timestamp(),
           candidates = ${named?.candidates.length ?? 0}, lease_until = null
     where ${unanswered(key)} returning request_id as "requestId", ended_at as at`;
  return await transaction(db, async (tx) => {
    const [change, [ended]] = await Promise.all([
      recordCall(tx, vendor, era, outcome),
      named
        ? storeCandidates(tx, { ...named, lookupId, source: vendor, freshnessMs }, answer)
        : tx.execute<{ requestId: string }>(answer),
    ]);
    // If two workers fetched the result of one job, the second one has nothing to record.
    if (ended) await giveBack(tx, vendor, { ...ended, credits: cost - credits, askedAt });
    return change;
  });
}

/**
 * Marks the responses of a lookup that named no valid address, so that they are not bought again. A
 * response is not marked while one of its addresses is still undecided.
 * @param unwanted addresses of another type than the requested one; they are not checked
 */
export async function recordRefused(
  db: Database,
  lookupId: string,
  unwanted: readonly string[],
): Promise<void> {
  await run(db)`
    update vendor_attempts a set reason = 'none_valid'
     where a.lookup_id = ${lookupId} and a.state = 'found' and a.reason is null and not exists (
       select from email_checks c join stored_emails s on (s.npi, s.email) = (c.npi, c.email)
        where c.lookup_id = a.lookup_id and c.source = a.vendor and c.kind = 'named'
          and (s.unchecked and s.email <> all(${sql.param([...unwanted])}::text[]) or s.reason in ('greylisted', 'timeout', 'verifier_unavailable')))`;
}

/** Selects the row of an attempt that has no response yet. */
function unanswered(attempt: AttemptId) {
  return sql`${sameAttempt(attempt)} and state in ('submitting', 'pending', 'lost')`;
}

/** Selects the row of one attempt. */
function sameAttempt({ lookupId, vendor, n }: AttemptId) {
  return sql`(lookup_id, vendor, n) = (${lookupId}, ${vendor}, ${n})`;
}
