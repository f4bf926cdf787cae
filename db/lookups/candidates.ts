import { and, eq, inArray, lt, sql } from 'drizzle-orm';
import { clock, type Database, type Transaction, transaction } from '../client.ts';
import { emailChecks, storedEmails } from '../schema.ts';
import { type EmailType, SERVICE, type StoredVerdict } from '../words.ts';

// How addresses come into the directory: named by a source, and not yet believed.

/** An address as its source names it. */
export interface NamedCandidate {
  readonly email: string;
  readonly vendorType: EmailType | null;
  readonly verdict: StoredVerdict;
  readonly validatedAt: Date | null;
}

/** What a vendor's answer named, and whether it was about the right person. */
export interface NamedCandidates {
  readonly npi: string;
  /** Null: the person is who was asked for. Else why the addresses are not theirs: noted, but not stored. */
  readonly mismatch: string | null;
  /** False where the source's licence lets us answer with an address, but not keep it. */
  readonly mayStore: boolean;
  readonly candidates: readonly NamedCandidate[];
}

/**
 * Stores what a source named, to be checked. Part of the transaction that records its answer. Suppressed addresses
 * are not stored and leave no evidence.
 */
export async function storeCandidates(
  tx: Transaction,
  named: NamedCandidates & {
    readonly lookupId: string;
    readonly source: string;
    readonly freshnessMs: number;
  },
  at: Date,
): Promise<void> {
  const { npi, lookupId, source, mismatch, mayStore } = named;
  await lockForStoring(tx);
  const welcome = await withoutSuppressed(tx, npi, named.candidates);
  // What may not be kept and is somebody else's is not even evidence: the attempt says that there was a mismatch.
  if (welcome.length === 0 || (mismatch !== null && !mayStore)) return;
  await tx.insert(emailChecks).values(
    welcome.flatMap(({ email, verdict }) => {
      const line = { npi, email, lookupId, verdict, source, at };
      const refusal = { ...line, kind: 'identity' as const, source: SERVICE, reason: mismatch };
      return [{ ...line, kind: 'named' as const }, ...(mismatch === null ? [] : [refusal])];
    }),
  );
  if (mismatch !== null) return;
  const stale = new Date(at.getTime() - named.freshnessMs).toISOString();
  // In the order of the addresses, so that two answers about one NPI cannot wait for each other.
  for (const candidate of [...welcome].sort((a, b) => (a.email < b.email ? -1 : 1))) {
    const row = {
      emailType: candidate.vendorType,
      verdict: candidate.verdict,
      reason: null,
      lastValidatedAt: candidate.validatedAt,
      source,
      unchecked: true,
      updatedAt: at,
    };
    await tx
      .insert(storedEmails)
      .values({ npi, email: candidate.email, ...row, mayStore, firstSeenAt: at })
      .onConflictDoUpdate({
        target: [storedEmails.npi, storedEmails.email],
        set: row,
        // One that is valid and fresh stays so: another lookup may be about to answer with it.
        setWhere: sql`${storedEmails.verdict} <> 'valid' or ${storedEmails.unchecked}
          or ${storedEmails.lastValidatedAt} < ${stale}::timestamptz`,
      });
  }
  if (!mayStore) return;
  // What one source lets us keep, another cannot forbid.
  const emails = welcome.map(({ email }) => email);
  await tx
    .update(storedEmails)
    .set({ mayStore: true })
    .where(
      and(eq(storedEmails.npi, npi), inArray(storedEmails.email, emails), eq(storedEmails.mayStore, false)),
    );
}

/** An erasure locks this table: it comes before our look at the suppressions, or after the addresses are stored. */
async function lockForStoring(tx: Transaction): Promise<void> {
  await tx.execute(sql`lock table stored_emails in row exclusive mode`);
}

/**
 * Puts the addresses of an NPI that may answer once they are checked in line for a lookup: valid ones that are no
 * longer fresh, ordinary ones that NPPES lists for the provider, and those that nobody has checked yet.
 * @param listed what NPPES lists, normalised
 * @returns how many addresses wait
 * @throws {DatabaseError}
 */
export async function queueKnownEmails(
  db: Database,
  known: {
    readonly npi: string;
    readonly lookupId: string;
    readonly listed: readonly string[];
    readonly freshnessMs: number;
  },
): Promise<number> {
  const { npi, lookupId, freshnessMs } = known;
  return await transaction(db, async (tx) => {
    await lockForStoring(tx);
    const at = await clock(tx);
    const candidates = [...known.listed]
      .sort()
      .map((email): NamedCandidate => ({ email, vendorType: null, verdict: 'unknown', validatedAt: null }));
    const listed = await withoutSuppressed(tx, npi, candidates);
    if (listed.length > 0) {
      await tx
        .insert(storedEmails)
        .values(
          listed.map(({ email }) => ({
            ...{ npi, email, source: 'nppes', unchecked: true },
            ...{ verdict: 'unknown' as const, firstSeenAt: at, updatedAt: at },
          })),
        )
        .onConflictDoNothing();
    }
    await tx
      .update(storedEmails)
      .set({ unchecked: true, updatedAt: at })
      .where(
        and(
          eq(storedEmails.npi, npi),
          eq(storedEmails.verdict, 'valid'),
          eq(storedEmails.unchecked, false),
          eq(storedEmails.mayStore, true),
          lt(storedEmails.lastValidatedAt, new Date(at.getTime() - freshnessMs)),
        ),
      );
    const waiting = await tx
      .select({
        email: storedEmails.email,
        source: storedEmails.source,
        verdict: storedEmails.verdict,
        isNamed: sql<boolean>`exists (select from email_checks c where c.lookup_id = ${lookupId}
          and c.npi = stored_emails.npi and c.email = stored_emails.email and c.kind = 'named')`,
      })
      .from(storedEmails)
      .where(
        and(
          eq(storedEmails.npi, npi),
          eq(storedEmails.unchecked, true),
          eq(storedEmails.mayStore, true),
          sql`not is_suppressed(npi, email)`,
        ),
      );
    // Each once, however often this is repeated.
    const unnamed = waiting.filter(({ isNamed }) => !isNamed);
    if (unnamed.length > 0) {
      const line = { npi, lookupId, at, kind: 'named' as const };
      await tx
        .insert(emailChecks)
        .values(unnamed.map(({ email, source, verdict }) => ({ ...line, email, source, verdict })));
    }
    return waiting.length;
  });
}

async function withoutSuppressed(
  tx: Transaction,
  npi: string,
  candidates: readonly NamedCandidate[],
): Promise<NamedCandidate[]> {
  if (candidates.length === 0) return [];
  const emails = sql.param(candidates.map(({ email }) => email));
  const rows = await tx.execute<{ email: string }>(sql`
    select email from unnest(${emails}::text[]) email where not is_suppressed(${npi}, email)`);
  const welcome = new Set(rows.map(({ email }) => email));
  return candidates.filter(({ email }) => welcome.has(email));
}
