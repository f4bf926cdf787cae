import { sql } from 'drizzle-orm';
import { type AuditedChange, type ChangedBy, recordAudit } from '../audit.ts';
import { type Database, only, run, type Transaction, transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { newId } from '../ids.ts';
import { requireRightKey } from './secret-keys.ts';
import { newWebhookSecret } from './webhook-secrets.ts';

export interface Organization {
  readonly id: string;
  readonly name: string;
  /** The organization whose sandbox it is; null if it is none. */
  readonly sandboxOf: string | null;
  /** Requests admitted per key in any minute. */
  readonly requestsPerMinute: number;
  /** True: none of its keys is let in. */
  readonly suspended: boolean;
  /** True: new submits get no deliveries. */
  readonly webhooksSuspended: boolean;
  readonly createdAt: Date;
}

const ORGANIZATION = sql`
  id, name, sandbox_of as "sandboxOf", requests_per_minute as "requestsPerMinute", suspended,
  webhooks_suspended as "webhooksSuspended", created_at as "createdAt"`;

/** Credits: total = used + held + available at every instant (DECISIONS.md, Credits). */
export type Balance = Readonly<Record<'total' | 'used' | 'held' | 'available', number>>;

/** The `balance` of a row of organizations. */
const WITH_BALANCE = sql`(
  select json_build_object('total', total, 'used', used, 'held', held, 'available', available)
    from credit_balances where organization_id = organizations.id) as balance`;

/**
 * Creates an organization with a balance of 0, the default limit and a webhook secret of its own.
 * @param name 1 to 200 characters; names need not differ
 * @throws {DatabaseError} 23514 for a name that is empty or too long
 */
export async function createOrganization(
  db: Database,
  by: ChangedBy,
  name: string,
): Promise<Organization> {
  const plain = { sandboxOf: null, suspended: false, webhooksSuspended: false };
  return await transaction(db, (tx) =>
    insert(tx, db, by, { id: newId('org'), name, ...plain }, { name }),
  );
}

/** Play credits that a sandbox begins with; an operator grants more. */
const PLAY_CREDITS = 10_000;

/** Whether an organization is another one's sandbox: its id says so, here and in the database. */
export function isSandbox(organizationId: string): boolean {
  return organizationId.startsWith('sbx_');
}

/**
 * The id of an organization's sandbox, which is made if there is none: an organization with play
 * credits, a limit and a webhook secret of its own.
 * @throws {Refusal} `organization_missing`; {SecretKeyMissing} if it is to be made
 */
export async function openSandbox(tx: Transaction, db: Database, by: ChangedBy, sandboxOf: string) {
  // Locked, so that two who need it at once make one.
  const owner = await lockOrganization(tx, sandboxOf);
  const [existing] = await run<Pick<Organization, 'id'>>(tx)`
    select id from organizations where sandbox_of = ${sandboxOf}`;
  if (existing) return existing.id;
  const id = newId('sbx');
  const details = { name: owner.name, sandbox_of: sandboxOf, credits: PLAY_CREDITS };
  await insert(tx, db, by, { ...owner, id, sandboxOf }, details);
  await run(tx)`
    insert into ledger_entries (organization_id, kind, amount) values (${id}, 'grant', ${PLAY_CREDITS})`;
  return id;
}

/** All organizations with their balances, the newest first. */
export async function listOrganizations(db: Database) {
  return await run<Organization & { readonly balance: Balance }>(db)`
    select ${ORGANIZATION}, ${WITH_BALANCE} from organizations order by created_at desc, id desc`;
}

/** Candidates of one name, at most. */
const CANDIDATES = 20;

/**
 * The organizations that somebody may mean: the one with this id, those that have this name, upper
 * and lower case aside, or else those whose names begin so. Sandboxes, which have the names of
 * their organizations, go by their ids alone.
 */
export async function findOrganizations(db: Database, text: string) {
  return await run<Pick<Organization, 'id' | 'name'>>(db)`
    with meant as (
      select id, name, id = ${text} or lower(name) = lower(${text}) as exactly from organizations
       where id = ${text} or (${text} <> '' and sandbox_of is null and starts_with(lower(name), lower(${text})))
    )
    select id, name from meant where exactly or not exists (select from meant where exactly)
     order by name, id limit ${CANDIDATES}`;
}

/** @throws {Refusal} `organization_missing` for an unknown id */
export async function showOrganization(db: Database, organizationId: string) {
  type Shown = Organization & {
    readonly balance: Balance;
    readonly keys: Readonly<Record<'active' | 'inactive' | 'revoked', number>>;
    readonly batches: Readonly<Record<'inProgress' | 'completed', number>>;
  };
  const [found] = await run<Shown>(db)`
    select ${ORGANIZATION}, ${WITH_BALANCE}, (
             select json_build_object('active', count(*) filter (where not revoked and not expired),
                                      'inactive', count(*) filter (where not revoked and expired),
                                      'revoked', count(*) filter (where revoked))
               from api_keys, lateral (
                 select revoked_at is not null as revoked, coalesce(expires_at <= clock_timestamp(), false) as expired) k
              where organization_id = organizations.id) as keys, (
             select json_build_object('inProgress', count(*) filter (where status = 'in-progress'),
                                      'completed', count(*) filter (where status = 'completed'))
               from batches where organization_id = organizations.id) as batches
      from organizations where id = ${organizationId}`;
  if (!found) throw new Refusal('organization_missing');
  return found;
}

/**
 * Sets how many requests each key of an organization may make in any minute, from the next request
 * on.
 * @param requestsPerMinute 1 to 100000
 * @throws {Refusal} `organization_missing`; {DatabaseError} 23514 for a number outside the range
 */
export const setLimit = changes<number>('limits', 'requestsPerMinute', 'requests_per_minute');

/**
 * Suspends or resumes an organization: its keys are inactive from the next request on, and then as
 * they were. What it has submitted goes on. Its sandbox goes with it. Safe to repeat.
 * @throws {Refusal} `organization_missing`
 */
export const suspendOrganization = changes<boolean>('org', 'suspended', 'suspended');

/**
 * Suspends or resumes webhooks, those of the sandbox too: submits made while they are suspended get
 * no deliveries (`webhook.status` `none`).
 * @throws {Refusal} `organization_missing`
 */
export const suspendWebhooks = changes<boolean>(
  'webhooks',
  'webhooksSuspended',
  'webhooks_suspended',
);

function changes<To extends number | boolean>(
  what: string,
  member: 'requestsPerMinute' | 'suspended' | 'webhooksSuspended',
  column: string,
) {
  return (db: Database, by: ChangedBy, organizationId: string, to: To): Promise<Organization> =>
    transaction(db, async (tx) => {
      const { [member]: from } = await lockOrganization(tx, organizationId);
      const action =
        `${what}.${to === true ? 'suspend' : to === false ? 'resume' : 'set'}` as const;
      await recordAudit(tx, by, {
        action,
        organizationId,
        subject: organizationId,
        details: { from, to },
      });
      const update = sql`update organizations set ${sql.identifier(column)} = ${to}`;
      // A sandbox goes with its organization, but has a limit of its own.
      if (typeof to === 'boolean') await run(tx)`${update} where sandbox_of = ${organizationId}`;
      return only(
        await run<Organization>(
          tx,
        )`${update} where id = ${organizationId} returning ${ORGANIZATION}`,
      );
    });
}

/** @throws {Refusal} `organization_missing` for an unknown id */
export async function requireOrganization(db: Database, organizationId: string): Promise<void> {
  const found = await run(db)`select from organizations where id = ${organizationId}`;
  if (found.length === 0) throw new Refusal('organization_missing');
}

/**
 * Not FOR UPDATE: that would wait for, and hold up, every submit that refers to the organization.
 */
async function lockOrganization(tx: Transaction, organizationId: string): Promise<Organization> {
  const [found] = await run<Organization>(tx)`
    select ${ORGANIZATION} from organizations where id = ${organizationId} for no key update`;
  if (!found) throw new Refusal('organization_missing');
  return found;
}

/** Adds an organization, with a webhook secret of its own. */
async function insert(
  tx: Transaction,
  db: Database,
  by: ChangedBy,
  made: Pick<Organization, 'id' | 'name' | 'sandboxOf' | 'suspended' | 'webhooksSuspended'>,
  details: AuditedChange['details'],
): Promise<Organization> {
  const { id } = made;
  await requireRightKey(tx, db.secretKeys);
  const inserted = await run<Organization>(tx)`
    insert into organizations (id, name, sandbox_of, webhook_secret, suspended, webhooks_suspended)
    values (${id}, ${made.name}, ${made.sandboxOf}, ${newWebhookSecret(db, id)}, ${made.suspended}, ${made.webhooksSuspended})
    returning ${ORGANIZATION}`;
  await recordAudit(tx, by, { action: 'org.create', organizationId: id, subject: id, details });
  return only(inserted);
}
