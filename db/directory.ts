import { and, desc, eq, sql } from 'drizzle-orm';
import { clock, type Database, read, type Transaction, transaction } from './client.ts';
import { findStoredEmails } from './entitlements.ts';
import { DatabaseError } from './errors.ts';
import { requests, storedEmails, vendorAttempts } from './schema.ts';
import type { EmailType, StoredVerdict, VendorAttemptState, WantedType } from './words.ts';

// The directory of stored emails, and the record of what was asked of vendors to fill it. Both are written before
// and after every call, so that a lookup that dies in the middle goes on where it was.

/** What to do next for a request and a vendor. */
export type NextStep =
  /** The request is final, or an earlier attempt has the answer. */
  | {
      readonly kind: 'over';
      readonly state: VendorAttemptState | 'settled';
      readonly reason: string | null;
      readonly wantedType: WantedType;
    }
  /** The directory holds a fresh email of the wanted type: nobody needs to be asked. */
  | { readonly kind: 'stored' }
  | { readonly kind: 'submit'; readonly n: number; readonly wantedType: WantedType }
  | { readonly kind: 'poll'; readonly n: number; readonly jobRef: string; readonly wantedType: WantedType };

export interface FoundCandidate {
  readonly email: string;
  readonly vendorType: EmailType | null;
  readonly verdict: StoredVerdict;
  readonly validatedAt: Date | null;
}

/** An address that waits for our own checks. */
export type UncheckedEmail = FoundCandidate;

export interface CheckedEmail {
  readonly verdict: StoredVerdict;
  readonly emailType: EmailType | null;
  readonly reason: string | null;
  readonly validatedAt: Date | null;
}

/**
 * A call whose outcome a crash has swallowed may have been paid for, so it is not repeated blindly for ever; one
 * repetition weighs a vendor's credit against a client's answer.
 */
const LOST_CALLS_AT_MOST = 2;

/**
 * Decides the next step and records it: the attempt row exists before the vendor is called, and the request's first
 * lookup makes it `in-progress`.
 * @throws {DatabaseError}
 */
export async function beginVendorStep(
  db: Database,
  requestId: string,
  vendor: string,
  rules: { freshnessMs: number },
): Promise<NextStep> {
  return await transaction(db, async (tx) => {
    const [request] = await tx.select().from(requests).where(eq(requests.id, requestId)).for('update');
    if (!request) throw new DatabaseError('request_missing');
    const { npi, wantedType } = request;
    if (request.settledAt) return { kind: 'over', state: 'settled', reason: null, wantedType };
    const at = await clock(tx);
    const attempts = await tx
      .select()
      .from(vendorAttempts)
      .where(and(eq(vendorAttempts.requestId, requestId), eq(vendorAttempts.vendor, vendor)))
      .orderBy(desc(vendorAttempts.n));
    const last = attempts[0];
    if (last?.state === 'pending' && last.jobRef !== null) {
      return { kind: 'poll', n: last.n, jobRef: last.jobRef, wantedType };
    }
    if (last?.state === 'submitting') {
      await end(tx, { requestId, vendor, n: last.n }, 'lost', 'no answer recorded', at);
      if (attempts.filter(({ state }) => state === 'lost').length + 1 >= LOST_CALLS_AT_MOST) {
        return { kind: 'over', state: 'lost', reason: 'no answer recorded', wantedType };
      }
    } else if (last && last.state !== 'retry' && last.state !== 'lost') {
      return { kind: 'over', state: last.state, reason: last.reason, wantedType };
    }
    if (request.status === 'accepted') {
      await tx
        .update(requests)
        .set({ status: 'in-progress', startedAt: at })
        .where(eq(requests.id, requestId));
    }
    const stored = await findStoredEmails(tx, {
      npis: [npi],
      wantedType,
      at,
      freshnessMs: rules.freshnessMs,
    });
    if (stored.has(npi)) return { kind: 'stored' };
    const n = (last?.n ?? 0) + 1;
    await tx.insert(vendorAttempts).values({ requestId, vendor, n, state: 'submitting', startedAt: at });
    return { kind: 'submit', n, wantedType };
  });
}

export interface AttemptKey {
  readonly requestId: string;
  readonly vendor: string;
  readonly n: number;
}

/**
 * Keeps an asynchronous vendor's job id, so that the answer is fetched and never bought twice.
 * @throws {DatabaseError}
 */
export async function recordVendorJob(db: Database, key: AttemptKey, jobRef: string): Promise<void> {
  await read(db, (tx) =>
    tx
      .update(vendorAttempts)
      .set({ state: 'pending', jobRef })
      .where(and(sameAttempt(key), eq(vendorAttempts.state, 'submitting'))),
  );
}

