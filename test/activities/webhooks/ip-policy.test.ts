import type { LookupAddress } from 'node:dns';
import { once } from 'node:events';
import { createServer, type Socket } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { createNames } from '../../../activities/http/names.ts';
import {
  type AddressPolicy,
  createAddressPolicy,
  literalOf,
} from '../../../activities/webhooks/ip-policy.ts';
import { createPost } from '../../../activities/webhooks/post.ts';

const policy = createAddressPolicy({ openCidrs: [] });

/** Hosts in the notations that a hostile client may use in a URL. */
const HOSTILE_HOSTS = [
  ['loopback', '127.0.0.1'],
  ['loopback, elsewhere in its block', '127.255.255.254'],
  ['loopback in decimal', '2130706433'],
  ['loopback in octal', '0177.0.0.1'],
  ['loopback as one octal number', '017700000001'],
  ['loopback in hex', '0x7f.0x0.0x0.0x1'],
  ['loopback as one hex number', '0x7f000001'],
  ['loopback in upper-case hex', '0X7F.1'],
  ['loopback in short', '127.1'],
  ['loopback in full-width digits', '１２７.０.０.１'],
  ['loopback with ideographic stops', '127。0。0。1'],
  ['loopback in circled digits', '①②⑦.0.0.1'],
  ['loopback percent-encoded', '%31%32%37.0.0.1'],
  ['loopback with a final dot', '127.0.0.1.'],
  ['loopback with a tab in it', '127.0.0\t.1'],
  ['this network', '0.0.0.0'],
  ['this network as one number', '0'],
  ['this network, elsewhere in its block', '0.1.2.3'],
  ['private 10/8', '10.0.0.1'],
  ['private 10/8 in hex', '0xa.1'],
  ['private 172.16/12, first', '172.16.0.0'],
  ['private 172.16/12, last', '172.31.255.255'],
  ['private 192.168/16', '192.168.0.1'],
  ['private 192.168/16 in decimal', '3232235521'],
  ['carrier-grade NAT, first', '100.64.0.0'],
  ["carrier-grade NAT, a cloud's metadata", '100.100.100.200'],
  ['link-local', '169.254.0.1'],
  ['metadata', '169.254.169.254'],
  ['metadata in decimal', '2852039166'],
  ['metadata in octal', '0251.0376.0251.0376'],
  ['metadata in hex', '0xa9fea9fe'],
  ["Azure's platform address", '168.63.129.16'],
  ["Azure's platform address in hex", '0xa83f8110'],
  ['protocol assignments', '192.0.0.192'],
  ['documentation 1', '192.0.2.1'],
  ['documentation 2', '198.51.100.1'],
  ['documentation 3', '203.0.113.1'],
  ['6to4 relays', '192.88.99.1'],
  ['benchmarking', '198.19.255.255'],
  ['multicast', '224.0.0.1'],
  ['reserved', '240.0.0.1'],
  ['broadcast', '255.255.255.255'],
  ['IPv6 unspecified', '[::]'],
  ['IPv6 loopback', '[::1]'],
  ['IPv6 loopback in full', '[0000:0000:0000:0000:0000:0000:0000:0001]'],
  ['IPv4-mapped loopback', '[::ffff:127.0.0.1]'],
  ['IPv4-mapped loopback in hex', '[::ffff:7f00:1]'],
  ['IPv4-mapped public address', '[::ffff:8.8.8.8]'],
  ['IPv4-compatible loopback', '[::127.0.0.1]'],
  ['IPv4-translated loopback', '[::ffff:0:127.0.0.1]'],
  ['NAT64 loopback', '[64:ff9b::127.0.0.1]'],
  ['NAT64, local use', '[64:ff9b:1::10.0.0.1]'],
  ['6to4 of a private address', '[2002:a00:1::1]'],
  ['Teredo', '[2001:0:4136:e378:8000:63bf:3fff:fdd2]'],
  ['IPv6 benchmarking', '[2001:2::1]'],
  ['ORCHIDv2', '[2001:20::1]'],
  ['last of the IETF protocol block', '[2001:1ff:ffff::1]'],
  ['IPv6 documentation', '[2001:db8::1]'],
  ['IPv6 documentation, new', '[3fff:fff::1]'],
  ['discard only', '[100::1]'],
  ['segment routing', '[5f00::1]'],
  ['unique local', '[fd00:ec2::254]'],
  ['IPv6 link-local', '[fe80::1]'],
  ['IPv6 site-local', '[fec0::1]'],
  ['IPv6 multicast', '[ff02::1]'],
  ['IPv6 not given out', '[4000::1]'],
] as const;

for (const [what, host] of HOSTILE_HOSTS) {
  test(`a webhook URL may not contain the host ${JSON.stringify(host)} (${what})`, (t) => {
    t.true(policy.forbids(new URL(`https://${host}/hook`)));
  });
}

