import { type SQL, sql } from 'drizzle-orm';
import { type Database, only, run, span, type Transaction, transaction } from '../client.ts';
import { isUsable } from '../requests/entitlements.ts';
import {
  type CheckKind,
  DNS_REFUSALS,
  type EmailType,
  SERVICE,
  type StoredVerdict,
  type WantedType,
} from '../words.ts';
import { epochMs } from './sources.ts';

// The directory is every address a source ever named for an NPI, with the newest verdict on it. On
// its way into it an address is named by a source and not yet believed, then checked by one worker
// at a time, whoever waits for it. Everything found out about it is kept as evidence. An erasure
// locks both tables: whoever inserts into one looks at the suppressions, or at what is stored,
// after that, or before it.

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
  /**
   * Null: the person is who was asked for. Else why the addresses are not theirs: noted, but not
   * stored.
   */
  readonly mismatch: string | null;
  /** False if the source's license lets us answer with an address, but not keep it. */
  readonly mayStore: boolean;
  /** Whether all that says whose they are repeats our question. */
  readonly isEcho: boolean;
  readonly candidates: readonly NamedCandidate[];
}

/**
 * Stores what a source named, to be checked, with its answer. Suppressed addresses are not stored
 * and leave no evidence.
 * @param answer a statement that ends the attempt and returns its `requestId`, and when; if it ends
 * none, nothing is stored
 */
export async function storeCandidates(
  tx: Transaction,
  named: NamedCandidates & Readonly<{ lookupId: string; source: string; freshnessMs: number }>,
  answer: SQL,
): Promise<readonly { readonly requestId: string }[]> {
  const { npi, lookupId, source, mismatch, mayStore, isEcho, candidates, freshnessMs } = named;
  const isTheirs = mismatch === null;
  // Sent together. In the order of the addresses, so that two answers about one NPI cannot wait for
  // each other.
  const [ended] = await Promise.all([
    tx.execute<{ requestId: string }>(sql`
      with ended as (${answer}), named as (
        select distinct on (email) c.*, at from ended, jsonb_to_recordset(${JSON.stringify(candidates)}::jsonb)
                 c (email text, "vendorType" text, verdict text, "validatedAt" timestamptz(3))
         where not is_suppressed(${npi}, email)
      ), stored as (
        insert into stored_emails as s
          (npi, email, email_type, verdict, last_validated_at, source, unchecked, updated_at, first_seen_at, is_echo, may_store)
        select ${npi}, email, "vendorType", verdict, "validatedAt", ${source}, true, at, at,
               ${isEcho}::boolean, ${mayStore}::boolean
          from named where ${isTheirs} order by email collate "C"
            on conflict (npi, email) do update
           set email_type = excluded.email_type, verdict = excluded.verdict, reason = null, source = excluded.source,
               last_validated_at = excluded.last_validated_at, unchecked = true, updated_at = excluded.updated_at
         -- One that is valid and fresh stays so: another lookup may be about to answer with it.
         where (s.verdict <> 'valid' or s.unchecked or s.last_validated_at < excluded.updated_at - ${span(freshnessMs)})
           -- What waits for its check with a date is not put back by a source that knows none, or an older one.
           and not (s.unchecked and coalesce(s.last_validated_at, '-infinity') > coalesce(excluded.last_validated_at, '-infinity'))
      ), evidence as (
        insert into email_checks (npi, email, lookup_id, kind, source, verdict, reason, at)
        select ${npi}, email, ${lookupId}, kind, by, verdict, why, at
          from named, (values ('named', ${source}, null), ('identity', ${SERVICE}, ${mismatch})) line (kind, by, why)
         -- What may not be kept and is somebody else's is not even evidence: the attempt says that there was a mismatch.
         where ${mayStore} and (kind = 'named' or ${!isTheirs}) or kind = 'named' and ${isTheirs}
         order by email, kind desc
      )
      select "requestId" from ended`),
    // What one source knows or lets us keep, another does not unsay or forbid.
    tx.execute(sql`
      update stored_emails set may_store = may_store or ${mayStore}, is_echo = is_echo and ${isEcho}
       where ${isTheirs} and npi = ${npi} and (not may_store and ${mayStore} or is_echo and not ${isEcho})
         and email = any(${sql.param(candidates.map(({ email }) => email))})`),
  ]);
  return ended;
}

