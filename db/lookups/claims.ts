import { and, eq, type SQL, sql } from 'drizzle-orm';
import { type Database, lasts, only, query, run, span } from '../client.ts';
import { isUsable } from '../requests/entitlements.ts';
import { storedEmails } from '../schema.ts';
import type { RequestedType } from '../words.ts';
import type { NamedCandidate } from './candidates.ts';
import { type Evidence, IS_TYPED_DIRECT, namedBy } from './checks.ts';
import { epochMs } from './sources.ts';

// A worker claims an unchecked candidate before it checks the address, so that no other worker
// checks it at the same time.

const GREYLISTED = 'greylisted';

type StoredEmail = Readonly<typeof storedEmails.$inferSelect>;

/**
 * An address that a worker has claimed in order to check it, with all data that the check needs.
 */
export interface ClaimedEmail
  extends Omit<NamedCandidate, 'isCurrent' | 'confidence'>,
    Pick<StoredEmail, 'source' | 'repeatsInput'> {
  /** The number of different sources that named the address within the last 30 days. */
  readonly namedBy: number;
  /** True if NPPES lists the address for this provider as an endpoint of type DIRECT. */
  readonly isTypedDirect: boolean;
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
}

/**
 * Claims one unchecked address of a lookup, so that no other worker checks it at the same time. The
 * best address is claimed first, because no other address is checked once one is valid. Addresses
 * at an employer's domain come first, then those of a professional type, then those that their
 * source names as current, calls valid, or is more confident of, and then the newest.
 * @param search.employerDomains the registrable domains of the person's likely employers
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
    readonly employerDomains: readonly string[];
    readonly except: readonly string[];
    readonly greylisted: boolean;
    readonly claimMs: number;
  },
): Promise<ClaimedEmail | null> {
  const { requestId, npi, lookupId, employerDomains, except, greylisted, claimMs } =
    search;
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
               or case
                    when w.reason = ${GREYLISTED}
                      then ${greylisted} or w.checking_until < clock_timestamp()
                    else w.checking_for = ${requestId}
                      or not ${lasts(sql`w.checking_until`, claimMs)}
                  end)
          and exists (
            select from email_checks n
             where n.lookup_id = ${lookupId}
               and n.npi = w.npi
               and n.email = w.email
               and n.kind = 'named')
          and not is_suppressed(w.npi, w.email)
        order by exists (
                   select from unnest(${sql.param([...employerDomains])}::text[]) employer(domain)
                    where w.email like '%@' || domain or w.email like '%.' || domain) desc,
                 w.email_type = 'professional' desc nulls last,
                 w.is_current desc,
                 w.verdict = 'valid' desc,
                 w.confidence desc nulls last,
                 w.last_validated_at desc nulls last,
                 w.email
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
              ${namedBy(0)} as "namedBy"`;
  return row;
}

/** The progress of the checks of a lookup's addresses. */
interface Standing {
  /** True if the directory now holds an email that the lookup can return. */
  readonly stored: boolean;
  /** The number of unchecked addresses that other workers are checking. */
  readonly elsewhere: number;
  /** The number of unchecked addresses whose mail server asked us to retry later. */
  readonly greylisted: number;
}

/**
 * Reads the progress of the checks of a lookup's addresses.
 * @param search.except addresses that are not counted
 */
export async function standingOf(
  db: Database,
  search: Readonly<{ npi: string; lookupId: string; requestedType: RequestedType }> & {
    readonly freshnessMs: number;
    readonly except: readonly string[];
  },
): Promise<Standing> {
  const { npi, lookupId, except, freshnessMs } = search;
  const usable = isUsable({ ...search, at: sql`now()` }, freshnessMs);
  const rows = await run<Standing>(db)`
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
       and exists (
         select from email_checks n
          where n.lookup_id = ${lookupId}
            and n.npi = w.npi
            and n.email = w.email
            and n.kind = 'named')`;
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
  let checkingUntil: SQL | null = null;
  let reason: string | null = null;
  if (greylistedMs !== null) {
    checkingUntil = sql`clock_timestamp() + ${span(greylistedMs)}`;
    reason = GREYLISTED;
  }
  await query(db, (tx) =>
    tx
      .update(storedEmails)
      .set({ checkingUntil, reason })
      .where(
        and(
          eq(storedEmails.npi, npi),
          eq(storedEmails.email, email),
          eq(storedEmails.unchecked, true),
          eq(storedEmails.checkingFor, requestId),
        ),
      ),
  );
}
