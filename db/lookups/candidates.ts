import { sql } from 'drizzle-orm';
import { type Database, span, type Transaction, transaction } from '../client.ts';
import { type storedEmails, vendorProfiles } from '../schema.ts';
import { type CheckKind, DNS_REFUSALS, SERVICE } from '../words.ts';
import { STALE } from './checks.ts';

// The directory is the table stored_emails. It holds every address that a source named for an NPI,
// with the newest verdict about the address. An address starts as an unchecked candidate. It is
// checked for the first request that needs it, by one worker at a time. The result of every check
// is kept as evidence in email_checks.
//
// The erasure of a person's data locks both tables. A statement that inserts into one of them
// therefore runs either before or after the erasure, never during it. A later statement sees the
// new suppression and the missing rows.

type StoredEmail = Readonly<typeof storedEmails.$inferSelect>;

/** An address as its source reported it. */
export interface NamedCandidate extends Pick<StoredEmail, 'email' | 'verdict'> {
  readonly vendorType: StoredEmail['emailType'];
  readonly validatedAt: StoredEmail['lastValidatedAt'];
  /**
   * True if the source names this address as the person's current one, or recommends it among the
   * addresses that it has.
   */
  readonly isCurrent: boolean;
  /**
   * The source's estimate, from 0 to 1, that mail to the address reaches the person. Null if the
   * source gives none.
   */
  readonly confidence: number | null;
}

/** The addresses in a vendor's response, and whether the response is about the right person. */
export interface NamedCandidates {
  readonly npi: string;
  /**
   * Null if the response is about the requested person, otherwise the reason why it is not. Such a
   * response is recorded as evidence, but its addresses are not stored.
   */
  readonly mismatch: string | null;
  /** False if the source's license lets us return an address to a client but not keep it. */
  readonly mayStore: boolean;
  /**
   * True if the source only repeated what we sent, such as the person's name. Then it gave no
   * evidence that the address belongs to this person.
   */
  readonly repeatsInput: boolean;
  /** The facts in the vendor's profile that our record of the person lacks. Null without any. */
  readonly profile: VendorProfile | null;
  readonly candidates: readonly NamedCandidate[];
}

export type VendorProfile = Readonly<
  Pick<typeof vendorProfiles.$inferSelect, 'givenNames' | 'employerDomain'>
>;

/** The candidates of a response that is recorded for a lookup at the time `at`. */
interface RecordedCandidates extends NamedCandidates {
  readonly lookupId: string;
  readonly source: string;
  readonly at: Date;
  readonly freshnessMs: number;
}

/**
 * Stores the addresses in a vendor's response as unchecked candidates, with their evidence.
 * Suppressed addresses are not stored and leave no evidence. Neither do the addresses in a response
 * about another person that may not be kept, because the vendor attempt records the mismatch.
 */
export async function storeCandidates(
  tx: Transaction,
  named: RecordedCandidates,
): Promise<void> {
  const { source, mismatch, mayStore } = named;
  const lines: EvidenceLine[] = [{ kind: 'named', source, reason: null }];
  if (mismatch === null) {
    await upsertCandidates(tx, named);
    await improveCandidates(tx, named);
    await insertEvidence(tx, named, lines);
    if (named.profile !== null && mayStore) await storeProfile(tx, named, named.profile);
  } else if (mayStore) {
    lines.push({ kind: 'identity', source: SERVICE, reason: mismatch });
    await insertEvidence(tx, named, lines);
  }
}

/**
 * Inserts or updates the candidates. Rows are locked in the order of the addresses, so that two
 * responses about one NPI cannot deadlock.
 */
async function upsertCandidates(
  tx: Transaction,
  named: RecordedCandidates,
): Promise<void> {
  const { npi, source, at, mayStore, repeatsInput, candidates, freshnessMs } = named;
  await tx.execute(sql`
    insert into stored_emails as s (
      npi, email, email_type, verdict, last_validated_at,
      source, unchecked, updated_at, first_seen_at, repeats_input, may_store,
      is_current, confidence
    )
    select distinct on (email collate "C")
           ${npi}, email, "vendorType", verdict, "validatedAt",
           ${source}, true, ${at}::timestamptz, ${at}::timestamptz,
           ${repeatsInput}::boolean, ${mayStore}::boolean,
           "isCurrent", confidence
      from jsonb_to_recordset(${JSON.stringify(candidates)}::jsonb)
             c (email text, "vendorType" text, verdict text, "validatedAt" timestamptz(3),
                "isCurrent" boolean, confidence real)
     where not is_suppressed(${npi}, email)
     order by email collate "C"
        on conflict (npi, email) do update
       set email_type = excluded.email_type,
           verdict = excluded.verdict,
           reason = null,
           source = excluded.source,
           last_validated_at = excluded.last_validated_at,
           is_current = excluded.is_current,
           confidence = excluded.confidence,
           unchecked = true,
           updated_at = excluded.updated_at
     -- A row whose address was checked and is valid and fresh stays as it is, because another
     -- lookup may be about to return the address.
     where (s.verdict <> 'valid'
            or s.unchecked
            or s.last_validated_at < excluded.updated_at - ${span(freshnessMs)})
       -- An unchecked candidate also stays as it is if its validation date is newer than the one
       -- from this source.
       and not (s.unchecked
                and coalesce(s.last_validated_at, '-infinity')
                  > coalesce(excluded.last_validated_at, '-infinity'))`);
}

