import type { ExecutionContext } from 'ava';
import test from 'ava';
import {
  createRocketReach,
  type RocketReachApi,
} from '../../../activities/vendors/rocketreach.ts';
import type { Step } from '../../../activities/vendors/vendor.ts';
import { type Played, playVendor, recorded, SUBJECT } from '../../support/vendors.ts';

// A time without a zone must not be read as local time. In this zone, the tests would notice that.
process.env.TZ = 'America/New_York';

const KEY = 'key-of-a-test';
const NEVER = new AbortController().signal;

async function rocketReach(
  t: ExecutionContext,
  api: RocketReachApi,
  ...replies: Played[]
) {
  const { url, asked } = await playVendor(t, ...replies);
  return {
    asked,
    vendor: createRocketReach({ baseUrl: `${url}/api/v2/`, apiKey: KEY, api }),
  };
}

async function stepFor(
  t: ExecutionContext,
  status: number,
  body: unknown,
): Promise<Step> {
  const { vendor } = await rocketReach(t, 'legacy', { status, body });
  return await vendor.submit(SUBJECT, NEVER);
}

const PROFILE = {
  id: 7,
  status: 'complete',
  name: 'Jo Doe',
  npi_data: { npi_number: '2000000010' },
};
const EMAIL = {
  email: 'jo@clinic.com',
  smtp_valid: 'valid',
  type: 'professional',
  last_validation_check: '2026-11-01T12:00:00Z',
  grade: 'A',
};
const GIVEN_UP = { kind: 'retry', why: 'upstream', afterMs: null } as const;
const FOUND = { ...PROFILE, emails: [EMAIL] };

