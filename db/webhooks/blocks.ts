import { sql } from 'drizzle-orm';
import { type ChangedBy, recordAudit } from '../audit.ts';
import { type Database, query, transaction } from '../client.ts';

// Where operators let no delivery go, of any organization: read before every attempt.

export interface Block {
  /** A range of addresses, or a host with all names below it. */
  readonly target: string;
  readonly reason: string;
  readonly createdAt: Date;
}

/**
 * Blocks a target, or ends that.
 * @returns false if it was so already, which changes nothing
 * @throws {DatabaseError}
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

/**
 * The newest first.
 * @throws {DatabaseError}
 */
export async function listBlocks(db: Database): Promise<readonly Block[]> {
  const rows = await query(db, (tx) =>
    tx.execute<{ target: string; reason: string; created_at: string }>(
      sql`select target, reason, created_at from webhook_blocks order by created_at desc, target`,
    ),
  );
  return rows.map(({ created_at, ...row }) => ({ ...row, createdAt: new Date(created_at) }));
}
