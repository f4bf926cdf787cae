import { connect, type Socket } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { fresh } from '../support/database.ts';
import { exchange } from '../support/organization.ts';
import { startApi } from '../support/stack.ts';

// Tests bodies that are not JSON, are too large, have another type, or never end.

const NPI = '1234567893';
const SINGLE = '/api/v1/email';
const GOOD = `{"npi":"${NPI}"}`;
const MAX_BYTES = 64 * 1024;

const api = fresh(test, startApi);
const client = fresh(test, () => api.organization(10_000));

const post = (body: string | Uint8Array<ArrayBuffer>, headers?: Record<string, string>) =>
  client.call<{ batch_id: string; code: string }>('POST', SINGLE, body, headers);

async function brokenAt(
  t: ExecutionContext,
  body: string | Buffer<ArrayBuffer>,
  offset: number,
): Promise<void> {
  const response = await post(body);
  const about = String(body).slice(0, 80);
  const [{ msg, ...problem }, ...others] = JSON.parse(response.text).detail;
  t.is(response.status, 422);
  t.deepEqual(problem, { loc: ['body', offset], type: 'json_invalid' }, about);
  t.regex(msg, /^JSON decode error\. /);
  t.deepEqual(others, []);
}

test('a submit with broken JSON gets a 422 with the position of the error', async (t) => {
  const cases: readonly (readonly [text: string, offset: number])[] = [
    ['{', 1],
    ['{"npi"', 6],
    ['{"npi":', 7],
    [`{"npi":"${NPI}"`, 19],
    [`{"npi":"${NPI}",}`, 20],
    [`{"npi":"${NPI}"} x`, 21],
    [`{"npi":"${NPI}"}{}`, 20],
    [`{"npi":"${NPI}"},{}`, 20],
    ['[1],', 3],
    ["{'npi':1}", 1],
    ['{npi:1}', 1],
    ['{"npi" "x"}', 7],
    ['{"npi":"unterminated', 7],
    ['{"npi":"a\u0000b"}', 7],
    ['{"npi":"a\nb"}', 7],
    ['{"npi":"\\x"}', 7],
    ['{"npi":"\\u12g4"}', 7],
    ['{"npi":NaN}', 7],
    ['{"npi":undefined}', 7],
    ['{"npi":True}', 7],
    ['{"npi":-}', 7],
    ['{"npi":+1}', 7],
    ['{"npi":.5}', 7],
    ['{"npi":01}', 8],
    ['{"npi":1.}', 7],
    ['{"npi":1.}', 7],
    ['{"npi":0x1}', 8],
    ['{"npi":[1,2', 11],
    ['{"npi":[1,]}', 10],
    ['{"npi":[1 2]}', 10],
    ['{"npi":[1}', 9],
    ['{"a":{"b":{"c":[{"d":[}]}}}', 22],
    ['{"npi":1]', 8],
    ['[]]', 2],
    [' \t\r\n', 4],
    ['\u00a0{}', 0],
    ['// x\n{}', 0],
    ['<xml/>', 0],
    ['npi=1234567893', 0],
    ['\u0000', 0],
    [`{"npi":"${NPI}"}\u0000`, 20],
  ];
  for (const [text, offset] of cases) await brokenAt(t, text, offset);
  await brokenAt(t, '['.repeat(MAX_BYTES), MAX_BYTES);
  await brokenAt(t, '{"a":'.repeat(13_000), 65_000);
  await brokenAt(t, `{"a":"${'x'.repeat(65_000)}`, 5);
});

test('a submit with bytes that are not UTF-8 gets a 422 with their position', async (t) => {
  const around = (bytes: number[], before = '{"npi":"') =>
    Buffer.concat([Buffer.from(before), Buffer.from(bytes), Buffer.from('"}')]);
  for (const bytes of [
    [0xff],
    [0xc3],
    [0xc0, 0x80],
    [0xe2, 0x28, 0xa1],
    [0xed, 0xa0, 0x80],
    [0xf5, 0x80, 0x80, 0x80],
  ]) {
    await brokenAt(t, around(bytes), 8);
  }
  // A genuine replacement character before the bad byte, and an incomplete one.
  await brokenAt(t, around([0xff], '{"npi":"\ufffd'), 9);
  await brokenAt(t, around([0xef, 0xbf, 0x41]), 8);
  await brokenAt(t, around([0xff], '{"npi":"é漢😀'), 12);
  await brokenAt(t, Buffer.from([0x7b, 0x22, 0xe6, 0xbc]), 2);
  await brokenAt(t, Buffer.from(`\ufeff${GOOD}`, 'utf16le'), 0);
  await brokenAt(t, Buffer.from([0x1f, 0x8b, 0x08]), 1);
});

test('a body may begin with a byte order mark, and error positions do not count it', async (t) => {
  t.is((await post(`\ufeff${GOOD}`)).status, 202);
  await brokenAt(t, '\ufeff{', 1);
  await brokenAt(t, '\ufeff\ufeff{}', 0);
});

