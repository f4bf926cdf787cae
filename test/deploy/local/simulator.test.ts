import { once } from 'node:events';
import { request } from 'node:http';
import type { ExecutionContext } from 'ava';
import test from 'ava';
import { hasNpiCheckDigit } from '../../../activities/person/npi.ts';
import { shareOf } from '../../../deploy/local/sim/knowledge.ts';
import { MAGIC } from '../../../deploy/local/sim/magic.ts';
import { createSimulator } from '../../../deploy/local/simulator.ts';

const KEY = 'key-of-a-test';

/** The parts of a profile that these tests read. */
interface Profile {
  readonly id: number;
  readonly status: string;
  readonly npi_data?: { readonly npi_number: string };
  readonly emails: readonly {
    readonly email: string;
    readonly smtp_valid: string;
    readonly type: string;
    readonly last_validation_check: string;
  }[];
}

/**
 * Starts a simulator for a test, and returns calls to its vendors as in their documentation.
 * @param apiKey the key of the caller; the simulator requires `key-of-a-test`
 */
async function simulator(t: ExecutionContext, apiKey = KEY) {
  const running = await createSimulator({ port: 0, speed: 1000, apiKey: KEY });
  t.teardown(() => running.close());
  const { rocketreach, fullenrich, prospeo, hunter } = running.urls;
  const call = async <T = Record<string, unknown>>(url: string, init: RequestInit) => {
    const response = await fetch(url, init);
    return {
      status: response.status,
      headers: response.headers,
      body: (await response.json()) as T,
    };
  };
  const ask = <T>(path: string) =>
    call<T>(rocketreach + path, { headers: { 'Api-Key': apiKey } });
  const authorization = `Bearer ${apiKey}`;
  return {
    running,
    /** RocketReach. */
    ask,
    lookup: (npi: string) =>
      ask<Profile>(
        `/person/lookup?npi_number=${npi}&lookup_type=standard&return_cached_emails=false`,
      ),
    /** FullEnrich, one contact. */
    submit: (contact: object) =>
      call(`${fullenrich}/contact/enrich/bulk`, {
        method: 'POST',
        headers: { authorization },
        body: JSON.stringify({ name: 'a test', data: [contact] }),
      }),
    poll: (id: unknown) =>
      call(`${fullenrich}/contact/enrich/bulk/${id}`, { headers: { authorization } }),
    /** Prospeo. */
    enrich: (data: object | null) =>
      call(`${prospeo}/enrich-person`, {
        method: 'POST',
        headers: { 'X-KEY': apiKey },
        body: JSON.stringify({ only_verified_email: true, data }),
      }),
    /** Hunter. */
    find: (query: Readonly<Record<string, string>>) =>
      call(`${hunter}/email-finder?${new URLSearchParams(query)}`, {
        headers: { 'X-API-KEY': apiKey },
      }),
  };
}

/** The employer of a contact at FullEnrich, and the requested fields. */
const AT = {
  company_name: 'Any Clinic',
  enrich_fields: ['contact.work_emails', 'contact.personal_emails'],
};
const STONEHOUSE = { first_name: 'Philippa', last_name: 'Stonehouse' };
const BIRKENFELD = { first_name: 'Anatole', last_name: 'Birkenfeld' };
const KETTLEBURN = { first_name: 'Marisol', last_name: 'Kettleburn' };

/** Returns ordinary NPIs with right check digits. */
function ordinaryNpis(count: number): string[] {
  const npis: string[] = [];
  for (let stem = 123_400_000; npis.length < count; stem += 1) {
    for (let digit = 0; digit < 10; digit += 1) {
      if (hasNpiCheckDigit(`${stem}${digit}`)) npis.push(`${stem}${digit}`);
    }
  }
  return npis;
}

for (const path of ['/person/lookup', '/person/lookup?npi_number=12']) {
  test(`the simulated RocketReach rejects ${path}, which has no valid NPI`, async (t) => {
    const { ask } = await simulator(t);
    t.is((await ask(path)).status, 400);
  });
}

