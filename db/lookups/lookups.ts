import { and, eq, isNotNull } from 'drizzle-orm';
import { type ChangedBy, recordAudit } from '../audit.ts';
import {
  type Database,
  only,
  query,
  run,
  span,
  type Transaction,
  transaction,
} from '../client.ts';
import { newId } from '../ids.ts';
import { lookups } from '../schema.ts';
import type { EmployerKind } from '../words.ts';

// Requests that wait for the same NPI and requested type share a lookup, even if they belong to
// different organizations. Each vendor is called and paid once for all requests of a lookup. Each
// request is settled separately and charged to its own organization.

/**
 * How long a vendor is skipped, at most, after our own checks rejected all addresses that it named.
 * Our checks may be wrong for some hours, for example if a name server fails.
 */
const OUR_MISS_MS = 86_400_000;

/** The facts about the person when a lookup begins. */
export interface LookupFacts {
  /** Everything that affects a vendor's response, as a hash. */
  readonly hash: string;
  readonly employer: EmployerKind;
}

/** The lookup that a request has joined. */
interface JoinedLookup extends Pick<typeof lookups.$inferSelect, 'requestedType'> {
  readonly requestId: string;
  readonly lookupId: string;
  /** The vendors to skip. */
  readonly misses: string[];
}

/**
 * Joins requests of one batch to the open lookups for their NPIs and types, and marks the requests
 * as `in-progress`. Opens a lookup if there isn't one for an NPI and type.
 * @param facts what we know about the person, by request id. It is stored if the request opens a
 * lookup
 * @returns the lookups by request id, without requests that are final. `misses` lists the vendors
 * to skip, because they had no result for the same facts within the last `missMs`. A vendor whose
 * addresses were all rejected by our checks is skipped for one day at most
 */
export async function joinLookups(
  db: Database,
  requestIds: readonly string[],
  facts: ReadonlyMap<string, LookupFacts> = new Map(),
  missMs = 0,
) {
  const wanted = requestIds.map((requestId) => ({
    requestId,
    id: newId('lkp'),
    ...facts.get(requestId),
  }));
  const ourMissMs = Math.min(missMs, OUR_MISS_MS);
  const rows = await run<JoinedLookup>(db)`
    with new as materialized (
      select * from jsonb_to_recordset(${JSON.stringify(wanted)}::jsonb)
        new ("requestId" text, id text, hash text, employer text)
    ), open as materialized (
      -- Filters by a list of ids, here and below. With only a join, PostgreSQL would read the whole
      -- table as long as the table is small.
      select r.*, new.id as new_id, new.hash, new.employer
        from requests r join new on r.id = new."requestId"
       where r.id = any(array(select "requestId" from new)) and r.settled_at is null
       order by r.id
         for update of r
    ), batch as materialized (
      -- Locks the batch before the lookup, in the same order as a settlement, to avoid deadlocks.
      -- The update of requests below changes the batch through a trigger.
      select 1 from batches where id = any(array(select batch_id from open)) for no key update
    ), lookup as (
      insert into lookups (id, npi, requested_type, opened_at, facts, employer)
      select distinct on (npi, requested_type)
             new_id, npi, requested_type, clock_timestamp(), hash, employer
        from open
       where lookup_id is null and exists (select from batch)
       order by npi, requested_type
          on conflict (npi, requested_type) where closed_at is null
          -- The update changes nothing. It locks the open lookup and returns its id.
          do update set npi = excluded.npi
      returning id, npi, requested_type
    ), joined as (
      update requests r
         set lookup_id = l.id,
             status = 'in-progress',
             started_at = coalesce(r.started_at, date_trunc('milliseconds', clock_timestamp()))
        from open join lookup l using (npi, requested_type)
       where r.id = any(array(select id from open))
         and r.id = open.id
         and open.lookup_id is null
      returning r.id, r.lookup_id
    )
    select id as "requestId",
           coalesce(joined.lookup_id, open.lookup_id) as "lookupId",
           requested_type as "requestedType",
           array(
             select a.vendor
               from lookups l join vendor_attempts a on a.lookup_id = l.id
              where l.npi = open.npi
                and l.requested_type = open.requested_type
                and l.facts = open.hash
                and a.ended_at > clock_timestamp() - case
                      when a.state = 'miss' then ${span(missMs)}
                      when a.state = 'found' and a.reason is not null then ${span(ourMissMs)}
                    end) as misses
      from open left join joined using (id)`;
  return new Map(rows.map((row) => [row.requestId, row]));
}

/**
 * Makes the next lookup of an NPI call all vendors again, including vendors that recently had no
 * result.
 * @returns the number of earlier lookups whose results no longer count
 * @throws {DatabaseError} 23514 for an actor or a reason that is empty or too long
 */
