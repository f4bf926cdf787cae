import { desc, eq, sql } from 'drizzle-orm';
import type { SelectResultFields } from 'drizzle-orm/query-builders/select.types';
import { type ChangedBy, recordAudit } from '../audit.ts';
import { type Database, query, type Transaction, transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { newId } from '../ids.ts';
import { apiKeys, batches, creditBalances, ledgerEntries, organizations } from '../schema.ts';
import { newWebhookSecret } from './webhook-secrets.ts';

const ORGANIZATION = {
  id: organizations.id,
  name: organizations.name,
  /** The organization whose sandbox it is; null if it is none. */
  sandboxOf: organizations.sandboxOf,
  /** Requests admitted per key in any minute. */
  requestsPerMinute: organizations.requestsPerMinute,
  /** True: none of its keys is let in. */
  suspended: organizations.suspended,
  /** True: new submits get no deliveries. */
  webhooksSuspended: organizations.webhooksSuspended,
  createdAt: organizations.createdAt,
};

export type Organization = Readonly<SelectResultFields<typeof ORGANIZATION>>;

/** Credits: total = used + held + available at every instant (DECISIONS.md, Credits). */
export const BALANCE = {
  total: creditBalances.total,
  used: creditBalances.used,
  held: creditBalances.held,
  available: creditBalances.available,
};

export type Balance = Readonly<SelectResultFields<typeof BALANCE>>;

/**
 * Creates an organization with a balance of 0, the default limit and a webhook secret of its own.
 * @param name 1 to 200 characters; names need not differ
 * @throws {DatabaseError} 23514 for a name that is empty or too long
 */
export async function createOrganization(db: Database, by: ChangedBy, name: string): Promise<Organization> {
  const newOrganization = newId('org');
  const webhookSecret = newWebhookSecret(db, newOrganization);
  return await transaction(db, async (tx) => {
    const [created] = await tx
      .insert(organizations)
      .values({ id: newOrganization, name, webhookSecret })
      .returning(ORGANIZATION);
    if (!created) throw new Error('no row');
    const { id } = created;
    await recordAudit(tx, by, { action: 'org.create', organizationId: id, subject: id, details: { name } });
    return created;
  });
}

/** Play credits that a sandbox begins with; an operator grants more. */
const PLAY_CREDITS = 10_000;

/** Whether an organization is another one's sandbox: its id says so, here and in the database. */
export function isSandbox(organizationId: string): boolean {
  return organizationId.startsWith('sbx_');
}

/**
 * The id of an organization's sandbox, which is made if there is none: an organization with play credits, a limit and a
 * webhook secret of its own.
 * @throws {Refusal} `organization_missing`; {SecretKeyMissing} if it is to be made
 */
export async function openSandbox(tx: Transaction, db: Database, by: ChangedBy, sandboxOf: string) {
  // Locked, so that two who need it at once make one.
  const { name, suspended, webhooksSuspended } = await lockOrganization(tx, sandboxOf);
  const isIts = eq(organizations.sandboxOf, sandboxOf);
  const [existing] = await tx.select(ORGANIZATION).from(organizations).where(isIts);
  if (existing) return existing.id;
  const id = newId('sbx');
  const webhookSecret = newWebhookSecret(db, id);
  await tx.insert(organizations).values({ id, sandboxOf, name, webhookSecret, suspended, webhooksSuspended });
  await tx.insert(ledgerEntries).values({ organizationId: id, kind: 'grant', amount: PLAY_CREDITS });
  const details = { name, sandbox_of: sandboxOf, credits: PLAY_CREDITS };
  await recordAudit(tx, by, { action: 'org.create', organizationId: id, subject: id, details });
  return id;
}

/** All organizations with their balances, the newest first. */
export async function listOrganizations(db: Database) {
  return await query(db, (tx) =>
    tx
      .select({ ...ORGANIZATION, balance: BALANCE })
      .from(organizations)
      .innerJoin(creditBalances, eq(creditBalances.organizationId, organizations.id))
      .orderBy(desc(organizations.createdAt), desc(organizations.id)),
  );
}

/** Candidates of one name, at most. */
const CANDIDATES = 20;

/**
 * The organizations that somebody may mean: the one with this id, those that have this name, upper and lower case aside, or
 * else those whose names begin so. Sandboxes, which have the names of their organizations, go by their ids alone.
 */
export async function findOrganizations(db: Database, text: string): Promise<{ id: string; name: string }[]> {
  return await query(db, (tx) =>
    tx.execute<{ id: string; name: string }>(sql`
      with meant as (
        select id, name, id = ${text} or lower(name) = lower(${text}) as exactly from organizations
         where id = ${text} or (${text} <> '' and sandbox_of is null and starts_with(lower(name), lower(${text})))
      )
      select id, name from meant where exactly or not exists (select from meant where exactly)
       order by name, id limit ${CANDIDATES}`),
  );
}

/** @throws {Refusal} `organization_missing` for an unknown id */
export async function showOrganization(db: Database, organizationId: string) {
  return await query(db, async (tx) => {
    const [found] = await tx
      .select({ ...ORGANIZATION, balance: BALANCE })
      .from(organizations)
      .innerJoin(creditBalances, eq(creditBalances.organizationId, organizations.id))
      .where(eq(organizations.id, organizationId));
    if (!found) throw new Refusal('organization_missing');
    const revoked = sql`(${apiKeys.revokedAt} is not null)`;
    const expired = sql`coalesce(${apiKeys.expiresAt} <= clock_timestamp(), false)`;
    const [keys] = await tx
      .select({
        active: countWhere(sql`not ${revoked} and not ${expired}`),
        inactive: countWhere(sql`not ${revoked} and ${expired}`),
        revoked: countWhere(revoked),
      })
      .from(apiKeys)
      .where(eq(apiKeys.organizationId, organizationId));
    const [counted] = await tx
      .select({
        inProgress: countWhere(sql`${batches.status} = 'in-progress'`),
        completed: countWhere(sql`${batches.status} = 'completed'`),
      })
      .from(batches)
      .where(eq(batches.organizationId, organizationId));
    if (!keys || !counted) throw new Error('no row');
    return { ...found, keys, batches: counted };
  });
}

/**
 * Sets how many requests each key of an organization may make in any minute, from the next request on.
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
    const details = { from: before.requestsPerMinute, to: requestsPerMinute };
    await recordAudit(tx, by, { action: 'limits.set', organizationId, subject: organizationId, details });
    return await update(tx, organizationId, { requestsPerMinute });
  });
}

/**
 * Suspends or resumes an organization: its keys are inactive from the next request on, and then as they were. What it
 * has submitted goes on. Its sandbox goes with it. Safe to repeat.
 * @throws {Refusal} `organization_missing`
 */
export const suspendOrganization = suspends('org', 'suspended');

/**
 * Suspends or resumes webhooks, those of the sandbox too: submits made while they are suspended get no deliveries
 * (`webhook.status` `none`).
 * @throws {Refusal} `organization_missing`
 */
export const suspendWebhooks = suspends('webhooks', 'webhooksSuspended');

function suspends(what: 'org' | 'webhooks', column: 'suspended' | 'webhooksSuspended') {
  return (db: Database, by: ChangedBy, organizationId: string, suspended: boolean): Promise<Organization> =>
    transaction(db, async (tx) => {
      const before = await lockOrganization(tx, organizationId);
      const action = suspended ? (`${what}.suspend` as const) : (`${what}.resume` as const);
      const details = { from: before[column], to: suspended };
      await recordAudit(tx, by, { action, organizationId, subject: organizationId, details });
      const change = { [column]: suspended };
      await tx.update(organizations).set(change).where(eq(organizations.sandboxOf, organizationId));
      return await update(tx, organizationId, change);
    });
}

/** @throws {Refusal} `organization_missing` for an unknown id */
export async function requireOrganization(db: Database, organizationId: string): Promise<void> {
  const found = await query(db, (tx) =>
    tx.select({ id: organizations.id }).from(organizations).where(eq(organizations.id, organizationId)),
  );
  if (found.length === 0) throw new Refusal('organization_missing');
}

/** Not FOR UPDATE: that would wait for, and hold up, every submit that refers to the organization. */
async function lockOrganization(tx: Transaction, organizationId: string) {
  const [found] = await tx
    .select()
    .from(organizations)
    .where(eq(organizations.id, organizationId))
    .for('no key update');
  if (!found) throw new Refusal('organization_missing');
  return found;
}

async function update(
  tx: Transaction,
  organizationId: string,
  values: Partial<typeof organizations.$inferInsert>,
): Promise<Organization> {
  const [updated] = await tx
    .update(organizations)
    .set(values)
    .where(eq(organizations.id, organizationId))
    .returning(ORGANIZATION);
  if (!updated) throw new Refusal('organization_missing');
  return updated;
}

function countWhere(condition: ReturnType<typeof sql>) {
  return sql<number>`count(*) filter (where ${condition})`.mapWith(Number);
}
