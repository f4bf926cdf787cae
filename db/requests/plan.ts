import { asc, eq, sql } from 'drizzle-orm';
import { type Database, query } from '../client.ts';
import { Refusal } from '../errors.ts';
import { batches, requests } from '../schema.ts';
import { REPORTS_FINAL } from '../webhooks/deliveries.ts';
import type { FinalStatus } from '../words.ts';

/**
 * How far a batch is: how many of its requests ended how, which are open, in the order of the submit, and which
 * deliveries have become due and were never attempted.
 * @throws {Refusal} `batch_missing` for an unknown id
 */
export async function readBatch(db: Database, batchId: string) {
  return await query(db, async (tx) => {
    const rows = await tx
      .select({
        organizationId: batches.organizationId,
        total: batches.total,
        deadlineAt: batches.deadlineAt,
        realTime: sql<boolean>`coalesce(${batches.webhookMode} = 'real-time', false)`,
        requestId: requests.id,
        npi: requests.npi,
        status: requests.status,
        hasRoom: requests.hasRoom,
        settledAt: requests.settledAt,
        isOverdue: sql<boolean>`${requests.deadlineAt} < clock_timestamp()`,
      })
      .from(batches)
      .innerJoin(requests, eq(requests.batchId, batches.id))
      .where(eq(batches.id, batchId))
      .orderBy(asc(requests.position));
    const [first] = rows;
    if (!first) throw new Refusal('batch_missing');
    // After the requests, so that what is final by them has its delivery here.
    const due = await tx.execute<{ deliveryId: string; npi: string | null }>(sql`
      select webhook_deliveries.id as "deliveryId", request.npi
        from webhook_deliveries left join requests request on request.id = webhook_deliveries.request_id
       where webhook_deliveries.batch_id = ${batchId} and state = 'pending' and attempts = 0 and resends = 0
         and ${REPORTS_FINAL}
       order by request.position`);
    const { organizationId, total, realTime, deadlineAt } = first;
    const count = (wanted: FinalStatus) => rows.filter(({ status }) => status === wanted).length;
    return {
      ...{ organizationId, total, realTime, deadline: deadlineAt.getTime(), due: [...due] },
      ...{ completed: count('completed'), notFound: count('not_found'), failed: count('failed') },
      open: rows.filter(({ settledAt }) => settledAt === null),
    };
  });
}