test('the simulated RocketReach returns a complete profile with name and state', async (t) => {
  const { lookup } = await simulator(t);
  const { status, headers, body } = await lookup('2000000036');
  t.is(status, 200);
  t.is(headers.get('content-type'), 'application/json');
  t.like(body, {
    status: 'complete',
    name: 'Imani Bellweather',
    city: 'CEDAR VALLEY',
    region: 'CO',
    country_code: 'US',
    npi_data: { npi_number: '2000000036' },
  });
  t.deepEqual(
    body.emails.map(({ type, smtp_valid }) => [type, smtp_valid]),
    [
      ['professional', 'valid'],
      ['personal', 'valid'],
    ],
  );
  t.true(
    Date.now() - Date.parse(body.emails[0]?.last_validation_check ?? '') < 86_400_000,
  );
});

test('the simulated RocketReach returns the same person for the same request', async (t) => {
  const { lookup } = await simulator(t);
  const [first, second] = [await lookup('2000000028'), await lookup('2000000028')];
  t.is(first.body.id, second.body.id);
  t.is(first.body.emails[0]?.email, second.body.emails[0]?.email);
});

for (const [npi, status] of [
  ['2000000044', 404],
  ['2000000093', 404],
  ['2000000119', 500],
] as const) {
  test(`the simulated RocketReach always returns ${status} for the NPI ${npi}`, async (t) => {
    const { lookup } = await simulator(t);
    t.is((await lookup(npi)).status, status);
    t.is((await lookup(npi)).status, status);
  });
}

test('the simulated RocketReach rejects the first call for one NPI with Retry-After: 1', async (t) => {
  const { lookup } = await simulator(t);
  const first = await lookup('2000000127');
  t.is(first.status, 429);
  t.is(first.headers.get('retry-after'), '1');
  t.is((await lookup('2000000127')).body.status, 'complete');
  t.is((await lookup('2000000127')).status, 200);
});

test('the simulated RocketReach returns no emails until the lookup is complete', async (t) => {
  const { ask, lookup } = await simulator(t);
  const { body: started } = await lookup('2000000143');
  t.like(started, { status: 'progress', emails: null });
  const poll = async () =>
    (await ask<Profile[]>(`/person/checkStatus?ids=${started.id}`)).body;
  t.like(await poll(), [{ status: 'progress', emails: null }]);
  t.like(await poll(), [
    { id: started.id, status: 'complete', emails: [{ smtp_valid: 'inconclusive' }] },
  ]);
  t.is((await lookup('2000000143')).body.status, 'complete');
});

test('for one magic NPI, the simulated RocketReach returns another person with their NPI', async (t) => {
  const { lookup } = await simulator(t);
  const { body } = await lookup('2000000168');
  t.like(body, { name: 'Edda Kowalczyk', npi_data: { npi_number: '2000000010' } });
});

test('the NPI for a hanging vendor gets no response, and the simulator still closes', async (t) => {
  const running = await createSimulator({ port: 0, speed: 1000, apiKey: KEY });
  const hanging = request(
    `${running.urls.rocketreach}/person/lookup?npi_number=2000000101`,
    {
      headers: { 'Api-Key': KEY },
    },
  );
  const outcome = once(hanging, 'response').then(
    () => 'answered',
    () => 'cut off',
  );
  hanging.end();
  // A later request gets its response first.
  await fetch(`${running.urls.rocketreach}/person/lookup?npi_number=2000000010`, {
    headers: { 'Api-Key': KEY },
  });
  t.deepEqual(running.calls(), [
    {
      vendor: 'rocketreach',
      route: 'GET /person/lookup',
      subject: '2000000101',
      status: null,
    },
    {
      vendor: 'rocketreach',
      route: 'GET /person/lookup',
      subject: '2000000010',
      status: 200,
    },
  ]);
  await running.close();
  t.is(await outcome, 'cut off');
});

test('every magic NPI gets a response, except the one for a hanging vendor', async (t) => {
  const { running, lookup } = await simulator(t);
  const npis = [...MAGIC.keys()].filter((npi) => npi !== '2000000101');
  t.is(npis.length, 21);
  await Promise.all(npis.map((npi) => lookup(npi)));
  t.is(running.calls().length, 21);
});

