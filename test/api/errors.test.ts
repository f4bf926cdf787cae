import test, { type ExecutionContext } from 'ava';
import { eq, sql } from 'drizzle-orm';
import { ROUTES } from '../../api/routes.ts';
import { reactivateKey, revokeKey, rotateKey } from '../../db/accounts/keys.ts';
import { setLimit, suspendOrganization } from '../../db/accounts/organizations.ts';
import { newId } from '../../db/connection/ids.ts';
import { batches } from '../../db/schema.ts';
import { freePort } from '../../deploy/ports.ts';
import { fresh, openEmptyDatabase } from '../support/database.ts';
import {
  type ApiResponse,
  BY,
  createCaller,
  eventually,
  grant,
} from '../support/organization.ts';
import { startApi } from '../support/stack.ts';

// Tests every error except 422: its body, its headers, the order of the checks, and that it reveals
// nothing secret.

const NPI = '1234567893';
/** A key with the right check characters that was never issued. */
const UNKNOWN_KEY = 'npe_00000000000000000000000000000044v2zE';
const IDS = {
  request_id: newId('req'),
  batch_id: newId('bat'),
  delivery_id: newId('msg'),
};
const KEYED = ROUTES.filter(({ role }) => role !== null).map(
  ({ method, path }) =>
    [
      method,
      path.replaceAll(/\{(\w+)\}/g, (_, name: keyof typeof IDS) => IDS[name]),
    ] as const,
);

const api = fresh(test, startApi);

const send = async (
  method: string,
  path: string,
  headers: Record<string, string> = {},
): Promise<ApiResponse> => {
  const body = method === 'POST' ? '{' : undefined;
  const response = await fetch(`${api.baseUrl}${path}`, {
    method,
    headers,
    ...(body ? { body } : {}),
  });
  return {
    status: response.status,
    headers: response.headers,
    text: await response.text(),
    json: null,
  };
};

/** Checks that a response is an RFC 9457 problem with exactly these members and an id to quote. */
function isProblem(
  t: ExecutionContext,
  reply: ApiResponse,
  status: number,
  code: string,
  members: object = {},
): void {
  t.is(reply.status, status, reply.text);
  t.is(reply.headers.get('content-type'), 'application/problem+json');
  t.truthy(reply.headers.get('x-request-id'));
  t.is(reply.headers.get('x-content-type-options'), 'nosniff');
  t.is(reply.headers.get('cache-control'), 'no-store');
  t.is(reply.headers.get('link'), `</docs/errors#${code}>; rel="help"`);
  const { title, detail, ...rest } = JSON.parse(reply.text) as Record<string, unknown>;
  t.is(typeof title, 'string');
  t.regex(String(detail), /^[A-Z](?!.*(?:[{}]|undefined)).*\.$/);
  t.deepEqual(rest, { type: 'about:blank', status, code, ...members });
  t.is(reply.headers.get('www-authenticate'), status === 401 ? 'Bearer' : null);
  t.is(reply.headers.has('allow'), status === 405);
  t.is(reply.headers.has('retry-after'), [409, 429, 503].includes(status));
}

test('every endpoint returns a 401 without an API key or with an invalid one', async (t) => {
  const { apiKey } = await api.organization();
  const other = apiKey.endsWith('A') ? 'B' : 'A';
  for (const [method, path] of KEYED) {
    isProblem(t, await send(method, path), 401, 'api_key_missing');
    isProblem(
      t,
      await send(method, path, { authorization: 'Bearer x' }),
      401,
      'api_key_invalid',
    );
  }
  for (const authorization of [
    apiKey,
    `Basic ${apiKey}`,
    `Bearer${apiKey}`,
    `Bearer ${apiKey}x`,
    `Bearer ${apiKey} x`,
    `Bearer ${apiKey}, Bearer ${apiKey}`,
    `Bearer ${apiKey.slice(0, -1)}${other}`,
    `Bearer ${apiKey.toUpperCase()}`,
    "Bearer ' or 1=1--",
    'Bearer ',
    `Bearer ${'x'.repeat(8000)}`,
    'Bearer ä',
  ]) {
    isProblem(
      t,
      await send('GET', '/api/v1/credits', { authorization }),
      401,
      'api_key_invalid',
    );
  }
  for (const key of ['', 'x', `Bearer ${apiKey}`, `${apiKey}, ${apiKey}x`]) {
    isProblem(
      t,
      await send('GET', '/api/v1/credits', { 'x-api-key': key }),
      401,
      'api_key_invalid',
    );
  }
});

