import test, { type ExecutionContext } from 'ava';
import { issueKey } from '../../db/accounts/keys.ts';
import { takePlaces } from '../../db/accounts/limits.ts';
import { setLimit } from '../../db/accounts/organizations.ts';
import { fresh, freshDatabase } from '../support/database.ts';
import {
  type ApiResponse,
  BY,
  createCaller,
  eventually,
} from '../support/organization.ts';
import { type ApiClient, startApi } from '../support/stack.ts';

// Tests the rate limit (DECISIONS.md, Keys and rate) with two API processes on one database.

const BEGUN = Math.floor(Date.now() / 1000);

const { sql, url: databaseUrl } = freshDatabase(test);
const api = fresh(test, () => startApi({ databaseUrl }));
const second = fresh(test, () => startApi({ databaseUrl }));

const credits = ({ get }: Pick<ApiClient, 'get'>) => get('/api/v1/credits');

/**
 * Sets the times of a key's admitted requests, in seconds before now.
 * @returns a function that returns the seconds since this call
 */
async function setHits(
  { keyId }: ApiClient,
  ages: readonly number[],
): Promise<() => number> {
  const begun = performance.now();
  await sql`insert into rate_windows (api_key_id, hits, counts)
    select ${keyId}, array_agg(clock_timestamp() - make_interval(secs => age) order by age desc), array_agg(1)
      from unnest(${ages as number[]}::float8[]) age`;
  return () => (performance.now() - begun) / 1000;
}

/** Checks the limit and the remaining requests in both families of headers. */
function says(
  t: ExecutionContext,
  { headers }: ApiResponse,
  limit: number,
  remaining: number,
  reset?: number,
): void {
  t.is(headers.get('ratelimit-policy'), `"default";q=${limit};w=60`);
  const [, r, s] =
    /^"default";r=(\d+);t=(\d+)$/.exec(headers.get('ratelimit') ?? '') ?? [];
  t.is(Number(r), remaining);
  t.is(headers.get('x-ratelimit-limit'), String(limit));
  t.is(headers.get('x-ratelimit-remaining'), String(remaining));
  const counted = Number(headers.get('x-ratelimit-reset')) - Number(s);
  // Compares with the current time, because the header Date lags behind on a busy machine.
  const now = Date.now() / 1000;
  t.true(counted >= BEGUN && counted <= now + 1, `counted at ${counted}, now ${now}`);
  if (reset !== undefined) t.is(Number(s), reset);
}

test('a 429 says after how many seconds the next request is admitted', async (t) => {
  const client = await api.organization(0, 3);
  const elapsed = await setHits(client, [40.5, 30, 0]);
  const refused = await credits(client);
  const wait = Number(refused.headers.get('retry-after'));
  t.true(wait <= 20 && wait >= Math.ceil(19.5 - elapsed()), `${wait} s`);
  t.is(refused.status, 429);
  t.is(refused.headers.get('content-type'), 'application/problem+json');
  t.deepEqual(refused.json, {
    type: 'about:blank',
    title: 'Too Many Requests',
    status: 429,
    code: 'rate_limited',
    detail: `This key may send 3 requests in 60 s. Try again in ${wait} s.`,
  });
  says(t, refused, 3, 0);
});

test("each request counts against its key's rate limit for 60 s", async (t) => {
  const clientAfter = async (ages: readonly number[]) => {
    const client = await api.organization(0, 3);
    await setHits(client, ages);
    return client;
  };
  t.is((await credits(await clientAfter([30, 20, 10]))).status, 429);
  const one = await clientAfter([60, 30, 10]);
  says(t, await credits(one), 3, 0, 60);
  t.is((await credits(one)).status, 429);
  const two = await clientAfter([61, 60, 10]);
  says(t, await credits(two), 3, 1, 60);
  says(t, await credits(two), 3, 0, 60);
  t.is((await credits(two)).status, 429);
  says(t, await credits(await clientAfter([3600, 61, 60])), 3, 2, 60);
});

test('after a 429, requests of the key get a 429 without a query until Retry-After', async (t) => {
  const client = await api.organization(0, 2);
  await setHits(client, [30, 20]);
  const window = () =>
    sql`select *, xmin, ctid from rate_windows where api_key_id = ${client.keyId}`;
  const before = await window();
  t.is((await credits(client)).status, 429);
  t.deepEqual(await window(), before);
  // A query would wait for this lock.
  await sql.begin(async (tx) => {
    await tx`select 1 from rate_windows where api_key_id = ${client.keyId} for update`;
    for (let i = 0; i < 5; i += 1) t.is((await credits(client)).status, 429);
  });
  // The other process has not rejected this key yet, so it queries the database and rejects it too.
  t.is((await credits(createCaller(second.baseUrl, client.apiKey))).status, 429);
  t.deepEqual(await window(), before);
});

test('the rate limiter stores one entry per second, however high the limit is', async (t) => {
  const key = { keyId: (await api.organization()).keyId, requestsPerMinute: 100_000 };
  const [before] = await sql`select clock_timestamp() as at`;
  for (let n = 0; n < 200; n += 1)
    t.is((await takePlaces(api.db, key, 60_000, 100)).taken, 100);
  const [row] = await sql`
    select cardinality(hits)::int as entries,
           extract(epoch from clock_timestamp() - ${before?.at})::float8 as seconds
      from rate_windows where api_key_id = ${key.keyId}`;
  t.true(
    row?.entries <= row?.seconds + 2,
    `${row?.entries} entries in ${row?.seconds} s`,
  );
});