test('each outcome has its documented share of ordinary NPIs, the same every time', (t) => {
  const npis = ordinaryNpis(5000);
  const shares = Object.groupBy(npis, shareOf);
  t.deepEqual(Object.groupBy(npis, shareOf), shares);
  const expected = {
    both: 0.2,
    found: 0.4,
    personal: 0.15,
    slow: 0.05,
    nobody: 0.2,
  } as const;
  for (const share of Object.keys(expected) as (keyof typeof expected)[]) {
    const part = (shares[share]?.length ?? 0) / npis.length;
    t.true(Math.abs(part - expected[share]) < 0.02, `${share}: ${part}`);
  }
});

test('simulated vendors share one port with separate paths; other paths return 404', async (t) => {
  const { running } = await simulator(t);
  const origin = new URL(running.urls.rocketreach).origin;
  t.deepEqual(running.urls, {
    rocketreach: `${origin}/rocketreach/api/v2`,
    fullenrich: `${origin}/fullenrich/api/v2`,
    prospeo: `${origin}/prospeo`,
    hunter: `${origin}/hunter/v2`,
    reacher: `${origin}/reacher`,
    registry: `${origin}/registry/api`,
  });
  for (const path of [
    '/',
    '/api/v2/person/lookup',
    '/nobody/x',
    '/rocketreachx/api/v2/person/lookup',
    '/rocketreach/api/v2/x',
  ]) {
    t.is((await fetch(origin + path, { headers: { 'Api-Key': KEY } })).status, 404);
  }
  t.deepEqual(running.calls(), []);
});

test("the simulator's error about a port that is in use is one clear sentence", async (t) => {
  const { running } = await simulator(t);
  const port = Number(new URL(running.urls.rocketreach).port);
  await t.throwsAsync(createSimulator({ port, speed: 1, apiKey: KEY }), {
    message: /simulator.* is in use/,
  });
});

test("a wrong API key gets a 401 in each vendor's format and is not recorded", async (t) => {
  const { running, lookup, submit, poll, enrich, find } = await simulator(t, 'another');
  const unknown = { code: 'error.api.key', message: 'Unknown api key' };
  t.like(await lookup('2000000010'), {
    status: 401,
    body: { status: 401, message: 'Invalid API Key' },
  });
  t.like(await submit({ ...STONEHOUSE, ...AT }), { status: 401, body: unknown });
  t.like(await poll('x'), { status: 401, body: unknown });
  t.like(await enrich(STONEHOUSE), {
    status: 401,
    body: { error: true, error_code: 'INVALID_API_KEY' },
  });
  t.like(await find(STONEHOUSE), {
    status: 401,
    body: { errors: [{ id: 'authentication_failed', code: 401 }] },
  });
  t.deepEqual(running.calls(), []);
});

test('the simulated Prospeo returns a person at once, and repeating the call is free', async (t) => {
  const { running, enrich } = await simulator(t);
  const contact = { ...BIRKENFELD, company_website: 'summitorthopedics-sim.com' };
  const { status, body } = await enrich(contact);
  t.is(status, 200);
  t.like(body, {
    error: false,
    free_enrichment: false,
    person: {
      full_name: 'Anatole Birkenfeld',
      email: {
        status: 'VERIFIED',
        revealed: true,
        email: 'anatole.birkenfeld@summitorthopedics-sim.com',
      },
      location: { country_code: 'US', state: 'NC' },
    },
  });
  t.true((await enrich(contact)).body.free_enrichment);
  t.like(running.calls(), [
    {
      vendor: 'prospeo',
      route: 'POST /enrich-person',
      subject: '2000000200',
      status: 200,
    },
  ]);
});

