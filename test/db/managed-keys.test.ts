import test from 'ava';
import { closeOrganization } from '../../db/accounts/closing.ts';
import {
  authenticate,
  issueKey,
  parseApiKey,
  revokeKey,
} from '../../db/accounts/keys.ts';
import {
  createManagedKey,
  KeyRefused,
  listManagedKeys,
  MAX_KEYS,
  renameManagedKey,
  revokeManagedKey,
  rotateManagedKey,
} from '../../db/accounts/managed-keys.ts';
import {
  createOrganization,
  suspendOrganization,
} from '../../db/accounts/organizations.ts';
import { openDatabase } from '../../db/connection/client.ts';
import { newId } from '../../db/connection/ids.ts';
import type { KeyRole } from '../../db/words.ts';
import { asRole, freshDatabase, SECRET_KEYS } from '../support/database.ts';
import { BY } from '../support/organization.ts';

// Tests the changes that a customer makes to keys in the console, with the rights of the API.

const { db, sql, url } = freshDatabase(test);
const HOUR = 3_600_000;

/** A pool with the rights of the API. */
const openApi = () =>
  openDatabase({
    url: asRole(url, 'api'),
    poolSize: 8,
    applicationName: 'test',
    secretKeys: SECRET_KEYS,
  });
let api = db;
test.before(() => {
  api = openApi();
});
test.after.always(() => api.close());

/** Opens an organization, and returns its first full key. */
async function openManager() {
  const { id } = await createOrganization(db, BY, 'Keys');
  return await managerIn(id);
}

async function managerIn(organizationId: string, role: KeyRole = 'full') {
  const key = await issueKey(db, BY, organizationId, 'manager', { role });
  return { ...key, keyId: key.id, customerId: organizationId };
}

type Manager = Awaited<ReturnType<typeof openManager>>;

function create(manager: Manager, over: object = {}) {
  const key = { id: newId('key'), name: 'Ana', role: 'member', isTest: false } as const;
  return createManagedKey(api, manager, { ...key, ...over });
}

const fault = (name: string) => ({ instanceOf: KeyRefused, message: `refused: ${name}` });
const stateOf = async ({ apiKey }: { readonly apiKey: string }) =>
  (await authenticate(db, parseApiKey(apiKey) ?? Buffer.of())).kind;

test('a full key creates, renames, rotates, and revokes keys, each with an audit entry', async (t) => {
  const manager = await openManager();
  const made = await create(manager);
  t.like(made, { name: 'Ana', role: 'member', isTest: false, state: 'active' });
  await renameManagedKey(api, manager, made.id, 'Ana Ruiz');
  const rotation = { newKeyId: newId('key'), overlapMs: HOUR };
  const next = await rotateManagedKey(api, manager, made.id, rotation);
  t.like(next, { id: rotation.newKeyId, name: 'Ana Ruiz', role: 'member' });
  t.deepEqual([await stateOf(made), await stateOf(next)], ['active', 'active']);
  await revokeManagedKey(api, manager, made.id, true);
  t.is(await stateOf(made), 'revoked');
  const audit = await sql`
    select action, subject, actor, reason from audit_log
     where organization_id = ${manager.organizationId} and actor = ${manager.keyId} order by id`;
  t.deepEqual(
    audit.map(({ action, subject }) => [action, subject]),
    [
      ['keys.issue', made.id],
      ['keys.rename', made.id],
      ['keys.rotate', made.id],
      ['keys.revoke', made.id],
    ],
  );
  t.true(audit.every(({ reason }) => reason === 'console'));
  const [text] = await sql`select string_agg(a::text, '') as all from audit_log a`;
  t.notRegex(String(text?.all), /Ana/, 'names of people stay out of the audit log');
});

test('a change and its audit entry are made together or not at all', async (t) => {
  const manager = await openManager();
  const made = await create(manager);
  await sql.unsafe(`
    create function refuse_audit() returns trigger language plpgsql as $$ begin raise 'no'; end $$;
    create trigger refuse_audit before insert on audit_log
      for each row when (new.organization_id = '${manager.organizationId}') execute function refuse_audit()`);
  const before = await listManagedKeys(api, manager);
  const rotation = { newKeyId: newId('key'), overlapMs: 0 };
  for (const work of [
    () => create(manager),
    () => renameManagedKey(api, manager, made.id, 'other'),
    () => rotateManagedKey(api, manager, made.id, rotation),
    () => revokeManagedKey(api, manager, made.id, false),
  ])
    await t.throwsAsync(work());
  t.deepEqual(await listManagedKeys(api, manager), before);
  await sql`drop trigger refuse_audit on audit_log`;
});

