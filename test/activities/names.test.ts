import test, { type ExecutionContext } from 'ava';
import { findHostsBy, jsonApi } from '../../activities/http/client.ts';
import { createNames, remember } from '../../activities/http/names.ts';
import { type Said, startNameServer } from '../support/name-server.ts';
import { serveVendor } from '../support/vendors.ts';

// Tests that DNS responses are cached for their TTL, and that lookups end at a time-out.

const NEVER = new AbortController().signal;

async function namesBy(
  t: ExecutionContext,
  say: (name: string, type: string) => Said,
  ttl?: number,
) {
  const server = await startNameServer(say, ttl);
  t.teardown(server.close);
  return { ...createNames([server.address]), questions: server.questions };
}

test('a DNS lookup returns IPv4 and IPv6 addresses and is cached while they are valid', async (t) => {
  const { find, questions } = await namesBy(t, () => [
    '192.0.2.1',
    '192.0.2.2',
    '2001:db8::1',
  ]);
  const found = [
    { address: '192.0.2.1', family: 4 },
    { address: '192.0.2.2', family: 4 },
    { address: '2001:db8::1', family: 6 },
  ];
  const sixty = Array.from({ length: 60 }, () => find('hook.example'));
  for (const each of await Promise.all(sixty)) t.deepEqual(each, found);
  t.deepEqual(await find('hook.example'), found);
  t.deepEqual(questions.toSorted(), ['A hook.example', 'AAAA hook.example']);
});

test('a DNS response with a TTL of zero is not cached', async (t) => {
  let address = '192.0.2.1';
  const { find } = await namesBy(t, () => [address], 0);
  t.like(await find('hook.example'), [{ address }]);
  address = '192.0.2.2';
  t.like(await find('hook.example'), [{ address }]);
});

for (const [what, say, code] of [
  ['that does not exist', () => 'NXDOMAIN', 'ENOTFOUND'],
  ['without an address', () => [], 'ENODATA'],
  ['whose servers fail', () => 'SERVFAIL', 'ESERVFAIL'],
  [
    'without IPv4 addresses whose servers fail for IPv6',
    (_name, type) => (type === 'A' ? [] : 'SERVFAIL'),
    'ESERVFAIL',
  ],
] as const satisfies readonly (readonly [
  string,
  (name: string, type: string) => Said,
  string,
])[]) {
  test(`looking up a DNS name ${what} fails with ${code}, and the failure is cached`, async (t) => {
    const { find, questions } = await namesBy(t, say);
    await t.throwsAsync(find('hook.example'), { code });
    const asked = questions.length;
    await t.throwsAsync(find('hook.example'), { code });
    t.is(questions.length, asked);
  });
}

test('if name servers are silent about IPv6, IPv4 addresses are still found', async (t) => {
  const { find } = await namesBy(t, (_name, type) =>
    type === 'A' ? ['192.0.2.1'] : 'silence',
  );
  t.deepEqual(await find('hook.example'), [{ address: '192.0.2.1', family: 4 }]);
});

test('a DNS lookup without a response times out and does not delay other lookups', async (t) => {
  const say = (name: string): Said =>
    name.endsWith('.silent.example') ? 'silence' : ['192.0.2.1'];
  const servers = await Promise.all(
    Array.from({ length: 4 }, () => startNameServer(say)),
  );
  for (const { close } of servers) t.teardown(close);
  const { find, resolveMx } = createNames(servers.map(({ address }) => address));
  let pending = 50;
  const silent = Array.from({ length: pending }, (_, n) =>
    find(`hook${n}.silent.example`).finally(() => {
      pending -= 1;
    }),
  );
  t.like(await find('hook.example'), [{ address: '192.0.2.1' }]);
  t.true(pending > 0);
  for (const each of [...silent, resolveMx('mail.silent.example')]) {
    await t.throwsAsync(each, { code: 'ECANCELLED' });
  }
});

