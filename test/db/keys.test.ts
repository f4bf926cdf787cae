import { createHash } from 'node:crypto';
import test from 'ava';
import {
  authenticate,
  issueKey,
  listKeys,
  parseApiKey,
  reactivateKey,
  revokeKey,
  rotateKey,
} from '../../db/accounts/keys.ts';
import { takePlaces } from '../../db/accounts/limits.ts';
import {
  createOrganization,
  setLimit,
  showOrganization,
  suspendOrganization,
} from '../../db/accounts/organizations.ts';
import { Refusal } from '../../db/connection/errors.ts';
import { KEY_ROLES } from '../../db/words.ts';
import { freshDatabase } from '../support/database.ts';

const BASE62 = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const BY = { actor: 'test', reason: 'test' };
const HOUR = 3_600_000;

const { db, sql } = freshDatabase(test);

async function openKey() {
  const { id: organizationId } = await createOrganization(db, BY, 'Keys');
  return await issueKey(db, BY, organizationId, 'first');
}

async function stateOf(apiKey: string): Promise<string> {
  const hash = parseApiKey(apiKey);
  return hash ? (await authenticate(db, hash)).kind : 'malformed';
}

test('every API key is different and consists of npe_ and 36 base62 characters', async (t) => {
  const { organizationId } = await openKey();
  const issued = await Promise.all(
    Array.from({ length: 40 }, () => issueKey(db, BY, organizationId, 'one of many')),
  );
  const keys = issued.map(({ apiKey }) => apiKey);
  t.true(keys.every((key) => /^npe_[0-9A-Za-z]{36}$/.test(key)));
  t.is(new Set(keys).size, 40);
  // 1,200 random characters: each of the 62 is missing with a probability of 3e-9.
  t.is(new Set(keys.map((key) => key.slice(4, 34)).join('')).size, 62);
});

test('the last six characters of an API key are a CRC32 checksum of the others', async (t) => {
  // The CRC-32 of gzip and zip, bit by bit.
  const random = 'A'.repeat(30);
  let crc = 0xffffffff;
  for (const byte of Buffer.from(`npe_${random}`)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1)
      crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  }
  let rest = (crc ^ 0xffffffff) >>> 0;
  let check = '';
  while (check.length < 6) {
    check = BASE62.charAt(rest % 62) + check;
    rest = Math.floor(rest / 62);
  }
  const key = `npe_${random}${check}`;
  t.deepEqual(parseApiKey(key), createHash('sha256').update(key).digest());
});

test('an API key with one changed character is rejected without a database query', async (t) => {
  const { apiKey } = await openKey();
  t.truthy(parseApiKey(apiKey));
  let tried = 0;
  for (let at = 0; at < apiKey.length; at += 1) {
    for (const character of `${BASE62}_- é`) {
      if (character === apiKey[at]) continue;
      tried += 1;
      const changed = apiKey.slice(0, at) + character + apiKey.slice(at + 1);
      if (parseApiKey(changed) !== null) t.fail(`character ${at} may be changed`);
    }
  }
  t.is(tried, 40 * 65);
});

test('text that does not have the format of an API key is rejected', async (t) => {
  const { apiKey } = await openKey();
  const texts = [
    '',
    'npe_',
    apiKey.slice(0, -1),
    `${apiKey}0`,
    ` ${apiKey}`,
    `${apiKey}\n`,
    apiKey.toUpperCase(),
    '0'.repeat(10_000),
  ];
  t.deepEqual(
    texts.filter((text) => parseApiKey(text) !== null),
    [],
  );
});

test('an API key with two neighboring characters swapped is rejected', async (t) => {
  const { apiKey } = await openKey();
  for (let at = 4; at < apiKey.length - 1; at += 1) {
    const swapped =
      apiKey.slice(0, at) + apiKey[at + 1] + apiKey[at] + apiKey.slice(at + 2);
    if (swapped !== apiKey) t.is(parseApiKey(swapped), null);
  }
});