/**
 * Ends an attempt and stores what the vendor named, unchecked, in one transaction. Also where the attempt was given
 * up as lost meanwhile: the addresses were paid for.
 * @throws {DatabaseError}
 */
export async function recordVendorAnswer(
  db: Database,
  key: AttemptKey,
  answer: {
    readonly state: Exclude<VendorAttemptState, 'submitting' | 'pending' | 'lost'>;
    readonly reason: string | null;
    readonly npi: string;
    readonly candidates: readonly FoundCandidate[];
  },
): Promise<void> {
  await transaction(db, async (tx) => {
    const at = await clock(tx);
    await end(tx, key, answer.state, answer.reason, at);
    // In the order of the addresses, so that two answers about one NPI cannot wait for each other.
    const candidates = [...answer.candidates].sort((a, b) => (a.email < b.email ? -1 : 1));
    for (const candidate of candidates) {
      const row = {
        emailType: candidate.vendorType,
        verdict: candidate.verdict,
        reason: null,
        lastValidatedAt: candidate.validatedAt,
        source: key.vendor,
        sourceRequestId: key.requestId,
        unchecked: true,
        updatedAt: at,
      };
      await tx
        .insert(storedEmails)
        .values({ npi: answer.npi, email: candidate.email, ...row, firstSeenAt: at })
        .onConflictDoUpdate({
          target: [storedEmails.npi, storedEmails.email],
          set: row,
          // A vendor's older look at an address does not undo a newer one.
          setWhere: sql`${storedEmails.verdict} <> 'valid' or ${storedEmails.lastValidatedAt} <= ${
            candidate.validatedAt?.toISOString() ?? null
          }::timestamptz`,
        });
    }
  });
}

/**
 * The addresses of an NPI that wait for our own checks.
 * @throws {DatabaseError}
 */
export async function listUnchecked(db: Database, npi: string): Promise<UncheckedEmail[]> {
  return await read(db, (tx) =>
    tx
      .select({
        email: storedEmails.email,
        vendorType: storedEmails.emailType,
        verdict: storedEmails.verdict,
        validatedAt: storedEmails.lastValidatedAt,
      })
      .from(storedEmails)
      .where(and(eq(storedEmails.npi, npi), eq(storedEmails.unchecked, true))),
  );
}

/**
 * Writes the verdict on an address.
 * @throws {DatabaseError}
 */
export async function recordVerdict(
  db: Database,
  npi: string,
  email: string,
  checked: CheckedEmail,
): Promise<void> {
  await read(db, (tx) =>
    tx
      .update(storedEmails)
      .set({
        verdict: checked.verdict,
        emailType: checked.emailType,
        reason: checked.reason,
        lastValidatedAt: checked.validatedAt,
        unchecked: false,
        updatedAt: sql`clock_timestamp()`,
      })
      .where(and(eq(storedEmails.npi, npi), eq(storedEmails.email, email))),
  );
}

/**
 * Whether the directory now satisfies a wanted type.
 * @throws {DatabaseError}
 */
export async function hasStoredEmail(
  db: Database,
  search: { npi: string; wantedType: WantedType; freshnessMs: number },
): Promise<boolean> {
  return await transaction(db, async (tx) => {
    const at = await clock(tx);
    return (await findStoredEmails(tx, { ...search, npis: [search.npi], at })).has(search.npi);
  });
}

/**
 * Puts an address into the directory that was validated elsewhere, such as the operator's own data.
 * @throws {DatabaseError}
 */
export async function storeEmail(
  db: Database,
  known: { npi: string; email: string; emailType: EmailType; lastValidatedAt: Date; source: string },
): Promise<void> {
  const { emailType, lastValidatedAt, source } = known;
  const row = {
    emailType,
    lastValidatedAt,
    source,
    verdict: 'valid',
    reason: 'imported',
    unchecked: false,
  } as const;
  await read(db, (tx) =>
    tx
      .insert(storedEmails)
      .values({ npi: known.npi, email: known.email, ...row })
      .onConflictDoUpdate({ target: [storedEmails.npi, storedEmails.email], set: row }),
  );
}

async function end(
  tx: Transaction,
  key: AttemptKey,
  state: VendorAttemptState,
  reason: string | null,
  at: Date,
): Promise<void> {
  await tx
    .update(vendorAttempts)
    .set({ state, reason, endedAt: at })
    .where(and(sameAttempt(key), sql`${vendorAttempts.endedAt} is null`));
}

function sameAttempt(key: AttemptKey) {
  return and(
    eq(vendorAttempts.requestId, key.requestId),
    eq(vendorAttempts.vendor, key.vendor),
    eq(vendorAttempts.n, key.n),
  );
}
