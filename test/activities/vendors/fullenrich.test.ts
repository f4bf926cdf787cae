import type { ExecutionContext } from 'ava';
import test from 'ava';
import {
  createFullEnrich,
  FULLENRICH_POLL_MS,
} from '../../../activities/vendors/fullenrich.ts';
import {
  closedUrl,
  type Played,
  playVendor,
  recorded,
  SUBJECT,
} from '../../support/vendors.ts';

const KEY = 'key-of-a-test';
const NEVER = new AbortController().signal;
const JOB = '2db5ea61-1752-42cf-8ea1-ab1da060cd0a';

async function fullEnrich(t: ExecutionContext, ...replies: Played[]) {
  const { url, asked } = await playVendor(t, ...replies);
  const baseUrl = `${url}/api/v2/`;
  return {
    asked,
    vendor: createFullEnrich({ baseUrl, apiKey: KEY, pollMs: FULLENRICH_POLL_MS }),
  };
}

async function submitted(t: ExecutionContext, reply: Played) {
  const { vendor } = await fullEnrich(t, reply);
  return await vendor.submit(SUBJECT, NEVER);
}

async function polled(t: ExecutionContext, reply: Played) {
  const { vendor } = await fullEnrich(t, reply);
  return await vendor.poll(JOB, SUBJECT, NEVER);
}

const finished = recorded('fullenrich/finished');
const result = finished.body as { data: { contact_info: object }[] };

/** Returns a finished job whose one contact has this info. */
function found(contact_info: unknown): Played {
  return {
    status: 200,
    body: { ...result, data: [{ ...result.data[0], contact_info }] },
  };
}

test('a lookup sends FullEnrich the documented request, a job for one contact', async (t) => {
  const { vendor, asked } = await fullEnrich(t, recorded('fullenrich/submitted'));
  t.deepEqual(await vendor.submit(SUBJECT, NEVER), {
    kind: 'pending',
    jobRef: JOB,
    pollAfterMs: 100_000,
  });
  t.like(asked[0], {
    method: 'POST',
    url: '/api/v2/contact/enrich/bulk',
    headers: { authorization: `Bearer ${KEY}`, 'content-type': 'application/json' },
    body: {
      name: 'NPI 2000000010',
      data: [
        {
          first_name: 'Mary Jo',
          last_name: "O'Malley",
          domain: 'cedarvalleyclinic-sim.com',
          company_name: 'Cedar Valley Clinic, P.L.L.C.',
          enrich_fields: ['contact.work_emails', 'contact.personal_emails'],
        },
      ],
    },
  });
});

for (const [requestedType, fields, cost] of [
  ['professional', ['contact.work_emails'], 1],
  ['personal', ['contact.personal_emails'], 3],
  ['any', ['contact.work_emails', 'contact.personal_emails'], 4],
] as const) {
  test(`for type ${requestedType}, FullEnrich is asked for ${fields}, for at most ${cost} credits`, async (t) => {
    const { vendor, asked } = await fullEnrich(t, recorded('fullenrich/submitted'));
    await vendor.submit({ ...SUBJECT, requestedType }, NEVER);
    t.like(asked[0]?.body, { data: [{ enrich_fields: fields }] });
    t.is(vendor.cost(requestedType), cost);
  });
}

test('fields that are unknown for an organization are not sent to FullEnrich', async (t) => {
  const { vendor, asked } = await fullEnrich(t, recorded('fullenrich/submitted'));
  const organization = {
    name: null,
    domain: 'clinic.example',
    source: 'affiliation',
    confidence: 1,
  } as const;
  await vendor.submit({ ...SUBJECT, organization }, NEVER);
  t.deepEqual(asked[0]?.body, {
    name: 'NPI 2000000010',
    data: [
      {
        first_name: 'Mary Jo',
        last_name: "O'Malley",
        domain: 'clinic.example',
        enrich_fields: ['contact.work_emails', 'contact.personal_emails'],
      },
    ],
  });
});

test('a 400 for a poll of FullEnrich means that the job is running, so we poll again', async (t) => {
  const { vendor, asked } = await fullEnrich(t, recorded('fullenrich/running'), finished);
  const pending = {
    kind: 'pending',
    jobRef: JOB,
    pollAfterMs: FULLENRICH_POLL_MS,
  } as const;
  t.deepEqual(await vendor.poll(JOB, SUBJECT, NEVER), pending);
  t.is((await vendor.poll(JOB, SUBJECT, NEVER)).kind, 'found');
  t.deepEqual(
    asked.map(({ method, url }) => `${method} ${url}`),
    Array(2).fill(`GET /api/v2/contact/enrich/bulk/${JOB}`),
  );
});