test('a webhook URL may contain a public IP address, even next to a forbidden range', (t) => {
  const hosts = [
    '8.8.8.8',
    '0x08080808',
    '172.15.255.255',
    '172.32.0.0',
    '100.63.255.255',
    '100.128.0.0',
  ];
  const neighbors = [
    '168.63.129.15',
    '168.63.129.17',
    '223.255.255.255',
    '198.17.255.255',
    '198.20.0.0',
  ];
  const v6 = [
    '[2606:4700:4700::1111]',
    '[2001:4860:4860::8888]',
    '[2001:200::1]',
    '[2003::1]',
    '[2a00:1450::1]',
  ];
  for (const host of [...hosts, ...neighbors, ...v6]) {
    t.false(policy.forbids(new URL(`https://${host}/`)), host);
  }
});

test('a host name is allowed in a webhook URL, unless it is clearly internal', (t) => {
  for (const host of [
    'localhost',
    'a.localhost',
    'printer.local.',
    'metadata.google.internal',
    'LOCAL..',
  ]) {
    t.true(policy.forbids(new URL(`https://${host}/`)), host);
  }
  for (const host of [
    'example.com',
    'internal.example',
    '127.0.0.1.example.com',
    '127.0.0.1..',
  ]) {
    t.is(literalOf(new URL(`https://${host}/`)), null);
    t.false(policy.forbids(new URL(`https://${host}/`)));
  }
});

test('the policy allows only IP addresses in standard notation', (t) => {
  for (const text of [
    '',
    'localhost',
    '0x08080808',
    '134744072',
    '010.8.8.8',
    '8.8.8',
    '8.8.8.8/32',
    '[::1]',
    '2606:4700::1%eth0',
  ]) {
    t.false(policy.allows(text), text);
  }
  t.true(policy.allows('8.8.8.8'));
});

test('WEBHOOK_OPEN_CIDRS allows its private ranges and no other private addresses', (t) => {
  const opened = createAddressPolicy({ openCidrs: ['127.0.0.0/8', '::1/128'] });
  t.true(opened.allows('127.0.0.1'));
  t.true(opened.allows('::1'));
  for (const host of ['127.1', 'localhost', 'receiver.internal']) {
    t.false(opened.forbids(new URL(`https://${host}/`)), host);
  }
  t.true(opened.allows('8.8.8.8'));
  for (const ip of ['10.0.0.1', '::2', '::ffff:127.0.0.1', '128.0.0.0/8'])
    t.false(opened.allows(ip), ip);
});

test('a malformed range in WEBHOOK_OPEN_CIDRS is rejected, and the error contains it', (t) => {
  for (const text of [
    '',
    '127.0.0.1',
    '127.0.0.0/33',
    '0x7f.1/8',
    'localhost/8',
    'fe80::%lo/10',
    '::1/129',
  ]) {
    const error = t.throws(() => createAddressPolicy({ openCidrs: ['::1/128', text] }), {
      code: 'bad_cidr',
    });
    t.true(error?.message.includes(`"${text}"`));
  }
});

/** Addresses that a name resolves to. 127.0.0.2 is opened and stands for a public address. */
const HOSTILE_ADDRESSES: readonly (readonly [string, readonly string[]])[] = [
  ['loopback', ['127.0.0.1']],
  ['0.0.0.0, which systems connect to loopback', ['0.0.0.0']],
  ['IPv6 loopback', ['::1']],
  ['IPv4-mapped loopback', ['::ffff:127.0.0.1']],
  ['IPv4-compatible loopback', ['::127.0.0.1']],
  ['NAT64 loopback', ['64:ff9b::7f00:1']],
  ['several internal addresses', ['10.0.0.5', '127.0.0.1', 'fd00::1']],
  ["a cloud's metadata address", ['169.254.169.254']],
  ["Azure's platform address", ['168.63.129.16']],
  ['an address in octal', ['0177.0.0.1']],
];

for (const [what, addresses] of HOSTILE_ADDRESSES) {
  test(`a webhook to a host name that resolves to ${what} makes no connection`, async (t) => {
    const trap = await startTrap(t);
    const post = postWith(
      createAddressPolicy({ openCidrs: ['127.0.0.2/32'] }),
      () => addresses,
    );
    t.deepEqual(await post(trap.port, 'hook.example'), {
      kind: 'failed',
      reason: 'blocked_address',
    });
    t.is(trap.connections(), 0);
  });
}

test('if a host name has internal and public IP addresses, only public ones are called', async (t) => {
  const trap = await startTrap(t);
  const mixed = ['127.0.0.1', '127.0.0.2', '0.0.0.0', '::ffff:127.0.0.1'];
  const post = postWith(
    createAddressPolicy({ openCidrs: ['127.0.0.2/32'] }),
    () => mixed,
  );
  t.is((await post(trap.port, 'hook.example')).kind, 'failed');
  t.is(trap.connections(), 0);
});

