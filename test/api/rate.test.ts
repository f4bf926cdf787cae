import test, { type ExecutionContext } from 'ava';
import { issueKey } from '../../db/accounts/keys.ts';
import { setLimit } from '../../db/accounts/organizations.ts';
import { fresh, freshDatabase } from '../support/database.ts';
import { type Answer, createCaller } from '../support/organization.ts';
import { type ApiClient, startApi } from '../support/stack.ts';

// The rate limit (DECISIONS.md, Keys and rate) over two API processes on one database.

const BY = { actor: 'test', reason: 'test' };
const BEGUN = Math.floor(Date.now() / 1000);

const { sql, url: databaseUrl } = freshDatabase(test);
const api = fresh(test, () => startApi({ databaseUrl }));
const second = fresh(test, () => startApi({ databaseUrl }));

const credits = ({ get }: Pick<ApiClient, 'get'>) => get('/api/v1/credits');

/**
 * Sets the times of a key's admitted requests, in seconds before now.
 * @returns how many seconds ago that was
 */
async function setHits({ keyId }: ApiClient, ages: readonly number[]): Promise<() => number> {
  const begun = performance.now();
  await sql`insert into rate_windows (api_key_id, hits, admitted)
    values (${keyId}, (select coalesce(array_agg(clock_timestamp() - make_interval(secs => age) order by age desc), '{}')
      from unnest(${ages as number[]}::float8[]) age), true)
    on conflict (api_key_id) do update set hits = excluded.hits`;
  return () => (performance.now() - begun) / 1000;
}

/** Both header families say the same, of a limit and what remains of it. */
function says(
  t: ExecutionContext,
  { headers }: Answer,
  limit: number,
  remaining: number,
  reset?: number,
): void {
  t.is(headers.get('ratelimit-policy'), `"default";q=${limit};w=60`);
  const [, r, s] = /^"default";r=(\d+);t=(\d+)$/.exec(headers.get('ratelimit') ?? '') ?? [];
  t.is(Number(r), remaining);
  t.is(headers.get('x-ratelimit-limit'), String(limit));
  t.is(headers.get('x-ratelimit-remaining'), String(remaining));
  const counted = Number(headers.get('x-ratelimit-reset')) - Number(s);
  // Not later than now: the header Date lags behind on a busy machine.
  const now = Date.now() / 1000;
  t.true(counted >= BEGUN && counted <= now + 1, `counted at ${counted}, now ${now}`);
  if (reset !== undefined) t.is(Number(s), reset);
}

test('100 requests are admitted when idle, over both processes, and the 101st is refused', async (t) => {
  const client = await api.organization(0, 100);
  const other = createCaller(second.baseUrl, client.apiKey);
  const answers = await Promise.all(
    Array.from({ length: 130 }, (_, i) => credits(i % 2 === 0 ? client : other)),
  );
  const admitted = answers.filter(({ status }) => status === 200);
  t.is(admitted.length, 100);
  t.deepEqual(
    admitted.map(({ headers }) => Number(headers.get('x-ratelimit-remaining'))).sort((a, b) => b - a),
    Array.from({ length: 100 }, (_, i) => 99 - i),
  );
  for (const refused of answers.filter(({ status }) => status !== 200)) {
    t.is(refused.status, 429);
    says(t, refused, 100, 0);
  }
});

