import { type SQL, sql } from 'drizzle-orm';
import {
  type Database,
  only,
  run,
  span,
  type Transaction,
  transaction,
} from '../client.ts';
import { isUsable } from '../requests/entitlements.ts';
import {
  type CheckKind,
  DNS_REFUSALS,
  type EmailType,
  type RequestedType,
  SERVICE,
  type StoredVerdict,
} from '../words.ts';
import { epochMs } from './sources.ts';

// The directory is the table stored_emails. It holds every address that a source named for an NPI,
// with the newest verdict about the address. An address starts as an unchecked candidate. It is
// checked for the first request that needs it, by one worker at a time. The result of every check
// is kept as evidence in email_checks.
//
// The erasure of a person's data locks both tables. A statement that inserts into one of them
// therefore runs either before or after the erasure, never during it. A later statement sees the
// new suppression and the missing rows.

/** An address as its source reported it. */
export interface NamedCandidate {
  readonly email: string;
  readonly vendorType: EmailType | null;
  readonly verdict: StoredVerdict;
  readonly validatedAt: Date | null;
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
  readonly candidates: readonly NamedCandidate[];
}

/**
 * Stores the addresses in a vendor's response as unchecked candidates, and records the response.
 * Suppressed addresses are not stored and leave no evidence.
 * @param answer the statement that records the response. It ends the vendor attempt, and returns
 * the attempt's `requestId` and the time `at`. If it returns no row, nothing is stored
 */
export async function storeCandidates(
  tx: Transaction,
  named: NamedCandidates &
    Readonly<{ lookupId: string; source: string; freshnessMs: number }>,
  answer: SQL,
): Promise<readonly { readonly requestId: string }[]> {
  // The two statements are sent at once, without waiting for the first response.
  const [ended] = await Promise.all([
    insertCandidates(tx, named, answer),
    improveCandidates(tx, named),
  ]);
  return ended;
}

/**
 * Inserts or updates the candidates that a vendor's response named, and inserts their evidence.
 * Rows are locked in the order of the addresses, so that two responses about one NPI cannot
 * deadlock. It is one statement, so that nothing is stored if the attempt has already ended.
 */
async function insertCandidates(
  tx: Transaction,
  named: NamedCandidates &
    Readonly<{ lookupId: string; source: string; freshnessMs: number }>,
  answer: SQL,
) {
  const {
    npi,
    lookupId,
    source,
    mismatch,
    mayStore,
    repeatsInput,
    candidates,
    freshnessMs,
  } = named;
  const isTheirs = mismatch === null;
  return await tx.execute<{ requestId: string }>(sql`
    with ended as (${answer}), named as (
      select distinct on (email) c.*, at
        from ended,
             jsonb_to_recordset(${JSON.stringify(candidates)}::jsonb)
               c (email text, "vendorType" text, verdict text, "validatedAt" timestamptz(3))
       where not is_suppressed(${npi}, email)
    ), stored as (
      insert into stored_emails as s (
        npi, email, email_type, verdict, last_validated_at,
        source, unchecked, updated_at, first_seen_at, repeats_input, may_store
      )
      select ${npi}, email, "vendorType", verdict, "validatedAt",
             ${source}, true, at, at, ${repeatsInput}::boolean, ${mayStore}::boolean
        from named
       where ${isTheirs}
       order by email collate "C"
          on conflict (npi, email) do update
         set email_type = excluded.email_type,
             verdict = excluded.verdict,
             reason = null,
             source = excluded.source,
             last_validated_at = excluded.last_validated_at,
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
                    > coalesce(excluded.last_validated_at, '-infinity'))
    ), evidence as (
      insert into email_checks (npi, email, lookup_id, kind, source, verdict, reason, at)
      select ${npi}, email, ${lookupId}, kind, by, verdict, why, at
        from named,
             (values ('named', ${source}, null), ('identity', ${SERVICE}, ${mismatch}))
               line (kind, by, why)
       -- If the response is about another person and its addresses may not be kept, no evidence is
       -- inserted. The vendor attempt records the mismatch.
       where ${mayStore} and (kind = 'named' or ${!isTheirs})
          or kind = 'named' and ${isTheirs}
       order by email, kind desc
    )
    select "requestId" from ended`);
}