test('an empty body gets a 422 "Field required", unless its content type is not JSON', async (t) => {
  const msg = 'Field required. Send a JSON object as the body';
  const missing = JSON.stringify({ detail: [{ loc: ['body'], msg, type: 'missing' }] });
  t.is((await post('')).text, missing);
  const headers = `Host: x\r\nX-API-Key: ${client.apiKey}\r\nConnection: close\r\n`;
  for (const extra of ['', 'Content-Length: 0\r\n', 'Transfer-Encoding: chunked\r\n']) {
    const end = extra.includes('chunked') ? '0\r\n\r\n' : '';
    const response = await exchange(
      api.port,
      `POST ${SINGLE} HTTP/1.1\r\n${headers}${extra}\r\n${end}`,
    );
    t.regex(response, /^HTTP\/1\.1 422 /);
    t.true(response.endsWith(missing), response);
  }
  t.is((await post('', { 'content-type': 'text/plain' })).status, 415);
});

test('a body with a content type other than JSON, or with an encoding, gets a 415', async (t) => {
  const refused = [
    'text/plain',
    'text/json',
    'application/xml',
    'application/x-www-form-urlencoded',
    'multipart/form-data; boundary=x',
    'application/jsonp',
    'application/javascript',
    'application',
    'json',
    '/',
    ';',
    '"',
    'text/plain; application/json',
    'text/plain, application/json',
  ];
  for (const type of refused) {
    const response = await post(GOOD, { 'content-type': type });
    t.is(response.status, 415, type);
    t.is(response.json.code, 'unsupported_media_type');
  }
  t.is(
    (await post('{', { 'content-type': 'text/plain' })).status,
    415,
    'before validation',
  );
  const untyped = await fetch(`${api.baseUrl}${SINGLE}`, {
    method: 'POST',
    headers: { 'x-api-key': client.apiKey },
    body: Buffer.from(GOOD),
  });
  t.is(untyped.status, 415);
  for (const encoding of ['gzip', 'br', 'deflate', 'x']) {
    t.is((await post(GOOD, { 'content-encoding': encoding })).status, 415, encoding);
  }
  t.is((await post(GOOD, { 'content-encoding': 'identity' })).status, 202);
  for (const type of [
    'application/json',
    'application/json;charset=utf-8',
    'APPLICATION/JSON ; x=y',
    'application/vnd.x+json',
  ]) {
    t.is((await post(GOOD, { 'content-type': type })).status, 202, type);
  }
});

test('a body of 64 KiB is accepted, and one byte more gets a 413', async (t) => {
  const padded = (bytes: number) => `{"npi":"${NPI}","x":"${'x'.repeat(bytes - 27)}"}`;
  t.is(Buffer.byteLength(padded(MAX_BYTES)), MAX_BYTES);
  t.is((await post(padded(MAX_BYTES))).status, 202);
  const over = await post(padded(MAX_BYTES + 1));
  t.is(over.status, 413);
  t.is(over.json.code, 'body_too_large');
  const chunked = async (bytes: number) => {
    const head = `POST ${SINGLE} HTTP/1.1\r\nHost: x\r\nX-API-Key: ${client.apiKey}\r\nConnection: close\r\n`;
    const type = 'Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n';
    const body = `${bytes.toString(16)}\r\n${padded(bytes)}\r\n0\r\n\r\n`;
    return (await exchange(api.port, head + type + body)).slice(9, 12);
  };
  t.is(await chunked(MAX_BYTES), '202');
  t.is(await chunked(MAX_BYTES + 1), '413');
});

test('a client that sends a body of 5 or 10 MB gets an error and can send again', async (t) => {
  const body = Buffer.alloc(10 * 1024 * 1024, 0x20);
  t.is((await post(body)).status, 413);
  t.is((await post(body, { authorization: 'Bearer x' })).status, 401);
  t.is((await post(body, { 'content-type': 'x' })).status, 413, 'size before type');
  t.is((await client.call('PUT', SINGLE, body, { 'content-type': 'x' })).status, 405);
  t.is((await client.call('POST', '/nowhere', body)).status, 404);
  t.is((await post(JSON.stringify({ npi: 'x'.repeat(5 * 1024 * 1024) }))).status, 413);
  t.is((await post(`{"npi":${'['.repeat(100_000)}`)).status, 413);
  t.is((await post(GOOD)).status, 202);
});

test('a client that sends its whole body of 5 MB before it reads still gets the error', async (t) => {
  const size = 5 * 1024 * 1024;
  for (const [request, status] of [
    [`POST ${SINGLE} HTTP/1.1\r\n`, 401],
    [`POST ${SINGLE} HTTP/1.1\r\nX-API-Key: ${client.apiKey}\r\n`, 413],
    ['PUT /nowhere HTTP/1.1\r\n', 404],
  ] as const) {
    const head = `${request}Host: x\r\nConnection: close\r\nContent-Length: ${size}\r\n\r\n`;
    const response = await new Promise<string>((resolve, reject) => {
      const socket = connect(api.port, '127.0.0.1', () => {
        socket.pause();
        socket.write(head);
        send(socket, size, () => socket.resume());
      });
      let heard = '';
      socket.on('data', (chunk) => {
        heard += chunk;
      });
      socket.on('error', reject);
      socket.on('close', () => resolve(heard));
    });
    t.true(response.startsWith(`HTTP/1.1 ${status} `), response);
  }
});

