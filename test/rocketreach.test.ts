import { once } from 'node:events';
import { createServer, type RequestListener, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { ExecutionContext } from 'ava';
import test from 'ava';
import type { Step, Subject } from '../activities/providers/port.ts';
import { createRocketReach } from '../activities/providers/rocketreach.ts';
import { createSimulator } from '../deploy/local/simulator.ts';

// A zone in which a time without one would be misread if it were taken as local.
process.env.TZ = 'America/New_York';

const KEY = 'key-of-a-test';
const NEVER = new AbortController().signal;

function subject(npi: string): Subject {
  return { npi, wantedType: 'any' };
}

/** The adapter against the simulator, with a tally of what the vendor was asked. */
async function simulated(t: ExecutionContext) {
  const simulator = await createSimulator({ port: 0, speed: 100, apiKey: KEY });
  t.teardown(() => simulator.close());
  const vendor = createRocketReach({ baseUrl: simulator.url, apiKey: KEY });
  const submit = (npi: string) => vendor.submit(subject(npi), NEVER);
  return { simulator, vendor, submit };
}

/** The adapter against a server that answers what the test wants. */
async function answered(t: ExecutionContext, handle: RequestListener) {
  const server = createServer(handle).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return createRocketReach({ baseUrl: `http://127.0.0.1:${port}/api/v2/`, apiKey: KEY });
}

async function stepFor(
  t: ExecutionContext,
  status: number,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): Promise<Step> {
  const vendor = await answered(t, (_request, response) => reply(response, status, body, headers));
  return await vendor.submit(subject('2000000010'), NEVER);
}

function reply(
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
) {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  response.end(typeof body === 'string' ? body : JSON.stringify(body));
}

const PROFILE = { id: 7, status: 'complete', npi_data: { npi_number: '2000000010' } };
const EMAIL = {
  email: 'jo@clinic.com',
  smtp_valid: 'valid',
  type: 'professional',
  last_validation_check: '2026-11-01T12:00:00Z',
  grade: 'A',
};

async function candidateFor(t: ExecutionContext, email: Record<string, unknown>) {
  const step = await stepFor(t, 200, { ...PROFILE, emails: [{ ...EMAIL, ...email }] });
  return step.kind === 'found' ? step.candidates[0] : step;
}

test('the question is asked as the vendor documents it', async (t) => {
  const seen: unknown[] = [];
  const vendor = await answered(t, (request, response) => {
    seen.push([request.method, request.url, request.headers['api-key']]);
    reply(response, 404, {});
  });
  await vendor.submit(subject('2000000010'), NEVER);
  await vendor.poll('7', subject('2000000010'), NEVER);
  t.deepEqual(seen, [
    [
      'GET',
      '/api/v2/person/lookup?npi_number=2000000010&lookup_type=standard&return_cached_emails=false',
      KEY,
    ],
    ['GET', '/api/v2/person/checkStatus?ids=7', KEY],
  ]);
});

test('a found person becomes candidates', async (t) => {
  const { submit } = await simulated(t);
  const step = await submit('2000000036');
  t.like(step, {
    kind: 'found',
    candidates: [
      { email: 'imani.bellweather@cedarvalleyclinic-sim.com', vendorType: 'professional', verdict: 'valid' },
      { email: 'npi2000000036.sim@gmail.com', vendorType: 'personal', verdict: 'valid' },
    ],
  });
});

for (const [npi, step] of [
  ['2000000044', { kind: 'miss', reason: 'no_profile' }],
  ['2000000119', { kind: 'retry', why: 'upstream', afterMs: null }],
  ['2000000168', { kind: 'miss', reason: 'identity_mismatch' }],
  ['2000000176', { kind: 'blocked' }],
] as const) {
  test(`${npi} is ${JSON.stringify(step)}`, async (t) => {
    const { submit } = await simulated(t);
    t.deepEqual(await submit(npi), step);
  });
}

test('a rate limit is waited out, then the person is found', async (t) => {
  const { submit } = await simulated(t);
  t.deepEqual(await submit('2000000127'), { kind: 'retry', why: 'rate_limit', afterMs: 1000 });
  t.is((await submit('2000000127')).kind, 'found');
});

test('an unfinished lookup is polled, which is free, until it is complete', async (t) => {
  const { simulator, vendor, submit } = await simulated(t);
  const started = await submit('2000000143');
  t.like(started, { kind: 'pending', pollAfterMs: 100 });
  const jobRef = started.kind === 'pending' ? started.jobRef : '';
  t.like(await vendor.poll(jobRef, subject('2000000143'), NEVER), { kind: 'pending', jobRef });
  t.like(await vendor.poll(jobRef, subject('2000000143'), NEVER), {
    kind: 'found',
    candidates: [{ verdict: 'valid' }],
  });
  t.deepEqual(
    simulator.calls().map(({ operation }) => operation),
    ['lookup', 'checkStatus', 'checkStatus'],
  );
});

test('a vendor that hangs is given up when the caller says so', async (t) => {
  const { simulator, vendor } = await simulated(t);
  const controller = new AbortController();
  const asked = vendor.submit(subject('2000000101'), controller.signal);
  await vendor.submit(subject('2000000010'), NEVER);
  controller.abort(new Error('deadline'));
  await t.throwsAsync(asked, { message: 'deadline' });
  t.is(simulator.calls().length, 2);
});

test('giving up in the middle of an answer rejects as well', async (t) => {
  const controller = new AbortController();
  const vendor = await answered(t, (_request, response) => {
    response.writeHead(200).write('{"id":', () => controller.abort(new Error('deadline')));
  });
  await t.throwsAsync(vendor.submit(subject('2000000010'), controller.signal), { message: 'deadline' });
});

test('a signal that was aborted before asks nothing', async (t) => {
  const { simulator, vendor } = await simulated(t);
  await t.throwsAsync(vendor.submit(subject('2000000010'), AbortSignal.abort(new Error('deadline'))), {
    message: 'deadline',
  });
  t.is(simulator.calls().length, 0);
});

test('a wrong key is fatal', async (t) => {
  const { simulator } = await simulated(t);
  const vendor = createRocketReach({ baseUrl: simulator.url, apiKey: 'another' });
  t.deepEqual(await vendor.submit(subject('2000000010'), NEVER), { kind: 'fatal', why: 'auth' });
});

for (const [status, step] of [
  [400, { kind: 'fatal', why: 'protocol' }],
  [401, { kind: 'fatal', why: 'auth' }],
  [402, { kind: 'fatal', why: 'credits' }],
  [403, { kind: 'fatal', why: 'plan' }],
  [404, { kind: 'miss', reason: 'no_profile' }],
  [408, { kind: 'retry', why: 'upstream', afterMs: null }],
  [429, { kind: 'retry', why: 'rate_limit', afterMs: null }],
  [451, { kind: 'blocked' }],
  [500, { kind: 'retry', why: 'upstream', afterMs: null }],
  [503, { kind: 'retry', why: 'upstream', afterMs: null }],
  [204, { kind: 'fatal', why: 'protocol' }],
] as const) {
  test(`status ${status} is ${JSON.stringify(step)}`, async (t) => {
    t.deepEqual(await stepFor(t, status, status === 204 ? '' : '<garbage'), step);
  });
}

test('a web page of 404 is a wrong base URL, not a missing person', async (t) => {
  const step = await stepFor(t, 404, '<html>', { 'content-type': 'text/html; charset=utf-8' });
  t.deepEqual(step, { kind: 'fatal', why: 'protocol' });
});

test('a redirect is not followed, so the key goes nowhere else', async (t) => {
  let elsewhere = 0;
  const other = createServer((_request, response) => {
    elsewhere += 1;
    reply(response, 200, PROFILE);
  }).listen(0, '127.0.0.1');
  await once(other, 'listening');
  t.teardown(() => other.close());
  const location = `http://127.0.0.1:${(other.address() as AddressInfo).port}/`;
  t.deepEqual(await stepFor(t, 302, '', { location }), { kind: 'fatal', why: 'protocol' });
  t.is(elsewhere, 0);
});

for (const [value, afterMs] of [
  ['0', 0],
  ['120', 120_000],
  ['99999999999999999999', 86_400_000],
  ['Thu, 01 Jan 1970 00:00:00 GMT', 0],
  ['Fri, 31 Dec 2399 23:59:59 GMT', 86_400_000],
  ['soon', null],
  ['-5', null],
  ['1.5', null],
] as const) {
  test(`Retry-After: ${value} is ${afterMs} ms`, async (t) => {
    t.like(await stepFor(t, 429, {}, { 'retry-after': value }), { afterMs });
    t.like(await stepFor(t, 503, {}, { 'retry-after': value }), { afterMs });
  });
}

test('Retry-After may be a date a while ahead', async (t) => {
  const date = new Date(Date.now() + 3_600_000).toUTCString();
  const step = await stepFor(t, 429, {}, { 'retry-after': date });
  const afterMs = step.kind === 'retry' ? step.afterMs : null;
  t.true(afterMs !== null && afterMs > 3_500_000 && afterMs <= 3_600_000);
});

test('a vendor that is not there is a network retry', async (t) => {
  const { simulator, vendor } = await simulated(t);
  await simulator.close();
  t.deepEqual(await vendor.submit(subject('2000000010'), NEVER), {
    kind: 'retry',
    why: 'network',
    afterMs: null,
  });
});

for (const [about, handle] of [
  ['cut before its headers', (_request, response) => response.destroy()],
  [
    'cut in its body',
    (_request, response) => response.writeHead(200).write('{"id":7', () => response.destroy()),
  ],
] as const satisfies readonly (readonly [string, RequestListener])[]) {
  test(`an answer ${about} is a network retry`, async (t) => {
    const vendor = await answered(t, handle);
    t.like(await vendor.submit(subject('2000000010'), NEVER), { kind: 'retry', why: 'network' });
  });
}

test('an endless answer is not read to its end', async (t) => {
  const vendor = await answered(t, (_request, response) => {
    const chunk = ' '.repeat(65_536);
    const pour = () => {
      while (!response.destroyed && response.write(chunk));
      if (!response.destroyed) response.once('drain', pour);
    };
    pour();
  });
  t.deepEqual(await vendor.submit(subject('2000000010'), NEVER), { kind: 'fatal', why: 'protocol' });
});

for (const body of [
  '',
  '<html>',
  '{"id":7',
  'null',
  '[]',
  { ...PROFILE, id: '7' },
  { ...PROFILE, id: 1.5 },
  { ...PROFILE, status: null },
  { ...PROFILE, npi_data: 'x' },
  { ...PROFILE, npi_data: { npi_number: {} } },
  { ...PROFILE, emails: {} },
  { ...PROFILE, emails: ['jo@clinic.com'] },
  { ...PROFILE, emails: [{ ...EMAIL, email: 5 }] },
  { ...PROFILE, emails: [{ ...EMAIL, smtp_valid: true }] },
  { ...PROFILE, emails: [{ ...EMAIL, last_validation_check: 1_700_000_000 }] },
]) {
  test(`an answer that cannot be read is fatal: ${JSON.stringify(body)}`, async (t) => {
    t.deepEqual(await stepFor(t, 200, body), { kind: 'fatal', why: 'protocol' });
  });
}

test('fields nobody reads may be anything', async (t) => {
  const extras = { name: 5, phones: 'x', toString: null, emails: [{ ...EMAIL, constructor: 1 }] };
  t.is((await stepFor(t, 200, { ...PROFILE, ...extras })).kind, 'found');
});

for (const [npi_data, kind] of [
  [{ npi_number: 2_000_000_010 }, 'found'],
  [{ npi_number: '2000000028' }, 'miss'],
  [{ npi_number: 2_000_000_028 }, 'miss'],
  [{}, 'found'],
  [null, 'found'],
] as const) {
  test(`npi_data ${JSON.stringify(npi_data)} for 2000000010 is ${kind}`, async (t) => {
    t.is((await stepFor(t, 200, { ...PROFILE, npi_data, emails: [EMAIL] })).kind, kind);
  });
}

for (const [body, step] of [
  [
    { ...PROFILE, emails: [] },
    { kind: 'miss', reason: 'no_email' },
  ],
  [
    { ...PROFILE, emails: null },
    { kind: 'miss', reason: 'no_email' },
  ],
  [
    { ...PROFILE, emails: [{ ...EMAIL, email: null }] },
    { kind: 'miss', reason: 'no_email' },
  ],
  [
    { ...PROFILE, emails: [{ ...EMAIL, email: 'jo\u0000@clinic.com' }] },
    { kind: 'miss', reason: 'no_email' },
  ],
  [
    { ...PROFILE, status: 'failed' },
    { kind: 'miss', reason: 'lookup_failed' },
  ],
  [
    { ...PROFILE, status: 'searching' },
    { kind: 'pending', jobRef: '7', pollAfterMs: 3000 },
  ],
  [
    { ...PROFILE, status: 'progress', emails: [EMAIL] },
    { kind: 'pending', jobRef: '7', pollAfterMs: 3000 },
  ],
  [
    { ...PROFILE, status: 'not queued' },
    { kind: 'pending', jobRef: '7', pollAfterMs: 3000 },
  ],
  [
    { ...PROFILE, status: 'searching', retry_after_seconds: 5 },
    { kind: 'pending', jobRef: '7', pollAfterMs: 5000 },
  ],
  [
    { ...PROFILE, status: 'searching', retry_after_seconds: 1e9 },
    { kind: 'pending', jobRef: '7', pollAfterMs: 60_000 },
  ],
] as const) {
  test(`${JSON.stringify(body)} is ${JSON.stringify(step)}`, async (t) => {
    t.deepEqual(await stepFor(t, 200, body), step);
  });
}

for (const [email, verdict] of [
  [{ smtp_valid: 'valid' }, 'valid'],
  [{ smtp_valid: 'invalid' }, 'invalid'],
  [{ smtp_valid: 'accept-all' }, 'catch_all'],
  [{ smtp_valid: 'Catch_All' }, 'catch_all'],
  [{ smtp_valid: 'inconclusive' }, 'unknown'],
  [{ smtp_valid: 'unknown' }, 'unknown'],
  [{ smtp_valid: 'constructor' }, 'unknown'],
  [{ smtp_valid: null }, 'unknown'],
  [{ smtp_valid: undefined }, 'unknown'],
  [{ grade: 'F' }, 'invalid'],
  [{ grade: 'B' }, 'valid'],
  [{ type: 'disposable' }, 'invalid'],
  [{ type: 'role-based' }, 'risky'],
  [{ type: 'role-based', smtp_valid: 'accept-all' }, 'catch_all'],
] as const) {
  test(`an email with ${JSON.stringify(email)} is ${verdict}`, async (t) => {
    t.like(await candidateFor(t, email), { verdict });
  });
}

for (const [type, vendorType] of [
  ['professional', 'professional'],
  ['personal', 'personal'],
  ['role-based', null],
  [null, null],
] as const) {
  test(`an email of type ${type} is ${vendorType} to us`, async (t) => {
    t.like(await candidateFor(t, { type }), { vendorType });
  });
}

for (const [text, iso] of [
  ['2026-11-01T12:00:00Z', '2026-11-01T12:00:00.000Z'],
  ['2026-11-01T12:00:00.123456+02:00', '2026-11-01T10:00:00.123Z'],
  ['2026-11-01 12:00:00', '2026-11-01T12:00:00.000Z'],
  ['2026-11-01', '2026-11-01T00:00:00.000Z'],
  ['yesterday', null],
  ['2026-13-01', null],
  ['', null],
  [null, null],
] as const) {
  test(`a last validation of '${text}' is ${iso}`, async (t) => {
    const candidate = await candidateFor(t, { last_validation_check: text });
    t.is(candidate && 'validatedAt' in candidate ? (candidate.validatedAt?.toISOString() ?? null) : '', iso);
  });
}

for (const [about, body, step] of [
  [
    'lists it',
    [
      { ...PROFILE, id: 6 },
      { ...PROFILE, emails: [EMAIL] },
    ],
    { kind: 'found' },
  ],
  ['lists nobody', [], { kind: 'miss', reason: 'no_profile' }],
  ['lists others', [{ ...PROFILE, id: 6 }], { kind: 'miss', reason: 'no_profile' }],
  ['lists it unreadably', [{ ...PROFILE, status: 1 }], { kind: 'fatal', why: 'protocol' }],
  ['is no list', PROFILE, { kind: 'fatal', why: 'protocol' }],
] as const) {
  test(`a status check that ${about} is ${JSON.stringify(step)}`, async (t) => {
    const vendor = await answered(t, (_request, response) => reply(response, 200, body));
    t.like(await vendor.poll('7', subject('2000000010'), NEVER), step);
  });
}
