import { createPublicKey, verify } from 'node:crypto';
import test from 'ava';
import { sign, signedContent } from '../../activities/webhooks/signature.ts';
import { createSigningKeys, publicKey } from '../../activities/webhooks/signing-keys.ts';
import { webhookKeysAnswer } from '../../api/openapi/answers.ts';
import type { WebhookKey } from '../../api/routes/well-known.ts';
import { ConfigError, loadConfig } from '../../deploy/config/config.ts';
import { type Api, type ApiClient, startApi } from '../support/api.ts';
import { misfits } from '../support/conformance.ts';
import { type Answer, createCaller, MASTER_KEY } from '../support/organization.ts';

// The public keys of v1a signatures (api/README.md, Webhooks), and the private ones they belong to.

const OPERATION = 'GET /.well-known/webhook-keys/{organization_id}';
const UNKNOWN = 'org_01h2xcejqtf2nbrexx3vqjhp41';

let api: Api;
let client: ApiClient;

test.before(async () => {
  api = await startApi();
  client = await api.organization();
});

test.after.always(async () => {
  await api?.stop();
});

const ask = (organizationId: string, headers?: Record<string, string>) =>
  createCaller(api.baseUrl, '').get<{ keys: readonly WebhookKey[] }>(
    `/.well-known/webhook-keys/${organizationId}`,
    headers,
  );

test('the published key verifies what is signed for the organization, and nothing of another', async (t) => {
  const { json } = await ask(client.organizationId);
  const key = createPublicKey({ key: { ...json.keys[0] }, format: 'jwk' });
  const signable = { id: 'msg_1', timestamp: 1767607207, body: '{}' };
  for (const [organizationId, expected] of [
    [client.organizationId, true],
    [UNKNOWN, false],
  ] as const) {
    const keys = createSigningKeys([MASTER_KEY])(organizationId);
    const [, encoded = ''] = sign({ ...signable, secrets: [], keys }).split(',');
    t.is(verify(null, signedContent(signable), key, Buffer.from(encoded, 'base64')), expected);
  }
});

test('it is as described: 200, 304, 404; needs no key, is not counted, and may be cached', async (t) => {
  const answer = await ask(client.organizationId);
  const conforms = (status: number, given: Answer) => {
    t.is(given.status, status, given.text);
    t.deepEqual(misfits(OPERATION, given), [], given.text);
  };
  conforms(200, answer);
  t.is(webhookKeysAnswer.validate(answer.json, { convert: false }).error?.message, undefined);
  t.is(answer.headers.get('ratelimit'), null);
  t.is(answer.headers.get('cache-control'), 'public, max-age=300');
  t.is(answer.headers.get('x-content-type-options'), 'nosniff');
  const etag = answer.headers.get('etag') ?? '';
  conforms(304, await ask(client.organizationId, { 'if-none-match': etag }));
  for (const malformed of ['x', 'org_1', `${UNKNOWN}0`, UNKNOWN.toUpperCase(), '%ff']) {
    conforms(404, await ask(malformed));
  }
});

test('it tells nobody whether an organization exists', async (t) => {
  const [known, unknown] = [await ask(client.organizationId), await ask(UNKNOWN)];
  t.is(unknown.status, known.status);
  t.is(unknown.text.length, known.text.length);
  t.notDeepEqual(unknown.json, known.json);
});

test('while one master key replaces another, an organization has a key of each, the current one first', (t) => {
  const next = Buffer.alloc(32, 8);
  const keysOf = (masters: readonly Buffer[]) => createSigningKeys(masters)(UNKNOWN).map(publicKey);
  t.deepEqual(keysOf([next, MASTER_KEY]), [...keysOf([next]), ...keysOf([MASTER_KEY])]);
  t.deepEqual(keysOf([]), []);
});

test('a deployed key stays what it is: another derivation would make receivers refuse every delivery', (t) => {
  t.deepEqual(createSigningKeys([MASTER_KEY])(UNKNOWN).map(publicKey), [
    {
      kty: 'OKP',
      crv: 'Ed25519',
      use: 'sig',
      kid: 'XgKUn_88vLzYXMyEnTV3znYLzdkIeas7qhEwclyMjiw',
      x: 'iYtO6foIKErQ3cqdnTbke8IAfBjbyPvtCiNAbxpPMMU',
      whpk: 'whpk_iYtO6foIKErQ3cqdnTbke8IAfBjbyPvtCiNAbxpPMMU=',
    },
  ]);
});

test('WEBHOOK_SIGNING_KEYS takes 32 bytes of base64 each and repeats none that is wrong', (t) => {
  const load = (keys: string) =>
    loadConfig({ DATABASE_URL: 'postgres://db.example/name', WEBHOOK_SIGNING_KEYS: keys }).webhookSigningKeys;
  const [first, second] = [MASTER_KEY.toString('base64'), Buffer.alloc(32, 8).toString('base64')];
  t.deepEqual(load(''), []);
  t.deepEqual(load(`${first}, ${second}`), [MASTER_KEY, Buffer.alloc(32, 8)]);
  for (const wrong of [
    first.slice(1),
    `${first},short`,
    Buffer.alloc(33).toString('base64'),
    `whsk_${first}`,
  ]) {
    const error = t.throws(() => load(wrong), { instanceOf: ConfigError, message: /WEBHOOK_SIGNING_KEYS/ });
    t.false(error?.message.includes(wrong.slice(0, 12)));
  }
});