/**
 * A rejection by name servers or a verifier is not repeated within this time. Both may be wrong for
 * a while.
 */
const RECHECK_MS = 86_400_000;

/**
 * Puts the addresses of NPIs that may answer once they are checked in line for their lookups: valid
 * ones that are no longer fresh, ordinary ones that NPPES lists for the provider, those that nobody
 * has checked yet, and those that name servers or a verifier rejected more than a day ago.
 * @param lookups `listed` is what NPPES lists, normalized
 * @param canVerify false if there is no verifier: then only fresh addresses that their source calls
 * valid are queued, as an import's are, because our own checks can decide nothing about the others
 * @returns the lookups for which addresses wait
 */
export async function queueKnownEmails(
  db: Database,
  lookups: readonly {
    readonly npi: string;
    readonly lookupId: string;
    readonly listed: readonly string[];
  }[],
  freshnessMs: number,
  canVerify: boolean,
): Promise<Set<string>> {
  if (lookups.length === 0) return new Set();
  const known = lookups.map(({ npi, lookupId, listed }) => ({ npi, lookupId, listed }));
  const freshSince = sql`clock_timestamp() - ${span(freshnessMs)}`;
  const asked = sql`(select distinct * from jsonb_to_recordset(${JSON.stringify(known)}::jsonb)
    k (npi text, "lookupId" text, listed text[])) asked`;
  return await transaction(db, async (tx) => {
    // Sent together. In the order of NPIs and addresses, so that two batches cannot wait for each
    // other.
    const [, , waiting] = await Promise.all([
      tx.execute(sql`
        insert into stored_emails (npi, email, source, verdict, unchecked)
        select npi, email, 'nppes', 'unknown', true from ${asked}, unnest(listed) email
         where ${canVerify}::boolean and not is_suppressed(npi, email) order by npi collate "C", email collate "C"
            on conflict do nothing`),
      tx.execute(sql`
        with stale as (
          select s.npi, s.email from stored_emails s
           where ${canVerify}::boolean and s.npi in (select npi from ${asked})
             and not s.unchecked and s.may_store
             and case when s.verdict = 'valid' then s.last_validated_at < ${freshSince}
               else s.updated_at < clock_timestamp() - ${span(RECHECK_MS)} and ${IS_DOUBTFUL} end
           order by s.npi, s.email for update
        )
        update stored_emails s
           set unchecked = true, updated_at = clock_timestamp(),
               -- A rejection is taken back: the check would take it for the word of the source.
               verdict = case when s.verdict = 'valid' then 'valid' else 'unknown' end,
               reason = case when s.verdict = 'valid' then s.reason end,
               last_validated_at = case when s.verdict = 'valid' then s.last_validated_at end
          from stale where (s.npi, s.email) = (stale.npi, stale.email)`),
      tx.execute<{ lookupId: string }>(sql`
        with waiting as (
          select "lookupId", s.* from ${asked} join stored_emails s using (npi)
           where unchecked and may_store and not is_suppressed(npi, email)
             and (${canVerify}::boolean or verdict = 'valid' and last_validated_at >= ${freshSince})
        ), named as (
          -- Each once, however often this is repeated.
          insert into email_checks (npi, email, lookup_id, kind, source, verdict, reason)
          select npi, email, "lookupId", 'named', source, verdict,
                 case when last_validated_at < ${freshSince} or verdict <> 'valid' and exists (
                   select from email_checks c where c.npi = w.npi and c.email = w.email
                      and c.kind = 'named' and c.source = w.source) then ${STALE} end
            from waiting w
           where not exists (select from email_checks c
             where c.lookup_id = w."lookupId" and c.npi = w.npi and c.email = w.email and c.kind = 'named')
        )
        select distinct "lookupId" from waiting`),
    ]);
    return new Set(waiting.map(({ lookupId }) => lookupId));
  });
}

