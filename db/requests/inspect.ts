import { asc, eq, getTableColumns, inArray, sql } from 'drizzle-orm';
import { type Database, query } from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { readable } from '../connection/readable.ts';
import {
  batches,
  requests,
  vendorAttempts,
  webhookAttempts,
  webhookDeliveries,
} from '../schema.ts';

// Reads a batch for operators, with emails, the webhook's URL, and the receiver's responses. The
// caller decides which parts to show. These parts are null for viewers. Only `custom_data` is left
// out, because its content is private to the client.

const { customData: _customData, ...BATCH } = getTableColumns(batches);
const {
  batchId: _batchId,
  organizationId: _organizationId,
  ...REQUEST
} = getTableColumns(requests);
const {
  batchId: _batchOfDelivery,
  attempts: _attempts,
  ...DELIVERY
} = getTableColumns(webhookDeliveries);
const { startedAt, endedAt } = vendorAttempts;
const DURATION_MS = sql<
  number | null
>`extract(epoch from ${endedAt} - ${startedAt}) * 1000`;
const VENDOR_ATTEMPT = {
  ...getTableColumns(vendorAttempts),
  /** The duration of the attempt in milliseconds. Null while the attempt is running. */
  durationMs: DURATION_MS.mapWith(Number),
};

export type BatchInspection = Awaited<ReturnType<typeof inspectBatch>>;

/**
 * Reads one batch: its requests in the order in which the client listed them, and its deliveries
 * with their attempts. Each request includes the vendor attempts of its lookup, which may be shared
 * with requests of other batches.
 * @throws {Refusal} `batch_missing` for an unknown id
 */
export async function inspectBatch(db: Database, batchId: string) {
  return await query(db, async (tx) => {
    const [batch] = await tx
      .select(await readable(tx, BATCH))
      .from(batches)
      .where(eq(batches.id, batchId));
    if (!batch) throw new Refusal('batch_missing');
    const ofBatch = eq(requests.batchId, batchId);
    const asked = await tx
      .select(await readable(tx, REQUEST))
      .from(requests)
      .where(ofBatch)
      .orderBy(asc(requests.position));
    const lookups = tx.select({ id: requests.lookupId }).from(requests).where(ofBatch);
    const vendorCalls = await tx
      .select(VENDOR_ATTEMPT)
      .from(vendorAttempts)
      .where(inArray(vendorAttempts.lookupId, lookups))
      .orderBy(
        asc(vendorAttempts.startedAt),
        asc(vendorAttempts.vendor),
        asc(vendorAttempts.n),
      );
    const deliveries = await tx
      .select(await readable(tx, DELIVERY))
      .from(webhookDeliveries)
      .where(eq(webhookDeliveries.batchId, batchId))
      .orderBy(asc(webhookDeliveries.createdAt), asc(webhookDeliveries.id));
    const attempts = await tx
      .select(await readable(tx, getTableColumns(webhookAttempts)))
      .from(webhookAttempts)
      .innerJoin(webhookDeliveries, eq(webhookDeliveries.id, webhookAttempts.deliveryId))
      .where(eq(webhookDeliveries.batchId, batchId))
      .orderBy(asc(webhookAttempts.n));
    return {
      batch,
      requests: asked.map((request) => ({
        ...request,
        vendorAttempts: vendorCalls.filter(
          ({ lookupId }) => lookupId === request.lookupId,
        ),
      })),
      deliveries: deliveries.map((delivery) => ({
        ...delivery,
        attempts: attempts.filter(({ deliveryId }) => deliveryId === delivery.id),
      })),
    };
  });
}
