import test from 'ava';
import { sql } from 'drizzle-orm';
import { run, transaction } from '../../db/connection/client.ts';
import type { CheckResult } from '../../db/doctor/check.ts';
import { diagnose } from '../../db/doctor/doctor.ts';
import { listAudit } from '../../db/operations/audit.ts';
import {
  addSuppression,
  hashAddress,
  removeSuppression,
  suppressFromVendor,
} from '../../db/privacy/suppressions.ts';
import { findKnownEmails } from '../../db/requests/entitlements.ts';
import { settle } from '../../db/requests/settle.ts';
import { loadDelivery } from '../../db/webhooks/deliveries.ts';
import type { EmailType } from '../../db/words.ts';
import { fresh } from '../support/database.ts';
import { operatorOn, spawnOperator, WHY } from '../support/operator.ts';
import { BY, RULES } from '../support/organization.ts';
import { type Api, startApi } from '../support/stack.ts';
import { storeEmail } from '../support/stored.ts';

// Tests that a suppressed person is not looked up, and that their address is not returned,
// replayed, or shown.

const api = fresh(test, startApi);

async function know(
  npi: string,
  email: string,
  emailType: EmailType = 'professional',
): Promise<void> {
  await storeEmail(api.db, {
    npi,
    email,
    emailType,
  });
}

/**
 * Submits one NPI and polls it once. No worker runs, so a request that the submit doesn't settle
 * stays open.
 */
async function ask(client: Awaited<ReturnType<Api['organization']>>, npi: string) {
  const { requests } = (await client.single({ npi })).json;
  const [item] = (await client.get(requests[0]?.poll_url ?? '')).json.data;
  return { path: requests[0]?.poll_url ?? '', item };
}

for (const [what, target, email] of [
  ['an NPI', { kind: 'npi', value: '2000010010' }, 'one@clinic.example'],
  [
    'an address',
    { kind: 'email', value: hashAddress('one@office.example') },
    'one@office.example',
  ],
  ['a domain', { kind: 'domain', value: 'hospital.example' }, 'one@hospital.example'],
  [
    'the parent of its domain',
    { kind: 'domain', value: 'health.example' },
    'one@mail.health.example',
  ],
] as const) {
  test(`a stored address is not returned once ${what} is suppressed`, async (t) => {
    const npi = target.kind === 'npi' ? target.value : `20000200${email.length}`;
    await know(npi, email);
    const [payer, other] = [await api.organization(), await api.organization()];
    t.like((await ask(payer, npi)).item, { status: 'completed', email });
    await addSuppression(api.db, BY, target);
    t.like(
      (await ask(payer, npi)).item,
      { status: 'accepted', replayed: false, email: null },
      'a replay',
    );
    t.like(
      (await ask(other, npi)).item,
      { status: 'accepted', email: null },
      'a stored address',
    );
    await removeSuppression(api.db, BY, target);
    t.like((await ask(payer, npi)).item, { status: 'completed', replayed: true, email });
  });
}

test('suppressing a domain does not suppress other domains that end in the same letters', async (t) => {
  const npi = '2000030012';
  await know(npi, 'one@otherclinics.example');
  await addSuppression(api.db, BY, { kind: 'domain', value: 'clinics.example' });
  t.is((await ask(await api.organization(), npi)).item?.status, 'completed');
});

test('polls and webhooks hide a suppressed address, but the charge for it stays', async (t) => {
  const [npi, email] = ['2000040011', 'shown@clinic.example'];
  await know(npi, email);
  const client = await api.organization(10);
  const webhook = { url: 'https://hooks.example/', mode: 'batch' };
  const { batch_id, requests } = (await client.single({ npi, webhook })).json;
  const paths = [requests[0]?.poll_url ?? '', `/api/v1/batch/${batch_id}`];
  const [delivery] = await run<{ id: string }>(api.db)`
    select id from webhook_deliveries where batch_id = ${batch_id}`;
  const before = await Promise.all(paths.map((path) => client.get(path)));
  t.true((await loadDelivery(api.db, delivery?.id ?? '')).body.includes(email));

  await addSuppression(api.db, BY, { kind: 'email', value: hashAddress(email) });
  for (const [n, path] of paths.entries()) {
    const etag = before[n]?.headers.get('etag') ?? '';
    const after = await client.get(path, { 'if-none-match': etag });
    t.is(after.status, 200, path);
    t.like(after.json.data[0], {
      status: 'completed',
      email: null,
      email_type: null,
      email_last_validated: null,
      email_status: null,
    });
    t.is(after.json.usage.credits_used, 1);
  }
  t.false((await loadDelivery(api.db, delivery?.id ?? '')).body.includes(email));
});

