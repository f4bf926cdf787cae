import { sql } from 'drizzle-orm';
import { type Database, run, type Transaction, transaction } from './client.ts';

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
  readonly details: Readonly<Record<string, string | number | boolean | null>>;
}

export interface AuditRecord extends Omit<AuditedChange, 'action'>, ChangedBy {
  readonly action: string;
  readonly at: Date;
  readonly dbUser: string;
}

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
  const { action, organizationId, subject, details } = change;
  await tx.execute(sql`
    insert into audit_log (actor, reason, action, organization_id, subject, details)
    values (${by.actor}, ${by.reason}, ${action}, ${organizationId}, ${subject},
            ${JSON.stringify(details)}::jsonb)`);
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
): Promise<AuditRecord[]> {
  return await run<AuditRecord>(db)`
    select at, actor, db_user as "dbUser", action, organization_id as "organizationId",
           subject, reason, details
      from audit_log
     where ${organizationId}::text is null or organization_id = ${organizationId}
     order by id desc
     limit ${limit}`;
}