/**
 * Whether the rejection of the stored address `s` came from name servers or a verifier, and not
 * from our own rules or from the source that named it. True as well if retention has removed the
 * evidence.
 */
const IS_DOUBTFUL = sql`(
  exists (select from email_checks c where c.npi = s.npi and c.email = s.email and c.verdict <> 'valid'
    and (c.kind = 'verifier' or c.kind = 'local' and c.reason = any(${sql.param(DNS_REFUSALS)}::text[])))
  or not exists (select from email_checks c where c.npi = s.npi and c.email = s.email and c.kind = 'verdict'))`;

/** One line of evidence on an address. */
export interface Evidence {
  readonly kind: CheckKind;
  readonly source: string;
  readonly verdict: StoredVerdict;
  readonly reason: string | null;
  readonly durationMs: number | null;
  /** How long the call of a verifier waited for its slot. */
  readonly waitedMs?: number;
}

/** What all checks came to. */
export interface CheckedEmail extends Pick<Evidence, 'verdict' | 'reason'> {
  readonly emailType: EmailType | null;
  readonly validatedAt: Date | null;
}

/** An address of a lookup that waits for our checks. */
export interface ClaimedEmail extends NamedCandidate {
  readonly source: string;
  /** How many different sources have named it within 30 days. */
  readonly namedBy: number;
  /** NPPES lists it for this provider as an endpoint of type DIRECT. */
  readonly isTypedDirect: boolean;
  /** Whether all that says whose it is repeats our question. */
  readonly isEcho: boolean;
  /**
   * When it was taken to be checked, in milliseconds since the epoch by PostgreSQL's clock.
   * Customers see it as the date of the check, so that it must not come from a worker whose clock
   * may be wrong.
   */
  readonly takenAt: number;
  /**
   * The newest judgment of a verifier, if it is not older than 24 hours; when, in milliseconds
   * since the epoch.
   */
  readonly looked: (Pick<Evidence, 'verdict' | 'reason'> & { readonly at: number }) | null;
  /** Verifiers that could not tell within these 24 hours, and why. */
  readonly toldNothing: Readonly<Record<string, string>>;
  /** Since this lookup named it. */
  readonly waitedMs: number;
  /** Whether another one waits that its finder calls valid. */
  readonly hasRival: boolean;
}

/**
 * Takes one address that a lookup named and that waits for our checks, so that nobody else checks
 * it meanwhile: the most promising first.
 * @param search.except those that the caller has had already
 * @param search.greylisted true to take those too that a mail server asked to come back for
 * @param search.requestId for which it is checked. What is taken for it already was by a worker
 * that died: Temporal tries an activity again only then
 * @param search.claimMs how long a check may take; after that, its worker is taken for dead
 * @returns null if none is to be had
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
  const [row] = await run<ClaimedEmail>(db)`
    update stored_emails s set checking_until = clock_timestamp() + ${span(claimMs)}, checking_for = ${requestId}
     where s.npi = ${npi} and s.email = (
       select w.email from stored_emails w
        where w.npi = ${npi} and w.unchecked and w.email <> all(${sql.param([...except])}::text[])
          and (w.checking_until is null or w.checking_until < clock_timestamp()
            or case when w.reason = ${GREYLISTED} then ${greylisted} else w.checking_for = ${requestId} end)
          and ${namedIn(lookupId)} and not is_suppressed(w.npi, w.email)
        order by w.verdict = 'valid' desc, w.email_type = 'professional' desc nulls last, w.email
        limit 1 for update skip locked)
    returning s.email, s.email_type as "vendorType", s.verdict, s.last_validated_at as "validatedAt", s.source,
      ${IS_TYPED_DIRECT} as "isTypedDirect",
      s.is_echo as "isEcho", floor(${epochMs(sql`clock_timestamp()`)})::float8 as "takenAt",
      (select json_build_object('verdict', c.verdict, 'reason', c.reason, 'at', ${epochMs(sql`c.at`)}) from email_checks c
        where c.npi = s.npi and c.email = s.email and c.kind = 'verifier' and c.verdict <> 'unknown'
          and c.at > now() - interval '24 hours' order by c.id desc limit 1) as looked,
      (select coalesce(json_object_agg(c.source, c.reason), '{}') from email_checks c
        where c.npi = s.npi and c.email = s.email and c.kind = 'verifier' and c.verdict = 'unknown'
          and c.reason <> ${GREYLISTED} and not starts_with(c.reason, 'verifier_')
          and c.at > now() - interval '24 hours') as "toldNothing",
      ${epochMs(sql`clock_timestamp() - (select min(w.at) from email_checks w where w.lookup_id = ${lookupId}
        and w.npi = s.npi and w.email = s.email and w.kind = 'named')`)} as "waitedMs",
      ${namedBy(0)} as "namedBy",
      exists (select from stored_emails w where w.npi = s.npi and w.email <> s.email and w.unchecked
        and w.verdict = 'valid' and ${namedIn(lookupId)}) as "hasRival"`;
  return row ?? null;
}

/**
 * How many sources have named the stored address `s` in the 30 days until so long ago, or since.
 */
