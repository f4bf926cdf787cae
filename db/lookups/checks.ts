import { and, eq, type SQL, sql } from 'drizzle-orm';
import { type Database, run, span, transaction } from '../connection/client.ts';
import { clockTime } from '../schema/columns.ts';
import { type emailChecks, storedEmails } from '../schema.ts';
import { type EmailType, PATTERN_SOURCE, SERVICE } from '../words.ts';
import { epochMs } from './sources.ts';

// The results of the checks of addresses, which are kept in email_checks as evidence, and the checks
// of stored addresses that no request waits for.

type EmailCheck = Readonly<typeof emailChecks.$inferSelect>;
type StoredEmail = Readonly<typeof storedEmails.$inferSelect>;

/** A row of evidence about an address, without its id, address, and lookup. */
export interface Evidence
  extends Pick<EmailCheck, 'kind' | 'source' | 'verdict' | 'reason' | 'durationMs'> {
  /** How long the call to a verifier waited for a slot under the rate limit, in milliseconds. */
  readonly waitedMs?: number;
}

/** The verdict that combines the results of all checks of an address. */
export interface CheckedEmail extends Pick<Evidence, 'verdict' | 'reason'> {
  readonly emailType: EmailType | null;
  readonly validatedAt: Date | null;
}

/**
 * The `reason` of a `named` row in email_checks that was inserted because a lookup copied a known
 * address. It shows that the source did not report the address again.
 */
export const STALE = 'stale';

/**
 * True if NPPES lists the address `s` for its provider as one that receives Direct messages.
 */
export const IS_TYPED_DIRECT = sql`exists (select from provider_endpoints e
  where e.npi = s.npi and e.kind = 'DIRECT' and endpoint_address(e.endpoint) = s.email)`;

/**
 * Counts the sources that named the address `s` in the last 30 days plus `agoMs`. An address
 * that we wrote ourselves is a guess, so it does not count.
 */
export function namedBy(agoMs: number): SQL {
  return sql`(
    select count(distinct account_of(c.source))::int
      from email_checks c
     where c.npi = s.npi and c.email = s.email
       and c.kind = 'named' and c.verdict <> 'invalid'
       and c.source <> ${PATTERN_SOURCE}
       and c.reason is distinct from ${STALE}
       and c.at > now() - interval '30 days' - ${span(agoMs)}
       -- Does not count responses about another person. Such a response inserted two rows with the
       -- same time, one of kind 'named' and one of kind 'identity'.
       and not exists (
         select from email_checks i
          where i.npi = c.npi and i.email = c.email and i.kind = 'identity'
            and i.lookup_id = c.lookup_id and i.at = c.at))`;
}

const RECENT_RESULTS = 100;

/**
 * Returns the share, from 0 to 1, of missing mailboxes among a verifier's last 100 results within a
 * week. Results that could not decide are not counted, except those that we doubted. Returns null
 * if there are fewer results.
 */
export async function missingShare(
  db: Database,
  verifier: string,
): Promise<number | null> {
  const [row] = await run<{ share: number | null; results: number }>(db)`
    select avg((reason in ('mailbox_missing', 'verifier_suspect'))::int)::float8 as share,
           count(*)::int as results
      from (select coalesce(reason, '') as reason
              from email_checks
             where kind = 'verifier' and source = ${verifier}
               and (verdict <> 'unknown' or reason = 'verifier_suspect')
               and at > now() - interval '7 days'
             order by at desc
             limit ${RECENT_RESULTS}) recent`;
  if (row === undefined || row.results < RECENT_RESULTS) return null;
  return row.share;
}

/**
 * Records that a stored address was checked without a request that waits for it. Nothing is recorded
 * if the address was erased during the check.
 * @param checked null if the checks reached no verdict. The stored address then stays as it is
 */
export async function recordRecheck(
  db: Database,
  { npi, email }: Pick<StoredEmail, 'npi' | 'email'>,
  evidence: readonly Evidence[],
  checked: CheckedEmail | null,
): Promise<void> {
  const lines = [...evidence];
  if (checked) {
    const { verdict, reason } = checked;
    lines.push({ kind: 'verdict', source: SERVICE, verdict, reason, durationMs: null });
  }
  const isAddress = and(eq(storedEmails.npi, npi), eq(storedEmails.email, email));
  await transaction(db, async (tx) => {
    if (checked) {
      const { verdict, reason, emailType, validatedAt: lastValidatedAt } = checked;
      const newest = {
        verdict,
        reason,
        emailType,
        lastValidatedAt,
        updatedAt: clockTime,
      };
      await tx.update(storedEmails).set(newest).where(isAddress);
    }
    await tx.execute(sql`
      insert into email_checks (npi, email, kind, source, verdict, reason, duration_ms, waited_ms)
      select s.npi, s.email, line.kind, line.source, line.verdict, line.reason,
             line."durationMs", line."waitedMs"
        from stored_emails s,
             jsonb_to_recordset(${JSON.stringify(lines)}::jsonb) line (
               kind text, source text, verdict text, reason text,
               "durationMs" integer, "waitedMs" integer
             )
       where s.npi = ${npi} and s.email = ${email}`);
  });
}

/** An address that goes stale soon. */
interface Fading extends Pick<StoredEmail, 'npi' | 'email' | 'source'> {
  readonly vendorType: StoredEmail['emailType'];
  readonly isTypedDirect: boolean;
  readonly namedBy: number;
  /** The time when the address was read, in milliseconds since the epoch by PostgreSQL's clock. */
  readonly begunAt: number;
}

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
           floor(${readAt})::float8 as "begunAt"
      from (
        select distinct npi from (
          select npi from requests where test_outcome is null order by id desc limit ${ASKED}
        ) newest
      ) asked
      join stored_emails s on s.npi = asked.npi
     where s.verdict = 'valid'
       and s.last_validated_at >= ${stale}
       and s.last_validated_at < ${stale} + ${span(search.leadMs)}
       and not is_suppressed(s.npi, s.email)
       and refusal_of(s.npi) is null
       -- Skips addresses that were checked within the last day without a verdict. Otherwise they
       -- would take the places of other addresses in every call.
       and not exists (
         select from email_checks c
          where c.npi = s.npi and c.email = s.email
            and c.lookup_id is null and c.at > now() - interval '1 day')
     order by s.last_validated_at
     limit ${search.limit}`;
}