test('the simulated Prospeo returns a code for every error', async (t) => {
  const { enrich } = await simulator(t);
  t.like(await enrich({ ...STONEHOUSE, company_name: 'X' }), {
    status: 400,
    body: { error_code: 'NO_MATCH' },
  });
  t.like(await enrich(BIRKENFELD), {
    status: 400,
    body: { error_code: 'INVALID_DATAPOINTS' },
  });
  t.like(await enrich(null), { status: 400, body: { error_code: 'INVALID_DATAPOINTS' } });
});

test('the simulated Hunter returns the likeliest address with its verification', async (t) => {
  const { running, find } = await simulator(t);
  const query = { ...KETTLEBURN, company: 'Mesa View Dermatology' };
  const { status, body } = await find(query);
  t.is(status, 200);
  t.like(body, {
    data: {
      first_name: 'Marisol',
      last_name: 'Kettleburn',
      email: 'marisol.kettleburn@mesaviewdermatology-sim.com',
      verification: { status: 'valid' },
    },
  });
  t.like(running.calls(), [
    { vendor: 'hunter', route: 'GET /email-finder', subject: '2000000218', status: 200 },
  ]);
});

test('the simulated Hunter requires an employer, and finds nothing if it is wrong', async (t) => {
  const { find } = await simulator(t);
  t.is((await find({ ...KETTLEBURN, domain: 'elsewhere.com' })).status, 404);
  t.like(await find(KETTLEBURN), {
    status: 400,
    body: { errors: [{ id: 'wrong_params' }] },
  });
});

test('the simulated FullEnrich returns a job, and 400 for polls until the job is done', async (t) => {
  const { running, submit, poll } = await simulator(t);
  const contact = {
    ...STONEHOUSE,
    first_name: 'PHILIPPA',
    domain: 'northgatecardiology-sim.com',
    enrich_fields: AT.enrich_fields,
  };
  const { status, body } = await submit(contact);
  t.is(status, 200);
  const id = String(body.enrichment_id);
  t.regex(id, /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
  t.like(await poll(id), { status: 400, body: { code: 'error.enrichment.in_progress' } });
  const email = {
    email: 'philippa.stonehouse@northgatecardiology-sim.com',
    status: 'DELIVERABLE',
  };
  const finished = await poll(id);
  t.like(finished, {
    status: 200,
    body: { id, name: 'a test', status: 'FINISHED', cost: { credits: 1 } },
  });
  t.like(finished.body.data, [
    {
      contact_info: { work_emails: [email], personal_emails: [] },
      profile: {
        first_name: 'Philippa',
        last_name: 'Stonehouse',
        location: { region: 'OH' },
      },
    },
  ]);
  t.deepEqual(
    running.calls().map(({ route, subject, status }) => [route, subject, status]),
    [
      ['POST /contact/enrich/bulk', '2000000192', 200],
      ['GET /contact/enrich/bulk/*', id, 400],
      ['GET /contact/enrich/bulk/*', id, 200],
    ],
  );
});

test('the simulated FullEnrich charges nothing if it finds no email', async (t) => {
  const { submit, poll } = await simulator(t);
  const { body } = await submit({ first_name: 'Casimir', last_name: 'Thorne', ...AT });
  await poll(body.enrichment_id);
  const { body: result } = await poll(body.enrichment_id);
  t.like(result, { status: 'FINISHED', cost: { credits: 0 } });
  const [record] = result.data as Record<string, unknown>[];
  t.deepEqual(record?.contact_info, { work_emails: [], personal_emails: [] });
});

for (const [code, contact] of [
  ['first_name.empty', { last_name: 'Stonehouse', ...AT }],
  ['last_name.empty', { first_name: 'Philippa', ...AT }],
  ['domain.empty', { ...STONEHOUSE, enrich_fields: AT.enrich_fields }],
] as const) {
  test(`the simulated FullEnrich rejects a contact with error.enrichment.${code}`, async (t) => {
    const { submit } = await simulator(t);
    t.like(await submit(contact), {
      status: 400,
      body: { code: `error.enrichment.${code}` },
    });
  });
}

test('the simulated FullEnrich returns 404 for an unknown job', async (t) => {
  const { poll } = await simulator(t);
  t.like(await poll('x'), { status: 404, body: { code: 'error.enrichment.not_found' } });
});