test('a result that was returned while a suppression was being saved is hidden later', async (t) => {
  const npi = '2000060019';
  await know(npi, 'meanwhile@clinic.example');
  const client = await api.organization();
  const responded = await transaction(api.db, async (tx) => {
    await run(
      tx,
    )`insert into suppressions (kind, value, origin) values ('npi', ${npi}, 'operator')`;
    return await ask(client, npi);
  });
  t.is(responded.item?.email, 'meanwhile@clinic.example');
  t.like((await client.get(responded.path)).json.data[0], {
    status: 'completed',
    email: null,
  });
});

test('a result that was found while a suppression was being saved is hidden later', async (t) => {
  const npi = '2000070018';
  const client = await api.organization();
  const { path } = await ask(client, npi);
  const id = path.split('/').at(-1) ?? '';
  await transaction(api.db, async (tx) => {
    await run(
      tx,
    )`insert into suppressions (kind, value, origin) values ('npi', ${npi}, 'operator')`;
    await know(npi, 'later@clinic.example');
    t.is((await settle(api.db, id, 'finished', 'test', RULES)).status, 'completed');
    t.is((await client.get(path)).json.data[0]?.email, 'later@clinic.example');
  });
  t.like((await client.get(path)).json.data[0], { status: 'completed', email: null });
  const [seen] = await run<{ before: number }>(api.db)`
    select n - suppression_change as before from requests, suppression_changes where id = ${id}`;
  t.true(Number(seen?.before) > 0);
});

test('if an address that a client paid for is suppressed, a replay returns another', async (t) => {
  const npi = '2000050018';
  await know(npi, 'first@clinic.example');
  const client = await api.organization(10);
  t.like((await ask(client, npi)).item, {
    email: 'first@clinic.example',
    replayed: false,
  });
  await addSuppression(api.db, BY, {
    kind: 'email',
    value: hashAddress('first@clinic.example'),
  });
  await know(npi, 'second@clinic.example');
  t.like((await ask(client, npi)).item, {
    email: 'second@clinic.example',
    replayed: true,
  });
  t.like(await client.credits(), { balance: 9, used: 1 });
  const checks = await diagnose(api.db, { ...RULES, webhookScheduleMs: [0] });
  t.is(checks.find(({ code }) => code === 'replay_without_charge')?.findings, 0);
});

test.serial(
  'doctor accepts a replay with another address after the suppression is removed',
  async (t) => {
    const replays = async () => {
      const checks = await diagnose(api.db, { ...RULES, webhookScheduleMs: [0] });
      return checks.find(({ code }) => code === 'replay_without_charge')?.findings;
    };
    const paidFor = (name: string) => `${name}@staff.clinic.example`;
    const targets = {
      '2000080015': { kind: 'email', value: hashAddress(paidFor('2000080015')) },
      '2000080023': { kind: 'domain', value: 'clinic.example' },
    } as const;
    for (const [npi, target] of Object.entries(targets)) {
      await know(npi, paidFor(npi));
      const client = await api.organization(10);
      t.like((await ask(client, npi)).item, { email: paidFor(npi), replayed: false });
      await addSuppression(api.db, BY, target);
      await know(npi, `${npi}@elsewhere.example`);
      t.like((await ask(client, npi)).item, {
        email: `${npi}@elsewhere.example`,
        replayed: true,
      });
      await removeSuppression(api.db, BY, target);
      t.is(await replays(), 0, target.kind);
    }
  },
);

test('an address that we may not store is returned only to the lookup that found it', async (t) => {
  const npi = '2000060017';
  await api.db.drizzle.execute(sql`
    insert into lookups (id, npi, requested_type, opened_at)
    values ('lkp_one', ${npi}, 'any', now()), ('lkp_two', ${npi}, 'personal', now())`);
  await api.db.drizzle.execute(sql`
    insert into candidates (lookup_id, npi, email, source, claimed_verdict, repeats_input, may_store,
                            verdict, email_type, validated_at)
    values ('lkp_one', ${npi}, 'lent@clinic.example', 'lender', 'valid', false, false,
            'valid', 'professional', now())`);
  const asked = {
    organizationId: 'nobody',
    npis: [npi],
    requestedType: 'any',
    at: new Date(),
  } as const;
  const serves = (lookupId: string | null) =>
    transaction(api.db, async (tx) =>
      (await findKnownEmails(tx, { ...asked, lookupId }, RULES)).has(npi),
    );
  t.deepEqual(
    [await serves('lkp_one'), await serves('lkp_two'), await serves(null)],
    [true, false, false],
  );
});

