import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Validator } from '@seriousme/openapi-schema-validator';
import test, { type ExecutionContext } from 'ava';
import { sql } from 'drizzle-orm';
import fc from 'fast-check';
import type Joi from 'joi';
import { bulkBody, singleBody } from '../../api/http/submit-body.ts';
import { check } from '../../api/http/validation.ts';
import type { JsonObject } from '../../api/openapi/json-schema.ts';
import { PROBLEMS } from '../../api/problems.ts';
import { ROUTES } from '../../api/routes.ts';
import { revokeKey } from '../../db/accounts/keys.ts';
import { suspendWebhooks } from '../../db/accounts/organizations.ts';
import { newId } from '../../db/connection/ids.ts';
import { storedEmails } from '../../db/schema.ts';
import { examplesOf, misfits, operations, violations } from '../support/conformance.ts';
import { fresh } from '../support/database.ts';
import { type ApiResponse, BY, createCaller, exchange } from '../support/organization.ts';
import { openapi } from '../support/site.ts';
import { type ApiClient, startApi } from '../support/stack.ts';

// Tests that the document at /openapi.json is valid and complete, and matches real responses.

const SINGLE = 'POST /api/v1/email';
const BULK = 'POST /api/v1/email/bulk';
const REQUEST = 'GET /api/v1/email/{request_id}';
const BATCH = 'GET /api/v1/batch/{batch_id}';
const DELIVERIES = 'GET /api/v1/batch/{batch_id}/deliveries';
const DELIVERY = 'GET /api/v1/batch/{batch_id}/deliveries/{delivery_id}';
const RESEND = 'POST /api/v1/batch/{batch_id}/deliveries/{delivery_id}/resend';
const ALL_DELIVERIES = 'GET /api/v1/deliveries';
const RESEND_FAILED = 'POST /api/v1/deliveries/resend';
const BATCHES = 'GET /api/v1/batches';
const CREDITS = 'GET /api/v1/credits';
const LEDGER = 'GET /api/v1/credits/ledger';
const USAGE = 'GET /api/v1/usage';
const NPI = '1234567893';
const STORED = '2000000051';
const api = fresh(test, startApi);
const client = fresh(test, () => api.organization(1000));

test.before(async () => {
  await api.db.drizzle.insert(storedEmails).values({
    npi: STORED,
    email: 'avery.lindqvist@harborfamilymedicine-sim.com',
    emailType: 'professional',
    verdict: 'valid',
    lastValidatedAt: new Date(),
    source: 'test',
  });
});

/** Checks a response against the document. */
function conforms(
  t: ExecutionContext,
  operation: string,
  status: number,
  reply: ApiResponse,
): void {
  t.is(reply.status, status, reply.text);
  t.deepEqual(misfits(operation, reply), [], `${operation} ${status}: ${reply.text}`);
}

test('/openapi.json is valid OpenAPI 3.1', async (t) => {
  const { valid, errors } = await new Validator().validate(structuredClone(openapi));
  t.true(valid, JSON.stringify(errors));
});

test('every test fails at a response that /openapi.json does not describe', async (t) => {
  const credits = { balance: 1, total: 1, used: 0 };
  const replies = [
    [418, 'application/json', credits],
    [200, 'text/html', credits],
    [200, 'application/json', { ...credits, held: 0 }],
    [200, 'application/json', { balance: 1 }],
  ] as const;
  const { headers } = await client.get('/api/v1/credits');
  const sent = [...headers].filter(([name]) => /^(x-|ratelimit|cache)/.test(name));
  for (const [status, type, body] of replies) {
    const other = createServer((_, response) => {
      const all = { ...Object.fromEntries(sent), 'content-type': type };
      response.writeHead(status, all).end(JSON.stringify(body));
    });
    await once(other.listen(0, '127.0.0.1'), 'listening');
    const { port } = other.address() as AddressInfo;
    const caller = createCaller(`http://127.0.0.1:${port}`, '');
    await t.throwsAsync(caller.credits(), { message: /is not as in \/openapi.json/ });
    other.closeAllConnections();
    other.close();
  }
});

