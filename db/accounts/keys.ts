import { hash, randomInt } from 'node:crypto';
import { crc32 } from 'node:zlib';
import { and, desc, eq, isNull, sql } from 'drizzle-orm';
import type { SelectResultFields } from 'drizzle-orm/query-builders/select.types';
import { type ChangedBy, recordAudit } from '../audit.ts';
import { clock, type Database, query, type Transaction, transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { newId } from '../ids.ts';
import { apiKeys, organizations } from '../schema.ts';
import { isSandbox, openSandbox, requireOrganization } from './organizations.ts';

// A key is `npe_` or `npe_test_`, 30 base62 characters (178 random bits), and 6 that are the CRC32 of all before: secret
// scanners find it, and a mistyped one is refused without a query (DECISIONS.md, Keys and rate).

/** `inactive` is a key whose time is over; a key that is revoked too is `revoked`. */
export type KeyState = 'active' | 'inactive' | 'revoked';

/** The only time the key itself is seen: it is stored nowhere. */
export type IssuedKey = ApiKey & { readonly apiKey: string };

export type Authentication =
  | {
      readonly kind: 'active';
      readonly keyId: string;
      readonly organizationId: string;
      readonly requestsPerMinute: number;
    }
  | { readonly kind: 'revoked' }
  | { readonly kind: 'inactive' }
  | { readonly kind: 'unknown' };

const ALPHABET = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const SHAPE = /^npe_(?:test_)?[0-9A-Za-z]{36}$/;

const STATE = sql<KeyState>`case when ${apiKeys.revokedAt} is not null then 'revoked'
  when ${apiKeys.expiresAt} <= clock_timestamp() then 'inactive' else 'active' end`;

const API_KEY = {
  id: apiKeys.id,
  organizationId: apiKeys.organizationId,
  name: apiKeys.name,
  /** Whether it is for a sandbox. */
  isTest: apiKeys.isTest,
  /** The key's last 4 characters. */
  hint: apiKeys.hint,
  state: STATE,
  createdAt: apiKeys.createdAt,
  expiresAt: apiKeys.expiresAt,
  revokedAt: apiKeys.revokedAt,
  /** Revoked because somebody else has it. */
  leaked: apiKeys.leaked,
};

export type ApiKey = Readonly<SelectResultFields<typeof API_KEY>>;

/** The hash that a key is known by; null for any text that cannot be a key. Asks no database. */
export function parseApiKey(text: string): Buffer | null {
  if (!SHAPE.test(text)) return null;
  return text.slice(-6) === checkCharacters(text.slice(0, -6)) ? hashOf(text) : null;
}

/**
 * Says whose key it is and whether it may be used, in one query by an index. Nothing is kept between requests, so a
 * revocation holds from the next one on. While its organization is suspended, an active key is inactive.
 */
export async function authenticate(db: Database, hash: Buffer): Promise<Authentication> {
  const [found] = await query(db, (tx) =>
    tx
      .select({
        state: STATE,
        suspended: organizations.suspended,
        keyId: apiKeys.id,
        organizationId: apiKeys.organizationId,
        requestsPerMinute: organizations.requestsPerMinute,
      })
      .from(apiKeys)
      .innerJoin(organizations, eq(organizations.id, apiKeys.organizationId))
      .where(eq(apiKeys.hash, hash)),
  );
  if (!found) return { kind: 'unknown' };
  const { state, suspended, ...key } = found;
  if (state !== 'active') return { kind: state };
  return suspended ? { kind: 'inactive' } : { kind: state, ...key };
}

/**
 * Issues a key that never expires. A sandbox's key is a test key.
 * @param name 1 to 200 characters, for people; names need not differ
 * @param forSandbox the key is for the organization's sandbox, which is made if there is none
 * @throws {Refusal} `organization_missing`; {DatabaseError} 23514 for a bad name; {SecretKeyMissing} to make a sandbox
 */
export async function issueKey(
  db: Database,
  by: ChangedBy,
  owner: string,
  name: string,
  forSandbox = false,
): Promise<IssuedKey> {
  await requireOrganization(db, owner);
  return await transaction(db, async (tx) => {
    const organizationId = forSandbox && !isSandbox(owner) ? await openSandbox(tx, db, by, owner) : owner;
    const issued = await insertKey(tx, organizationId, name);
    const details = { name, hint: issued.hint };
    await recordAudit(tx, by, { action: 'keys.issue', organizationId, subject: issued.id, details });
    return issued;
  });
}

/**
 * Issues a key of the same name in place of an active one, which expires after the overlap. A key has one successor
 * at a time: of two rotations the second is refused.
 * @param overlapMs how long both are valid; 0 ends the old key at once
 * @throws {Refusal} `key_missing`; `key_not_active` for a key that is revoked or has expired; `key_rotated`
 * for one whose overlap runs
 */
export async function rotateKey(
  db: Database,
  by: ChangedBy,
  keyId: string,
  overlapMs = 0,
): Promise<{ readonly issued: IssuedKey; readonly replaced: ApiKey }> {
  return await transaction(db, async (tx) => {
    const expiresAt = new Date((await clock(tx)).getTime() + overlapMs);
    // Only a rotation sets when a key expires.
    const [replaced] = await tx
      .update(apiKeys)
      .set({ expiresAt })
      .where(and(eq(apiKeys.id, keyId), isNull(apiKeys.revokedAt), isNull(apiKeys.expiresAt)))
      .returning(API_KEY);
    if (!replaced) {
      const { state } = await lockKey(tx, keyId);
      throw new Refusal(state === 'active' ? 'key_rotated' : 'key_not_active');
    }
    const issued = await insertKey(tx, replaced.organizationId, replaced.name);
    await recordAudit(tx, by, {
      action: 'keys.rotate',
      organizationId: replaced.organizationId,
      subject: keyId,
      details: { new_key_id: issued.id, hint: issued.hint, old_key_expires_at: expiresAt.toISOString() },
    });
    return { issued, replaced };
  });
}

/**
 * Ends a key at once. One that is revoked already keeps its time of revocation, and one that leaked has leaked.
 * @param leaked true if somebody else has it
 * @throws {Refusal} `key_missing`
 */
export async function revokeKey(db: Database, by: ChangedBy, keyId: string, leaked = false): Promise<ApiKey> {
  return await transaction(db, async (tx) => {
    const before = await lockKey(tx, keyId);
    const revokedAt = before.revokedAt ?? (await clock(tx));
    const revoked = await updateKey(tx, keyId, { revokedAt, leaked: leaked || before.leaked });
    await recordAudit(tx, by, stateChange('keys.revoke', before, revoked));
    return revoked;
  });
}

/**
 * Makes a key valid again: clears its revocation and its expiry.
 * @param evenLeaked true to give back a key that was revoked because it leaked
 * @throws {Refusal} `key_missing`; `key_leaked` without `evenLeaked`
 */
export async function reactivateKey(
  db: Database,
  by: ChangedBy,
  keyId: string,
  evenLeaked = false,
): Promise<ApiKey> {
  return await transaction(db, async (tx) => {
    const before = await lockKey(tx, keyId);
    if (before.leaked && !evenLeaked) throw new Refusal('key_leaked');
    const active = await updateKey(tx, keyId, { revokedAt: null, expiresAt: null, leaked: false });
    await recordAudit(tx, by, stateChange('keys.reactivate', before, active));
    return active;
  });
}

/**
 * All keys of an organization, the newest first, without the keys themselves.
 * @throws {Refusal} `organization_missing`
 */
export async function listKeys(db: Database, organizationId: string): Promise<ApiKey[]> {
  await requireOrganization(db, organizationId);
  return await query(db, (tx) =>
    tx
      .select(API_KEY)
      .from(apiKeys)
      .where(eq(apiKeys.organizationId, organizationId))
      .orderBy(desc(apiKeys.createdAt), desc(apiKeys.id)),
  );
}

function newApiKey(isTest: boolean): string {
  const random = Array.from({ length: 30 }, () => ALPHABET.charAt(randomInt(ALPHABET.length))).join('');
  const checked = `${isTest ? 'npe_test_' : 'npe_'}${random}`;
  return checked + checkCharacters(checked);
}

/** 62^6 > 2^32, so that 6 characters hold every CRC32. */
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

async function insertKey(tx: Transaction, organizationId: string, name: string): Promise<IssuedKey> {
  const isTest = isSandbox(organizationId);
  const apiKey = newApiKey(isTest);
  const [inserted] = await tx
    .insert(apiKeys)
    .values({ id: newId('key'), organizationId, name, isTest, hint: apiKey.slice(-4), hash: hashOf(apiKey) })
    .returning(API_KEY);
  if (!inserted) throw new Error('no row');
  return { ...inserted, apiKey };
}

/** Two changes of one key go one after the other; authentication and submits are not held up. */
async function lockKey(tx: Transaction, keyId: string): Promise<ApiKey> {
  const [found] = await tx.select(API_KEY).from(apiKeys).where(eq(apiKeys.id, keyId)).for('no key update');
  if (!found) throw new Refusal('key_missing');
  return found;
}

async function updateKey(
  tx: Transaction,
  keyId: string,
  values: Partial<typeof apiKeys.$inferInsert>,
): Promise<ApiKey> {
  const [updated] = await tx.update(apiKeys).set(values).where(eq(apiKeys.id, keyId)).returning(API_KEY);
  if (!updated) throw new Refusal('key_missing');
  return updated;
}

function stateChange(action: 'keys.revoke' | 'keys.reactivate', before: ApiKey, after: ApiKey) {
  const leaked = before.leaked || after.leaked;
  const details = { hint: after.hint, from: before.state, to: after.state, leaked };
  return { action, organizationId: after.organizationId, subject: after.id, details };
}
