import test, { type ExecutionContext } from 'ava';
import { sql } from 'drizzle-orm';
import { issueKey, listKeys } from '../../../db/accounts/keys.ts';
import { newId } from '../../../db/connection/ids.ts';
import type { KeyRole } from '../../../db/words.ts';
import { fresh } from '../../support/database.ts';
import { BY, createCaller, eventually } from '../../support/organization.ts';
import { startApi } from '../../support/stack.ts';
import { Visitor } from '../../support/visitor.ts';

// Tests the pages on which a visitor with a full key manages keys.

const api = fresh(test, startApi);
const SIGN_IN = /^\/console\/sign-in(\?|$)/;
const KEY = /<code>(npe_(?:test_)?[0-9A-Za-z]{36})<\/code>/;

async function signedIn(apiKey: string): Promise<Visitor> {
  const visitor = new Visitor(api.baseUrl);
  await visitor.signIn(apiKey);
  return visitor;
}

/** Opens an organization, and signs in with its full key. */
async function openVisitor() {
  const client = await api.organization(10);
  return { ...client, visitor: await signedIn(client.apiKey) };
}

/** Sends the form of the page that makes a key, and returns the page with the key. */
async function make(visitor: Visitor, fields: object = {}) {
  const { text, token } = await visitor.get('/console/keys');
  const [, key_id = ''] = /name="key_id" value="([^"]+)"/.exec(text) ?? [];
  const form = {
    form_token: token,
    key_id,
    name: 'Ana Ruiz',
    role: 'member',
    kind: 'live',
  };
  const all = { ...form, ...fields };
  const seen = await visitor.post('/console/keys', all);
  return { ...seen, form: all, id: all.key_id, apiKey: KEY.exec(seen.text)?.[1] ?? '' };
}

async function openRole(organizationId: string, role: KeyRole) {
  return await issueKey(api.db, BY, organizationId, `the ${role}`, { role });
}

const statusOf = async (apiKey: string) =>
  (await createCaller(api.baseUrl, apiKey).call('GET', '/api/v1/credits')).status;

test('a visitor with a full key adds a colleague, whose key works at once', async (t) => {
  const { visitor } = await openVisitor();
  const page = await visitor.get('/console/keys');
  t.regex(page.text, /<option value="member" selected>/);
  t.regex(page.text, /aria-current="page">Keys</);
  const made = await make(visitor);
  t.is(made.status, 200);
  t.is(made.headers.get('cache-control'), 'no-store');
  t.regex(made.text, /data-copy hidden>Copy</);
  t.is(await statusOf(made.apiKey), 200);
  const colleague = await signedIn(made.apiKey);
  const { text } = await colleague.get('/console');
  t.regex(text, /Ana Ruiz/);
  t.notRegex(text, /href="\/console\/keys"/);
  const list = await visitor.get('/console/keys');
  t.regex(list.text, /Ana Ruiz<\/a><\/div><\/th><td data-label="Role">member<\/td>/);
  t.true(list.text.includes(`…${made.apiKey.slice(-4)}`));
  t.false(list.text.includes(made.apiKey));
});

test('the first test key makes the sandbox, and its full key sees only test keys', async (t) => {
  const { visitor, apiKey } = await openVisitor();
  const made = await make(visitor, { kind: 'test', role: 'full', name: 'CI' });
  t.regex(made.apiKey, /^npe_test_/);
  t.is(await statusOf(made.apiKey), 200);
  const list = await visitor.get('/console/keys');
  t.regex(
    list.text,
    /CI<\/a><\/div><\/th><td data-label="Role">full<\/td><td data-label="Kind">test/,
  );
  const tester = await signedIn(made.apiKey);
  const its = await tester.get('/console/keys');
  t.true(its.text.includes(`…${made.apiKey.slice(-4)}`));
  t.false(its.text.includes(`…${apiKey.slice(-4)}`));
  t.notRegex(its.text, /id="kind"/);
  t.regex((await make(tester, { kind: 'live' })).apiKey, /^npe_test_/);
});

test('the form for a key makes one key, also if it is sent twice', async (t) => {
  const { visitor, organizationId } = await openVisitor();
  const made = await make(visitor);
  const again = await visitor.post('/console/keys', made.form);
  t.is(again.status, 409);
  t.regex(again.text, /This form was already sent, and its key was shown once/);
  t.is((await listKeys(api.db, organizationId)).length, 2);
});

