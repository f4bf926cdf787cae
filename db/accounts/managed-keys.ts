import { and, desc, eq, gt, inArray, isNull, ne, or, type SQL, sql } from 'drizzle-orm';
import {
  type Database,
  query,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { Refusal, violates } from '../connection/errors.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import { apiKeys, rateWindows } from '../schema.ts';
import {
  API_KEY,
  type ApiKey,
  type IssuedKey,
  issueIn,
  LAST_USED_AT,
  revokeLocked,
  rotateLocked,
} from './keys.ts';
import {
  isOrSandboxOf,
  isSandbox,
  lockOrganization,
  openSandbox,
} from './organizations.ts';

// Keys that a customer manages in the console, with a key whose role is `full`. A live key manages
// the keys of its organization and of its sandbox. A test key manages only the sandbox's, because
// test keys are handed out more freely.
//
// Each change locks the customer's organization first, so the changes of one customer run one after
// the other. Two colleagues who revoke each other's key at the same time can't both succeed. After
// the lock, the change checks the key of the visitor again: a process remembers keys for a second,
// and a revoked key must not issue another one in this time.

/** The key with which a visitor of the console changes keys. */
export interface KeyManager {
  readonly keyId: string;
  readonly organizationId: string;
  readonly customerId: string;
}

/**
 * Why a change of a key was rejected. `ended`: the visitor's key is no longer valid. `missing`: the
 * visitor manages no key with this id. `sent`: a key with the id of the form exists. `many`: the
 * organization has too many keys. `last`: it is the last `full` key. `inactive`: the key has ended.
 * `rotated`: it was already replaced.
 */
export type KeyFault =
  | 'ended'
  | 'missing'
  | 'sent'
  | 'many'
  | 'last'
  | 'inactive'
  | 'rotated';

export class KeyRefused extends Error {
  readonly fault: KeyFault;

  constructor(fault: KeyFault) {
    super(`refused: ${fault}`);
    this.fault = fault;
  }
}

/**
 * The most keys of one organization that are valid or less than a day old. Each key has its own rate
 * limit, so more keys, or keys that replace each other quickly, would be a way around it.
 */
export const MAX_KEYS = 50;

/** The most keys that a list has. Keys that have ended stay in the database. */
const LISTED = 200;

/**
 * Lists the keys that a key manages, valid ones first and then the newest first. `lastUsedAt` is
 * null if a key was never used.
 */
export async function listManagedKeys(db: Database, { organizationId }: KeyManager) {
  return await query(db, (tx) =>
    tx
      .select({ ...API_KEY, lastUsedAt: LAST_USED_AT })
      .from(apiKeys)
      .leftJoin(rateWindows, eq(rateWindows.apiKeyId, apiKeys.id))
      .where(isManaged(organizationId))
      .orderBy(sql`${API_KEY.state} = 'active' desc`, desc(apiKeys.createdAt))
      .limit(LISTED),
  );
}

/**
 * Issues a key of the visitor's organization, or of its sandbox, which is created if it does not
 * exist.
 * @param key `id` comes from the form, so that the same form can't create two keys
 * @throws {KeyRefused} `ended`, `sent`, `many`; {SecretKeyMissing} if a sandbox must be created
 */
export async function createManagedKey(
  db: Database,
  manager: KeyManager,
  key: Pick<ApiKey, 'id' | 'name' | 'role' | 'isTest'>,
): Promise<IssuedKey> {
  return await change(db, manager, async (tx, by) => {
    let { organizationId } = manager;
    if (key.isTest && !isSandbox(organizationId))
      organizationId = await openSandbox(tx, db, by, organizationId);
    await requireRoom(tx, organizationId);
    const { name, role } = key;
    return await issueIn(tx, by, { organizationId, name, role }, key.id);
  });
}

/**
 * Renames a key. The audit log gets neither name, because it is kept after an organization is
 * erased.
 * @throws {KeyRefused} `ended`, `missing`
 */
export async function renameManagedKey(
  db: Database,
  manager: KeyManager,
  keyId: string,
  name: string,
): Promise<void> {
  await change(db, manager, async (tx, by) => {
    const { id, organizationId } = await lockManagedKey(tx, manager, keyId);
    await tx.update(apiKeys).set({ name }).where(eq(apiKeys.id, id));
    const named = { action: 'keys.rename', organizationId, subject: id } as const;
    await recordAudit(tx, by, { ...named, details: {} });
  });
}

/**
 * Replaces a key by a new one with the same name and role.
 * @param rotation `overlapMs` is the time in milliseconds for which the old key stays valid
 * @throws {KeyRefused} `ended`, `missing`, `sent`, `many`, `inactive`, `rotated`; `last` if the last
 * `full` key would end at once
 */
export async function rotateManagedKey(
  db: Database,
  manager: KeyManager,
  keyId: string,
  { newKeyId, overlapMs }: { readonly newKeyId: string; readonly overlapMs: number },
): Promise<IssuedKey> {
  return await change(db, manager, async (tx, by) => {
    const before = await lockManagedKey(tx, manager, keyId);
    // The new key is shown only once. If its page is lost, the customer needs another full key.
    if (overlapMs === 0) await requireOtherFull(tx, before);
    await requireRoom(tx, before.organizationId);
    const [issued] = await rotateLocked(tx, by, before, overlapMs, newKeyId);
    return issued;
  });
}

/**
 * Revokes a key at once. The last `full` key of a live organization can't be revoked: another valid
 * one must remain that does not end. Only operators can revoke the last one.
 * @throws {KeyRefused} `ended`, `missing`, `last`
 */
export async function revokeManagedKey(
  db: Database,
  manager: KeyManager,
  keyId: string,
  leaked: boolean,
): Promise<void> {
  await change(db, manager, async (tx, by) => {
    const before = await lockManagedKey(tx, manager, keyId);
    await requireOtherFull(tx, before);
    await revokeLocked(tx, by, before, leaked);
  });
}

/** Tests whether a key belongs to an organization or to its sandbox. */
function isManaged(organizationId: string): SQL {
  const ids = sql`(select id from organizations where ${isOrSandboxOf(organizationId)})`;
  return inArray(apiKeys.organizationId, ids);
}

/** Runs a change of keys in a transaction, if the visitor's key is still valid. */
async function change<T>(
  db: Database,
  manager: KeyManager,
  work: (tx: Transaction, by: ChangedBy) => Promise<T>,
): Promise<T> {
  try {
    return await transaction(db, async (tx) => {
      await requireManager(tx, manager);
      return await work(tx, { actor: manager.keyId, reason: 'console' });
    });
  } catch (error) {
    if (violates(error, 'api_keys_pkey')) throw new KeyRefused('sent');
    if (error instanceof Refusal && error.code === 'key_rotated')
      throw new KeyRefused('rotated');
    if (error instanceof Refusal && error.code === 'key_not_active')
      throw new KeyRefused('inactive');
    throw error;
  }
}

async function requireManager(
  tx: Transaction,
  { keyId, customerId }: KeyManager,
): Promise<void> {
  const { suspended } = await lockOrganization(tx, customerId);
  const [key] = await tx.select(API_KEY).from(apiKeys).where(eq(apiKeys.id, keyId));
  if (suspended || key?.state !== 'active' || key.role !== 'full')
    throw new KeyRefused('ended');
}

async function lockManagedKey(
  tx: Transaction,
  { organizationId }: KeyManager,
  keyId: string,
): Promise<ApiKey> {
  const [found] = await tx
    .select(API_KEY)
    .from(apiKeys)
    .where(and(eq(apiKeys.id, keyId), isManaged(organizationId)))
    .for('no key update');
  if (!found) throw new KeyRefused('missing');
  return found;
}

async function requireRoom(tx: Transaction, organizationId: string): Promise<void> {
  const isYoung = gt(apiKeys.createdAt, sql`clock_timestamp() - interval '1 day'`);
  const counted = or(isYoung, sql`${API_KEY.state} = 'active'`);
  const keys = await tx.$count(
    apiKeys,
    and(eq(apiKeys.organizationId, organizationId), counted),
  );
  if (keys >= MAX_KEYS) throw new KeyRefused('many');
}

/** Makes sure that a key is not the last `full` key of a live organization. */
async function requireOtherFull(
  tx: Transaction,
  { id, organizationId, role, isTest }: ApiKey,
): Promise<void> {
  if (role !== 'full' || isTest) return;
  const others = and(
    eq(apiKeys.organizationId, organizationId),
    eq(apiKeys.role, 'full'),
    ne(apiKeys.id, id),
    isNull(apiKeys.revokedAt),
    isNull(apiKeys.expiresAt),
  );
  if ((await tx.$count(apiKeys, others)) === 0) {
    throw new KeyRefused('last');
  }
}
