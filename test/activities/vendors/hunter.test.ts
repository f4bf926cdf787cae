import type { ExecutionContext } from 'ava';
import test from 'ava';
import { createHunter } from '../../../activities/vendors/hunter.ts';
import { type Played, playVendor, recorded, SUBJECT } from '../../support/vendors.ts';

const KEY = 'key-of-a-test';
const NEVER = new AbortController().signal;

async function hunter(t: ExecutionContext, ...replies: Played[]) {
  const { url, asked } = await playVendor(t, ...replies);
  return { asked, vendor: createHunter({ baseUrl: `${url}/v2`, apiKey: KEY }) };
}

async function stepFor(t: ExecutionContext, reply: Played) {
  const { vendor } = await hunter(t, reply);
  return await vendor.submit(SUBJECT, NEVER);
}

const valid = recorded('hunter/valid');
const { data } = valid.body as { data: object };

function found(rest: object): Played {
  return { status: 200, body: { data: { ...data, ...rest } } };
}

test('a lookup sends Hunter the documented request, with the API key only in a header', async (t) => {
  const { vendor, asked } = await hunter(t, valid);
  await vendor.submit(SUBJECT, NEVER);
  t.is(
    asked[0]?.url,
    '/v2/email-finder?domain=cedarvalleyclinic-sim.com&company=Cedar+Valley+Clinic%2C+P.L.L.C.&first_name=Mary+Jo&last_name=O%27Malley&max_duration=20',
  );
  t.like(asked[0], { method: 'GET', headers: { 'x-api-key': KEY } });
});

test('an address that Hunter finds becomes a candidate of type professional', async (t) => {
  t.deepEqual(await stepFor(t, valid), {
    kind: 'found',
    candidates: [
      {
        email: 'maryjo.omalley@cedarvalleyclinic-sim.com',
        vendorType: 'professional',
        verdict: 'valid',
        validatedAt: new Date('2026-11-01T00:00:00Z'),
        isCurrent: false,
        confidence: 0.97,
      },
    ],
    identity: {
      npi: null,
      name: { kind: 'parts', first: 'Mary Jo', last: "O'Malley" },
      state: null,
      employerDomain: 'cedarvalleyclinic-sim.com',
    },
    repeatsInput: true,
    credits: 1,
  });
});

test('after a 202 from Hunter, we poll by repeating the same request', async (t) => {
  const { vendor, asked } = await hunter(
    t,
    { status: 202, body: '' },
    { status: 202, body: {} },
    valid,
  );
  const step = await vendor.submit(SUBJECT, NEVER);
  t.like(step, { kind: 'pending', pollAfterMs: 5000 });
  const jobRef = step.kind === 'pending' ? step.jobRef : '';
  t.is((await vendor.poll(jobRef, SUBJECT, NEVER)).kind, 'pending');
  t.is((await vendor.poll(jobRef, SUBJECT, NEVER)).kind, 'found');
  t.is(new Set(asked.map(({ url }) => url)).size, 1);
});

for (const [status, step] of [
  [401, { kind: 'fatal', why: 'auth' }],
  [403, { kind: 'retry', why: 'rate_limit', afterMs: null }],
  [404, { kind: 'miss', reason: 'no_email', credits: 0 }],
  [422, { kind: 'fatal', why: 'protocol', field: 'status' }],
  [429, { kind: 'fatal', why: 'credits' }],
] as const) {
  test(`a response from Hunter with status ${status} becomes the step "${step.kind}"`, async (t) => {
    t.deepEqual(
      await stepFor(t, { status, body: { errors: [{ id: 'x', code: status }] } }),
      step,
    );
  });
}

test('a response from Hunter that the person has opted out is read as "blocked"', async (t) => {
  t.deepEqual(await stepFor(t, recorded('hunter/claimed')), { kind: 'blocked' });
});

test('a response from Hunter without an address counts as no result and costs nothing', async (t) => {
  t.deepEqual(await stepFor(t, recorded('hunter/nothing')), {
    kind: 'miss',
    reason: 'no_email',
    credits: 0,
  });
});

test('if Hunter rejects the name or the domain, the lookup is skipped', async (t) => {
  const body = {
    errors: [{ id: 'wrong_params', code: 400, details: 'The domain is invalid' }],
  };
  t.deepEqual(await stepFor(t, { status: 400, body }), {
    kind: 'skip',
    missing: ['name', 'organization'],
  });
});

for (const [status, verdict] of [
  ['valid', 'valid'],
  ['invalid', 'invalid'],
  ['accept_all', 'catch_all'],
  ['webmail', 'unknown'],
  ['disposable', 'invalid'],
  ['unknown', 'unknown'],
  ['something_new', 'unknown'],
  [null, 'unknown'],
] as const) {
  test(`an address with verification status ${status} at Hunter gets the verdict "${verdict}"`, async (t) => {
    const step = await stepFor(t, found({ verification: { date: null, status } }));
    t.like(step, { candidates: [{ verdict, validatedAt: null }] });
  });
}

test('an address that Hunter calls valid gets catch_all if its domain accepts all mail', async (t) => {
  t.like(await stepFor(t, found({ accept_all: true })), {
    candidates: [{ verdict: 'catch_all' }],
  });
});

test('an address that Hunter has never verified gets the verdict "unknown"', async (t) => {
  t.like(await stepFor(t, found({ verification: null })), {
    candidates: [{ verdict: 'unknown' }],
  });
});

for (const [field, about, reply] of [
  ['data', 'missing', { status: 200, body: {} }],
  ['data', 'null', { status: 200, body: { data: null } }],
  ['data.email', 'missing', { status: 200, body: { data: {} } }],
  ['data.email', 'a number', found({ email: 5 })],
  ['data.accept_all', 'text', found({ accept_all: 'no' })],
  ['data.verification', 'missing', found({ verification: undefined })],
  ['data.verification', 'text', found({ verification: 'valid' })],
  ['data.verification.status', 'missing', found({ verification: { date: null } })],
  ['data.verification.status', 'true', found({ verification: { status: true } })],
  [
    'data.verification.date',
    'a number',
    found({ verification: { status: 'valid', date: 1_700_000_000 } }),
  ],
  ['data.first_name', 'a list', found({ first_name: [] })],
  ['errors[0].id', 'another word', { status: 400, body: { errors: [{ id: 'other' }] } }],
  ['errors[0].id', 'missing', { status: 400, body: {} }],
  ['errors', 'an object', { status: 400, body: { errors: {} } }],
] as const) {
  test(`the error about a Hunter response names the field ${field} if it is ${about}`, async (t) => {
    t.deepEqual(await stepFor(t, reply), { kind: 'fatal', why: 'protocol', field });
  });
}
