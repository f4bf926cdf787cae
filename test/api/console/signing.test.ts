import { randomUUID } from 'node:crypto';
import test from 'ava';
import { Webhook } from 'standardwebhooks';
import { createTestEventActivities } from '../../../activities/test-event.ts';
import { issueKey } from '../../../db/accounts/keys.ts';
import { suspendWebhooks } from '../../../db/accounts/organizations.ts';
import { encryptSecret } from '../../../db/accounts/secrets.ts';
import { showWebhookSecret } from '../../../db/accounts/webhook-secrets.ts';
import { inventedId } from '../../../db/connection/ids.ts';
import { listAudit } from '../../../db/operations/audit.ts';
import { setBlock } from '../../../db/webhooks/blocks.ts';
import { silence } from '../../support/behaviors.ts';
import { fresh, SECRET_KEYS } from '../../support/database.ts';
import { responded, WEBHOOK_RULES } from '../../support/deliveries.ts';
import { readableText } from '../../support/histories.ts';
import { WORKER_RULES } from '../../support/organization.ts';
import { type Behavior, status } from '../../support/receiver.ts';
import { quiet } from '../../support/runtime.ts';
import { type ApiClient, startApi, startStack } from '../../support/stack.ts';
import { type Seen, Visitor } from '../../support/visitor.ts';

// Tests the console's forms about the signing secret, and its test events.

const stack = fresh(test, () =>
  startStack({
    webhookScheduleMs: [0],
    attemptLimits: { connectMs: 10_000, totalMs: 10_000 },
  }),
);
const PAGE = '/console/deliveries';
const SHOW = '/console/webhooks/secret';
const ROTATE = '/console/webhooks/rotate';
const TEST = '/console/webhooks/test';
const BY = { actor: 'test', reason: 'test' };

async function signedIn(
  client: Pick<ApiClient, 'apiKey'>,
  baseUrl = stack.baseUrl,
): Promise<Visitor> {
  const visitor = new Visitor(baseUrl);
  await visitor.signIn(client.apiKey);
  return visitor;
}

/** Sends one of the forms that the page of webhooks has. */
async function send(
  visitor: Visitor,
  path: string,
  fields: Record<string, string> = {},
): Promise<Seen> {
  const { token } = await visitor.get(PAGE);
  return await visitor.post(path, { form_token: token, ...fields });
}

async function sendTest(visitor: Visitor, url: string, form: string = randomUUID()) {
  return await send(visitor, TEST, { url, test_form: form });
}

/** Returns the secret that a page shows. */
function secretIn({ text }: Seen): string {
  const [, shown = ''] = /<code>(whsec_[^<]+)<\/code>/.exec(text) ?? [];
  return shown.replaceAll('&#x3D;', '=');
}

function arrived(path: string) {
  return stack.receiver.deliveries().filter((one) => one.path === path);
}

async function auditOf({ organizationId }: { readonly organizationId: string }) {
  const entries = await listAudit(stack.db, organizationId, 10);
  return entries
    .filter(({ action }) => action.startsWith('webhook-secret.'))
    .map(({ action, actor, reason }) => ({ action, actor, reason }));
}

test('the secret is hidden until it is asked for, and the audit log names the key', async (t) => {
  const client = await stack.organization();
  const { webhookSecret } = await showWebhookSecret(stack.db, client.organizationId);
  const visitor = await signedIn(client);
  const before = await visitor.get(PAGE);
  t.false(before.text.includes('whsec_'));
  t.deepEqual(await auditOf(client), []);
  const shown = await send(visitor, SHOW);
  t.is(shown.status, 200);
  t.is(secretIn(shown), webhookSecret);
  t.is(shown.headers.get('cache-control'), 'no-store');
  t.regex(shown.text, /data-copy hidden>Copy</);
  const [entry] = await auditOf(client);
  t.like(entry, { action: 'webhook-secret.show', reason: 'console' });
  t.is(entry?.actor, client.keyId);
  t.false((await visitor.get(PAGE)).text.includes('whsec_'));
});

