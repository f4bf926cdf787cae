import { and, inArray, isNull, sql } from 'drizzle-orm';
import {
  type Database,
  only,
  query,
  run,
  snapshot,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import { cancelOpen } from '../requests/cancel.ts';
import { apiKeys, organizations } from '../schema.ts';
import { isOrSandboxOf, lockOrganization } from './organizations.ts';

// Closes organizations. An organization is always closed together with its sandbox.

/** The number of deliveries that one transaction stops. */
const PAGE = 500;

type Closing = Readonly<
  Record<'activeKeys' | 'openRequests' | 'heldCredits' | 'pendingDeliveries', number>
>;

/** Counts what closing an organization would end. */
export async function countClosing(db: Database, organizationId: string) {
  const theirs = sql.param(await withSandbox(db, organizationId));
  const counts = await snapshot(
    db,
    (tx) => run<Closing>(tx)`
    select (select count(*)::int from api_keys
             where revoked_at is null
               and organization_id = any(${theirs})) as "activeKeys",
           (select count(*)::int from requests
             where settled_at is null
               and organization_id = any(${theirs})) as "openRequests",
           (select sum(held)::int from credit_balances
             where organization_id = any(${theirs})) as "heldCredits",
           (select count(*)::int from webhook_deliveries
             where state = 'pending'
               and organization_id = any(${theirs})) as "pendingDeliveries"`,
  );
  return only(counts);
}

/**
 * Closes an organization and its sandbox: revokes their keys, rejects submits, cancels their open
 * requests, and stops their webhooks. The first transaction rejects new work, so the rest has an
 * end. Safe to repeat after an interruption.
 * @throws {Refusal} `organization_missing`
 */
export async function closeOrganization(
  db: Database,
  by: ChangedBy,
  organizationId: string,
): Promise<void> {
  await transaction(db, (tx) => rejectWork(tx, by, organizationId));
  for (const id of await withSandbox(db, organizationId)) {
    await cancelOpen(db, by, { organizationId: id, batchId: null });
    let stopped = PAGE;
    while (stopped === PAGE) stopped = await stopDeliveries(db, id);
  }
}

/** Returns the ids of an organization and of its sandbox, if it has one. */
export async function withSandbox(
  db: Database,
  organizationId: string,
): Promise<string[]> {
  const rows = await query(db, (tx) =>
    tx
      .select({ id: organizations.id })
      .from(organizations)
      .where(isOrSandboxOf(organizationId)),
  );
  return rows.map(({ id }) => id);
}

async function rejectWork(
  tx: Transaction,
  by: ChangedBy,
  organizationId: string,
): Promise<void> {
  await lockOrganization(tx, organizationId);
  const closed = await tx
    .update(organizations)
    .set({
      suspended: true,
      webhooksSuspended: true,
      closedAt: sql`coalesce(closed_at, clock_timestamp())`,
    })
    .where(isOrSandboxOf(organizationId))
    .returning({ id: organizations.id });
  const ids = closed.map(({ id }) => id);
  const revoked = await tx
    .update(apiKeys)
    .set({ revokedAt: sql`clock_timestamp()` })
    .where(and(inArray(apiKeys.organizationId, ids), isNull(apiKeys.revokedAt)))
    .returning({ id: apiKeys.id });
  await recordAudit(tx, by, {
    action: 'org.close',
    organizationId,
    subject: organizationId,
    details: { keys: revoked.length },
  });
}

/**
 * Ends pending deliveries as failed. An attempt that is under way is only logged when it ends. The
 * workflows of the deliveries find at their next attempt that nothing is left to do.
 * @returns the number of stopped deliveries
 */
async function stopDeliveries(db: Database, organizationId: string): Promise<number> {
  return await transaction(db, async (tx) => {
    const stopped = await run(tx)`
      update webhook_deliveries
         set state = 'failed', step_at = null, due_at = null, decided_at = clock_timestamp()
       where id in (
         select id from webhook_deliveries
          where organization_id = ${organizationId} and state = 'pending'
          limit ${PAGE}
            for update)
      returning id`;
    return stopped.length;
  });
}
