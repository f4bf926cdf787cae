import test from 'ava';
import { sql } from 'drizzle-orm';
import { addSuppression, hashAddress } from '../../db/privacy/suppressions.ts';
import { MAGIC, STORED_EMAILS } from '../../deploy/local/sim/magic.ts';
import { personOf, SAMPLE_ENDPOINTS } from '../../deploy/local/sim/people.ts';
import { fresh } from '../support/database.ts';
import type { EnvelopeResponse } from '../support/organization.ts';
import { startStack } from '../support/stack.ts';
import { storeEmail } from '../support/stored.ts';

// Tests every vendor, one verifier, and the registry in their own wire formats over real sockets:
// the result of each magic NPI, the vendor that finds it, and the recorded evidence.

const BY = { actor: 'test', reason: 'test' };
const SUPPRESSED = '2000000184';

const stack = fresh(test, () =>
  startStack({
    allSources: true,
    lookupTimeoutMs: 60_000,
    rocketReach: { wait: '20s', call: '10s' },
  }),
);
const client = fresh(test, () => stack.organization(1000));
const replies = new Map<string, EnvelopeResponse['data'][number]>();
let submitted: Awaited<ReturnType<typeof client.bulk>>;
let ended: EnvelopeResponse;

test.before(async () => {
  for (const { npi, email, type, validatedAgoMs } of STORED_EMAILS) {
    const lastValidatedAt = new Date(Date.now() - validatedAgoMs);
    await storeEmail(stack.db, {
      npi,
      email,
      emailType: type,
      lastValidatedAt,
    });
  }
  await addSuppression(stack.db, BY, { kind: 'npi', value: SUPPRESSED });
  submitted = await client.bulk({ npis: [...MAGIC.keys()], custom_data: { a: 1 } });
  ended = await client.completed(submitted.json.batch_id);
  for (const item of ended.data) replies.set(item.npi, item);
});

test('the sandbox gives magic NPIs the same results as the simulated vendors', async (t) => {
  const sandbox = await stack.sandboxOf(client);
  const { batch_id: batchId } = (await sandbox.bulk({ npis: [...MAGIC.keys()] })).json;
  const { data } = await sandbox.completed(batchId);
  t.deepEqual(
    data.map(({ npi, status, email_type }) => [npi, `${status} ${email_type}`]),
    Object.entries(EXPECTED),
  );
});

/** Returns the vendors that were called for an NPI, in order. */
function asked(npi: string): string[] {
  const calls = stack.simulator.calls().filter(({ subject }) => subject === npi);
  return [...new Set(calls.map(({ vendor }) => vendor))].filter(
    (vendor) => vendor !== 'registry',
  );
}

async function attempts(npi: string): Promise<string[]> {
  const rows = await stack.db.drizzle.execute<{ line: string }>(sql`
    select a.vendor || ': ' || a.state || coalesce(' (' || a.reason || ')', '') as line
      from vendor_attempts a join lookups l on l.id = a.lookup_id where l.npi = ${npi}
     order by a.started_at, a.vendor, a.n`);
  return rows.map(({ line }) => line);
}

const EXPECTED: Readonly<Record<string, string>> = {
  '2000000010': 'completed professional',
  '2000000028': 'completed personal',
  '2000000036': 'completed professional',
  '2000000044': 'not_found null',
  '2000000051': 'completed professional',
  '2000000069': 'completed professional',
  '2000000077': 'completed professional',
  '2000000085': 'not_found null',
  '2000000093': 'not_found null',
  '2000000101': 'failed null',
  '2000000119': 'completed professional',
  '2000000127': 'completed professional',
  '2000000135': 'not_found null',
  '2000000143': 'completed professional',
  '2000000150': 'not_found null',
  '2000000168': 'not_found null',
  '2000000176': 'not_found null',
  '2000000184': 'not_found null',
  '2000000192': 'completed professional',
  '2000000200': 'completed professional',
  '2000000218': 'completed professional',
  '2000000226': 'completed professional',
};

test('each magic NPI has its documented result', (t) => {
  t.deepEqual(
    Object.fromEntries(
      [...replies].map(([npi, one]) => [npi, `${one.status} ${one.email_type}`]),
    ),
    EXPECTED,
  );
});

test('each request of a bulk submit ends with an email or a refund', (t) => {
  t.is(submitted.status, 202);
  t.is(submitted.json.status, 'in-progress');
  t.deepEqual(
    submitted.json.requests.map(({ npi }) => npi),
    [...MAGIC.keys()],
  );
  t.is(ended.batch.total, MAGIC.size);
  t.is(ended.batch.completed_count, MAGIC.size);
  t.is(ended.webhook, null);
  t.deepEqual(ended.custom_data, { a: 1 });
  const found = ended.data.filter(({ status }) => status === 'completed');
  const used = found.length;
  t.deepEqual(ended.usage, { credits_used: used, balance: 1000 - used });
  for (const item of ended.data) {
    const isFound = item.status === 'completed';
    t.is(item.email_status, isFound ? 'valid' : null);
    t.is(item.email === null, !isFound);
    t.is(item.email_last_validated === null, !isFound);
    t.false(item.replayed);
  }
});

test('vendors are called one after the other until one finds an email', async (t) => {
  t.deepEqual(asked('2000000010'), ['rocketreach']);
  t.deepEqual(asked('2000000127'), ['rocketreach'], 'again after its rate limit');
  t.deepEqual(asked('2000000192').slice(0, 2), ['rocketreach', 'fullenrich']);
  t.deepEqual(asked('2000000200').slice(0, 3), ['rocketreach', 'fullenrich', 'prospeo']);
  t.deepEqual(asked('2000000218').slice(0, 4), [
    'rocketreach',
    'fullenrich',
    'prospeo',
    'hunter',
  ]);
  t.deepEqual(await attempts('2000000218'), [
    'pattern: skip (missing pattern)',
    'rocketreach: miss (no_profile)',
    'fullenrich: miss (no_email)',
    'prospeo: miss (no_match)',
    'hunter: found',
  ]);
});