test("a 401 says what is wrong with the API key's format, without repeating the key", async (t) => {
  const { apiKey } = await api.organization();
  const bare = /Write "Bearer" before it/;
  const usual = /Check it for missing characters/;
  const bearer = /Send only the key in X-API-Key/;
  const basic = /Basic authentication is not supported/;
  const cases: readonly (readonly [Record<string, string>, RegExp])[] = [
    [{ authorization: apiKey }, bare],
    [{ authorization: `Bearer${apiKey}` }, bare],
    [{ authorization: `Token ${apiKey}`, 'x-api-key': apiKey }, bare],
    [{ authorization: `Basic ${apiKey}` }, basic],
    [{ authorization: 'basic eDp5' }, basic],
    [{ 'x-api-key': `Bearer ${apiKey}` }, bearer],
    [{ authorization: `Bearer ${apiKey}x` }, usual],
    [{ authorization: `Bearer ${apiKey.slice(0, -1)}` }, usual],
    [{ authorization: `Bearer ${apiKey.replace('_', '_ ')}` }, /It contains spaces/],
    [{ authorization: 'Bearer sk_1' }, /It does not begin with "npe_"/],
    [{ authorization: `Bearer ${UNKNOWN_KEY}` }, /complete, but we do not know it/],
    [{ authorization: 'Bearer' }, /It is empty/],
    [{ authorization: 'Bearer ', 'x-api-key': apiKey }, /It is empty/],
    [{ 'x-api-key': '' }, /It is empty/],
    [
      { authorization: 'Bearer whsec_bm8=' },
      /This is a webhook secret. An API key begins with "npe_"/,
    ],
    [{ 'x-api-key': 'npe_x' }, usual],
    [{ authorization: `Bearer <${apiKey}>` }, /without brackets/],
    [{ 'x-api-key': `"${apiKey}"` }, /without quotes/],
    [{ authorization: 'Bearer $NPI_EMAIL_API_KEY' }, /the name of a variable/],
    [{ authorization: 'Bearer {{api_key}}' }, /the name of a variable/],
    [{ 'x-api-key': '%API_KEY%' }, /the name of a variable/],
    [
      { authorization: 'Bearer undefined' },
      /The variable that should contain it is not set/,
    ],
    [{ 'x-api-key': 'null' }, /The variable that should contain it is not set/],
  ];
  for (const [headers, expected] of cases) {
    const reply = await send('GET', '/api/v1/credits', headers);
    isProblem(t, reply, 401, 'api_key_invalid');
    t.regex(reply.text.replaceAll('\\"', '"'), expected);
    t.false(reply.text.includes(apiKey));
  }
});

test('error messages use singular and plural correctly', async (t) => {
  const detail = async (credits: number, npis: string[]) => {
    const client = await api.organization(credits);
    return (JSON.parse((await client.bulk({ npis })).text) as { detail: string }).detail;
  };
  t.is(
    await detail(0, [NPI]),
    'This submit needs 1 credit. Available: 0, held for running requests: 0. Nothing was queued. Submit fewer NPIs, or buy credits.',
  );
  t.regex(await detail(1, [NPI, '1234567894']), /needs 2 credits\./);
  const few = await api.organization(0, 1);
  await few.credits();
  t.regex((await few.get('/api/v1/credits')).text, /may send 1 request in 60 s/);
});

test('a trailing slash is ignored, and a 404 links to the documentation', async (t) => {
  const client = await api.organization();
  const { batch_id } = (
    await client.call<{ batch_id: string }>('POST', '/api/v1/email/', `{"npi":"${NPI}"}`)
  ).json;
  for (const path of [
    '/api/v1/credits',
    `/api/v1/batch/${batch_id}`,
    '/docs',
    '/healthz',
  ]) {
    const [plain, closed] = [await client.get(path), await client.get(`${path}/?x=1`)];
    t.deepEqual([closed.status, closed.text], [200, plain.text], path);
  }
  isProblem(t, await send('GET', '/api/v1/email/'), 405, 'method_not_allowed');
  for (const path of ['/api/v1/', '/nowhere/', '/%zz/', '/healthz/x']) {
    const reply = await send('GET', path);
    isProblem(t, reply, 404, 'not_found');
    t.regex(
      reply.text,
      /"There is nothing at this path\. Use .* The documentation is at \/docs\."/,
      path,
    );
  }
});

