import { connect } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { fresh } from '../support/database.ts';
import { exchange } from '../support/organization.ts';
import { startApi } from '../support/stack.ts';

// Tests unusual and malformed HTTP, which the tests write as bytes, because fetch would not send
// it.

const api = fresh(test, startApi);
const client = fresh(test, () => api.organization(1000));

const keyed = (extra = '') =>
  `Host: x\r\nX-API-Key: ${client.apiKey}\r\n${extra}Connection: close\r\n\r\n`;
const credits = (extra = '') => `GET /api/v1/credits HTTP/1.1\r\n${keyed(extra)}`;
const submit = (extra: string, body: string) =>
  `POST /api/v1/email HTTP/1.1\r\n${keyed(`Content-Type: application/json\r\n${extra}`)}${body}`;
const BODY = '{"npi":"1234567893"}';

async function refused(
  t: ExecutionContext,
  bytes: string,
  status: number,
  code: string,
): Promise<void> {
  const reply = await exchange(api.port, bytes);
  t.true(reply.startsWith(`HTTP/1.1 ${status} `), reply);
  t.regex(reply, /\r\nx-request-id: \S+\r\n/i);
  t.regex(reply, /\r\ncontent-type: application\/problem\+json\r\n/i);
  t.regex(reply, /\r\nx-content-type-options: nosniff\r\n/i);
  t.regex(reply, /\r\ncache-control: no-store\r\n/i);
  const body = JSON.parse(reply.slice(reply.indexOf('\r\n\r\n'))) as {
    status: number;
    code: string;
  };
  t.deepEqual([body.status, body.code], [status, code]);
}

test('malformed HTTP gets a 400 in the usual error format and ends the connection', async (t) => {
  const bad = [
    '\u0016\u0003\u0001\u0000\u00a5\u0001\u0000\r\n\r\n',
    'GET\r\n\r\n',
    'GET /api/v1/credits HTTP/9.9\r\n\r\n',
    'GET /api/v1/credits HTTP/1.1\r\nConnection: close\r\n\r\n',
    `GET /api/v1/credits HTTP/1.1\r\nno colon\r\n${keyed()}`,
    credits('X-Bad: a\u0000b\r\n'),
    credits('X-Bad : a\r\n'),
    submit('Content-Length: 20\r\nContent-Length: 21\r\n', BODY),
    submit('Content-Length: -1\r\n', BODY),
    submit(
      'Content-Length: 20\r\nTransfer-Encoding: chunked\r\n',
      `14\r\n${BODY}\r\n0\r\n\r\n`,
    ),
    submit('Transfer-Encoding: chunked, identity\r\n', BODY),
    submit('Transfer-Encoding: chunked\r\n', `zz\r\n${BODY}\r\n`),
  ];
  for (const bytes of bad) await refused(t, bytes, 400, 'bad_request');
  t.is((await client.get('/api/v1/credits')).status, 200);
});

test('a path or headers of more than 16 KiB get a 431', async (t) => {
  await refused(
    t,
    `GET /${'a'.repeat(20_000)} HTTP/1.1\r\n${keyed()}`,
    431,
    'headers_too_large',
  );
  await refused(
    t,
    credits(`X-Long: ${'a'.repeat(20_000)}\r\n`),
    431,
    'headers_too_large',
  );
  await refused(
    t,
    credits(Array(2000).fill('X-Many: a\r\n').join('')),
    431,
    'headers_too_large',
  );
});

test('a request whose target is not a path gets a 400, and the API keeps running', async (t) => {
  for (const target of [
    '*',
    'http://[bad/',
    'http://[bad/%zz',
    'a://b',
    'a://%zz',
    '%zz',
    'nonsense',
    'http://',
  ]) {
    await refused(t, `OPTIONS ${target} HTTP/1.1\r\n${keyed()}`, 400, 'bad_request');
  }
  t.regex(
    await exchange(
      api.port,
      `GET http://elsewhere/api/v1/credits HTTP/1.1\r\n${keyed()}`,
    ),
    /^HTTP\/1\.1 200 /,
  );
  t.is((await client.get('/healthz')).status, 200);
});

test('a path with . or .. segments gets a 404', async (t) => {
  for (const target of [
    '/api/v1/../../readyz',
    '/api/v1/%2e%2E/.%2e/readyz',
    '/./readyz',
    '/%2e/readyz',
    '/readyz/.',
    '/readyz/x/..?a=b',
    '/readyz/x/..#a',
    '/api/v1/email/../credits',
    '/%zz/../readyz',
    '/%zz\\..\\readyz',
    'http://x/a/../readyz',
    'http://x/a/%2e%2e/readyz',
    'a://b/../readyz',
  ]) {
    await refused(t, `GET ${target} HTTP/1.1\r\n${keyed()}`, 404, 'not_found');
  }
  for (const target of [
    '/readyz?/../x',
    '/readyz#/../x',
    'http://x/readyz',
    '/%72eadyz',
  ]) {
    t.regex(
      await exchange(api.port, `GET ${target} HTTP/1.1\r\n${keyed()}`),
      /^HTTP\/1\.1 200 /,
      target,
    );
  }
  const dotted = await exchange(
    api.port,
    `GET /api/v1/email/...x..%2f.. HTTP/1.1\r\n${keyed()}`,
  );
  t.regex(dotted, /^HTTP\/1\.1 422 /);
});

