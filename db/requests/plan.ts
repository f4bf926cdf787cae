import { asc, eq } from 'drizzle-orm';
import { type Database, query } from '../client.ts';
import { Refusal } from '../errors.ts';
import { batches, requests, webhookDeliveries } from '../schema.ts';

/**
 * Reads what is left to do for a batch, so that its workflow can start, and start again, from the facts alone. A
 * `deliveryId` is a pending delivery: the batch's own in `batch` mode, each request's in `real-time` mode.
 * @throws {Refusal} `batch_missing` for an unknown id
 */
export async function readBatch(db: Database, batchId: string) {
  const { batch, rows, pending } = await query(db, async (tx) => {
    const [batch] = await tx.select().from(batches).where(eq(batches.id, batchId));
    const rows = await tx
      .select()
      .from(requests)
      .where(eq(requests.batchId, batchId))
      .orderBy(asc(requests.position));
    const deliveries = await tx
      .select()
      .from(webhookDeliveries)
      .where(eq(webhookDeliveries.batchId, batchId));
    // What was sent again has a workflow of its own.
    const pending = deliveries.filter(({ state, resends }) => state === 'pending' && resends === 0);
    return { batch, rows, pending };
  });
  if (!batch) throw new Refusal('batch_missing');
  const deliveryOf = new Map(pending.map((delivery) => [delivery.requestId, delivery.id]));
  return {
    organizationId: batch.organizationId,
    deliveryId: deliveryOf.get(null) ?? null,
    requests: rows.map((row) => ({
      requestId: row.id,
      npi: row.npi,
      // Null while it is open.
      status: row.status === 'accepted' || row.status === 'in-progress' ? null : row.status,
      // Milliseconds since the epoch.
      deadline: row.deadlineAt.getTime(),
      deliveryId: deliveryOf.get(row.id) ?? null,
    })),
  };
}
