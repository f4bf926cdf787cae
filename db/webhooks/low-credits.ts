import { and, eq, lt, sql } from 'drizzle-orm';
import { balanceLock } from '../accounts/balance.ts';
import { isSandbox, requireOpen } from '../accounts/organizations.ts';
import {
  clock,
  type Database,
  isAhead,
  query,
  transaction,
} from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { newId } from '../connection/ids.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import {
  creditBalances,
  lowCreditAlerts,
  organizations,
  webhookDeliveries,
} from '../schema.ts';

// The webhook `credits.low`. An alert is armed until its message is created, and a trigger arms it
// again in the transaction that brings the balance back to the threshold. So nothing has to notice
// the moment when the balance falls: the next sweep sees an armed alert and a low balance, even
// after a crash. A balance that is low for less than a sweep gets no message.

interface LowCreditAlert {
  /** The alert is sent when fewer credits than this are available, at least 1. */
  readonly threshold: number;
  /** The https URL of the receiver. */
  readonly url: string;
}

/**
 * Sets, replaces, or deletes an organization's alert. If the balance is already below the
 * threshold, the next sweep sends the message, but at most one an hour. A message that is being sent
 * is not stopped. The audit log gets the host of the URL, because its path may contain a token.
 * @param alert null for no alert
 * @throws {Refusal} `sandbox_alert` for a sandbox, `organization_missing`, `organization_closed`
 */
export async function setLowCreditAlert(
  db: Database,
  by: ChangedBy,
  organizationId: string,
  alert: LowCreditAlert | null,
) {
  if (isSandbox(organizationId)) throw new Refusal('sandbox_alert');
  const details = detailsOf(alert);
  await transaction(db, async (tx) => {
    await requireOpen(tx, organizationId);
    if (alert === null) {
      await tx
        .delete(lowCreditAlerts)
        .where(eq(lowCreditAlerts.organizationId, organizationId));
    } else {
      await tx
        .insert(lowCreditAlerts)
        .values({ organizationId, ...alert })
        .onConflictDoUpdate({
          target: lowCreditAlerts.organizationId,
          set: { ...alert, armed: true },
        });
    }
    await recordAudit(tx, by, {
      action: 'org.low-credits',
      organizationId,
      subject: organizationId,
      details,
    });
  });
  return { organizationId, ...details };
}

function detailsOf(alert: LowCreditAlert | null) {
  if (alert === null) return { below: null, host: null };
  return { below: alert.threshold, host: new URL(alert.url).host };
}

/**
 * Tests whether the message of an alert must be created now. A balance that rises and falls around
 * the threshold causes at most one message an hour.
 */
const IS_DUE = and(
  lowCreditAlerts.armed,
  lt(creditBalances.available, lowCreditAlerts.threshold),
  sql`coalesce(
    ${lowCreditAlerts.sentAt} < clock_timestamp() - interval '1 hour'
      or ${isAhead(lowCreditAlerts.sentAt)},
    true)`,
  sql`not ${organizations.webhooksSuspended}`,
);

/** Lists organizations whose alert is due. */
export async function listLowCredits(db: Database, limit: number): Promise<string[]> {
  const { organizationId } = lowCreditAlerts;
  const due = await query(db, (tx) =>
    tx
      .select({ organizationId })
      .from(lowCreditAlerts)
      .innerJoin(creditBalances, eq(creditBalances.organizationId, organizationId))
      .innerJoin(organizations, eq(organizations.id, organizationId))
      .where(IS_DUE)
      .limit(limit),
  );
  return due.map((row) => row.organizationId);
}

/**
 * Creates the delivery of an organization's alert, if the alert is still due, and disarms it. The
 * lock on the balance comes first. Without it, a concurrent grant could still see an armed alert
 * and not arm it again.
 * @returns false if the alert is not due any more
 */
export async function createLowCreditMessage(
  db: Database,
  organizationId: string,
): Promise<boolean> {
  return await transaction(db, async (tx) => {
    await balanceLock(tx, organizationId);
    const [due] = await tx
      .select({
        available: creditBalances.available,
        held: creditBalances.held,
        threshold: lowCreditAlerts.threshold,
        url: lowCreditAlerts.url,
      })
      .from(lowCreditAlerts)
      .innerJoin(creditBalances, eq(creditBalances.organizationId, organizationId))
      .innerJoin(organizations, eq(organizations.id, organizationId))
      .where(and(eq(lowCreditAlerts.organizationId, organizationId), IS_DUE))
      .for('update', { of: lowCreditAlerts });
    if (!due) return false;
    const { url, ...data } = due;
    const at = await clock(tx);
    await tx
      .update(lowCreditAlerts)
      .set({ armed: false, sentAt: at })
      .where(eq(lowCreditAlerts.organizationId, organizationId));
    const timestamp = at.toISOString();
    await tx.insert(webhookDeliveries).values({
      id: newId('msg'),
      organizationId,
      url,
      body: JSON.stringify({ type: 'credits.low', timestamp, data }),
      state: 'pending',
      createdAt: at,
      dueAt: at,
    });
    return true;
  });
}
