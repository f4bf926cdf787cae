import { and, asc, desc, eq, getTableColumns, gt, lt, type SQL, sql } from 'drizzle-orm';
import { requireOrganization } from '../accounts/organizations.ts';
import { cut, type Database, type Page, query, type Transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { batches, webhookAttempts, webhookDeliveries } from '../schema.ts';
import type { DeliveryState } from '../words.ts';
import { ownsBatch } from './deliveries.ts';

// What customers and operators may see of deliveries. Answers of receivers may hold anything:
// whoever shows them decides to whom.

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

/** A delivery with some of its attempts as `log`, in the order in which they were made. */
export type LoggedDelivery = Awaited<ReturnType<typeof selectPage>>['deliveries'][number];

// A page of a list has at most 60 deliveries, the most that a batch has, and has to stay below 256
// KiB as JSON. So a list shows the newest attempts only, with the beginning of what was answered;
// one delivery is read with the rest. Both are cut by PostgreSQL, so that no process holds a whole
// log.

/** The newest attempts of each delivery in a list. */
const LISTED_ATTEMPTS = 5;
/**
 * Of an excerpt in a list; a character has at most 3 bytes in UTF-8, or 4 where it counts as two.
 */
export const LISTED_CHARACTERS = 200;
const LISTED_BYTES = 3 * LISTED_CHARACTERS;
/** The attempts of one delivery that are read at once. */
const READ_ATTEMPTS = 50;

/**
 * The deliveries of a batch in the order of the submit, each with its newest attempts.
 * @param page.after the id of the last delivery of the page before
 * @returns `next`: the id to go on from, null at the end; null where this organization has no such
 * batch
 */
export async function listBatchDeliveries(
  db: Database,
  organizationId: string,
  batchId: string,
  page: Page,
) {
  const { after, limit } = page;
  return await query(db, async (tx) => {
    if (!(await ownsBatch(tx, organizationId, batchId))) return null;
    const beyond = after === null ? undefined : gt(webhookDeliveries.id, after);
    const where = and(eq(webhookDeliveries.batchId, batchId), beyond);
    return await selectPage(tx, where, asc(webhookDeliveries.id), limit);
  });
}

/**
 * The deliveries of an organization, or of all, the newest first, each with its newest attempts.
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
 * Reads one delivery of a batch with up to 50 of its attempts as they were kept.
 * @param before reads attempts with a lower number only; null: the newest
 * @returns null where this organization and batch have no such delivery
 */
export async function readOwnDelivery(
  db: Database,
  which: { readonly organizationId: string; readonly batchId: string; readonly deliveryId: string },
  before: number | null,
): Promise<LoggedDelivery | null> {
  const { organizationId, batchId, deliveryId } = which;
  return await query(db, async (tx) => {
    if (!(await ownsBatch(tx, organizationId, batchId))) return null;
    const where = and(eq(webhookDeliveries.id, deliveryId), eq(webhookDeliveries.batchId, batchId));
    return await selectWhole(tx, where, before);
  });
}

/**
 * Reads one delivery of any organization with its newest 50 attempts.
 * @throws {Refusal} `delivery_missing` for an unknown id
 */
export async function showDelivery(db: Database, deliveryId: string): Promise<LoggedDelivery> {
  const found = await query(db, (tx) =>
    selectWhole(tx, eq(webhookDeliveries.id, deliveryId), null),
  );
  if (!found) throw new Refusal('delivery_missing');
  return found;
}

/**
 * Reads one delivery as a list shows it, in the caller's transaction.
 * @throws {Refusal} `delivery_missing` for an unknown id
 */
export async function selectDelivery(tx: Selecting, deliveryId: string): Promise<LoggedDelivery> {
  const only = eq(webhookDeliveries.id, deliveryId);
  const { deliveries } = await selectPage(tx, only, asc(webhookDeliveries.id), 1);
  const [found] = deliveries;
  if (!found) throw new Refusal('delivery_missing');
  return found;
}

type Selecting = Pick<Transaction, 'select'>;

/**
 * Reads attempts apart from their deliveries: joined, a page would be cut in the middle of a
 * delivery.
 */
async function selectPage(tx: Selecting, where: SQL | undefined, order: SQL, limit: number) {
  const rows = await tx
    .select(DELIVERY)
    .from(webhookDeliveries)
    .innerJoin(batches, eq(batches.id, webhookDeliveries.batchId))
    .where(where)
    .orderBy(order)
    .limit(limit + 1);
  const { items, last } = cut(rows, limit);
  const { responseExcerpt, ...columns } = getTableColumns(webhookAttempts);
  const beginning = sql<Buffer | null>`substring(${responseExcerpt} for ${LISTED_BYTES})`;
  // Numbers have no gaps: attempts are forgotten from the lowest number up.
  const attempts = await tx
    .select({ ...columns, responseExcerpt: beginning })
    .from(webhookAttempts)
    .innerJoin(webhookDeliveries, eq(webhookDeliveries.id, webhookAttempts.deliveryId))
    .where(
      and(
        sql`${webhookAttempts.deliveryId} = any(${sql.param(items.map(({ id }) => id))}::text[])`,
        sql`${webhookAttempts.n} > ${webhookDeliveries.attempts} - ${LISTED_ATTEMPTS}`,
      ),
    )
    .orderBy(asc(webhookAttempts.n));
  const logs = Map.groupBy(attempts, ({ deliveryId }) => deliveryId);
  const deliveries = items.map((row) => {
    return {
      ...row,
      log: (logs.get(row.id) ?? []).map(({ deliveryId: _id, ...attempt }) => attempt),
    };
  });
  return { deliveries, next: last?.id ?? null };
}

async function selectWhole(tx: Selecting, where: SQL | undefined, before: number | null) {
  const [delivery] = await tx
    .select(DELIVERY)
    .from(webhookDeliveries)
    .innerJoin(batches, eq(batches.id, webhookDeliveries.batchId))
    .where(where);
  if (!delivery) return null;
  const { deliveryId, ...columns } = getTableColumns(webhookAttempts);
  const older = before === null ? undefined : lt(webhookAttempts.n, before);
  const newestFirst = await tx
    .select(columns)
    .from(webhookAttempts)
    .where(and(eq(deliveryId, delivery.id), older))
    .orderBy(desc(webhookAttempts.n))
    .limit(READ_ATTEMPTS);
  return { ...delivery, log: newestFirst.reverse() };
}
