import { desc, eq, sql } from 'drizzle-orm';
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
  | 'webhook-secret.reencrypt'
  | 'webhooks.suspend'
  | 'webhooks.resume'
  | 'webhooks.resend'
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

export type AuditRecord = Omit<typeof auditLog.$inferSelect, 'id' | 'hash'>;

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
  const { at, actor, dbUser, action, subject, reason, details } = auditLog;
  return await query(db, (tx) =>
    tx
      .select({
        at,
        actor,
        dbUser,
        action,
        organizationId: auditLog.organizationId,
        subject,
        reason,
        details,
      })
      .from(auditLog)
      .where(organizationId === null ? undefined : eq(auditLog.organizationId, organizationId))
      .orderBy(desc(auditLog.id))
      .limit(limit),
  );
}

/** What the chain of hashes proves of the audit log. */
export interface AuditProof {
  readonly entries: number;
  /** The newest hash: as long as an entry has it, nothing before that entry was changed or removed. */
  readonly head: string | null;
  /** The first entry that does not follow from the one before it; null if all do. */
  readonly brokenAt: number | null;
  /** Whether an entry has the hash that was noted. */
  readonly knowsNoted: boolean;
}

/**
 * Computes each entry's hash again. What was cut off at the end shows only by a hash that was noted before.
 * @param noted a head of earlier, in hex; null for none
 * @throws {DatabaseError}
 */
export async function verifyAudit(db: Database, noted: string | null): Promise<AuditProof> {
  const [proof] = await query(db, (tx) =>
    tx.execute<{ entries: number; head: string | null; broken: number | null; knows: boolean }>(sql`
      select count(*)::int as entries,
             encode((array_agg(hash order by id desc))[1], 'hex') as head,
             (min(id) filter (where hash is distinct from audit_hash(previous, entry)))::float8 as broken,
             ${noted}::text is null or coalesce(bool_or(hash = decode(${noted}, 'hex')), false) as knows
        from (select l as entry, id, hash, lag(hash) over (order by id) as previous from audit_log l) l`),
  );
  if (!proof) throw new Error('no row');
  const { entries, head, broken: brokenAt, knows: knowsNoted } = proof;
  return { entries, head, brokenAt, knowsNoted };
}
