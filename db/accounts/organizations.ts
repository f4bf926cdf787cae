import { desc, eq, or, type SQL, sql } from 'drizzle-orm';
import {
  type Database,
  only,
  query,
  run,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { newId } from '../connection/ids.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import { creditBalances, organizations } from '../schema.ts';
import { requireRightKey } from './secret-keys.ts';
import { newWebhookSecret } from './webhook-secrets.ts';

export interface Organization {
  readonly id: string;
  readonly name: string;
  /** The organization whose sandbox this is. Null if it is not a sandbox. */
  readonly sandboxOf: string | null;
  /** The maximum number of requests that each API key may make in any 60 seconds. */
  readonly requestsPerMinute: number;
  /** True while the API rejects all of its keys. */
  readonly suspended: boolean;
  /**
   * True while its webhooks are suspended. Webhooks of batches that are submitted in this time are
   * never sent, unless an operator resends them.
   */
  readonly webhooksSuspended: boolean;
  readonly createdAt: Date;
  /** Null unless it is closed. */
  readonly closedAt: Date | null;
  /** Null unless it is erased. An erased organization is also closed. */
  readonly erasedAt: Date | null;
}

const ORGANIZATION = {
  id: organizations.id,
  name: organizations.name,
  sandboxOf: organizations.sandboxOf,
  requestsPerMinute: organizations.requestsPerMinute,
  suspended: organizations.suspended,
  webhooksSuspended: organizations.webhooksSuspended,
  createdAt: organizations.createdAt,
  closedAt: organizations.closedAt,
  erasedAt: organizations.erasedAt,
};

/** A balance in credits: total = used + held + available at all times (DECISIONS.md, Credits). */
export type Balance = Readonly<
  Omit<typeof creditBalances.$inferSelect, 'organizationId'>
>;

const BALANCE = {
  total: creditBalances.total,
  used: creditBalances.used,
  held: creditBalances.held,
  available: creditBalances.available,
};

/**
 * Creates an organization with a balance of 0, the default limit, and a new webhook secret.
 * @param name 1 to 200 characters; names need not be unique
 * @throws {DatabaseError} 23514 for a name that is empty or too long
 */
export async function createOrganization(
  db: Database,
  by: ChangedBy,
  name: string,
): Promise<Organization> {
  return await transaction(db, async (tx) => {
    const id = newId('org');
    await requireRightKey(tx, db.secretKeys);
    const inserted = await tx
      .insert(organizations)
      .values({ id, name, webhookSecret: newWebhookSecret(db, id) })
      .returning(ORGANIZATION);
    const change = { organizationId: id, subject: id, details: {} };
    await recordAudit(tx, by, { action: 'org.create', ...change });
    return only(inserted);
  });
}

/**
 * Returns whether an organization is another one's sandbox. The database uses the same rule: a
 * sandbox has an id that starts with `sbx_`.
 */
export function isSandbox(organizationId: string): boolean {
  return organizationId.startsWith('sbx_');
}

/**
 * Returns the id of an organization's sandbox. If there isn't one, creates it: an organization with
 * play credits and its own rate limit and webhook secret.
 * @throws {Refusal} `organization_missing`; {SecretKeyMissing} if it must be created
 */
export async function openSandbox(
  tx: Transaction,
  db: Database,
  by: ChangedBy,
  sandboxOf: string,
) {
  // Locks the organization, so that concurrent calls create only one sandbox.
  await lockOrganization(tx, sandboxOf);
  const [existing] = await tx
    .select({ id: organizations.id })
    .from(organizations)
    .where(eq(organizations.sandboxOf, sandboxOf));
  if (existing) return existing.id;
  const id = newId('sbx');
  await requireRightKey(tx, db.secretKeys);
  const [made] = await run<{ readonly credits: number }>(tx)`
    select open_sandbox(${sandboxOf}, ${id}, ${newWebhookSecret(db, id)}) as credits`;
  await recordAudit(tx, by, {
    action: 'org.create',
    organizationId: id,
    subject: id,
    details: { sandbox_of: sandboxOf, credits: made?.credits ?? 0 },
  });
  return id;
}

/** Lists all organizations with their balances, the newest first. */
export async function listOrganizations(db: Database) {
  return await query(db, (tx) =>
    tx
      .select({ ...ORGANIZATION, balance: BALANCE })
      .from(organizations)
      .innerJoin(creditBalances, eq(creditBalances.organizationId, organizations.id))
      .orderBy(desc(organizations.createdAt), desc(organizations.id)),
  );
}

/** The maximum number of organizations that a search returns. */
const CANDIDATES = 20;

/**
 * Finds the organizations whose id or name equals the text. If there aren't any, finds those whose
 * names start with it. Case does not matter for names. Sandboxes share the names of their
 * organizations, so they are found only by id.
 */
export async function findOrganizations(db: Database, text: string) {
  return await run<Pick<Organization, 'id' | 'name'>>(db)`
    with meant as (
      select id, name, id = ${text} or lower(name) = lower(${text}) as exactly
        from organizations
       where id = ${text}
          or (${text} <> '' and sandbox_of is null
              and starts_with(lower(name), lower(${text})))
    )
    select id, name from meant
     where exactly or not exists (select from meant where exactly)
     order by name, id
     limit ${CANDIDATES}`;
}

/**
 * Reads an organization with its balance, and counts its keys and batches.
 * @throws {Refusal} `organization_missing` for an unknown id
 */
export async function showOrganization(db: Database, organizationId: string) {
  const keys = sql<Readonly<Record<'active' | 'inactive' | 'revoked', number>>>`(
    select json_build_object(
             'active', count(*) filter (where not revoked and not expired),
             'inactive', count(*) filter (where not revoked and expired),
             'revoked', count(*) filter (where revoked))
      from api_keys, lateral (
        select revoked_at is not null as revoked,
               coalesce(expires_at <= clock_timestamp(), false) as expired) k
     where organization_id = ${organizationId})`;
  const batches = sql<Readonly<Record<'inProgress' | 'completed', number>>>`(
    select json_build_object(
             'inProgress', count(*) filter (where status = 'in-progress'),
             'completed', count(*) filter (where status = 'completed'))
      from batches
     where organization_id = ${organizationId})`;
  const [found] = await query(db, (tx) =>
    tx
      .select({ ...ORGANIZATION, balance: BALANCE, keys, batches })
      .from(organizations)
      .innerJoin(creditBalances, eq(creditBalances.organizationId, organizations.id))
      .where(eq(organizations.id, organizationId)),
  );
  if (!found) throw new Refusal('organization_missing');
  return found;
}

/**
 * Sets the maximum number of requests per minute for each key of an organization. The new limit
 * applies from the next request on. The limit of the organization's sandbox does not change.
 * @param requestsPerMinute 1 to 100000
 * @throws {Refusal} `organization_missing`; {DatabaseError} 23514 for a number outside the range
 */
export async function setLimit(
  db: Database,
  by: ChangedBy,
  organizationId: string,
  requestsPerMinute: number,
): Promise<Organization> {
  return await transaction(db, async (tx) => {
    const before = await lockOrganization(tx, organizationId);
    await recordAudit(tx, by, {
      action: 'limits.set',
      organizationId,
      subject: organizationId,
      details: { from: before.requestsPerMinute, to: requestsPerMinute },
    });
    const updated = await tx
      .update(organizations)
      .set({ requestsPerMinute })
      .where(eq(organizations.id, organizationId))
      .returning(ORGANIZATION);
    return only(updated);
  });
}

/**
 * Suspends or resumes an organization and its sandbox. During the suspension, the API rejects the
 * active keys of both. The change applies from the next API call on. Lookups for earlier requests
 * continue. To resume a closed organization opens it again, but its keys stay revoked. Safe to
 * repeat.
 * @throws {Refusal} `organization_missing`, `organization_erased`
 */
export async function suspendOrganization(
  db: Database,
  by: ChangedBy,
  organizationId: string,
  suspended: boolean,
): Promise<Organization> {
  return await transaction(db, async (tx) => {
    const before = await lockOrganization(tx, organizationId);
    if (before.erasedAt) throw new Refusal('organization_erased');
    await recordAudit(tx, by, {
      action: suspended ? 'org.suspend' : 'org.resume',
      organizationId,
      subject: organizationId,
      details: { from: before.suspended, to: suspended },
    });
    const closedAt = suspended ? before.closedAt : null;
    await tx
      .update(organizations)
      .set({ suspended, closedAt })
      .where(eq(organizations.sandboxOf, organizationId));
    const updated = await tx
      .update(organizations)
      .set({ suspended, closedAt })
      .where(eq(organizations.id, organizationId))
      .returning(ORGANIZATION);
    return only(updated);
  });
}

/**
 * Suspends or resumes the webhooks of an organization and its sandbox. Batches that are submitted
 * during the suspension get no webhooks (their `webhook.status` is `none`).
 * @throws {Refusal} `organization_missing`, `organization_closed`
 */
export async function suspendWebhooks(
  db: Database,
  by: ChangedBy,
  organizationId: string,
  suspended: boolean,
): Promise<Organization> {
  return await transaction(db, async (tx) => {
    const before = await lockOrganization(tx, organizationId);
    if (before.closedAt && !suspended) {
      throw new Refusal('organization_closed');
    }
    await recordAudit(tx, by, {
      action: suspended ? 'webhooks.suspend' : 'webhooks.resume',
      organizationId,
      subject: organizationId,
      details: { from: before.webhooksSuspended, to: suspended },
    });
    await tx
      .update(organizations)
      .set({ webhooksSuspended: suspended })
      .where(eq(organizations.sandboxOf, organizationId));
    const updated = await tx
      .update(organizations)
      .set({ webhooksSuspended: suspended })
      .where(eq(organizations.id, organizationId))
      .returning(ORGANIZATION);
    return only(updated);
  });
}

/**
 * Renames an organization and its sandbox. The audit log gets neither name, because it is kept after
 * the organization is erased.
 * @param name 1 to 200 characters
 * @returns the organization, and the name that it had
 * @throws {Refusal} `organization_missing`, `organization_erased`; {DatabaseError} 23514 for a name
 * that is empty or too long
 */
export async function renameOrganization(
  db: Database,
  by: ChangedBy,
  organizationId: string,
  name: string,
) {
  return await transaction(db, async (tx) => {
    const before = await lockOrganization(tx, organizationId);
    if (before.erasedAt) throw new Refusal('organization_erased');
    await recordAudit(tx, by, {
      action: 'org.rename',
      organizationId,
      subject: organizationId,
      details: {},
    });
    await tx.update(organizations).set({ name }).where(isOrSandboxOf(organizationId));
    return { id: organizationId, name, previousName: before.name };
  });
}

/** Tests whether a row is this organization or its sandbox. */
export function isOrSandboxOf(organizationId: string): SQL | undefined {
  return or(
    eq(organizations.id, organizationId),
    eq(organizations.sandboxOf, organizationId),
  );
}

/**
 * Checks that an organization exists and is not closed.
 * @throws {Refusal} `organization_missing`, `organization_closed`
 */
export async function requireOpen(
  tx: Transaction,
  organizationId: string,
): Promise<void> {
  const { closedAt } = await lockOrganization(tx, organizationId);
  if (closedAt) throw new Refusal('organization_closed');
}

/**
 * Locks an organization. It uses FOR NO KEY UPDATE, because FOR UPDATE would block submits, whose
 * rows reference the organization.
 */
export async function lockOrganization(
  tx: Transaction,
  organizationId: string,
): Promise<Organization> {
  const [found] = await tx
    .select(ORGANIZATION)
    .from(organizations)
    .where(eq(organizations.id, organizationId))
    .for('no key update');
  if (!found) throw new Refusal('organization_missing');
  return found;
}
