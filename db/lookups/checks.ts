import { and, eq, sql } from 'drizzle-orm';
import { type Database, read, transaction } from '../client.ts';
import { emailChecks, storedEmails } from '../schema.ts';
import { type CheckKind, type EmailType, SERVICE, type StoredVerdict } from '../words.ts';
import type { NamedCandidate } from './candidates.ts';

// Addresses on their way from "named" to a verdict: each is checked by one worker at a time, whoever waits for it, and
// everything found out about it is kept as evidence.

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

/** An address of a lookup that waits for our checks. */
export interface ClaimedEmail extends NamedCandidate {
  readonly source: string;
  /** How many different sources have named it within 30 days. */
  readonly namedBy: number;
  /** Since it came into line. */
  readonly waitedMs: number;
}

/**
 * Takes one address that a lookup named and that waits for our checks, so that nobody else checks it meanwhile: the
 * most promising first.
 * @param search.except those that the caller has had already
 * @param search.greylisted true to take those too that a mail server asked to come back for
 * @param search.claimMs how long a check may take; after that, its worker is taken for dead
 * @returns null where none is to be had
 * @throws {DatabaseError}
 */
export async function claimUnchecked(
  db: Database,
  search: {
    readonly npi: string;
    readonly lookupId: string;
    readonly except: readonly string[];
    readonly greylisted: boolean;
    readonly claimMs: number;
  },
): Promise<ClaimedEmail | null> {
  const { npi, lookupId, except, greylisted, claimMs } = search;
  const [row] = await read(db, (tx) =>
    tx.execute<{
      email: string;
      email_type: EmailType | null;
      verdict: StoredVerdict;
      last_validated_at: string | null;
      source: string;
      named_by: number;
      waited_ms: number;
    }>(sql`
      update stored_emails s set checking_until = clock_timestamp() + make_interval(secs => ${claimMs / 1000})
       where s.npi = ${npi} and s.email = (
         select w.email from stored_emails w
          where w.npi = ${npi} and w.unchecked and w.email <> all(${sql.param([...except])}::text[])
            and (w.checking_until is null or w.checking_until < clock_timestamp()
              or ${greylisted} and w.reason = ${GREYLISTED})
            and ${namedIn(lookupId)} and not is_suppressed(w.npi, w.email)
          order by w.verdict = 'valid' desc, w.email_type = 'professional' desc nulls last, w.email
          limit 1 for update skip locked)
      returning s.email, s.email_type, s.verdict, s.last_validated_at, s.source,
        (extract(epoch from clock_timestamp() - s.updated_at) * 1000)::int as waited_ms,
        (select count(distinct c.source)::int from email_checks c
          where c.npi = s.npi and c.email = s.email and c.kind = 'named' and c.verdict <> 'invalid'
            and c.at > now() - interval '30 days') as named_by`),
  );
  if (!row) return null;
  return {
    email: row.email,
    vendorType: row.email_type,
    verdict: row.verdict,
    validatedAt: row.last_validated_at === null ? null : new Date(row.last_validated_at),
    source: row.source,
    namedBy: row.named_by,
    waitedMs: row.waited_ms,
  };
}

/**
 * What is left in line of a lookup beside `except`: in somebody else's hands, or greylisted.
 * @throws {DatabaseError}
 */
export async function countUnchecked(
  db: Database,
  search: { readonly npi: string; readonly lookupId: string; readonly except: readonly string[] },
): Promise<{ readonly elsewhere: number; readonly greylisted: number }> {
  const [row] = await read(db, (tx) =>
    tx.execute<{ elsewhere: number; greylisted: number }>(sql`
      select count(*) filter (where w.reason is distinct from ${GREYLISTED})::int as elsewhere,
             count(*) filter (where w.reason = ${GREYLISTED})::int as greylisted
        from stored_emails w
       where w.npi = ${search.npi} and w.unchecked and w.checking_until > clock_timestamp()
         and w.email <> all(${sql.param([...search.except])}::text[]) and ${namedIn(search.lookupId)}`),
  );
  return row ?? { elsewhere: 0, greylisted: 0 };
}

/**
 * Lets go of an address that no verdict came of.
 * @param greylistedMs how long its mail server asked to be left alone; null where it did not
 * @throws {DatabaseError}
 */
export async function releaseUnchecked(
  db: Database,
  { npi, email }: { readonly npi: string; readonly email: string },
  greylistedMs: number | null,
): Promise<void> {
  const until =
    greylistedMs === null
      ? sql`null`
      : sql`clock_timestamp() + make_interval(secs => ${greylistedMs / 1000})`;
  await read(db, (tx) =>
    tx
      .update(storedEmails)
      .set({ checkingUntil: until, reason: greylistedMs === null ? null : GREYLISTED })
      .where(and(eq(storedEmails.npi, npi), eq(storedEmails.email, email), eq(storedEmails.unchecked, true))),
  );
}

const GREYLISTED = 'greylisted';

/** Of `w`: whether this lookup is about it, because one of its sources named it. */
function namedIn(lookupId: string) {
  return sql`exists (select from email_checks n
    where n.lookup_id = ${lookupId} and n.npi = w.npi and n.email = w.email and n.kind = 'named')`;
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
        checkingUntil: null,
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
    // An erasure locks this table: nothing of what it has erased is written again.
    await tx.execute(sql`lock table stored_emails in row exclusive mode`);
    const { npi, email } = address;
    const [stored] = await tx
      .select({ email: storedEmails.email })
      .from(storedEmails)
      .where(and(eq(storedEmails.npi, npi), eq(storedEmails.email, email)));
    if (stored) await tx.insert(emailChecks).values(evidence.map((line) => ({ ...address, ...line })));
  });
}