test('/openapi.json describes exactly the routes of the server', async (t) => {
  const described = operations();
  // The document does not describe the pages for people, which pages.test.ts tests, and /mcp, which
  // describes its tools itself.
  const isPage = (path: string) =>
    /^\/(?:docs\b.*|console\b.*|mcp|llms(?:-full)?\.txt|)$/.test(path);
  const served = api
    .routes()
    .filter(({ path }) => !isPage(path))
    .map(({ method, path }) => `${method} ${path}`);
  t.deepEqual(
    described.filter((operation) => !served.includes(operation)),
    [],
  );
  const others = served.filter((operation) => !described.includes(operation));
  for (const other of others) {
    const [method = '', path = ''] = other.split(' ');
    const { status } = await client.call(method === '*' ? 'DELETE' : method, path);
    t.true(
      status === 404 || status === 405,
      `${other} is served and not described: ${status}`,
    );
  }
});

test('/openapi.json names only existing operations, and every body has an example', (t) => {
  const ids: readonly string[] = ROUTES.map(({ id }) => id);
  const text = JSON.stringify(openapi);
  const linked = [...text.matchAll(/"operationId":"(\w+)"/g)].map(([, id = '']) => id);
  const failing = Object.values(PROBLEMS).flatMap(({ at }) =>
    typeof at === 'string' ? [] : at.filter((one) => one !== 'keyed'),
  );
  t.deepEqual(
    [...new Set([...linked, ...failing])].toSorted(),
    [...ids, 'submitSingleResult', 'submitBulkResult'].toSorted(),
  );
  t.false(text.includes('"examples":{}'));
});

test('/openapi.json contains nothing that breaks generators of clients', (t) => {
  const wrong: string[] = [];
  JSON.stringify(openapi, (at, value: unknown) => {
    const words = typeof value === 'object' && value !== null ? Object.keys(value) : [];
    const { type, format } = (value ?? {}) as {
      readonly type?: unknown;
      readonly format?: unknown;
    };
    const has = (...some: string[]) => some.some((word) => words.includes(word));
    const isNullable = Array.isArray(type) && type.includes('null');
    const isMember = /^[a-z]/.test(at);
    if (has('$ref') && words.length > 1) wrong.push(`${at}: siblings of a $ref`);
    if (format === 'date-time' && has('pattern', 'minLength'))
      wrong.push(`${at}: bounds of a time`);
    if (isNullable && (has('enum', 'const') || type.includes('object')))
      wrong.push(`${at}: null without a name`);
    if (type === 'object' && isMember && has('properties'))
      wrong.push(`${at}: an object without a name`);
    if (at !== 'schema' && has('type') && has('default')) wrong.push(`${at}: a default`);
    return value;
  });
  t.deepEqual(wrong, []);
  const operations = Object.values(openapi.paths as JsonObject).flatMap((item) =>
    Object.values(item as JsonObject),
  );
  const callbacks = operations.flatMap(
    (one) => (one as { callbacks?: JsonObject }).callbacks ?? [],
  );
  t.is(callbacks.length, 2);
  t.false(JSON.stringify(callbacks).includes('/components/callbacks'));
  for (const operation of operations)
    t.true(Object.hasOwn(operation as JsonObject, 'description'));
});

test('every example in /openapi.json matches its schema', (t) => {
  const examples = examplesOf(openapi);
  t.true(examples.length > 30);
  for (const { at, schema, value } of examples)
    t.deepEqual(violations(schema, value), [], at);
});

