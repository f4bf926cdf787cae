import type { ExecutionContext } from 'ava';
import test from 'ava';
import { createProspeo } from '../../../activities/vendors/prospeo.ts';
import { type Played, playVendor, recorded, SUBJECT } from '../../support/vendors.ts';

const KEY = 'key-of-a-test';
const NEVER = new AbortController().signal;

async function prospeo(t: ExecutionContext, ...replies: Played[]) {
  const { url, asked } = await playVendor(t, ...replies);
  return { asked, vendor: createProspeo({ baseUrl: url, apiKey: KEY }) };
}

async function stepFor(t: ExecutionContext, reply: Played) {
  const { vendor } = await prospeo(t, reply);
  return await vendor.submit(SUBJECT, NEVER);
}

const verified = recorded('prospeo/verified');
const match = verified.body as { person: { email: object } };

function matched(email: unknown, rest: object = {}): Played {
  return { status: 200, body: { ...match, ...rest, person: { ...match.person, email } } };
}

test('a lookup sends Prospeo the documented request with all known fields', async (t) => {
  const { vendor, asked } = await prospeo(t, verified);
  await vendor.submit(SUBJECT, NEVER);
  t.like(asked[0], {
    method: 'POST',
    url: '/enrich-person',
    headers: { 'x-key': KEY, 'content-type': 'application/json' },
    body: {
      only_verified_email: true,
      data: {
        first_name: 'Mary Jo',
        last_name: "O'Malley",
        company_website: 'cedarvalleyclinic-sim.com',
        company_name: 'Cedar Valley Clinic, P.L.L.C.',
      },
    },
  });
});

test('a match at Prospeo becomes a candidate of type professional, with the identity', async (t) => {
  t.deepEqual(await stepFor(t, verified), {
    kind: 'found',
    candidates: [
      {
        email: 'maryjo.omalley@cedarvalleyclinic-sim.com',
        vendorType: 'professional',
        verdict: 'valid',
        validatedAt: null,
        isCurrent: false,
        confidence: null,
      },
    ],
    identity: {
      npi: null,
      name: { kind: 'parts', first: 'Mary Jo', last: "O'Malley" },
      state: 'ND',
      employerDomain: 'cedarvalleyclinic-sim.com',
    },
    repeatsInput: false,
    credits: 1,
  });
});

test('a Prospeo match without a revealed address counts as no result', async (t) => {
  const step = await stepFor(t, matched({ status: 'UNAVAILABLE', revealed: false }));
  t.deepEqual(step, { kind: 'miss', reason: 'email_masked', credits: 1 });
});

test('a match that Prospeo marks as a free enrichment costs nothing', async (t) => {
  t.like(await stepFor(t, matched(match.person.email, { free_enrichment: true })), {
    credits: 0,
  });
});

for (const [about, email, reason] of [
  // The example in the vendor's documentation: `revealed` is true, but the email is masked.
  ['masked', { ...match.person.email, email: 'maryjo.*****@clinic.com' }, 'email_masked'],
  ['not revealed', { ...match.person.email, revealed: false }, 'email_masked'],
  ['empty', { ...match.person.email, email: null }, 'no_email'],
  [
    'text that PostgreSQL cannot store',
    { ...match.person.email, email: 'a\u0000@clinic.com' },
    'no_email',
  ],
  ['null', null, 'no_email'],
] as const) {
  test(`a match at Prospeo whose email is ${about} counts as no result that was charged`, async (t) => {
    t.deepEqual(await stepFor(t, matched(email)), { kind: 'miss', reason, credits: 1 });
  });
}

for (const [status, verdict] of [
  ['VERIFIED', 'valid'],
  ['UNVERIFIED', 'unknown'],
  ['CATCH_ALL', 'unknown'],
  [null, 'unknown'],
] as const) {
  test(`an address with email status ${status} at Prospeo gets the verdict "${verdict}"`, async (t) => {
    t.like(await stepFor(t, matched({ ...match.person.email, status })), {
      candidates: [{ verdict }],
    });
  });
}

