import type { ExecutionContext } from 'ava';
import test from 'ava';
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