test('a name in the hosts file is not looked up at the name servers', async (t) => {
  const { find, questions } = await namesBy(t, () => 'NXDOMAIN');
  const found = await find('localhost');
  t.true(found.some(({ address }) => address === '127.0.0.1'));
  t.deepEqual(questions, []);
});

test('a name server must be configured by its IP address, not by its name', (t) => {
  t.throws(() => createNames(['ns.example']), { code: 'ERR_INVALID_IP_ADDRESS' });
});

test('calls to vendors use the configured name servers', async (t) => {
  const { find, questions } = await namesBy(t, (name) =>
    name === 'vendor.example' ? ['127.0.0.1'] : 'NXDOMAIN',
  );
  findHostsBy(find);
  const { port } = new URL(
    await serveVendor(t, (_request, response) => response.end('{}')),
  );
  const ask = (host: string) =>
    jsonApi(`http://${host}:${port}`, {}, 10_000)({ path: '' }, NEVER, ({ status }) => ({
      status,
    }));
  t.deepEqual(await ask('vendor.example'), { status: 200 });
  t.like(await ask('nobody.example'), { kind: 'retry', why: 'unsent' });
  t.true(questions.includes('A vendor.example'));
});

test('cached DNS responses expire, and a full cache drops the oldest one', async (t) => {
  const asked: string[] = [];
  let now = 0;
  const ask = async (key: string) => {
    asked.push(key);
    return { value: key.toUpperCase(), forMs: 100 };
  };
  const recall = remember(ask, { entries: 2, bytes: 10_000 }, () => now);
  for (const key of ['a', 'b', 'a', 'b']) t.is(await recall(key), key.toUpperCase());
  t.deepEqual(asked, ['a', 'b']);
  await recall('c');
  await recall('b');
  await recall('a');
  t.deepEqual(asked, ['a', 'b', 'c', 'a']);
  now = 100;
  await recall('a');
  t.is(asked.length, 5);
});

test('a full DNS cache drops an expired response before an older valid one', async (t) => {
  const asked: string[] = [];
  let now = 0;
  const ask = async (key: string) => {
    asked.push(key);
    return { value: key, forMs: key === 'brief' ? 10 : 1000 };
  };
  const recall = remember(ask, { entries: 2, bytes: 10_000 }, () => now);
  await recall('lasting');
  await recall('brief');
  now = 100;
  await recall('another');
  await recall('lasting');
  t.deepEqual(asked, ['lasting', 'brief', 'another']);
});

test('a DNS cache that takes too many bytes drops its oldest responses', async (t) => {
  const asked: string[] = [];
  const ask = async (key: string) => {
    asked.push(key);
    return { value: key, forMs: 1000, bytes: 4000 };
  };
  const recall = remember(ask, { entries: 100, bytes: 10_000 });
  for (const key of ['a', 'b', 'c', 'c', 'a']) await recall(key);
  t.deepEqual(asked, ['a', 'b', 'c', 'a']);
});

test('a DNS lookup returns at most four private and four public IPv4 addresses', async (t) => {
  const inner = Array.from({ length: 10 }, (_, n) => `10.0.0.${n}`);
  const open = Array.from({ length: 10 }, (_, n) => `198.41.0.${n}`);
  const { find } = await namesBy(t, () => [...inner, ...open, '2001:503:ba3e::2:30']);
  const found = (await find('hook.example')).map(({ address }) => address);
  t.deepEqual(
    found.toSorted(),
    [...inner.slice(0, 4), ...open.slice(0, 4), '2001:503:ba3e::2:30'].toSorted(),
  );
});

for (const [count, outcome] of [
  [64, 'works'],
  [65, 'fails'],
] as const) {
  test(`looking up a name with ${count} addresses ${outcome}`, async (t) => {
    const { find } = await namesBy(t, () =>
      Array.from({ length: count }, (_, n) => `198.41.0.${n}`),
    );
    if (outcome === 'works') t.is((await find('hook.example')).length, 4);
    else await t.throwsAsync(find('hook.example'), { code: 'EBADRESP' });
  });
}