/**
 * Records that a source lets us keep the addresses, or that it has independent evidence of their
 * owner. A response of another source never undoes this.
 */
async function improveCandidates(
  tx: Transaction,
  { npi, mismatch, mayStore, repeatsInput, candidates }: NamedCandidates,
) {
  const emails = candidates.map(({ email }) => email);
  await tx.execute(sql`
    update stored_emails
       set may_store = may_store or ${mayStore},
           repeats_input = repeats_input and ${repeatsInput}
     where ${mismatch === null}
       and npi = ${npi}
       and (not may_store and ${mayStore} or repeats_input and not ${repeatsInput})
       and email = any(${sql.param(emails)})`);
}

const GREYLISTED = 'greylisted';

/**
 * The `reason` of a `named` row in email_checks that was inserted because a stored address was
 * queued again. It shows that the source did not report the address again.
 */
const STALE = 'stale';

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
  const rules = { freshSince: sql`clock_timestamp() - ${span(freshnessMs)}`, canVerify };
  const known = lookups.map(({ npi, lookupId, listed }) => ({ npi, lookupId, listed }));
  const asked = sql`(
    select distinct * from jsonb_to_recordset(${JSON.stringify(known)}::jsonb)
      k (npi text, "lookupId" text, listed text[])) asked`;
  return await transaction(db, async (tx) => {
    // The three statements are sent at once and run in this order. Rows are locked in the order of
    // NPIs and addresses, so that two batches cannot deadlock.
    const [, , waiting] = await Promise.all([
      insertListed(tx, asked, rules),
      queueStale(tx, asked, rules),
      nameQueued(tx, asked, rules),
    ]);
    return new Set(waiting.map(({ lookupId }) => lookupId));
  });
}

interface KnownLookup {
  readonly npi: string;
  readonly lookupId: string;
  readonly listed: readonly string[];
}

interface QueueRules {
  readonly freshSince: SQL;
  readonly canVerify: boolean;
}