test('Authorization and X-API-Key both accept a key, and Authorization has priority', async (t) => {
  const { apiKey } = await api.organization();
  const credits = (headers: Record<string, string>) =>
    send('GET', '/api/v1/credits', headers);
  t.is((await credits({ 'x-api-key': apiKey })).status, 200);
  t.is((await credits({ authorization: `Bearer ${apiKey}` })).status, 200);
  t.is(
    (await credits({ authorization: `bearer ${apiKey}` })).status,
    200,
    'schemes ignore case, RFC 9110',
  );
  t.is(
    (await credits({ authorization: `Bearer ${apiKey}`, 'x-api-key': 'x' })).status,
    200,
  );
  t.is((await credits({ 'x-api-key': `${apiKey}, ${apiKey}` })).status, 200);
  isProblem(
    t,
    await credits({ authorization: 'Bearer x', 'x-api-key': apiKey }),
    401,
    'api_key_invalid',
  );
  isProblem(
    t,
    await credits({ authorization: 'Basic eDp5', 'x-api-key': apiKey }),
    401,
    'api_key_invalid',
  );
});

/** Waits for a status, because a key may stay accepted for a second after its end. */
const untilStatus = (status: number, headers: Record<string, string>) =>
  eventually(async () =>
    (await send('GET', '/api/v1/credits', headers)).status === status ? true : null,
  );

test('an API key gets a 403 within a second after it is revoked or replaced', async (t) => {
  const organization = await api.organization();
  const headers = { 'x-api-key': organization.apiKey };
  t.is((await send('GET', '/api/v1/credits', headers)).status, 200);
  await revokeKey(api.db, BY, organization.keyId);
  await untilStatus(403, headers);
  for (const [method, path] of KEYED)
    isProblem(t, await send(method, path, headers), 403, 'api_key_revoked');
  await reactivateKey(api.db, BY, organization.keyId);
  t.is((await send('GET', '/api/v1/credits', headers)).status, 200);
  const { issued } = await rotateKey(api.db, BY, organization.keyId, 0);
  await untilStatus(403, headers);
  for (const [method, path] of KEYED)
    isProblem(t, await send(method, path, headers), 403, 'api_key_inactive');
  t.is(
    (await send('GET', '/api/v1/credits', { 'x-api-key': issued.apiKey })).status,
    200,
  );
});

test('the API key of a suspended organization gets a 403 until the suspension ends', async (t) => {
  const organization = await api.organization();
  const headers = { 'x-api-key': organization.apiKey };
  t.is((await send('GET', '/api/v1/credits', headers)).status, 200);
  await suspendOrganization(api.db, BY, organization.organizationId, true);
  await untilStatus(403, headers);
  for (const [method, path] of KEYED)
    isProblem(t, await send(method, path, headers), 403, 'api_key_inactive');
  await suspendOrganization(api.db, BY, organization.organizationId, false);
  t.is((await send('GET', '/api/v1/credits', headers)).status, 200);
});

test('a 402 says how many credits are missing, and its Idempotency-Key stays unused', async (t) => {
  const client = await api.organization(4);
  const rows = async () => [
    await api.db.drizzle.$count(
      batches,
      eq(batches.organizationId, client.organizationId),
    ),
    await api.db.drizzle.$count(
      sql`idempotency_keys`,
      sql`organization_id = ${client.organizationId}`,
    ),
  ];
  const headers = { 'idempotency-key': 'poor' };
  const five = { npis: Array.from({ length: 5 }, (_, i) => `123456789${i}`) };
  const bulk = await client.bulk(five, headers);
  isProblem(t, bulk, 402, 'insufficient_credits', {
    required: 5,
    available: 4,
    held: 0,
    shortfall: 1,
  });
  const two = await client.bulk({
    npis: five.npis.slice(3),
    enrichment_email_type: 'personal',
  });
  isProblem(t, two, 402, 'insufficient_credits', {
    required: 6,
    available: 4,
    held: 0,
    shortfall: 2,
  });
  t.deepEqual(await client.credits(), { balance: 4, total: 4, used: 0 });
  t.deepEqual(await rows(), [0, 0]);
  await grant(api.db, client.organizationId, 1);
  t.is((await client.bulk(five, headers)).status, 202);
  t.deepEqual(await client.credits(), { balance: 0, total: 5, used: 0 });
  const single = await client.single({ npi: NPI });
  isProblem(t, single, 402, 'insufficient_credits', {
    required: 1,
    available: 0,
    held: 5,
    shortfall: 1,
  });
});