/**
 * Records that a source lets us keep the addresses, or that it has independent evidence of their
 * owner. A response of another source never undoes this.
 */
async function improveCandidates(
  tx: Transaction,
  { npi, mayStore, repeatsInput, candidates }: NamedCandidates,
): Promise<void> {
  const emails = candidates.map(({ email }) => email);
  await tx.execute(sql`
    update stored_emails
       set may_store = may_store or ${mayStore},
           repeats_input = repeats_input and ${repeatsInput}
     where npi = ${npi}
       and email = any(${sql.param(emails)})
       and ((not may_store and ${mayStore}) or (repeats_input and not ${repeatsInput}))`);
}

/**
 * Stores a vendor's profile of the person, in place of the vendor's earlier one. It comes after the
 * addresses, so an erasure that has their lock has also stored its suppression.
 */
async function storeProfile(
  tx: Transaction,
  { npi, source, at }: RecordedCandidates,
  { givenNames, employerDomain }: VendorProfile,
): Promise<void> {
  await tx.execute(sql`
    insert into ${vendorProfiles} (npi, vendor, given_names, employer_domain, seen_at)
    select ${npi}, ${source}, ${givenNames}, ${employerDomain}, ${at}::timestamptz
     where not is_suppressed(${npi}, null)
        on conflict (npi, vendor) do update
       set given_names = excluded.given_names,
           employer_domain = excluded.employer_domain,
           seen_at = excluded.seen_at`);
}

interface EvidenceLine {
  readonly kind: CheckKind;
  readonly source: string;
  readonly reason: string | null;
}

/** Inserts the given lines of evidence for each address in a response. */
async function insertEvidence(
  tx: Transaction,
  { npi, lookupId, at, candidates }: RecordedCandidates,
  lines: readonly EvidenceLine[],
): Promise<void> {
  await tx.execute(sql`
    insert into email_checks (npi, email, lookup_id, kind, source, verdict, reason, at)
    select ${npi}, email, ${lookupId}, kind, source, verdict, reason, ${at}::timestamptz
      from (
        select distinct on (email collate "C") email, verdict
          from jsonb_to_recordset(${JSON.stringify(candidates)}::jsonb)
                 c (email text, verdict text)
         where not is_suppressed(${npi}, email)
         order by email collate "C"
      ) named
     cross join jsonb_to_recordset(${JSON.stringify(lines)}::jsonb)
                  line (kind text, source text, reason text)
     order by email, kind desc`);
}

/**
 * An address that name servers or a verifier rejected is checked again after this time, because
 * name servers and verifiers may give wrong answers for some hours.
 */
const RECHECK_MS = 86_400_000;

/**
 * Queues known addresses for the lookups of their NPIs, if they may be returned once they are
 * checked:
 *
 * - valid addresses that are no longer fresh
 * - email addresses that NPPES lists for the provider, except Direct addresses
 * - addresses that were never checked
 * - addresses that name servers or a verifier rejected more than a day ago
 *
 * @param lookups the lookups to queue addresses for. `listed` holds the normalized addresses that
 * NPPES lists for the NPI
 * @param canVerify false if no verifier is configured. Without one, our own checks can only confirm
 * fresh addresses whose source calls them valid, such as imported addresses, so only these are
 * queued
 * @returns the ids of the lookups that now have addresses to check
 */
export async function queueKnownEmails(
  db: Database,
  lookups: readonly KnownLookup[],
  freshnessMs: number,
  canVerify: boolean,
): Promise<Set<string>> {
  if (lookups.length === 0) return new Set();
  // Several requests may share a lookup.
  const known = [...new Map(lookups.map((lookup) => [lookup.lookupId, lookup])).values()];
  return await transaction(db, async (tx) => {
    // Rows are locked in the order of NPIs and addresses, so that two batches cannot deadlock.
    if (canVerify) {
      await insertListed(tx, known);
      await queueStale(tx, known, freshnessMs);
    }
    return await nameQueued(tx, known, freshnessMs, canVerify);
  });
}

