import { asc, eq, getTableColumns, inArray, sql } from 'drizzle-orm';
import { type Database, query, type Transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { batches, requests, vendorAttempts, webhookAttempts, webhookDeliveries } from '../schema.ts';

// What operators may see of a batch. Holds emails, the webhook's URL and what its receiver answered: whoever shows it
// decides what of that to show. Only `custom_data` is left out, because it is the client's own.

const { customData: _customData, ...BATCH } = getTableColumns(batches);
const { batchId: _batchId, organizationId: _organizationId, ...REQUEST } = getTableColumns(requests);
const { batchId: _batchOfDelivery, attempts: _attempts, ...DELIVERY } = getTableColumns(webhookDeliveries);
const VENDOR_ATTEMPT = {
  ...getTableColumns(vendorAttempts),
  /** Null while it runs. */
  durationMs: sql<
    number | null
  >`extract(epoch from ${vendorAttempts.endedAt} - ${vendorAttempts.startedAt}) * 1000`.mapWith(Number),
};

export type BatchInspection = Awaited<ReturnType<typeof inspectBatch>>;

/**
 * Everything there is on one batch: its requests in the order of the submit, with what vendors answered for their
 * lookups, which they may share with others; its deliveries with each attempt.
 * @throws {Refusal} `batch_missing` for an unknown id
 */
export async function inspectBatch(db: Database, batchId: string) {
  return await query(db, async (tx) => {
    const [batch] = await selectBatch(tx, batchId);
    if (!batch) throw new Refusal('batch_missing');
    const vendorAttemptsOf = Map.groupBy(await selectVendorAttempts(tx, batchId), (row) => row.lookupId);
    const attemptsOf = Map.groupBy(await selectAttempts(tx, batchId), (row) => row.deliveryId);
    return {
      batch,
      requests: (await selectRequests(tx, batchId)).map((request) => ({
        ...request,
        vendorAttempts: request.lookupId === null ? [] : (vendorAttemptsOf.get(request.lookupId) ?? []),
      })),
      deliveries: (await selectDeliveries(tx, batchId)).map((delivery) => ({
        ...delivery,
        attempts: attemptsOf.get(delivery.id) ?? [],
      })),
    };
  });
}

type Selecting = Pick<Transaction, 'select'>;

async function selectBatch(tx: Selecting, batchId: string) {
  return await tx.select(BATCH).from(batches).where(eq(batches.id, batchId));
}

async function selectRequests(tx: Selecting, batchId: string) {
  return await tx
    .select(REQUEST)
    .from(requests)
    .where(eq(requests.batchId, batchId))
    .orderBy(asc(requests.position));
}

async function selectVendorAttempts(tx: Selecting, batchId: string) {
  const lookupsOf = tx.select({ id: requests.lookupId }).from(requests).where(eq(requests.batchId, batchId));
  return await tx
    .select(VENDOR_ATTEMPT)
    .from(vendorAttempts)
    .where(inArray(vendorAttempts.lookupId, lookupsOf))
    .orderBy(asc(vendorAttempts.startedAt), asc(vendorAttempts.vendor), asc(vendorAttempts.n));
}

async function selectDeliveries(tx: Selecting, batchId: string) {
  return await tx
    .select(DELIVERY)
    .from(webhookDeliveries)
    .where(eq(webhookDeliveries.batchId, batchId))
    .orderBy(asc(webhookDeliveries.createdAt), asc(webhookDeliveries.id));
}

async function selectAttempts(tx: Selecting, batchId: string) {
  return await tx
    .select(getTableColumns(webhookAttempts))
    .from(webhookAttempts)
    .innerJoin(webhookDeliveries, eq(webhookDeliveries.id, webhookAttempts.deliveryId))
    .where(eq(webhookDeliveries.batchId, batchId))
    .orderBy(asc(webhookAttempts.n));
}
