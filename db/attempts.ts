import { and, desc, eq, sql } from 'drizzle-orm';
import { type NamedCandidates, storeCandidates } from './candidates.ts';
import { clock, type Database, type Transaction, transaction } from './client.ts';
import { findStoredEmails } from './entitlements.ts';
import { DatabaseError } from './errors.ts';
import { joinIn } from './lookups.ts';
import { requests, vendorAttempts } from './schema.ts';
import { admitCall, type CallOutcome, recordCall, type SourceLimits } from './sources.ts';
import type { VendorAttemptState, WantedType } from './words.ts';

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
 * @throws {DatabaseError} `request_missing` for an unknown id
 */
export async function beginVendorStep(db: Database, question: Question): Promise<NextStep> {
  return await transaction(db, async (tx) => {
    const { requestId, vendor, freshnessMs, callMs } = question;
    const [request] = await tx.select().from(requests).where(eq(requests.id, requestId)).for('update');
    if (!request) throw new DatabaseError('request_missing');
    if (request.settledAt) return { kind: 'settled' };
    const { npi, wantedType } = request;
    const lookupId = await joinIn(tx, request);
    const at = await clock(tx);
    const stored = await findStoredEmails(tx, { npis: [npi], wantedType, at, freshnessMs, lookupId });
    if (stored.has(npi)) return { kind: 'stored' };

    const attempts = await tx
      .select()
      .from(vendorAttempts)
      .where(and(eq(vendorAttempts.lookupId, lookupId), eq(vendorAttempts.vendor, vendor)))
      .orderBy(desc(vendorAttempts.n));
    const last = attempts[0];
    const leaseMs = (last?.leaseUntil?.getTime() ?? 0) - at.getTime();
    const leaseUntil = new Date(at.getTime() + callMs + LEASE_MARGIN_MS);
    switch (last?.state) {
      case 'pending': {
        if (last.jobRef === null) throw new DatabaseError('job_ref_missing');
        if (leaseMs > 0) return { kind: 'wait', why: 'pending', afterMs: Math.min(leaseMs, LOOK_AGAIN_MS) };
        const admission = await admitCall(tx, vendor, question.limits, 0);
        if (admission.kind === 'wait') return admission;
        const key = { lookupId, vendor, n: last.n, cost: last.credits, askedAt: last.startedAt };
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
      case 'found':
      case 'miss':
      case 'skip':
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
          ...{ lookupId, vendor, n, requestId, startedAt: at, endedAt: at },
          ...{ state: 'skip', reason: 'daily_credits' },
        });
        return { kind: 'over', state: 'skip', reason: 'daily_credits', lookupId, wantedType };
      case 'go':
        await tx.insert(vendorAttempts).values({
          ...{ lookupId, vendor, n, requestId, startedAt: at, leaseUntil },
          ...{ state: 'submitting', credits: cost },
        });
        return { kind: 'submit', key: { lookupId, vendor, n, cost, askedAt: at }, wantedType };
      default:
        return admission satisfies never;
    }
  });
}

/**
 * Keeps an asynchronous vendor's job id before anything else happens, so that its answer is fetched and never bought
 * twice; after a poll, when the next one is due. Also where the attempt was given up as lost meanwhile.
 * @throws {DatabaseError}
 */
export async function recordVendorJob(
  db: Database,
  { lookupId, vendor, n }: AttemptKey,
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
          // Where the question was put again meanwhile, that one goes on.
          sql`not exists (select from vendor_attempts later where later.lookup_id = ${lookupId}
                            and later.vendor = ${vendor} and later.n > ${n})`,
        ),
      );
    await recordCall(tx, vendor, { kind: 'answered' });
  });
}

/** A poll that got no answer: the job lives on, and is asked for again after `nextPollMs`. */
export async function recordFailedPoll(
  db: Database,
  { lookupId, vendor, n }: AttemptKey,
  outcome: CallOutcome,
  nextPollMs: number,
): Promise<void> {
  await transaction(db, async (tx) => {
    await tx
      .update(vendorAttempts)
      .set({ leaseUntil: sql`clock_timestamp() + make_interval(secs => ${nextPollMs / 1000})` })
      .where(and(sameAttempt({ lookupId, vendor, n }), eq(vendorAttempts.state, 'pending')));
    await recordCall(tx, vendor, outcome);
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
  readonly state: AnsweredState | 'retry';
  readonly reason: string | null;
  /** What the answer cost, in the vendor's credits. */
  readonly credits: number;
  readonly outcome: CallOutcome;
  readonly named: NamedCandidates | null;
}

/**
 * Ends an attempt and stores what the vendor named, in one transaction with what it cost and how the vendor is. Also
 * where the attempt was given up as lost meanwhile: the addresses were paid for.
 * @throws {DatabaseError}
 */
export async function recordVendorAnswer(
  db: Database,
  key: AttemptKey,
  { state, reason, credits, outcome, named }: VendorAnswerRecord,
): Promise<void> {
  await transaction(db, async (tx) => {
    const at = await clock(tx);
    const { lookupId, vendor, n } = key;
    await tx
      .update(vendorAttempts)
      .set({
        state,
        reason,
        credits,
        candidates: named?.candidates.length ?? 0,
        endedAt: at,
        leaseUntil: null,
      })
      .where(and(sameAttempt({ lookupId, vendor, n }), sql`state in ('submitting', 'pending', 'lost')`));
    if (named) await storeCandidates(tx, { ...named, lookupId, source: vendor }, at);
    await recordCall(tx, vendor, outcome, key.cost - credits, key.askedAt);
  });
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

function sameAttempt({ lookupId, vendor, n }: Pick<AttemptKey, 'lookupId' | 'vendor' | 'n'>) {
  return and(
    eq(vendorAttempts.lookupId, lookupId),
    eq(vendorAttempts.vendor, vendor),
    eq(vendorAttempts.n, n),
  );
}
