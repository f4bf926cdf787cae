import { asc, eq } from 'drizzle-orm';
import { type Database, read } from '../client.ts';
import { DatabaseError } from '../errors.ts';
import { batches, requests, webhookDeliveries } from '../schema.ts';
import type { FinalStatus } from '../words.ts';

/** What a batch workflow has to do, as the database has it now. Ids, outcomes and numbers only. */
export interface BatchFacts {
  readonly organizationId: string;
  /** The pending delivery of the whole batch (`batch` mode). */
  readonly deliveryId: string | null;
  readonly requests: readonly {
    readonly requestId: string;
    readonly npi: string;
    /** Null while open. */
    readonly status: FinalStatus | null;
    /** Milliseconds since the epoch. */
    readonly deadline: number;
    /** The pending delivery of this request (`real-time` mode). */
    readonly deliveryId: string | null;
  }[];
}

/**
 * Reads what is left to do for a batch, so that its workflow can start, and start again, from the facts alone.
 * @throws {DatabaseError} `batch_missing` for an unknown id
 */
export async function readBatch(db: Database, batchId: string): Promise<BatchFacts> {
  const { batch, rows, pending } = await read(db, async (tx) => {
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
  if (!batch) throw new DatabaseError('batch_missing');
  const deliveryOf = new Map(pending.map((delivery) => [delivery.requestId, delivery.id]));
  return {
    organizationId: batch.organizationId,
    deliveryId: deliveryOf.get(null) ?? null,
    requests: rows.map((row) => ({
      requestId: row.id,
      npi: row.npi,
      status: row.status === 'accepted' || row.status === 'in-progress' ? null : row.status,
      deadline: row.deadlineAt.getTime(),
      deliveryId: deliveryOf.get(row.id) ?? null,
    })),
  };
}