test('authenticating an active key returns its organization and its rate limit', async (t) => {
  const { apiKey, id: keyId, organizationId } = await openKey();
  const hash = parseApiKey(apiKey) ?? Buffer.alloc(0);
  t.deepEqual(await authenticate(db, hash), {
    kind: 'active',
    keyId,
    keyName: 'first',
    role: 'full',
    organizationId,
    customerId: organizationId,
    requestsPerMinute: 100,
    keyExpiresAt: null,
  });
  await setLimit(db, BY, organizationId, 7);
  t.like(await authenticate(db, hash), { kind: 'active', requestsPerMinute: 7 });
});

test('authenticating a well-formed key that was never issued returns "unknown"', async (t) => {
  t.deepEqual(await authenticate(db, Buffer.alloc(32, 7)), { kind: 'unknown' });
});

test('a revoked key stops working at once, and works again after it is reactivated', async (t) => {
  const { apiKey, id } = await openKey();
  const { revokedAt } = await revokeKey(db, BY, id);
  t.is(await stateOf(apiKey), 'revoked');
  t.deepEqual((await revokeKey(db, BY, id)).revokedAt, revokedAt, 'the first time stays');
  t.like(await reactivateKey(db, BY, id), {
    state: 'active',
    revokedAt: null,
    expiresAt: null,
  });
  t.is(await stateOf(apiKey), 'active');
});

test('a rotated key stops working at once, and the new key works', async (t) => {
  const old = await openKey();
  const { issued, replaced } = await rotateKey(db, BY, old.id, 0);
  t.like(replaced, { id: old.id, state: 'inactive' });
  t.is(await stateOf(old.apiKey), 'inactive');
  t.is(await stateOf(issued.apiKey), 'active');
  t.is(issued.name, old.name);
});

test('a key keeps its role in a rotation, and in the list of keys', async (t) => {
  const { organizationId } = await openKey();
  for (const role of KEY_ROLES) {
    const old = await issueKey(db, BY, organizationId, role, { role });
    const { issued } = await rotateKey(db, BY, old.id, 0);
    t.deepEqual([old.role, issued.role], [role, role]);
    t.like(await authenticate(db, parseApiKey(issued.apiKey) ?? Buffer.of()), { role });
    t.is((await listKeys(db, organizationId))[0]?.role, role);
    const [audit] = await sql`
      select details->>'role' as role from audit_log where subject = ${old.id} and action = 'keys.rotate'`;
    t.is(audit?.role, role);
  }
});

test('the database refuses an unknown role', async (t) => {
  const { id } = await openKey();
  await t.throwsAsync(sql`update api_keys set role = 'admin' where id = ${id}`, {
    message: /api_keys_role_check/,
  });
});

test('after a rotation with an overlap, both keys work until the overlap ends', async (t) => {
  const old = await openKey();
  const { issued, replaced } = await rotateKey(db, BY, old.id, HOUR);
  t.is(await stateOf(old.apiKey), 'active');
  t.is(await stateOf(issued.apiKey), 'active');
  const hour = (replaced.expiresAt?.getTime() ?? 0) - issued.createdAt.getTime();
  t.true(Math.abs(hour - HOUR) < 5000, `${hour} ms`);
  await sql`update api_keys set expires_at = clock_timestamp() where id = ${old.id}`;
  t.is(await stateOf(old.apiKey), 'inactive');
});

test('during an overlap the new key can be rotated again, but not the old one', async (t) => {
  const old = await openKey();
  const { issued, replaced } = await rotateKey(db, BY, old.id, HOUR);
  await t.throwsAsync(rotateKey(db, BY, old.id, 10 * HOUR), {
    code: 'key_rotated',
    instanceOf: Refusal,
  });
  const [successor, kept, ...others] = await listKeys(db, old.organizationId);
  t.deepEqual(kept?.expiresAt, replaced.expiresAt);
  t.deepEqual([successor?.id, others.length], [issued.id, 0]);
  await t.notThrowsAsync(rotateKey(db, BY, issued.id, 0));
});

test('only one of several concurrent rotations of a key succeeds', async (t) => {
  const old = await openKey();
  const outcomes = await Promise.allSettled(
    Array.from({ length: 8 }, () => rotateKey(db, BY, old.id, HOUR)),
  );
  const refused = outcomes.filter(
    (outcome) => outcome.status === 'rejected' && outcome.reason.code === 'key_rotated',
  );
  t.is(refused.length, 7);
  t.is((await listKeys(db, old.organizationId)).length, 2);
});

