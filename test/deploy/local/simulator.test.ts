import { once } from 'node:events';
import { request } from 'node:http';
import type { ExecutionContext } from 'ava';
import test from 'ava';
import { hasNpiCheckDigit } from '../../../activities/person/npi.ts';
import { MAGIC, shareOf } from '../../../deploy/local/sim/magic.ts';
import { lookupLatencyMs } from '../../../deploy/local/sim/rocketreach.ts';
import { createSimulator } from '../../../deploy/local/simulator.ts';

const KEY = 'key-of-a-test';

/** A profile on the wire, as far as these tests look at it. */
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

async function simulator(t: ExecutionContext) {
  const running = await createSimulator({ port: 0, speed: 1000, apiKey: KEY });
  t.teardown(() => running.close());
  const ask = async <T>(path: string, key: string | null = KEY) => {
    const response = await fetch(running.url + path, { headers: key === null ? {} : { 'Api-Key': key } });
    return { status: response.status, headers: response.headers, body: (await response.json()) as T };
  };
  const lookup = (npi: string, rest = '&return_cached_emails=false') =>
    ask<Profile>(`/person/lookup?npi_number=${npi}&lookup_type=standard${rest}`);
  return { running, ask, lookup };
}

/** NPIs of the ordinary kind, with right check digits. */
function ordinaryNpis(count: number): string[] {
  const npis: string[] = [];
  for (let stem = 123_400_000; npis.length < count; stem += 1) {
    for (let digit = 0; digit < 10; digit += 1) {
      if (hasNpiCheckDigit(`${stem}${digit}`)) npis.push(`${stem}${digit}`);
    }
  }
  return npis;
}

test('callers without the right key get 401 and are not counted', async (t) => {
  const { running, ask } = await simulator(t);
  for (const key of [null, 'another']) {
    const { status, body } = await ask('/person/lookup?npi_number=2000000010', key);
    t.is(status, 401);
    t.deepEqual(body, { status: 401, message: 'Invalid API Key' });
  }
  t.deepEqual(running.calls(), []);
});

for (const path of ['/person/lookup', '/person/lookup?npi_number=12', '/person/checkStatus?ids=x']) {
  test(`${path} is a bad request`, async (t) => {
    const { ask } = await simulator(t);
    t.is((await ask(path)).status, 400);
  });
}

test('a found person is a complete profile of that NPI, with a name and a state', async (t) => {
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
  t.true(Date.now() - Date.parse(body.emails[0]?.last_validation_check ?? '') < 86_400_000);
});

test('the same question gets the same person', async (t) => {
  const { lookup } = await simulator(t);
  const [first, second] = [await lookup('2000000028'), await lookup('2000000028')];
  t.is(first.body.id, second.body.id);
  t.is(first.body.emails[0]?.email, second.body.emails[0]?.email);
});

for (const [npi, status] of [
  ['2000000044', 404],
  ['2000000085', 404],
  ['2000000093', 404],
  ['2000000119', 500],
  ['2000000176', 404],
  ['2000000192', 404],
] as const) {
  test(`${npi} is answered ${status}, every time`, async (t) => {
    const { lookup } = await simulator(t);
    t.is((await lookup(npi)).status, status);
    t.is((await lookup(npi)).status, status);
  });
}

test('the limited NPI is told to come back in a second, once', async (t) => {
  const { running, lookup } = await simulator(t);
  const first = await lookup('2000000127');
  t.is(first.status, 429);
  t.is(first.headers.get('retry-after'), '1');
  t.is((await lookup('2000000127')).body.status, 'complete');
  t.is((await lookup('2000000127')).status, 200);
  running.reset();
  t.is((await lookup('2000000127')).status, 429);
});

test('an unfinished lookup shows no emails until a status check says complete', async (t) => {
  const { ask, lookup } = await simulator(t);
  const { body: started } = await lookup('2000000143');
  t.like(started, { status: 'progress', emails: null });
  const poll = async () => (await ask<Profile[]>(`/person/checkStatus?ids=${started.id}`)).body;
  t.like(await poll(), [{ status: 'progress', emails: null }]);
  t.like(await poll(), [{ id: started.id, status: 'complete', emails: [{ smtp_valid: 'inconclusive' }] }]);
  t.is((await lookup('2000000143')).body.status, 'complete');
});