test('a rotation says until when the old secret signs, and refuses a second one', async (t) => {
  const client = await stack.organization();
  const visitor = await signedIn(client);
  const old = secretIn(await send(visitor, SHOW));
  const rotated = await send(visitor, ROTATE);
  t.is(rotated.status, 200);
  const next = secretIn(rotated);
  t.not(next, old);
  const { previousSecretValidUntil: until } = await showWebhookSecret(
    stack.db,
    client.organizationId,
  );
  const shownUntil = until?.toISOString().slice(0, 16).replace('T', ' ');
  t.true(rotated.text.includes(`${shownUntil} UTC</time>, deliveries are also signed`));

  const again = await send(visitor, ROTATE);
  t.is(again.status, 409);
  t.true(again.text.includes('rotated less than 24 hours ago.'));
  t.true(
    again.text.includes(`${shownUntil} UTC</time>. If the newest secret has leaked`),
  );
  t.is(secretIn(again), '');
  t.is(secretIn(await send(visitor, SHOW)), next);

  const [, ends = ''] = /name="ends" value="(\d+)"/.exec(again.text) ?? [];
  const twice = [send(visitor, ROTATE, { ends }), send(visitor, ROTATE, { ends })];
  const [forced, refused] = (await Promise.all(twice)).sort(
    (a, b) => a.status - b.status,
  );
  t.deepEqual(
    [forced?.status, refused?.status],
    [200, 409],
    'a double click rotates once',
  );
  t.false([old, next, ''].includes(secretIn(forced as Seen)));
  const actions = (await auditOf(client)).map(({ action }) => action);
  const [show, rotate] = ['webhook-secret.show', 'webhook-secret.rotate'];
  t.deepEqual(actions, [rotate, show, rotate, show]);
});

test('of two rotations at once, one wins', async (t) => {
  const client = await stack.organization();
  const visitors = [await signedIn(client), await signedIn(client)];
  const both = await Promise.all(visitors.map((one) => send(one, ROTATE)));
  t.deepEqual(both.map((one) => one.status).sort(), [200, 409]);
  const winner = both.find((one) => one.status === 200);
  const { webhookSecret } = await showWebhookSecret(stack.db, client.organizationId);
  t.is(winner && secretIn(winner), webhookSecret);
});

test('a test event is signed with the shown secret, and after a rotation with both', async (t) => {
  const client = await stack.organization();
  const visitor = await signedIn(client);
  const old = secretIn(await send(visitor, SHOW));
  const next = secretIn(await send(visitor, ROTATE));
  const path = `/test-${client.organizationId}`;
  const url = `${stack.receiver.url}${path}?token=canary-in-url`;
  const seen = await sendTest(visitor, url);
  t.regex(seen.text, /Your receiver accepted it\./);
  t.regex(seen.text, /Status 200\. It took [\d,]+ ms\./);
  const [delivery, ...more] = arrived(`${path}?token=canary-in-url`);
  t.is(more.length, 0);
  if (!delivery) return t.fail('nothing arrived');
  t.true(seen.text.includes(`<code>${delivery.id}</code>`));
  for (const secret of [old, next]) {
    const headers = delivery.headers as Record<string, string>;
    const body = new Webhook(secret).verify(delivery.body, headers);
    t.like(body, {
      batch: { status: 'completed', total: 1 },
      webhook: { url, mode: 'batch', status: 'pending' },
      custom_data: { test_event: true },
      usage: { credits_used: 0 },
    });
  }
  t.regex(delivery.body, /"id":"bat_0{10}[0-9a-z]{16}"/);
  t.regex(delivery.body, /"request_id":"req_0{10}[0-9a-z]{16}"/);

  const history = await stack.client.workflow.getHandle(delivery.id).fetchHistory();
  const told = readableText(history);
  for (const hidden of ['canary-in-url', stack.receiver.url, 'whsec_', old, next])
    t.false(told.includes(hidden), hidden);
});