test("a vendor's 451 suppresses the NPI, and the audit log names the service as actor", async (t) => {
  const npi = '2000070016';
  await know(npi, 'left@clinic.example');
  await suppressFromVendor(api.db, npi, 'hunter');
  await suppressFromVendor(api.db, npi, 'hunter');
  t.is((await ask(await api.organization(), npi)).item?.email, null);
  const records = (await listAudit(api.db, null, 100)).filter(
    ({ subject }) => subject === npi,
  );
  t.like(records, [
    {
      action: 'suppressions.add',
      actor: 'service',
      details: { kind: 'npi', origin: 'vendor' },
    },
  ]);
  t.is(records.length, 1);
});

test('operators can list and change suppressions, which contain only hashed addresses', async (t) => {
  const { json, text, operator } = operatorOn(api.databaseUrl);
  const value = hashAddress('jane.roe@xn--grten-gra.example');
  const outcome = async (...args: string[]) =>
    (await json('suppress', ...args, ...WHY)).outcome;
  t.is(await outcome('add', ' Jane.Roe@Gärten.example '), 'suppressed');
  t.regex(String(await outcome('add', value.toUpperCase())), /already/);
  const records = async () =>
    (await listAudit(api.db, null, 1000)).filter(({ subject }) => subject === value);
  const listed = await json<{ value: string }[]>('suppress', 'list', '--kind', 'email');
  const suppression = listed.find((one) => one.value === value);
  t.like(suppression, { kind: 'email', origin: 'operator', reason: 'a test' });
  t.regex(await text('suppress', 'list'), new RegExp(`^email +${value} +operator`, 'm'));
  const add = { action: 'suppressions.add', actor: 'tester', reason: 'a test' };
  t.like(await records(), [
    { ...add, details: { added: false } },
    { ...add, details: { added: true } },
  ]);
  t.regex(
    String(await outcome('remove', 'jane.roe@gärten.example')),
    /it came from: operator/,
  );
  t.is((await records())[0]?.action, 'suppressions.remove');
  t.is(
    (await operator('suppress', 'remove', value, ...WHY)).code,
    1,
    'nothing was removed',
  );
  const [kept] = await api.db.drizzle.execute(sql`
    select (select string_agg(a::text, '') from audit_log a) || (select string_agg(s::text, '') from suppressions s) as text`);
  t.false(String(kept?.text).includes('roe@'));
});

test('an NPI is suppressed in the form in which a spreadsheet or a person wrote it', async (t) => {
  const { json } = operatorOn(api.databaseUrl);
  for (const [text, value] of [
    ['2.000080020E9', '2000080020'],
    ['NPI 2000080038', '2000080038'],
    ['\u00a0"2000080046"\u200b', '2000080046'],
  ] as const) {
    t.like(await json('suppress', 'add', text, ...WHY), { kind: 'npi', value });
  }
  const args = ['suppress', 'add', '-', ...WHY, '--json'];
  const piped = Buffer.from('\ufeff2000080053\r\n', 'utf16le');
  const { stdout } = await spawnOperator(api.databaseUrl, args, piped);
  t.like(JSON.parse(stdout), { kind: 'npi', value: '2000080053' });
});

test('doctor finds NPIs that were stored as domains, and they can be removed', async (t) => {
  const { json } = operatorOn(api.databaseUrl);
  await api.db.drizzle.execute(sql`
    insert into suppressions (kind, value, origin)
    values ('domain', '2.000080061e9', 'import'), ('domain', 'a.roe', 'import'),
           ('domain', 'real-clinic.com', 'import'), ('npi', '2000080061', 'import'),
           ('npi', '2000080065', 'import')`);
  const findings = async () => {
    const args = ['doctor', '--offline', '--json'];
    const { stdout } = await spawnOperator(api.databaseUrl, args);
    const { checks } = JSON.parse(stdout) as { checks: CheckResult[] };
    return checks.find(({ code }) => code === 'suppression_without_suffix')?.examples;
  };
  const found = (await findings()) ?? [];
  t.true(found.includes('2.000080061e9') && found.includes('a.roe'));
  t.false(found.includes('real-clinic.com'));
  const mistaken = ['2.000080061e9', 'a.roe'];
  for (const value of [...mistaken, '2000080065', '2000080061', 'real-clinic.com']) {
    t.like(await json('suppress', 'remove', value, ...WHY), { value });
  }
  t.false((await findings())?.some((domain) => mistaken.includes(domain)));
});

test('suppressing an invalid target or a public suffix such as co.uk is wrong usage', async (t) => {
  const { operator } = operatorOn(api.databaseUrl);
  for (const target of [
    'com',
    'co.uk',
    'no',
    '@clinic.example',
    '20000000',
    '2000080015',
    '2.00001E+09',
    'jane.roe',
    'clinic.example',
    'a b@clinic.example',
    '-x.com',
  ]) {
    t.is((await operator('suppress', 'add', ...WHY, '--', target)).code, 2, target);
  }
  t.is((await operator('suppress', 'add', '2000080012')).code, 2, 'without a reason');
});
