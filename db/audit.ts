import { sql } from 'drizzle-orm';
import { type Database, only, run, type Transaction, transaction } from './client.ts';

/**
 * The operator of a change or of a reading of secret or personal data (1 to 200 characters), and
 * the reason (1 to 1,000 characters).
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
  /** Null if the change belongs to no organization. */
  readonly organizationId: string | null;
  /** The id of the changed object, or the SHA-256 of an address. */
  readonly subject: string;
  /** The old and the new value. Never holds a key, a secret, or an address. */
  readonly details: Readonly<Record<string, string | number | boolean | null>>;
}

export interface AuditRecord extends Omit<AuditedChange, 'action'>, ChangedBy {
  readonly action: string;
  readonly at: Date;
  readonly dbUser: string;
}

/**
 * Records a change. Call it in the transaction of the change, so that neither exists without the
 * other.
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
 * Records that secret or personal data is shown to an operator. Await it before showing the data.
 * @throws {DatabaseError} 23514 for an actor or a reason that is empty or too long
 */
export async function recordReading(
  db: Database,
  by: ChangedBy,
  reading: Omit<AuditedChange, 'details'>,
): Promise<void> {
  await transaction(db, (tx) => recordAudit(tx, by, { ...reading, details: {} }));
}

/** Lists changes, the newest first. Null lists the changes of all organizations. */
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

/**
 * Computes the hash of each entry again and compares it with the stored one. Entries that were cut
 * off at the end can only be detected with a hash that was noted earlier.
 * @param noted the `head` of an earlier proof, or null if there is no earlier proof
 * @returns `head`: the newest hash; `brokenAt`: the first entry that does not follow from the entry
 * before it, null if the chain is intact; `knowsNoted`: whether an entry has the noted hash
 */
export async function verifyAudit(db: Database, noted: string | null) {
  type Proof = {
    entries: number;
    head: string | null;
    brokenAt: number | null;
    knowsNoted: boolean;
  };
  const proof = await run<Proof>(db)`
    select count(*) as entries,
           encode((array_agg(hash order by id desc))[1], 'hex') as head,
           min(id) filter (where hash is distinct from audit_hash(previous, entry)) as "brokenAt",
           ${noted}::text is null or coalesce(bool_or(encode(hash, 'hex') = ${noted}), false)
             as "knowsNoted"
      from (
        select l as entry, id, hash, lag(hash) over (order by id) as previous
          from audit_log l) l`;
  return only(proof);
}
