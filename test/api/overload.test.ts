import test from 'ava';
import { createFloodGuard } from '../../api/http/overload.ts';
import { startApi } from '../support/api.ts';

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
