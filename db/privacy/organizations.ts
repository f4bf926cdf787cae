import { and, asc, eq, gt, inArray, sql } from 'drizzle-orm';
import { withSandbox } from '../accounts/closing.ts';
import { lockOrganization } from '../accounts/organizations.ts';
import { requireRightKey } from '../accounts/secret-keys.ts';
import { newWebhookSecret } from '../accounts/webhook-secrets.ts';
import {
  type Database,
  only,
  query,
  run,
  snapshot,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import {
  apiKeys,
  batches,
  idempotencyKeys,
  organizations,
  uploads,
  webhookHosts,
} from '../schema.ts';

// Erases organizations. Names, keys, secrets, URLs, custom_data, uploads, Idempotency-Keys, and the
// addresses in results go. The ledger, NPIs, and statuses stay, because invoices are based on them.
// Addresses in the directory belong to no organization, so they stay too.

/** The number of batches that one transaction erases. A batch has up to 60 requests. */
const PAGE = 100;
const ERASED_NAME = 'erased';

type Erasing = Readonly<
  Record<'keys' | 'emails' | 'webhookUrls' | 'customData' | 'uploads', number>
>;

/** Counts what the erasure of an organization would remove. */
export async function countErasing(db: Database, organizationId: string) {
  const theirs = sql.param(await withSandbox(db, organizationId));
  const counts = await snapshot(
    db,
    (tx) => run<Erasing>(tx)`
    select (select count(*)::int from api_keys
             where organization_id = any(${theirs})) as keys,
           (select count(email)::int from requests
             where organization_id = any(${theirs})) as emails,
           count(webhook_url)::int as "webhookUrls",
           count(custom_data)::int as "customData",
           (select count(*)::int from uploads
             where organization_id = any(${theirs})) as uploads
      from batches
     where organization_id = any(${theirs})`,
  );
  return only(counts);
}

/**
 * Erases a closed organization and its sandbox. The first transaction records the erasure, so it is
 * in the register even if the process dies. Batches follow in small transactions. Safe to repeat
 * after an interruption.
 * @param name the name of the organization, as a confirmation
 * @throws {Refusal} `organization_missing`, `organization_open`, `name_differs`; {SecretKeyMissing}
 */
export async function eraseOrganization(
  db: Database,
  by: ChangedBy,
  organizationId: string,
  name: string,
): Promise<void> {
  const ids = await withSandbox(db, organizationId);
  await transaction(db, async (tx) => {
    const before = await lockOrganization(tx, organizationId);
    const isOpen = and(
      inArray(batches.organizationId, ids),
      eq(batches.status, 'in-progress'),
    );
    if (!before.closedAt || (await tx.$count(batches, isOpen)) > 0) {
      throw new Refusal('organization_open');
    }
    // An interrupted erasure has already replaced the name.
    if (before.erasedAt === null && before.name !== name) {
      throw new Refusal('name_differs');
    }
    await requireRightKey(tx, db.secretKeys);
    for (const id of ids) await eraseAccount(tx, db, id);
    await recordAudit(tx, by, {
      action: 'org.erase',
      organizationId,
      subject: organizationId,
      details: {},
    });
  });
  for (const id of ids) {
    let after: string | undefined = '';
    while (after !== undefined) after = await erasePage(db, id, after);
  }
}

async function eraseAccount(
  tx: Transaction,
  db: Database,
  organizationId: string,
): Promise<void> {
  await tx
    .update(organizations)
    .set({
      name: ERASED_NAME,
      webhookSecret: newWebhookSecret(db, organizationId),
      previousWebhookSecret: null,
      previousWebhookSecretExpiresAt: null,
      erasedAt: sql`coalesce(erased_at, clock_timestamp())`,
    })
    .where(eq(organizations.id, organizationId));
  // The rows stay, because batches name the key that submitted them. The new hash is that of the
  // key's id, which no API key has.
  await tx
    .update(apiKeys)
    .set({
      name: ERASED_NAME,
      hint: '',
      hash: sql`sha256(convert_to(id, 'UTF8'))`,
    })
    .where(eq(apiKeys.organizationId, organizationId));
  // Customers choose the texts of their Idempotency-Keys.
  await tx
    .delete(idempotencyKeys)
    .where(eq(idempotencyKeys.organizationId, organizationId));
  await tx.delete(webhookHosts).where(eq(webhookHosts.organizationId, organizationId));
  await run(tx)`
    delete from upload_parts
     where upload_id in (select id from uploads where organization_id = ${organizationId})`;
  await tx.delete(uploads).where(eq(uploads.organizationId, organizationId));
}

/**
 * Erases the next batches of an organization, with their requests and the receivers' responses.
 * @param after the last batch of the previous page, or an empty text
 * @returns the last batch of this page, or undefined after the last page
 */
async function erasePage(
  db: Database,
  organizationId: string,
  after: string,
): Promise<string | undefined> {
  const page = await query(db, (tx) =>
    tx
      .select({ id: batches.id })
      .from(batches)
      .where(and(eq(batches.organizationId, organizationId), gt(batches.id, after)))
      .orderBy(asc(batches.id))
      .limit(PAGE),
  );
  const ids = page.map(({ id }) => id);
  if (ids.length > 0) {
    await transaction(db, (tx) => eraseBatches(tx, ids));
  }
  return ids.at(-1);
}

/** Locks requests before batches, as a settlement does. */
async function eraseBatches(tx: Transaction, batchIds: readonly string[]): Promise<void> {
  const ids = sql.param(batchIds);
  await run(tx)`
    update requests
       set email = null, email_type = null, email_last_validated_at = null,
           erased_at = clock_timestamp()
     where batch_id = any(${ids}) and email is not null`;
  await run(tx)`
    update batches
       set webhook_url = null, custom_data = null,
           updated_at = later(updated_at, clock_timestamp())
     where id = any(${ids}) and num_nonnulls(webhook_url, custom_data) > 0`;
  await run(tx)`
    update webhook_attempts
       set response_excerpt = null
     where response_excerpt is not null
       and delivery_id in (select id from webhook_deliveries where batch_id = any(${ids}))`;
}