/** Returns the headers except those that differ between any two responses. */
function comparable({ headers }: ApiResponse): string[] {
  const own = /^(?:date|connection|keep-alive|x-request-id|ratelimit|x-ratelimit|retry)/;
  return [...headers]
    .filter(([name]) => !own.test(name))
    .map(([name, value]) => `${name}: ${value}`);
}

test('a path that does not exist gets a 404, with and without a key', async (t) => {
  const { apiKey } = await api.organization();
  for (const path of [
    '/api',
    '/api/v1',
    '/api/v1/',
    '/api/v1/email//',
    '/api/v1/email/a/b',
    '/api/v1/emails',
    '/api/v1/batch',
    '/api/v1/credits//',
    '/api/v2/credits',
    '/API/V1/CREDITS',
    '//api/v1/credits',
    '/api/v1//credits',
    '/api/v1/credits%00',
    '/api/v1/credits%2F',
    '/nowhere/%zz',
    '/%FF',
    '/healthz/x',
    `/${'a/'.repeat(5000)}`,
  ]) {
    for (const headers of [{}, { 'x-api-key': apiKey }]) {
      for (const method of ['GET', 'POST', 'DELETE', 'OPTIONS']) {
        isProblem(t, await send(method, path, headers), 404, 'not_found');
      }
    }
  }
});

test('the 404 for an unknown path names the path that was probably meant', async (t) => {
  const [batch, request, delivery] = [newId('bat'), newId('req'), newId('msg')];
  for (const [path, meant] of [
    [`/api/v1/batches/${batch}`, `GET /api/v1/batch/${batch}`],
    [`/batch/${batch}`, `GET /api/v1/batch/${batch}`],
    [`/api/v1/jobs/${batch}`, `GET /api/v1/batch/${batch}`],
    [`/api/v1/emails/${request}`, `GET /api/v1/email/${request}`],
    [`/api/v1/requests/${request}?x=1`, `GET /api/v1/email/${request}`],
    [`/api/v1/batches/${batch}/delivery`, `GET /api/v1/batch/${batch}/deliveries`],
    [
      `/api/v1/batches/${batch}/deliveries/${delivery}/resend`,
      `POST /api/v1/batch/${batch}/deliveries/${delivery}/resend`,
    ],
    [`/api/v1/deliveries/${delivery}`, null],
    ['/api/v1/batch', 'GET /api/v1/batches'],
    ['/api/v1/emails', 'POST /api/v1/email'],
    ['/v1/emails/bulk', 'POST /api/v1/email/bulk'],
    ['/api/v2/credit', 'GET /api/v1/credits'],
    ['/API/V1/CREDITS', 'GET /api/v1/credits'],
    ['/api/v1/batches/bat_x', null],
  ] as const) {
    const { text } = await send('GET', path);
    const [, shown] = /Did you mean (.*)\? The documentation/.exec(text) ?? [];
    t.is(shown ?? null, meant, path);
  }
});

test('a 405 lists the allowed methods, with and without a key', async (t) => {
  const { apiKey } = await api.organization();
  const allowed = {
    '/api/v1/email': 'POST',
    '/api/v1/email/bulk': 'POST',
    [`/api/v1/email/${newId('req')}`]: 'GET, HEAD',
    [`/api/v1/batch/${newId('bat')}`]: 'GET, HEAD',
    '/api/v1/credits': 'GET, HEAD',
    '/healthz': 'GET, HEAD',
    '/readyz': 'GET, HEAD',
  };
  for (const [path, allow] of Object.entries(allowed)) {
    const methods = allow === 'POST' ? ['GET', 'HEAD'] : ['POST'];
    for (const method of [...methods, 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'PROPFIND']) {
      for (const headers of [{}, { 'x-api-key': apiKey }]) {
        const reply = await send(method, path, headers);
        t.is(reply.headers.get('allow'), allow, `${method} ${path}`);
        if (method === 'HEAD') t.deepEqual([reply.status, reply.text], [405, '']);
        else isProblem(t, reply, 405, 'method_not_allowed');
      }
    }
  }
});

