import { and, asc, eq, gte, lt, sql } from 'drizzle-orm';
import type { NamedCandidate } from './candidates.ts';
import { clock, type Database, read, transaction } from './client.ts';
import { findStoredEmails } from './entitlements.ts';
import { emailChecks, storedEmails } from './schema.ts';
import { type CheckKind, type EmailType, SERVICE, type StoredVerdict, type WantedType } from './words.ts';

// The directory: every address a source ever named for an NPI, with the newest verdict on it and the evidence for it.

/** An address that waits for our checks. */
export interface UncheckedEmail extends NamedCandidate {
  readonly source: string;
  /** How many different sources have named it within 30 days. */
  readonly namedBy: number;
}

/** One line of evidence on an address. */
export interface Evidence {
  readonly kind: CheckKind;
  readonly source: string;
  readonly verdict: StoredVerdict;
  readonly reason: string | null;
  readonly durationMs: number | null;
}

export interface CheckedEmail {
  readonly verdict: StoredVerdict;
  readonly emailType: EmailType | null;
  readonly reason: string | null;
  readonly validatedAt: Date | null;
}

/**
 * The addresses of an NPI that wait for our checks.
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
        source: storedEmails.source,
        namedBy: sql<number>`(select count(distinct c.source)::int from email_checks c
          where c.npi = stored_emails.npi and c.email = stored_emails.email and c.kind = 'named'
            and c.verdict <> 'invalid' and c.at > clock_timestamp() - interval '30 days')`,
      })
      .from(storedEmails)
      .where(
        and(eq(storedEmails.npi, npi), eq(storedEmails.unchecked, true), sql`not is_suppressed(npi, email)`),
      )
      .orderBy(asc(storedEmails.email)),
  );
}

/**
 * Writes the verdict on an address, and the evidence for it.
 * @throws {DatabaseError}
 */
export async function recordVerdict(
  db: Database,
  address: { readonly npi: string; readonly email: string; readonly lookupId: string | null },
  checked: CheckedEmail,
  evidence: readonly Evidence[],
): Promise<void> {
  const { npi, email, lookupId } = address;
  const { verdict, reason } = checked;
  await transaction(db, async (tx) => {
    const rows = await tx
      .update(storedEmails)
      .set({
        verdict,
        emailType: checked.emailType,
        reason,
        lastValidatedAt: checked.validatedAt,
        unchecked: false,
        updatedAt: sql`clock_timestamp()`,
      })
      .where(and(eq(storedEmails.npi, npi), eq(storedEmails.email, email)))
      .returning({ email: storedEmails.email });
    // Erased meanwhile: nothing of it is written again.
    if (rows.length === 0) return;
    const lines = [
      ...evidence,
      { kind: 'verdict' as const, source: SERVICE, verdict, reason, durationMs: null },
    ];
    await tx.insert(emailChecks).values(lines.map((line) => ({ npi, email, lookupId, ...line })));
  });
}

/**
 * Writes what was found out about an address that no verdict came of yet.
 * @throws {DatabaseError}
 */
export async function recordEvidence(
  db: Database,
  address: { readonly npi: string; readonly email: string; readonly lookupId: string | null },
  evidence: readonly Evidence[],
): Promise<void> {
  if (evidence.length === 0) return;
  await transaction(db, async (tx) => {
    // Erased meanwhile: nothing of it is written again.
    const { npi, email } = address;
    const [stored] = await tx
      .select({ email: storedEmails.email })
      .from(storedEmails)
      .where(and(eq(storedEmails.npi, npi), eq(storedEmails.email, email)))
      .for('update');
    if (stored) await tx.insert(emailChecks).values(evidence.map((line) => ({ ...address, ...line })));
  });
}

/**
 * Whether the directory now satisfies a wanted type.
 * @throws {DatabaseError}
 */
export async function hasStoredEmail(
  db: Database,
  search: { npi: string; wantedType: WantedType; freshnessMs: number; lookupId: string | null },
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

/** An address that will be stale soon. */
export interface FadingEmail {
  readonly npi: string;
  readonly email: string;
  readonly emailType: EmailType | null;
  readonly source: string;
}

/**
 * Valid addresses that go stale within `leadMs`, of NPIs that were asked for within 90 days: the most recently asked
 * for first.
 * @throws {DatabaseError}
 */
export async function listFading(
  db: Database,
  search: { readonly freshnessMs: number; readonly leadMs: number; readonly limit: number },
): Promise<FadingEmail[]> {
  return await transaction(db, async (tx) => {
    const at = await clock(tx);
    const stale = new Date(at.getTime() - search.freshnessMs);
    const fading = new Date(stale.getTime() + search.leadMs);
    const asked = sql`(select max(r.accepted_at) from requests r where r.npi = stored_emails.npi)`;
    return await tx
      .select({
        npi: storedEmails.npi,
        email: storedEmails.email,
        emailType: storedEmails.emailType,
        source: storedEmails.source,
      })
      .from(storedEmails)
      .where(
        and(
          eq(storedEmails.verdict, 'valid'),
          eq(storedEmails.unchecked, false),
          eq(storedEmails.mayStore, true),
          gte(storedEmails.lastValidatedAt, stale),
          lt(storedEmails.lastValidatedAt, fading),
          sql`${asked} > clock_timestamp() - interval '90 days'`,
          sql`not is_suppressed(npi, email)`,
        ),
      )
      .orderBy(sql`${asked} desc`)
      .limit(search.limit);
  });
}

/**
 * Removes addresses that their source does not let us keep, once the lookup they answered is over.
 * @throws {DatabaseError}
 */
export async function forgetUnkept(db: Database): Promise<void> {
  await read(db, (tx) =>
    tx.execute(sql`
      delete from stored_emails s using lookups l
       where not s.may_store and l.id = s.lookup_id and l.closed_at < clock_timestamp() - interval '1 hour'`),
  );
}
