import { desc, eq } from 'drizzle-orm';
import {
  type Database,
  query,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { auditLog } from '../schema.ts';

/**
 * The operator who makes a change or reads secret or personal data, and the reason. `actor` has 1
 * to 200 characters, and `reason` has 1 to 1,000.
 */
export interface ChangedBy {
  readonly actor: string;
  readonly reason: string;
}

export interface AuditedChange {
  /**
   * The operator's command, such as `keys.rotate`. A command that reveals masked data ends in
   * `.reveal`.
   */
  readonly action: `${string}.${string}`;
  /** Null if the change does not concern a single organization. */
  readonly organizationId: string | null;
  /** The id of the changed object, or the SHA-256 of an address. */
  readonly subject: string;
  /**
   * Details of the change, such as the old and the new value. They never contain a key, a secret,
   * or an address.
   */
  readonly details: (typeof auditLog.$inferInsert)['details'];
}

export type AuditRecord = Awaited<ReturnType<typeof listAudit>>[number];

/**
 * Records a change in the audit log. Call it in the transaction that makes the change, so that
 * either both are committed or neither is.
 * @throws {DatabaseError} 23514 for an actor or a reason that is empty or too long
 */
export async function recordAudit(
  tx: Transaction,
  by: ChangedBy,
  change: AuditedChange,
): Promise<void> {
  const { actor, reason } = by;
  await tx.insert(auditLog).values({ ...change, actor, reason });
}

/**
 * Records that secret or personal data is shown to an operator. Show the data only after this
 * promise resolves.
 * @throws {DatabaseError} 23514 for an actor or a reason that is empty or too long
 */
export async function recordReading(
  db: Database,
  by: ChangedBy,
  reading: Omit<AuditedChange, 'details'>,
): Promise<void> {
  await transaction(db, (tx) => recordAudit(tx, by, { ...reading, details: {} }));
}

/**
 * Lists the entries of the audit log, the newest first.
 * @param organizationId null for the entries of all organizations
 */
export async function listAudit(
  db: Database,
  organizationId: string | null,
  limit: number,
) {
  const isShown =
    organizationId === null ? undefined : eq(auditLog.organizationId, organizationId);
  return await query(db, (tx) =>
    tx
      .select({
        at: auditLog.at,
        actor: auditLog.actor,
        dbUser: auditLog.dbUser,
        action: auditLog.action,
        organizationId: auditLog.organizationId,
        subject: auditLog.subject,
        reason: auditLog.reason,
        details: auditLog.details,
      })
      .from(auditLog)
      .where(isShown)
      .orderBy(desc(auditLog.id))
      .limit(limit),
  );
}
