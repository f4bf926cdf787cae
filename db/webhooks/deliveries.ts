import { and, eq, sql } from 'drizzle-orm';
import { type Database, query, type Transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { envelopeText, findEnvelope } from '../requests/envelope.ts';
import { batches, organizations, webhookDeliveries } from '../schema.ts';
import { decryptSecret } from '../secrets.ts';

/** Whether what a row of webhook_deliveries reports is final: its request, or its whole batch. */
export const REPORTS_FINAL = sql<boolean>`case when webhook_deliveries.request_id is null
  then exists (select from batches b where b.id = webhook_deliveries.batch_id and b.status = 'completed')
  else exists (select from requests r where r.id = webhook_deliveries.request_id and r.settled_at is not null) end`;

/** Whether a batch is an organization's: a statement of its own, so that a foreign id takes the time of an unknown one. */
export async function ownsBatch(
  tx: Pick<Transaction, '$count'>,
  organizationId: string,
  batchId: string,
): Promise<boolean> {
  const isTheirs = and(eq(batches.id, batchId), eq(batches.organizationId, organizationId));
  return (await tx.$count(batches, isTheirs)) > 0;
}

/**
 * Locks a delivery. The times are milliseconds from now, 0 for what has passed.
 * @param batchId where it has to be one of that batch
 */
export async function lockDelivery(tx: Transaction, deliveryId: string, batchId?: string) {
  const [row] = await tx
    .select({
      id: webhookDeliveries.id,
      state: webhookDeliveries.state,
      step: webhookDeliveries.step,
      stepAt: webhookDeliveries.stepAt,
      resends: webhookDeliveries.resends,
      attempts: webhookDeliveries.attempts,
      leasedMs: msUntil(webhookDeliveries.leasedUntil),
      dueMs: msUntil(webhookDeliveries.dueAt),
      organizationId: batches.organizationId,
      url: batches.webhookUrl,
      suspended: organizations.webhooksSuspended,
      final: REPORTS_FINAL,
    })
    .from(webhookDeliveries)
    .innerJoin(batches, eq(batches.id, webhookDeliveries.batchId))
    .innerJoin(organizations, eq(organizations.id, batches.organizationId))
    .where(
      and(
        eq(webhookDeliveries.id, deliveryId),
        batchId === undefined ? undefined : eq(webhookDeliveries.batchId, batchId),
      ),
    )
    .for('update', { of: webhookDeliveries });
  return row;
}

function msUntil(column: typeof webhookDeliveries.dueAt | typeof webhookDeliveries.leasedUntil) {
  return sql`greatest(0, ceil(extract(epoch from ${column} - clock_timestamp()) * 1000))`.mapWith(Number);
}

/**
 * One delivery with all that an attempt needs: its body as it is now, and its organization's secrets, for 24 h after a
 * rotation the previous one too. They and the personal data in the body never leave the activity.
 * @throws {Refusal} `delivery_missing` for an unknown id; {SecretKeyMissing}
 */
export async function loadDelivery(db: Database, deliveryId: string) {
  const [row] = await query(db, (tx) =>
    tx
      .select({
        delivery: webhookDeliveries,
        organizationId: batches.organizationId,
        url: batches.webhookUrl,
        secret: organizations.webhookSecret,
        previousSecret: sql<
          string | null
        >`case when ${organizations.previousWebhookSecretExpiresAt} > clock_timestamp()
          then ${organizations.previousWebhookSecret} end`,
        blocked: sql<string[]>`array(select target from webhook_blocks)`,
      })
      .from(webhookDeliveries)
      .innerJoin(batches, eq(batches.id, webhookDeliveries.batchId))
      .innerJoin(organizations, eq(organizations.id, batches.organizationId))
      .where(eq(webhookDeliveries.id, deliveryId)),
  );
  if (!row?.url) throw new Refusal('delivery_missing');
  const { id, attempts, batchId, requestId } = row.delivery;
  const { organizationId, url, secret, previousSecret, blocked } = row;
  const subject = requestId === null ? { organizationId, batchId } : { organizationId, requestId };
  const envelope = await findEnvelope(db, subject);
  if (!envelope) throw new Refusal('delivery_missing');
  return {
    id,
    attempts,
    batchId,
    url,
    blocked,
    secrets: [secret, previousSecret]
      .filter((stored) => stored !== null)
      .map((stored) => decryptSecret(db.secretKeys, organizationId, stored)),
    body: envelopeText(envelope, 'delivery'),
  };
}
