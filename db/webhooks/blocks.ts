import { sql } from 'drizzle-orm';
import { type ChangedBy, recordAudit } from '../audit.ts';
import { type Database, run, transaction } from '../client.ts';

// Where operators let no delivery go, of any organization: read before every attempt.

/**
 * Blocks a target, or ends that.
 * @returns false if it was so already, which changes nothing
 */
export async function setBlock(
  db: Database,
  by: ChangedBy,
  target: string,
  blocked: boolean,
): Promise<boolean> {
  return await transaction(db, async (tx) => {
    const changed = await tx.execute(
      blocked
        ? sql`insert into webhook_blocks (target, reason) values (${target}, ${by.reason})
                  on conflict do nothing returning target`
        : sql`delete from webhook_blocks where target = ${target} returning target`,
    );
    if (changed.length === 0) return false;
    const action = blocked ? 'webhooks.block' : 'webhooks.unblock';
    await recordAudit(tx, by, { action, organizationId: null, subject: target, details: {} });
    return true;
  });
}

/** What is blocked, a range of addresses or a host with all names below it; the newest first. */
export async function listBlocks(db: Database) {
  const rows = await run<{ target: string; reason: string; since: string }>(
    db,
  )`select target, reason, created_at as since from webhook_blocks order by created_at desc, target`;
  return rows.map(({ since, ...row }) => ({ ...row, since: new Date(since) }));
}
