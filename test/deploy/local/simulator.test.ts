import { once } from 'node:events';
import { request } from 'node:http';
import type { ExecutionContext } from 'ava';
import test from 'ava';
import { hasNpiCheckDigit } from '../../../db/providers/npi.ts';
import { shareOf } from '../../../deploy/local/sim/knowledge.ts';
import { createSimulator } from '../../../deploy/local/simulator.ts';

const KEY = 'key-of-a-test';

/** Starts a simulator for a test, and returns calls to its vendors as in their documentation. */
async function simulator(t: ExecutionContext) {
  const running = await createSimulator({ port: 0, speed: 1000, apiKey: KEY });
  t.teardown(() => running.close());
  const { rocketreach, fullenrich, prospeo, hunter } = running.urls;
  const call = async (url: string, init: RequestInit) => {
    const response = await fetch(url, init);
    return { status: response.status, body: await response.json() };
  };
  const ask = (path: string) => call(rocketreach + path, { headers: { 'Api-Key': KEY } });
  const authorization = `Bearer ${KEY}`;
  return {
    running,
    /** RocketReach. */
    ask,
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
        headers: { 'X-KEY': KEY },
        body: JSON.stringify({ only_verified_email: true, data }),
      }),
    /** Hunter. */
    find: (query: Readonly<Record<string, string>>) =>
      call(`${hunter}/email-finder?${new URLSearchParams(query)}`, {
        headers: { 'X-API-KEY': KEY },
      }),
  };
}

const FIELDS = { enrich_fields: ['contact.work_emails', 'contact.personal_emails'] };
/** The employer of a contact at FullEnrich, and the requested fields. */
const AT = { company_name: 'Any Clinic', ...FIELDS };
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

test('the NPI for a hanging vendor gets no response, and the simulator still closes', async (t) => {
  const running = await createSimulator({ port: 0, speed: 1000, apiKey: KEY });
  const hanging = request(
    `${running.urls.rocketreach}/person/lookup?npi_number=2000000101`,
    {
      headers: { 'Api-Key': KEY },
    },
  );
  const outcome = once(hanging, 'response').then(
    () => 'responded',
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

test('simulated vendors reject requests that lack what their vendors require', async (t) => {
  const { ask, submit, poll, enrich, find } = await simulator(t);
  for (const path of ['/person/lookup', '/person/lookup?npi_number=12'])
    t.is((await ask(path)).status, 400, path);
  for (const [code, contact] of [
    ['first_name.empty', { last_name: 'Stonehouse', ...AT }],
    ['last_name.empty', { first_name: 'Philippa', ...AT }],
    ['domain.empty', { ...STONEHOUSE, ...FIELDS }],
  ] as const) {
    t.like(await submit(contact), {
      status: 400,
      body: { code: `error.enrichment.${code}` },
    });
  }
  t.like(await poll('x'), { status: 404, body: { code: 'error.enrichment.not_found' } });
  for (const data of [BIRKENFELD, null]) {
    t.like(await enrich(data), {
      status: 400,
      body: { error_code: 'INVALID_DATAPOINTS' },
    });
  }
  t.like(await find(KETTLEBURN), {
    status: 400,
    body: { errors: [{ id: 'wrong_params' }] },
  });
});
