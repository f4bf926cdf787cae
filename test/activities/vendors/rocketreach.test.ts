import type { ExecutionContext } from 'ava';
import test from 'ava';
import { createRocketReach, type RocketReachApi } from '../../../activities/vendors/rocketreach.ts';
import type { Step } from '../../../activities/vendors/vendor.ts';
import { type Played, playVendor, recorded, SUBJECT } from '../../support/vendor-server.ts';

const KEY = 'key-of-a-test';
const NEVER = new AbortController().signal;

async function rocketReach(t: ExecutionContext, api: RocketReachApi, ...answers: Played[]) {
  const { url, asked } = await playVendor(t, ...answers);
  return { asked, vendor: createRocketReach({ baseUrl: `${url}/api/v2/`, apiKey: KEY, api }) };
}

async function stepFor(t: ExecutionContext, status: number, body: unknown): Promise<Step> {
  const { vendor } = await rocketReach(t, 'legacy', { status, body });
  return await vendor.submit(SUBJECT, NEVER);
}

const PROFILE = { id: 7, status: 'complete', name: 'Jo Doe', npi_data: { npi_number: '2000000010' } };
const EMAIL = {
  email: 'jo@clinic.com',
  smtp_valid: 'valid',
  type: 'professional',
  last_validation_check: '2026-11-01T12:00:00Z',
  grade: 'A',
};
const GIVEN_UP = { kind: 'retry', why: 'upstream', afterMs: null } as const;
const FOUND = { ...PROFILE, emails: [EMAIL] };

for (const [api, wantedType, lookup, status] of [
  ['legacy', 'any', '/person/lookup?npi_number=2000000010&lookup_type=standard', '/person/checkStatus'],
  ['legacy', 'personal', '/person/lookup?npi_number=2000000010&lookup_type=standard', '/person/checkStatus'],
  [
    'universal',
    'professional',
    '/universal/person/lookup?npi_number=2000000010&reveal_professional_email=true',
    '/universal/person/check_status',
  ],
  [
    'universal',
    'any',
    '/universal/person/lookup?npi_number=2000000010&reveal_professional_email=true&reveal_personal_email=true',
    '/universal/person/check_status',
  ],
] as const) {
  test(`the ${api} question for ${wantedType} is asked as the vendor documents it`, async (t) => {
    const { vendor, asked } = await rocketReach(t, api, { status: 404, body: {} });
    await vendor.submit({ ...SUBJECT, wantedType }, NEVER);
    await vendor.poll('7', SUBJECT, NEVER);
    t.deepEqual(
      asked.map(({ method, url, headers }) => [method, url, headers['api-key']]),
      [
        ['GET', `/api/v2${lookup}&return_cached_emails=false`, KEY],
        ['GET', `/api/v2${status}?ids=7`, KEY],
      ],
    );
  });
}

for (const [api, wantedType, cost] of [
  ['legacy', 'any', 1],
  ['legacy', 'personal', 1],
  ['universal', 'professional', 2],
  ['universal', 'personal', 3],
  ['universal', 'any', 5],
] as const) {
  test(`a ${api} question for ${wantedType} costs ${cost} at most`, async (t) => {
    const { vendor } = await rocketReach(t, api, { status: 404, body: {} });
    t.is(vendor.cost(wantedType), cost);
  });
}

test('universal credits are paid for the types found', async (t) => {
  const answer = { status: 200, body: FOUND };
  const { vendor } = await rocketReach(t, 'universal', answer, recorded('rocketreach/complete'));
  t.like(await vendor.submit(SUBJECT, NEVER), { kind: 'found', credits: 2 });
  t.like(await vendor.submit(SUBJECT, NEVER), { kind: 'found', credits: 5 });
});

test('a complete profile becomes candidates, and says whom they are of', async (t) => {
  const { vendor } = await rocketReach(t, 'legacy', recorded('rocketreach/complete'));
  t.deepEqual(await vendor.submit(SUBJECT, NEVER), {
    kind: 'found',
    candidates: [
      {
        email: 'maryjo.omalley@cedarvalleyclinic-sim.com',
        vendorType: 'professional',
        verdict: 'valid',
        validatedAt: new Date('2026-11-01T12:00:00Z'),
      },
      {
        email: 'npi2000000010.sim@gmail.com',
        vendorType: 'personal',
        verdict: 'catch_all',
        validatedAt: null,
      },
    ],
    identity: { npi: '2000000010', name: { kind: 'full', full: "Mary Jo O'Malley" }, state: 'ND' },
    credits: 1,
  });
});

test('an unfinished lookup is polled until it is complete', async (t) => {
  const complete = recorded('rocketreach/complete');
  const listed = { status: 200, body: [complete.body] };
  const { vendor } = await rocketReach(t, 'legacy', recorded('rocketreach/searching'), listed);
  t.deepEqual(await vendor.submit(SUBJECT, NEVER), { kind: 'pending', jobRef: '7', pollAfterMs: 3000 });
  t.is((await vendor.poll('7', SUBJECT, NEVER)).kind, 'found');
});

for (const [status, step] of [
  [400, { kind: 'fatal', why: 'protocol', field: 'status' }],
  [402, { kind: 'fatal', why: 'credits' }],
  [403, { kind: 'fatal', why: 'plan' }],
  [404, { kind: 'miss', reason: 'no_profile', credits: 0 }],
  [429, { kind: 'retry', why: 'rate_limit', afterMs: null }],
  [451, { kind: 'blocked' }],
] as const) {
  test(`status ${status} is ${JSON.stringify(step)}`, async (t) => {
    t.deepEqual(await stepFor(t, status, '<garbage'), step);
  });
}

for (const [about, body, step] of [
  ['lists it', [{ ...PROFILE, id: 6 }, FOUND], { kind: 'found' }],
  ['lists it as failed', [{ ...PROFILE, status: 'failed' }], GIVEN_UP],
  ['lists nobody', [], GIVEN_UP],
  ['lists others', [{ ...PROFILE, id: 6 }], GIVEN_UP],
  [
    'lists it unreadably',
    [{ ...PROFILE, status: 1 }],
    { kind: 'fatal', why: 'protocol', field: '[0].status' },
  ],
  ['lists no profiles', ['x'], { kind: 'fatal', why: 'protocol', field: '[0]' }],
  ['is no list', PROFILE, { kind: 'fatal', why: 'protocol', field: 'body' }],
  ['is null', 'null', { kind: 'fatal', why: 'protocol', field: 'body' }],
] as const) {
  test(`a status check that ${about} is ${JSON.stringify(step)}`, async (t) => {
    const { vendor } = await rocketReach(t, 'legacy', { status: 200, body });
    t.like(await vendor.poll('7', SUBJECT, NEVER), step);
  });
}

test('a status check of a lookup that is no longer known is no word about the person', async (t) => {
  const { vendor } = await rocketReach(t, 'legacy', { status: 404, body: { detail: 'Not found.' } });
  t.deepEqual(await vendor.poll('7', SUBJECT, NEVER), GIVEN_UP);
});
