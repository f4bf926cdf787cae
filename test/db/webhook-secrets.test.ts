import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import test, { type ExecutionContext } from 'ava';
import { sql } from 'drizzle-orm';
import { createOrganization } from '../../db/accounts/organizations.ts';
import { secretKeysTrouble } from '../../db/accounts/secret-keys.ts';
import { decryptSecret, type SecretKey } from '../../db/accounts/secrets.ts';
import {
  countOldSecrets,
  reencryptWebhookSecrets,
  rotateWebhookSecret,
  showWebhookSecret,
} from '../../db/accounts/webhook-secrets.ts';
import { openDatabase } from '../../db/connection/client.ts';
import {
  asRole,
  freshDatabase,
  openTestDatabase,
  SECRET_KEYS,
} from '../support/database.ts';
import { operatorOn, WHY } from '../support/operator.ts';
import { BY, eventually, openOrganization } from '../support/organization.ts';
import { endWithThisProcess, programCommand } from '../support/programs.ts';
import { SITE_SETTINGS } from '../support/site.ts';

// Tests the rotation of webhook secrets (DECISIONS.md, Webhooks, signing).

const HOUR = 3_600_000;

const { db, url, sql: raw } = freshDatabase(test);

const newOrganization = async () => (await openOrganization(db, 0)).organizationId;

test('rotating a webhook secret again within 24 h is rejected with the time to retry', async (t) => {
  const { operator, json } = operatorOn(url);
  const id = await newOrganization();
  const first = await json<{ previous_secret_valid_until: string }>(
    'webhook-secret',
    'rotate',
    id,
    ...WHY,
  );
  const refused = await operator('webhook-secret', 'rotate', id, ...WHY);
  t.is(refused.code, 1);
  t.true(refused.stderr.includes(first.previous_secret_valid_until), refused.stderr);
  t.true(refused.stderr.includes('--force'), refused.stderr);
  t.false(refused.stderr.includes('whsec_'));
  t.deepEqual(await json('webhook-secret', 'show', id, ...WHY), first);
  t.is((await records(id)).length, 1);
});