test('the body schemas in /openapi.json accept exactly what the service accepts', (t) => {
  const scalar = fc.constantFrom<unknown>(
    null,
    5,
    '',
    NPI,
    `${NPI}\n`,
    '１２３４５６７８９０',
    '123',
    true,
    [],
    {},
    [NPI],
  );
  const type = fc.oneof(
    scalar,
    fc.constantFrom('any', 'professional', 'personal', 'Any'),
  );
  const url = fc.oneof(
    scalar,
    fc.constantFrom(
      'https://a.example/x',
      'HTTPS://A.example',
      'http://a.example',
      'https:///x',
      'https:x',
      'x://',
    ),
    fc
      .integer({ min: 2000, max: 2100 })
      .map((length) => `https://a.example/${'x'.repeat(length - 18)}`),
  );
  const mode = fc.oneof(scalar, fc.constantFrom('real-time', 'batch', 'BATCH'));
  const webhook = fc.oneof(
    scalar,
    fc.record({ url, mode, more: scalar }, { requiredKeys: [] }),
  );
  const common = {
    enrichment_email_type: type,
    webhook,
    custom_data: scalar,
    unknown: scalar,
  };
  const npis = fc.oneof(
    scalar,
    fc.array(scalar, { maxLength: 3 }),
    fc.nat(62).map((n) => Array(n).fill(NPI)),
  );
  const body = (own: Record<string, fc.Arbitrary<unknown>>) =>
    fc.oneof(
      scalar,
      fc.record<Record<string, unknown>>({ ...own, ...common }, { requiredKeys: [] }),
    );
  const agrees = (schema: Joi.ObjectSchema, component: string) => (value: unknown) => {
    const { problems } = check('body', schema, value, {
      customData: '{}',
      forbids: () => false,
    });
    const wrong = violations(`#/components/schemas/${component}`, value);
    return (problems.length === 0) === (wrong.length === 0);
  };
  const options = { numRuns: 2000 };
  t.notThrows(() =>
    fc.assert(
      fc.property(body({ npi: scalar }), agrees(singleBody, 'SingleSubmit')),
      options,
    ),
  );
  t.notThrows(() =>
    fc.assert(fc.property(body({ npis }), agrees(bulkBody, 'BulkSubmit')), options),
  );
});

test('/openapi.json needs no key, does not count against rate limits, and has an ETag', async (t) => {
  const path = '/openapi.json';
  const operation = `GET ${path}`;
  const first = await createCaller(api.baseUrl, '').get(path);
  conforms(t, operation, 200, first);
  t.deepEqual(first.json, JSON.parse(JSON.stringify(openapi)));
  t.is(first.headers.get('ratelimit'), null);
  const etag = first.headers.get('etag') ?? '';
  conforms(t, operation, 304, await client.get(path, { 'if-none-match': etag }));
  t.is((await client.get(path)).headers.get('etag'), etag);
});

test('responses to submits and polls match /openapi.json: 202, 200, 304', async (t) => {
  const submitted = {
    npis: [NPI, STORED],
    webhook: { url: 'https://a.example/' },
    custom_data: { n: 1 },
  };
  const first = await client.bulk(submitted, { 'idempotency-key': 'twice' });
  conforms(t, BULK, 202, first);
  const again = await client.bulk(submitted, { 'idempotency-key': 'twice' });
  conforms(t, BULK, 202, again);
  t.is(again.headers.get('idempotent-replayed'), 'true');
  const running = await client.single({ npi: NPI }, { prefer: 'wait=1' });
  conforms(t, SINGLE, 202, running);
  t.is(running.headers.get('preference-applied'), 'wait=1');
  const over = await client.single({ npi: STORED });
  conforms(t, SINGLE, 202, over);
  for (const { json } of [first, running, over]) {
    const polls = [
      [BATCH, `/api/v1/batch/${json.batch_id}`],
      ...json.requests.map((one) => [REQUEST, one.poll_url]),
    ];
    for (const [operation = '', path = ''] of polls) {
      const poll = await client.get(path);
      conforms(t, operation, 200, poll);
      t.false(poll.text.includes('"usage":null'));
      const etag = poll.headers.get('etag') ?? '';
      conforms(t, operation, 304, await client.get(path, { 'if-none-match': etag }));
    }
  }
  conforms(t, CREDITS, 200, await client.get('/api/v1/credits'));
});