for (const [error_code, step] of [
  ['NO_MATCH', { kind: 'miss', reason: 'no_match', credits: 0 }],
  ['INVALID_DATAPOINTS', { kind: 'skip', missing: ['name', 'organization'] }],
  ['INSUFFICIENT_CREDITS', { kind: 'fatal', why: 'credits' }],
  ['INTERNAL_ERROR', { kind: 'retry', why: 'upstream', afterMs: null }],
  ['ACCOUNT_RESTRICTED', { kind: 'fatal', why: 'plan' }],
  ['INVALID_API_KEY', { kind: 'fatal', why: 'auth' }],
  ['INVALID_REQUEST', { kind: 'fatal', why: 'protocol', field: 'error_code' }],
  ['SOMETHING_NEW', { kind: 'fatal', why: 'protocol', field: 'error_code' }],
] as const) {
  test(`the Prospeo error ${error_code} becomes the step "${step.kind}"`, async (t) => {
    t.deepEqual(
      await stepFor(t, { status: 400, body: { error: true, error_code } }),
      step,
    );
  });
}

test('an error of Prospeo is recognized even in a response with status 200', async (t) => {
  const { body } = recorded('prospeo/no-match');
  t.like(await stepFor(t, { status: 200, body }), { kind: 'miss', reason: 'no_match' });
});

test('a response from Prospeo without a person counts as no result and costs nothing', async (t) => {
  const body = { error: false, person: null, company: null };
  t.deepEqual(await stepFor(t, { status: 200, body }), {
    kind: 'miss',
    reason: 'no_match',
    credits: 0,
  });
});

const limited = recorded('prospeo/limited');
for (const [about, headers, afterMs] of [
  ['until the current minute is over', {}, 37_000],
  [
    'until the day is over if no daily requests are left',
    { 'x-daily-request-left': '0' },
    40_000_000,
  ],
  ['as long as Retry-After says', { 'retry-after': '3' }, 3000],
  [
    'for our default time if the header with the wait is unreadable',
    { 'x-minute-reset-seconds': 'soon' },
    null,
  ],
] as const) {
  test(`after a rate limit of Prospeo we wait ${about}`, async (t) => {
    const step = await stepFor(t, {
      ...limited,
      headers: { ...limited.headers, ...headers },
    });
    t.deepEqual(step, { kind: 'retry', why: 'rate_limit', afterMs });
  });
}

test('in a Prospeo result, a state of another country is not read as a US state', async (t) => {
  const location = { country_code: 'CA', state: 'CA' };
  const body = { ...match, person: { ...match.person, location } };
  t.like(await stepFor(t, { status: 200, body }), { identity: { state: null } });
});

const { email } = match.person;
for (const [field, about, reply] of [
  ['error', 'missing', { status: 200, body: { person: {} } }],
  ['error', 'text', { status: 200, body: { error: 'false' } }],
  ['error_code', 'missing', { status: 400, body: { error: true } }],
  ['person', 'missing', { status: 200, body: { error: false } }],
  ['person', 'text', { status: 200, body: { error: false, person: 'nobody' } }],
  ['person.email', 'missing', { status: 200, body: { error: false, person: {} } }],
  ['person.email', 'text', matched('jo@clinic.com')],
  ['person.email.revealed', 'missing', matched({ ...email, revealed: undefined })],
  ['person.email.revealed', 'text', matched({ ...email, revealed: 'yes' })],
  ['person.email.email', 'missing', matched({ ...email, email: undefined })],
  ['person.email.email', 'a number', matched({ ...email, email: 5 })],
  ['person.email.status', 'missing', matched({ ...email, status: undefined })],
  ['person.email.status', 'true', matched({ ...email, status: true })],
  ['free_enrichment', 'a number', matched(email, { free_enrichment: 0 })],
  [
    'status',
    '404',
    { status: 404, body: { error: true, error_code: 'INVALID_REQUEST' } },
  ],
] as const) {
  test(`the error about a Prospeo response names the field ${field} if it is ${about}`, async (t) => {
    t.deepEqual(await stepFor(t, reply), { kind: 'fatal', why: 'protocol', field });
  });
}