export async function forgetMisses(
  db: Database,
  by: ChangedBy,
  npi: string,
): Promise<number> {
  return await transaction(db, async (tx) => {
    const forgotten = await tx
      .update(lookups)
      .set({ facts: null })
      .where(and(eq(lookups.npi, npi), isNotNull(lookups.facts)))
      .returning({ id: lookups.id });
    const details = { lookups: forgotten.length };
    await recordAudit(tx, by, {
      action: 'lookups.forget',
      organizationId: null,
      subject: npi,
      details,
    });
    return forgotten.length;
  });
}

/** Counts the earlier lookups that `forgetMisses` would change. */
export async function countMisses(db: Database, npi: string): Promise<number> {
  const isKept = and(eq(lookups.npi, npi), isNotNull(lookups.facts));
  return await query(db, (tx) => tx.$count(lookups, isKept));
}

/** A filter that selects results of checks that may be wrong, by time, reason, and verifier. */
export interface DoubtedChecks {
  readonly since: Date;
  readonly until: Date;
  /** The reason for the rejection, such as `nxdomain`; null for any reason. */
  readonly verdictReason: string | null;
  /** The verifier that rejected the addresses; null for any verifier and for our own checks. */
  readonly source: string | null;
}

/**
 * The numbers of deleted check results, requeued addresses, and vendor responses that no longer
 * count.
 */
export type ForgottenChecks = Readonly<Record<'checks' | 'addresses' | 'misses', number>>;

/**
 * Undoes wrong rejections by a broken DNS resolver or verifier. Deletes the rejections that match
 * the filter, queues the rejected addresses to be checked again, and makes the next lookup call the
 * vendors that named these addresses. Valid addresses and settled requests stay as they are.
 * @param isRehearsal true to roll everything back, including the audit log entry, and only return
 * the counts
 * @throws {DatabaseError} 23514 for an actor or a reason that is empty or too long
 */
export async function forgetChecks(
  db: Database,
  by: ChangedBy,
  doubted: DoubtedChecks,
  isRehearsal: boolean,
): Promise<ForgottenChecks> {
  const rehearsed = new Error('rehearsed');
  let forgotten: ForgottenChecks = { checks: 0, addresses: 0, misses: 0 };
  await transaction(db, async (tx) => {
    forgotten = await removeChecks(tx, doubted);
    const { since, until, verdictReason, source } = doubted;
    const period = { since: since.toISOString(), until: until.toISOString() };
    const details = { ...period, verdictReason, source, ...forgotten };
    await recordAudit(tx, by, {
      action: 'lookups.forget',
      organizationId: null,
      subject: 'checks',
      details,
    });
    if (isRehearsal) throw rehearsed;
  }).catch((error) => {
    if (error !== rehearsed) throw error;
  });
  return forgotten;
}

async function removeChecks(
  tx: Transaction,
  doubted: DoubtedChecks,
): Promise<ForgottenChecks> {
  const { verdictReason, source } = doubted;
  const since = doubted.since.toISOString();
  const until = doubted.until.toISOString();
  const rows = await run<ForgottenChecks>(tx)`
    with rejections as (
      delete from email_checks
       where at >= ${since}::timestamptz
         and at < ${until}::timestamptz
         and kind in ('local', 'verifier')
         and verdict <> 'valid'
         and (${verdictReason}::text is null or reason = ${verdictReason})
         and (${source}::text is null or kind = 'verifier' and source = ${source})
      returning npi, email
    ), doubted as (
      select distinct npi, email from rejections
    ), held as (
      -- Rows are locked in the same order as in all other statements, so that no two statements can
      -- deadlock.
      select s.npi, s.email
        from stored_emails s join doubted using (npi, email)
       where s.verdict <> 'valid' and not s.unchecked
       order by s.npi, s.email
         for update of s
    ), addresses as (
      update stored_emails s
         set verdict = 'unknown',
             reason = null,
             last_validated_at = null,
             unchecked = true,
             checking_until = null,
             updated_at = clock_timestamp()
        from held
       where (s.npi, s.email) = (held.npi, held.email)
      returning 1
    ), misses as (
      update vendor_attempts a
         set reason = null
        from (
          select distinct n.lookup_id, n.source
            from email_checks n join doubted using (npi, email)
           where n.kind = 'named'
        ) named
       where a.lookup_id = named.lookup_id
         and a.vendor = named.source
         and a.state = 'found'
         and a.reason = 'none_valid'
      returning 1
    )
    select (select count(*)::int from rejections) as checks,
           (select count(*)::int from addresses) as addresses,
           (select count(*)::int from misses) as misses`;
  return only(rows);
}