test('a 429 is a problem that says when to come back, to the second', async (t) => {
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

test('places come free one by one, 60 s after each was taken', async (t) => {
  const client = await api.organization(0, 3);
  await setHits(client, [30, 20, 10]);
  t.is((await credits(client)).status, 429);
  await setHits(client, [60, 30, 10]);
  says(t, await credits(client), 3, 0, 60);
  t.is((await credits(client)).status, 429);
  await setHits(client, [61, 60, 10]);
  says(t, await credits(client), 3, 1, 60);
  says(t, await credits(client), 3, 0, 60);
  t.is((await credits(client)).status, 429);
  await setHits(client, [3600, 61, 60]);
  says(t, await credits(client), 3, 2, 60);
});

test('a refusal takes no place and does not delay the next', async (t) => {
  const client = await api.organization(0, 2);
  await setHits(client, [30, 20]);
  const hits = () => sql`select hits from rate_windows where api_key_id = ${client.keyId}`;
  const before = await hits();
  for (let i = 0; i < 5; i += 1) t.is((await credits(client)).status, 429);
  t.deepEqual(await hits(), before);
});

test('no span as long as the window admits more than the limit', async (t) => {
  const [limit, windowMs] = [10, 300];
  const fast = [await startApi({ databaseUrl, rateWindowMs: windowMs })];
  fast.push(await startApi({ databaseUrl, rateWindowMs: windowMs }));
  const { keyId, apiKey } = await api.organization(0, limit);
  // PostgreSQL itself notes the moments of admission.
  await sql`create table admissions (at timestamptz not null)`;
  await sql`create function note_admission() returns trigger language plpgsql as $$
    begin insert into admissions values (new.hits[cardinality(new.hits)]); return null; end $$`;
  await sql.unsafe(`create trigger note_admission after insert or update on rate_windows
    for each row when (new.admitted and new.api_key_id = '${keyId}') execute function note_admission()`);
  try {
    let admitted = 0;
    const callers = fast.flatMap(({ baseUrl }) =>
      Array.from({ length: 3 }, () => createCaller(baseUrl, apiKey)),
    );
    await Promise.all(
      callers.map(async (caller) => {
        while (admitted < 5 * limit) if ((await credits(caller)).status === 200) admitted += 1;
      }),
    );
    const rows = await sql<
      { at: number }[]
    >`select extract(epoch from at)::float8 * 1000 as at from admissions order by 1`;
    const times = rows.map(({ at }) => at);
    t.is(times.length, admitted);
    const spans = times.slice(limit).map((at, i) => at - (times[i] ?? 0));
    t.true(Math.min(...spans) >= windowMs, `${limit + 1} were admitted within ${Math.min(...spans)} ms`);
  } finally {
    await sql`drop trigger note_admission on rate_windows`;
    for (const one of fast) await one.stop();
  }
});

test('304, 404 and 422 count; 401, 403, 404 of a path, 405 and health checks do not', async (t) => {
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
    [402, 'POST', '/api/v1/email/bulk', JSON.stringify({ npis: Array(60).fill('1234567893') })],
    [200, 'HEAD', '/api/v1/credits'],
    [202, 'POST', '/api/v1/email', '{"npi":"1234567893"}'],
  ] as const;
  for (const [status, ...request] of counted) {
    const answer = await client.call(...(request as unknown as Parameters<typeof client.call>));
    taken += 1;
    t.is(answer.status, status);
    says(t, answer, 100, 100 - taken);
  }
  const uncounted = [
    [401, 'GET', '/api/v1/credits', undefined, { authorization: `Bearer ${client.apiKey}x` }],
    [404, 'GET', '/nowhere'],
    [405, 'PUT', '/api/v1/credits'],
    [200, 'GET', '/healthz'],
    [200, 'GET', '/readyz'],
  ] as const;
  for (const [status, ...request] of uncounted) {
    const answer = await client.call(...(request as unknown as Parameters<typeof client.call>));
    t.is(answer.status, status);
    t.false([...answer.headers.keys()].some((name) => /ratelimit/.test(name)));
  }
  says(t, await credits(client), 100, 100 - taken - 1);
});

test("the operator's limit holds from the next request on, up and down", async (t) => {
  const client = await api.organization(0, 2);
  t.deepEqual([(await credits(client)).status, (await credits(client)).status], [200, 200]);
  t.is((await credits(client)).status, 429);
  await setLimit(api.db, BY, client.organizationId, 250);
  says(t, await credits(client), 250, 247);
  await setLimit(api.db, BY, client.organizationId, 2);
  const refused = await credits(client);
  t.is(refused.status, 429);
  says(t, refused, 2, 0);
});

test('each key has a window of its own', async (t) => {
  const client = await api.organization(0, 1);
  const { apiKey } = await issueKey(api.db, BY, client.organizationId, 'second');
  const other = createCaller(api.baseUrl, apiKey);
  t.is((await credits(client)).status, 200);
  t.is((await credits(client)).status, 429);
  t.is((await credits(other)).status, 200);
  t.is((await credits(other)).status, 429);
});
