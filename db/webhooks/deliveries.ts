import { eq, sql } from 'drizzle-orm';
import { type Database, read } from '../client.ts';
import { DatabaseError } from '../errors.ts';
import { envelopeText, findEnvelope } from '../requests/envelope.ts';
import { batches, organizations, webhookDeliveries } from '../schema.ts';
import type { DeliveryState } from '../words.ts';

/** One delivery with all that an attempt needs. Holds a secret and personal data: it never leaves the activity. */
export interface Delivery {
  readonly id: string;
  readonly state: DeliveryState;
  /** Attempts already made. */
  readonly attempts: number;
  readonly batchId: string;
  readonly organizationId: string;
  readonly url: string;
  /** The current secret, and for 24 h after a rotation the previous one too. */
  readonly secrets: readonly string[];
  /** The envelope as it is now. */
  readonly body: string;
}

/**
 * Loads a delivery and builds its body.
 * @throws {DatabaseError} `delivery_missing` for an unknown id
 */
export async function loadDelivery(db: Database, deliveryId: string): Promise<Delivery> {
  const [row] = await read(db, (tx) =>
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
      })
      .from(webhookDeliveries)
      .innerJoin(batches, eq(batches.id, webhookDeliveries.batchId))
      .innerJoin(organizations, eq(organizations.id, batches.organizationId))
      .where(eq(webhookDeliveries.id, deliveryId)),
  );
  if (!row?.url) throw new DatabaseError('delivery_missing');
  const { id, state, attempts, batchId, requestId } = row.delivery;
  const { organizationId, url, secret, previousSecret } = row;
  const subject = requestId === null ? { organizationId, batchId } : { organizationId, requestId };
  const envelope = await findEnvelope(db, subject);
  if (!envelope) throw new DatabaseError('delivery_missing');
  return {
    id,
    state,
    attempts,
    batchId,
    organizationId,
    url,
    secrets: previousSecret === null ? [secret] : [secret, previousSecret],
    body: envelopeText(envelope, 'delivery'),
  };
}
