import test from 'ava';
import { balanceOf } from '../../db/accounts/credits.ts';
import {
  authenticate,
  issueKey,
  listKeys,
  parseApiKey,
  rotateKey,
} from '../../db/accounts/keys.ts';
import {
  createOrganization,
  listOrganizations,
  suspendOrganization,
  suspendWebhooks,
} from '../../db/accounts/organizations.ts';
import { newId } from '../../db/connection/ids.ts';
import { listFading } from '../../db/lookups/checks.ts';
import { readEvidence } from '../../db/lookups/evidence.ts';
import { eraseSubject, exportSubject } from '../../db/privacy/privacy.ts';
import { submit } from '../../db/requests/submit.ts';
import { freshDatabase } from '../support/database.ts';
import {
  ASKED,
  acceptedIds,
  BY,
  openOrganization,
  openTestKey,
  RULES,
  submitAccepted,
  submitCommand,
} from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';

// Tests the constraints that keep sandboxes, which are organizations, apart from live
// organizations.

const { db, sql } = freshDatabase(test);
const refusedBy = (constraint: string) => ({ message: new RegExp(constraint) });
const openLive = async () => (await createOrganization(db, BY, 'Acme')).id;
const openSandbox = async (owner: string) =>
  (await issueKey(db, BY, owner, 'tests', { forSandbox: true })).organizationId;

test('the first test key creates a sandbox with test credits; later keys share it', async (t) => {
  const live = await openLive();
  const keys = await Promise.all(
    Array.from({ length: 5 }, () =>
      issueKey(db, BY, live, 'tests', { forSandbox: true }),
    ),
  );
  const [sandbox = '', ...others] = new Set(
    keys.map(({ organizationId }) => organizationId),
  );
  t.regex(sandbox, /^sbx_/);
  t.deepEqual(others, []);
  t.deepEqual(await balanceOf(db, sandbox), {
    total: 10_000,
    used: 0,
    held: 0,
    available: 10_000,
  });
  t.true(
    keys.every(
      ({ apiKey, isTest }) => isTest && /^npe_test_[0-9A-Za-z]{36}$/.test(apiKey),
    ),
  );
  const found = await authenticate(db, parseApiKey(keys[0]?.apiKey ?? '') ?? Buffer.of());
  t.like(found, { kind: 'active', organizationId: sandbox, requestsPerMinute: 100 });
  t.deepEqual(await listKeys(db, live), []);
});

test('every API key of a sandbox is a test key, even after a rotation', async (t) => {
  const sandbox = await openSandbox(await openLive());
  for (const { apiKey } of [
    await issueKey(db, BY, sandbox, 'one'),
    await issueKey(db, BY, sandbox, 'other', { forSandbox: true }),
    (await rotateKey(db, BY, (await issueKey(db, BY, sandbox, 'third')).id, 0)).issued,
  ]) {
    t.true(apiKey.startsWith('npe_test_'));
  }
  const live = await issueKey(db, BY, await openLive(), 'live');
  t.false(live.isTest);
  t.regex(live.apiKey, /^npe_[0-9A-Za-z]{36}$/);
});

test('the list of organizations shows which organization each sandbox belongs to', async (t) => {
  const live = await openLive();
  const sandbox = await openSandbox(live);
  const listed = (await listOrganizations(db)).filter(({ id }) =>
    [live, sandbox].includes(id),
  );
  t.deepEqual(
    listed.map(({ id, sandboxOf }) => [id, sandboxOf]),
    [
      [sandbox, live],
      [live, null],
    ],
  );
});

test('suspending an organization suspends its sandbox, even if that is created later', async (t) => {
  const [live, later] = [await openLive(), await openLive()];
  const sandbox = await openSandbox(live);
  const states = async (id: string) => {
    const [row] =
      await sql`select suspended, webhooks_suspended from organizations where id = ${id}`;
    return [row?.suspended, row?.webhooks_suspended];
  };
  for (const id of [live, later]) {
    await suspendOrganization(db, BY, id, true);
    await suspendWebhooks(db, BY, id, true);
  }
  t.deepEqual(await states(sandbox), [true, true]);
  t.deepEqual(await states(await openSandbox(later)), [true, true]);
  await suspendOrganization(db, BY, live, false);
  t.deepEqual(await states(sandbox), [false, true]);
});

