import { sql } from 'drizzle-orm';
import { type Database, run, type Transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { envelopeText, findEnvelope } from '../requests/envelope.ts';
import type { webhookDeliveries } from '../schema.ts';
import { decryptSecret } from '../secrets.ts';

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
  const [due] = await run<{ id: string }>(db)`
    select id from webhook_deliveries
     where batch_id = ${batchId} and coalesce(request_id, ${requestId}) = ${requestId}
       and state = 'pending' and attempts = 0 and resends = 0 and ${REPORTS_FINAL}`;
  return due?.id ?? null;
}

/**
 * Returns whether a batch belongs to an organization. Callers run this first, as a separate
 * statement. So a request for another organization's batch takes as long as a request for an
 * unknown batch.
 */
export async function ownsBatch(
  tx: Pick<Transaction, 'execute'>,
  organizationId: string,
  batchId: string,
): Promise<boolean> {
  const found = await run(tx)`
    select from batches where id = ${batchId} and organization_id = ${organizationId}`;
  return found.length > 0;
}

type Columns = typeof webhookDeliveries.$inferSelect;
type Reported = Pick<Columns, 'id' | 'batchId' | 'attempts'> & {
  readonly organizationId: string;
  readonly url: string | null;
};

/**
 * Locks a delivery and reads its state. `leasedMs` and `dueMs` are milliseconds from now, or 0 if
 * that time has passed.
 * @param batchId the batch that the delivery must belong to, or null for any batch
 */
export async function lockDelivery(
  tx: Transaction,
  deliveryId: string,
  batchId: string | null = null,
) {
  type Locked = Reported &
    Pick<Columns, 'state' | 'step' | 'stepAt' | 'resends'> & {
      readonly leasedMs: number;
      readonly dueMs: number;
      readonly suspended: boolean;
      readonly final: boolean;
    };
  const [row] = await run<Locked>(tx)`
    select webhook_deliveries.id, batch_id as "batchId", state, step, step_at as "stepAt",
           resends, attempts,
           greatest(0, ceil(extract(epoch from leased_until - clock_timestamp()) * 1000))::float8
             as "leasedMs",
           greatest(0, ceil(extract(epoch from due_at - clock_timestamp()) * 1000))::float8
             as "dueMs",
           o.id as "organizationId", webhook_url as url, webhooks_suspended as suspended,
           ${REPORTS_FINAL} as final
      from webhook_deliveries
      join batches b on b.id = batch_id
      join organizations o on o.id = b.organization_id
     where webhook_deliveries.id = ${deliveryId} and batch_id = coalesce(${batchId}, batch_id)
       for update of webhook_deliveries`;
  return row;
}

/**
 * Loads everything for an attempt of a delivery: its current body and its organization's secrets,
 * including the previous one for 24 h after a rotation. The secrets, and the personal data in the
 * body, stay in the activity and are never passed to Temporal.
 * @throws {Refusal} `delivery_missing` for an unknown id; {SecretKeyMissing}; {SecretUnreadable}
 */
export async function loadDelivery(db: Database, deliveryId: string) {
  type Found = Reported &
    Pick<Columns, 'requestId'> & {
      readonly secrets: readonly string[];
      readonly blocked: readonly string[];
    };
  const [row] = await run<Found>(db)`
    select d.id, attempts, batch_id as "batchId", request_id as "requestId",
           o.id as "organizationId", webhook_url as url,
           array(select target from webhook_blocks) as blocked,
           array_remove(
             array[webhook_secret,
                   case when previous_webhook_secret_expires_at > clock_timestamp()
                        then previous_webhook_secret end],
             null) as secrets
      from webhook_deliveries d
      join batches b on b.id = batch_id
      join organizations o on o.id = b.organization_id
     where d.id = ${deliveryId}`;
  if (!row?.url) throw new Refusal('delivery_missing');
  const { id, attempts, batchId, requestId, organizationId, url, secrets, blocked } = row;
  const subject =
    requestId === null ? { organizationId, batchId } : { organizationId, requestId };
  const envelope = await findEnvelope(db, subject);
  if (!envelope) throw new Refusal('delivery_missing');
  return {
    id,
    attempts,
    batchId,
    url,
    blocked,
    secrets: secrets.map((stored) =>
      decryptSecret(db.secretKeys, organizationId, stored),
    ),
    body: envelopeText(envelope, 'delivery'),
  };
}
