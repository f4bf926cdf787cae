import { count, desc, eq, sql } from 'drizzle-orm';
import {
  type Database,
  query,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import { batches, webhookBlocks, webhookDeliveries } from '../schema.ts';

// Targets that operators have blocked for all organizations. Every attempt of a delivery reads them
// before it connects.

/**
 * Blocks or unblocks a target.
 * @returns false if nothing changed
 */
export async function setBlock(
  db: Database,
  by: ChangedBy,
  target: string,
  blocked: boolean,
): Promise<boolean> {
  return await transaction(db, async (tx) => {
    const isChanged = blocked ? await block(tx, by, target) : await unblock(tx, target);
    if (!isChanged) return false;
    const action = blocked ? 'webhooks.block' : 'webhooks.unblock';
    await recordAudit(tx, by, {
      action,
      organizationId: null,
      subject: target,
      details: {},
    });
    return true;
  });
}

async function block(
  tx: Transaction,
  { reason }: ChangedBy,
  target: string,
): Promise<boolean> {
  const { target: added } = webhookBlocks;
  const rows = await tx
    .insert(webhookBlocks)
    .values({ target, reason })
    .onConflictDoNothing()
    .returning({ added });
  return rows.length > 0;
}

async function unblock(tx: Transaction, target: string): Promise<boolean> {
  const { target: removed } = webhookBlocks;
  const rows = await tx
    .delete(webhookBlocks)
    .where(eq(removed, target))
    .returning({ removed });
  return rows.length > 0;
}

/**
 * Lists the blocked targets, the newest first. A target is a range of addresses, or a host with all
 * its subdomains.
 */
export async function listBlocks(db: Database) {
  const { target, reason, createdAt } = webhookBlocks;
  return await query(db, (tx) =>
    tx
      .select({ target, reason, since: createdAt })
      .from(webhookBlocks)
      .orderBy(desc(createdAt), target),
  );
}

/**
 * Counts pending deliveries by organization and host, to show how many a block would stop. `host`
 * is written as in a URL, so an IPv6 address is in brackets.
 */
export async function listPendingHosts(db: Database) {
  const { organizationId } = webhookDeliveries;
  const host = sql<string>`lower(substring(
    ${batches.webhookUrl} from '^[^:]+://(?:[^/?#@]*@)?(\\[[^]]*\\]|[^:/?#]*)'))`.as(
    'host',
  );
  return await query(db, (tx) =>
    tx
      .select({ organizationId, host, deliveries: count() })
      .from(webhookDeliveries)
      .innerJoin(batches, eq(batches.id, webhookDeliveries.batchId))
      .where(eq(webhookDeliveries.state, 'pending'))
      .groupBy(organizationId, host),
  );
}