test("FullEnrich's addresses are listed once, those that bounce least first", async (t) => {
  t.deepEqual(await polled(t, finished), {
    kind: 'found',
    candidates: [
      {
        email: 'maryjo.omalley@cedarvalleyclinic-sim.com',
        vendorType: 'professional',
        verdict: 'valid',
        validatedAt: null,
        isCurrent: true,
        confidence: 0.98,
      },
      {
        email: 'npi2000000010.sim@gmail.com',
        vendorType: 'personal',
        verdict: 'catch_all',
        validatedAt: null,
        isCurrent: true,
        confidence: 0.91,
      },
      {
        email: 'mo@cedarvalleyclinic-sim.com',
        vendorType: 'professional',
        verdict: 'catch_all',
        validatedAt: null,
        isCurrent: false,
        confidence: 0.6,
      },
    ],
    identity: {
      npi: null,
      name: { kind: 'parts', first: 'Mary Jo', last: "O'Malley" },
      state: null,
      employerDomain: null,
    },
    repeatsInput: true,
    credits: 4,
  });
});

test('a FullEnrich result with a profile takes its identity from there, not our input', async (t) => {
  const profile = {
    full_name: 'Maria O’Malley',
    location: { country_code: 'US', region: 'North Dakota' },
    employment: { current: { company: { domain: 'www.SanfordHealth.org' } } },
  };
  const step = await polled(t, {
    status: 200,
    body: { ...result, data: [{ ...result.data[0], profile }] },
  });
  t.like(step, {
    identity: {
      name: { kind: 'full', full: 'Maria O’Malley' },
      state: 'ND',
      employerDomain: 'sanfordhealth.org',
    },
    repeatsInput: false,
  });
});

for (const [status, verdict] of [
  ['DELIVERABLE', 'valid'],
  ['HIGH_PROBABILITY', 'catch_all'],
  ['CATCH_ALL', 'catch_all'],
  ['INVALID', 'invalid'],
  ['INVALID_DOMAIN', 'invalid'],
  ['SOMETHING_NEW', 'unknown'],
  [null, 'unknown'],
] as const) {
  test(`an address with email status ${status} at FullEnrich gets the verdict "${verdict}"`, async (t) => {
    const step = await polled(
      t,
      found({ work_emails: [{ email: 'jo@clinic.com', status }] }),
    );
    t.like(step, { candidates: [{ email: 'jo@clinic.com', verdict }] });
  });
}

for (const [status, step] of [
  ['CREATED', { kind: 'pending', jobRef: JOB, pollAfterMs: FULLENRICH_POLL_MS }],
  ['IN_PROGRESS', { kind: 'pending', jobRef: JOB, pollAfterMs: FULLENRICH_POLL_MS }],
  ['UNKNOWN', { kind: 'pending', jobRef: JOB, pollAfterMs: FULLENRICH_POLL_MS }],
  ['SOMETHING_NEW', { kind: 'pending', jobRef: JOB, pollAfterMs: FULLENRICH_POLL_MS }],
  ['CANCELED', { kind: 'retry', why: 'upstream', afterMs: FULLENRICH_POLL_MS }],
  ['CREDITS_INSUFFICIENT', { kind: 'miss', reason: 'no_email', credits: 0 }],
  ['RATE_LIMIT', { kind: 'pending', jobRef: JOB, pollAfterMs: FULLENRICH_POLL_MS }],
] as const) {
  test(`a FullEnrich job with status ${status} becomes the step "${step.kind}"`, async (t) => {
    const { body } = recorded('fullenrich/nothing');
    t.deepEqual(
      await polled(t, { status: 200, body: { ...(body as object), status } }),
      step,
    );
  });
}

test('a FullEnrich job without a result costs nothing', async (t) => {
  t.deepEqual(await polled(t, recorded('fullenrich/nothing')), {
    kind: 'miss',
    reason: 'no_email',
    credits: 0,
  });
});

test('a 402 from FullEnrich means that our account has no credits', async (t) => {
  t.deepEqual(await polled(t, recorded('fullenrich/credits')), {
    kind: 'fatal',
    why: 'credits',
  });
});

test('a result in a 402 from FullEnrich has been paid for, and we use it', async (t) => {
  const body = { ...result, status: 'CREDITS_INSUFFICIENT' };
  t.like(await polled(t, { status: 402, body }), { kind: 'found', credits: 4 });
});

test('an unreadable 402 from FullEnrich also means that our account has no credits', async (t) => {
  t.deepEqual(await polled(t, { status: 402, body: '<html>' }), {
    kind: 'fatal',
    why: 'credits',
  });
});

test('without Retry-After, a rate limit of FullEnrich lasts one minute, as documented', async (t) => {
  const step = { kind: 'retry', why: 'rate_limit', afterMs: 60_000 } as const;
  t.deepEqual(await submitted(t, recorded('fullenrich/limited')), step);
  t.deepEqual(await polled(t, recorded('fullenrich/limited')), step);
});