function namedBy(agoMs: number): SQL {
  return sql`(select count(distinct c.source)::int from email_checks c
    where c.npi = s.npi and c.email = s.email and c.kind = 'named' and c.verdict <> 'invalid'
      and c.reason is distinct from ${STALE}
      and c.at > now() - interval '30 days' - ${span(agoMs)}
      -- Not about somebody else: such an answer has both lines, of one moment.
      and not exists (select from email_checks i where i.npi = c.npi and i.email = c.email
        and i.kind = 'identity' and i.lookup_id = c.lookup_id and i.at = c.at))`;
}

/**
 * Whether NPPES lists the stored address `s` for its provider as one that takes Direct messages.
 */
export const IS_TYPED_DIRECT = sql`exists (select from provider_endpoints e
  where e.npi = s.npi and e.kind = 'DIRECT' and endpoint_address(e.endpoint) = s.email)`;

/**
 * How a lookup stands: whether the directory satisfies it now, and what is left in its line beside
 * `except`, in somebody else's hands or greylisted.
 */
export async function standingOf(
  db: Database,
  search: Readonly<{ npi: string; lookupId: string; wantedType: WantedType }> & {
    readonly freshnessMs: number;
    readonly except: readonly string[];
  },
) {
  const { npi, lookupId, except, freshnessMs } = search;
  const usable = isUsable({ ...search, at: sql`now()` }, freshnessMs);
  return only(
    await run<{ stored: boolean; elsewhere: number; greylisted: number }>(db)`
    select exists (select from stored_emails where npi = ${npi} and ${usable}) as stored,
           count(*) filter (where w.reason is distinct from ${GREYLISTED})::int as elsewhere,
           count(*) filter (where w.reason = ${GREYLISTED})::int as greylisted
      from stored_emails w
     -- One that nobody checks any more, or not yet, is there to be claimed: another has let go of it just now.
     where w.npi = ${npi} and w.unchecked and not is_suppressed(w.npi, w.email)
       and (w.reason is distinct from ${GREYLISTED} or w.checking_until > clock_timestamp())
       and w.email <> all(${sql.param([...except])}::text[]) and ${namedIn(lookupId)}`,
  );
}

/**
 * Lets go of an address that no verdict came of.
 * @param greylistedMs how long its mail server asked to be left alone; null if it did not
 */
export async function releaseUnchecked(
  db: Database,
  { npi, email, requestId }: Readonly<Record<'npi' | 'email' | 'requestId', string>>,
  greylistedMs: number | null,
): Promise<void> {
  const until = greylistedMs === null ? sql`null` : sql`clock_timestamp() + ${span(greylistedMs)}`;
  const reason = greylistedMs === null ? null : GREYLISTED;
  await run(db)`
    update stored_emails set checking_until = ${until}, reason = ${reason}
     where npi = ${npi} and email = ${email} and unchecked and checking_for = ${requestId}`;
}

const GREYLISTED = 'greylisted';
/** The reason of a `named` line if the source has not named the address again. */
const STALE = 'stale';