test('an idle connection stays open for longer than a request may take', async (t) => {
  const get = 'GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n';
  const socket = connect(api.port, '127.0.0.1');
  const replies = socket.setEncoding('utf8').iterator({ destroyOnReturn: false });
  socket.write(get);
  t.regex((await replies.next()).value, /\r\nKeep-Alive: timeout=75\r\n/);
  // This request times out, so its response comes when the whole time of a request has passed.
  await refused(t, submit('Content-Length: 20\r\n', ''), 408, 'request_timeout');
  socket.write(get);
  t.regex((await replies.next()).value, /^HTTP\/1\.1 200 OK\r\n/);
  socket.destroy();
});

test('an idle connection is closed after the keep-alive time', async (t) => {
  const own = await startApi({ apiKeepAliveMs: 1000 });
  const reply = await exchange(own.port, 'GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n');
  t.regex(reply, /\r\nKeep-Alive: timeout=1\r\n/);
  await own.stop();
});

test('headers and query strings that the API does not use do not change the response', async (t) => {
  const plain = await exchange(api.port, credits());
  t.regex(plain, /^HTTP\/1\.1 200 OK\r\n/);
  const bodyOf = (reply: string) => reply.slice(reply.indexOf('\r\n\r\n'));
  for (const extra of [
    'Cookie: a="b; ,,;=\r\n',
    'Cookie: __proto__=1; a=b; a=c\r\n',
    'Range: bytes=0-3\r\n',
    'Range: bytes=900-\r\n',
    'Range: nonsense\r\n',
    'Accept: text/html\r\n',
    'Accept-Encoding: gzip;q=9, ;;,*\r\n',
    'Accept-Encoding: gzip\r\n',
    'Origin: https://evil.example\r\n',
    'Upgrade: websocket\r\n',
    'Expect: nonsense\r\n',
    'X-HTTP-Method-Override: DELETE\r\n',
    'X-Forwarded-Host: evil.example\r\n',
    'Host: [[%%\r\n',
    'If-Modified-Since: nonsense\r\n',
    'Content-Type: nonsense\r\n',
    'Prefer: wait=nonsense\r\n',
  ]) {
    const reply = await exchange(api.port, credits(extra));
    t.regex(reply, /^HTTP\/1\.1 200 OK\r\n/, extra);
    t.is(bodyOf(reply), bodyOf(plain), extra);
    t.notRegex(reply, /access-control|set-cookie|evil/i);
  }
  for (const query of [
    '?',
    '?%zz',
    '?__proto__=1',
    '?a[b]=c&a=d',
    `?${'a&'.repeat(3000)}`,
    '#x',
    '?x#y',
  ]) {
    const reply = await exchange(
      api.port,
      `GET /api/v1/credits${query} HTTP/1.1\r\n${keyed()}`,
    );
    t.is(bodyOf(reply), bodyOf(plain), query);
  }
});

test('the API accepts HTTP/1.0, chunked bodies, pipelining, and GET with a body', async (t) => {
  const old = await exchange(
    api.port,
    `GET /api/v1/credits HTTP/1.0\r\nX-API-Key: ${client.apiKey}\r\n\r\n`,
  );
  t.regex(old, /^HTTP\/1\.1 200 OK\r\n/);
  const chunks = [...BODY].map((char) => `1\r\n${char}\r\n`).join('');
  const { apiKey } = await api.organization();
  const chunked = await exchange(
    api.port,
    submit('Transfer-Encoding: chunked\r\n', `${chunks}0\r\n\r\n`).replace(
      client.apiKey,
      apiKey,
    ),
  );
  t.regex(chunked, /^HTTP\/1\.1 202 /);
  const one = `GET /api/v1/credits HTTP/1.1\r\nHost: x\r\nX-API-Key: ${client.apiKey}\r\n\r\n`;
  const pipelined = await exchange(api.port, one.repeat(20) + credits());
  t.is(pipelined.split('HTTP/1.1 200 OK').length - 1, 21);
  const withBody = await exchange(
    api.port,
    `${credits(`Content-Length: ${BODY.length}\r\n`)}${BODY}`,
  );
  t.regex(withBody, /^HTTP\/1\.1 200 OK\r\n/);
});

test('the API keeps working after clients abort in the middle of their body', async (t) => {
  const cut = Array.from({ length: 20 }, async () => {
    const controller = new AbortController();
    const body = new ReadableStream<Uint8Array>({
      start: (stream) => stream.enqueue(Buffer.from('{"npi":')),
    });
    const headers = { 'x-api-key': client.apiKey, 'content-type': 'application/json' };
    const options = {
      method: 'POST',
      headers,
      body,
      duplex: 'half',
      signal: controller.signal,
    } as const;
    const sent = fetch(`${api.baseUrl}/api/v1/email`, options).catch(() => null);
    await client.get('/api/v1/credits');
    controller.abort();
    return await sent;
  });
  t.deepEqual(await Promise.all(cut), Array(20).fill(null));
  t.is((await client.get('/api/v1/credits')).status, 200);
});

test('browsers use only https if PUBLIC_URL is https, as every response says', async (t) => {
  const local = await startApi({ publicUrl: 'http://127.0.0.1:8080' });
  for (const path of [
    '/healthz',
    '/none',
    '/console/none',
    '/console/sign-in',
    '/docs',
  ]) {
    const policyOf = async (baseUrl: string) => {
      const { headers } = await fetch(`${baseUrl}${path}`, { redirect: 'manual' });
      return headers.get('strict-transport-security');
    };
    t.is(await policyOf(api.baseUrl), 'max-age=31536000', path);
    t.is(await policyOf(local.baseUrl), null, path);
  }
  await local.stop();
});
