import { eq, sql } from 'drizzle-orm';
import { type ChangedBy, recordAudit } from '../audit.ts';
import { clock, type Database, query, span, type Transaction, transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { newId } from '../ids.ts';
import { requests } from '../schema.ts';
import type { WantedType } from '../words.ts';

// One lookup serves all requests that wait for the same NPI and type, of whatever organization: a vendor is asked and
// paid once for all of them. Each request is settled, and charged, by its own ledger.

/**
 * Makes a request part of the one open lookup for its NPI and type, and `in-progress`.
 * @param facts a hash of what is known of the person; whoever opens the lookup says it
 * @returns null if the request is final already
 * @throws {Refusal} `request_missing` for an unknown id
 */
export async function joinLookup(
  db: Database,
  requestId: string,
  facts: string | null = null,
): Promise<{ readonly lookupId: string; readonly wantedType: WantedType } | null> {
  return await transaction(db, async (tx) => {
    const [request] = await tx.select().from(requests).where(eq(requests.id, requestId)).for('update');
    if (!request) throw new Refusal('request_missing');
    const { npi, wantedType, lookupId, batchId, settledAt } = request;
    if (settledAt) return null;
    if (lookupId !== null) return { lookupId, wantedType };
    // The update below counts in the batch: taken first, because a settlement holds the batch when it comes here.
    await tx.execute(sql`select 1 from batches where id = ${batchId} for no key update`);
    const at = sql`${(await clock(tx)).toISOString()}::timestamptz`;
    const [joined] = await tx.execute<{ lookupId: string }>(sql`
      with joined as (
        insert into lookups (id, npi, wanted_type, opened_at, facts)
        values (${newId('lkp')}, ${npi}, ${wantedType}, ${at}, ${facts})
            -- Changes nothing, but gives the open one back, and locked.
            on conflict (npi, wanted_type) where closed_at is null do update set npi = excluded.npi
        returning id
      )
      update requests set lookup_id = joined.id, status = 'in-progress', started_at = coalesce(started_at, ${at})
        from joined where requests.id = ${requestId} returning lookup_id as "lookupId"`);
    if (!joined) throw new Error('no row');
    return { ...joined, wantedType };
  });
}

/**
 * The vendors that are not asked again, because they had nothing for this NPI and type within the last `missMs` when the
 * same was known: nobody, or nothing that passed our checks.
 */
export async function listMisses(
  db: Database,
  { npi, wantedType, facts, missMs }: { npi: string; wantedType: WantedType; facts: string; missMs: number },
): Promise<Set<string>> {
  const rows = await query(db, (tx) =>
    tx.execute<{ vendor: string }>(sql`
      select distinct a.vendor from lookups l join vendor_attempts a on a.lookup_id = l.id
       where l.npi = ${npi} and l.wanted_type = ${wantedType} and l.facts = ${facts}
         and (a.state = 'miss' or a.state = 'found' and a.reason is not null)
         and a.ended_at > clock_timestamp() - ${span(missMs)}`),
  );
  return new Set(rows.map(({ vendor }) => vendor));
}

/**
 * Makes the next lookup of an NPI ask every vendor, whatever they have said.
 * @returns how many lookups are not remembered any more
 * @throws {DatabaseError} 23514 for an actor or a reason that is empty or too long
 */
export async function forgetMisses(db: Database, by: ChangedBy, npi: string): Promise<number> {
  return await transaction(db, async (tx) => {
    const forgotten = await tx.execute(
      sql`update lookups set facts = null where npi = ${npi} and facts is not null returning 1`,
    );
    const details = { lookups: forgotten.length };
    await recordAudit(tx, by, { action: 'lookups.forget', organizationId: null, subject: npi, details });
    return forgotten.length;
  });
}

/**
 * Closes the lookups of requests that were just settled: each that has its answer, or that the last which waited for it
 * has given up, and notes whose answer it is. Part of the settling transaction, and its last locks.
 */
export async function closeLookups(
  tx: Transaction,
  settled: readonly { readonly lookupId: string | null }[],
  { answered, at }: { readonly answered: boolean; readonly at: Date },
): Promise<void> {
  const ids = [...new Set(settled.flatMap(({ lookupId }) => lookupId ?? []))];
  if (ids.length === 0) return;
  // A statement of its own: if two requests give up at once, the second must see that the first has. In one order,
  // because organizations share lookups.
  await tx.execute(
    sql`select 1 from lookups where id = any(${sql.param(ids)}) order by id for no key update`,
  );
  await tx.execute(sql`
    with returned as (
      update vendor_attempts a set returned = true
        from requests r join email_checks c on (c.lookup_id, c.npi, c.email) = (r.lookup_id, r.npi, r.email)
       where r.lookup_id = any(${sql.param(ids)}) and r.status = 'completed' and c.kind = 'named'
         and a.lookup_id = r.lookup_id and a.vendor = c.source and a.state = 'found' and a.reason is null
         and not a.returned
    )
    update lookups l set closed_at = ${at.toISOString()}::timestamptz
     where l.id = any(${sql.param(ids)}) and l.closed_at is null
       and (${answered} or not exists (
         select from requests r where r.lookup_id = l.id and r.settled_at is null))`);
}
