import test from 'ava';
import { issueKey } from '../../db/accounts/keys.ts';
import { addSuppression, removeSuppression } from '../../db/privacy/suppressions.ts';
import { settle } from '../../db/requests/settle.ts';
import { fresh, freshDatabase, openTestDatabase, travel } from '../support/database.ts';
import { BY, createCaller, grant, RULES } from '../support/organization.ts';
import { startApi } from '../support/stack.ts';
import { storeEmail } from '../support/stored.ts';

// Tests the content of both polls, and their ETags, with which a client reads only changed
// responses.

const { sql, url: databaseUrl } = freshDatabase(test);
const api = fresh(test, () => startApi({ databaseUrl }));

async function submitTwo() {
  const client = await api.organization(10);
  const { batch_id, requests } = (
    await client.bulk({ npis: ['1234567893', '1234567894'] })
  ).json;
  const [first = '', second = ''] = requests.map(({ request_id }) => request_id);
  return {
    client,
    first,
    second,
    paths: [`/api/v1/email/${first}`, `/api/v1/batch/${batch_id}`] as const,
  };
}

test('a poll returns one request, or all requests of a batch in submit order', async (t) => {
  const { client, first, second, paths } = await submitTwo();
  const [single, batch] = [await client.get(paths[0]), await client.get(paths[1])];
  t.deepEqual(
    single.json.data.map(({ request_id, status }) => [request_id, status]),
    [[first, 'accepted']],
  );
  t.deepEqual(
    batch.json.data.map(({ request_id, npi }) => [request_id, npi]),
    [
      [first, '1234567893'],
      [second, '1234567894'],
    ],
  );
  t.deepEqual(Object.keys(batch.json), [
    'batch',
    'webhook',
    'custom_data',
    'usage',
    'data',
  ]);
  t.deepEqual(batch.json.usage, { credits_used: 0, balance: 8 });
  t.deepEqual(single.json.batch, batch.json.batch);
  t.regex(batch.json.batch.created_at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
  const alone = (await client.single({ npi: '1234567893' })).json;
  t.is(
    (await client.batch(alone.batch_id)).data[0]?.request_id,
    alone.requests[0]?.request_id,
  );
});

test('the Retry-After of a poll grows with the age of the request until it is final', async (t) => {
  const { client, first, second, paths } = await submitTwo();
  const after = async (path: string) =>
    (await client.get(path)).headers.get('retry-after');
  const age = (seconds: number) => sql`update batches
    set created_at = clock_timestamp() - make_interval(secs => ${seconds})
    where id = (select batch_id from requests where id = ${first})`;
  t.is(await after(paths[0]), '1');
  t.is(await after(paths[1]), '1');
  await age(58);
  t.is(await after(paths[0]), '12');
  await age(800);
  t.is(await after(paths[1]), '30');
  await settle(api.db, first, 'failed', 'test', RULES);
  t.is(await after(paths[0]), null);
  t.is(await after(paths[1]), '30');
  await settle(api.db, second, 'failed', 'test', RULES);
  t.is(await after(paths[1]), null);
});

test("the times in response headers come from PostgreSQL's clock, not the API's", async (t) => {
  await using database = await openTestDatabase();
  const time = await travel(database.url);
  await time.freeze();
  const its = await startApi({ databaseUrl: database.url });
  try {
    // With this low limit, each request reads the rate limit and the time from PostgreSQL.
    const client = await its.organization(10, 100);
    const { batch_id } = (await client.single({ npi: '1234567893' })).json;
    await time.advance(100_000);
    const { headers } = await client.get(`/api/v1/batch/${batch_id}`);
    t.is(headers.get('retry-after'), '20');
    const [, untilReset] = /;t=(\d+)$/.exec(headers.get('ratelimit') ?? '') ?? [];
    const countedAt = Number(headers.get('x-ratelimit-reset')) - Number(untilReset);
    const [row] =
      await database.sql`select extract(epoch from clock_timestamp())::float8 as now`;
    t.true(Math.abs(countedAt - row?.now) < 50, `${countedAt} and ${row?.now}`);
  } finally {
    await its.stop();
    await time.stop();
  }
});

test('a poll with If-None-Match and the current ETag gets a 304 without a body', async (t) => {
  const { client, first, paths } = await submitTwo();
  // A batch in the future never gets old, so Retry-After stays at 1 s.
  await sql`update batches set created_at = clock_timestamp() + interval '1 hour'
             where id = (select batch_id from requests where id = ${first})`;
  for (const path of paths) {
    const known = (await client.get(path)).headers.get('etag') ?? '';
    t.regex(known, /^"[^"]+"$/);
    for (const header of [known, `W/${known}`, `"x", ${known}`, `${known},"x"`, '*']) {
      const reply = await client.get(path, { 'if-none-match': header });
      t.deepEqual(
        [reply.status, reply.text, reply.headers.get('etag')],
        [304, '', known],
        header,
      );
      t.is(reply.headers.get('content-type'), null);
      t.is(reply.headers.get('retry-after'), '1');
      t.true(reply.headers.has('ratelimit'));
    }
    for (const header of ['"x"', known.slice(1, -1), 'W/"x"', '', '""', `"${known}"`]) {
      t.is((await client.get(path, { 'if-none-match': header })).status, 200, header);
    }
  }
  const [before, neighbor] = await Promise.all(
    paths.map(async (path) => (await client.get(path)).headers.get('etag')),
  );
  await settle(api.db, first, 'failed', 'test', RULES);
  t.is((await client.get(paths[0], { 'if-none-match': before ?? '' })).status, 200);
  t.is((await client.get(paths[1], { 'if-none-match': neighbor ?? '' })).status, 200);
  t.is(
    (await client.call('HEAD', paths[0], undefined, { 'if-none-match': '*' })).status,
    304,
  );
});

test('all keys of an organization get the same ETag, which changes with the balance', async (t) => {
  const { client, paths } = await submitTwo();
  const { apiKey } = await issueKey(api.db, BY, client.organizationId, 'second');
  const other = createCaller(api.baseUrl, apiKey);
  for (const path of paths) {
    const etag = (await client.get(path)).headers.get('etag') ?? '';
    t.is((await other.get(path)).headers.get('etag'), etag);
    t.is(
      (await other.get(path, { 'accept-encoding': 'identity', 'if-none-match': etag }))
        .status,
      304,
    );
    t.is((await other.call('HEAD', path)).headers.get('etag'), etag);
    await grant(api.db, client.organizationId, 1);
    t.not((await client.get(path)).headers.get('etag'), etag);
  }
});

// Fails without `later` of the migrations. If an ETag changed without a reason, it would end a wait
// of `until=change`.
test("a poll's ETag changes exactly when the content of the response changes", async (t) => {
  const { client, first, second, paths } = await submitTwo();
  const batch = sql`id = (select batch_id from requests where id = ${first})`;
  const etags = () =>
    Promise.all(
      paths.map(async (path) => (await client.get(path)).headers.get('etag') ?? ''),
    );
  const before = await etags();
  await sql`update batches set started_at = now(), checked_at = now() where ${batch}`;
  t.deepEqual(await etags(), before);
  // Later than any clock, so `updated_at` must be increased instead of set to the current time.
  await sql`update batches set updated_at = updated_at + interval '1 hour' where ${batch}`;
  const seen = [...before, ...(await etags())];
  for (const requestId of [first, second]) {
    await settle(api.db, requestId, 'failed', 'test', RULES);
    seen.push(...(await etags()));
  }
  t.is(new Set(seen).size, 4);
});

test.serial(
  'the ETag of a poll changes when its email is suppressed or no longer suppressed',
  async (t) => {
    const client = await api.organization(10);
    const npi = '1234567885';
    const email = 'someone@suppressed.example';
    await storeEmail(api.db, { npi, email });
    const { json } = await client.bulk({ npis: [npi] });
    const paths = [`/api/v1/batch/${json.batch_id}`, json.requests[0]?.poll_url ?? ''];
    const domain = { kind: 'domain', value: 'suppressed.example' } as const;
    for (const path of paths) {
      const before = await client.get(path);
      const ask = () =>
        client.get(path, { 'if-none-match': before.headers.get('etag') ?? '' });
      t.is(before.json.data[0]?.email, email);
      t.is((await ask()).status, 304);
      await addSuppression(api.db, BY, domain);
      const during = await ask();
      t.deepEqual([during.status, during.json.data[0]?.email], [200, null]);
      await removeSuppression(api.db, BY, domain);
      const after = await ask();
      t.deepEqual([after.status, after.json.data[0]?.email], [200, email]);
    }
  },
);

test('every response forbids caching, even if it is compressed or a 304', async (t) => {
  const client = await api.organization(100);
  const { batch_id } = (await client.bulk({ npis: Array(60).fill('1234567893') })).json;
  const reply = await client.get(`/api/v1/batch/${batch_id}`, {
    'accept-encoding': 'gzip',
  });
  t.is(reply.headers.get('content-encoding'), 'gzip');
  const known = { 'if-none-match': reply.headers.get('etag') ?? '' };
  for (const one of [
    reply,
    await client.get(`/api/v1/batch/${batch_id}`, known),
    await client.single({ npi: '1234567893' }),
    await client.get('/api/v1/credits'),
  ]) {
    t.is(one.headers.get('cache-control'), 'no-store', String(one.status));
    t.is(one.headers.get('x-content-type-options'), 'nosniff', String(one.status));
  }
  t.regex(reply.headers.get('vary') ?? '', /accept-encoding/i);
  t.is(reply.json.data.length, 60);
});
