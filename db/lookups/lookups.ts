import { and, eq, isNotNull } from 'drizzle-orm';
import {
  type Database,
  only,
  query,
  run,
  span,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { newId } from '../connection/ids.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import { lookups } from '../schema.ts';
import type { EmployerKind } from '../words.ts';

// Requests that wait for the same NPI and requested type share a lookup, even if they belong to
// different organizations. They also share its turn (turns.ts), so each vendor is called and paid
// once. Each request is settled separately and charged to its own organization.

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
export interface JoinedLookup extends Pick<typeof lookups.$inferSelect, 'requestedType'> {
  readonly lookupId: string;
  /** The vendors to skip. */
  readonly misses: string[];
}

/**
 * Joins a request to the open lookup for its NPI and type, or opens one, and marks the request as
 * `in-progress`. Safe to repeat.
 * @param facts what we know about the person. It is stored if the request opens a lookup
 * @returns null if the request is final. `misses` lists the vendors to skip, because they had no
 * result for the same facts within the last `missMs`. A vendor whose addresses were all rejected by
 * our checks is skipped for one day at most
 */
export async function joinLookup(
  db: Database,
  requestId: string,
  facts: LookupFacts | null = null,
  missMs = 0,
): Promise<JoinedLookup | null> {
  const { hash, employer } = facts ?? { hash: null, employer: null };
  const ourMissMs = Math.min(missMs, OUR_MISS_MS);
  const [joined = null] = await run<JoinedLookup>(db)`
    with request as materialized (
      select * from requests where id = ${requestId} and settled_at is null for update
    ), batch as materialized (
      -- Locks the batch before the lookup, in the same order as a settlement, to avoid deadlocks.
      -- The update of the request below changes the batch through a trigger.
      select from batches where id = (select batch_id from request) for no key update
    ), lookup as (
      insert into lookups (id, npi, requested_type, opened_at, facts, employer)
      select ${newId('lkp')}, npi, requested_type, clock_timestamp(), ${hash}, ${employer}
        from request
       where lookup_id is null and exists (select from batch)
          on conflict (npi, requested_type) where closed_at is null
          -- The update changes nothing. It locks the open lookup and returns its id.
          do update set npi = excluded.npi
      returning id
    ), joined as (
      update requests r
         set lookup_id = lookup.id,
             status = 'in-progress',
             started_at = coalesce(r.started_at, date_trunc('milliseconds', clock_timestamp()))
        from lookup
       where r.id = ${requestId}
      returning r.lookup_id
    )
    select coalesce(request.lookup_id, joined.lookup_id) as "lookupId",
           requested_type as "requestedType",
           array(
             select a.vendor
               from lookups l join vendor_attempts a on a.lookup_id = l.id
              where l.npi = request.npi
                and l.requested_type = request.requested_type
                and l.facts = ${hash}
                and a.ended_at > clock_timestamp() - case
                      when a.state = 'miss' then ${span(missMs)}
                      when a.state = 'found' and a.reason is not null then ${span(ourMissMs)}
                    end) as misses
      from request left join joined on true`;
  return joined;
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
 * The numbers of deleted check results, of stored addresses to check again, and of vendor responses
 * that no longer count.
 */
export type ForgottenChecks = Readonly<Record<'checks' | 'addresses' | 'misses', number>>;

/**
 * Undoes wrong rejections by a broken DNS resolver or verifier. Deletes the rejections that match
 * the filter, makes the next lookup check the rejected addresses again, and makes it call the vendors
 * that named these addresses. Valid addresses and settled requests stay as they are.
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
  { since, until, verdictReason, source }: DoubtedChecks,
): Promise<ForgottenChecks> {
  const rows = await run<ForgottenChecks>(tx)`
    select checks, addresses, misses
      from forget_checks(${since.toISOString()}, ${until.toISOString()}, ${verdictReason}, ${source})`;
  return only(rows);
}
