import { and, asc, eq, gt, type SQL, sql } from 'drizzle-orm';
import { type Database, lasts, query, transaction } from '../connection/client.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import { organizations, webhookDeliveries } from '../schema.ts';
import { LEASE_MS } from './admission.ts';
import { beginRound, MAX_RESENDS } from './resends.ts';

// Hastens pending deliveries that wait for a later attempt, for example after a receiver or our own
// network was down. A hastened delivery is due now, like a resent one. Deliveries of suspended
// organizations wait for the end of the suspension, so they are left alone.

/**
 * Counts the pending deliveries that wait for a later attempt.
 * @param organizationId null for all organizations
 */
export async function countWaiting(
  db: Database,
  organizationId: string | null,
): Promise<number> {
  const waiting = await query(db, (tx) =>
    tx
      .select({ n: sql<number>`count(*)::int` })
      .from(webhookDeliveries)
      .innerJoin(organizations, eq(organizations.id, webhookDeliveries.organizationId))
      .where(isWaiting(organizationId)),
  );
  return waiting[0]?.n ?? 0;
}

/**
 * Hastens up to 500 waiting deliveries, in the order of their ids.
 * @param organizationId null for all organizations
 * @param after the last id of the previous call, or an empty text
 * @returns the ids of the hastened deliveries; fewer than 500 if there are no more
 */
export async function hastenWaiting(
  db: Database,
  by: ChangedBy,
  organizationId: string | null,
  after: string,
): Promise<readonly string[]> {
  return await transaction(db, async (tx) => {
    const waiting = await tx
      .select({ id: webhookDeliveries.id })
      .from(webhookDeliveries)
      .innerJoin(organizations, eq(organizations.id, webhookDeliveries.organizationId))
      .where(and(isWaiting(organizationId), gt(webhookDeliveries.id, after)))
      .orderBy(asc(webhookDeliveries.id))
      .limit(MAX_RESENDS)
      .for('update', { of: webhookDeliveries });
    const ids = waiting.map(({ id }) => id);
    if (ids.length === 0) return ids;
    await beginRound(tx, ids);
    await recordAudit(tx, by, {
      action: 'webhooks.retry',
      organizationId,
      subject: organizationId ?? 'all',
      details: { hastened: ids.length },
    });
    return ids;
  });
}

function isWaiting(organizationId: string | null): SQL | undefined {
  return and(
    eq(webhookDeliveries.state, 'pending'),
    sql`${webhookDeliveries.dueAt} > clock_timestamp()`,
    sql`${lasts(webhookDeliveries.leasedUntil, LEASE_MS)} is not true`,
    eq(organizations.webhooksSuspended, false),
    organizationId === null
      ? undefined
      : eq(webhookDeliveries.organizationId, organizationId),
  );
}
