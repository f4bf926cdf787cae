import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TLSSocket } from 'node:tls';
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import { createNames } from '../../../activities/http/names.ts';
import { createAddressPolicy } from '../../../activities/webhooks/ip-policy.ts';
import { createPost, type PostSettings } from '../../../activities/webhooks/post.ts';
import { showDelivery } from '../../../db/webhooks/log.ts';
import { silence } from '../../support/behaviors.ts';
import { startDelivering } from '../../support/deliveries.ts';
import { type Receiver, startReceiver, status } from '../../support/receiver.ts';

// Tests that deliveries through an HTTP proxy also connect only to checked addresses.

interface Context {
  dir: string;
  receiver: Receiver;
}

const test = anyTest as TestFn<Context>;
const policy = createAddressPolicy({ openCidrs: ['127.0.0.1/32'] });

test.before(async (t) => {
  const dir = await mkdtemp(join(tmpdir(), 'proxy-'));
  t.context = { dir, receiver: await startReceiver(dir) };
});

test.after.always(async (t) => {
  await t.context.receiver?.close();
  if (t.context.dir) await rm(t.context.dir, { recursive: true });
});

/**
 * Starts a proxy that records the requested tunnels.
 * @param lead returns the end of a tunnel, by default the requested address
 */
async function startProxy(
  t: ExecutionContext<Context>,
  lets: (authority: string) => number = () => 200,
  lead = (authority: string) => authority,
) {
  const asked: { authority: string; authorization: string | undefined }[] = [];
  const server = createServer();
  server.on('connect', (request, client, head) => {
    const authority = request.url ?? '';
    asked.push({ authority, authorization: request.headers['proxy-authorization'] });
    client.on('error', () => {});
    const code = lets(authority);
    if (code === 0) return;
    if (code !== 200)
      return void client.end(`HTTP/1.1 ${code} No\r\ncontent-length: 0\r\n\r\n`);
    const { hostname, port } = new URL(`http://${lead(authority)}`);
    const upstream = connect(Number(port), hostname, () => {
      client.write('HTTP/1.1 200 Connection established\r\n\r\n');
      upstream.write(head);
      upstream.pipe(client).pipe(upstream);
    });
    upstream.on('error', () => client.destroy());
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  t.teardown(() => {
    server.close();
    server.closeAllConnections();
  });
  const address = server.address();
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  return { url: new URL(`http://127.0.0.1:${port}`), asked };
}

async function postTo(t: ExecutionContext<Context>, settings: Partial<PostSettings>) {
  const ca = await readFile(t.context.receiver.caFile, 'utf8');
  const common = { policy, ca, userAgent: 'test', connectMs: 3000, totalMs: 4500 };
  return createPost({ ...common, lookup: createNames([]).find, ...settings });
}

async function postThrough(
  t: ExecutionContext<Context>,
  settings: Partial<PostSettings>,
) {
  const post = await postTo(t, settings);
  return (url: string) =>
    post({ url, headers: { 'webhook-id': 'msg_proxied' }, body: '{}', blocked: [] });
}

test('the webhook proxy gets the checked IP address, the receiver gets the host name', async (t) => {
  const proxy = await startProxy(t);
  const lookup = async () => [{ address: '127.0.0.1', family: 4 }];
  const post = await postThrough(t, { proxy: proxy.url, lookup });
  const { port } = new URL(t.context.receiver.url);
  let name: unknown;
  t.context.receiver.setBehavior('/named', (response) => {
    name = (response.socket as TLSSocket & { servername?: string }).servername;
    status(200)(response);
  });
  t.like(await post(`https://localhost:${port}/named`), {
    kind: 'responded',
    status: 200,
  });
  t.deepEqual(proxy.asked, [
    { authority: `127.0.0.1:${port}`, authorization: undefined },
  ]);
  t.is(name, 'localhost');
  const [delivery] = t.context.receiver
    .deliveries()
    .filter(({ path }) => path === '/named');
  t.is(delivery?.headers.host, `localhost:${port}`);
  t.is(delivery?.headers['proxy-authorization'], undefined);
});

test('the webhook proxy gets no request for a forbidden IP address', async (t) => {
  const proxy = await startProxy(t);
  const closed = createAddressPolicy({ openCidrs: [] });
  const lookup = async () => [
    { address: '127.0.0.1', family: 4 },
    { address: '::1', family: 6 },
  ];
  const post = await postThrough(t, { proxy: proxy.url, lookup, policy: closed });
  const { port } = new URL(t.context.receiver.url);
  for (const host of [
    '127.0.0.1',
    '2130706433',
    '[::ffff:127.0.0.1]',
    'hook.example',
    '169.254.169.254',
  ]) {
    t.deepEqual(
      await post(`https://${host}:${port}/`),
      { kind: 'failed', reason: 'blocked_address' },
      host,
    );
  }
  t.deepEqual(proxy.asked, []);
});

test('the webhook proxy gets its credentials, and one IP address after another', async (t) => {
  const { port } = new URL(t.context.receiver.url);
  const proxy = await startProxy(t, (authority) =>
    authority === `127.0.0.1:${port}` ? 200 : 502,
  );
  proxy.url.username = 'us%20er';
  proxy.url.password = 'pass';
  const lookup = async () => [
    { address: '2606:4700::1', family: 6 },
    { address: '127.0.0.1', family: 4 },
  ];
  const post = await postThrough(t, { proxy: proxy.url, lookup });
  t.like(await post(`https://localhost:${port}/`), {
    kind: 'responded',
    status: 200,
    address: '127.0.0.1',
  });
  const authorization = `Basic ${Buffer.from('us er:pass').toString('base64')}`;
  t.deepEqual(proxy.asked, [
    { authority: `[2606:4700::1]:${port}`, authorization },
    { authority: `127.0.0.1:${port}`, authorization },
  ]);
});

test('at most four IPv4 and four IPv6 addresses of a host name are tried', async (t) => {
  const proxy = await startProxy(t, () => 502);
  const lookup = async () =>
    Array.from({ length: 500 }, (_, n) => [
      { address: `198.41.${n % 250}.4`, family: 4 },
      { address: `2606:4700::${n + 1}`, family: 6 },
    ]).flat();
  const post = await postThrough(t, { proxy: proxy.url, lookup });
  t.like(await post('https://many.example/'), { kind: 'failed' });
  t.is(proxy.asked.length, 8);
});

test('an attempt fails if the webhook proxy rejects the request or never responds', async (t) => {
  const refusing = await postThrough(t, { proxy: (await startProxy(t, () => 403)).url });
  t.deepEqual(await refusing(t.context.receiver.url), {
    kind: 'failed',
    reason: 'proxy',
  });
  const silent = await postThrough(t, { proxy: (await startProxy(t, () => 0)).url });
  t.deepEqual(await silent(t.context.receiver.url), {
    kind: 'failed',
    reason: 'timeout_connect',
  });
});

test('the time-outs of a webhook also apply if it goes through a proxy', async (t) => {
  const post = await postThrough(t, { proxy: (await startProxy(t)).url });
  t.context.receiver.setBehavior('/silence', silence);
  const reply = await post(`${t.context.receiver.url}/silence`);
  t.deepEqual(reply, { kind: 'failed', reason: 'timeout_total' });
});

test('if our webhook proxy is down, webhooks are retried without counting an attempt', async (t) => {
  const proxy = new URL('http://127.0.0.1:1');
  const post = createPost({
    policy,
    userAgent: 'test',
    lookup: createNames([]).find,
    proxy,
  });
  const life = await startDelivering(post);
  t.teardown(() => life.stop());
  const [id = ''] = await life.deliveries(
    await life.organization(),
    t.context.receiver.url,
    1,
  );
  for (let looks = 0; looks < 25; looks += 1) {
    await t.throwsAsync(life.look(id), { message: /webhook proxy cannot be reached/ });
  }
  t.like(await showDelivery(life.db, id), {
    state: 'pending',
    attempts: 0,
    nextAttemptAt: null,
  });
});

test('if many new webhook hosts have one IP address, it gets only twenty webhooks', async (t) => {
  const { port } = new URL(t.context.receiver.url);
  const proxy = await startProxy(
    t,
    () => 200,
    () => `127.0.0.1:${port}`,
  );
  const lookup = async () => [{ address: '93.184.215.14', family: 4 }];
  const post = await postTo(t, {
    proxy: proxy.url,
    lookup,
    policy: createAddressPolicy({ openCidrs: [] }),
  });
  t.context.receiver.setBehavior('/burst', status(404));
  const life = await startDelivering(async (message) => {
    const { hostname } = new URL(message.url);
    // The name in the receiver's certificate.
    return await post({ ...message, url: message.url.replace(hostname, 'localhost') });
  });
  t.teardown(() => life.stop());
  const organization = await life.organization();
  for (let n = 0; n < 25; n += 1) {
    const url = `https://name${n}.example:${7000 + n}/burst`;
    const [id = ''] = await life.deliveries(organization, url, 1, 'unproven');
    t.like(await life.look(id), { kind: 'wait', why: 'tried' });
  }
  t.is(
    t.context.receiver.deliveries().filter(({ path }) => path === '/burst').length,
    20,
  );
  // No connection is made for deliveries that are not sent.
  t.is(proxy.asked.length, 20);
});

test('attempts that fail at our webhook proxy do not count for the receiver', async (t) => {
  const lookup = async () => [{ address: '93.184.215.14', family: 4 }];
  const post = await postTo(t, { proxy: new URL('http://127.0.0.1:1'), lookup });
  const life = await startDelivering(post);
  t.teardown(() => life.stop());
  const [id = ''] = await life.deliveries(
    await life.organization(),
    'https://a.example/',
    1,
    'unproven',
  );
  for (let looks = 0; looks < 25; looks += 1) {
    await t.throwsAsync(life.look(id), { message: /webhook proxy cannot be reached/ });
  }
  t.is((await showDelivery(life.db, id)).attempts, 0);
});
