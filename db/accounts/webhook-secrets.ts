import { randomBytes } from 'node:crypto';
import { and, eq, isNull, lte, notLike, or, sql } from 'drizzle-orm';
import { type ChangedBy, recordAudit } from '../audit.ts';
import { clock, type Database, query, type Transaction, transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { organizations } from '../schema.ts';
import { decryptSecret, encryptSecret, firstVersion } from '../secrets.ts';

/** What an organization's deliveries are signed with (DECISIONS.md, Webhooks, signing). */
export interface WebhookSecret {
  readonly organizationId: string;
  readonly webhookSecret: string;
  /** Until when deliveries are signed with the secret before this one too; null if they are not. */
  readonly previousSecretValidUntil: Date | null;
}

/** How long receivers have to take over a rotated secret. */
const OVERLAP_MS = 24 * 3_600_000;

/**
 * `whsec_` + base64 of 32 random bytes: Standard Webhooks 1.0, "Signature scheme", asks for 24 to 64 bytes.
 * @returns as it is stored, encrypted
 * @throws {SecretKeyMissing}
 */
export function newWebhookSecret({ secretKeys }: Database, organizationId: string): string {
  return encryptSecret(secretKeys, organizationId, `whsec_${randomBytes(32).toString('base64')}`);
}

/** @throws {Refusal} `organization_missing`; {SecretKeyMissing} */
export async function showWebhookSecret(db: Database, organizationId: string): Promise<WebhookSecret> {
  return await query(db, (tx) => findSecret(tx, db, organizationId));
}

/**
 * Gives an organization a new webhook secret. Deliveries are signed with both for 24 h. One predecessor is kept: a
 * second rotation within that time would end the first secret before its time, and is refused unless it is forced.
 * @param force for a secret that leaked right after its rotation: receivers that still use the one before it fail
 * @throws {Refusal} `rotation_too_soon` within 24 h of the last rotation; `organization_missing`; {SecretKeyMissing}
 */
export async function rotateWebhookSecret(
  db: Database,
  by: ChangedBy,
  organizationId: string,
  force = false,
): Promise<WebhookSecret> {
  const stored = newWebhookSecret(db, organizationId);
  return await transaction(db, async (tx) => {
    const now = await clock(tx);
    const previousSecretValidUntil = new Date(now.getTime() + OVERLAP_MS);
    const overlapEnd = organizations.previousWebhookSecretExpiresAt;
    const [rotated] = await tx
      .update(organizations)
      .set({
        webhookSecret: stored,
        previousWebhookSecret: sql`${organizations.webhookSecret}`,
        previousWebhookSecretExpiresAt: previousSecretValidUntil,
      })
      .where(
        and(
          eq(organizations.id, organizationId),
          force ? undefined : or(isNull(overlapEnd), lte(overlapEnd, now)),
        ),
      )
      .returning({ id: organizations.id });
    if (!rotated) {
      const { previousSecretValidUntil } = await findSecret(tx, db, organizationId);
      // Null if the time has just passed.
      throw new Refusal('rotation_too_soon', previousSecretValidUntil ?? now);
    }
    await recordAudit(tx, by, {
      action: 'webhook-secret.rotate',
      organizationId,
      subject: organizationId,
      details: { previous_secret_valid_until: previousSecretValidUntil.toISOString(), forced: force },
    });
    const webhookSecret = decryptSecret(db.secretKeys, organizationId, stored);
    return { organizationId, webhookSecret, previousSecretValidUntil };
  });
}

/**
 * Encrypts with the first key what isn't yet: after that the other keys can be dropped. Safe to repeat.
 * @returns of how many organizations
 * @throws {SecretKeyMissing}
 */
export async function reencryptWebhookSecrets(db: Database, by: ChangedBy): Promise<number> {
  const { secretKeys } = db;
  const key = firstVersion(secretKeys);
  const { id, webhookSecret, previousWebhookSecret } = organizations;
  const stale = or(notLike(webhookSecret, `${key}.%`), notLike(previousWebhookSecret, `${key}.%`));
  return await transaction(db, async (tx) => {
    const rows = await tx
      .select({ id, webhookSecret, previousWebhookSecret })
      .from(organizations)
      .where(stale)
      .for('no key update');
    for (const row of rows) {
      const renewed = (stored: string) =>
        encryptSecret(secretKeys, row.id, decryptSecret(secretKeys, row.id, stored));
      const previous = row.previousWebhookSecret;
      await tx
        .update(organizations)
        .set({
          webhookSecret: renewed(row.webhookSecret),
          previousWebhookSecret: previous && renewed(previous),
        })
        .where(eq(id, row.id));
    }
    const details = { organizations: rows.length, key };
    await recordAudit(tx, by, {
      action: 'webhook-secret.reencrypt',
      organizationId: null,
      subject: 'all',
      details,
    });
    return rows.length;
  });
}

async function findSecret(
  tx: Pick<Transaction, 'select'>,
  { secretKeys }: Database,
  organizationId: string,
): Promise<WebhookSecret> {
  const expiresAt = organizations.previousWebhookSecretExpiresAt;
  const [found] = await tx
    .select({
      organizationId: organizations.id,
      webhookSecret: organizations.webhookSecret,
      previousSecretValidUntil:
        sql<Date | null>`case when ${expiresAt} > clock_timestamp() then ${expiresAt} end`.mapWith(expiresAt),
    })
    .from(organizations)
    .where(eq(organizations.id, organizationId));
  if (!found) throw new Refusal('organization_missing');
  return { ...found, webhookSecret: decryptSecret(secretKeys, organizationId, found.webhookSecret) };
}