test('the same form creates one key, even if it is sent twice at once', async (t) => {
  const manager = await openManager();
  const id = newId('key');
  const twice = await Promise.allSettled([
    create(manager, { id }),
    create(manager, { id }),
    createManagedKey(api, await openManager(), {
      id,
      name: 'x',
      role: 'read',
      isTest: false,
    }),
  ]);
  t.is(twice.filter(({ status }) => status === 'fulfilled').length, 1);
  for (const outcome of twice)
    if (outcome.status === 'rejected') t.is(outcome.reason.message, 'refused: sent');
  t.is((await sql`select from api_keys where id = ${id}`).length, 1);
});

test('the last full key of an organization cannot end at once, but can be rotated', async (t) => {
  const manager = await openManager();
  await create(manager);
  const revoke = () => revokeManagedKey(api, manager, manager.keyId, true);
  await t.throwsAsync(revoke(), fault('last'));
  const ending = await create(manager, { role: 'full' });
  await sql`update api_keys set expires_at = now() + interval '1 hour' where id = ${ending.id}`;
  await t.throwsAsync(revoke(), fault('last'), 'one that is about to end does not count');
  const rotate = (overlapMs: number) =>
    rotateManagedKey(api, manager, manager.keyId, { newKeyId: newId('key'), overlapMs });
  await t.throwsAsync(
    rotate(0),
    fault('last'),
    'the page with its successor may be lost',
  );
  const next = await rotate(3_600_000);
  t.deepEqual([await stateOf(manager), await stateOf(next)], ['active', 'active']);
  const successor = { ...manager, keyId: next.id };
  await t.throwsAsync(revokeManagedKey(api, successor, next.id, false), fault('last'));
  t.is((await revokeKey(db, BY, next.id)).state, 'revoked', 'operators still can');
});

test('two admins who revoke each other at once leave one full key', async (t) => {
  for (let round = 0; round < 10; round += 1) {
    const one = await openManager();
    const other = await managerIn(one.organizationId);
    const outcomes = await Promise.allSettled([
      revokeManagedKey(api, one, other.keyId, false),
      revokeManagedKey(api, other, one.keyId, false),
    ]);
    t.is(outcomes.filter(({ status }) => status === 'fulfilled').length, 1);
    const valid = (await listManagedKeys(api, one)).filter(
      ({ state, role }) => state === 'active' && role === 'full',
    );
    t.is(valid.length, 1);
  }
});

test('a key that was just revoked or has a lower role changes nothing', async (t) => {
  const one = await openManager();
  const victim = await create(one);
  const gone = await managerIn(one.organizationId);
  await revokeKey(db, BY, gone.keyId);
  const rotated = await managerIn(one.organizationId);
  await rotateManagedKey(api, one, rotated.keyId, {
    newKeyId: newId('key'),
    overlapMs: 0,
  });
  const before = await listManagedKeys(api, one);
  for (const manager of [
    gone,
    rotated,
    await managerIn(one.organizationId, 'member'),
    await managerIn(one.organizationId, 'read'),
  ]) {
    await t.throwsAsync(create(manager), fault('ended'));
    await t.throwsAsync(renameManagedKey(api, manager, victim.id, 'x'), fault('ended'));
    await t.throwsAsync(revokeManagedKey(api, manager, victim.id, false), fault('ended'));
  }
  t.is((await listManagedKeys(api, one)).length, before.length + 2);
  await suspendOrganization(db, BY, one.organizationId, true);
  await t.throwsAsync(create(one), fault('ended'));
});

test("another organization's key is missing, and stays as it is", async (t) => {
  const stranger = await openManager();
  const owner = await openManager();
  const theirs = await create(owner);
  const test = await create(owner, { isTest: true });
  const rows = () =>
    sql`select * from api_keys where id in (${theirs.id}, ${test.id}) order by id`;
  const before = await rows();
  for (const { id } of [theirs, test, { id: newId('key') }]) {
    const rotation = { newKeyId: newId('key'), overlapMs: 0 };
    for (const work of [
      renameManagedKey(api, stranger, id, 'x'),
      rotateManagedKey(api, stranger, id, rotation),
      revokeManagedKey(api, stranger, id, true),
    ])
      await t.throwsAsync(work, fault('missing'));
  }
  t.deepEqual(await rows(), before);
  const listed = await listManagedKeys(api, stranger);
  t.deepEqual(
    listed.map(({ id }) => id),
    [stranger.keyId],
  );
});