test('a request is checked in a fixed order, and only the first error is returned', async (t) => {
  const client = await api.organization(0);
  const key = { 'idempotency-key': 'order' };
  const bad = { 'idempotency-key': 'a b', 'content-type': 'text/plain' };
  const large = Buffer.alloc(70_000, 0x7b);
  const status = async (...args: Parameters<typeof client.call>) =>
    (await client.call(...args)).status;
  const as = (apiKey: string) => ({ authorization: `Bearer ${apiKey}` });

  t.is(
    await status('DELETE', '/api/v1/email', large, { ...bad, ...as('x') }),
    405,
    'route before key',
  );
  await setLimit(api.db, BY, client.organizationId, 1);
  t.is((await client.get('/api/v1/credits')).status, 200);
  t.is(
    await status('POST', '/api/v1/email', large, { ...bad, ...as('x') }),
    401,
    'key before rate',
  );
  t.is(await status('POST', '/api/v1/email', large, bad), 429, 'rate before size');
  await setLimit(api.db, BY, client.organizationId, 100);
  // A new limit applies within a second.
  const unlimited = await eventually(async () => {
    const reply = await status('POST', '/api/v1/email', large, bad);
    return reply === 429 ? null : reply;
  });
  t.is(unlimited, 413, 'size before type');
  t.is(await status('POST', '/api/v1/email', '{', bad), 415, 'type before validation');
  t.is(
    await status('POST', '/api/v1/email', '{', key),
    422,
    'validation before idempotency',
  );
  await grant(api.db, client.organizationId, 1);
  t.is((await client.single({ npi: NPI }, key)).status, 202);
  t.is(
    (await client.single({ npi: NPI }, key)).status,
    202,
    'idempotency before credits',
  );
  t.is(
    (await client.single({ npi: '1234567894' }, key)).status,
    422,
    'idempotency before credits',
  );
  t.is((await client.single({ npi: NPI })).status, 402);
});

test('HEAD returns the same as GET, without a body', async (t) => {
  const client = await api.organization();
  const { batch_id } = (await client.single({ npi: NPI })).json;
  for (const path of [
    '/api/v1/credits',
    `/api/v1/batch/${batch_id}`,
    `/api/v1/batch/${newId('bat')}`,
    '/healthz',
  ]) {
    const [head, get] = [await client.call('HEAD', path), await client.get(path)];
    t.is(head.status, get.status);
    t.is(head.text, '');
    t.deepEqual(comparable(head), comparable(get));
  }
});

test("every response has a request id, which is the client's own if that is harmless", async (t) => {
  const { get, call } = await api.organization();
  const idOf = async (sent: string) => {
    const { headers } = await get('/api/v1/credits', { 'x-request-id': sent });
    return headers.get('x-request-id');
  };
  for (const own of ['a', 'A-z_0.9:x', 'x'.repeat(128)]) t.is(await idOf(own), own);
  for (const odd of [
    '',
    'a b',
    'x'.repeat(129),
    '{"a":1}',
    'ä',
    '<x>',
    'a,b',
    '%0d%0aX-Evil: 1',
  ]) {
    t.regex((await idOf(odd)) ?? '', /^[0-9a-f-]{36}$/, odd);
  }
  const ids = await Promise.all([
    get('/healthz'),
    get('/readyz'),
    get('/x'),
    call('PUT', '/healthz'),
  ]);
  t.is(new Set(ids.map(({ headers }) => headers.get('x-request-id'))).size, 4);
});

test('without PostgreSQL, requests get a 503 with Retry-After, and /healthz a 200', async (t) => {
  const { apiKey } = await api.organization();
  const away = await startApi({
    databaseUrl: `postgres://nobody@127.0.0.1:${await freePort()}/nothing`,
  });
  try {
    const { call, get } = createCaller(away.baseUrl, apiKey);
    for (const [method, path] of KEYED) {
      const reply = await call(method, path, method === 'POST' ? '{' : undefined);
      isProblem(t, reply, 503, 'service_unavailable');
      t.regex(reply.headers.get('retry-after') ?? '', /^[1-9][0-9]?$/);
      const { status } = await call(method, path, method === 'POST' ? '{' : undefined, {
        authorization: 'Bearer x',
      });
      t.is(status, 401, 'what is no key needs no database');
    }
    t.is((await get('/healthz')).status, 200);
    const ready = await get('/readyz');
    t.is(ready.status, 503);
    t.is(ready.text, '{"status":"database_away"}');
    t.truthy(ready.headers.get('retry-after'));
    t.truthy(ready.headers.get('x-request-id'));
  } finally {
    await away.stop();
  }
});

