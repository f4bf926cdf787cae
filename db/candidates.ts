import { and, eq, lt, sql } from 'drizzle-orm';
import { clock, type Database, type Transaction, transaction } from './client.ts';
import { emailChecks, storedEmails } from './schema.ts';
import { type EmailType, SERVICE, type StoredVerdict } from './words.ts';

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
  named: NamedCandidates & { readonly lookupId: string; readonly source: string },
  at: Date,
): Promise<void> {
  const { npi, lookupId, source, mismatch, mayStore } = named;
  // An erasure locks this table: it comes before the look at the suppressions, or after the addresses are stored.
  await tx.execute(sql`lock table stored_emails in row exclusive mode`);
  const welcome = await withoutSuppressed(tx, npi, named.candidates);
  if (welcome.length === 0) return;
  await tx.insert(emailChecks).values(
    welcome.flatMap(({ email, verdict }) => {
      const line = { npi, email, lookupId, verdict, source, at };
      const refusal = { ...line, kind: 'identity' as const, source: SERVICE, reason: mismatch };
      return [{ ...line, kind: 'named' as const }, ...(mismatch === null ? [] : [refusal])];
    }),
  );
  if (mismatch !== null) return;
  // In the order of the addresses, so that two answers about one NPI cannot wait for each other.
  for (const candidate of [...welcome].sort((a, b) => (a.email < b.email ? -1 : 1))) {
    const row = {
      emailType: candidate.vendorType,
      verdict: candidate.verdict,
      reason: null,
      lastValidatedAt: candidate.validatedAt,
      source,
      lookupId,
      unchecked: true,
      updatedAt: at,
    };
    await tx
      .insert(storedEmails)
      .values({ npi, email: candidate.email, ...row, mayStore, firstSeenAt: at })
      .onConflictDoUpdate({
        target: [storedEmails.npi, storedEmails.email],
        // What one source lets us keep, another cannot forbid.
        set: { ...row, mayStore: sql`${storedEmails.mayStore} or ${mayStore}` },
        // A vendor's older look at an address does not undo a newer one.
        setWhere: sql`${storedEmails.verdict} <> 'valid' or ${storedEmails.unchecked} or ${storedEmails.lastValidatedAt} <= ${
          candidate.validatedAt?.toISOString() ?? null
        }::timestamptz`,
      });
  }
}

/**
 * Puts the stored addresses of an NPI that may answer once they are checked in line for it: valid ones that are no
 * longer fresh, and ordinary addresses that NPPES lists for the provider.
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
    const at = await clock(tx);
    const candidates = known.listed.map(
      (email): NamedCandidate => ({ email, vendorType: null, verdict: 'unknown', validatedAt: null }),
    );
    const listed = await withoutSuppressed(tx, npi, candidates);
    if (listed.length > 0) {
      const added = await tx
        .insert(storedEmails)
        .values(
          listed.map(({ email }) => ({
            ...{ npi, email, lookupId, source: 'nppes', unchecked: true },
            ...{ verdict: 'unknown' as const, firstSeenAt: at, updatedAt: at },
          })),
        )
        .onConflictDoNothing()
        .returning({ email: storedEmails.email });
      if (added.length > 0) {
        await tx.insert(emailChecks).values(
          added.map(({ email }) => ({
            ...{ npi, email, lookupId, source: 'nppes', at },
            ...{ kind: 'named' as const, verdict: 'unknown' as const },
          })),
        );
      }
    }
    await tx
      .update(storedEmails)
      .set({ unchecked: true, lookupId })
      .where(
        and(
          eq(storedEmails.npi, npi),
          eq(storedEmails.verdict, 'valid'),
          eq(storedEmails.unchecked, false),
          lt(storedEmails.lastValidatedAt, new Date(at.getTime() - freshnessMs)),
          sql`not is_suppressed(npi, email)`,
        ),
      );
    const [row] = await tx
      .select({ waiting: sql<number>`count(*)::int` })
      .from(storedEmails)
      .where(and(eq(storedEmails.npi, npi), eq(storedEmails.unchecked, true)));
    return row?.waiting ?? 0;
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