test('a failed poll of FullEnrich is repeated after the usual interval', async (t) => {
  const afterMs = FULLENRICH_POLL_MS;
  t.deepEqual(await polled(t, { status: 500, body: '' }), {
    kind: 'retry',
    why: 'upstream',
    afterMs,
  });
  t.deepEqual(await polled(t, { status: 502, body: '' }), {
    kind: 'retry',
    why: 'unanswered',
    afterMs,
  });
  const nobody = createFullEnrich({
    baseUrl: await closedUrl(),
    apiKey: KEY,
    pollMs: afterMs,
  });
  const unsent = {
    kind: 'retry',
    why: 'unsent',
    cause: 'ECONNREFUSED',
    afterMs: null,
  } as const;
  t.deepEqual(await nobody.poll(JOB, SUBJECT, NEVER), unsent);
});

test('a FullEnrich job is polled after 100 seconds, then every five minutes', async (t) => {
  const { vendor } = await fullEnrich(
    t,
    recorded('fullenrich/submitted'),
    recorded('fullenrich/running'),
  );
  t.like(await vendor.submit(SUBJECT, NEVER), { pollAfterMs: 100_000 });
  t.like(await vendor.poll(JOB, SUBJECT, NEVER), { pollAfterMs: 300_000 });
});

test('the poll of a job unknown to FullEnrich is retried, not read as "no result"', async (t) => {
  const body = { code: 'error.enrichment.not_found', message: 'Enrichment ID not found' };
  const afterMs = FULLENRICH_POLL_MS;
  t.deepEqual(await polled(t, { status: 404, body }), {
    kind: 'retry',
    why: 'upstream',
    afterMs,
  });
  const page = { status: 404, headers: { 'content-type': 'text/html' }, body: '<html>' };
  t.deepEqual(await polled(t, page), { kind: 'fatal', why: 'protocol', field: 'body' });
});

test('a 404 from FullEnrich for a new job is a fatal error, because the URL is wrong', async (t) => {
  const body = { code: 'error.not_found', message: 'Not found' };
  t.deepEqual(await submitted(t, { status: 404, body }), {
    kind: 'fatal',
    why: 'protocol',
    field: 'status',
  });
});

for (const [code, step] of [
  ['error.enrichment.first_name.empty', { kind: 'skip', missing: ['name'] }],
  ['error.enrichment.domain.empty', { kind: 'skip', missing: ['organization'] }],
  [
    'error.enrichment.enrich_field.value',
    { kind: 'fatal', why: 'protocol', field: 'code' },
  ],
] as const) {
  test(`the FullEnrich error ${code} becomes the step "${step.kind}"`, async (t) => {
    t.deepEqual(await submitted(t, { status: 400, body: { code, message: '' } }), step);
  });
}

for (const [about, reply, field] of [
  ['its id is missing', { status: 200, body: {} }, 'enrichment_id'],
  ['its id is a number', { status: 200, body: { enrichment_id: 5 } }, 'enrichment_id'],
  [
    'its id contains ../ and would change the URL of the poll',
    { status: 200, body: { enrichment_id: '../keys' } },
    'enrichment_id',
  ],
  ['it is a 400 without an error code', { status: 400, body: { error: 'no' } }, 'code'],
] as const) {
  test(`FullEnrich's response to a new job is a fatal error if ${about}`, async (t) => {
    t.deepEqual(await submitted(t, reply), { kind: 'fatal', why: 'protocol', field });
  });
}

for (const [field, about, reply] of [
  ['status', 'a number', { status: 200, body: { ...result, status: 5 } }],
  ['status', 'missing', { status: 200, body: { ...result, status: undefined } }],
  ['data', 'an object', { status: 200, body: { ...result, data: {} } }],
  ['data', 'empty', { status: 200, body: { ...result, data: [] } }],
  ['data', 'missing', { status: 200, body: { ...result, data: undefined } }],
  ['data[0]', 'text', { status: 200, body: { ...result, data: ['x'] } }],
  ['cost.credits', 'text', { status: 200, body: { ...result, cost: { credits: '4' } } }],
  ['data[0].contact_info', 'a list', found([])],
  ['data[0].contact_info.work_emails', 'text', found({ work_emails: 'x' })],
  [
    'data[0].contact_info.work_emails[0].email',
    'missing',
    found({ work_emails: [{ status: 'DELIVERABLE' }] }),
  ],
  [
    'data[0].contact_info.work_emails[0].status',
    'missing',
    found({ work_emails: [{ email: 'a@b.c', verdict: 'ok' }] }),
  ],
  [
    'data[0].contact_info.most_probable_work_email.email',
    'a number',
    found({ most_probable_work_email: { email: 7, status: '' } }),
  ],
  ['code', 'the code of another error', { status: 400, body: { code: 'error.other' } }],
  ['body', 'empty', { status: 400, body: '' }],
] as const) {
  test(`the error about a FullEnrich result names the field ${field} if it is ${about}`, async (t) => {
    t.deepEqual(await polled(t, reply), { kind: 'fatal', why: 'protocol', field });
  });
}