test('the same form sends one test event, even if it is sent twice', async (t) => {
  const client = await stack.organization();
  const visitor = await signedIn(client);
  const path = `/once-${client.organizationId}`;
  const url = `${stack.receiver.url}${path}`;
  const form = randomUUID();
  const both = await Promise.all([
    sendTest(visitor, url, form),
    sendTest(visitor, url, form),
  ]);
  const later = await sendTest(visitor, url, form);
  for (const { text } of [...both, later]) t.regex(text, /Your receiver accepted it\./);
  t.is(arrived(path).length, 1);
});

const RESULTS: readonly (readonly [string, Behavior, RegExp])[] = [
  [
    'redirect',
    status(302, { location: 'https://receiver.example/' }),
    /redirected to another address.* Status 302\./,
  ],
  ['500', status(500), /a status that is not 2xx\. Status 500\./],
  ['time-out', silence, /Your receiver did not respond within 15 seconds/],
];

for (const [what, behavior, words] of RESULTS) {
  test(`a test event that gets a ${what} says so, and is not repeated`, async (t) => {
    const client = await stack.organization();
    const path = `/${what}-${client.organizationId}`;
    stack.receiver.setBehavior(path, behavior);
    const visitor = await signedIn(client);
    const seen = await sendTest(visitor, `${stack.receiver.url}${path}`);
    t.regex(seen.text, words);
    t.is(arrived(path).length, 1);
  });
}

test('a test event reaches no private address and no blocked receiver', async (t) => {
  const client = await stack.organization();
  const visitor = await signedIn(client);
  const inside = await sendTest(visitor, 'https://10.1.2.3/hook');
  t.is(inside.status, 422, 'refused as at a submit, before a worker connects');
  t.regex(inside.text, /This address is not public/);
  const host = 'test-events.blocked.example';
  await setBlock(stack.db, BY, host, true);
  const blocked = await sendTest(visitor, `https://${host}/hook`);
  t.regex(blocked.text, /We block this receiver/);
  await suspendWebhooks(stack.db, BY, client.organizationId, true);
  const path = `/suspended-${client.organizationId}`;
  const suspended = await sendTest(visitor, `${stack.receiver.url}${path}`);
  t.regex(suspended.text, /we have suspended your deliveries/);
  t.is(arrived(path).length, 0);
});

test('a test event needs a complete https address', async (t) => {
  const visitor = await signedIn(await stack.organization());
  for (const url of [
    '',
    'http://receiver.example',
    'https://a:b@receiver.example',
    'x',
  ]) {
    const seen = await sendTest(visitor, url);
    t.is(seen.status, 422, url);
    t.regex(seen.text, /id="url-problem"/, url);
  }
});

test('another organization has its own secret, and its own test event of a form', async (t) => {
  const one = await stack.organization();
  const sandbox = await stack.sandboxOf(one);
  const clients = [one, sandbox, await stack.organization()];
  const form = randomUUID();
  const path = `/shared-${one.organizationId}`;
  const secrets: string[] = [];
  for (const client of clients) {
    const visitor = await signedIn(client);
    secrets.push(secretIn(await send(visitor, SHOW)));
    await sendTest(visitor, `${stack.receiver.url}${path}`, form);
  }
  t.is(new Set(secrets).size, 3);
  const deliveries = arrived(path);
  t.is(new Set(deliveries.map(({ id }) => id)).size, 3);
  for (const [index, { body, headers }] of deliveries.entries()) {
    const own = new Webhook(secrets[index] ?? '');
    t.notThrows(() => own.verify(body, headers as Record<string, string>));
  }
});