test("if PostgreSQL's clock is set back, a key is rejected for at most one rate window", async (t) => {
  const requestsPerMinute = 100;
  const { keyId } = await api.organization(0, requestsPerMinute);
  const take = (wanted: number) =>
    takePlaces(api.db, { keyId, requestsPerMinute }, 60_000, wanted);
  await take(requestsPerMinute);
  await sql`update rate_windows set hits = array[now() + interval '1 day'] where api_key_id = ${keyId}`;
  t.is((await take(1)).taken, 0);
  const [row] = await sql`
    select hits[1] <= clock_timestamp() as "isPast" from rate_windows where api_key_id = ${keyId}`;
  t.true(row?.isPast);
});

test('no time span as long as the rate window has more requests than the limit', async (t) => {
  const [limit, windowMs] = [10, 300];
  const fast = [await startApi({ databaseUrl, rateWindowMs: windowMs })];
  fast.push(await startApi({ databaseUrl, rateWindowMs: windowMs }));
  const { keyId, apiKey } = await api.organization(0, limit);
  // A trigger records the time of each admission.
  await sql`create table admissions (at timestamptz not null)`;
  await sql`create function note_admission() returns trigger language plpgsql as $$
    declare
      last integer := cardinality(new.hits);
      earlier integer := (
        select coalesce(max(n), 0) from unnest(old.hits, old.counts) as o (hit, n)
         where date_trunc('second', hit) = date_trunc('second', new.hits[last])
           and hit > new.hits[last] - interval '300 ms');
    begin
      insert into admissions select new.hits[last] from generate_series(1, new.counts[last] - earlier);
      return null;
    end $$`;
  await sql.unsafe(`create trigger note_admission after update on rate_windows
    for each row when (new.api_key_id = '${keyId}') execute function note_admission()`);
  try {
    let admitted = 0;
    const callers = fast.flatMap(({ baseUrl }) =>
      Array.from({ length: 3 }, () => createCaller(baseUrl, apiKey)),
    );
    await Promise.all(
      callers.map(async (caller) => {
        while (admitted < 5 * limit)
          if ((await credits(caller)).status === 200) admitted += 1;
      }),
    );
    const rows = await sql<
      { at: number }[]
    >`select extract(epoch from at)::float8 * 1000 as at from admissions order by 1`;
    const times = rows.map(({ at }) => at);
    t.is(times.length, admitted);
    const spans = times.slice(limit).map((at, i) => at - (times[i] ?? 0));
    t.true(
      Math.min(...spans) >= windowMs,
      `${limit + 1} were admitted within ${Math.min(...spans)} ms`,
    );
  } finally {
    await sql`drop trigger note_admission on rate_windows`;
    for (const one of fast) await one.stop();
  }
});

test('304, 404, and 422 count against the rate limit; 401, 403, and 405 do not', async (t) => {
  const client = await api.organization(5, 100);
  const { batch_id } = (await client.single({ npi: '1234567893' })).json;
  let taken = 1;
  const path = `/api/v1/batch/${batch_id}`;
  const etag = (await client.get(path)).headers.get('etag') ?? '';
  taken += 1;
  const counted = [
    [304, 'GET', path, undefined, { 'if-none-match': etag }],
    [404, 'GET', `${path.slice(0, -1)}${path.endsWith('0') ? '1' : '0'}`],
    [422, 'GET', '/api/v1/email/x'],
    [422, 'POST', '/api/v1/email', '{'],
    [415, 'POST', '/api/v1/email', '{', { 'content-type': 'x' }],
    [413, 'POST', '/api/v1/email', 'x'.repeat(70_000)],
    [
      402,
      'POST',
      '/api/v1/email/bulk',
      JSON.stringify({ npis: Array(60).fill('1234567893') }),
    ],
    [200, 'HEAD', '/api/v1/credits'],
    [202, 'POST', '/api/v1/email', '{"npi":"1234567893"}'],
  ] as const;
  for (const [status, ...request] of counted) {
    const response = await client.call(
      ...(request as unknown as Parameters<typeof client.call>),
    );
    taken += 1;
    t.is(response.status, status);
    says(t, response, 100, 100 - taken);
  }
  const uncounted = [
    [
      401,
      'GET',
      '/api/v1/credits',
      undefined,
      { authorization: `Bearer ${client.apiKey}x` },
    ],
    [404, 'GET', '/nowhere'],
    [405, 'PUT', '/api/v1/credits'],
    [200, 'GET', '/healthz'],
    [200, 'GET', '/readyz'],
  ] as const;
  for (const [status, ...request] of uncounted) {
    const response = await client.call(
      ...(request as unknown as Parameters<typeof client.call>),
    );
    t.is(response.status, status);
    t.false([...response.headers.keys()].some((name) => /ratelimit/.test(name)));
  }
  says(t, await credits(client), 100, 100 - taken - 1);
});

test('a rate limit that an operator changes applies within a second', async (t) => {
  const client = await api.organization(0, 2);
  t.deepEqual(
    [(await credits(client)).status, (await credits(client)).status],
    [200, 200],
  );
  t.is((await credits(client)).status, 429);
  const untilLimit = (limit: number) =>
    eventually(async () => {
      const response = await credits(client);
      return response.headers.get('x-ratelimit-limit') === String(limit)
        ? response
        : null;
    });
  await setLimit(api.db, BY, client.organizationId, 250);
  says(t, await untilLimit(250), 250, 247);
  await setLimit(api.db, BY, client.organizationId, 2);
  const refused = await untilLimit(2);
  t.is(refused.status, 429);
  says(t, refused, 2, 0);
});

test('each API key has its own rate limit', async (t) => {
  const client = await api.organization(0, 1);
  const { apiKey } = await issueKey(api.db, BY, client.organizationId, 'second');
  const other = createCaller(api.baseUrl, apiKey);
  t.is((await credits(client)).status, 200);
  t.is((await credits(client)).status, 429);
  t.is((await credits(other)).status, 200);
  t.is((await credits(other)).status, 429);
});
