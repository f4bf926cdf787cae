import { and, asc, desc, eq, getTableColumns, gt, lt, type SQL, sql } from 'drizzle-orm';
import {
  cut,
  type Database,
  moment,
  type Page,
  type Period,
  query,
  type Transaction,
} from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { batches, requests, webhookAttempts, webhookDeliveries } from '../schema.ts';
import { DELIVERY_STATES, type DeliveryState } from '../words.ts';
import { ownsBatch } from './deliveries.ts';

// Reads deliveries with their attempts for customers and operators. A receiver's response may
// contain anything, so the caller decides who may see it.

const { dueAt } = webhookDeliveries;
const NEXT_ATTEMPT_AT =
  sql<Date | null>`case when ${dueAt} > clock_timestamp() then ${dueAt} end`.mapWith(
    dueAt,
  );

const DELIVERY = {
  /** The id of the delivery. All its attempts send it as `webhook-id`. */
  id: webhookDeliveries.id,
  batchId: webhookDeliveries.batchId,
  /** Null for the one delivery of a batch in `batch` mode. */
  requestId: webhookDeliveries.requestId,
  /** The NPI of the request. Null without a request. */
  npi: requests.npi,
  state: webhookDeliveries.state,
  createdAt: webhookDeliveries.createdAt,
  decidedAt: webhookDeliveries.decidedAt,
  /** The time of the next attempt. Null unless the delivery waits for it. */
  nextAttemptAt: NEXT_ATTEMPT_AT,
  /** The number of attempts, including those that were deleted from the log. */
  attempts: webhookDeliveries.attempts,
  /** How often the delivery was resent. Each resend starts the retry schedule again. */
  resends: webhookDeliveries.resends,
  url: batches.webhookUrl,
  organizationId: webhookDeliveries.organizationId,
};

/** A delivery with some of its attempts as `log`, the oldest first. */
export type LoggedDelivery = Awaited<ReturnType<typeof selectPage>>['deliveries'][number];

// A page of a list must stay below 512 KiB as JSON, and that of a batch below 256 KiB. So a list contains only the newest attempts, with the beginning of each response. A
// single delivery is read with more attempts and whole excerpts. PostgreSQL applies these limits,
// so that no process holds a complete log in memory.

/** A list contains this many attempts per delivery, the newest ones. */
const LISTED_ATTEMPTS = 5;
/**
 * The length of an excerpt in a list, in UTF-16 code units. Each unit has at most 3 bytes in UTF-8,
 * because a character of 4 bytes has two units.
 */
export const LISTED_CHARACTERS = 200;
const LISTED_BYTES = 3 * LISTED_CHARACTERS;
/** A single delivery is read with at most this many attempts. */
const READ_ATTEMPTS = 50;

/**
 * Lists the deliveries of a batch in the order of its requests, each with its newest attempts.
 * @param page.after the id of the last delivery of the previous page
 * @returns null if this organization has no such batch; otherwise `next` is the `after` of the next
 * page, or null if this is the last page
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
    return await selectPage(tx, where, [asc(webhookDeliveries.id)], limit);
  });
}

/** The filters for a list of deliveries. The period is that of the submits. */
export interface DeliveryFilter extends Period {
  /** Null for all states. */
  readonly status: DeliveryState | null;
}

/**
 * Lists the deliveries of an organization, the newest first, each with its newest attempts.
 * @param page.after the id of the last delivery of the previous page
 * @returns `next` is the `after` of the next page, or null if this is the last page
 */
export async function listOrganizationDeliveries(
  db: Database,
  organizationId: string,
  { status, since, until }: DeliveryFilter,
  { after, limit }: Page,
) {
  const states = sql.param(status ? [status] : DELIVERY_STATES);
  // Reads one page of each state by the index, so that a rare state is found among many deliveries
  // in other states. The newest of all these rows form the page.
  const isOnPage = sql`${webhookDeliveries.id} in (
    select page.id
      from unnest(${states}::text[]) wanted (state)
     cross join lateral (
       select id
         from webhook_deliveries d
        where d.organization_id = ${organizationId}
          and d.state = wanted.state
          and d.created_at >= coalesce(${moment(since)}, '-infinity')
          and d.created_at < coalesce(${moment(until)}, 'infinity')
          and (d.created_at, d.id) < (
                select timestamptz 'infinity', '' where ${after}::text is null
                union all
                select created_at, id
                  from webhook_deliveries
                 where id = ${after} and organization_id = ${organizationId})
        order by d.created_at desc, d.id desc
        limit ${limit + 1}) page)`;
  const newestFirst = [desc(webhookDeliveries.createdAt), desc(webhookDeliveries.id)];
  return await query(db, (tx) => selectPage(tx, isOnPage, newestFirst, limit));
}