test('a form without a good name or role makes no key, and keeps what was typed', async (t) => {
  const { visitor, organizationId } = await openVisitor();
  for (const wrong of [
    { name: ' ' },
    { name: 'x'.repeat(201) },
    { name: 'a\u0000b' },
    { role: 'admin', name: 'Bo' },
    { role: '' },
  ]) {
    const { status, text } = await make(visitor, wrong);
    t.is(status, 422, JSON.stringify(wrong));
    t.regex(text, /role="alert">Enter a name of 1 to 200 characters/);
  }
  const kept = await make(visitor, { role: 'admin', name: 'Bo "B" Li' });
  t.true(kept.text.includes('value="Bo &quot;B&quot; Li"'));
  t.is((await make(visitor, { key_id: 'key_x' })).status, 404);
  t.is((await listKeys(api.db, organizationId)).length, 1);
});

test('a key is renamed, and its name is shown as text', async (t) => {
  const { visitor, keyId } = await openVisitor();
  const { id } = await make(visitor);
  const { token } = await visitor.get(`/console/keys/${id}`);
  const rename = (name: string) =>
    visitor.post(`/console/keys/${id}/rename`, { form_token: token, name });
  t.is((await rename('')).status, 422);
  const renamed = await rename('<b>Bo</b>');
  t.is(renamed.path, `/console/keys/${id}`);
  t.true(renamed.text.includes('<h1>&lt;b&gt;Bo&lt;/b&gt;</h1>'));
  t.false((await visitor.get('/console/keys')).text.includes('<b>Bo'));
  await visitor.post(`/console/keys/${keyId}/rename`, { form_token: token, name: 'Me' });
  t.regex((await visitor.get('/console')).text, />Me</);
});

test('a replaced key works for 24 more hours, or ends at once', async (t) => {
  const { visitor } = await openVisitor();
  const made = await make(visitor);
  const rotate = async (id: string, old: string) => {
    const { text, token } = await visitor.get(`/console/keys/${id}`);
    const [, key_id = ''] = /name="key_id" value="([^"]+)"/.exec(text) ?? [];
    const form = { form_token: token, key_id, old };
    const seen = await visitor.post(`/console/keys/${id}/rotate`, form);
    return { id: key_id, apiKey: KEY.exec(seen.text)?.[1] ?? '', ...seen, form };
  };
  const next = await rotate(made.id, 'keep');
  t.regex(next.text, /The old key works for 24 more hours/);
  t.deepEqual([await statusOf(made.apiKey), await statusOf(next.apiKey)], [200, 200]);
  const { text: successor } = await visitor.get(`/console/keys/${next.id}`);
  t.regex(successor, new RegExp(`keys/${made.id}">a key with the same name</a>`));
  const again = await visitor.post(`/console/keys/${made.id}/rotate`, next.form);
  t.is(again.status, 409);
  const last = await rotate(next.id, 'end');
  t.regex(last.text, /The old key has ended/);
  await eventually(async () => ((await statusOf(next.apiKey)) === 403 ? true : null));
  t.is(await statusOf(last.apiKey), 200);
});

test('a visitor who replaces the own key goes on with the new one', async (t) => {
  const { visitor, keyId } = await openVisitor();
  const copy = visitor.copy();
  await make(visitor, { role: 'full' });
  const { text, token } = await visitor.get(`/console/keys/${keyId}`);
  const [, key_id = ''] = /name="key_id" value="([^"]+)"/.exec(text) ?? [];
  const form = { form_token: token, key_id, old: 'end' };
  const seen = await visitor.post(`/console/keys/${keyId}/rotate`, form);
  t.regex(seen.text, /You are now signed in with the new key/);
  const list = await visitor.get('/console/keys');
  t.is(list.path, '/console/keys');
  t.regex(list.text, new RegExp(`${key_id}">[^<]+</a> \\(you\\)`));
  t.regex(
    (await copy.get('/console')).path,
    SIGN_IN,
    'other sessions of the old key end',
  );
});

test('a visitor removes a colleague, whose session and key end', async (t) => {
  const { visitor } = await openVisitor();
  const made = await make(visitor);
  const colleague = await signedIn(made.apiKey);
  t.is((await colleague.get('/console')).path, '/console');
  const { text, token } = await visitor.get(`/console/keys/${made.id}`);
  t.regex(text, /It stops working within a second, for good/);
  const fields = { form_token: token, leaked: 'yes' };
  const after = await visitor.post(`/console/keys/${made.id}/revoke`, fields);
  t.is(after.path, '/console/keys');
  await eventually(async () =>
    SIGN_IN.test((await colleague.get('/console')).path) ? true : null,
  );
  t.is(await statusOf(made.apiKey), 403);
});