test('each webhook attempt looks up the name of its host only once', async (t) => {
  const trap = await startTrap(t);
  let lookups = 0;
  const post = postWith(createAddressPolicy({ openCidrs: ['127.0.0.2/32'] }), () => {
    lookups += 1;
    return lookups === 1 ? ['127.0.0.2'] : ['127.0.0.1'];
  });
  t.is((await post(trap.port, 'rebind.example')).kind, 'failed');
  t.is(lookups, 1);
  t.is(trap.connections(), 0);
});

test('a forbidden IP address in a webhook URL causes no DNS lookup and no connection', async (t) => {
  const trap = await startTrap(t);
  const post = postWith(policy, () => {
    t.fail('looked up');
    return [];
  });
  for (const [, host] of HOSTILE_HOSTS) {
    t.deepEqual(
      await post(trap.port, host),
      { kind: 'failed', reason: 'blocked_address' },
      host,
    );
  }
  t.is(trap.connections(), 0);
});

test('IP addresses from the hosts file are checked too, so localhost is blocked', async (t) => {
  const trap = await startTrap(t);
  const post = createPost({ policy, userAgent: 'test', lookup: createNames([]).find });
  const response = await post({
    url: `https://localhost:${trap.port}/`,
    headers: {},
    body: '{}',
    blocked: [],
  });
  t.deepEqual(response, { kind: 'failed', reason: 'blocked_address' });
  t.is(trap.connections(), 0);
});

test('if the connected IP address fails a second check, nothing is sent to it', async (t) => {
  const trap = await startTrap(t);
  let asked = 0;
  const turning: AddressPolicy = {
    forbids: () => false,
    isOpened: () => true,
    allows: () => {
      asked += 1;
      return asked === 1;
    },
  };
  t.deepEqual(await postWith(turning, () => ['127.0.0.1'])(trap.port, 'hook.example'), {
    kind: 'failed',
    reason: 'blocked_address',
  });
  await trap.closed();
  t.is(trap.connections(), 1);
  t.is(trap.bytes(), 0);
});

test('host names and IP addresses that operators block get no webhooks', async (t) => {
  const trap = await startTrap(t);
  const opened = createAddressPolicy({ openCidrs: ['127.0.0.0/8', '::1/128'] });
  const send = (host: string, blocked: readonly string[], addresses: readonly string[]) =>
    postWith(opened, () => addresses, blocked)(trap.port, host);
  const refused = { kind: 'failed', reason: 'blocked_by_operator' };
  for (const host of ['victim.example', 'VICTIM.example.', 'hooks.victim.example'])
    t.deepEqual(await send(host, ['victim.example'], ['127.0.0.1']), refused, host);
  for (const host of ['127.0.0.1', '2130706433', 'any.example'])
    t.deepEqual(
      await send(host, ['10.0.0.0/8', '127.0.0.0/16'], ['127.0.0.1']),
      refused,
      host,
    );
  t.deepEqual(await send('[::1]', ['::/64'], []), refused);
  t.deepEqual(
    await send('any.example', ['::1/128', '127.0.0.1/32'], ['::1', '127.0.0.1']),
    refused,
  );
  t.is(trap.connections(), 0);
  // Other addresses of the same name, and names that look similar, are not blocked.
  for (const [host, blocked, addresses] of [
    ['any.example', ['127.0.0.2/32'], ['127.0.0.2', '127.0.0.1']],
    ['notvictim.example', ['victim.example'], ['127.0.0.1']],
    ['example', ['victim.example'], ['127.0.0.1']],
  ] as const)
    t.notDeepEqual(await send(host, blocked, addresses), refused, host);
  t.is(trap.connections(), 3);
});

function postWith(
  target: AddressPolicy,
  addresses: () => readonly string[],
  blocked: readonly string[] = [],
) {
  const lookup = async (): Promise<readonly LookupAddress[]> =>
    addresses().map((address) => ({ address, family: address.includes(':') ? 6 : 4 }));
  const post = createPost({ policy: target, userAgent: 'test', lookup });
  return (port: number, host: string) =>
    post({ url: `https://${host}:${port}/`, headers: {}, body: '{}', blocked });
}

/** Starts a loopback server that no request may reach, and counts connections. */
async function startTrap(t: ExecutionContext) {
  const sockets: Socket[] = [];
  let bytes = 0;
  const server = createServer((socket) => {
    sockets.push(socket);
    socket.on('error', () => {});
    socket.on('data', (chunk) => {
      bytes += chunk.length;
    });
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  t.teardown(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  const address = server.address();
  if (typeof address !== 'object' || address === null)
    throw new Error('the trap listens on no port');
  return {
    port: address.port,
    connections: () => sockets.length,
    bytes: () => bytes,
    closed: async () => {
      const [socket] =
        sockets.length > 0 ? sockets : ((await once(server, 'connection')) as Socket[]);
      if (socket !== undefined && !socket.closed) await once(socket, 'close');
    },
  };
}
