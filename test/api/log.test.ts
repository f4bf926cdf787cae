import { register } from '@prometheus-io/client';
import test from 'ava';
import { revokeKey } from '../../db/accounts/keys.ts';
import { freshDatabase } from '../support/database.ts';
import { BY, eventually, exchange } from '../support/organization.ts';
import { startApi } from '../support/stack.ts';
import { Visitor } from '../support/visitor.ts';

// Tests the lines of the API's log. Operators need them to investigate a leaked key.

const { url: databaseUrl } = freshDatabase(test);

interface Line {
  readonly msg: string;
  readonly route: string;
  readonly status: number;
  readonly refusal?: string;
  readonly key_id?: string;
  readonly organization_id?: string;
  readonly client_network?: string;
}

async function startLoggedApi() {
  const lines: Line[] = [];
  const api = await startApi({
    databaseUrl,
    trustedProxies: ['127.0.0.0/8'],
    onLog: (line) => lines.push(JSON.parse(line) as Line),
  });
  return { api, lines, last: () => lines.findLast(({ msg }) => msg.startsWith('http')) };
}

test('each log line of a request names the key and the network of its client', async (t) => {
  const { api, lines, last } = await startLoggedApi();
  const client = await api.organization();
  const { keyId: key_id, organizationId: organization_id } = client;
  const from = (address: string) =>
    client.get('/api/v1/credits', { 'x-forwarded-for': address });
  for (const [address, client_network] of [
    ['203.0.113.77', '203.0.113.0/24'],
    ['198.51.100.1, 203.0.113.78', '203.0.113.0/24'],
    ['::ffff:203.0.113.79', '203.0.113.0/24'],
    ['2001:db8:7:8::9', '2001:db8:7::/48'],
    ['not an address', 'unknown'],
  ] as const) {
    t.is((await from(address)).status, 200);
    t.like(last(), { key_id, organization_id, client_network }, address);
  }
  await revokeKey(api.db, BY, key_id);
  await eventually(async () =>
    (await from('203.0.113.77')).status === 403 ? true : null,
  );
  t.like(last(), {
    status: 403,
    refusal: 'api_key_revoked',
    key_id,
    organization_id,
    client_network: '203.0.113.0/24',
  });
  t.is((await from('203.0.113.77')).status, 403);
  t.is(lines.filter(({ status }) => status === 403).length, 2, 'not sampled');
  await exchange(api.port, 'GET\r\n\r\n');
  t.like(last(), { msg: 'http refused', client_network: '127.0.0.0/24' });
  const log = JSON.stringify(lines);
  t.notRegex(log, /203\.0\.113\.7|2001:db8:7:8|not an address/);
  await api.stop();
});

test('calls of the console are logged with the key and network of the visitor', async (t) => {
  const { api, lines } = await startLoggedApi();
  const { keyId, apiKey } = await api.organization();
  await new Visitor(api.baseUrl).signIn(apiKey);
  const called = lines.filter(({ route }) => route?.startsWith('/api/v1/'));
  t.true(called.length > 0);
  for (const { key_id, client_network } of called) {
    t.deepEqual([key_id, client_network], [keyId, '127.0.0.0/24']);
  }
  await api.stop();
});

test('each sign-in and sign-out is logged with its key', async (t) => {
  const { api, lines } = await startLoggedApi();
  const clients = [await api.organization(), await api.organization()];
  for (const { apiKey } of clients) {
    const visitor = new Visitor(api.baseUrl);
    const { token } = await visitor.signIn(apiKey);
    await visitor.post('/console/sign-out', { form_token: token });
  }
  for (const route of ['/console/sign-in', '/console/sign-out']) {
    const logged = lines.filter((line) => line.route === route && line.status === 303);
    t.deepEqual(
      logged.map(({ key_id }) => key_id),
      clients.map(({ keyId }) => keyId),
      route,
    );
  }
  await api.stop();
});

test('a rejected request is logged and counted with its reason', async (t) => {
  const { api, last } = await startLoggedApi();
  const poor = await api.organization(0);
  const slow = await api.organization(10, 1);
  await slow.get('/api/v1/credits');
  const npi = '2000000010';
  const custom_data = 'x'.repeat(300_000);
  const wrong = { 'x-api-key': 'npe_wrong' };
  for (const [reason, send] of [
    ['insufficient_credits', () => poor.single({ npi })],
    ['rate_limited', () => slow.get('/api/v1/credits')],
    ['invalid', () => poor.single({})],
    ['body_too_large', () => poor.single({ npi, custom_data })],
    ['api_key_invalid', () => fetch(`${api.baseUrl}/api/v1/credits`, { headers: wrong })],
  ] as const) {
    const before = await countOf(reason);
    await send();
    t.is(last()?.refusal, reason);
    t.is(await countOf(reason), before + 1, reason);
  }
  await api.stop();
});

async function countOf(reason: string): Promise<number> {
  const metrics = await register.metrics();
  const line = new RegExp(
    `^npe_http_refusals_total\\{reason="${reason}"\\} (\\d+)$`,
    'm',
  );
  return Number(line.exec(metrics)?.[1] ?? 0);
}
