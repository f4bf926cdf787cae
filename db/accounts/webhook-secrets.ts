import { randomBytes } from 'node:crypto';
import { eq, type SQL, sql } from 'drizzle-orm';
import {
  clock,
  type Database,
  lasts,
  query,
  run,
  span,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import { organizations } from '../schema.ts';
import { requireRightKey } from './secret-keys.ts';
import {
  canDecrypt,
  decryptSecret,
  encryptSecret,
  firstVersion,
  type SecretKey,
} from './secrets.ts';

/** The secret that signs an organization's deliveries (DECISIONS.md, Webhooks, signing). */
export interface WebhookSecret extends Readonly<Pick<Organization, 'webhookSecret'>> {
  readonly organizationId: Organization['id'];
  /**
   * Until this time, deliveries are also signed with the previous secret. Null if no previous
   * secret is valid.
   */
  readonly previousSecretValidUntil: Organization['previousWebhookSecretExpiresAt'];
}

type Organization = typeof organizations.$inferSelect;

/** The time that receivers have to switch to a new secret. */
const OVERLAP_MS = 24 * 3_600_000;

/**
 * Creates a webhook secret: `whsec_` and 32 random bytes in base64. Standard Webhooks 1.0,
 * "Signature scheme", requires 24 to 64 bytes.
 * @returns the encrypted secret, as it is stored
 * @throws {SecretKeyMissing} if SECRETS_KEY has no key
 */
export function newWebhookSecret(
  { secretKeys }: Database,
  organizationId: string,
): string {
  return encryptSecret(
    secretKeys,
    organizationId,
    `whsec_${randomBytes(32).toString('base64')}`,
  );
}

/**
 * Returns the decrypted webhook secret of an organization.
 * @throws {Refusal} `organization_missing`; {SecretKeyMissing}; {SecretUnreadable}
 */
export async function showWebhookSecret(
  db: Database,
  organizationId: string,
  by: Database | Transaction = db,
): Promise<WebhookSecret> {
  const [found] = await run<WebhookSecret>(by)`
    select id as "organizationId", webhook_secret as "webhookSecret",
           case when previous_webhook_secret_expires_at > clock_timestamp()
                then previous_webhook_secret_expires_at end as "previousSecretValidUntil"
      from organizations where id = ${organizationId}`;
  if (!found) throw new Refusal('organization_missing');
  return {
    ...found,
    webhookSecret: decryptSecret(db.secretKeys, organizationId, found.webhookSecret),
  };
}

/**
 * Replaces an organization's webhook secret. For 24 h, deliveries are signed with both the old and
 * the new one. Only one previous secret is kept. A second rotation within 24 h would end that
 * secret early. So the second rotation is rejected unless `force` is true.
 *
 * To rotate a secret that cannot be decrypted, `force` must be true too. Such a secret ends at
 * once, because it cannot sign deliveries.
 * @param force true if the new secret leaked right after a rotation, or if the secret cannot be
 * decrypted; receivers that still use the secret that ends early will reject deliveries. A time
 * forces it only while the previous secret ends at this time
 * @throws {Refusal} `rotation_too_soon` within 24 h of the last rotation; `organization_missing`;
 * {SecretKeyMissing}
 */
export async function rotateWebhookSecret(
  db: Database,
  by: ChangedBy,
  organizationId: string,
  force: boolean | Date = false,
): Promise<WebhookSecret> {
  const isForced =
    force instanceof Date
      ? sql`previous_webhook_secret_expires_at is not distinct from ${force}`
      : sql`${force}`;
  const stored = newWebhookSecret(db, organizationId);
  return await transaction(db, async (tx) => {
    await requireRightKey(tx, db.secretKeys);
    if (!force) await showWebhookSecret(db, organizationId, tx);
    const [before] = await tx
      .select({ secret: organizations.webhookSecret })
      .from(organizations)
      .where(eq(organizations.id, organizationId))
      .for('no key update');
    const isReadable =
      before !== undefined && canDecrypt(db.secretKeys, organizationId, before.secret);
    const [rotated] = await run<Pick<Organization, 'previousWebhookSecretExpiresAt'>>(tx)`
      update organizations
         set webhook_secret = ${stored},
             previous_webhook_secret = case when ${isReadable} then webhook_secret end,
             previous_webhook_secret_expires_at =
               case when ${isReadable} then clock_timestamp() + ${span(OVERLAP_MS)} end
       where id = ${organizationId}
         and (${isForced}
              or coalesce(not ${lasts(sql`previous_webhook_secret_expires_at`, OVERLAP_MS)}, true))
      returning previous_webhook_secret_expires_at as "previousWebhookSecretExpiresAt"`;
    if (!rotated) {
      const { previousSecretValidUntil } = await showWebhookSecret(
        db,
        organizationId,
        tx,
      );
      // `previousSecretValidUntil` is null if the overlap has just ended.
      throw new Refusal(
        'rotation_too_soon',
        previousSecretValidUntil ?? (await clock(tx)),
      );
    }
    const { previousWebhookSecretExpiresAt: validUntil } = rotated;
    await recordAudit(tx, by, {
      action: 'webhook-secret.rotate',
      organizationId,
      subject: organizationId,
      details: {
        previous_secret_valid_until: validUntil?.toISOString() ?? null,
        forced: force !== false,
      },
    });
    const webhookSecret = decryptSecret(db.secretKeys, organizationId, stored);
    return { organizationId, webhookSecret, previousSecretValidUntil: validUntil };
  });
}

/**
 * The number of organizations per transaction, small enough to finish long before the statement
 * timeout.
 */
const REENCRYPTED_PER_STEP = 1000;

/**
 * Counts the organizations whose secrets `reencryptWebhookSecrets` would encrypt again.
 * @throws {SecretKeyMissing} if SECRETS_KEY has no key
 */
export async function countOldSecrets(db: Database): Promise<number> {
  const isOld = hasOldKey(firstVersion(db.secretKeys));
  return await query(db, (tx) => tx.$count(organizations, isOld));
}

/** Matches organizations with a secret that another key than this one encrypted. */
function hasOldKey(key: string): SQL {
  const prefix = `${key}.`;
  return sql`(not starts_with(webhook_secret, ${prefix})
    or not starts_with(previous_webhook_secret, ${prefix}))`;
}

/**
 * Encrypts all secrets again with the first key. After that, the other keys can be removed from
 * SECRETS_KEY. Safe to repeat and to interrupt.
 * @returns the number of organizations whose secrets were encrypted again
 * @throws {SecretKeyMissing} if a secret's key is missing
 */
export async function reencryptWebhookSecrets(
  db: Database,
  by: ChangedBy,
): Promise<number> {
  const key = firstVersion(db.secretKeys);
  await requireRightKey(db, db.secretKeys);
  let total = 0;
  let done: number;
  do {
    done = await transaction(db, (tx) => reencryptSome(tx, db.secretKeys, by, key));
    total += done;
  } while (done === REENCRYPTED_PER_STEP);
  return total;
}

/**
 * Encrypts the secrets of up to `REENCRYPTED_PER_STEP` organizations with the first key.
 * @returns the number of organizations
 */
async function reencryptSome(
  tx: Transaction,
  secretKeys: readonly SecretKey[],
  by: ChangedBy,
  key: string,
): Promise<number> {
  type Stored = Pick<Organization, 'id' | 'webhookSecret' | 'previousWebhookSecret'>;
  const rows = await run<Stored>(tx)`
    select id, webhook_secret as "webhookSecret",
           case when previous_webhook_secret_expires_at > clock_timestamp()
                then previous_webhook_secret end as "previousWebhookSecret"
      from organizations
     where ${hasOldKey(key)}
     limit ${REENCRYPTED_PER_STEP}
       for no key update`;
  const renewed = rows.map(({ id, webhookSecret, previousWebhookSecret: previous }) => ({
    id,
    current: reencrypt(secretKeys, id, webhookSecret),
    previous: previous && reencrypt(secretKeys, id, previous),
  }));
  await run(tx)`
    update organizations o
       set webhook_secret = r.current,
           previous_webhook_secret = r.previous,
           previous_webhook_secret_expires_at =
             case when r.previous is not null then previous_webhook_secret_expires_at end
      from jsonb_to_recordset(${JSON.stringify(renewed)}::jsonb)
             r (id text, current text, previous text)
     where o.id = r.id`;
  await recordAudit(tx, by, {
    action: 'webhook-secret.reencrypt',
    organizationId: null,
    subject: 'all',
    details: { organizations: rows.length, key },
  });
  return rows.length;
}

function reencrypt(
  secretKeys: readonly SecretKey[],
  owner: string,
  stored: string,
): string {
  const secret = decryptSecret(secretKeys, owner, stored);
  return encryptSecret(secretKeys, owner, secret);
}
