import test from 'ava';
import { AT, onPurpose, simulatedVendors } from '../../support/simulated-vendors.ts';

// The wire formats of the simulated Prospeo and Hunter, and what all vendors asked by name and employer share.

const KEY = 'key-of-a-test';
const STONEHOUSE = { first_name: 'Philippa', last_name: 'Stonehouse' };
const BIRKENFELD = { first_name: 'Anatole', last_name: 'Birkenfeld' };
const KETTLEBURN = { first_name: 'Marisol', last_name: 'Kettleburn' };

test('a wrong key is 401 in the words of each vendor, and is not noted as a question', async (t) => {
  const { running, submit, poll, enrich, find } = await simulatedVendors(t, 'another');
  const unknown = { code: 'error.api.key', message: 'Unknown api key' };
  t.like(await submit({ ...STONEHOUSE, ...AT }), { status: 401, body: unknown });
  t.like(await poll('x'), { status: 401, body: unknown });
  t.like(await enrich(STONEHOUSE), { status: 401, body: { error: true, error_code: 'INVALID_API_KEY' } });
  t.like(await find(STONEHOUSE), {
    status: 401,
    body: { errors: [{ id: 'authentication_failed', code: 401 }] },
  });
  t.deepEqual(running.calls(), []);
});

test('Prospeo answers a person at once, free the second time, with what may still be asked', async (t) => {
  const { running, enrich } = await simulatedVendors(t);
  const contact = { ...BIRKENFELD, company_website: 'https://www.summitorthopedics-sim.com/' };
  const { status, headers, body } = await enrich(contact);
  t.is(status, 200);
  t.is(headers.get('x-minute-request-left'), '59');
  t.like(body, {
    error: false,
    free_enrichment: false,
    person: {
      full_name: 'Anatole Birkenfeld',
      email: { status: 'VERIFIED', revealed: true, email: 'anatole.birkenfeld@summitorthopedics-sim.com' },
      location: { country_code: 'US', state: 'NC' },
    },
  });
  t.true((await enrich(contact)).body.free_enrichment);
  t.like(running.calls(), [{ vendor: 'prospeo', operation: 'enrich', subject: '2000000200', status: 200 }]);
});

test('Prospeo: everything that went wrong is a code', async (t) => {
  const { enrich } = await simulatedVendors(t);
  const asked = async (first: string, rest?: object) =>
    await enrich({ ...onPurpose(first), company_name: 'Any Clinic' }, rest);
  t.like(await enrich({ ...STONEHOUSE, company_name: 'X' }), {
    status: 400,
    body: { error_code: 'NO_MATCH' },
  });
  t.like(await enrich(BIRKENFELD), { status: 400, body: { error_code: 'INVALID_DATAPOINTS' } });
  t.like(await enrich(null), { status: 400, body: { error_code: 'INVALID_REQUEST' } });
  t.like(await asked('Broke'), { status: 400, body: { error: true, error_code: 'INSUFFICIENT_CREDITS' } });
  t.like(await asked('Failing'), { status: 500, body: { error_code: 'INTERNAL_ERROR' } });
  const limited = await asked('Limited');
  t.like(limited, { status: 429, body: { error_code: 'RATE_LIMITED' } });
  t.is(limited.headers.get('x-minute-request-left'), '0');
  t.is(limited.headers.get('x-minute-reset-seconds'), '1');
  t.is((await asked('Limited')).status, 200);
  // Unverified addresses are no match where only verified ones are asked for.
  t.is((await asked('Unknown')).status, 400);
  t.like((await asked('Unknown', {})).body.person, { email: { status: 'UNAVAILABLE' } });
  t.like((await asked('Masked')).body.person, {
    email: { revealed: false, email: 'm*****@cedarvalleyclinic-sim.com' },
  });
});

test('a reset forgets jobs, purchases, limits and the calls', async (t) => {
  const { running, submit, poll, enrich } = await simulatedVendors(t);
  const { body } = await submit({ ...STONEHOUSE, ...AT });
  const contact = { ...BIRKENFELD, company_name: 'Summit Orthopedics' };
  await enrich(contact);
  t.is((await submit({ ...onPurpose('Limited'), ...AT })).status, 429);
  running.reset();
  t.deepEqual(running.calls(), []);
  t.is((await poll(body.enrichment_id)).status, 404);
  t.false((await enrich(contact)).body.free_enrichment);
  t.is((await submit({ ...onPurpose('Limited'), ...AT })).status, 429);
});

test('Hunter answers the likeliest address with its verification', async (t) => {
  const { running, find } = await simulatedVendors(t);
  const query = { ...KETTLEBURN, company: 'Mesa View Dermatology' };
  const { status, body } = await find(query);
  t.is(status, 200);
  t.like(body, {
    data: {
      first_name: 'Marisol',
      last_name: 'Kettleburn',
      email: 'marisol.kettleburn@mesaviewdermatology-sim.com',
      accept_all: false,
      verification: { status: 'valid' },
    },
    meta: { params: { company: 'Mesa View Dermatology', domain: null } },
  });
  t.like(running.calls(), [{ vendor: 'hunter', operation: 'find', subject: '2000000218', status: 200 }]);
});

test('Hunter takes its key as a header, as a bearer and in the query', async (t) => {
  const { running } = await simulatedVendors(t);
  const url = `${running.urls.hunter}/email-finder?domain=x.com&full_name=No+Body`;
  const statusOf = async (input: string, headers = {}) => (await fetch(input, { headers })).status;
  t.is(await statusOf(url), 401);
  t.is(await statusOf(url, { authorization: `Bearer ${KEY}` }), 404);
  t.is(await statusOf(`${url}&api_key=${KEY}`), 404);
});

test('Hunter: 202 is asked again, 403 is the rate, 429 the plan, 451 the person', async (t) => {
  const { running, find } = await simulatedVendors(t);
  const asked = async (first: string) => await find({ ...onPurpose(first), domain: 'any-clinic.com' });
  const statuses = async (first: string, times: number) => {
    const all: number[] = [];
    for (let n = 0; n < times; n += 1) all.push((await asked(first)).status);
    return all;
  };
  t.deepEqual(await statuses('Slow', 3), [202, 202, 200]);
  t.deepEqual(await statuses('Limited', 2), [403, 200]);
  t.like(await asked('Broke'), { status: 429, body: { errors: [{ id: 'too_many_requests', code: 429 }] } });
  t.like(await asked('Optedout'), { status: 451, body: { errors: [{ id: 'claimed_email', code: 451 }] } });
  t.is((await find({ ...KETTLEBURN, domain: 'elsewhere.com' })).status, 404);
  t.like(await find(KETTLEBURN), { status: 400, body: { errors: [{ id: 'wrong_params' }] } });
  running.reset();
  t.deepEqual(await statuses('Limited', 1), [403]);
});

for (const [first, status] of [
  ['Catchall', 'accept_all'],
  ['Webmail', 'webmail'],
  ['Disposable', 'disposable'],
  ['Unknown', 'unknown'],
  ['Missing', 'invalid'],
] as const) {
  test(`Hunter verifies to ${status}`, async (t) => {
    const { find } = await simulatedVendors(t);
    const { body } = await find({ ...onPurpose(first), domain: 'any-clinic.com' });
    t.like(body.data, { verification: { status }, accept_all: first === 'Catchall' });
  });
}