test('no vendor is called for an NPI that is inactive, suppressed, or an organization', async (t) => {
  for (const npi of ['2000000085', '2000000093', SUPPRESSED]) {
    t.deepEqual(
      stack.simulator.calls().filter(({ subject }) => subject === npi),
      [],
      npi,
    );
    t.deepEqual(await attempts(npi), [], npi);
  }
});

test('customers cannot distinguish rejected NPIs from NPIs without a result', async (t) => {
  const { json } = await client.bulk({
    npis: ['2000000085', '2000000093', SUPPRESSED, '2000000011'],
  });
  const envelope = await client.completed(json.batch_id);
  const shown = envelope.data.map(({ npi: _npi, request_id: _id, ...rest }) =>
    JSON.stringify(rest),
  );
  t.is(new Set(shown).size, 1);
  t.like(envelope.data[0], { status: 'not_found', email: null, replayed: false });
  // A request that ends before its lookup begins is faster, and is never `in-progress`.
  const [begun] = await stack.db.drizzle.execute<{ joined: boolean }>(sql`
    select started_at is not null as joined from requests
     where npi = ${SUPPRESSED} and batch_id = ${json.batch_id}`);
  t.true(begun?.joined, 'the request of a suppressed person joins a lookup');
});

test('a stored address that is out of date is checked again before vendors are called', async (t) => {
  t.deepEqual(asked('2000000069'), []);
  t.is(replies.get('2000000069')?.email, STORED_EMAILS[1]?.email);
  const [row] = await stack.db.drizzle.execute<{ fresh: boolean }>(sql`
    select last_validated_at > clock_timestamp() - interval '1 day' as fresh from stored_emails
     where npi = '2000000069'`);
  t.true(row?.fresh, 'email_last_validated is the time of the check that said valid');
  t.deepEqual(
    asked('2000000077'),
    ['rocketreach'],
    'the stored one is dead, so a vendor is asked',
  );
  t.not(replies.get('2000000077')?.email, STORED_EMAILS[2]?.email);
});

test('an address listed in NPPES is checked before vendors are called', async (t) => {
  // This person has entered their ordinary address as a Direct address.
  const { npi = '' } =
    SAMPLE_ENDPOINTS.find(
      (one) => one.type === 'DIRECT' && /@gmail|@yahoo/.test(one.endpoint),
    ) ?? {};
  const { homeEmail, workEmail } = personOf(npi);
  await stack.db.drizzle.execute(sql`
    insert into provider_endpoints (npi, kind, endpoint) values (${npi}, 'OTHERS', ${workEmail})`);
  await addSuppression(stack.db, BY, { kind: 'email', value: hashAddress(workEmail) });
  const { json } = await client.single({ npi });
  const envelope = await client.completed(json.batch_id);
  t.like(envelope.data[0], {
    status: 'completed',
    email: homeEmail,
    email_type: 'personal',
  });
  t.deepEqual(asked(npi), []);
  const named = await stack.db.drizzle.execute(sql`
    select email, source from email_checks where npi = ${npi} and kind = 'named'`);
  t.deepEqual([...named], [{ email: homeEmail, source: 'nppes' }]);
});

test('a response about another person is recorded as evidence but never returned', async (t) => {
  t.deepEqual((await attempts('2000000226')).slice(0, 3), [
    'pattern: skip (missing pattern)',
    'rocketreach: miss (no_profile)',
    'fullenrich: found (identity_mismatch)',
  ]);
  const [row] = await stack.db.drizzle.execute<{ n: number }>(sql`
    select count(*)::int n from stored_emails s join email_checks c using (npi, email)
     where c.kind = 'identity' and c.reason = 'identity_mismatch'`);
  t.is(row?.n, 0);
});

test('a person who has opted out at a vendor is suppressed from then on', async (t) => {
  const [row] = await stack.db.drizzle.execute(sql`
    select origin from suppressions where kind = 'npi' and value = '2000000176'`);
  t.deepEqual({ ...row }, { origin: 'vendor' });
  const calls = () =>
    stack.simulator.calls().filter(({ subject }) => subject === '2000000176').length;
  const before = calls();
  const { json } = await client.single({ npi: '2000000176' });
  t.is((await client.completed(json.batch_id)).data[0]?.status, 'not_found');
  t.is(calls(), before);
});

test('a vendor that never responds is called again if time remains', async (t) => {
  const lines = await attempts('2000000101');
  t.true(
    lines.filter((line) => line.startsWith('rocketreach: ')).length >= 2,
    lines.join('\n'),
  );
  t.true(
    lines.some((line) => line.startsWith('hunter: miss')),
    lines.join('\n'),
  );
});

test('NPIs without a result cause no more vendor calls, even for other organizations', async (t) => {
  const npis = Object.keys(EXPECTED).filter((npi) =>
    EXPECTED[npi]?.startsWith('not_found'),
  );
  const calls = () =>
    stack.simulator.calls().filter(({ subject }) => npis.includes(subject)).length;
  const before = calls();
  t.true(before > 10);
  const fresh = await stack.organization(10);
  const { data, usage } = await fresh.completed(
    (await fresh.bulk({ npis })).json.batch_id,
  );
  t.deepEqual(
    data.map(({ status }) => status),
    npis.map(() => 'not_found'),
  );
  t.is(usage.balance, 10);
  t.is(calls(), before);
});