test('cached emails, where they are asked for, are inconclusive at first', async (t) => {
  const { lookup } = await simulator(t);
  const { body } = await lookup('2000000143', '&return_cached_emails=true');
  t.like(body, { status: 'progress', emails: [{ smtp_valid: 'inconclusive' }] });
});

test('universal credits show what is asked for, and nothing without', async (t) => {
  const { ask } = await simulator(t);
  const lookup = (reveal: string) => ask<Profile>(`/universal/person/lookup?npi_number=2000000036${reveal}`);
  t.is((await lookup('')).status, 400);
  const { body } = await lookup('&reveal_personal_email=true');
  t.deepEqual(
    body.emails.map(({ type }) => type),
    ['personal'],
  );
  t.is(body.npi_data, undefined);
  const all = await lookup('&reveal_professional_email=true&reveal_healthcare_enrichment=true');
  t.is(all.body.npi_data?.npi_number, '2000000036');
  const polled = await ask<Profile[]>(`/universal/person/check_status?ids=${body.id}`);
  t.deepEqual(
    polled.body[0]?.emails.map(({ type }) => type),
    ['professional'],
  );
});

test('the wrong person has another name and another NPI', async (t) => {
  const { lookup } = await simulator(t);
  const { body } = await lookup('2000000168');
  t.like(body, { name: 'Edda Kowalczyk', npi_data: { npi_number: '2000000010' } });
});

test('the hanging NPI is never answered, and does not keep the simulator from closing', async (t) => {
  const running = await createSimulator({ port: 0, speed: 1000, apiKey: KEY });
  const hanging = request(`${running.url}/person/lookup?npi_number=2000000101`, {
    headers: { 'Api-Key': KEY },
  });
  const outcome = once(hanging, 'response').then(
    () => 'answered',
    () => 'cut off',
  );
  hanging.end();
  // A question asked later is answered first.
  await fetch(`${running.url}/person/lookup?npi_number=2000000010`, { headers: { 'Api-Key': KEY } });
  t.deepEqual(running.calls(), [
    { vendor: 'rocketreach', operation: 'lookup', subject: '2000000101', status: null },
    { vendor: 'rocketreach', operation: 'lookup', subject: '2000000010', status: 200 },
  ]);
  await running.close();
  t.is(await outcome, 'cut off');
});

test('every magic NPI but the hanging one is answered', async (t) => {
  const { running, lookup } = await simulator(t);
  const npis = [...MAGIC.keys()].filter((npi) => npi !== '2000000101');
  t.is(npis.length, 21);
  await Promise.all(npis.map((npi) => lookup(npi)));
  t.is(running.calls().length, 21);
});

test('ordinary NPIs divide as promised, take 0.2 to 2.2 s, and never change', (t) => {
  const npis = ordinaryNpis(5000);
  const shares = { both: 0, found: 0, personal: 0, slow: 0, other_vendor: 0, nobody: 0 };
  for (const npi of npis) {
    const [share, latencyMs] = [shareOf(npi), lookupLatencyMs(npi)];
    t.deepEqual([shareOf(npi), lookupLatencyMs(npi)], [share, latencyMs]);
    t.true(latencyMs >= 200 && latencyMs <= 2200);
    shares[share] += 1;
  }
  const expected = { both: 0.2, found: 0.4, personal: 0.15, slow: 0.05, other_vendor: 0.05, nobody: 0.15 };
  for (const share of Object.keys(expected) as (keyof typeof expected)[]) {
    t.true(Math.abs(shares[share] / npis.length - expected[share]) < 0.02, `${share}: ${shares[share]}`);
  }
});

test('every vendor has a base URL of its own on one port, and there is nothing beside them', async (t) => {
  const { running } = await simulator(t);
  const origin = new URL(running.url).origin;
  t.deepEqual(running.urls, {
    rocketreach: `${origin}/rocketreach/api/v2`,
    fullenrich: `${origin}/fullenrich/api/v2`,
    prospeo: `${origin}/prospeo`,
    hunter: `${origin}/hunter/v2`,
    reacher: `${origin}/reacher`,
    zerobounce: `${origin}/zerobounce`,
    neverbounce: `${origin}/neverbounce`,
    registry: `${origin}/registry/api`,
  });
  t.is(running.url, running.urls.rocketreach);
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

test('a taken port is one clear sentence', async (t) => {
  const { running } = await simulator(t);
  const port = Number(new URL(running.url).port);
  await t.throwsAsync(createSimulator({ port, speed: 1, apiKey: KEY }), {
    code: 'port_taken',
    message: /simulator/,
  });
});