test('the database accepts test keys only for sandboxes and live keys only for others', async (t) => {
  const live = await openLive();
  const sandbox = await openSandbox(live);
  const add = (organization: string, isTest: boolean) => sql`
    insert into api_keys (id, organization_id, name, role, hint, hash, is_test)
    values (${newId('key')}, ${organization}, 'k', 'full', 'hint', sha256(${newId('key')}::bytea), ${isTest})`;
  for (const [organization, isTest] of [
    [live, true],
    [sandbox, false],
  ] as const) {
    await t.throwsAsync(
      add(organization, isTest),
      refusedBy('api_keys_test_is_of_sandbox'),
    );
  }
  await t.throwsAsync(
    sql`update api_keys set organization_id = ${live} where organization_id = ${sandbox}`,
    refusedBy('api_keys_test_is_of_sandbox'),
  );
});

test('an organization has at most one sandbox, and a sandbox has none', async (t) => {
  const live = await openLive();
  const sandbox = await openSandbox(live);
  const add = (id: string, of: string | null) =>
    sql`insert into organizations (id, name, webhook_secret, sandbox_of) values (${id}, 'x', 'x', ${of})`;
  await t.throwsAsync(add(newId('sbx'), live), refusedBy('organizations_sandbox_of_key'));
  for (const [id, of] of [
    [newId('org'), live],
    [newId('sbx'), null],
    [newId('sbx'), sandbox],
  ] as const) {
    await t.throwsAsync(add(id, of), refusedBy('organizations_sandbox'));
  }
});

test('only sandbox requests have a test outcome, and no sandbox request joins a lookup', async (t) => {
  const live = await openOrganization(db, 10);
  const sandbox = await openTestKey(db, live);
  const npis = ['2000000010'];
  const accept = (owner: typeof live, outcomes: readonly ['found'] | null) =>
    submit(db, submitCommand(owner, { npis, outcomes }), RULES);
  await t.throwsAsync(accept(live, ['found']), refusedBy('requests_test_is_of_sandbox'));
  await t.throwsAsync(accept(sandbox, null), refusedBy('requests_test_is_of_sandbox'));
  const { requestIds } = acceptedIds(await accept(sandbox, ['found']));
  await sql`insert into lookups (id, npi, requested_type, opened_at) values ('lkp_x', ${npis[0] ?? ''}, 'any', now())`;
  await t.throwsAsync(
    sql`update requests set lookup_id = 'lkp_x' where id = ${requestIds[0] ?? ''}`,
    refusedBy('requests_test_joins_no_lookup'),
  );
  const { organizationId } = sandbox;
  await t.throwsAsync(
    sql`insert into source_spend (source, day, organization_id) values ('s', now(), ${organizationId})`,
    refusedBy('source_spend_organization_id_check'),
  );
  await t.throwsAsync(
    sql`insert into source_slots (source, request_id, organization_id, round, asked_at, slot_at, is_reserved)
        values ('s', 'r', ${organizationId}, 1, now(), now(), false)`,
    refusedBy('source_slots_organization_id_check'),
  );
});

test('erasures and exports leave out the results of sandboxes', async (t) => {
  const npi = '2000000069';
  const sandbox = await openTestKey(db, await openOrganization(db, 0));
  const [requestId = ''] = (
    await submitAccepted(db, sandbox, { npis: [npi], outcomes: ['stored'] })
  ).requestIds;
  const made = async () =>
    (await sql`select email from requests where id = ${requestId}`)[0]?.email;
  const email = await made();
  t.is(email, `npi${npi}@clinic.example.com`);
  for (const subject of [{ npi }, { email }]) {
    t.like(await exportSubject(db, subject), { requests: [], deliveries: [] });
    t.like(await eraseSubject(db, ASKED, subject), { results: 0, suppressions: 1 });
  }
  t.is(await made(), email);
});

test("sandbox requests cause no address checks and do not appear in an NPI's evidence", async (t) => {
  const npi = '2000000077';
  const live = await openOrganization(db, 10);
  await storeEmail(db, {
    npi,
    email: 'fades@clinic.test',
    lastValidatedAt: new Date(Date.now() - RULES.freshnessMs + 60_000),
  });
  const listed = async () =>
    (await listFading(db, { ...RULES, leadMs: 3_600_000, limit: 10 })).length;
  const told = async () => (await readEvidence(db, { npi })).chapters.length;
  const accept = async (owner: typeof live, outcomes: readonly ['slow'] | null) =>
    (await submitAccepted(db, owner, { npis: [npi], outcomes })).requestIds;
  const [requestId = ''] = await accept(await openTestKey(db, live), ['slow']);
  t.deepEqual([await listed(), await told()], [0, 0]);
  t.is((await readEvidence(db, { requestId })).chapters.length, 1);
  await accept(live, null);
  t.deepEqual([await listed(), await told()], [1, 1]);
});
