import { and, asc, eq, isNull, sql } from 'drizzle-orm';
import { type Database, query } from '../client.ts';
import { Refusal } from '../errors.ts';
import { batches, requests } from '../schema.ts';
import { REPORTS_FINAL } from '../webhooks/deliveries.ts';

/**
 * The open requests of a batch, in the order of the submit, and how many requests are overdue.
 * @returns the deadline in milliseconds since the epoch
 * @throws {Refusal} `batch_missing` for an unknown id
 */
export async function listOpenRequests(db: Database, batchId: string) {
  return await query(db, async (tx) => {
    const [batch] = await tx
      .select({
        organizationId: batches.organizationId,
        total: batches.total,
        deadlineAt: batches.deadlineAt,
        realTime: sql<boolean>`coalesce(${batches.webhookMode} = 'real-time', false)`,
      })
      .from(batches)
      .where(eq(batches.id, batchId));
    if (!batch) throw new Refusal('batch_missing');
    const rows = await tx
      .select({
        requestId: requests.id,
        npi: requests.npi,
        hasRoom: requests.hasRoom,
        isOverdue: sql<boolean>`${requests.deadlineAt} < clock_timestamp()`,
      })
      .from(requests)
      .where(and(eq(requests.batchId, batchId), isNull(requests.settledAt)))
      .orderBy(asc(requests.position));
    const { deadlineAt, ...rest } = batch;
    const open = rows.filter(({ isOverdue }) => !isOverdue);
    return { ...rest, deadline: deadlineAt.getTime(), overdue: rows.length - open.length, open };
  });
}

/**
 * How far a batch is: how many of its requests ended how, how many are open, how many of these wait for room, and which
 * deliveries have become due and were never attempted.
 * @throws {DatabaseError}
 */
export async function readFacts(db: Database, batchId: string) {
  type Counts = { completed: number; notFound: number; failed: number; open: number; waiting: number };
  return await query(db, async (tx) => {
    const [counts] = await tx.execute<Counts>(sql`
      select count(*) filter (where status = 'completed')::int as completed,
             count(*) filter (where status = 'not_found')::int as "notFound",
             count(*) filter (where status = 'failed')::int as failed,
             count(*) filter (where settled_at is null)::int as open,
             count(*) filter (where settled_at is null and not has_room)::int as waiting
        from requests where batch_id = ${batchId}`);
    const due = await tx.execute<{ deliveryId: string; npi: string | null }>(sql`
      select webhook_deliveries.id as "deliveryId", request.npi
        from webhook_deliveries left join requests request on request.id = webhook_deliveries.request_id
       where webhook_deliveries.batch_id = ${batchId} and state = 'pending' and attempts = 0 and resends = 0
         and ${REPORTS_FINAL}
       order by request.position`);
    if (!counts) throw new Error('no row');
    return { ...counts, due: [...due] };
  });
}
