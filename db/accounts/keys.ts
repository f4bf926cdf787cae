import { hash, randomInt } from 'node:crypto';
import { crc32 } from 'node:zlib';
import { desc, eq, sql } from 'drizzle-orm';
import {
  clock,
  type Database,
  only,
  query,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { newId } from '../connection/ids.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import { apiKeys, organizations, rateWindows } from '../schema.ts';
import type { KeyRole } from '../words.ts';
import { isSandbox, openSandbox, requireOpen } from './organizations.ts';

// An API key consists of `npe_` or `npe_test_`, 30 random base62 characters (178 bits), and 6 check
// characters: the CRC32 of the text before them. Secret scanners recognize the prefix. The check
// characters show whether a key is mistyped. A mistyped key is rejected without a query
// (DECISIONS.md, Keys and rate).

export interface ApiKey {
  readonly id: string;
  readonly organizationId: string;
  readonly name: string;
  /** Never changes. */
  readonly role: KeyRole;
  /** True if the key belongs to a sandbox. */
  readonly isTest: boolean;
  /** The last 4 characters of the key. */
  readonly hint: string;
  /** `inactive`: the key has expired. A key that is both revoked and expired is `revoked`. */
  readonly state: 'active' | 'inactive' | 'revoked';
  readonly createdAt: Date;
  readonly expiresAt: Date | null;
  readonly revokedAt: Date | null;
  /** True if the key was revoked because it leaked. */
  readonly leaked: boolean;
}

/** A new key with its text, which is shown only once and stored nowhere. */
export type IssuedKey = ApiKey & { readonly apiKey: string };

export type Authentication =
  | {
      readonly kind: 'active';
      readonly keyId: string;
      readonly keyName: string;
      readonly role: KeyRole;
      readonly organizationId: string;
      /** The organization itself, or the organization of the sandbox. */
      readonly customerId: string;
      readonly requestsPerMinute: number;
      /** The time when the key ends, because it was rotated. Null for a key that does not end. */
      readonly keyExpiresAt: Date | null;
    }
  | {
      readonly kind: 'revoked' | 'inactive';
      readonly keyId: string;
      readonly organizationId: string;
    }
  | { readonly kind: 'unknown' };

const ALPHABET = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const SHAPE = /^npe_(?:test_)?[0-9A-Za-z]{36}$/;

const STATE = sql<ApiKey['state']>`case when revoked_at is not null then 'revoked'
  when expires_at <= clock_timestamp() then 'inactive' else 'active' end`;

/** The columns of an `ApiKey`. */
export const API_KEY = {
  id: apiKeys.id,
  organizationId: apiKeys.organizationId,
  name: apiKeys.name,
  role: apiKeys.role,
  isTest: apiKeys.isTest,
  hint: apiKeys.hint,
  state: STATE,
  createdAt: apiKeys.createdAt,
  expiresAt: apiKeys.expiresAt,
  revokedAt: apiKeys.revokedAt,
  leaked: apiKeys.leaked,
};

/**
 * Returns the hash that identifies a key, or null for a text that cannot be a key. Does not query
 * the database.
 */
export function parseApiKey(text: string): Buffer | null {
  if (!SHAPE.test(text)) return null;
  if (text.slice(-6) !== checkCharacters(text.slice(0, -6))) {
    return null;
  }
  return hashOf(text);
}

/**
 * Returns the key's organization and whether the key is active, with one indexed query. Nothing is
 * cached between requests, so a revoked key is rejected from the next request on. While an
 * organization is suspended, its active keys count as inactive.
 */
export async function authenticate(db: Database, hash: Buffer): Promise<Authentication> {
  const [found] = await query(db, (tx) =>
    tx
      .select({
        state: STATE,
        suspended: organizations.suspended,
        keyId: apiKeys.id,
        keyName: apiKeys.name,
        role: apiKeys.role,
        organizationId: organizations.id,
        customerId: sql<string>`coalesce(${organizations.sandboxOf}, ${organizations.id})`,
        requestsPerMinute: organizations.requestsPerMinute,
        keyExpiresAt: apiKeys.expiresAt,
      })
      .from(apiKeys)
      .innerJoin(organizations, eq(organizations.id, apiKeys.organizationId))
      .where(eq(apiKeys.hash, hash)),
  );
  if (!found) return { kind: 'unknown' };
  const { state, suspended, ...key } = found;
  if (state !== 'active') return { kind: state, ...key };
  return { kind: suspended ? 'inactive' : 'active', ...key };
}

/** The properties of a new key that may be left out. */
interface KeyOptions {
  /** The default is `full`. */
  readonly role?: KeyRole | undefined;
  /**
   * True to issue a key of the organization's sandbox, which is created if it does not exist.
   */
  readonly forSandbox?: boolean | undefined;
}

/**
 * Issues a key that never expires. A sandbox's key is a test key.
 * @param name 1 to 200 characters, for people; names need not be unique
 * @throws {Refusal} `organization_missing`, `organization_closed`; {DatabaseError} 23514 for a bad
 * name;
 * {SecretKeyMissing} if a sandbox must be created
 */
export async function issueKey(
  db: Database,
  by: ChangedBy,
  owner: string,
  name: string,
  { role = 'full', forSandbox = false }: KeyOptions = {},
): Promise<IssuedKey> {
  return await transaction(db, async (tx) => {
    await requireOpen(tx, owner);
    let organizationId = owner;
    if (forSandbox && !isSandbox(owner))
      organizationId = await openSandbox(tx, db, by, owner);
    return await issueIn(tx, by, { organizationId, name, role });
  });
}

type NewKey = Pick<ApiKey, 'organizationId' | 'name' | 'role'>;

/** Issues a key of an organization that is locked. `id` is the id of the new key. */
export async function issueIn(
  tx: Transaction,
  by: ChangedBy,
  key: NewKey,
  id = newId('key'),
): Promise<IssuedKey> {
  const issued = await insertKey(tx, key, id);
  await recordAudit(tx, by, {
    action: 'keys.issue',
    organizationId: issued.organizationId,
    subject: id,
    details: { hint: issued.hint, role: issued.role },
  });
  return issued;
}

/** The usual time for which a replaced key stays valid, in milliseconds. */
export const KEY_OVERLAP_MS = 24 * 3_600_000;

/**
 * Replaces an active key. Issues a new key with the same name and role, and lets the old key expire
 * after the overlap. During the overlap, the old key cannot be rotated again.
 * @param overlapMs milliseconds during which both keys are valid; 0 ends the old key at once
 * @throws {Refusal} `key_missing`; `key_not_active` for a key that is revoked or has expired;
 * `key_rotated` during an overlap
 */
export async function rotateKey(
  db: Database,
  by: ChangedBy,
  keyId: string,
  overlapMs: number,
): Promise<{ readonly issued: IssuedKey; readonly replaced: ApiKey }> {
  return await transaction(db, async (tx) => {
    const before = await lockKey(tx, keyId);
    const [issued, replaced] = await rotateLocked(tx, by, before, overlapMs);
    return { issued, replaced };
  });
}

/** Rotates a key that is locked. `newKeyId` is the id of the new key. */
export async function rotateLocked(
  tx: Transaction,
  by: ChangedBy,
  before: ApiKey,
  overlapMs: number,
  newKeyId = newId('key'),
): Promise<readonly [issued: IssuedKey, replaced: ApiKey]> {
  if (before.state !== 'active') throw new Refusal('key_not_active');
  // Only a rotation sets the time when a key expires, so this key was already rotated.
  if (before.expiresAt) throw new Refusal('key_rotated');
  const expiresAt = new Date((await clock(tx)).getTime() + overlapMs);
  const replaced = await updateKey(tx, { ...before, expiresAt });
  const issued = await insertKey(tx, replaced, newKeyId);
  await recordAudit(tx, by, {
    action: 'keys.rotate',
    organizationId: replaced.organizationId,
    subject: replaced.id,
    details: {
      new_key_id: issued.id,
      hint: issued.hint,
      role: issued.role,
      old_key_expires_at: expiresAt.toISOString(),
    },
  });
  return [issued, replaced];
}

/**
 * Revokes a key at once. A key that was already revoked keeps its revocation time. A key that was
 * marked as leaked keeps the mark.
 * @param leaked true to mark the key as leaked
 * @throws {Refusal} `key_missing`
 */
export async function revokeKey(
  db: Database,
  by: ChangedBy,
  keyId: string,
  leaked = false,
): Promise<ApiKey> {
  return await transaction(db, async (tx) =>
    revokeLocked(tx, by, await lockKey(tx, keyId), leaked),
  );
}

/** Revokes a key that is locked. */
export async function revokeLocked(
  tx: Transaction,
  by: ChangedBy,
  before: ApiKey,
  leaked: boolean,
): Promise<ApiKey> {
  return await changeLocked(tx, by, 'keys.revoke', before, {
    ...before,
    revokedAt: before.revokedAt ?? (await clock(tx)),
    leaked: leaked || before.leaked,
  });
}

/**
 * Makes a key valid again: clears its revocation and its expiry.
 * @param evenLeaked true to reactivate a key that was revoked because it leaked
 * @throws {Refusal} `key_missing`; `organization_closed`; `key_leaked` without `evenLeaked`
 */
export async function reactivateKey(
  db: Database,
  by: ChangedBy,
  keyId: string,
  evenLeaked = false,
) {
  return await transaction(db, async (tx) => {
    const before = await lockKey(tx, keyId);
    await requireOpen(tx, before.organizationId);
    if (before.leaked && !evenLeaked) throw new Refusal('key_leaked');
    return await changeLocked(tx, by, 'keys.reactivate', before, {
      ...before,
      revokedAt: null,
      expiresAt: null,
      leaked: false,
    });
  });
}

/** The time of the last request that was counted toward the key's rate limit. */
export const LAST_USED_AT = sql<Date | null>`hits[cardinality(hits)]`.mapWith(
  apiKeys.createdAt,
);

/**
 * Lists all keys of an organization, the newest first, without their texts. `lastUsedAt` is null if
 * a key was never used.
 */
export async function listKeys(db: Database, organizationId: string) {
  return await query(db, (tx) =>
    tx
      .select({ ...API_KEY, lastUsedAt: LAST_USED_AT })
      .from(apiKeys)
      .leftJoin(rateWindows, eq(rateWindows.apiKeyId, apiKeys.id))
      .where(eq(apiKeys.organizationId, organizationId))
      .orderBy(desc(apiKeys.createdAt), desc(apiKeys.id)),
  );
}

/** Returns the organization of a key. @throws {Refusal} `key_missing` */
export async function findOwner(db: Database, keyId: string): Promise<string> {
  const { id, organizationId } = apiKeys;
  const [found] = await query(db, (tx) =>
    tx.select({ organizationId }).from(apiKeys).where(eq(id, keyId)),
  );
  if (!found) throw new Refusal('key_missing');
  return found.organizationId;
}

function newApiKey(isTest: boolean): string {
  let checked = isTest ? 'npe_test_' : 'npe_';
  for (let i = 0; i < 30; i += 1) {
    checked += ALPHABET.charAt(randomInt(ALPHABET.length));
  }
  return checked + checkCharacters(checked);
}

/** Returns the CRC32 of a text as 6 base62 characters. That is enough, because 62^6 > 2^32. */
function checkCharacters(checked: string): string {
  let rest = crc32(checked);
  let characters = '';
  for (let i = 0; i < 6; i += 1) {
    characters = ALPHABET.charAt(rest % 62) + characters;
    rest = Math.floor(rest / 62);
  }
  return characters;
}

function hashOf(apiKey: string): Buffer {
  return hash('sha256', apiKey, 'buffer');
}

async function insertKey(
  tx: Transaction,
  { organizationId, name, role }: NewKey,
  id: string,
): Promise<IssuedKey> {
  const isTest = isSandbox(organizationId);
  const apiKey = newApiKey(isTest);
  const inserted = await tx
    .insert(apiKeys)
    .values({
      id,
      organizationId,
      name,
      role,
      isTest,
      hint: apiKey.slice(-4),
      hash: hashOf(apiKey),
    })
    .returning(API_KEY);
  return { ...only(inserted), apiKey };
}

/**
 * Locks a key, so that concurrent changes of the same key run one after the other. Authentication
 * and submits do not wait for this lock.
 */
async function lockKey(tx: Transaction, keyId: string): Promise<ApiKey> {
  const [found] = await tx
    .select(API_KEY)
    .from(apiKeys)
    .where(eq(apiKeys.id, keyId))
    .for('no key update');
  if (!found) throw new Refusal('key_missing');
  return found;
}

async function updateKey(
  tx: Transaction,
  { id, revokedAt, expiresAt, leaked }: ApiKey,
): Promise<ApiKey> {
  const updated = await tx
    .update(apiKeys)
    .set({ revokedAt, expiresAt, leaked })
    .where(eq(apiKeys.id, id))
    .returning(API_KEY);
  return only(updated);
}

async function changeLocked(
  tx: Transaction,
  by: ChangedBy,
  action: 'keys.revoke' | 'keys.reactivate',
  before: ApiKey,
  changed: ApiKey,
): Promise<ApiKey> {
  const after = await updateKey(tx, changed);
  await recordAudit(tx, by, {
    action,
    organizationId: after.organizationId,
    subject: after.id,
    details: {
      hint: after.hint,
      role: after.role,
      from: before.state,
      to: after.state,
      leaked: before.leaked || after.leaked,
    },
  });
  return after;
}