test('a list of keys shows when each key was last used', async (t) => {
  const { id: keyId, organizationId } = await openKey();
  const last = async () => (await listKeys(db, organizationId))[0]?.lastUsedAt;
  t.falsy(await last());
  const { atMs } = await takePlaces(db, { keyId, requestsPerMinute: 1 }, 20, 1);
  const used = await last();
  t.true(Math.abs((used?.getTime() ?? 0) - atMs) < 1000);
  // The rejected request does not count, and the window is empty later.
  await sql`select pg_sleep(0.03)`;
  await takePlaces(db, { keyId, requestsPerMinute: 0 }, 20, 1);
  t.deepEqual(await last(), used);
});

test('reactivating a leaked key must be forced', async (t) => {
  const { apiKey, id } = await openKey();
  t.like(await revokeKey(db, BY, id, true), { state: 'revoked', leaked: true });
  t.like(await revokeKey(db, BY, id), { leaked: true }, 'what leaked has leaked');
  await t.throwsAsync(reactivateKey(db, BY, id), {
    code: 'key_leaked',
    instanceOf: Refusal,
  });
  t.is(await stateOf(apiKey), 'revoked');
  t.like(await reactivateKey(db, BY, id, true), { state: 'active', leaked: false });
});

test('the keys of an organization stop working while it is suspended', async (t) => {
  const [active, other] = [await openKey(), await openKey()];
  const { organizationId } = active;
  const revoked = await issueKey(db, BY, organizationId, 'revoked');
  await revokeKey(db, BY, revoked.id);
  const keys = () =>
    Promise.all([active, revoked, other].map(({ apiKey }) => stateOf(apiKey)));
  const listed = await listKeys(db, organizationId);
  for (let again = 0; again < 2; again += 1) {
    t.like(await suspendOrganization(db, BY, organizationId, true), { suspended: true });
    t.deepEqual(await keys(), ['inactive', 'revoked', 'active']);
    t.deepEqual(await listKeys(db, organizationId), listed);
  }
  t.like(await suspendOrganization(db, BY, organizationId, false), { suspended: false });
  t.deepEqual(await keys(), ['active', 'revoked', 'active']);
});

test('a revoked key cannot be rotated', async (t) => {
  const { id, organizationId } = await openKey();
  await revokeKey(db, BY, id);
  await t.throwsAsync(rotateKey(db, BY, id, 0), {
    code: 'key_not_active',
    instanceOf: Refusal,
  });
  t.is((await listKeys(db, organizationId)).length, 1);
});

test('a key that was revoked and has also expired is shown as revoked', async (t) => {
  const { apiKey, id, organizationId } = await openKey();
  await rotateKey(db, BY, id, 0);
  await revokeKey(db, BY, id);
  t.is(await stateOf(apiKey), 'revoked');
  t.deepEqual(
    (await listKeys(db, organizationId)).map(({ state }) => state),
    ['active', 'revoked'],
  );
  t.deepEqual((await showOrganization(db, organizationId)).keys, {
    active: 1,
    inactive: 0,
    revoked: 1,
  });
});

test('the database stores only the hash of a key and its last four characters', async (t) => {
  const { apiKey, id } = await openKey();
  const [row] =
    await sql`select to_jsonb(k)::text as text from api_keys k where id = ${id}`;
  t.false(String(row?.text).includes(apiKey.slice(4, 34)));
  t.true(String(row?.text).includes(createHash('sha256').update(apiKey).digest('hex')));
  t.true(String(row?.text).includes(`"${apiKey.slice(-4)}"`));
});

test('the database finds an API key by an index, without a scan', async (t) => {
  const plan = await sql.begin(async (tx) => {
    await tx`set local enable_seqscan = off`;
    return await tx`explain select 1 from api_keys where hash = ${Buffer.alloc(32)}`;
  });
  t.regex(JSON.stringify(plan), /api_keys_hash_key/);
});
