import { and, desc, eq, sql } from 'drizzle-orm';
import { clock, type Database, type Transaction, transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { findStoredEmails } from '../requests/entitlements.ts';
import { requests, vendorAttempts } from '../schema.ts';
import type { VendorAttemptState, WantedType } from '../words.ts';
import { type NamedCandidates, storeCandidates } from './candidates.ts';
import { joinIn, lockLookup } from './lookups.ts';
import { admitCall, type CallOutcome, recordCall, type SourceLimits } from './sources.ts';

// What is asked of vendors, and what they answered. The requests of one lookup go through the same vendors; each
// question is put once, by whoever comes first, and the others find its answer here. Everything is written before
// and after a call, so that a lookup that dies in the middle goes on where it was.

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
  | { readonly kind: 'submit'; readonly key: AttemptKey; readonly wantedType: WantedType }
  | {
      readonly kind: 'poll';
      readonly key: AttemptKey;
      readonly jobRef: string;
      readonly wantedType: WantedType;
    };

export type AnsweredState = Exclude<VendorAttemptState, 'submitting' | 'pending' | 'lost' | 'retry'>;

/** One question put to a vendor. */
export interface AttemptKey {
  readonly lookupId: string;
  readonly vendor: string;
  readonly n: number;
  /** In the vendor's credits: what was set aside for the answer. */
  readonly cost: number;
  readonly askedAt: Date;
  /** The breaker's when this call was admitted. */
  readonly era: number;
}

export interface Question {
  readonly requestId: string;
  readonly vendor: string;
  readonly limits: SourceLimits;
  readonly cost: (wantedType: WantedType) => number;
  /** Whether a question whose answer was lost may be put again. */
  readonly mayRepeat: boolean;
  /** How long a call may take; one that has taken longer died with its worker. */
  readonly callMs: number;
  readonly freshnessMs: number;
}

/**
 * A call whose answer was lost may have been paid for, so it is not repeated for ever; one repetition weighs a
 * vendor's credit against a client's answer.
 */
const LOST_CALLS_AT_MOST = 2;
/** Who waits for another request's call looks this often whether its answer is there. */
const LOOK_AGAIN_MS = 1000;
/** Between the end of a call and the record of its answer. */
const LEASE_MARGIN_MS = 5000;

/**
 * Decides the next step and records it: the attempt is there before the vendor is called, and a request's first
 * question makes it `in-progress`.
 * @throws {Refusal} `request_missing` for an unknown id
 */
export async function beginVendorStep(db: Database, question: Question): Promise<NextStep> {
  return await transaction(db, async (tx) => {
    const { requestId, vendor, freshnessMs, callMs } = question;
    const [request] = await tx.select().from(requests).where(eq(requests.id, requestId)).for('update');
    if (!request) throw new Refusal('request_missing');
    if (request.settledAt) return { kind: 'settled' };
    const { npi, wantedType } = request;
    const lookupId = await joinIn(tx, request);
    const at = await clock(tx);
    // While this lookup ran, somebody asked that the person be left alone.
    const [person] = await tx.execute<{ suppressed: boolean }>(
      sql`select is_suppressed(${npi}, null) as suppressed`,
    );
    if (person?.suppressed)
      return { kind: 'over', state: 'blocked', reason: 'suppressed', lookupId, wantedType };
    const stored = await findStoredEmails(tx, { npis: [npi], wantedType, at, freshnessMs, lookupId });
    if (stored.has(npi)) return { kind: 'stored' };

    const attempts = await tx
      .select()
      .from(vendorAttempts)
      .where(and(eq(vendorAttempts.lookupId, lookupId), eq(vendorAttempts.vendor, vendor)))
      .orderBy(desc(vendorAttempts.n));
    const last = attempts[0] ?? (await adoptJob(tx, { lookupId, vendor, requestId, npi, wantedType, at }));
    const leaseMs = (last?.leaseUntil?.getTime() ?? 0) - at.getTime();
    const leaseUntil = new Date(at.getTime() + callMs + LEASE_MARGIN_MS);
    switch (last?.state) {
      case 'pending': {
        if (last.jobRef === null) throw new Error('a pending attempt has no job to ask for');
        if (leaseMs > 0) return { kind: 'wait', why: 'pending', afterMs: Math.min(leaseMs, LOOK_AGAIN_MS) };
        const admission = await admitCall(tx, vendor, question.limits, 0);
        if (admission.kind === 'wait') return admission;
        const { era } = admission;
        const key = { lookupId, vendor, n: last.n, cost: last.credits, askedAt: last.startedAt, era };
        await tx
          .update(vendorAttempts)
          .set({ leaseUntil, polls: last.polls + 1 })
          .where(sameAttempt(key));
        return { kind: 'poll', key, jobRef: last.jobRef, wantedType };
      }
      case 'submitting':
        if (leaseMs > 0)
          return { kind: 'wait', why: 'asked_already', afterMs: Math.min(leaseMs, LOOK_AGAIN_MS) };
        await end(tx, { lookupId, vendor, n: last.n }, 'lost', 'no answer recorded', at);
        break;
      case 'skip':
        // It was not asked; what it needs may be known by now.
        break;
      case 'found':
      case 'miss':
      case 'blocked':
      case 'fatal':
        return { kind: 'over', state: last.state, reason: last.reason, lookupId, wantedType };
      case 'retry':
      case 'lost':
      case undefined:
        break;
    }
    if (last?.state === 'submitting' || last?.state === 'lost') {
      const lost = attempts.filter(({ state }) => state === 'lost' || state === 'submitting').length;
      if (!question.mayRepeat || lost >= LOST_CALLS_AT_MOST) {
        return { kind: 'over', state: 'lost', reason: 'no answer recorded', lookupId, wantedType };
      }
    }
    const n = (last?.n ?? 0) + 1;
    const cost = question.cost(wantedType);
    const admission = await admitCall(tx, vendor, question.limits, cost);
    switch (admission.kind) {
      case 'wait':
        return admission;
      case 'spent':
        await tx.insert(vendorAttempts).values({
          lookupId,
          vendor,
          n,
          requestId,
          state: 'skip',
          reason: 'daily_credits',
          startedAt: at,
          endedAt: at,
        });
        // Not asked for our own sake: no ground to say that it knows nobody.
        return { kind: 'over', state: 'fatal', reason: 'daily_credits', lookupId, wantedType };
      case 'go':
        await tx.insert(vendorAttempts).values({
          lookupId,
          vendor,
          n,
          requestId,
          state: 'submitting',
          credits: cost,
          startedAt: at,
          leaseUntil,
        });
        return {
          kind: 'submit',
          key: { lookupId, vendor, n, cost, askedAt: at, era: admission.era },
          wantedType,
        };
      default:
        return admission satisfies never;
    }
  });
}

/**
 * A job that was bought for an earlier lookup of the same question and not finished in its time is asked for, and not
 * bought again. Its cost stays where it was spent.
 */
async function adoptJob(
  tx: Transaction,
  question: {
    lookupId: string;
    vendor: string;
    requestId: string;
    npi: string;
    wantedType: WantedType;
    at: Date;
  },
): Promise<typeof vendorAttempts.$inferSelect | undefined> {
  const { lookupId, vendor, requestId, npi, wantedType, at } = question;
  const [job] = await tx.execute<{ job_ref: string }>(sql`
    update vendor_attempts a set state = 'lost', reason = 'taken over', ended_at = ${at.toISOString()}::timestamptz,
           lease_until = null
      from lookups l
     where l.id = a.lookup_id and l.npi = ${npi} and l.wanted_type = ${wantedType} and l.closed_at is not null
       and l.id <> ${lookupId} and a.vendor = ${vendor} and a.state = 'pending'
       and a.started_at > now() - interval '1 day'
    returning a.job_ref`);
  if (!job) return undefined;
  const [adopted] = await tx
    .insert(vendorAttempts)
    .values({ lookupId, vendor, n: 1, requestId, state: 'pending', jobRef: job.job_ref, startedAt: at })
    .returning();
  return adopted;
}

async function end(
  tx: Transaction,
  key: Pick<AttemptKey, 'lookupId' | 'vendor' | 'n'>,
  state: VendorAttemptState,
  reason: string | null,
  at: Date,
): Promise<void> {
  await tx
    .update(vendorAttempts)
    .set({ state, reason, endedAt: at, leaseUntil: null })
    .where(and(sameAttempt(key), sql`ended_at is null`));
}

/**
 * Notes the vendors that are not asked, and why, once per lookup: what they need is not known, or they give no email
 * of the wanted type.
 * @throws {DatabaseError}
 */
export async function recordSkipped(
  db: Database,
  { requestId, lookupId }: { readonly requestId: string; readonly lookupId: string },
  skipped: readonly { readonly vendor: string; readonly reason: string }[],
): Promise<void> {
  if (skipped.length === 0) return;
  await transaction(db, async (tx) => {
    await lockLookup(tx, lookupId);
    const at = await clock(tx);
    const attempt = { lookupId, n: 1, requestId, startedAt: at, endedAt: at, state: 'skip' as const };
    await tx
      .insert(vendorAttempts)
      .values(skipped.map((one) => ({ ...attempt, ...one })))
      .onConflictDoNothing();
  });
}

/**
 * Keeps an asynchronous vendor's job id before anything else happens, so that its answer is fetched and never bought
 * twice; after a poll, when the next one is due. Also if the attempt was given up as lost meanwhile.
 * @throws {DatabaseError}
 */
export async function recordVendorJob(
  db: Database,
  { lookupId, vendor, n, era }: AttemptKey,
  jobRef: string,
  nextPollMs: number,
): Promise<void> {
  await transaction(db, async (tx) => {
    await tx
      .update(vendorAttempts)
      .set({
        state: 'pending',
        jobRef,
        endedAt: null,
        reason: null,
        leaseUntil: sql`clock_timestamp() + make_interval(secs => ${nextPollMs / 1000})`,
      })
      .where(
        and(
          sameAttempt({ lookupId, vendor, n }),
          sql`state in ('submitting', 'pending', 'lost')`,
          // If the question was put again meanwhile, that one goes on.
          sql`not exists (select from vendor_attempts later where later.lookup_id = ${lookupId}
                            and later.vendor = ${vendor} and later.n > ${n})`,
        ),
      );
    await recordCall(tx, vendor, era, { kind: 'answered' });
  });
}

/** A poll that got no answer: the job lives on, and is asked for again after `nextPollMs`. */
export async function recordFailedPoll(
  db: Database,
  { lookupId, vendor, n, era }: AttemptKey,
  outcome: CallOutcome,
  nextPollMs: number,
): Promise<void> {
  await transaction(db, async (tx) => {
    await tx
      .update(vendorAttempts)
      .set({ leaseUntil: sql`clock_timestamp() + make_interval(secs => ${nextPollMs / 1000})` })
      .where(and(sameAttempt({ lookupId, vendor, n }), eq(vendorAttempts.state, 'pending')));
    await recordCall(tx, vendor, era, outcome);
  });
}

/**
 * Ends a call that was aborted: its answer is lost, and whoever asks next need not wait for it. A job is only let go.
 * @throws {DatabaseError}
 */
export async function recordAborted(db: Database, { lookupId, vendor, n }: AttemptKey): Promise<void> {
  await transaction(db, async (tx) => {
    const at = await clock(tx);
    const sameCall = sameAttempt({ lookupId, vendor, n });
    await tx
      .update(vendorAttempts)
      .set({ leaseUntil: at })
      .where(and(sameCall, eq(vendorAttempts.state, 'pending')));
    await tx
      .update(vendorAttempts)
      .set({ state: 'lost', reason: 'aborted', endedAt: at, leaseUntil: null })
      .where(and(sameCall, eq(vendorAttempts.state, 'submitting')));
  });
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
 * Ends an attempt and stores what the vendor named, in one transaction with what it cost and how the vendor is. Also
 * if the attempt was given up as lost meanwhile: the addresses were paid for.
 * @throws {DatabaseError}
 */
export async function recordVendorAnswer(
  db: Database,
  key: AttemptKey,
  { state, reason, credits, outcome, named, freshnessMs }: VendorAnswerRecord,
): Promise<void> {
  await transaction(db, async (tx) => {
    const at = await clock(tx);
    const { lookupId, vendor } = key;
    const candidates = named?.candidates.length ?? 0;
    const ended = await tx
      .update(vendorAttempts)
      .set({ state, reason, credits, candidates, endedAt: at, leaseUntil: null })
      .where(and(sameAttempt(key), sql`state in ('submitting', 'pending', 'lost')`))
      .returning({ n: vendorAttempts.n });
    // If two fetched the answer of one job, the second has nothing to add.
    const isFirst = ended.length > 0;
    if (named && isFirst) {
      await storeCandidates(tx, { ...named, lookupId, source: vendor, freshnessMs }, at);
    }
    await recordCall(tx, vendor, key.era, outcome, isFirst ? key.cost - credits : 0, key.askedAt);
  });
}

/** The row of one attempt. */
function sameAttempt({ lookupId, vendor, n }: Pick<AttemptKey, 'lookupId' | 'vendor' | 'n'>) {
  return and(
    eq(vendorAttempts.lookupId, lookupId),
    eq(vendorAttempts.vendor, vendor),
    eq(vendorAttempts.n, n),
  );
}