for (const [api, requestedType, lookup, status] of [
  [
    'legacy',
    'any',
    '/person/lookup?npi_number=2000000010&lookup_type=standard',
    '/person/checkStatus',
  ],
  [
    'legacy',
    'personal',
    '/person/lookup?npi_number=2000000010&lookup_type=standard',
    '/person/checkStatus',
  ],
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
  test(`a request for type ${requestedType} calls RocketReach's ${api} API as documented`, async (t) => {
    const { vendor, asked } = await rocketReach(t, api, { status: 404, body: {} });
    await vendor.submit({ ...SUBJECT, requestedType }, NEVER);
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

for (const [api, requestedType, cost] of [
  ['legacy', 'any', 1],
  ['legacy', 'personal', 1],
  ['universal', 'professional', 2],
  ['universal', 'personal', 3],
  ['universal', 'any', 5],
] as const) {
  test(`a request for type ${requestedType} costs at most ${cost} at RocketReach's ${api} API`, async (t) => {
    const { vendor } = await rocketReach(t, api, { status: 404, body: {} });
    t.is(vendor.cost(requestedType), cost);
  });
}

test("RocketReach's universal API is called only for a person with a known name", async (t) => {
  const needsOf = async (api: 'legacy' | 'universal') =>
    (await rocketReach(t, api, { status: 404, body: {} })).vendor.needs;
  t.deepEqual(
    [await needsOf('legacy'), await needsOf('universal')],
    [['npi'], ['npi', 'name']],
  );
});

test("RocketReach's universal API costs credits only for the types that it finds", async (t) => {
  const personal = { ...EMAIL, email: 'jo@gmail.com', type: 'personal', grade: 'A-' };
  const both = { ...PROFILE, emails: [EMAIL, personal] };
  const { vendor } = await rocketReach(
    t,
    'universal',
    { status: 200, body: FOUND },
    { status: 200, body: both },
  );
  t.like(await vendor.submit(SUBJECT, NEVER), { kind: 'found', credits: 2 });
  t.like(await vendor.submit(SUBJECT, NEVER), { kind: 'found', credits: 5 });
});

for (const [grade, credits, confidence] of [
  ['A', 1, 1],
  ['a-', 1, 0.9],
  ['B', 0, 0.75],
  ['D', 0, 0.25],
  ['F', 0, 0],
  [null, 1, null],
  ['new', 1, null],
] as const) {
  test(`a RocketReach email of grade ${grade} costs ${credits} credits and has the confidence ${confidence}`, async (t) => {
    t.like(await stepFor(t, 200, { ...PROFILE, emails: [{ ...EMAIL, grade }] }), {
      kind: 'found',
      credits,
      candidates: [{ confidence }],
    });
  });
}

for (const field of [
  'current_work_email',
  'current_personal_email',
  'recommended_email',
  'recommended_professional_email',
  'recommended_personal_email',
]) {
  test(`the address in RocketReach's ${field} is the current one`, async (t) => {
    const other = { ...EMAIL, email: 'jo@earlier.com' };
    const profile = { ...PROFILE, emails: [other, EMAIL], [field]: 'Jo@Clinic.com' };
    t.like(await stepFor(t, 200, profile), {
      candidates: [
        { email: 'jo@earlier.com', isCurrent: false },
        { email: 'jo@clinic.com', isCurrent: true },
      ],
    });
  });
}

for (const [domain, employerDomain] of [
  ['www.SanfordHealth.org', 'sanfordhealth.org'],
  ['not a domain', null],
  [null, null],
] as const) {
  test(`the employer domain ${domain} of a RocketReach profile is read as ${employerDomain}`, async (t) => {
    t.like(await stepFor(t, 200, { ...FOUND, current_employer_domain: domain }), {
      identity: { employerDomain },
    });
  });
}

test('the emails of a complete RocketReach profile become candidates with an identity', async (t) => {
  const { vendor } = await rocketReach(t, 'legacy', recorded('rocketreach/complete'));
  t.deepEqual(await vendor.submit(SUBJECT, NEVER), {
    kind: 'found',
    candidates: [
      {
        email: 'maryjo.omalley@cedarvalleyclinic-sim.com',
        vendorType: 'professional',
        verdict: 'valid',
        validatedAt: new Date('2026-11-01T12:00:00Z'),
        isCurrent: true,
        confidence: 1,
      },
      {
        email: 'npi2000000010.sim@gmail.com',
        vendorType: 'personal',
        verdict: 'catch_all',
        validatedAt: null,
        isCurrent: true,
        confidence: 0.65,
      },
    ],
    identity: {
      npi: '2000000010',
      name: { kind: 'full', full: "Mary Jo O'Malley" },
      state: 'ND',
      employerDomain: 'cedarvalleyclinic-sim.com',
    },
    repeatsInput: false,
    credits: 1,
  });
});

test('an unfinished RocketReach lookup is polled until it is complete', async (t) => {
  const complete = recorded('rocketreach/complete');
  const listed = { status: 200, body: [complete.body] };
  const { vendor } = await rocketReach(
    t,
    'legacy',
    recorded('rocketreach/searching'),
    listed,
  );
  t.deepEqual(await vendor.submit(SUBJECT, NEVER), {
    kind: 'pending',
    jobRef: '7',
    pollAfterMs: 3000,
  });
  t.is((await vendor.poll('7', SUBJECT, NEVER)).kind, 'found');
});

for (const [status, meaning, step] of [
  [400, 'a fatal error', { kind: 'fatal', why: 'protocol', field: 'status' }],
  [402, 'an account without credits', { kind: 'fatal', why: 'credits' }],
  [403, 'a plan without the API', { kind: 'fatal', why: 'plan' }],
  [404, 'a person without a profile', { kind: 'miss', reason: 'no_profile', credits: 0 }],
  [429, 'a rate limit', { kind: 'retry', why: 'rate_limit', afterMs: null }],
  [451, 'a person who opted out', { kind: 'blocked' }],
] as const) {
  test(`a response from RocketReach with status ${status} means ${meaning}, with any body`, async (t) => {
    t.deepEqual(await stepFor(t, status, '<garbage'), step);
  });
}

for (const [about, meaning, body, step] of [
  [
    'lists our lookup',
    'read as a result',
    [{ ...PROFILE, id: 6 }, FOUND],
    { kind: 'found' },
  ],
  ['lists our lookup as failed', 'retried', [{ ...PROFILE, status: 'failed' }], GIVEN_UP],
  ['lists no lookup', 'retried', [], GIVEN_UP],
  ['lists other lookups', 'retried', [{ ...PROFILE, id: 6 }], GIVEN_UP],
  [
    'lists our lookup with a malformed status',
    'fatal',
    [{ ...PROFILE, status: 1 }],
    unreadable('[0].status'),
  ],
  ['lists text instead of lookups', 'fatal', ['x'], unreadable('[0]')],
  ['is not a list', 'fatal', PROFILE, unreadable('body')],
  ['is null', 'fatal', 'null', unreadable('body')],
] as const) {
  test(`a RocketReach status check that ${about} is ${meaning}`, async (t) => {
    const { vendor } = await rocketReach(t, 'legacy', { status: 200, body });
    t.like(await vendor.poll('7', SUBJECT, NEVER), step);
  });
}

function unreadable(field: string) {
  return { kind: 'fatal', why: 'protocol', field } as const;
}

test('a RocketReach status check that gets a 404 is retried, not read as "no result"', async (t) => {
  const { vendor } = await rocketReach(t, 'legacy', {
    status: 404,
    body: { detail: 'Not found.' },
  });
  t.deepEqual(await vendor.poll('7', SUBJECT, NEVER), GIVEN_UP);
});

async function candidateFor(t: ExecutionContext, email: Record<string, unknown>) {
  const step = await stepFor(t, 200, { ...PROFILE, emails: [{ ...EMAIL, ...email }] });
  return step.kind === 'found' ? step.candidates[0] : step;
}

for (const [field, about, body] of [
  ['body', 'null', 'null'],
  ['body', 'a list', '[]'],
  ['id', 'text', { ...FOUND, id: '7' }],
  ['id', 'not an integer', { ...FOUND, id: 1.5 }],
  ['id', 'missing', { ...FOUND, id: undefined }],
  ['status', 'null', { ...FOUND, status: null }],
  ['name', 'a number', { ...FOUND, name: 5 }],
  ['npi_data', 'text', { ...FOUND, npi_data: 'x' }],
  ['npi_data.npi_number', 'an object', { ...FOUND, npi_data: { npi_number: {} } }],
  ['emails', 'an object', { ...PROFILE, emails: {} }],
  ['emails', 'missing', PROFILE],
  ['emails[0]', 'text', { ...PROFILE, emails: ['jo@clinic.com'] }],
  ['emails[0].email', 'a number', { ...PROFILE, emails: [{ ...EMAIL, email: 5 }] }],
  [
    'emails[0].email',
    'missing',
    { ...PROFILE, emails: [{ ...EMAIL, email: undefined }] },
  ],
  [
    'emails[1].smtp_valid',
    'true',
    { ...PROFILE, emails: [EMAIL, { ...EMAIL, smtp_valid: true }] },
  ],
  [
    'emails[0].smtp_valid',
    'missing',
    { ...PROFILE, emails: [{ ...EMAIL, smtp_valid: undefined }] },
  ],
  ['emails[0].type', 'a list', { ...PROFILE, emails: [{ ...EMAIL, type: [] }] }],
  [
    'emails[0].last_validation_check',
    'a number',
    { ...PROFILE, emails: [{ ...EMAIL, last_validation_check: 1_700_000_000 }] },
  ],
] as const) {
  test(`the error about a RocketReach profile names the field ${field} if it is ${about}`, async (t) => {
    t.deepEqual(await stepFor(t, 200, body), unreadable(field));
  });
}

test('fields of a RocketReach profile that we do not use may have any value', async (t) => {
  const extras = { phones: 'x', toString: null, emails: [{ ...EMAIL, constructor: 1 }] };
  t.is((await stepFor(t, 200, { ...PROFILE, ...extras })).kind, 'found');
});

for (const [about, npi_data, npi] of [
  ['that is text', { npi_number: '2000000028' }, '2000000028'],
  ['that is a number', { npi_number: 2_000_000_028 }, '2000000028'],
  ['that is not an NPI', { npi_number: 'none' }, 'none'],
  ['that is empty', { npi_number: '' }, null],
  ['that is missing', {}, null],
  ['without its object', null, null],
] as const) {
  test(`an npi_number ${about} in a RocketReach profile is read as ${npi}`, async (t) => {
    t.like(await stepFor(t, 200, { ...FOUND, npi_data }), {
      kind: 'found',
      identity: { npi },
    });
  });
}

for (const [region, country_code, state] of [
  ['ND', 'US', 'ND'],
  ['nd', null, 'ND'],
  ['ON', 'CA', null],
  ['ON', 'US', null],
  [null, 'US', null],
] as const) {
  test(`RocketReach's region ${region} in country ${country_code} is read as state ${state}`, async (t) => {
    t.like(await stepFor(t, 200, { ...FOUND, region, country_code }), {
      identity: { state },
    });
  });
}

for (const [about, emails] of [
  ['no emails', []],
  ['null for emails', null],
  ['an empty email', [{ ...EMAIL, email: null }]],
  ['an email that cannot be stored', [{ ...EMAIL, email: 'jo\u0000@clinic.com' }]],
] as const) {
  test(`a complete RocketReach profile with ${about} counts as no result`, async (t) => {
    t.deepEqual(await stepFor(t, 200, { ...PROFILE, emails }), {
      kind: 'miss',
      reason: 'no_email',
    });
  });
}

test('a RocketReach lookup with status failed is retried, not read as "no result"', async (t) => {
  t.deepEqual(await stepFor(t, 200, { ...PROFILE, status: 'failed' }), GIVEN_UP);
});

for (const [about, rest, pollAfterMs] of [
  [
    'the status progress and unchecked emails',
    { status: 'progress', emails: [EMAIL] },
    3000,
  ],
  ['the status not queued', { status: 'not queued' }, 3000],
  ['an unknown status', { status: 'pondering' }, 3000],
  ['retry_after_seconds of 5', { status: 'searching', retry_after_seconds: 5 }, 5000],
  [
    'retry_after_seconds of many years',
    { status: 'searching', retry_after_seconds: 1e9 },
    60_000,
  ],
  [
    'retry_after_seconds as text',
    { status: 'searching', retry_after_seconds: '5' },
    3000,
  ],
] as const) {
  test(`a RocketReach profile with ${about} is polled after ${pollAfterMs} ms`, async (t) => {
    const step = await stepFor(t, 200, { ...PROFILE, ...rest });
    t.deepEqual(step, { kind: 'pending', jobRef: '7', pollAfterMs });
  });
}

for (const [about, email, verdict] of [
  ['smtp_valid valid', { smtp_valid: 'valid' }, 'valid'],
  ['smtp_valid invalid', { smtp_valid: 'invalid' }, 'invalid'],
  ['smtp_valid accept-all', { smtp_valid: 'accept-all' }, 'catch_all'],
  ['smtp_valid in another notation', { smtp_valid: 'Catch_All' }, 'catch_all'],
  ['smtp_valid inconclusive', { smtp_valid: 'inconclusive' }, 'unknown'],
  ['smtp_valid unknown', { smtp_valid: 'unknown' }, 'unknown'],
  ['a word that all objects inherit', { smtp_valid: 'constructor' }, 'unknown'],
  ['smtp_valid null', { smtp_valid: null }, 'unknown'],
  ['grade F', { grade: 'F' }, 'invalid'],
  ['grade B', { grade: 'B' }, 'valid'],
  ['type disposable', { type: 'disposable' }, 'invalid'],
  ['type role-based', { type: 'role-based' }, 'risky'],
  [
    'type role-based and smtp_valid accept-all',
    { type: 'role-based', smtp_valid: 'accept-all' },
    'catch_all',
  ],
] as const) {
  test(`a RocketReach email with ${about} gets the verdict "${verdict}"`, async (t) => {
    t.like(await candidateFor(t, email), { verdict });
  });
}

for (const [type, vendorType] of [
  ['professional', 'professional'],
  ['personal', 'personal'],
  ['role-based', null],
  [null, null],
] as const) {
  test(`RocketReach's email type ${type} is read as our type ${vendorType}`, async (t) => {
    t.like(await candidateFor(t, { type }), { vendorType });
  });
}

for (const [text, iso] of [
  ['2026-11-01T12:00:00Z', '2026-11-01T12:00:00.000Z'],
  ['2026-11-01T12:00:00.123456+02:00', '2026-11-01T10:00:00.123Z'],
  ['2026-11-01 12:00:00', '2026-11-01T12:00:00.000Z'],
  ['2026-11-01 12:00:00 UTC', '2026-11-01T12:00:00.000Z'],
  ['2026-11-01', '2026-11-01T00:00:00.000Z'],
  ['yesterday', null],
  ['2026-13-01', null],
  ['', null],
  [null, null],
] as const) {
  test(`RocketReach's last_validation_check '${text}' is read as the date ${iso}`, async (t) => {
    const candidate = await candidateFor(t, { last_validation_check: text });
    t.is(
      candidate && 'validatedAt' in candidate
        ? (candidate.validatedAt?.toISOString() ?? null)
        : '',
      iso,
    );
  });
}