test('errors about API keys match /openapi.json: 401, 403, 429', async (t) => {
  const replaced = await api.organization();
  await revokeKey(api.db, BY, replaced.keyId);
  const few = await api.organization(0, 1);
  const callers = { nobody: createCaller(api.baseUrl, 'npe_wrong'), replaced, few };
  await few.credits();
  for (const { method, path } of ROUTES.filter(({ role }) => role !== null)) {
    const operation = `${method} ${path}`;
    const ask = (caller: Pick<ApiClient, 'call'>) =>
      caller.call(method, path, method === 'POST' ? '{}' : undefined);
    conforms(t, operation, 401, await ask(callers.nobody));
    conforms(t, operation, 403, await ask(callers.replaced));
    conforms(t, operation, 429, await ask(callers.few));
  }
});

test('errors of submits match /openapi.json: 402, 409, 413, 415, 422', async (t) => {
  const poor = await api.organization(0);
  for (const [operation, body] of [
    [SINGLE, { npi: NPI }],
    [BULK, { npis: [NPI] }],
  ] as const) {
    const path = operation.slice(5);
    const text = JSON.stringify(body);
    conforms(t, operation, 402, await poor.call('POST', path, text));
    conforms(t, operation, 413, await client.call('POST', path, ' '.repeat(65 * 1024)));
    conforms(
      t,
      operation,
      415,
      await client.call('POST', path, text, { 'content-type': 'text/plain' }),
    );
    conforms(t, operation, 422, await client.call('POST', path, '{'));
    const headers = { 'idempotency-key': '' };
    conforms(
      t,
      operation,
      422,
      await client.call('POST', path, '{"webhook":{"url":"http://x"}}', headers),
    );
    conforms(
      t,
      operation,
      409,
      await whileRunning(path, () =>
        client.call('POST', path, text, { 'idempotency-key': 'busy' }),
      ),
    );
  }
});

/** Runs `ask` while a transaction holds the Idempotency-Key `busy`. */
async function whileRunning(
  path: string,
  ask: () => Promise<ApiResponse>,
): Promise<ApiResponse> {
  return await api.db.drizzle.transaction(async (tx) => {
    await tx.execute(sql`
      insert into idempotency_keys (organization_id, method, path, key, fingerprint, created_at, expires_at)
      values (${client.organizationId}, 'POST', ${path}, 'busy', ${Buffer.alloc(32)}::bytea, now(), now() + interval '1 minute')`);
    return await ask();
  });
}

test('the webhook log and resends match /openapi.json: 200, 202, 404, 409, 422, 429', async (t) => {
  const { json } = await client.bulk({
    npis: [STORED, NPI],
    webhook: { url: 'https://a.example/' },
  });
  const path = `/api/v1/batch/${json.batch_id}/deliveries`;
  const page = await client.get<{ deliveries: { id: string }[]; next_cursor: string }>(
    `${path}?limit=1`,
  );
  conforms(t, DELIVERIES, 200, page);
  const second = await client.get<typeof page.json>(
    `${path}?cursor=${page.json.next_cursor}`,
  );
  conforms(t, DELIVERIES, 200, second);
  const [first, pending] = [
    page.json.deliveries[0]?.id ?? '',
    second.json.deliveries[0]?.id ?? '',
  ];
  await api.db.drizzle.execute(sql`
    insert into webhook_attempts (delivery_id, n, started_at, duration_ms, reason)
    values (${first}, 1, clock_timestamp(), 5, 'refused')`);
  await api.db.drizzle.execute(sql`
    update webhook_deliveries set state = 'failed', attempts = 1, decided_at = clock_timestamp() where id = ${first}`);
  const again = () => client.call('POST', `${path}/${first}/resend`);
  conforms(t, DELIVERIES, 200, await client.get(path));
  conforms(t, RESEND, 202, await again());
  conforms(t, RESEND, 409, await again());
  conforms(t, RESEND, 409, await client.call('POST', `${path}/${pending}/resend`));
  await suspendWebhooks(api.db, BY, client.organizationId, true);
  const suspended = await again();
  await suspendWebhooks(api.db, BY, client.organizationId, false);
  conforms(t, RESEND, 409, suspended);
  await api.db.drizzle.execute(sql`
    update webhook_deliveries set state = 'failed', decided_at = clock_timestamp(), step_at = null, due_at = null,
           customer_resends = array_fill(clock_timestamp()::timestamptz(3), array[10])
     where id = ${first}`);
  const limited = await again();
  conforms(t, RESEND, 429, limited);
  t.like(limited.json, { code: 'resend_limited' });
  conforms(t, DELIVERY, 200, await client.get(`${path}/${first}`));
  conforms(t, DELIVERY, 200, await client.get(`${path}/${first}?before=1`));
  conforms(t, DELIVERY, 404, await client.get(`${path}/${newId('msg')}`));
  conforms(t, DELIVERY, 422, await client.get(`${path}/x?before=0`));
  conforms(t, RESEND, 404, await client.call('POST', `${path}/${newId('msg')}/resend`));
  conforms(t, RESEND, 422, await client.call('POST', `${path}/x/resend`));
  conforms(
    t,
    DELIVERIES,
    404,
    await client.get(`/api/v1/batch/${newId('bat')}/deliveries`),
  );
  conforms(t, DELIVERIES, 422, await client.get(`${path}?limit=0&cursor=x`));
});

