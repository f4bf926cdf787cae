import { and, eq, gt, inArray, notExists, sql } from 'drizzle-orm';
import { alias } from 'drizzle-orm/pg-core';
import { type Database, query, run, span, transaction } from '../connection/client.ts';
import { clockTime } from '../schema/columns.ts';
import { vendorAttempts } from '../schema.ts';
import { accountOf, type VendorAttemptState } from '../words.ts';
import { type NamedCandidates, storeCandidates } from './candidates.ts';
import { type BreakerChange, type CallOutcome, giveBack, recordCall } from './sources.ts';

// Calls to vendors, and their responses. Each call is recorded before it is made and after it ends,
// so that an interrupted lookup continues where it stopped.

export type ResponseState = Exclude<
  VendorAttemptState,
  'submitting' | 'pending' | 'lost' | 'retry'
>;

export type AttemptId = Readonly<
  Pick<typeof vendorAttempts.$inferSelect, 'lookupId' | 'vendor' | 'n'>
>;

/** Identifies one call to a vendor, with the values that are needed to record its outcome. */
export interface AttemptKey extends AttemptId {
  /** The reserved cost of the call, in the vendor's credits. */
  readonly cost: number;
  /** The time when the call was admitted, in milliseconds since the epoch. */
  readonly askedAt: number;
  /** The era of the circuit breaker in which the call was admitted (see `recordCall`). */
  readonly era: number;
}

/** A vendor that a lookup skips, with the reason. */
export type SkippedVendor = Readonly<Record<'vendor' | 'obstacle', string>>;

/** Records the vendors that a lookup skips. Safe to repeat. */
export async function recordSkipped(
  db: Database,
  requestId: string,
  lookupId: string,
  skipped: readonly SkippedVendor[],
): Promise<void> {
  if (skipped.length === 0) return;
  await run(db)`
    insert into vendor_attempts (
      lookup_id, vendor, n, request_id, state, reason, started_at, ended_at
    )
    select ${lookupId}, vendor, 1, ${requestId}, 'skip', obstacle, at, at
      from jsonb_to_recordset(${JSON.stringify(skipped)}::jsonb)
             skipped (vendor text, obstacle text),
           clock_timestamp() at
     order by vendor
        on conflict do nothing`;
}

/**
 * Records that a lookup did not call a vendor, because the first possible time was too late. Records
 * nothing if the vendor may still respond to an earlier call, because a later row would hide it.
 * @param why the reason of the wait
 * @param afterMs the time until the vendor could be called
 */
export async function recordNotCalled(
  db: Database,
  {
    requestId,
    vendor,
    why,
    afterMs,
  }: Readonly<Record<'requestId' | 'vendor' | 'why', string>> & {
    readonly afterMs: number;
  },
): Promise<void> {
  await run(db)`
    insert into vendor_attempts (
      lookup_id, vendor, n, request_id, state, reason, started_at, ended_at
    )
    select r.lookup_id, ${vendor}, coalesce(last.n, 0) + 1, r.id, 'skip',
           ${why} || to_char(
             (at + ${span(afterMs)}) at time zone 'UTC', ' "until" YYYY-MM-DD"T"HH24:MI:SS"Z"'),
           at, at
      from requests r
     cross join clock_timestamp() at
      left join lateral (
        select n, state
          from vendor_attempts
         where lookup_id = r.lookup_id and vendor = ${vendor}
         order by n desc limit 1
      ) last on true
     where r.id = ${requestId} and r.lookup_id is not null
       and coalesce(last.state in ('skip', 'retry'), true)
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
    const change = await recordCall(tx, accountOf(key.vendor), key.era, outcome);
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
        polledAt: clockTime,
        nextPollAt: sql`clock_timestamp() + ${span(nextPollMs)}`,
      })
      .where(and(hasNoResponse(key), notExists(isRepeated)));
    return change;
  });
}

/**
 * Ends a call that was aborted, or whose worker died. Its response is lost. If a poll was lost, the
 * job continues, and nothing changes.
 */
export async function recordLost(
  db: Database,
  attempt: AttemptId,
  reason: string,
): Promise<void> {
  await query(db, (tx) =>
    tx
      .update(vendorAttempts)
      .set({ state: 'lost', reason, endedAt: clockTime })
      .where(and(isAttempt(attempt), eq(vendorAttempts.state, 'submitting'))),
  );
}

export interface VendorResponseRecord {
  /** `lost`: the vendor may have responded and charged, but the response was not received. */
  readonly state: ResponseState | 'retry' | 'lost';
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
export async function recordVendorResponse(
  db: Database,
  key: AttemptKey,
  { state, reason, credits, outcome, named, freshnessMs }: VendorResponseRecord,
): Promise<BreakerChange | null> {
  const { lookupId, vendor, era, cost, askedAt } = key;
  return await transaction(db, async (tx) => {
    const source = accountOf(vendor);
    const change = await recordCall(tx, source, era, outcome);
    const [ended] = await tx
      .update(vendorAttempts)
      .set({
        state,
        reason,
        credits,
        endedAt: clockTime,
        candidates: named?.candidates.length ?? 0,
      })
      .where(hasNoResponse(key))
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
    await giveBack(tx, source, { requestId, credits: cost - credits, askedAt });
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
         select from email_checks c join candidates s using (lookup_id, email)
          where c.lookup_id = a.lookup_id
            and c.source = a.vendor
            and c.kind = 'named'
            and (s.verdict is null and s.email <> all(${sql.param([...unwanted])}::text[])
                 or s.reason in ('greylisted', 'timeout', 'verifier_unavailable')))`;
}

/** Selects the row of an attempt that has no response yet. */
function hasNoResponse(attempt: AttemptId) {
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
