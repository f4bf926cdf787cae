import { and, eq, sql } from 'drizzle-orm';
import { clock, type Database, transaction } from '../client.ts';
import { vendorAttempts } from '../schema.ts';
import { type NamedCandidates, storeCandidates } from './candidates.ts';
import { type CallOutcome, recordCall } from './sources.ts';
import { type AnsweredState, type AttemptKey, sameAttempt } from './vendor-attempts.ts';

// What came of a question to a vendor, in one transaction with what it cost and how the vendor is.

/**
 * Keeps an asynchronous vendor's job id before anything else happens, so that its answer is fetched and never bought
 * twice; after a poll, when the next one is due. Also where the attempt was given up as lost meanwhile.
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
          // Where the question was put again meanwhile, that one goes on.
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
 * where the attempt was given up as lost meanwhile: the addresses were paid for.
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
    // Of two who fetched the answer of one job, the second has nothing to add.
    const isFirst = ended.length > 0;
    if (named && isFirst) {
      await storeCandidates(tx, { ...named, lookupId, source: vendor, freshnessMs }, at);
    }
    await recordCall(tx, vendor, key.era, outcome, isFirst ? key.cost - credits : 0, key.askedAt);
  });
}