test('all deliveries and their resend match /openapi.json: 200, 202, 409, 413, 415, 422', async (t) => {
  const one = await api.organization();
  const { organizationId } = one;
  const webhook = { url: 'https://a.example/' };
  await one.bulk({ npis: [STORED, NPI], webhook });
  await one.single({ npi: STORED, webhook });
  const path = '/api/v1/deliveries';
  const page = await one.get<{ next_cursor: string }>(`${path}?limit=2&status=pending`);
  conforms(t, ALL_DELIVERIES, 200, page);
  const second = await one.get(`${path}?limit=2&cursor=${page.json.next_cursor}`);
  conforms(t, ALL_DELIVERIES, 200, second);
  conforms(t, ALL_DELIVERIES, 422, await one.get(`${path}?status=sent&npi=x`));
  await api.db.drizzle.execute(sql`
    update webhook_deliveries set state = 'failed', decided_at = clock_timestamp()
     where organization_id = ${organizationId}`);
  const resend = (body: string, headers?: Record<string, string>) =>
    one.call('POST', `${path}/resend`, body, headers);
  const body = '{"failed_since":"2026-01-05T10:00:00Z","note":1}';
  await suspendWebhooks(api.db, BY, organizationId, true);
  conforms(t, RESEND_FAILED, 409, await resend(body));
  await suspendWebhooks(api.db, BY, organizationId, false);
  const resent = await resend(body);
  conforms(t, RESEND_FAILED, 202, resent);
  t.deepEqual(resent.json, { resent: 3, more: false });
  t.is(resent.headers.get('ignored-fields'), 'note');
  for (const wrong of [
    '',
    '[]',
    '{',
    '{}',
    '{"failed_since":5}',
    '{"failed_since":null}',
  ])
    conforms(t, RESEND_FAILED, 422, await resend(wrong));
  conforms(t, RESEND_FAILED, 413, await resend(' '.repeat(65 * 1024)));
  const type = { 'content-type': 'text/plain' };
  conforms(t, RESEND_FAILED, 415, await resend(body, type));
});

test('the lists of batches and credits, and usage, match /openapi.json: 200, 422', async (t) => {
  const one = await api.organization();
  await one.bulk({ npis: [STORED, NPI] });
  await one.single({ npi: STORED });
  for (const [operation, path] of [
    [BATCHES, '/api/v1/batches'],
    [LEDGER, '/api/v1/credits/ledger'],
  ] as const) {
    const first = await one.get<{ next_cursor: string }>(`${path}?limit=1`);
    conforms(t, operation, 200, first);
    conforms(
      t,
      operation,
      200,
      await one.get(`${path}?cursor=${first.json.next_cursor}`),
    );
    conforms(t, operation, 422, await one.get(`${path}?limit=0&cursor=x`));
  }
  for (const query of ['', '?by=type', '?format=csv', '?by=type&format=csv'])
    conforms(t, USAGE, 200, await one.get(`/api/v1/usage${query}`));
  conforms(t, LEDGER, 200, await one.get('/api/v1/credits/ledger?format=csv'));
  const long = '?since=2024-01-01T00:00:00Z&until=2026-01-01T00:00:00Z';
  conforms(t, USAGE, 422, await one.get(`/api/v1/usage${long}`));
});

