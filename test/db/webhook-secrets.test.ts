import test from 'ava';
import { sql } from 'drizzle-orm';
import { rotateWebhookSecret, showWebhookSecret } from '../../db/accounts/webhook-secrets.ts';
import { freshDatabase } from '../support/database.ts';
import { operatorOn, WHY } from '../support/operator.ts';
import { openOrganization } from '../support/organization.ts';

// The rotation of webhook secrets (DECISIONS.md, Webhooks, signing).

const BY = { actor: 'test', reason: 'test' };
const HOUR = 3_600_000;

const { db, url } = freshDatabase(test);

const newOrganization = async () => (await openOrganization(db, 0)).organizationId;

test('a second rotation within 24 h is refused, says until when, and changes nothing', async (t) => {
  const { operator, json } = operatorOn(url);
  const id = await newOrganization();
  const first = await json<{ previous_secret_valid_until: string }>('webhook-secret', 'rotate', id, ...WHY);
  const refused = await operator('webhook-secret', 'rotate', id, ...WHY);
  t.is(refused.code, 1);
  t.true(refused.stderr.includes(first.previous_secret_valid_until), refused.stderr);
  t.true(refused.stderr.includes('--force'), refused.stderr);
  t.false(refused.stderr.includes('whsec_'));
  t.deepEqual(await json('webhook-secret', 'show', id, ...WHY), first);
  t.is((await records(id)).length, 1);
});

test('--force rotates all the same: the secret before the present one ends at once', async (t) => {
  const { json } = operatorOn(url);
  const id = await newOrganization();
  const secret = async () => (await showWebhookSecret(db, id)).webhookSecret;
  const first = await secret();
  await rotateWebhookSecret(db, BY, id);
  const second = await secret();
  await json('webhook-secret', 'rotate', id, '--force', ...WHY);
  t.deepEqual(await signingSecrets(id), [await secret(), second]);
  t.false((await signingSecrets(id)).includes(first));
  t.deepEqual(
    (await records(id)).map(({ forced }) => forced),
    [false, true],
  );
});

test('once the 24 h are over a rotation needs no force', async (t) => {
  const id = await newOrganization();
  const { previousSecretValidUntil } = await rotateWebhookSecret(db, BY, id);
  const left = (previousSecretValidUntil?.getTime() ?? 0) - Date.now();
  t.true(left > 23.9 * HOUR && left < 24.1 * HOUR, `${left} ms`);
  await db.drizzle.execute(
    sql`update organizations set previous_webhook_secret_expires_at = clock_timestamp() where id = ${id}`,
  );
  await t.notThrowsAsync(rotateWebhookSecret(db, BY, id));
});

test('one of many rotations at once is made', async (t) => {
  const id = await newOrganization();
  const before = (await showWebhookSecret(db, id)).webhookSecret;
  const outcomes = await Promise.allSettled(Array.from({ length: 8 }, () => rotateWebhookSecret(db, BY, id)));
  const refused = outcomes.filter(
    (outcome) => outcome.status === 'rejected' && outcome.reason.code === 'rotation_too_soon',
  );
  t.is(refused.length, 7);
  t.is((await signingSecrets(id))[1], before);
});

test('an unknown organization is told from a rotation that comes too soon', async (t) => {
  const unknown = 'org_01h2xcejqtf2nbrexx3vqjhp41';
  await t.throwsAsync(rotateWebhookSecret(db, BY, unknown), { code: 'organization_missing' });
});

/** The secrets that deliveries are signed with, the current one first. */
async function signingSecrets(organizationId: string): Promise<unknown[]> {
  const [row] = await db.drizzle.execute<{ current: string; previous: string }>(
    sql`select webhook_secret as current, previous_webhook_secret as previous
      from organizations where id = ${organizationId}`,
  );
  return [row?.current, row?.previous];
}

/** What the audit log has of an organization's rotations, oldest first. */
async function records(organizationId: string): Promise<{ forced: boolean }[]> {
  const rows = await db.drizzle.execute<{ details: { forced: boolean } }>(
    sql`select details from audit_log
      where organization_id = ${organizationId} and action = 'webhook-secret.rotate' order by id`,
  );
  return rows.map(({ details }) => details);
}
