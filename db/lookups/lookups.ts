import { sql } from 'drizzle-orm';
import { type Database, query, type Transaction } from '../client.ts';
import { newId } from '../ids.ts';
import type { WantedType } from '../words.ts';

// One lookup serves all requests that wait for the same NPI and type, of whatever organization: a vendor is asked and
// paid once for all of them. Each request is settled, and charged, by its own ledger.

/**
 * Makes requests of one batch part of the one open lookup for their NPI and type, and `in-progress`.
 * @returns by request; without those that are final already
 */
export async function joinLookups(db: Database, requestIds: readonly string[]) {
  const ids = requestIds.map(() => newId('lkp'));
  const rows = await query(db, (tx) =>
    tx.execute<{ requestId: string; lookupId: string; wantedType: WantedType }>(sql`
      with open as materialized (
        select r.*, new.id as new_id
          from unnest(${sql.param(requestIds)}::text[], ${sql.param(ids)}::text[]) new (request_id, id)
          join requests r on r.id = new.request_id
         where r.settled_at is null order by r.id for update of r
      ), batch as materialized (
        -- The update below counts in it: taken first, because a settlement holds the batch when it comes to a lookup.
        select 1 from batches where id in (select batch_id from open) for no key update
      ), lookup as (
        insert into lookups (id, npi, wanted_type, opened_at)
        select distinct on (npi, wanted_type) new_id, npi, wanted_type, clock_timestamp()
          from open where lookup_id is null and exists (select from batch) order by npi, wanted_type
            on conflict (npi, wanted_type) where closed_at is null
            -- Changes nothing, but gives the open one back, and locked.
            do update set npi = excluded.npi
        returning id, npi, wanted_type
      ), joined as (
        update requests r
           set lookup_id = l.id, status = 'in-progress',
               started_at = coalesce(r.started_at, date_trunc('milliseconds', clock_timestamp()))
          from open join lookup l using (npi, wanted_type)
         where r.id = open.id and open.lookup_id is null
        returning r.id, r.lookup_id
      )
      select id as "requestId", coalesce(joined.lookup_id, open.lookup_id) as "lookupId", wanted_type as "wantedType"
        from open left join joined using (id)`),
  );
  return new Map(rows.map((row) => [row.requestId, row]));
}

/**
 * Closes the lookups of requests that were just settled: each that has its answer, or that the last which waited for it
 * has given up. Part of the settling transaction, and its last locks.
 */
export async function closeLookups(tx: Transaction, requestIds: readonly string[]): Promise<void> {
  const settled = sql`r.id = any(${sql.param(requestIds)})`;
  // A statement of its own: if two requests give up at once, the second must see that the first has. In one order,
  // because organizations share lookups.
  const lock = tx.execute(sql`
    select from lookups where id = any (array(select lookup_id from requests r where ${settled}))
     order by npi, wanted_type for no key update`);
  const close = tx.execute(sql`
    update lookups l set closed_at = r.settled_at from requests r
     where ${settled} and l.id = r.lookup_id and l.closed_at is null
       and (r.status <> 'failed' or not exists (
         select from requests other where other.lookup_id = l.id and other.settled_at is null))`);
  await Promise.all([lock, close]);
}