test('errors of polls match /openapi.json: 404, 422', async (t) => {
  const unknown = '01jd9x6k2vfr8at0z5q7w4m1hb';
  conforms(t, REQUEST, 404, await client.get(`/api/v1/email/req_${unknown}`));
  conforms(t, BATCH, 404, await client.get(`/api/v1/batch/bat_${unknown}`));
  conforms(t, REQUEST, 422, await client.get('/api/v1/email/x'));
  conforms(t, BATCH, 422, await client.get('/api/v1/batch/%ff'));
});

test('errors of every operation match /openapi.json: 400, 405, 408, 431', async (t) => {
  const slow = exchange(api.port, 'POST /api/v1/email HTTP/1.1\r\nHost: x\r\nX-Slow: ');
  const broken = await exchange(
    api.port,
    'GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n',
  );
  const large = await exchange(
    api.port,
    `GET / HTTP/1.1\r\nHost: x\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`,
  );
  const raw = [
    [400, broken],
    [431, large],
    [408, await slow],
  ] as const;
  for (const operation of operations()) {
    for (const [status, text] of raw) conforms(t, operation, status, toResponse(text));
    conforms(
      t,
      operation,
      405,
      await client.call('DELETE', operation.split(' ')[1] ?? ''),
    );
  }
});

/** Parses a raw response into the form that the other tests get from fetch. */
function toResponse(raw: string): ApiResponse {
  const [head = '', text = ''] = raw.split('\r\n\r\n');
  const [status = '', ...lines] = head.split('\r\n');
  const headers = new Headers(
    lines.map((line): [string, string] => [
      line.split(': ')[0] ?? '',
      line.split(': ')[1] ?? '',
    ]),
  );
  return { status: Number(status.split(' ')[1]), headers, text, json: undefined };
}

test('health checks and a missing database match /openapi.json: 200, 503', async (t) => {
  conforms(t, 'GET /healthz', 200, await client.get('/healthz'));
  conforms(t, 'GET /readyz', 200, await client.get('/readyz'));
  const away = await startApi({ databaseUrl: 'postgres://nobody@127.0.0.1:1/none' });
  try {
    const caller = createCaller(away.baseUrl, client.apiKey);
    conforms(t, 'GET /readyz', 503, await caller.get('/readyz'));
    conforms(t, CREDITS, 503, await caller.get('/api/v1/credits'));
    conforms(t, SINGLE, 503, await caller.single({ npi: NPI }));
    conforms(t, BULK, 503, await caller.bulk({ npis: [NPI] }));
    conforms(t, REQUEST, 503, await caller.get('/api/v1/email/x'));
    conforms(t, BATCH, 503, await caller.get('/api/v1/batch/x'));
    conforms(t, DELIVERIES, 503, await caller.get('/api/v1/batch/x/deliveries'));
    conforms(t, DELIVERY, 503, await caller.get('/api/v1/batch/x/deliveries/x'));
    conforms(
      t,
      RESEND,
      503,
      await caller.call('POST', '/api/v1/batch/x/deliveries/x/resend'),
    );
    conforms(t, BATCHES, 503, await caller.get('/api/v1/batches'));
    conforms(t, ALL_DELIVERIES, 503, await caller.get('/api/v1/deliveries'));
    conforms(
      t,
      RESEND_FAILED,
      503,
      await caller.call('POST', '/api/v1/deliveries/resend'),
    );
    conforms(t, LEDGER, 503, await caller.get('/api/v1/credits/ledger'));
    conforms(t, USAGE, 503, await caller.get('/api/v1/usage'));
  } finally {
    await away.stop();
  }
});
