import test from 'ava';
import { sql } from 'drizzle-orm';
import { revokeKey, rotateKey } from '../../db/accounts/keys.ts';
import { suspendOrganization } from '../../db/accounts/organizations.ts';
import { settle } from '../../db/requests/settle.ts';
import { fresh } from '../support/database.ts';
import {
  BY,
  type EnvelopeResponse,
  eventually,
  type Organization,
  RULES,
} from '../support/organization.ts';
import { startApi } from '../support/stack.ts';
import { storeEmail } from '../support/stored.ts';

// Tests `Prefer: wait`: the response comes when the request is final, or with `until=change` at the
// first change. Waiting uses no database connection.

// Without workers, so that only the tests change requests.
const stack = fresh(test, startApi);

const WAIT = { prefer: 'wait=50' };
const CHANGE = { prefer: 'wait=50, until=change' };
const NPI = '2000000010';
test('a poll with Prefer: wait returns as soon as its request is final', async (t) => {
  const client = await stack.organization();
  const { json } = await client.single({ npi: NPI });
  const requestId = json.requests[0]?.request_id ?? '';
  const path = `/api/v1/email/${requestId}`;
  // The poll sends the current ETag, so it does not matter whether it arrives before or after the
  // settlement.
  const known = (await client.get(path)).headers.get('etag') ?? '';
  const waiting = client.get(path, { ...WAIT, 'if-none-match': known });
  await settle(stack.db, requestId, 'failed', 'test', RULES);
  const reply = await waiting;
  t.is(reply.status, 200);
  t.is(reply.json.data[0]?.status, 'failed');
  t.is(reply.headers.get('preference-applied'), 'wait=50');
  t.is(reply.headers.get('retry-after'), null);
});

test('with until=change, a poll waits only for changes of its own request or batch', async (t) => {
  const client = await stack.organization();
  const { json } = await client.bulk({ npis: [NPI, NPI] });
  const [first = '', second = ''] = json.requests.map((request) => request.request_id);
  const single = client.get(`/api/v1/email/${first}`, CHANGE);
  const path = `/api/v1/batch/${json.batch_id}`;
  const known = (await client.get(path)).headers.get('etag') ?? '';
  const batch = client.get(path, { ...CHANGE, 'if-none-match': known });
  await settle(stack.db, second, 'failed', 'test', RULES);
  const changed = await batch;
  t.is(changed.json.batch.completed_count, 1);
  t.is(changed.headers.get('preference-applied'), 'wait=50, until=change');
  await settle(stack.db, first, 'failed', 'test', RULES);
  t.is((await single).json.batch.completed_count, 2);
});

// Fails without `isNews` of api/routes/poll.ts, and without the notification of a batch's end.
test('a waiting poll of a batch returns only when the whole batch is completed', async (t) => {
  const client = await stack.organization(1000, 300);
  const { json } = await client.bulk({ npis: Array(4).fill(NPI) });
  const path = `/api/v1/batch/${json.batch_id}`;
  const known = (await client.get(path)).headers.get('etag') ?? '';
  const waiting = Promise.all([
    client.get(path, WAIT),
    client.get(path, { ...WAIT, 'if-none-match': known }),
    client.get(path, { ...WAIT, 'if-none-match': '"other"' }),
  ]);
  await eventually(async () => ((await admitted(client.keyId)) >= 5 ? true : null));
  for (const { request_id } of json.requests)
    await settle(stack.db, request_id, 'failed', 'test', RULES);
  for (const { status, json: envelope, headers } of await waiting) {
    t.deepEqual([status, envelope.batch.completed_count], [200, 4]);
    t.is(headers.get('preference-applied'), 'wait=50');
  }
});

