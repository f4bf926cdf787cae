import test from 'ava';
import { createFloodGuard, createSample } from '../../api/http/overload.ts';
import { exchange } from '../support/organization.ts';
import { startApi } from '../support/stack.ts';

test('an address that floods with bad keys gets 429 instead of 401; valid keys behind it are untouched', async (t) => {
  const api = await startApi();
  const client = await api.organization();
  const knock = (headers: Record<string, string>) => fetch(`${api.baseUrl}/api/v1/credits`, { headers });
  const statuses = [];
  for (let i = 0; i < 60; i += 1) {
    statuses.push((await knock({ 'x-api-key': `npe_${i}` })).status, (await knock({})).status);
  }
  t.deepEqual(statuses, [...Array(100).fill(401), ...Array(20).fill(429)]);
  const refused = await knock({});
  const wait = Number(refused.headers.get('retry-after'));
  t.true(wait >= 1 && wait <= 60);
  t.like(await refused.json(), { code: 'rate_limited' });
  t.is((await client.get('/api/v1/credits')).status, 200);
  await api.stop();
});

test('the window slides, addresses are told apart, and an IPv6 subscriber is one /64', (t) => {
  let now = 0;
  const guard = createFloodGuard(60_000, () => now);
  const fail = (address: string) => guard.countFailure(address)?.status ?? 401;
  for (let i = 0; i < 100; i += 1) t.is(fail('203.0.113.7'), 401);
  t.is(fail('203.0.113.7'), 429);
  t.is(fail('::ffff:203.0.113.7'), 429);
  t.is(fail('203.0.113.8'), 401);
  now = 59_999;
  t.is(fail('203.0.113.7'), 429);
  now = 60_000;
  t.is(fail('203.0.113.7'), 401);
  for (let i = 0; i < 100; i += 1) t.is(fail(`2001:db8:0:1::${i.toString(16)}`), 401);
  t.is(fail('2001:db8:0:1:ffff::1'), 429);
  t.is(fail('2001:db8:0:2::1'), 401);
});

test('what is asked without a valid key is logged as a sample, each request of a key with a line', async (t) => {
  const lines: { msg: string; status: number; organization_id?: string; suppressed?: number }[] = [];
  const begun = performance.now();
  const api = await startApi({ onLog: (line) => lines.push(JSON.parse(line)) });
  const client = await api.organization();
  for (let i = 0; i < 50; i += 1) {
    await fetch(`${api.baseUrl}/api/v1/credits`);
    await fetch(`${api.baseUrl}/api/v1/credits`, { headers: { 'x-api-key': `npe_${i}` } });
    await fetch(`${api.baseUrl}/nothing`);
    await exchange(api.port, 'GET\r\n\r\n');
    await client.get('/api/v1/email/x');
  }
  await api.stop();
  const most = 1 + (performance.now() - begun) / 10_000;
  const sampled = lines.filter(
    ({ organization_id, status }) => status >= 400 && organization_id === undefined,
  );
  t.deepEqual([...new Set(sampled.map(({ status }) => status))].sort(), [400, 401, 404]);
  for (const status of [400, 401, 404]) {
    const ofStatus = sampled.filter((line) => line.status === status);
    t.true(ofStatus.length <= most, `${ofStatus.length} lines of ${status}`);
    t.is(typeof ofStatus[0]?.suppressed, 'number');
  }
  const keyed = lines.filter(({ organization_id, msg }) => organization_id !== undefined && msg === 'http');
  t.is(keyed.length, 50);
  t.true(keyed.every(({ status, suppressed }) => status === 422 && suppressed === undefined));
});

test('a sample is one line of each status in 10 s, and counts those left out', (t) => {
  let now = 0;
  const sample = createSample(() => now);
  t.deepEqual([sample(401), sample(401), sample(401), sample(404)], [0, null, null, 0]);
  now = 9_999;
  t.is(sample(401), null);
  now = 10_000;
  t.deepEqual([sample(401), sample(401), sample(404)], [3, null, 0]);
  now = 20_000;
  t.is(sample(401), 1);
});
