import test from 'ava';
import { AT, onPurpose, simulatedVendors } from '../../support/simulated-vendors.ts';

// The simulated FullEnrich against its OpenAPI.

const KEY = 'key-of-a-test';
const STONEHOUSE = { first_name: 'PHILIPPA', last_name: 'Stonehouse' };
const EMAILS = { enrich_fields: AT.enrich_fields };

test('FullEnrich tells a missing header from one without Bearer', async (t) => {
  const { running } = await simulatedVendors(t);
  const codeFor = async (headers: Record<string, string>) => {
    const response = await fetch(`${running.urls.fullenrich}/contact/enrich/bulk/x`, { headers });
    return ((await response.json()) as { code: string }).code;
  };
  t.is(await codeFor({}), 'error.authorization.not_set');
  t.is(await codeFor({ authorization: KEY }), 'error.authorization.not_bearer');
});

test('FullEnrich answers an id, then 400 while it works, then the result with custom and cost', async (t) => {
  const { running, submit, poll } = await simulatedVendors(t);
  const contact = { ...STONEHOUSE, domain: 'northgatecardiology-sim.com', ...EMAILS, custom: { npi: 'x' } };
  const { status, body } = await submit(contact);
  t.is(status, 200);
  const id = String(body.enrichment_id);
  t.regex(id, /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
  t.like(await poll(id), { status: 400, body: { code: 'error.enrichment.in_progress' } });
  const email = { email: 'philippa.stonehouse@northgatecardiology-sim.com', status: 'DELIVERABLE' };
  const finished = await poll(id);
  t.like(finished, {
    status: 200,
    body: { id, name: 'a test', status: 'FINISHED', cost: { credits: 1 } },
  });
  t.like(finished.body.data, [
    {
      input: { first_name: 'PHILIPPA', company_domain: 'northgatecardiology-sim.com' },
      custom: { npi: 'x' },
      contact_info: { most_probable_work_email: email, work_emails: [email], personal_emails: [] },
      profile: { full_name: 'Philippa Stonehouse', location: { country_code: 'US', region: 'OH' } },
    },
  ]);
  t.deepEqual(
    running.calls().map(({ vendor, operation, subject, status }) => [vendor, operation, subject, status]),
    [
      ['fullenrich', 'submit', '2000000192', 200],
      ['fullenrich', 'poll', id, 400],
      ['fullenrich', 'poll', id, 200],
    ],
  );
});

test('FullEnrich charges nothing for nobody, and says nothing of them', async (t) => {
  const { submit, poll } = await simulatedVendors(t);
  const { body } = await submit({ first_name: 'Casimir', last_name: 'Thorne', ...AT });
  await poll(body.enrichment_id);
  const { body: result } = await poll(body.enrichment_id);
  t.like(result, { status: 'FINISHED', cost: { credits: 0 } });
  const [record] = result.data as Record<string, unknown>[];
  t.deepEqual(record?.contact_info, { work_emails: [], personal_emails: [], phones: [] });
  t.false('profile' in (record ?? {}));
});

for (const [code, contact] of [
  ['first_name.empty', { last_name: 'Stonehouse', ...AT }],
  ['last_name.empty', { first_name: 'Philippa', ...AT }],
  ['domain.empty', { ...STONEHOUSE, ...EMAILS }],
  ['enrich_fields.empty', { ...STONEHOUSE, company_name: 'A' }],
  ['enrich_field.value', { ...STONEHOUSE, company_name: 'A', enrich_fields: ['contact.faxes'] }],
  ['custom.value.exceeded', { ...STONEHOUSE, ...AT, custom: { npi: 1 } }],
] as const) {
  test(`FullEnrich refuses a contact with error.enrichment.${code}`, async (t) => {
    const { submit } = await simulatedVendors(t);
    t.like(await submit(contact), { status: 400, body: { code: `error.enrichment.${code}` } });
  });
}

test('FullEnrich knows no other job, and needs a name and contacts for one', async (t) => {
  const { submit, poll } = await simulatedVendors(t);
  t.like(await poll('x'), { status: 404, body: { code: 'error.enrichment.not_found' } });
  t.like(await submit({}, ''), { body: { code: 'error.enrichment.name.empty' } });
});

test('FullEnrich: 402 with a whole result, 429 without Retry-After, and its own statuses', async (t) => {
  const { submit, poll } = await simulatedVendors(t);
  const resultFor = async (first: string) => {
    const { body } = await submit({ ...onPurpose(first), ...AT });
    let answer = await poll(body.enrichment_id);
    let polls = 1;
    for (; answer.status === 400; polls += 1) answer = await poll(body.enrichment_id);
    return { ...answer, polls };
  };
  t.like(await resultFor('Broke'), { status: 402, body: { status: 'CREDITS_INSUFFICIENT' } });
  t.like(await resultFor('Canceled'), { status: 200, body: { status: 'CANCELED', cost: { credits: 0 } } });
  t.is((await resultFor('Slow')).polls, 4);
  for (const [first, status] of [
    ['Catchall', 'CATCH_ALL'],
    ['Probable', 'HIGH_PROBABILITY'],
    ['Missing', 'INVALID'],
  ] as const) {
    const { body } = await resultFor(first);
    t.like(body.data, [{ contact_info: { most_probable_work_email: { status } } }]);
  }
  const limited = { ...onPurpose('Limited'), ...AT };
  const first = await submit(limited);
  t.like(first, { status: 429, body: { code: 'error.rate.limit' } });
  t.is(first.headers.get('retry-after'), null);
  t.is((await submit(limited)).status, 200);
  t.is((await submit({ ...onPurpose('Failing'), ...AT })).status, 500);
});
