import { and, asc, eq, isNull, sql } from 'drizzle-orm';
import type { PostgresJsDatabase } from 'drizzle-orm/postgres-js';
import { type Database, query } from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { batches, requests, webhookDeliveries } from '../schema.ts';
import { REPORTS_FINAL } from '../webhooks/deliveries.ts';
import type { FinalStatus, NpiRefusal } from '../words.ts';

/**
 * Reads the data that a batch workflow needs: the open requests with their deadlines (in
 * milliseconds since the epoch), the due webhook deliveries without an attempt, and the number of
 * requests by final status. The result contains no personal data.
 * @throws {Refusal} `batch_missing` for an unknown id
 */
export async function readBatch(db: Database, batchId: string) {
  return await query(db, async (tx) => {
    const rows = await tx
      .select({
        organizationId: batches.organizationId,
        webhookMode: batches.webhookMode,
        requestId: requests.id,
        npi: requests.npi,
        status: requests.status,
        deadlineAt: requests.deadlineAt,
        settledAt: requests.settledAt,
      })
      .from(batches)
      .innerJoin(requests, eq(requests.batchId, batches.id))
      .where(eq(batches.id, batchId))
      .orderBy(asc(requests.position));
    const [first] = rows;
    if (!first) throw new Refusal('batch_missing');
    const { organizationId, webhookMode } = first;
    // The deliveries are read after the requests, so that they include those of all requests that
    // were read as final.
    const due = webhookMode === null ? [] : await readDue(tx, batchId);
    const open = rows.filter(({ settledAt }) => settledAt === null);
    const count = (wanted: FinalStatus) =>
      rows.filter(({ status }) => status === wanted).length;
    return {
      batchId,
      organizationId,
      webhookMode,
      npis: Object.fromEntries(rows.map(({ requestId, npi }) => [requestId, npi])),
      open: open.map(({ requestId, npi, deadlineAt }) => {
        return { requestId, batchId, npi, deadline: deadlineAt.getTime() };
      }),
      due,
      completed: count('completed'),
      notFound: count('not_found'),
      failed: count('failed'),
    };
  });
}

/** Reads the deliveries of a batch that are due and were never attempted. */
async function readDue(tx: PostgresJsDatabase, batchId: string) {
  return await tx
    .select({
      deliveryId: webhookDeliveries.id,
      requestId: webhookDeliveries.requestId,
    })
    .from(webhookDeliveries)
    .leftJoin(requests, eq(requests.id, webhookDeliveries.requestId))
    .where(
      and(
        eq(webhookDeliveries.batchId, batchId),
        eq(webhookDeliveries.state, 'pending'),
        eq(webhookDeliveries.attempts, 0),
        eq(webhookDeliveries.resends, 0),
        REPORTS_FINAL,
      ),
    )
    .orderBy(asc(requests.position));
}

/**
 * Reads what decides how an open request is looked up.
 * @returns null if the request is final or unknown
 */
export async function findOpenRequest(db: Database, requestId: string) {
  return await query(db, async (tx) => {
    const [open] = await tx
      .select({
        isSandbox: sql<boolean>`${requests.testOutcome} is not null`,
        isOverdue: sql<boolean>`${requests.deadlineAt} < clock_timestamp()`,
        /** The reason why its NPI is not looked up. */
        refusal: sql<NpiRefusal | null>`refusal_of(${requests.npi})`,
        /** True if the NPI Registry must be asked who the NPI belongs to. */
        isRegistryDue: sql<boolean>`is_registry_due(${requests.npi})`,
      })
      .from(requests)
      .where(and(eq(requests.id, requestId), isNull(requests.settledAt)));
    return open ?? null;
  });
}