/**
 * Lists the deliveries of all organizations, the newest first, each with its newest attempts.
 * @param state null for all states
 */
export async function listAllDeliveries(
  db: Database,
  state: DeliveryState | null,
  limit: number,
) {
  const isListed = state === null ? undefined : eq(webhookDeliveries.state, state);
  return await query(db, (tx) =>
    selectPage(tx, isListed, [desc(webhookDeliveries.id)], limit),
  );
}

/**
 * Reads one delivery of a batch with up to 50 of its attempts.
 * @param before if set, only attempts with a lower number are read; null to read the newest
 * attempts
 * @returns null if this organization and batch have no such delivery
 */
export async function readOwnDelivery(
  db: Database,
  which: {
    readonly organizationId: string;
    readonly batchId: string;
    readonly deliveryId: string;
  },
  before: number | null,
): Promise<LoggedDelivery | null> {
  const { organizationId, batchId, deliveryId } = which;
  return await query(db, async (tx) => {
    if (!(await ownsBatch(tx, organizationId, batchId))) return null;
    const where = and(
      eq(webhookDeliveries.id, deliveryId),
      eq(webhookDeliveries.batchId, batchId),
    );
    return await selectWhole(tx, where, before);
  });
}

/**
 * Reads one delivery of any organization with its newest 50 attempts.
 * @throws {Refusal} `delivery_missing` for an unknown id
 */
export async function showDelivery(
  db: Database,
  deliveryId: string,
): Promise<LoggedDelivery> {
  const found = await query(db, (tx) =>
    selectWhole(tx, eq(webhookDeliveries.id, deliveryId), null),
  );
  if (!found) throw new Refusal('delivery_missing');
  return found;
}

/**
 * Reads one delivery in the caller's transaction, with the attempts that a list shows: the newest
 * ones, with shortened responses.
 * @throws {Refusal} `delivery_missing` for an unknown id
 */
export async function selectDelivery(
  tx: Selecting,
  deliveryId: string,
): Promise<LoggedDelivery> {
  const only = eq(webhookDeliveries.id, deliveryId);
  const { deliveries } = await selectPage(tx, only, [], 1);
  const [found] = deliveries;
  if (!found) throw new Refusal('delivery_missing');
  return found;
}

type Selecting = Pick<Transaction, 'select'>;

/**
 * Reads a page of deliveries, and then their attempts. The limit of a single joined query would
 * count attempts instead of deliveries.
 */
async function selectPage(
  tx: Selecting,
  where: SQL | undefined,
  order: readonly SQL[],
  limit: number,
) {
  const rows = await tx
    .select(DELIVERY)
    .from(webhookDeliveries)
    .innerJoin(batches, eq(batches.id, webhookDeliveries.batchId))
    .leftJoin(requests, eq(requests.id, webhookDeliveries.requestId))
    .where(where)
    .orderBy(...order)
    .limit(limit + 1);
  const { items, last } = cut(rows, limit);
  const ids = items.map(({ id }) => id);
  const { responseExcerpt, ...columns } = getTableColumns(webhookAttempts);
  const beginning = sql<Buffer | null>`substring(${responseExcerpt} for ${LISTED_BYTES})`;
  // The newest attempts have the highest numbers, up to `attempts`. There are no gaps, because the
  // lowest numbers are deleted first.
  const attempts = await tx
    .select({ ...columns, responseExcerpt: beginning })
    .from(webhookAttempts)
    .innerJoin(webhookDeliveries, eq(webhookDeliveries.id, webhookAttempts.deliveryId))
    .where(
      and(
        sql`${webhookAttempts.deliveryId} = any(${sql.param(ids)}::text[])`,
        sql`${webhookAttempts.n} > ${webhookDeliveries.attempts} - ${LISTED_ATTEMPTS}`,
      ),
    )
    .orderBy(asc(webhookAttempts.n));
  const logs = Map.groupBy(attempts, ({ deliveryId }) => deliveryId);
  const deliveries = items.map((row) => {
    const log = logs.get(row.id) ?? [];
    return { ...row, log: log.map(({ deliveryId: _id, ...attempt }) => attempt) };
  });
  return { deliveries, next: last?.id ?? null };
}

async function selectWhole(tx: Selecting, where: SQL | undefined, before: number | null) {
  const [delivery] = await tx
    .select(DELIVERY)
    .from(webhookDeliveries)
    .innerJoin(batches, eq(batches.id, webhookDeliveries.batchId))
    .leftJoin(requests, eq(requests.id, webhookDeliveries.requestId))
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
