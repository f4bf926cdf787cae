import { sql } from 'drizzle-orm';
import { type Database, run, type Transaction } from '../connection/client.ts';
import type { organizations, secretKeys as storedKeys } from '../schema.ts';
import {
  canDecrypt,
  encryptSecret,
  type SecretKey,
  SecretKeyMissing,
  SecretUnreadable,
} from './secrets.ts';

// If SECRETS_KEY contains a wrong key under a correct version, encryption works, and the error
// appears only when a delivery is signed. To notice a wrong key earlier, the database stores a
// check value per version, which was encrypted with the right key.

/**
 * The owner that `encryptSecret` gets for check values, because a check value belongs to no
 * organization.
 */
const OWNER = 'secret_keys';

/**
 * Checks each key against the check value of its version. If a version has no check value, stores
 * one, unless the key cannot decrypt existing secrets of its version.
 * @returns the versions with a wrong key
 */
async function wrongVersions(
  db: Database | Transaction,
  keys: readonly SecretKey[],
): Promise<string[]> {
  const wrong: string[] = [];
  for (const key of keys) {
    if (!(await isRightKey(db, key))) wrong.push(key.version);
  }
  return wrong;
}

type Organization = typeof organizations.$inferSelect;

async function isRightKey(db: Database | Transaction, key: SecretKey): Promise<boolean> {
  const { version } = key;
  const prefix = `${version}.`;
  const known = await findCheckValue(db, version);
  if (known !== null) return canDecrypt([key], OWNER, known);
  const [sample] = await run<Pick<Organization, 'id' | 'webhookSecret'>>(db)`
    select id, webhook_secret as "webhookSecret"
      from organizations
     where starts_with(webhook_secret, ${prefix})
     limit 1`;
  if (sample && !canDecrypt([key], sample.id, sample.webhookSecret)) {
    return false;
  }
  const checkValue = encryptSecret([key], OWNER, version);
  await run(db)`
    insert into secret_keys (version, check_value) values (${version}, ${checkValue})
        on conflict do nothing`;
  // Another process may have stored its check value first, encrypted with a different key.
  const stored = await findCheckValue(db, version);
  return stored !== null && canDecrypt([key], OWNER, stored);
}

async function findCheckValue(
  db: Database | Transaction,
  version: string,
): Promise<string | null> {
  const [found] = await run<Pick<typeof storedKeys.$inferSelect, 'checkValue'>>(db)`
    select check_value as "checkValue" from secret_keys where version = ${version}`;
  return found?.checkValue ?? null;
}

/**
 * Returns the version of a key that a webhook secret in use was encrypted with and that SECRETS_KEY
 * lacks. Undefined if SECRETS_KEY lacks no key.
 */
async function missingVersion(db: Database): Promise<string | undefined> {
  const versions = db.secretKeys.map(({ version }) => version);
  const [missing] = await run<Pick<typeof storedKeys.$inferSelect, 'version'>>(db)`
    select split_part(secret, '.', 1) as version
      from (
        select webhook_secret as secret from organizations
        union all
        select previous_webhook_secret from organizations
         where previous_webhook_secret_expires_at > clock_timestamp()) secrets
     where split_part(secret, '.', 1) <> all (${sql.param(versions)}::text[])
     limit 1`;
  return missing?.version;
}

/**
 * Returns one sentence that says why SECRETS_KEY cannot decrypt the webhook secrets of this
 * database, or null if it can. While a key is missing, no check value is stored, because the other
 * keys may be wrong too.
 * @throws {DatabaseError} if PostgreSQL is unavailable
 */
export async function secretKeysTrouble(db: Database): Promise<string | null> {
  const missing = await missingVersion(db);
  if (missing !== undefined) {
    return new SecretKeyMissing(missing).message;
  }
  const [wrong] = await wrongVersions(db, db.secretKeys);
  if (wrong !== undefined) return new SecretUnreadable(wrong).message;
  return null;
}

/**
 * Checks that the first key, which encrypts new secrets, is the key that encrypted this database's
 * check value of its version.
 * @throws {SecretUnreadable} if it is a different key
 */
export async function requireRightKey(
  db: Database | Transaction,
  secretKeys: readonly SecretKey[],
): Promise<void> {
  const [wrong] = await wrongVersions(db, secretKeys.slice(0, 1));
  if (wrong !== undefined) throw new SecretUnreadable(wrong);
}