/** Whether a lookup is about `w`, because one of its sources named it. */
function namedIn(lookupId: string) {
  return sql`exists (select from email_checks n
    where n.lookup_id = ${lookupId} and n.npi = w.npi and n.email = w.email and n.kind = 'named')`;
}

/**
 * Writes what was found out about an address, and the verdict on it. Nothing is written again of
 * one that was erased meanwhile.
 * @param address.lookupId null if no request waits for it
 * @param checked null if no verdict came of it
 */
export async function recordCheck(
  db: Database,
  { npi, email, lookupId }: Readonly<{ npi: string; email: string; lookupId: string | null }>,
  evidence: readonly Evidence[],
  checked: CheckedEmail | null,
): Promise<void> {
  const lines = [...evidence];
  let stored = sql`select npi, email from stored_emails where npi = ${npi} and email = ${email}`;
  if (checked) {
    const { verdict, reason, emailType, validatedAt } = checked;
    lines.push({ kind: 'verdict', source: SERVICE, verdict, reason, durationMs: null });
    stored = sql`
      update stored_emails
         set verdict = ${verdict}, email_type = ${emailType}, reason = ${reason}, unchecked = false,
             last_validated_at = ${validatedAt?.toISOString() ?? null}::timestamptz, checking_until = null,
             updated_at = clock_timestamp()
       where npi = ${npi} and email = ${email} returning npi, email`;
  }
  if (lines.length === 0) return;
  await run(db)`
    with stored as (${stored}), evidence as (
      insert into email_checks (npi, email, lookup_id, kind, source, verdict, reason, duration_ms, waited_ms)
      select stored.*, ${lookupId}, kind, source, verdict, reason, "durationMs", "waitedMs"
        from stored, jsonb_to_recordset(${JSON.stringify(lines)}::jsonb)
               line (kind text, source text, verdict text, reason text, "durationMs" integer, "waitedMs" integer)
       -- A check that waits for a verifier starts again with our own rules, which say the same.
       where line.kind <> 'local' or not exists (
         select from email_checks c
          where c.lookup_id = ${lookupId} and (c.npi, c.email) = (stored.npi, stored.email) and c.kind = 'local'
            and c.verdict = line.verdict and c.reason is not distinct from line.reason)
    )
    select`;
}

type Fading = Pick<
  ClaimedEmail,
  'email' | 'vendorType' | 'source' | 'isTypedDirect' | 'namedBy' | 'takenAt'
> & {
  readonly npi: string;
};

/**
 * Valid addresses that go stale within `leadMs`, the first to do so first, of NPIs among the newest
 * requests.
 */
export async function listFading(
  db: Database,
  search: { readonly freshnessMs: number; readonly leadMs: number; readonly limit: number },
) {
  const stale = sql`now() - ${span(search.freshnessMs)}`;
  return await run<Fading>(db)`
    select s.npi, s.email, s.email_type as "vendorType", s.source, ${IS_TYPED_DIRECT} as "isTypedDirect",
           ${namedBy(search.freshnessMs)} as "namedBy", floor(${epochMs(sql`clock_timestamp()`)})::float8 as "takenAt"
      from (select distinct npi from (select npi from requests where test_outcome is null order by id desc limit ${ASKED}) newest) asked
      join stored_emails s on s.npi = asked.npi
     where s.verdict = 'valid' and not s.unchecked and s.may_store
       and s.last_validated_at >= ${stale}
       and s.last_validated_at < ${stale} + ${span(search.leadMs)}
       and not is_suppressed(s.npi, s.email) and not is_inactive(s.npi)
       -- What nobody could decide is asked again a day later, and keeps no other from its turn.
       and not exists (select from email_checks c where c.npi = s.npi and c.email = s.email and c.lookup_id is null
             and c.at > now() - interval '1 day')
     order by s.last_validated_at limit ${search.limit}`;
}

/**
 * The newest requests, whose ids are the last, say who is asked for; beyond them a round would cost
 * more than it brings.
 */
const ASKED = 20_000;