test('a key with a lower role sees no form, and who can help', async (t) => {
  const { organizationId } = await stack.organization();
  for (const role of ['member', 'read'] as const) {
    const { apiKey } = await issueKey(stack.db, BY, organizationId, role, { role });
    const { text } = await (await signedIn({ apiKey })).get(PAGE);
    t.regex(text, /A colleague with a <code>full<\/code> key can see and rotate/);
    t.notRegex(text, /console\/webhooks\//);
  }
});

test('test events have a limit for each address, even of a proven receiver', async (t) => {
  const { organizationId } = await stack.organization();
  const { postTestEvent } = createTestEventActivities({
    db: stack.workerDb,
    log: quiet,
    rules: { ...WORKER_RULES, ...WEBHOOK_RULES },
    post: async ({ admit }) => {
      const [address] = (await admit?.(['192.0.2.77'])) ?? [];
      if (address === undefined) return { kind: 'failed', reason: 'unproven_host' };
      return { ...responded(200), address };
    },
  });
  const next = () => {
    const testId = inventedId('msg', randomUUID());
    const url = 'https://limited.example/hook';
    const target = encryptSecret(SECRET_KEYS, testId, url);
    return postTestEvent({ testId, organizationId, target });
  };
  for (let n = 0; n < 20; n += 1) t.like(await next(), { statusCode: 200 });
  t.like(await next(), { statusCode: null, reason: 'unproven_host' });
});

test('without a session or a form token, nothing is shown, changed, or sent', async (t) => {
  const client = await stack.organization();
  const visitor = await signedIn(client);
  const { webhookSecret } = await showWebhookSecret(stack.db, client.organizationId);
  const path = `/forged-${client.organizationId}`;
  const fields = { url: `${stack.receiver.url}${path}`, test_form: 'x' };
  for (const form of [SHOW, ROTATE, TEST]) {
    t.is((await visitor.post(form, fields)).status, 403, form);
    const stranger = new Visitor(stack.baseUrl);
    t.false((await stranger.post(form, fields)).text.includes('whsec_'), form);
  }
  t.is(arrived(path).length, 0);
  t.deepEqual(await auditOf(client), []);
  const after = await showWebhookSecret(stack.db, client.organizationId);
  t.is(after.webhookSecret, webhookSecret);
});

test('with a wrong SECRETS_KEY the pages say so, and submits and polls go on', async (t) => {
  const secretKeys = [{ version: 'v1', key: Buffer.alloc(32, 8) }];
  const lines: string[] = [];
  const { databaseUrl, taskQueue } = stack;
  const api = await startApi({
    databaseUrl,
    taskQueue,
    secretKeys,
    onLog: (line) => void lines.push(line),
  });
  t.teardown(() => api.stop());
  const client = await api.organization();
  const visitor = await signedIn(client, api.baseUrl);
  for (const form of [SHOW, ROTATE, TEST]) {
    const url = 'https://receiver.example/hook';
    const seen = await send(visitor, form, { url, test_form: form });
    t.regex(seen.text, /We can&#x27;t read your secret|We can't read your secret/, form);
    t.is(secretIn(seen), '');
  }
  t.deepEqual(await auditOf(client), []);
  t.regex(lines.join(''), /the console cannot use webhook secrets: the key v1/);
  const { status: code, json } = await client.single({ npi: '2000000010' });
  t.is(code, 202);
  t.is((await client.get(`/api/v1/batch/${json.batch_id}`)).status, 200);
});

test('without a worker or Temporal, the page of a test event says so', async (t) => {
  const { databaseUrl } = stack;
  const idle = await startApi({ databaseUrl, testEventMs: 2000 });
  t.teardown(() => idle.stop());
  const away = await startApi({ databaseUrl, temporalAddress: '127.0.0.1:1' });
  t.teardown(() => away.stop());
  const client = await stack.organization();
  const url = 'https://receiver.example/hook';
  const inside = 'https://db.ns.svc.cluster.local/hook';
  const visitor = await signedIn(client, away.baseUrl);
  t.is((await sendTest(visitor, inside)).status, 422, 'no worker resolves the name');
  const without = await sendTest(visitor, url);
  t.regex(without.text, /the part of our service that starts webhooks is down/);
  const late = await sendTest(await signedIn(client, idle.baseUrl), url);
  t.regex(late.text, /We have no result after 20 seconds/);
});
