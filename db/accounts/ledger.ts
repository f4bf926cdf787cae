import { and, eq, lte, type SQL, sql } from 'drizzle-orm';
import {
  cut,
  type Database,
  moment,
  only,
  type Page,
  type Period,
  query,
  run,
  transaction,
} from '../connection/client.ts';
import { readByCursor } from '../connection/cursor.ts';
import { ledgerEntries } from '../schema.ts';
import type { RequestedType } from '../words.ts';

/**
 * Identifies the last entry on a page of the ledger, by values that the organization may know. The
 * organization may not know the entry's number, because it would show how many entries all
 * organizations have together.
 */
export type LedgerPlace = {
  /**
   * The credits that were available before the entry. This number never changes, because entries
   * are only added at the end.
   */
  readonly available: number;
} & (
  | { readonly side: 'hold' | 'settlement'; readonly requestId: string }
  /**
   * A grant or an adjustment has no request. `ordinal` is its number among the organization's
   * grants and adjustments, from 1.
   */
  | { readonly side: 'funding'; readonly ordinal: number }
);

/** `amount` is negative only for an adjustment that removes credits. */
interface LedgerRow
  extends Pick<
    typeof ledgerEntries.$inferSelect,
    'id' | 'createdAt' | 'kind' | 'amount' | 'requestId' | 'reference' | 'side'
  > {
  /** The credits available after this entry. */
  readonly availableAfter: number;
  /** How many credits the entry added to the available credits. Negative if it reduced them. */
  readonly added: number;
  /** The batch, NPI, and requested type of the request. Null for grants and adjustments. */
  readonly batchId: string | null;
  readonly npi: string | null;
  readonly requestedType: RequestedType | null;
}

/**
 * Lists an organization's ledger, the newest entries first.
 * @param page.after the last entry of the previous page; an unknown entry gives an empty page
 * @returns `next`: the `after` of the next page, or null if this is the last page
 */
export async function listLedger(
  db: Database,
  organizationId: string,
  { after, limit, ...period }: Page<LedgerPlace> & Period,
) {
  let beforeId: number = Number.MAX_SAFE_INTEGER;
  if (after !== null) {
    const found = await findEntry(db, organizationId, after);
    if (found === null) return { entries: [], next: null };
    beforeId = found;
  }
  const wanted = { ...period, after, beforeId, limit: limit + 1 };
  const rows = await transaction(db, async (tx) => {
    // The plan is made before the period is known. Without this setting, it reads and sorts the whole
    // ledger, which takes over 10 s for an organization with two million entries.
    await run(tx)`select set_config('enable_sort', 'off', true)`;
    return await run<LedgerRow>(tx)`${selectEntries(organizationId, wanted)}`;
  });
  const { items, last } = cut(rows, limit);
  const entries = items.map(({ added: _added, side: _side, ...entry }) => entry);
  if (last === null) return { entries, next: null };
  return { entries, next: await placeOf(db, organizationId, last) };
}

/** The number of entries that are in memory at once when a file is read. */
const FILE_PART = 100;

/**
 * Reads all entries of a period, the newest first, and waits for `work` after some of them.
 * @returns false, without reading them, if there are more than `most`
 */
export async function readLedger(
  db: Database,
  organizationId: string,
  { most, ...period }: Period & { readonly most: number },
  work: (entries: readonly LedgerRow[]) => Promise<void>,
): Promise<boolean> {
  const counted = await run<{ readonly n: number }>(db)`
    select count(*)::int as n
      from (
        select
          from ledger_entries
         where organization_id = ${organizationId}
           and created_at >= coalesce(${moment(period.since)}, '-infinity')
           and created_at < coalesce(${moment(period.until)}, 'infinity')
         limit ${most + 1}
      ) e`;
  if (only(counted).n > most) return false;
  const all = { ...period, after: null, beforeId: Number.MAX_SAFE_INTEGER, limit: null };
  await readByCursor(db, selectEntries(organizationId, all), FILE_PART, work);
  return true;
}

interface Entries extends Omit<Page<LedgerPlace>, 'limit'>, Period {
  /** Null to read all. */
  readonly limit: number | null;
  /** The id of the entry `after`. Only entries with a lower id are read. */
  readonly beforeId: number;
}

/**
 * Selects the newest entries of a period. One statement reads the balance and the entries, so that
 * both are from the same moment. The credits available after each entry are computed backward, from
 * the current credits or those before the entry `after`. So the statement reads all entries from
 * there to the last entry of the result, also those after the period, in the order of the primary
 * key.
 *
 * The entries of an organization are in the order of their times, because both are chosen while the
 * balance is locked. So the subquery finds where the period begins. It tolerates one minute,
 * because the clock may be slightly behind after a failover. The lateral join makes PostgreSQL find
 * each request by its id. The plan of an ordinary join would read all requests.
 */
function selectEntries(
  organizationId: string,
  { since, until, after, beforeId, limit }: Entries,
): SQL {
  return sql`
    select id, created_at as "createdAt", kind, amount, available_after as "availableAfter",
           request_id as "requestId", batch_id as "batchId", npi,
           requested_type as "requestedType", reference, side, added
      from (
        select *
          from (
            select l.id, l.created_at, l.kind, l.amount, l.request_id, l.reference, l.side,
                   l.available as added,
                   (coalesce(${after?.available ?? null}::bigint, b.available)
                     - coalesce(sum(l.available) over (
                         order by l.id desc rows between unbounded preceding and 1 preceding), 0)
                   )::bigint as available_after
              from ledger_entries l
              join credit_balances b using (organization_id)
             where organization_id = ${organizationId}
               and l.id < ${beforeId}::bigint
               and l.id > coalesce((
                 select id
                   from ledger_entries
                  where ${since !== null}::boolean
                    and organization_id = ${organizationId}
                    and id < ${beforeId}::bigint
                    and created_at < ${moment(since)} - interval '1 minute'
                  order by id desc
                  limit 1), 0)
          ) e
         where created_at >= coalesce(${moment(since)}, '-infinity')
           and created_at < coalesce(${moment(until)}, 'infinity')
         order by id desc
         limit ${limit}
      ) e
      left join lateral (
        select batch_id, npi, requested_type from requests where id = e.request_id limit 1
      ) r on true
     order by id desc`;
}

/** Returns the number of the entry that a place identifies, or null for an unknown entry. */
async function findEntry(
  db: Database,
  organizationId: string,
  place: LedgerPlace,
): Promise<number | null> {
  const { id, requestId, side } = ledgerEntries;
  const isOwn = eq(ledgerEntries.organizationId, organizationId);
  const [found] = await query(db, (tx) => {
    const entries = tx.select({ id }).from(ledgerEntries);
    if (place.side === 'funding') {
      return entries
        .where(and(isOwn, eq(side, 'funding')))
        .orderBy(id)
        .offset(place.ordinal - 1)
        .limit(1);
    }
    return entries.where(
      and(isOwn, eq(requestId, place.requestId), eq(side, place.side)),
    );
  });
  return found?.id ?? null;
}

async function placeOf(
  db: Database,
  organizationId: string,
  { id, side, requestId, availableAfter, added }: LedgerRow,
): Promise<LedgerPlace> {
  const available = availableAfter - added;
  if (side !== 'funding') {
    return { side, requestId: requestId ?? '', available };
  }
  const ordinal = await query(db, (tx) =>
    tx.$count(
      ledgerEntries,
      and(
        eq(ledgerEntries.organizationId, organizationId),
        eq(ledgerEntries.side, 'funding'),
        lte(ledgerEntries.id, id),
      ),
    ),
  );
  return { side, ordinal, available };
}
