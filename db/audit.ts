import { sql } from 'drizzle-orm';
import { type Database, only, run, type Transaction, transaction } from './client.ts';

/**
 * Who makes a change, or is shown what is secret or personal (1 to 200 characters), and why (1 to
 * 1000).
 */
export interface ChangedBy {
  readonly actor: string;
  readonly reason: string;
}

export interface AuditedChange {
  /**
   * The operator's command, such as `keys.rotate`; what it shows of what is masked is `….reveal`.
   */
  readonly action: `${string}.${string}`;
  /** Null for what belongs to none. */
  readonly organizationId: string | null;
  /** The id of what was changed; of an address its SHA-256. */
  readonly subject: string;
  /** What it was and what it is now; never a key, a secret or an address. */
  readonly details: Readonly<Record<string, string | number | boolean | null>>;
}

export interface AuditRecord extends Omit<AuditedChange, 'action'>, ChangedBy {
  readonly action: string;
  readonly at: Date;
  readonly dbUser: string;
}

/**
 * Records a change. Takes the change's own transaction, so that neither exists without the other.
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
    values (${by.actor}, ${by.reason}, ${action}, ${organizationId}, ${subject}, ${JSON.stringify(details)}::jsonb)`);
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

/** The newest changes first, of one organization or (null) of all. */
export async function listAudit(
  db: Database,
  organizationId: string | null,
  limit: number,
): Promise<AuditRecord[]> {
  return await run<AuditRecord>(db)`
    select at, actor, db_user as "dbUser", action, organization_id as "organizationId", subject, reason, details
      from audit_log where ${organizationId}::text is null or organization_id = ${organizationId}
     order by id desc limit ${limit}`;
}

/**
 * Computes each entry's hash again. What was cut off at the end shows only by a hash that was noted
 * before.
 * @param noted the head of an earlier proof; null for none
 * @returns the newest hash (`head`); the first entry that does not follow from the one before it
 * (`brokenAt`), null if all do; whether an entry has the hash that was noted
 */
export async function verifyAudit(db: Database, noted: string | null) {
  type Proof = {
    entries: number;
    head: string | null;
    brokenAt: number | null;
    knowsNoted: boolean;
  };
  const proof = await run<Proof>(db)`
    select count(*) as entries, encode((array_agg(hash order by id desc))[1], 'hex') as head,
           min(id) filter (where hash is distinct from audit_hash(previous, entry)) as "brokenAt",
           ${noted}::text is null or coalesce(bool_or(encode(hash, 'hex') = ${noted}), false) as "knowsNoted"
      from (select l as entry, id, hash, lag(hash) over (order by id) as previous from audit_log l) l`;
  return only(proof);
}