/** Sends `bytes` bytes, each part once the last one has left. */
function send(socket: Socket, bytes: number, done: () => void): void {
  if (bytes === 0) done();
  else
    socket.write(Buffer.alloc(Math.min(bytes, 64 * 1024)), () =>
      send(socket, Math.max(0, bytes - 64 * 1024), done),
    );
}

test('a client that sends Expect: 100-continue gets a 100 or an error before its body', async (t) => {
  const head = `POST ${SINGLE} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n`;
  const ask = `Content-Length: ${GOOD.length}\r\nExpect: 100-continue\r\n\r\n`;
  t.regex(await exchange(api.port, head + ask), /^HTTP\/1\.1 401 /);
  const told = await exchange(
    api.port,
    `${head}X-API-Key: ${client.apiKey}\r\n${ask}${GOOD}`,
  );
  t.regex(told, /^HTTP\/1\.1 100 Continue\r\n\r\nHTTP\/1\.1 202 /);
  const unknown = `${head}X-API-Key: ${client.apiKey}\r\n${ask.replace('100-continue', 'tea')}${GOOD}`;
  t.regex(await exchange(api.port, unknown), /^HTTP\/1\.1 202 /);
});

test('deeply nested JSON gets a 422, except in fields that we ignore', async (t) => {
  const deep = `${'['.repeat(30_000)}${']'.repeat(30_000)}`;
  const objects = `${'{"a":'.repeat(9_000)}1${'}'.repeat(9_000)}`;
  const problemAt = async (body: string) => {
    const { status, json } = await post(body);
    const { detail } = json as unknown as { detail: { loc: unknown[]; type: string }[] };
    return { status, found: detail.map(({ loc, type }) => `${loc.join('.')} ${type}`) };
  };
  t.is((await post(`{"npi":"${NPI}","x":${deep}}`)).status, 202);
  t.deepEqual(await problemAt(`{"npi":${deep}}`), {
    status: 422,
    found: ['body.npi string_type'],
  });
  t.deepEqual(await problemAt(deep), {
    status: 422,
    found: ['body model_attributes_type'],
  });
  t.deepEqual(await problemAt(`{"npi":"${NPI}","webhook":${objects}}`), {
    status: 422,
    found: ['body.webhook.url missing'],
  });
  const small = `${'{"a":'.repeat(2000)}1${'}'.repeat(2000)}`;
  for (const [data, type] of [
    [small, 'dict_too_deep'],
    [objects, 'dict_too_large'],
    [deep, 'dict_type'],
  ]) {
    t.deepEqual(await problemAt(`{"npi":"${NPI}","custom_data":${data}}`), {
      status: 422,
      found: [`body.custom_data ${type}`],
    });
  }
});

test('a request that is incomplete after 10 s gets a 408', async (t) => {
  const keyed = `Host: x\r\nX-API-Key: ${client.apiKey}\r\nContent-Type: application/json\r\n`;
  const beginnings = [
    '',
    'GET /',
    `POST ${SINGLE} HTTP/1.1\r\nHost: x\r\nX-Slow: `,
    `POST ${SINGLE} HTTP/1.1\r\n${keyed}Content-Length: 1000\r\n\r\n`,
    `POST ${SINGLE} HTTP/1.1\r\n${keyed}Transfer-Encoding: chunked\r\n\r\n400\r\n{"npi`,
    `POST ${SINGLE} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n`,
    `PUT /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n`,
    `GET /api/v1/credits HTTP/1.1\r\n${keyed}Content-Length: 1000\r\n\r\n`,
  ];
  const ends = Array.from({ length: 50 }, (_, i) =>
    drip(api.port, beginnings[i % beginnings.length] ?? ''),
  );
  // Other clients are served in the meantime.
  t.is((await post(GOOD)).status, 202);
  const responses = await Promise.all(ends);
  for (const response of responses)
    t.regex(response, /^(?:HTTP\/1\.1 408 |HTTP\/1\.1 200 )/);
  t.is(
    responses.filter(
      (response) =>
        / 408 /.test(response.slice(0, 13)) && /x-request-id: /i.test(response),
    ).length,
    44,
  );
});

/**
 * Sends one byte per second until the server closes the connection; nothing if `beginning` is
 * empty.
 */
function drip(port: number, beginning: string): Promise<string> {
  return new Promise((resolve) => {
    let response = '';
    const socket = connect(port, '127.0.0.1', () => socket.write(beginning));
    const timer = setInterval(() => socket.write(beginning && 'x'), 1000);
    socket.on('data', (chunk) => {
      response += chunk;
    });
    socket.on('error', () => {});
    socket.on('close', () => {
      clearInterval(timer);
      resolve(response);
    });
  });
}