test('a live key makes the sandbox with the first test key, once, even at the same time', async (t) => {
  const manager = await openManager();
  const made = await Promise.all([
    create(manager, { isTest: true }),
    create(manager, { isTest: true }),
    create(manager, { isTest: true }),
  ]);
  const [sandbox = '', ...others] = new Set(made.map((key) => key.organizationId));
  t.deepEqual(others, []);
  t.true(made.every(({ apiKey, isTest }) => isTest && apiKey.startsWith('npe_test_')));
  const [balance] = await sql`
    select total from credit_balances where organization_id = ${sandbox}`;
  t.is(Number(balance?.total), 10_000);
  t.is((await listManagedKeys(api, manager)).length, 4);
});

test('a test key manages only test keys, also if its role is full', async (t) => {
  const live = await openManager();
  const key = await create(live, { isTest: true, role: 'full' });
  const tester = { ...key, keyId: key.id, customerId: live.organizationId };
  await t.throwsAsync(revokeManagedKey(api, tester, live.keyId, false), fault('missing'));
  t.true((await create(tester)).apiKey.startsWith('npe_test_'));
  t.true((await listManagedKeys(api, tester)).every(({ isTest }) => isTest));
  await t.notThrowsAsync(revokeManagedKey(api, tester, tester.keyId, false));
});

test('keys that replace each other quickly count toward the limit of keys', async (t) => {
  const manager = await openManager();
  const room = MAX_KEYS - 1;
  for (let n = 0; n < room; n += 1) {
    const { id } = await create(manager, { role: 'read' });
    await revokeManagedKey(api, manager, id, false);
  }
  await t.throwsAsync(create(manager), fault('many'));
  const rotation = { newKeyId: newId('key'), overlapMs: 3_600_000 };
  await t.throwsAsync(
    rotateManagedKey(api, manager, manager.keyId, rotation),
    fault('many'),
  );
  await sql`
    update api_keys set created_at = created_at - interval '25 hours'
     where organization_id = ${manager.organizationId}`;
  await t.notThrowsAsync(create(manager));
});

test('a key that is created while its organization closes does not outlive it', async (t) => {
  for (let round = 0; round < 5; round += 1) {
    const manager = await openManager();
    await Promise.allSettled([
      create(manager),
      closeOrganization(db, BY, manager.organizationId),
      create(manager),
    ]);
    const states = (await listManagedKeys(db, manager)).map(({ state }) => state);
    t.true(
      states.every((state) => state === 'revoked'),
      states.join(),
    );
  }
});

test('with the rights of the API, no role, organization, hash, or end of a key changes', async (t) => {
  const manager = await openManager();
  const { id } = await create(manager);
  await revokeManagedKey(api, manager, id, true);
  const other = (await openManager()).organizationId;
  for (const statement of [
    "update api_keys set role = 'full'",
    `update api_keys set organization_id = '${other}'`,
    "update api_keys set hash = sha256('x')",
    "update api_keys set hint = 'x'",
    'delete from api_keys',
    `update api_keys set revoked_at = null, leaked = false where id = '${id}'`,
    `update api_keys set leaked = false where id = '${id}'`,
    `select open_sandbox('${newId('org')}', '${newId('sbx')}', 'x')`,
    "insert into organizations (id, name, webhook_secret) values ('org_x', 'x', 'x')",
  ]) {
    await t.throwsAsync(api.drizzle.execute(statement), { message: /.*/ }, statement);
    const error = await t.throwsAsync(api.drizzle.execute(statement));
    t.is((error?.cause as { code?: string } | undefined)?.code, '42501', statement);
  }
  for (const owner of [other, newId('org')]) {
    const grant = `select open_sandbox('${owner}', '${manager.organizationId}', 'x')`;
    await t.throwsAsync(api.drizzle.execute(grant), undefined, grant);
  }
  t.is(
    (
      await sql`select from ledger_entries where organization_id = ${manager.organizationId}`
    ).length,
    0,
  );
});