test('a visitor who revokes the own key is signed out', async (t) => {
  const { visitor, keyId } = await openVisitor();
  await make(visitor, { role: 'full' });
  const { token } = await visitor.get('/console/keys');
  const fields = { form_token: token };
  const after = await visitor.post(`/console/keys/${keyId}/revoke`, fields);
  t.regex(after.path, SIGN_IN);
  t.regex((await visitor.get('/console')).path, SIGN_IN);
});

test('the last full key is not revoked, and the page says what to do', async (t) => {
  const { visitor, keyId, apiKey } = await openVisitor();
  const { token } = await visitor.get('/console/keys');
  const fields = { form_token: token };
  const refused = await visitor.post(`/console/keys/${keyId}/revoke`, fields);
  t.is(refused.status, 409);
  t.regex(refused.text, /This is the last full key.*Make another full key first/);
  t.is(await statusOf(apiKey), 200);
});

/** Tries all forms about a key, and returns the statuses of the responses. */
async function tryForms(visitor: Visitor, id: string, form_token: string) {
  const statuses: number[] = [];
  for (const action of ['rename', 'rotate', 'revoke']) {
    const fields = { form_token, name: 'x', key_id: newId('key'), old: 'end' };
    statuses.push((await visitor.post(`/console/keys/${id}/${action}`, fields)).status);
  }
  return statuses;
}

async function keysOf(t: ExecutionContext, organizationId: string) {
  const keys = await listKeys(api.db, organizationId);
  t.true(keys.length > 0);
  return keys.map(({ lastUsedAt: _, ...key }) => key);
}

test("another organization's keys get a 404, and stay as they are", async (t) => {
  const { visitor, organizationId } = await openVisitor();
  const stranger = await api.organization(10);
  const before = await keysOf(t, stranger.organizationId);
  const { token } = await visitor.get('/console/keys');
  for (const id of [stranger.keyId, newId('key'), 'key_x', 'key_%00']) {
    const { status, text } = await visitor.get(`/console/keys/${id}`);
    t.is(status, 404, id);
    t.regex(text, /You have no key with this id/);
    t.deepEqual(await tryForms(visitor, id, token), [404, 404, 404], id);
  }
  t.deepEqual(await keysOf(t, stranger.organizationId), before);
  t.is((await keysOf(t, organizationId)).length, 1);
});

test('a form about keys without its token, or from another site, changes nothing', async (t) => {
  const { visitor, organizationId, keyId } = await openVisitor();
  const before = await keysOf(t, organizationId);
  t.deepEqual(await tryForms(visitor, keyId, ''), [403, 403, 403]);
  t.is((await make(visitor, { form_token: 'x'.repeat(43) })).status, 403);
  const { token } = await visitor.get('/console/keys');
  const form = { form_token: token, key_id: newId('key'), name: 'x', role: 'full' };
  const foreign = { 'sec-fetch-site': 'same-site' };
  t.is((await visitor.post('/console/keys', form, foreign)).status, 403);
  t.deepEqual(await keysOf(t, organizationId), before);
});

test('a read or member key changes no key, not even its own', async (t) => {
  const { organizationId, keyId } = await openVisitor();
  for (const role of ['read', 'member'] as const) {
    const own = await openRole(organizationId, role);
    const before = await keysOf(t, organizationId);
    const visitor = await signedIn(own.apiKey);
    const { token } = await visitor.get('/console');
    for (const id of [own.id, keyId])
      t.deepEqual(await tryForms(visitor, id, token), [403, 403, 403], role);
    const form = { form_token: token, key_id: newId('key'), name: 'x', role: 'full' };
    const refused = await visitor.post('/console/keys', form);
    t.regex(refused.text, /Ask a colleague with a full key/);
    t.deepEqual(await keysOf(t, organizationId), before);
  }
});

test('a session whose key was revoked or replaced makes no key within the second', async (t) => {
  const { visitor, organizationId, keyId } = await openVisitor();
  const { token } = await visitor.get('/console/keys');
  for (const end of ['revoked_at', 'expires_at']) {
    await api.db.drizzle.execute(sql`
      update api_keys set revoked_at = null, expires_at = null where id = ${keyId}`);
    await visitor.get('/console/keys');
    await api.db.drizzle.execute(sql`
      update api_keys set ${sql.identifier(end)} = clock_timestamp() where id = ${keyId}`);
    const form = { form_token: token, key_id: newId('key'), name: 'x', role: 'full' };
    t.regex((await visitor.copy().post('/console/keys', form)).path, SIGN_IN, end);
  }
  t.is((await keysOf(t, organizationId)).length, 1);
});
