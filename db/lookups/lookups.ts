import { eq, sql } from 'drizzle-orm';
import { clock, type Database, type Transaction, transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { newId } from '../ids.ts';
import { lookups, requests } from '../schema.ts';
import type { WantedType } from '../words.ts';

// One lookup serves all requests that wait for the same NPI and type, of whatever organization: a vendor is asked and
// paid once for all of them. Each request is settled, and charged, by its own ledger.

/**
 * Makes a request part of the one open lookup for its NPI and type, and `in-progress`.
 * @returns null if the request is final already
 * @throws {Refusal} `request_missing` for an unknown id
 */
export async function joinLookup(
  db: Database,
  requestId: string,
): Promise<{ readonly lookupId: string; readonly wantedType: WantedType } | null> {
  return await transaction(db, async (tx) => {
    const [request] = await tx.select().from(requests).where(eq(requests.id, requestId)).for('update');
    if (!request) throw new Refusal('request_missing');
    const { npi, wantedType, lookupId, batchId, settledAt } = request;
    if (settledAt) return null;
    if (lookupId !== null) return { lookupId, wantedType };
    // The update below counts in the batch: taken first, because a settlement holds the batch when it comes here.
    await tx.execute(sql`select 1 from batches where id = ${batchId} for no key update`);
    const at = await clock(tx);
    const [row] = await tx
      .insert(lookups)
      .values({ id: newId('lkp'), npi, wantedType, openedAt: at })
      .onConflictDoUpdate({
        target: [lookups.npi, lookups.wantedType],
        targetWhere: sql`closed_at is null`,
        // Changes nothing, but gives the open one back, and locked.
        set: { npi },
      })
      .returning({ id: lookups.id });
    if (!row) throw new Error('no row');
    const startedAt = request.startedAt ?? at;
    await tx
      .update(requests)
      .set({ lookupId: row.id, status: 'in-progress', startedAt })
      .where(eq(requests.id, requestId));
    return { lookupId: row.id, wantedType };
  });
}

/**
 * Closes the lookups of requests that were just settled: each that has its answer, or that the last which waited for it
 * has given up. Part of the settling transaction, and its last locks.
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
    update lookups l set closed_at = ${at.toISOString()}::timestamptz
     where l.id = any(${sql.param(ids)}) and l.closed_at is null
       and (${answered} or not exists (
         select from requests r where r.lookup_id = l.id and r.settled_at is null))`);
}
