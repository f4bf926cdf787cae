import { sql } from 'drizzle-orm';
import {
  type Database,
  only,
  run,
  span,
  type Transaction,
} from '../connection/client.ts';
import { type candidates, vendorProfiles } from '../schema.ts';
import { DNS_REFUSALS, SERVICE } from '../words.ts';
import { STALE } from './checks.ts';

// A candidate is an address that a lookup must check: a source named it, or it was known when a
// request joined the lookup. The worker with the lookup's turn checks one candidate after the other
// (candidate-checks.ts). The verdict goes into the candidate's row and, if the address may be kept,
// into the directory. The result of every check is kept as evidence in email_checks.
//
// The erasure of a person's data locks these three tables. A statement that inserts into one of
// them therefore runs either before or after the erasure, never during it. A later statement sees
// the new suppression and the missing rows. All statements write to the tables in the order
// candidates, stored_emails, email_checks, so that they cannot deadlock with an erasure.

type Candidate = Readonly<typeof candidates.$inferSelect>;

/** An address as its source reported it. */
export interface NamedCandidate extends Pick<Candidate, 'email'> {
  readonly verdict: Candidate['claimedVerdict'];
  readonly vendorType: Candidate['claimedType'];
  /** When the source last checked the mailbox. Null if it did not say. */
  readonly validatedAt: Candidate['claimedDate'];
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
   * response is recorded as evidence, but its addresses do not become candidates.
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
  Pick<typeof vendorProfiles.$inferSelect, 'givenNames' | 'surname' | 'employerDomain'>
>;

/** The candidates of a response that is recorded for a lookup at the time `at`. */
interface RecordedCandidates extends NamedCandidates {
  readonly lookupId: string;
  readonly source: string;
  readonly at: Date;
  readonly freshnessMs: number;
}

/**
 * Stores the addresses in a vendor's response as candidates of the lookup, with their evidence.
 * Suppressed addresses are not stored and leave no evidence. Neither do the addresses in a response
 * about another person that may not be kept, because the vendor attempt records the mismatch.
 */
export async function storeCandidates(
  tx: Transaction,
  named: RecordedCandidates,
): Promise<void> {
  const { mismatch, mayStore, profile } = named;
  if (mismatch === null) {
    await nameCandidates(tx, named);
    if (profile !== null && mayStore) {
      await storeProfile(tx, named, profile);
    }
  } else if (mayStore) {
    await recordMismatch(tx, named, mismatch);
  }
}

/**
 * Inserts the candidates, or replaces their claims. Two facts that an earlier source proved stay:
 * the address may be kept, and a source knows the owner by its own data.
 */
async function nameCandidates(tx: Transaction, named: RecordedCandidates): Promise<void> {
  const { lookupId, npi, source, at, mayStore, repeatsInput, freshnessMs } = named;
  await tx.execute(sql`
    with named as materialized (
      select distinct on (email collate "C") *
        from jsonb_to_recordset(${JSON.stringify(named.candidates)}::jsonb)
               c (email text, "vendorType" text, verdict text, "validatedAt" timestamptz(3),
                  "isCurrent" boolean, confidence real)
       where not is_suppressed(${npi}, email)
       order by email collate "C"
    ), every_claim as (
      select email, ${source} as source, "vendorType" as type, verdict, "validatedAt" as validated_at,
             "isCurrent" as is_current, confidence, ${at}::timestamptz as named_at, true as is_new
        from named
      union all
      select c.email, c.source, c.claimed_type, c.claimed_verdict, c.claimed_date,
             c.is_current, c.confidence, c.named_at, false
        from candidates c join named using (email)
       where c.lookup_id = ${lookupId} and c.verdict is null
    ), claim as (
      -- If two sources named the address, the claim with the newer date counts.
      select distinct on (email) *
        from every_claim
       order by email, validated_at desc nulls last, is_new desc
    ), proven as (
      select email, bool_and(repeats_input) as repeats_input, bool_or(may_store) as may_store
        from (
          select email, ${repeatsInput}::boolean as repeats_input, ${mayStore}::boolean as may_store
            from named
          union all
          select email, repeats_input, may_store from candidates where lookup_id = ${lookupId}
          union all
          select email, repeats_input, true from stored_emails where npi = ${npi}
        ) source
       group by email
    ), fresh as (
      -- An address that was checked recently and is valid is not checked again.
      select email, verdict, email_type, reason, last_validated_at
        from stored_emails
       where npi = ${npi}
         and verdict = 'valid'
         and last_validated_at >= ${at}::timestamptz - ${span(freshnessMs)}
    ), stored as (
      insert into candidates (
        lookup_id, npi, email, source, claimed_type, claimed_verdict, claimed_date, is_current,
        confidence, named_at, repeats_input, may_store, verdict, email_type, reason, validated_at
      )
      select ${lookupId}, ${npi}, email, claim.source, claim.type, claim.verdict,
             claim.validated_at, claim.is_current, claim.confidence, claim.named_at,
             proven.repeats_input, proven.may_store,
             fresh.verdict, fresh.email_type, fresh.reason, fresh.last_validated_at
        from claim join proven using (email) left join fresh using (email)
       order by email collate "C"
          on conflict (lookup_id, email) do update
         set source = excluded.source,
             claimed_type = excluded.claimed_type,
             claimed_verdict = excluded.claimed_verdict,
             claimed_date = excluded.claimed_date,
             is_current = excluded.is_current,
             confidence = excluded.confidence,
             named_at = excluded.named_at,
             repeats_input = excluded.repeats_input,
             may_store = excluded.may_store,
             -- A rejected address is checked again, because two sources count for more than one.
             verdict = excluded.verdict,
             email_type = excluded.email_type,
             reason = excluded.reason,
             validated_at = excluded.validated_at,
             check_after = case when excluded.verdict is null then candidates.check_after end
       where candidates.verdict is distinct from 'valid'
    ), evidence as (
      insert into email_checks (npi, email, lookup_id, kind, source, verdict, at)
      select ${npi}, email, ${lookupId}, 'named', ${source}, verdict, ${at}::timestamptz
        from named
    )
    select`);
}

/** Records that a response with these addresses is about another person. */
async function recordMismatch(
  tx: Transaction,
  { npi, lookupId, source, at, candidates: named }: RecordedCandidates,
  mismatch: string,
): Promise<void> {
  await tx.execute(sql`
    insert into email_checks (npi, email, lookup_id, kind, source, verdict, reason, at)
    select ${npi}, email, ${lookupId}, kind, source, verdict, reason, ${at}::timestamptz
      from (
        select distinct on (email collate "C") email, verdict
          from jsonb_to_recordset(${JSON.stringify(named)}::jsonb)
                 c (email text, verdict text)
         where not is_suppressed(${npi}, email)
         order by email collate "C"
      ) named
     cross join (values ('named', ${source}, null), ('identity', ${SERVICE}, ${mismatch}))
                  line (kind, source, reason)
     order by email, kind desc`);
}

/**
 * Stores a vendor's profile of the person, in place of the vendor's earlier one. It comes after the
 * addresses, so an erasure that has their lock has also stored its suppression.
 */
async function storeProfile(
  tx: Transaction,
  { npi, source, at }: RecordedCandidates,
  { givenNames, surname, employerDomain }: VendorProfile,
): Promise<void> {
  await tx.execute(sql`
    insert into ${vendorProfiles}
           (npi, vendor, given_names, surname, employer_domain, seen_at)
    select ${npi}, ${source}, ${givenNames}, ${surname}, ${employerDomain}, ${at}::timestamptz
     where not is_suppressed(${npi}, null)
        on conflict (npi, vendor) do update
       set given_names = excluded.given_names,
           surname = excluded.surname,
           employer_domain = excluded.employer_domain,
           seen_at = excluded.seen_at`);
}

/**
 * An address that name servers or a verifier rejected is checked again after this time, because
 * name servers and verifiers may give wrong results for some hours.
 */
const RECHECK_MS = 86_400_000;

interface KnownAddresses extends Pick<Candidate, 'npi' | 'lookupId'> {
  /** The normalized addresses that NPPES lists for the provider, except Direct addresses. */
  readonly listed: readonly string[];
  readonly freshnessMs: number;
  /**
   * False if no verifier is configured. Without one, our own checks can only confirm fresh addresses
   * whose source calls them valid, such as imported ones, so only these are copied.
   */
  readonly canVerify: boolean;
}

/**
 * Copies the known addresses of an NPI that may be returned once they are checked into a lookup.
 * Safe to repeat. If several kinds of known addresses name the same one, the newest is copied.
 * @returns true if the lookup has candidates to check
 */
export async function copyKnown(
  db: Database,
  { npi, lookupId, listed, freshnessMs, canVerify }: KnownAddresses,
): Promise<boolean> {
  const rows = await run<{ waits: boolean }>(db)`
    with theirs as (
      select * from stored_emails where npi = ${npi}
    ), stale as (
      -- Valid addresses of the directory that are no longer fresh.
      select email, source, email_type as claimed_type, repeats_input,
             'valid' as claimed_verdict, last_validated_at as claimed_date, updated_at as at
        from theirs
       where verdict = 'valid' and last_validated_at < clock_timestamp() - ${span(freshnessMs)}
    ), imported as (
      -- Addresses that an operator imported and that were never checked.
      select email, source, email_type as claimed_type, repeats_input,
             case when last_validated_at is null then 'unknown' else 'valid' end as claimed_verdict,
             last_validated_at as claimed_date, updated_at as at
        from theirs
       where verdict = 'unknown' and reason = 'imported'
    ), rejected as (
      -- Addresses whose rejection was undone (forget_checks), and those that name servers or a
      -- verifier rejected more than a day ago. An address that only our own rules or its source
      -- rejected is left out. If the retention job has deleted the evidence, the reason is unknown,
      -- and the address is copied.
      select email, source, email_type as claimed_type, repeats_input,
             'unknown' as claimed_verdict, null::timestamptz as claimed_date, updated_at as at
        from theirs s
       where verdict <> 'valid'
         and (verdict = 'unknown' and reason = 'forgotten'
              or reason is distinct from 'imported'
                 and updated_at < clock_timestamp() - ${span(RECHECK_MS)}
                 and (exists (
                        select from email_checks c
                         where c.npi = s.npi and c.email = s.email and c.verdict <> 'valid'
                           and (c.kind = 'verifier' or c.kind = 'local'
                                and c.reason = any(${sql.param(DNS_REFUSALS)}::text[])))
                      or not exists (
                        select from email_checks c
                         where c.npi = s.npi and c.email = s.email and c.kind = 'verdict')))
    ), unchecked as (
      -- Candidates of earlier lookups that were never checked. They keep their age, and the pause
      -- that a mail server asked for.
      select email, source, claimed_type, repeats_input, claimed_verdict, claimed_date,
             named_at as at, check_after
        from candidates c
       where npi = ${npi}
         and lookup_id <> ${lookupId}
         and verdict is null
         and may_store
         -- Leaves out candidates that another lookup has checked since then.
         and not exists (select from theirs s where s.email = c.email and s.updated_at >= c.named_at)
    ), listed as (
      -- Addresses that NPPES lists and the directory does not have.
      select email
        from unnest(${sql.param([...listed])}::text[]) listed (email)
       where not exists (select from theirs s where s.email = listed.email)
    ), known as (
      select *, null::timestamptz as check_after, null::timestamptz as named_at, true as is_stale
        from stale
      union all
      select *, null, null, false from imported
      union all
      select *, null, null, true from rejected
      union all
      select *, at, false from unchecked
      union all
      select email, 'nppes', null, false, 'unknown', null, '-infinity', null, null, false from listed
    ), newest as (
      select distinct on (email) * from known order by email, at desc, check_after desc nulls last
    ), copied as (
      insert into candidates (
        lookup_id, npi, email, source, claimed_type, claimed_verdict, claimed_date, repeats_input,
        may_store, check_after, named_at
      )
      select ${lookupId}, ${npi}, email, source, claimed_type, claimed_verdict, claimed_date,
             repeats_input, true, check_after, coalesce(named_at, clock_timestamp())
        from newest
       where (${canVerify}::boolean or claimed_verdict = 'valid'
               and claimed_date >= clock_timestamp() - ${span(freshnessMs)})
         and not is_suppressed(${npi}, email)
       order by email collate "C"
          on conflict do nothing
      returning email, source, claimed_verdict
    ), evidence as (
      -- A source that the evidence has for this address did not name it again.
      insert into email_checks (npi, email, lookup_id, kind, source, verdict, reason)
      select ${npi}, c.email, ${lookupId}, 'named', c.source, c.claimed_verdict,
             case when n.is_stale or exists (
               select from email_checks e
                where e.npi = ${npi} and e.email = c.email and e.kind = 'named'
                  and e.source = c.source) then ${STALE} end
        from copied c join newest n using (email)
    )
    select exists (select from copied)
        or exists (
             select from candidates where lookup_id = ${lookupId} and verdict is null) as waits`;
  return only(rows).waits;
}
