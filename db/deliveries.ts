import { and, eq, sql } from 'drizzle-orm';
import { clock, type Database, read, transaction } from './client.ts';
import { envelopeText, findEnvelope } from './envelope.ts';
import { DatabaseError } from './errors.ts';
import { batches, organizations, webhookAttempts, webhookDeliveries } from './schema.ts';
import type { DeliveryState } from './words.ts';

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

/** How one attempt went. */
export interface AttemptRecord {
  readonly startedAt: Date;
  readonly durationMs: number;
  readonly statusCode: number | null;
  readonly errorCode: string | null;
  /** At most the first 1024 bytes of the answer. */
  readonly responseExcerpt: Buffer | null;
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
    body: envelopeText(envelope, true),
  };
}

/**
 * Adds one attempt to the delivery's log and, where it decided the delivery, its state. A delivery that is decided
 * stays so: a late second attempt is logged and changes nothing.
 * @throws {DatabaseError}
 */
export async function recordAttempt(
  db: Database,
  deliveryId: string,
  attempt: AttemptRecord,
  state: 'pending' | 'delivered' | 'failed',
): Promise<void> {
  await transaction(db, async (tx) => {
    const at = await clock(tx);
    const [counted] = await tx
      .update(webhookDeliveries)
      .set({ attempts: sql`${webhookDeliveries.attempts} + 1` })
      .where(eq(webhookDeliveries.id, deliveryId))
      .returning({ n: webhookDeliveries.attempts });
    if (!counted) throw new DatabaseError('delivery_missing');
    await tx.insert(webhookAttempts).values({ deliveryId, n: counted.n, ...attempt });
    if (state === 'pending') return;
    await tx
      .update(webhookDeliveries)
      .set({ state, decidedAt: at })
      .where(and(eq(webhookDeliveries.id, deliveryId), eq(webhookDeliveries.state, 'pending')));
  });
}