/** Inserts unchecked candidates for the addresses that NPPES lists. */
async function insertListed(tx: Transaction, asked: SQL, { canVerify }: QueueRules) {
  await tx.execute(sql`
    insert into stored_emails (npi, email, source, verdict, unchecked)
    select npi, email, 'nppes', 'unknown', true
      from ${asked}, unnest(listed) email
     where ${canVerify}::boolean and not is_suppressed(npi, email)
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
  asked: SQL,
  { freshSince, canVerify }: QueueRules,
) {
  await tx.execute(sql`
    with stale as (
      select s.npi, s.email
        from stored_emails s
       where ${canVerify}::boolean
         and s.npi in (select npi from ${asked})
         and not s.unchecked
         and s.may_store
         and case
               when s.verdict = 'valid' then s.last_validated_at < ${freshSince}
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
 */
async function nameQueued(
  tx: Transaction,
  asked: SQL,
  { freshSince, canVerify }: QueueRules,
) {
  return await tx.execute<{ lookupId: string }>(sql`
    with waiting as (
      select "lookupId", s.*
        from ${asked} join stored_emails s using (npi)
       where unchecked
         and may_store
         and not is_suppressed(npi, email)
         and (${canVerify}::boolean or verdict = 'valid' and last_validated_at >= ${freshSince})
    ), named as (
      insert into email_checks (npi, email, lookup_id, kind, source, verdict, reason)
      select npi, email, "lookupId", 'named', source, verdict,
             case
               when last_validated_at < ${freshSince}
                 or verdict <> 'valid' and exists (
                   select from email_checks c
                    where c.npi = w.npi and c.email = w.email
                      and c.kind = 'named' and c.source = w.source)
               then ${STALE}
             end
        from waiting w
       where not exists (
         select from email_checks c
          where c.lookup_id = w."lookupId" and c.npi = w.npi and c.email = w.email
            and c.kind = 'named')
    )
    select distinct "lookupId" from waiting`);
}

/** A row of evidence about an address, without its id, address, and lookup. */
export interface Evidence {
  readonly kind: CheckKind;
  readonly source: string;
  readonly verdict: StoredVerdict;
  readonly reason: string | null;
  readonly durationMs: number | null;
  /** How long the call to a verifier waited for a slot under the rate limit, in milliseconds. */
  readonly waitedMs?: number;
}

/** The verdict that combines the results of all checks of an address. */
export interface CheckedEmail extends Pick<Evidence, 'verdict' | 'reason'> {
  readonly emailType: EmailType | null;
  readonly validatedAt: Date | null;
}

/**
 * An address that a worker has claimed in order to check it, with all data that the check needs.
 */
export interface ClaimedEmail extends NamedCandidate {
  readonly source: string;
  /** The number of different sources that named the address within the last 30 days. */
  readonly namedBy: number;
  /** True if NPPES lists the address for this provider as an endpoint of type DIRECT. */
  readonly isTypedDirect: boolean;
  /**
   * True if every source that named the address only repeated what we sent, such as the person's
   * name. Then no source gave evidence that the address belongs to this person.
   */
  readonly repeatsInput: boolean;
  /**
   * The time of the claim, in milliseconds since the epoch by PostgreSQL's clock. Customers see it
   * as the date of the check, and a worker's clock may be wrong.
   */
  readonly claimedAt: number;
  /**
   * The newest verdict other than `unknown` that a verifier gave within the last 24 hours. `at` is
   * in milliseconds since the epoch.
   */
  readonly lastVerdict:
    | (Pick<Evidence, 'verdict' | 'reason'> & { readonly at: number })
    | null;
  /** The verifiers that returned `unknown` within the last 24 hours, each with its reason. */
  readonly undecided: Readonly<Record<string, string>>;
  /** The time since a source of this lookup first named the address, in milliseconds. */
  readonly waitedMs: number;
  /** True if another unchecked address of the lookup is valid according to its source. */
  readonly hasRival: boolean;
}

/**
 * True if NPPES lists the stored address `s` for its provider as one that receives Direct messages.
 */
export const IS_TYPED_DIRECT = sql`exists (select from provider_endpoints e
  where e.npi = s.npi and e.kind = 'DIRECT' and endpoint_address(e.endpoint) = s.email)`;

/**
 * Claims one unchecked address of a lookup, so that no other worker checks it at the same time. An
 * address that its source calls valid is claimed first, then one of a professional type.
 * @param search.except addresses that the caller has already claimed
 * @param search.greylisted true to also claim addresses whose mail server asked us to retry later
 * @param search.requestId the request that the address is checked for. An address that the same
 * request has already claimed can be claimed again. The worker with the first claim has died,
 * because Temporal retries an activity only after its worker died
 * @param search.claimMs how long a check may take. After this time, other workers may claim the
 * address
 * @returns null if there is no address to claim
 */
export async function claimUnchecked(
  db: Database,
  search: Readonly<Record<'requestId' | 'npi' | 'lookupId', string>> & {
    readonly except: readonly string[];
    readonly greylisted: boolean;
    readonly claimMs: number;
  },
): Promise<ClaimedEmail | null> {
  const { requestId, npi, lookupId, except, greylisted, claimMs } = search;
  const claimedAt = epochMs(sql`clock_timestamp()`);
  const sinceNamed = sql`clock_timestamp() - (
    select min(w.at) from email_checks w
     where w.lookup_id = ${lookupId} and w.npi = s.npi and w.email = s.email and w.kind = 'named')`;
  const [row = null] = await run<ClaimedEmail>(db)`
    update stored_emails s
       set checking_until = clock_timestamp() + ${span(claimMs)},
           checking_for = ${requestId}
     where s.npi = ${npi} and s.email = (
       select w.email
         from stored_emails w
        where w.npi = ${npi}
          and w.unchecked
          and w.email <> all(${sql.param([...except])}::text[])
          and (w.checking_until is null
               or w.checking_until < clock_timestamp()
               or case
                    when w.reason = ${GREYLISTED} then ${greylisted}
                    else w.checking_for = ${requestId}
                  end)
          and ${namedIn(lookupId)}
          and not is_suppressed(w.npi, w.email)
        order by w.verdict = 'valid' desc, w.email_type = 'professional' desc nulls last, w.email
        limit 1
          for update skip locked)
    returning s.email,
              s.email_type as "vendorType",
              s.verdict,
              s.last_validated_at as "validatedAt",
              s.source,
              ${IS_TYPED_DIRECT} as "isTypedDirect",
              s.repeats_input as "repeatsInput",
              floor(${claimedAt})::float8 as "claimedAt",
              (select json_build_object(
                        'verdict', c.verdict,
                        'reason', c.reason,
                        'at', ${epochMs(sql`c.at`)})
                 from email_checks c
                where c.npi = s.npi and c.email = s.email
                  and c.kind = 'verifier' and c.verdict <> 'unknown'
                  and c.at > now() - interval '24 hours'
                order by c.id desc limit 1) as "lastVerdict",
              (select coalesce(json_object_agg(c.source, c.reason), '{}')
                 from email_checks c
                where c.npi = s.npi and c.email = s.email
                  and c.kind = 'verifier' and c.verdict = 'unknown'
                  and c.reason <> ${GREYLISTED}
                  and not starts_with(c.reason, 'verifier_')
                  and c.at > now() - interval '24 hours') as "undecided",
              ${epochMs(sinceNamed)} as "waitedMs",
              ${namedBy(0)} as "namedBy",
              exists (
                select from stored_emails w
                 where w.npi = s.npi and w.email <> s.email
                   and w.unchecked and w.verdict = 'valid'
                   and ${namedIn(lookupId)}) as "hasRival"`;
  return row;
}

/** Counts the sources that named the stored address `s` in the last 30 days plus `agoMs`. */
function namedBy(agoMs: number): SQL {
  return sql`(
    select count(distinct c.source)::int
      from email_checks c
     where c.npi = s.npi and c.email = s.email
       and c.kind = 'named' and c.verdict <> 'invalid'
       and c.reason is distinct from ${STALE}
       and c.at > now() - interval '30 days' - ${span(agoMs)}
       -- Does not count responses about another person. Such a response inserted two rows with the
       -- same time, one of kind 'named' and one of kind 'identity'.
       and not exists (
         select from email_checks i
          where i.npi = c.npi and i.email = c.email and i.kind = 'identity'
            and i.lookup_id = c.lookup_id and i.at = c.at))`;
}

/**
 * Reads the progress of the checks of a lookup's addresses. `stored` is true if the directory now
 * holds an email that the lookup can return. `elsewhere` is the number of unchecked addresses that
 * other workers are checking. `greylisted` is the number of those whose mail server asked us to
 * retry later. Neither number includes the addresses in `except`.
 */
export async function standingOf(
  db: Database,
  search: Readonly<{ npi: string; lookupId: string; requestedType: RequestedType }> & {
    readonly freshnessMs: number;
    readonly except: readonly string[];
  },
) {
  const { npi, lookupId, except, freshnessMs } = search;
  const usable = isUsable({ ...search, at: sql`now()` }, freshnessMs);
  const rows = await run<{ stored: boolean; elsewhere: number; greylisted: number }>(db)`
    select exists (select from stored_emails where npi = ${npi} and ${usable}) as stored,
           count(*) filter (where w.reason is distinct from ${GREYLISTED})::int as elsewhere,
           count(*) filter (where w.reason = ${GREYLISTED})::int as greylisted
      from stored_emails w
     -- The counted addresses include those without a claim. Another worker has just released such an
     -- address, so the caller can claim it.
     where w.npi = ${npi}
       and w.unchecked
       and not is_suppressed(w.npi, w.email)
       and (w.reason is distinct from ${GREYLISTED} or w.checking_until > clock_timestamp())
       and w.email <> all(${sql.param([...except])}::text[])
       and ${namedIn(lookupId)}`;
  return only(rows);
}

/**
 * Releases the claim of an address after a check that reached no verdict.
 * @param greylistedMs how long the mail server asked us to wait before the next try; null if it did
 * not ask
 */
export async function releaseUnchecked(
  db: Database,
  { npi, email, requestId }: Readonly<Record<'npi' | 'email' | 'requestId', string>>,
  greylistedMs: number | null,
): Promise<void> {
  let until = sql`null`;
  let reason: string | null = null;
  if (greylistedMs !== null) {
    until = sql`clock_timestamp() + ${span(greylistedMs)}`;
    reason = GREYLISTED;
  }
  await run(db)`
    update stored_emails
       set checking_until = ${until}, reason = ${reason}
     where npi = ${npi} and email = ${email} and unchecked and checking_for = ${requestId}`;
}

/** An SQL condition: a source returned the address in row `w` of `stored_emails` for this lookup. */
function namedIn(lookupId: string) {
  return sql`exists (
    select from email_checks n
     where n.lookup_id = ${lookupId} and n.npi = w.npi and n.email = w.email and n.kind = 'named')`;
}

/**
 * Records the results of an address's checks and the verdict. Nothing is recorded if the address
 * was erased during the check.
 * @param address.lookupId null if no request waits for the check
 * @param checked null if the checks reached no verdict
 */
export async function recordCheck(
  db: Database,
  {
    npi,
    email,
    lookupId,
  }: Readonly<{ npi: string; email: string; lookupId: string | null }>,
  evidence: readonly Evidence[],
  checked: CheckedEmail | null,
): Promise<void> {
  const lines = [...evidence];
  let stored = sql`select npi, email from stored_emails where npi = ${npi} and email = ${email}`;
  if (checked) {
    const { verdict, reason, emailType } = checked;
    const validatedAt = checked.validatedAt?.toISOString() ?? null;
    lines.push({ kind: 'verdict', source: SERVICE, verdict, reason, durationMs: null });
    stored = sql`
      update stored_emails
         set verdict = ${verdict},
             email_type = ${emailType},
             reason = ${reason},
             unchecked = false,
             last_validated_at = ${validatedAt}::timestamptz,
             checking_until = null,
             updated_at = clock_timestamp()
       where npi = ${npi} and email = ${email}
      returning npi, email`;
  }
  if (lines.length === 0) return;
  await run(db)`
    with stored as (${stored}), evidence as (
      insert into email_checks (
        npi, email, lookup_id, kind, source, verdict, reason, duration_ms, waited_ms
      )
      select stored.*, ${lookupId}, kind, source, verdict, reason, "durationMs", "waitedMs"
        from stored,
             jsonb_to_recordset(${JSON.stringify(lines)}::jsonb) line (
               kind text, source text, verdict text, reason text,
               "durationMs" integer, "waitedMs" integer
             )
       -- A check that had to wait for a verifier later starts again from the beginning. The results
       -- of our own rules (kind 'local') are then the same and are not inserted again.
       where line.kind <> 'local' or not exists (
         select from email_checks c
          where c.lookup_id = ${lookupId}
            and (c.npi, c.email) = (stored.npi, stored.email)
            and c.kind = 'local'
            and c.verdict = line.verdict
            and c.reason is not distinct from line.reason)
    )
    select`;
}

type Fading = Pick<
  ClaimedEmail,
  'email' | 'vendorType' | 'source' | 'isTypedDirect' | 'namedBy' | 'claimedAt'
> & {
  readonly npi: string;
};

/**
 * The number of newest requests whose NPIs are considered. Newest means the highest ids, because
 * ids sort by time. Searching more requests would slow the query and find few extra NPIs.
 */
const ASKED = 20_000;

/**
 * Lists valid addresses of recently requested NPIs that go stale within the next `leadMs`
 * milliseconds. The address that goes stale first comes first.
 */
export async function listFading(
  db: Database,
  search: {
    readonly freshnessMs: number;
    readonly leadMs: number;
    readonly limit: number;
  },
) {
  const stale = sql`now() - ${span(search.freshnessMs)}`;
  const readAt = epochMs(sql`clock_timestamp()`);
  return await run<Fading>(db)`
    select s.npi,
           s.email,
           s.email_type as "vendorType",
           s.source,
           ${IS_TYPED_DIRECT} as "isTypedDirect",
           ${namedBy(search.freshnessMs)} as "namedBy",
           floor(${readAt})::float8 as "claimedAt"
      from (
        select distinct npi from (
          select npi from requests where test_outcome is null order by id desc limit ${ASKED}
        ) newest
      ) asked
      join stored_emails s on s.npi = asked.npi
     where s.verdict = 'valid'
       and not s.unchecked
       and s.may_store
       and s.last_validated_at >= ${stale}
       and s.last_validated_at < ${stale} + ${span(search.leadMs)}
       and not is_suppressed(s.npi, s.email)
       and not is_inactive(s.npi)
       -- Skips addresses that were checked within the last day without a verdict. Otherwise they
       -- would take the places of other addresses in every call.
       and not exists (
         select from email_checks c
          where c.npi = s.npi and c.email = s.email
            and c.lookup_id is null and c.at > now() - interval '1 day')
     order by s.last_validated_at
     limit ${search.limit}`;
}