test('/healthz and /readyz need no key and do not count against the rate limit', async (t) => {
  const client = await api.organization(0, 1);
  for (let i = 0; i < 3; i += 1) {
    for (const headers of [{}, { 'x-api-key': client.apiKey }, { 'x-api-key': 'x' }]) {
      const [health, ready] = [
        await send('GET', '/healthz', headers),
        await send('GET', '/readyz', headers),
      ];
      t.deepEqual([health.status, health.text], [200, '{"status":"ok"}']);
      t.deepEqual([ready.status, ready.text], [200, '{"status":"ready"}']);
      t.false(health.headers.has('ratelimit'));
    }
  }
  t.is((await client.get('/api/v1/credits')).status, 200);
  t.is((await client.get('/api/v1/credits')).status, 429);
});

test('without migrations, the API is not ready, and its responses contain no SQL', async (t) => {
  const { apiKey } = await api.organization();
  await using database = await openEmptyDatabase();
  const lines: string[] = [];
  const empty = await startApi({
    databaseUrl: database.url,
    onLog: (line) => lines.push(line),
  });
  try {
    const { get } = createCaller(empty.baseUrl, apiKey);
    const ready = await get('/readyz');
    t.deepEqual([ready.status, ready.text], [503, '{"status":"migrations_missing"}']);
    const reply = await get('/api/v1/credits', { 'x-request-id': 'quote-me' });
    isProblem(t, reply, 500, 'internal_error');
    t.notRegex(reply.text, /sql|select|api_keys|relation|postgres/i);
    const log = lines.join('');
    t.regex(log, /"http_request_id":"quote-me".*"msg":"request failed"/);
    t.notRegex(log, /select|api_keys|\\\\x/i);
    t.false(log.includes(apiKey.slice(4, 34)));
  } finally {
    await empty.stop();
  }
});

test("neither errors nor log lines repeat the client's input", async (t) => {
  const lines: string[] = [];
  const logged = await startApi({
    databaseUrl: api.databaseUrl,
    onLog: (line) => lines.push(line),
  });
  try {
    const { apiKey } = await api.organization(2);
    const { call } = createCaller(logged.baseUrl, apiKey);
    const canary = 'canary';
    const good = {
      npi: NPI,
      webhook: { url: `https://${canary}.example/` },
      custom_data: { a: canary },
    };
    const key = { 'idempotency-key': canary };
    const attempts: Parameters<typeof call>[] = [
      ['POST', '/api/v1/email', JSON.stringify({ ...good, npi: canary }), key],
      [
        'POST',
        '/api/v1/email',
        JSON.stringify({ ...good, enrichment_email_type: canary }),
        key,
      ],
      [
        'POST',
        '/api/v1/email',
        JSON.stringify({ ...good, webhook: { url: `http://${canary}.x` } }),
        key,
      ],
      ['POST', '/api/v1/email', JSON.stringify({ ...good, custom_data: canary }), key],
      ['POST', '/api/v1/email', `{"${canary}`, key],
      ['POST', '/api/v1/email', '{}', { 'idempotency-key': `${canary} ${canary}` }],
      ['POST', '/api/v1/email', '{}', { 'content-type': canary }],
      ['POST', '/api/v1/email', JSON.stringify(good), key],
      [
        'POST',
        '/api/v1/email',
        JSON.stringify({ ...good, custom_data: { b: canary } }),
        key,
      ],
      [
        'POST',
        '/api/v1/email/bulk',
        JSON.stringify({ ...good, npis: Array(60).fill(NPI) }),
      ],
      ['GET', '/api/v1/credits', undefined, { authorization: `Bearer ${canary}` }],
      [
        'GET',
        `/api/v1/email/${canary}?${canary}`,
        undefined,
        { cookie: canary, referer: canary },
      ],
      ['GET', `/api/v1/batch/${canary}`],
      ['GET', `/${canary}`],
      ['PUT', `/api/v1/email/${canary}`, canary],
    ];
    for (const attempt of attempts)
      t.false((await call(...attempt)).text.includes(canary), attempt.join(' '));
    t.true(lines.length > attempts.length);
    const log = lines.join('');
    t.false(log.includes(canary));
    t.false(log.includes(apiKey));
  } finally {
    await logged.stop();
  }
});