// Fails if the poll does not read again when its wait is over.
test('a waiting poll that ends before its batch is completed returns the current state', async (t) => {
  const own = await startApi();
  const client = await own.organization(1000, 300);
  const { json } = await client.bulk({ npis: [NPI, NPI] });
  const path = `/api/v1/batch/${json.batch_id}`;
  const known = (await client.get(path)).headers.get('etag') ?? '';
  const waiting = Promise.all([
    client.get(path, WAIT),
    client.get(path, { ...WAIT, 'if-none-match': known }),
  ]);
  await eventually(async () =>
    (await admitted(client.keyId, own.db)) >= 4 ? true : null,
  );
  await settle(own.db, json.requests[1]?.request_id ?? '', 'failed', 'test', RULES);
  // Ends all waits, as their time-out would.
  await own.stop();
  for (const { status, json: envelope } of await waiting) {
    t.deepEqual([status, envelope.batch.completed_count], [200, 1]);
  }
});

test('a poll does not wait if its batch is completed or its ETag is outdated', async (t) => {
  const client = await stack.organization();
  const { json } = await client.single({ npi: NPI });
  const path = `/api/v1/batch/${json.batch_id}`;
  t.is((await client.get(path, { ...CHANGE, 'if-none-match': '"other"' })).status, 200);
  await settle(stack.db, json.requests[0]?.request_id ?? '', 'failed', 'test', RULES);
  t.is((await client.get(path, WAIT)).json.batch.status, 'completed');
});

test('the Prefer header is accepted in all notations of RFC 7240', async (t) => {
  const client = await stack.organization();
  const { json } = await client.single({ npi: NPI });
  const path = `/api/v1/batch/${json.batch_id}`;
  await settle(stack.db, json.requests[0]?.request_id ?? '', 'failed', 'test', RULES);
  for (const [prefer, applied] of [
    ['wait=5', 'wait=5'],
    ['Wait = "5" , UNTIL="Change"', 'wait=5, until=change'],
    ['until=change, respond-async, wait=99; x=y', 'wait=55, until=change'],
    ['wait=5, until=changes', 'wait=5'],
    ['wait=5, until=end', 'wait=5'],
  ] as const) {
    t.is(
      (await client.get(path, { prefer })).headers.get('preference-applied'),
      applied,
      prefer,
    );
  }
  const submitted = await client.single({ npi: NPI }, { prefer: 'wait=1, until=change' });
  t.is(
    submitted.headers.get('preference-applied'),
    'wait=1',
    'a submit waits for its end',
  );
});

test('a poll that waits and sees no change returns the state, or a 304 for its ETag', async (t) => {
  const client = await stack.organization();
  const { json } = await client.single({ npi: NPI });
  const path = `/api/v1/batch/${json.batch_id}`;
  const plain = await client.get(path, { prefer: 'respond-async, wait=1' });
  t.is(plain.json.batch.status, 'in-progress');
  const etag = plain.headers.get('etag') ?? '';
  t.is((await client.get(path, { prefer: 'wait=1', 'if-none-match': etag })).status, 304);
});

test('a submit with Prefer: wait returns when its batch is completed', async (t) => {
  const client = await stack.organization();
  const submitted = client.single({ npi: NPI }, WAIT);
  const settleAll = async () => {
    for (;;) {
      const rows = await stack.openRequests(client.organizationId);
      if (rows.length > 0)
        return await settle(stack.db, rows[0] ?? '', 'failed', 'test', RULES);
    }
  };
  await settleAll();
  const { status, json, headers } = await submitted;
  t.is(status, 202);
  t.is(json.status, 'completed');
  t.is(headers.get('preference-applied'), 'wait=50');
  t.is((await client.batch(json.batch_id)).batch.status, 'completed');
});

const RESULTS = { prefer: 'wait=50, return=representation' };

