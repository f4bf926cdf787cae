import { and, asc, desc, eq, getTableColumns, gt, type SQL, sql } from 'drizzle-orm';
import { requireOrganization } from '../accounts/organizations.ts';
import { cut, type Database, type Page, query, type Transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { batches, webhookAttempts, webhookDeliveries } from '../schema.ts';
import type { DeliveryState } from '../words.ts';
import { ownsBatch } from './deliveries.ts';

// What customers and operators may see of deliveries. Answers of receivers may hold anything: whoever shows them
// decides to whom.

const DELIVERY = {
  /** The `webhook-id` of all its attempts. */
  id: webhookDeliveries.id,
  batchId: webhookDeliveries.batchId,
  /** Null for the one delivery of a batch in `batch` mode. */
  requestId: webhookDeliveries.requestId,
  state: webhookDeliveries.state,
  createdAt: webhookDeliveries.createdAt,
  decidedAt: webhookDeliveries.decidedAt,
  /** While it waits for its next attempt; else null. */
  nextAttemptAt:
    sql<Date | null>`case when ${webhookDeliveries.dueAt} > clock_timestamp() then ${webhookDeliveries.dueAt} end`.mapWith(
      webhookDeliveries.dueAt,
    ),
  /** Ever made, forgotten ones included. */
  attempts: webhookDeliveries.attempts,
  /** How often it was sent again from the start of the schedule. */
  resends: webhookDeliveries.resends,
  url: sql<string>`${batches.webhookUrl}`,
  organizationId: batches.organizationId,
};

/** With the newest of its attempts as `log`, in the order in which they were made. */
export type LoggedDelivery = Awaited<ReturnType<typeof selectPage>>['deliveries'][number];

/** Of one delivery; one that was sent again and again has more. */
const LOGGED_AT_MOST = 50;

/**
 * The deliveries of a batch in the order of the submit.
 * @param page.after the id of the last delivery of the page before
 * @returns `next`: the id to go on from, null at the end; null where this organization has no such batch
 */
export async function listBatchDeliveries(db: Database, organizationId: string, batchId: string, page: Page) {
  const { after, limit } = page;
  return await query(db, async (tx) => {
    if (!(await ownsBatch(tx, organizationId, batchId))) return null;
    const beyond = after === null ? undefined : gt(webhookDeliveries.id, after);
    const where = and(eq(webhookDeliveries.batchId, batchId), beyond);
    return await selectPage(tx, where, asc(webhookDeliveries.id), limit);
  });
}

/**
 * The deliveries of an organization, or of all, the newest first.
 * @param filter.organizationId null for all
 * @throws {Refusal} `organization_missing` for an unknown id
 */
export async function listOrganizationDeliveries(
  db: Database,
  filter: {
    readonly organizationId: string | null;
    readonly state: DeliveryState | null;
    readonly limit: number;
  },
) {
  const { organizationId, state, limit } = filter;
  if (organizationId !== null) await requireOrganization(db, organizationId);
  const where = and(
    organizationId === null ? undefined : eq(batches.organizationId, organizationId),
    state === null ? undefined : eq(webhookDeliveries.state, state),
  );
  return await query(db, (tx) => selectPage(tx, where, desc(webhookDeliveries.id), limit));
}

/**
 * One delivery, of whatever organization.
 * @throws {Refusal} `delivery_missing` for an unknown id
 */
export async function showDelivery(db: Database, deliveryId: string): Promise<LoggedDelivery> {
  return await query(db, (tx) => selectDelivery(tx, deliveryId));
}

/** As `showDelivery`, in the caller's transaction. */
export async function selectDelivery(tx: Selecting, deliveryId: string): Promise<LoggedDelivery> {
  const only = eq(webhookDeliveries.id, deliveryId);
  const { deliveries } = await selectPage(tx, only, asc(webhookDeliveries.id), 1);
  const [found] = deliveries;
  if (!found) throw new Refusal('delivery_missing');
  return found;
}

type Selecting = Pick<Transaction, 'select'>;

/** Attempts are read apart: joined, a page of deliveries would be cut in the middle of one. */
async function selectPage(tx: Selecting, where: SQL | undefined, order: SQL, limit: number) {
  const rows = await tx
    .select(DELIVERY)
    .from(webhookDeliveries)
    .innerJoin(batches, eq(batches.id, webhookDeliveries.batchId))
    .where(where)
    .orderBy(order)
    .limit(limit + 1);
  const { items, last } = cut(rows, limit);
  const attempts = await tx
    .select(getTableColumns(webhookAttempts))
    .from(webhookAttempts)
    .innerJoin(webhookDeliveries, eq(webhookDeliveries.id, webhookAttempts.deliveryId))
    .where(
      and(
        sql`${webhookAttempts.deliveryId} = any(${sql.param(items.map(({ id }) => id))}::text[])`,
        sql`${webhookAttempts.n} > ${webhookDeliveries.attempts} - ${LOGGED_AT_MOST}`,
      ),
    )
    .orderBy(asc(webhookAttempts.n));
  const logs = Map.groupBy(attempts, ({ deliveryId }) => deliveryId);
  const deliveries = items.map((row) => {
    return { ...row, log: (logs.get(row.id) ?? []).map(({ deliveryId: _id, ...attempt }) => attempt) };
  });
  return { deliveries, next: last?.id ?? null };
}