interface KnownLookup extends Pick<StoredEmail, 'npi'> {
  readonly lookupId: string;
  readonly listed: readonly string[];
}

/** Inserts unchecked candidates for the addresses that NPPES lists. */
async function insertListed(
  tx: Transaction,
  known: readonly KnownLookup[],
): Promise<void> {
  const listed = known.flatMap(({ npi, listed: emails }) =>
    emails.map((email) => ({ npi, email })),
  );
  await tx.execute(sql`
    insert into stored_emails (npi, email, source, verdict, unchecked)
    select npi, email, 'nppes', 'unknown', true
      from jsonb_to_recordset(${JSON.stringify(listed)}::jsonb) listed (npi text, email text)
     where not is_suppressed(npi, email)
     order by npi collate "C", email collate "C"
        on conflict do nothing`);
}

/**
 * True if name servers or a verifier rejected the stored address `s`. False if only our own rules
 * or its source rejected it. Also true if the retention job has deleted the evidence, because the
 * reason is then unknown.
 */
const IS_DOUBTFUL = sql`(
  exists (
    select from email_checks c
     where c.npi = s.npi and c.email = s.email and c.verdict <> 'valid'
       and (c.kind = 'verifier'
            or c.kind = 'local' and c.reason = any(${sql.param(DNS_REFUSALS)}::text[])))
  or not exists (
    select from email_checks c
     where c.npi = s.npi and c.email = s.email and c.kind = 'verdict'))`;

/** Queues stored addresses that are no longer fresh or were rejected more than a day ago. */
async function queueStale(
  tx: Transaction,
  known: readonly KnownLookup[],
  freshnessMs: number,
): Promise<void> {
  const npis = known.map(({ npi }) => npi);
  await tx.execute(sql`
    with stale as (
      select s.npi, s.email
        from stored_emails s
       where s.npi = any(${sql.param(npis)})
         and not s.unchecked
         and s.may_store
         and case
               when s.verdict = 'valid'
                 then s.last_validated_at < clock_timestamp() - ${span(freshnessMs)}
               else s.updated_at < clock_timestamp() - ${span(RECHECK_MS)} and ${IS_DOUBTFUL}
             end
       order by s.npi, s.email
         for update
    )
    update stored_emails s
       set unchecked = true,
           updated_at = clock_timestamp(),
           -- Clears our rejection. Otherwise the next check would assume that the source called the
           -- address invalid.
           verdict = case when s.verdict = 'valid' then 'valid' else 'unknown' end,
           reason = case when s.verdict = 'valid' then s.reason end,
           last_validated_at = case when s.verdict = 'valid' then s.last_validated_at end
      from stale
     where (s.npi, s.email) = (stale.npi, stale.email)`);
}

/**
 * Inserts a `named` row for each queued address of each lookup. If the same address is queued for
 * the same lookup again, no second row is inserted.
 * @returns the ids of the lookups that have queued addresses
 */
async function nameQueued(
  tx: Transaction,
  known: readonly KnownLookup[],
  freshnessMs: number,
  canVerify: boolean,
): Promise<Set<string>> {
  const rows = await tx.execute<Pick<KnownLookup, 'lookupId'>>(sql`
    with waiting as (
      select known."lookupId",
             s.*,
             s.last_validated_at < clock_timestamp() - ${span(freshnessMs)} as is_stale
        from jsonb_to_recordset(${JSON.stringify(known)}::jsonb)
               known (npi text, "lookupId" text)
        join stored_emails s using (npi)
       where s.unchecked
         and s.may_store
         and not is_suppressed(s.npi, s.email)
    ), queued as (
      select *
        from waiting
       where ${canVerify}::boolean or (verdict = 'valid' and not is_stale)
    ), named as (
      insert into email_checks (npi, email, lookup_id, kind, source, verdict, reason)
      select npi, email, "lookupId", 'named', source, verdict,
             case
               when is_stale
                 or (verdict <> 'valid' and exists (
                   select from email_checks c
                    where c.npi = q.npi
                      and c.email = q.email
                      and c.kind = 'named'
                      and c.source = q.source))
               then ${STALE}
             end
        from queued q
       where not exists (
         select from email_checks c
          where c.lookup_id = q."lookupId"
            and c.npi = q.npi
            and c.email = q.email
            and c.kind = 'named')
    )
    select distinct "lookupId" from queued`);
  return new Set(rows.map(({ lookupId }) => lookupId));
}