test('--force rotates a secret again within 24 h and ends the oldest secret at once', async (t) => {
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

test('rotating a webhook secret again after 24 h needs no --force', async (t) => {
  const id = await newOrganization();
  const { previousSecretValidUntil } = await rotateWebhookSecret(db, BY, id);
  const left = (previousSecretValidUntil?.getTime() ?? 0) - Date.now();
  t.true(left > 23.9 * HOUR && left < 24.1 * HOUR, `${left} ms`);
  await db.drizzle.execute(
    sql`update organizations set previous_webhook_secret_expires_at = clock_timestamp() where id = ${id}`,
  );
  await t.notThrowsAsync(rotateWebhookSecret(db, BY, id));
});

test('only one of several concurrent rotations of a webhook secret succeeds', async (t) => {
  const id = await newOrganization();
  const before = (await showWebhookSecret(db, id)).webhookSecret;
  const outcomes = await Promise.allSettled(
    Array.from({ length: 8 }, () => rotateWebhookSecret(db, BY, id)),
  );
  const refused = outcomes.filter(
    (outcome) =>
      outcome.status === 'rejected' && outcome.reason.code === 'rotation_too_soon',
  );
  t.is(refused.length, 7);
  t.is((await signingSecrets(id))[1], before);
});

test("rotating an unknown organization's secret fails with organization_missing", async (t) => {
  const unknown = 'org_01h2xcejqtf2nbrexx3vqjhp41';
  await t.throwsAsync(rotateWebhookSecret(db, BY, unknown), {
    code: 'organization_missing',
  });
});

/** Returns the secrets that sign deliveries, the current one first. */
async function signingSecrets(organizationId: string): Promise<unknown[]> {
  const [row] = await db.drizzle.execute<{ current: string; previous: string }>(
    sql`select webhook_secret as current, previous_webhook_secret as previous
      from organizations where id = ${organizationId}`,
  );
  const stored = [row?.current, row?.previous].filter(
    (secret) => typeof secret === 'string',
  );
  return stored.map((secret) => decryptSecret(SECRET_KEYS, organizationId, secret));
}

/** Opens the same database with other keys. */
function withKeys(t: ExecutionContext, databaseUrl: string, ...secretKeys: SecretKey[]) {
  const opened = openDatabase({
    url: databaseUrl,
    poolSize: 1,
    applicationName: 'test',
    secretKeys,
  });
  t.teardown(() => opened.close());
  return opened;
}

const key = (version: string): SecretKey => ({ version, key: randomBytes(32) });

test('a webhook secret is stored encrypted, and decrypted only for its organization', async (t) => {
  const [id, other] = [await newOrganization(), await newOrganization()];
  const before = await showWebhookSecret(db, id);
  const after = await rotateWebhookSecret(db, BY, id);
  const [row] = await db.drizzle.execute(
    sql`select * from organizations where id = ${id}`,
  );
  for (const { webhookSecret } of [before, after]) {
    t.regex(webhookSecret, /^whsec_[A-Za-z0-9+/]{43}=$/);
    t.false(JSON.stringify(row).includes(webhookSecret.slice('whsec_'.length)));
  }
  await db.drizzle.execute(
    sql`update organizations set webhook_secret = (select webhook_secret from organizations where id = ${id})
         where id = ${other}`,
  );
  await t.throwsAsync(showWebhookSecret(db, other));
});

test('an encrypted webhook secret that was changed in the database is rejected', async (t) => {
  const id = await newOrganization();
  await db.drizzle.execute(
    sql`update organizations set webhook_secret = overlay(webhook_secret placing
          case when substr(webhook_secret, 60, 1) = 'A' then 'B' else 'A' end from 60) where id = ${id}`,
  );
  await t.throwsAsync(showWebhookSecret(db, id));
});

test('the database rejects a webhook secret that is not encrypted', async (t) => {
  const id = await newOrganization();
  const refused = { message: /"organizations_secrets_encrypted"/ };
  await t.throwsAsync(
    raw`update organizations set webhook_secret = 'whsec_cGxhaW4=' where id = ${id}`,
    refused,
  );
  await t.throwsAsync(
    raw`update organizations set previous_webhook_secret = 'whsec_cGxhaW4=',
          previous_webhook_secret_expires_at = now() where id = ${id}`,
    refused,
  );
});

test('without the encryption key, webhook secrets can be neither shown nor created', async (t) => {
  const id = await newOrganization();
  for (const [opened, message] of [
    [withKeys(t, url), /SECRETS_KEY is not set/],
    [withKeys(t, url, key('v9')), /lacks the key v1/],
  ] as const) {
    await t.throwsAsync(showWebhookSecret(opened, id), {
      name: 'SecretKeyMissing',
      message,
    });
  }
  await t.throwsAsync(createOrganization(withKeys(t, url), BY, 'Test'), {
    name: 'SecretKeyMissing',
  });
  await t.throwsAsync(rotateWebhookSecret(withKeys(t, url), BY, id), {
    name: 'SecretKeyMissing',
  });
});

test('after re-encryption the new key decrypts all current and previous secrets', async (t) => {
  await using database = await openTestDatabase();
  const [old, next] = [key('v1'), key('v2')];
  const before = withKeys(t, database.url, old);
  const ids: string[] = [];
  for (const name of ['One', 'Two', 'Three'])
    ids.push((await createOrganization(before, BY, name)).id);
  const [rotated = ''] = ids;
  await rotateWebhookSecret(before, BY, rotated);
  const secrets = async (opened: typeof before) =>
    await Promise.all(
      ids.map(async (id) => (await showWebhookSecret(opened, id)).webhookSecret),
    );
  const known = await secrets(before);

  const both = withKeys(t, database.url, next, old);
  t.deepEqual(await secrets(both), known);
  t.is(await countOldSecrets(both), 3);
  t.is(await reencryptWebhookSecrets(both, BY), 3);
  t.is(await countOldSecrets(both), 0);
  t.is(await reencryptWebhookSecrets(both, BY), 0);
  const after = withKeys(t, database.url, next);
  t.deepEqual(await secrets(after), known);
  const [{ stored = '' } = {}] = await database.sql`
    select previous_webhook_secret as stored from organizations where id = ${rotated}`;
  t.regex(decryptSecret([next], rotated, stored), /^whsec_/);
  const audited = await database.sql`
    select details from audit_log where action = 'webhook-secret.reencrypt'`;
  t.deepEqual(
    audited.map(({ details }) => details),
    [
      { organizations: 3, key: 'v2' },
      { organizations: 0, key: 'v2' },
    ],
  );
});

test('with --dry-run, the re-encryption only counts the secrets with old keys', async (t) => {
  await using database = await openTestDatabase();
  const { json } = operatorOn(database.url);
  await createOrganization(withKeys(t, database.url, key('v0')), BY, 'Old');
  await createOrganization(withKeys(t, database.url, ...SECRET_KEYS), BY, 'New');
  const secrets = () => database.sql`
    select id, webhook_secret from organizations order by id`;
  const before = await secrets();
  const counted = { with_old_key: 1, reencrypted: 0 };
  const dryRun = ['webhook-secret', 'reencrypt', '--dry-run', ...WHY];
  t.deepEqual(await json(...dryRun), counted);
  t.deepEqual(await secrets(), before);
});

test('if the encryption key is lost, a forced rotation drops the unreadable secret', async (t) => {
  await using database = await openTestDatabase();
  const [old, next, third] = [key('v1'), key('v2'), key('v3')];
  const before = withKeys(t, database.url, old);
  const [one, two] = [
    await createOrganization(before, BY, 'One'),
    await createOrganization(before, BY, 'Two'),
  ];
  await rotateWebhookSecret(withKeys(t, database.url, next, old), BY, two.id);
  const lost = withKeys(t, database.url, next);
  await t.throwsAsync(rotateWebhookSecret(lost, BY, one.id), {
    name: 'SecretKeyMissing',
    message: /--force$/,
  });
  t.is(
    (await rotateWebhookSecret(lost, BY, one.id, true)).previousSecretValidUntil,
    null,
  );
  await database.sql`update organizations set previous_webhook_secret_expires_at = now() where id = ${two.id}`;
  t.is(await reencryptWebhookSecrets(withKeys(t, database.url, third, next), BY), 2);
  for (const { id } of [one, two])
    await t.notThrowsAsync(showWebhookSecret(withKeys(t, database.url, third), id));
});

/** Returns the audit entries of an organization's rotations, oldest first. */
async function records(organizationId: string): Promise<{ forced: boolean }[]> {
  const rows = await db.drizzle.execute<{ details: { forced: boolean } }>(
    sql`select details from audit_log
      where organization_id = ${organizationId} and action = 'webhook-secret.rotate' order by id`,
  );
  return rows.map(({ details }) => details);
}

test('secrets cannot be shown or created with a wrong key, and the error names the key', async (t) => {
  await using database = await openTestDatabase();
  const right = withKeys(t, database.url, key('v1'));
  const wrong = withKeys(t, database.url, key('v1'));
  const { id } = await createOrganization(right, BY, 'One');
  const refused = {
    name: 'SecretUnreadable',
    message: /^the key v1 of SECRETS_KEY cannot decrypt.*--force$/,
  };
  t.regex((await secretKeysTrouble(wrong)) ?? '', refused.message);
  t.is(await secretKeysTrouble(right), null);
  await t.throwsAsync(showWebhookSecret(wrong, id), refused);
  await t.throwsAsync(createOrganization(wrong, BY, 'Two'), refused);
  await t.throwsAsync(rotateWebhookSecret(wrong, BY, id, true), refused);
  await t.throwsAsync(reencryptWebhookSecrets(wrong, BY), refused);
  await t.notThrowsAsync(showWebhookSecret(right, id));
});

test('a process with a wrong encryption key does not record that key as the right one', async (t) => {
  await using database = await openTestDatabase();
  const right = withKeys(t, database.url, key('v1'));
  await createOrganization(right, BY, 'One');
  await database.sql`delete from secret_keys`;
  t.truthy(await secretKeysTrouble(withKeys(t, database.url, key('v1'))));
  t.deepEqual([...(await database.sql`select version from secret_keys`)], []);
  t.is(await secretKeysTrouble(right), null);
  t.deepEqual(
    [...(await database.sql`select version from secret_keys`)],
    [{ version: 'v1' }],
  );
});

test('a process that lacks the encryption key of a stored secret reports that', async (t) => {
  await using database = await openTestDatabase();
  const [old, next] = [key('v1'), key('v2')];
  const { id } = await createOrganization(withKeys(t, database.url, old), BY, 'One');
  const both = withKeys(t, database.url, next, old);
  const lacking = withKeys(t, database.url, next);
  const lacksOld = /^SECRETS_KEY lacks the key v1/;
  t.regex((await secretKeysTrouble(lacking)) ?? '', lacksOld);
  t.deepEqual(
    [...(await database.sql`select version from secret_keys where version = 'v2'`)],
    [],
  );
  await rotateWebhookSecret(both, BY, id);
  t.regex(
    (await secretKeysTrouble(lacking)) ?? '',
    lacksOld,
    'the previous secret still signs',
  );
  await database.sql`update organizations set previous_webhook_secret_expires_at = clock_timestamp()`;
  t.is(await secretKeysTrouble(lacking), null);
});

test('a forced rotation drops a secret that a wrong encryption key cannot decrypt', async (t) => {
  await using database = await openTestDatabase();
  const { id } = await createOrganization(
    withKeys(t, database.url, key('v1')),
    BY,
    'One',
  );
  const lost = withKeys(t, database.url, key('v2'), key('v1'));
  await t.throwsAsync(rotateWebhookSecret(lost, BY, id), { name: 'SecretUnreadable' });
  t.is((await rotateWebhookSecret(lost, BY, id, true)).previousSecretValidUntil, null);
  await t.notThrowsAsync(showWebhookSecret(lost, id));
});

test('showing a webhook secret with a wrong key prints one line without a stack trace', async (t) => {
  await using database = await openTestDatabase();
  const { id } = await createOrganization(
    withKeys(t, database.url, key('v1')),
    BY,
    'One',
  );
  const { operator } = operatorOn(database.url);
  const { code, stderr } = await operator('webhook-secret', 'show', id, ...WHY);
  t.is(code, 1);
  t.regex(stderr, /^operator: the key v1 of SECRETS_KEY cannot decrypt.*\n$/);
});

const WRONG_KEY = {
  api: /"level":"?(50|error)"?.*the console cannot use webhook secrets: the key v1 of/,
  worker:
    /"level":"?(50|error)"?.*not ready for deliveries, webhooks stay pending: the key v1 of/,
} as const;

for (const name of ['api', 'worker'] as const) {
  test(`the program ${name} logs that its encryption key is wrong`, async (t) => {
    await using database = await openTestDatabase();
    await createOrganization(withKeys(t, database.url, key('v1')), BY, 'One');
    const env = {
      ...SITE_SETTINGS,
      DATABASE_URL: asRole(database.url, name),
      TEMPORAL_ADDRESS: '127.0.0.1:1',
      API_HOST: '127.0.0.1',
      API_PORT: '0',
      API_DRAIN_DELAY: '0s',
    };
    const { command, args, ...options } = programCommand(name, [], { env });
    const program = spawn(command, args, options);
    endWithThisProcess(program);
    let told = '';
    program.stdout.on('data', (chunk: Buffer) => {
      told += chunk;
    });
    await eventually(async () => WRONG_KEY[name].test(told) || null);
    t.notRegex(told, /"stack"/);
    program.kill('SIGTERM');
    await once(program, 'exit');
  });
}