test('with return=representation, a submit returns the results of a completed batch', async (t) => {
  const client = await stack.organization();
  const key = { 'idempotency-key': 'one-call' };
  const submitted = client.bulk({ npis: [NPI] }, { ...RESULTS, ...key });
  const [open = ''] = await eventually(async () => {
    const rows = await stack.openRequests(client.organizationId);
    return rows.length > 0 ? rows : null;
  });
  await settle(stack.db, open, 'failed', 'test', RULES);
  const { status, json, headers } = await submitted;
  t.is(status, 200);
  t.is(headers.get('preference-applied'), 'wait=50, return=representation');
  const { batch, data } = json as unknown as EnvelopeResponse;
  t.is(batch.status, 'completed');
  t.like(data, [{ request_id: open, npi: NPI, status: 'failed' }]);
  t.deepEqual(json, await client.batch(batch.id));

  const repeated = await client.bulk({ npis: [NPI] }, { ...RESULTS, ...key });
  t.is(repeated.status, 200);
  t.is(repeated.headers.get('idempotent-replayed'), 'true');
  t.deepEqual(repeated.json, json);
  const plain = await client.bulk({ npis: [NPI] }, key);
  t.is(plain.status, 202);
  t.like(plain.json, { batch_id: batch.id, status: 'in-progress' });
});

test('with return=representation, a batch that takes longer is returned as a 202', async (t) => {
  const client = await stack.organization();
  for (const prefer of ['return=representation, wait=1', 'return=representation']) {
    const { status, json, headers } = await client.single({ npi: NPI }, { prefer });
    t.is(status, 202);
    t.is(json.status, 'in-progress');
    const applied = prefer.includes('wait') ? 'wait=1' : null;
    t.is(headers.get('preference-applied'), applied);
  }
});

test('a stored email is returned in one call, even without a wait', async (t) => {
  const client = await stack.organization();
  const email = 'jo@clinic.example';
  const npi = '2000000028';
  await storeEmail(stack.db, {
    ...{ npi, email, emailType: 'professional' },
  });
  const { status, json } = await client.single(
    { npi },
    { prefer: 'return=representation' },
  );
  t.is(status, 200);
  t.is((json as unknown as EnvelopeResponse).data[0]?.email, email);
});

test('a key that is revoked during the wait gets a 202 without results', async (t) => {
  const client = await stack.organization();
  const submitted = client.single({ npi: NPI }, RESULTS);
  const [open = ''] = await eventually(async () => {
    const rows = await stack.openRequests(client.organizationId);
    return rows.length > 0 ? rows : null;
  });
  await revokeKey(stack.db, BY, client.keyId);
  const { status, json } = await submitted;
  t.is(status, 202);
  t.is(json.status, 'in-progress');
  await settle(stack.db, open, 'failed', 'test', RULES);
});

// Fails without `waits` of api/http/overload.ts.
test('500 polls can wait at once without database connections, and more return at once', async (t) => {
  const client = await stack.organization();
  const { json } = await client.single({ npi: NPI });
  const path = `/api/v1/batch/${json.batch_id}`;
  let responded = 0;
  const waiting = Array.from({ length: 510 }, async () => {
    const reply = await client.get(path, WAIT);
    responded += 1;
    return reply;
  });
  // While all of them wait, others are still served, although the pool has only 20 connections.
  for (let i = 0; i < 20; i += 1) t.is((await client.get(path)).status, 200);
  await eventually(async () => responded === 10 || null);
  await settle(stack.db, json.requests[0]?.request_id ?? '', 'failed', 'test', RULES);
  const replies = await Promise.all(waiting);
  const waited = replies.filter(
    ({ headers }) => headers.get('preference-applied') !== null,
  );
  t.is(waited.length, 500);
  t.true(waited.every((reply) => reply.json.batch.status === 'completed'));
});

test('a poll still sees a change after the connection that listens for changes is lost', async (t) => {
  const client = await stack.organization();
  const { json } = await client.single({ npi: NPI });
  const path = `/api/v1/batch/${json.batch_id}`;
  const known = (await client.get(path)).headers.get('etag') ?? '';
  const waiting = client.get(path, { ...WAIT, 'if-none-match': known });
  await stack.db.drizzle.execute(
    sql`select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query ilike 'listen%'`,
  );
  await settle(stack.db, json.requests[0]?.request_id ?? '', 'failed', 'test', RULES);
  t.is((await waiting).json.batch.status, 'completed');
});

