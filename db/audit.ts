import { desc, eq } from 'drizzle-orm';
import { type Database, query, type Transaction, transaction } from './client.ts';
import { auditLog } from './schema.ts';

export type AuditAction =
  | 'org.create'
  | 'org.suspend'
  | 'org.resume'
  | 'credits.grant'
  | 'credits.adjust'
  | 'keys.issue'
  | 'keys.rotate'
  | 'keys.revoke'
  | 'keys.reactivate'
  | 'limits.set'
  | 'webhook-secret.rotate'
  | 'webhook-secret.show'
  | 'webhooks.suspend'
  | 'webhooks.resume'
  | 'webhooks.resend'
  | 'webhooks.block'
  | 'webhooks.unblock'
  | 'webhooks.reveal'
  | 'batch.reveal'
  | 'explain.reveal'
  | 'doctor.repair'
  | 'suppressions.add'
  | 'suppressions.remove'
  | 'suppressions.import'
  | 'emails.import'
  | 'nppes.import'
  | 'privacy.export'
  | 'privacy.erase';

/** Who makes a change, or is shown what is secret or personal (1 to 200 characters), and why (1 to 1000). */
export interface ChangedBy {
  readonly actor: string;
  readonly reason: string;
}

export interface AuditedChange {
  readonly action: AuditAction;
  /** Null for what belongs to none. */
  readonly organizationId: string | null;
  /** The id of what was changed; of an address its SHA-256. */
  readonly subject: string;
  /** What it was and what it is now; never a key, a secret or an address. */
  readonly details: Readonly<Record<string, string | number | boolean | null>>;
}

export type AuditRecord = Omit<typeof auditLog.$inferSelect, 'id'>;

/**
 * Records a change. Takes the change's own transaction, so that neither exists without the other.
 * @throws {DatabaseError} 23514 for an actor or a reason that is empty or too long
 */
export async function recordAudit(tx: Transaction, by: ChangedBy, change: AuditedChange): Promise<void> {
  await tx.insert(auditLog).values({ actor: by.actor, reason: by.reason, ...change });
}

/**
 * Records that somebody is shown what is secret or personal. Await it before anything is shown.
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
 * The newest changes first, of one organization or (null) of all.
 * @throws {DatabaseError}
 */
export async function listAudit(
  db: Database,
  organizationId: string | null,
  limit: number,
): Promise<AuditRecord[]> {
  const { at, actor, action, subject, reason, details } = auditLog;
  return await query(db, (tx) =>
    tx
      .select({ at, actor, action, organizationId: auditLog.organizationId, subject, reason, details })
      .from(auditLog)
      .where(organizationId === null ? undefined : eq(auditLog.organizationId, organizationId))
      .orderBy(desc(auditLog.id))
      .limit(limit),
  );
}
