import { and, type Column, eq, isNull, or, sql } from 'drizzle-orm';
import { decryptSecret } from '../accounts/secrets.ts';
import { type Database, lasts, query, type Transaction } from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { envelopeText, findEnvelope } from '../requests/envelope.ts';
import { batches, organizations, webhookDeliveries } from '../schema.ts';
import { LEASE_MS } from './admission.ts';

/** Tests whether the request or the batch that a row of webhook_deliveries reports is final. */
export const REPORTS_FINAL = sql`case
  when webhook_deliveries.request_id is null then exists (
    select from batches b
     where b.id = webhook_deliveries.batch_id and b.status = 'completed')
  else exists (
    select from requests r
     where r.id = webhook_deliveries.request_id and r.settled_at is not null) end`;

/**
 * Returns the id of the delivery whose first attempt is due because this request became final. This
 * is the delivery of the request or of its batch. Null if there isn't one.
 */
export async function findDueDelivery(
  db: Database,
  batchId: string,
  requestId: string,
): Promise<string | null> {
  const isMeant = or(
    isNull(webhookDeliveries.requestId),
    eq(webhookDeliveries.requestId, requestId),
  );
  const [due] = await query(db, (tx) =>
    tx
      .select({ id: webhookDeliveries.id })
      .from(webhookDeliveries)
      .where(
        and(
          eq(webhookDeliveries.batchId, batchId),
          isMeant,
          eq(webhookDeliveries.state, 'pending'),
          eq(webhookDeliveries.attempts, 0),
          eq(webhookDeliveries.resends, 0),
          REPORTS_FINAL,
        ),
      ),
  );
  return due?.id ?? null;
}

/**
 * Returns whether a batch belongs to an organization. Callers run this first, as a separate
 * statement. So a request for another organization's batch takes as long as a request for an
 * unknown batch.
 */
export async function ownsBatch(
  tx: Pick<Transaction, 'select'>,
  organizationId: string,
  batchId: string,
): Promise<boolean> {
  const found = await tx
    .select({ id: batches.id })
    .from(batches)
    .where(and(eq(batches.id, batchId), eq(batches.organizationId, organizationId)));
  return found.length > 0;
}

/**
 * Locks a delivery and reads its state. `stepMs`, `leasedMs`, and `dueMs` are milliseconds from
 * now, or 0 if that time has passed. A lease that would last longer than `LEASE_MS` was stored
 * before the clock was set back, and counts as passed.
 * @param batchId the batch that the delivery must belong to, or null for any batch
 */
export async function lockDelivery(
  tx: Transaction,
  deliveryId: string,
  batchId: string | null = null,
) {
  const isOfBatch = batchId === null ? undefined : eq(webhookDeliveries.batchId, batchId);
  const [row] = await tx
    .select({
      id: webhookDeliveries.id,
      batchId: webhookDeliveries.batchId,
      state: webhookDeliveries.state,
      step: webhookDeliveries.step,
      stepAt: webhookDeliveries.stepAt,
      stepMs: msUntil(webhookDeliveries.stepAt),
      resends: webhookDeliveries.resends,
      attempts: webhookDeliveries.attempts,
      leasedMs: sql<number>`
        case when ${lasts(webhookDeliveries.leasedUntil, LEASE_MS)}
             then ${msUntil(webhookDeliveries.leasedUntil)} else 0 end`,
      dueMs: msUntil(webhookDeliveries.dueAt),
      organizationId: organizations.id,
      url: batches.webhookUrl,
      suspended: organizations.webhooksSuspended,
      isErased: sql<boolean>`${organizations.erasedAt} is not null`,
      final: sql<boolean>`${REPORTS_FINAL}`,
    })
    .from(webhookDeliveries)
    .innerJoin(batches, eq(batches.id, webhookDeliveries.batchId))
    .innerJoin(organizations, eq(organizations.id, webhookDeliveries.organizationId))
    .where(and(eq(webhookDeliveries.id, deliveryId), isOfBatch))
    .for('update', { of: webhookDeliveries });
  return row;
}

function msUntil(time: Column) {
  return sql<number>`
    greatest(0, ceil(extract(epoch from ${time} - clock_timestamp()) * 1000))::float8`;
}

const {
  webhookSecret,
  previousWebhookSecret: previous,
  previousWebhookSecretExpiresAt: expiresAt,
} = organizations;

/**
 * The facts for an attempt in addition to its body: the encrypted secrets of the row of organizations,
 * including the previous one for 24 h after a rotation, and the targets that operators have blocked.
 */
export const ATTEMPT_FACTS = {
  organizationId: organizations.id,
  blocked: sql<string[]>`array(select target from webhook_blocks)`,
  secrets: sql<string[]>`array_remove(
    array[${webhookSecret},
          case when ${expiresAt} > clock_timestamp() then ${previous} end],
    null)`,
};

/**
 * Loads everything for an attempt of a delivery: its current body, and `ATTEMPT_FACTS`. The secrets,
 * and the personal data in the body, stay in the activity and are never passed to Temporal.
 * @throws {Refusal} `delivery_missing` for an unknown id; {SecretKeyMissing}; {SecretUnreadable}
 */
export async function loadDelivery(db: Database, deliveryId: string) {
  const [row] = await query(db, (tx) =>
    tx
      .select({
        id: webhookDeliveries.id,
        attempts: webhookDeliveries.attempts,
        batchId: webhookDeliveries.batchId,
        requestId: webhookDeliveries.requestId,
        url: batches.webhookUrl,
        ...ATTEMPT_FACTS,
      })
      .from(webhookDeliveries)
      .innerJoin(batches, eq(batches.id, webhookDeliveries.batchId))
      .innerJoin(organizations, eq(organizations.id, webhookDeliveries.organizationId))
      .where(eq(webhookDeliveries.id, deliveryId)),
  );
  if (!row?.url) throw new Refusal('delivery_missing');
  const { id, attempts, batchId, organizationId, url, secrets, blocked } = row;
  return {
    id,
    attempts,
    batchId,
    url,
    blocked,
    secrets: secrets.map((stored) =>
      decryptSecret(db.secretKeys, organizationId, stored),
    ),
    body: await currentResult(db, row),
  };
}

interface Reported
  extends Pick<typeof webhookDeliveries.$inferSelect, 'batchId' | 'requestId'> {
  readonly organizationId: string;
}

/** Returns the envelope with the current result of the request or batch of a delivery. */
async function currentResult(
  db: Database,
  { organizationId, batchId, requestId }: Reported,
): Promise<string> {
  const subject =
    requestId === null ? { organizationId, batchId } : { organizationId, requestId };
  const envelope = await findEnvelope(db, subject);
  if (!envelope) throw new Refusal('delivery_missing');
  return envelopeText(envelope, 'delivery');
}