// Fails without the triggers that notify of changed keys and organizations, and without the second
// lookup of the key.
for (const [how, code, end] of [
  [
    'its API key is revoked',
    'api_key_revoked',
    ({ keyId }) => revokeKey(stack.db, BY, keyId),
  ],
  [
    'its API key is replaced',
    'api_key_inactive',
    ({ keyId }) => rotateKey(stack.db, BY, keyId, 0),
  ],
  [
    'its organization is suspended',
    'api_key_inactive',
    ({ organizationId }) => suspendOrganization(stack.db, BY, organizationId, true),
  ],
] satisfies [string, string, (whose: Organization) => Promise<unknown>][]) {
  test(`a waiting poll gets a 403 as soon as ${how}, and others keep waiting`, async (t) => {
    // With this low limit, the requests of the key are counted one by one.
    const client = await stack.organization(1000, 300);
    const bystander = await stack.organization();
    const submitted = (await client.single({ npi: NPI })).json;
    const waiting = Promise.all([
      client.get<{ code: string }>(`/api/v1/batch/${submitted.batch_id}`, WAIT),
      client.get<{ code: string }>(submitted.requests[0]?.poll_url ?? '', WAIT),
    ]);
    const theirs = (await bystander.single({ npi: NPI })).json;
    const known =
      (await bystander.get(`/api/v1/batch/${theirs.batch_id}`)).headers.get('etag') ?? '';
    const other = bystander.get(`/api/v1/batch/${theirs.batch_id}`, {
      ...WAIT,
      'if-none-match': known,
    });
    const submitting = client.single({ npi: NPI }, WAIT);
    // All three requests wait once they are counted.
    await eventually(async () =>
      (await stack.openRequests(client.organizationId)).length === 2 ? true : null,
    );
    await eventually(async () => ((await admitted(client.keyId)) === 4 ? true : null));

    await end(client);
    for (const { status, json } of await waiting)
      t.deepEqual([status, json.code], [403, code]);
    t.is((await submitting).status, 202, 'what was accepted stays accepted');
    await settle(stack.db, theirs.requests[0]?.request_id ?? '', 'failed', 'test', RULES);
    t.is((await other).json.batch.status, 'completed');
  });
}

/** Returns the number of admitted requests of a key. */
async function admitted(keyId: string, db = stack.db): Promise<number> {
  const [row] = await db.drizzle.execute<{ hits: number }>(
    sql`select coalesce(sum(n), 0)::int as hits from rate_windows, unnest(counts) n where api_key_id = ${keyId}`,
  );
  return row?.hits ?? 0;
}

test('an invalid Prefer header is ignored', async (t) => {
  const client = await stack.organization();
  const { json } = await client.single({ npi: NPI });
  for (const prefer of [
    'wait=-1',
    'wait=soon',
    'wait=0',
    'return=minimal',
    'waiting=5',
    'wait',
    'until=change',
  ]) {
    const reply = await client.get(`/api/v1/batch/${json.batch_id}`, { prefer });
    t.is(reply.status, 200);
    t.is(reply.headers.get('preference-applied'), null);
  }
});

test('with handling=strict, unknown fields and preferences of a submit are a 422', async (t) => {
  const client = await stack.organization();
  const body = {
    npi: NPI,
    email_type: 'any',
    webhook: { url: 'https://a.example', mod: 1 },
  };
  t.is((await client.single(body)).status, 202);
  const prefer = 'handling=strict, wait=1, respond-async';
  const { status, text } = await client.single(body, { prefer });
  t.is(status, 422);
  const detail: { loc: string[]; type: string }[] = JSON.parse(text).detail;
  t.deepEqual(
    detail.map(({ loc, type }) => `${loc.join('.')} ${type}`).toSorted(),
    [
      'body.webhook.mod extra_forbidden',
      'body.email_type extra_forbidden',
      'header.Prefer preference_unknown',
    ].toSorted(),
  );
  const strict = { prefer: 'handling=strict, return=representation' };
  t.is((await client.single({ npi: NPI }, strict)).status, 202);
});
