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

// What is asked of vendors, and what they answered. The requests of one lookup go through the same
// vendors; each question is put once, by whoever comes first, and the others find its answer here.
// Everything is written before and after a call, so that a lookup that dies in the middle goes on
// where it was.

/** What to do next for a request and a vendor. */
export type NextStep =
  /** The request is final. */
  | { readonly kind: 'settled' }
  /** The directory holds a fresh email of the wanted type: nobody needs to be asked. */
  | { readonly kind: 'stored' }
  /** The vendor's answer is known; `found` means that its candidates are stored. */
  | {
      readonly kind: 'over';
      readonly state: AnsweredState | 'lost';
      readonly reason: string | null;
      readonly lookupId: string;
      readonly wantedType: WantedType;
    }
  /** Somebody else is asking just now, or nobody may ask yet. */
  | { readonly kind: 'wait'; readonly why: string; readonly afterMs: number }
  /** The vendor may be asked now: for the job, if there is one. */
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

/** One question put to a vendor. */
export interface AttemptKey extends AttemptId {
  /** In the vendor's credits: what was set aside for the answer. */
  readonly cost: number;
  /** In milliseconds since the epoch. */
  readonly askedAt: number;
  /** The breaker's when this call was admitted. */
  readonly era: number;
}

export interface Question extends Pick<Call, 'limits' | 'patienceMs' | 'requiredVerifiers'> {
  readonly requestId: string;
  readonly vendor: string;
  readonly cost: (wantedType: WantedType) => number;
  /** Whether a question whose answer was lost may be put again. */
  readonly mayRepeat: boolean;
  /** How long a call may take; one that has taken longer died with its worker. */
  readonly callMs: number;
  readonly freshnessMs: number;
}

/**
 * A call whose answer was lost may have been paid for, so it is not repeated for ever; one
 * repetition weighs a vendor's credit against a client's answer.
 */
const LOST_CALLS_AT_MOST = 2;
/** Who waits for another request's call looks this often whether its answer is there. */
const LOOK_AGAIN_MS = 1000;
/** Between the end of a call and the record of its answer. */
const LEASE_MARGIN_MS = 5000;

/**
 * Decides the next step and records it: the attempt is there before the vendor is called. One
 * statement looks, one takes what the call needs; if somebody else came between, what he did is
 * refused by the table and looked at the next time.
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
  // While this lookup ran, somebody asked that the person be left alone.
  if (seen.suppressed) return over('blocked', 'suppressed');
  if (seen.stored) return { kind: 'stored' };

  const last = { lookupId, vendor, n: seen.n ?? 0 };
  const leaseMs = seen.leaseMs ?? 0;
  const holdMs = question.callMs + LEASE_MARGIN_MS;
  const afterMs = Math.min(leaseMs, LOOK_AGAIN_MS);
  try {
    switch (seen.state) {
      case 'pending':
        // Who polls just now holds it for a call at most; what is beyond that is the vendor's
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
      // A vendor that was skipped was not asked; what it needs may be known by now.
      case 'skip':
      case 'retry':
        break;
    }
    return await take(db, question, last, seen);
  } catch (error) {
    // Another request of the lookup asks since we looked.
    if (!(error instanceof DatabaseError && error.code === '23505')) throw error;
    return { kind: 'wait', why: 'asked_already', afterMs: LOOK_AGAIN_MS };
  }
}

/** What a request's next step depends on; the attempt is the last one of this vendor. */
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
  /** Attempts whose answer was lost. */
  readonly lost: number;
  /**
   * An earlier lookup of the same question with a job that was bought and not finished in its time.
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
 * Has the next call admitted, a new question or the poll of a job, and written down in the same
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
  // Not asked for our own sake: no ground to say that it knows nobody.
  if (taken.kind === 'spent')
    return { kind: 'over', state: 'fatal', reason: 'daily_credits', lookupId, wantedType };
  // A new question's is the admission's, to the day of which its credits are booked: the row's is
  // rounded.
  const askedAt = isPoll ? taken.askedAt : taken.at;
  const { era, jobRef, cost } = taken;
  // Another request of the lookup asks since we looked.
  if (isPoll && jobRef === null) return { kind: 'wait', why: 'pending', afterMs: LOOK_AGAIN_MS };
  return { kind: 'ask', key: { ...attempt, cost, askedAt, era }, jobRef, wantedType };
}

/**
 * A job that was bought for an earlier lookup is asked for, no sooner than there, and not bought
 * again. What it may cost comes along, to be made what it cost, and its age goes on: one that never
 * ends is bought anew a day after it began.
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

/** A lookup with what keeps each vendor from being asked; null if nothing does. */
export interface Judged {
  readonly requestId: string;
  readonly lookupId: string;
  readonly judged: readonly Readonly<{ vendor: string; capMs: number; obstacle: string | null }>[];
}

/** Notes the vendors that are not asked, and why, once per lookup. */
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
 * Keeps an asynchronous vendor's job id before anything else happens, so that its answer is fetched
 * and never bought twice; after a poll, answered or not, when the next one is due. Also if the
 * attempt was given up as lost meanwhile.
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
    // If the question was put again meanwhile, that one goes on.
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
 * Ends a call that was aborted, or died: its answer is lost, and whoever asks next need not wait
 * for it. A job is only let go.
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
  /** `lost`: it may have been answered and charged, but the answer did not come back. */
  readonly state: AnsweredState | 'retry' | 'lost';
  readonly reason: string | null;
  /** What the answer cost, in the vendor's credits. */
  readonly credits: number;
  readonly outcome: CallOutcome;
  readonly named: NamedCandidates | null;
  readonly freshnessMs: number;
}

/**
 * Ends an attempt and stores what the vendor named, in one transaction with what it cost and how
 * the vendor is. Also if the attempt was given up as lost meanwhile: the addresses were paid for.
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
    // If two fetched the answer of one job, the second has nothing to add.
    if (ended) await giveBack(tx, vendor, { ...ended, credits: cost - credits, askedAt });
    return change;
  });
}

/**
 * Notes of a lookup's answers that nothing they named is valid: such an answer is not bought again.
 * An address of which nobody could tell in time is no ground for that.
 * @param unwanted addresses of another type than the wanted one: they are not checked
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

/** The row of an attempt, if its answer is not there. */
function unanswered(attempt: AttemptId) {
  return sql`${sameAttempt(attempt)} and state in ('submitting', 'pending', 'lost')`;
}

/** The row of one attempt. */
function sameAttempt({ lookupId, vendor, n }: AttemptId) {
  return sql`(lookup_id, vendor, n) = (${lookupId}, ${vendor}, ${n})`;
}
