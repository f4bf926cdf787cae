import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { connect } from 'node:net';
import test from 'ava';
import { sql as query } from 'drizzle-orm';
import {
  createAddressOf,
  createFloodGuard,
  createSample,
} from '../../api/http/overload.ts';
import { reactivateKey, revokeKey } from '../../db/accounts/keys.ts';
import { transaction } from '../../db/connection/client.ts';
import { fresh, freshDatabase } from '../support/database.ts';
import { BY, eventually, exchange } from '../support/organization.ts';
import { type Api, type ApiClient, startApi } from '../support/stack.ts';

const { sql, url: databaseUrl } = freshDatabase(test);
const api = fresh(test, () => startApi({ databaseUrl }));

test('an IP address that sends 100 bad keys gets a 429, but its valid keys still work', async (t) => {
  const api = await startApi();
  const client = await api.organization();
  const knock = (headers: Record<string, string>) =>
    fetch(`${api.baseUrl}/api/v1/credits`, { headers });
  const statuses = [];
  for (let i = 0; i < 60; i += 1) {
    statuses.push(
      (await knock({ 'x-api-key': `npe_${i}` })).status,
      (await knock({})).status,
    );
  }
  t.deepEqual(statuses, [...Array(100).fill(401), ...Array(20).fill(429)]);
  const refused = await knock({});
  const wait = Number(refused.headers.get('retry-after'));
  t.true(wait >= 1 && wait <= 60);
  t.like(await refused.json(), { code: 'rate_limited' });
  t.is((await client.get('/api/v1/credits')).status, 200);
  await api.stop();
});

test('bad keys are counted for 60 s, per IPv4 address or IPv6 /64 network', (t) => {
  let now = 0;
  const guard = createFloodGuard(60_000, () => now);
  const addressOf = createAddressOf([]);
  const fail = (remoteAddress: string) => {
    const message = { socket: { remoteAddress }, headers: {} } as IncomingMessage;
    return guard.countFailure(addressOf(message))?.status ?? 401;
  };
  for (let i = 0; i < 100; i += 1) t.is(fail('203.0.113.7'), 401);
  t.is(fail('203.0.113.7'), 429);
  t.is(fail('::ffff:203.0.113.7'), 429);
  t.is(fail('203.0.113.8'), 401);
  now = 59_999;
  t.is(fail('203.0.113.7'), 429);
  now = 60_000;
  t.is(fail('203.0.113.7'), 401);
  for (let i = 0; i < 100; i += 1) t.is(fail(`2001:db8:0:1::${i.toString(16)}`), 401);
  t.is(fail('2001:db8:0:1:ffff::1'), 429);
  t.is(fail('2001:db8:0:2::1'), 401);
});

test('every request with a valid key is logged, but only a sample of the others', async (t) => {
  const lines: {
    msg: string;
    status: number;
    organization_id?: string;
    suppressed?: number;
  }[] = [];
  const begun = performance.now();
  const api = await startApi({ onLog: (line) => lines.push(JSON.parse(line)) });
  const client = await api.organization();
  for (let i = 0; i < 50; i += 1) {
    await fetch(`${api.baseUrl}/api/v1/credits`);
    await fetch(`${api.baseUrl}/api/v1/credits`, {
      headers: { 'x-api-key': `npe_${i}` },
    });
    await fetch(`${api.baseUrl}/nothing`);
    await exchange(api.port, 'GET\r\n\r\n');
    await client.get('/api/v1/email/x');
  }
  await api.stop();
  const most = 1 + (performance.now() - begun) / 10_000;
  const sampled = lines.filter(
    ({ organization_id, status }) => status >= 400 && organization_id === undefined,
  );
  t.deepEqual([...new Set(sampled.map(({ status }) => status))].sort(), [400, 401, 404]);
  for (const status of [400, 401, 404]) {
    const ofStatus = sampled.filter((line) => line.status === status);
    t.true(ofStatus.length <= most, `${ofStatus.length} lines of ${status}`);
    t.is(typeof ofStatus[0]?.suppressed, 'number');
  }
  const keyed = lines.filter(
    ({ organization_id, msg }) => organization_id !== undefined && msg === 'http',
  );
  t.is(keyed.length, 50);
  t.true(
    keyed.every(({ status, suppressed }) => status === 422 && suppressed === undefined),
  );
});

test('the log sample has one line per status in 10 s, with a count of lines left out', (t) => {
  let now = 0;
  const sample = createSample(() => now);
  t.deepEqual([sample(401), sample(401), sample(401), sample(404)], [0, null, null, 0]);
  now = 9_999;
  t.is(sample(401), null);
  now = 10_000;
  t.deepEqual([sample(401), sample(401), sample(404)], [3, null, 0]);
  now = 20_000;
  t.is(sample(401), 1);
});

const BROKEN = '\0\r\n\r\n';
const KEYLESS = 'GET /api/v1/credits HTTP/1.1\r\nHost: x\r\n\r\n';

// Fails without `boundPipelines` of api/http/connection.ts.
test('a connection with more than 32 pipelined requests is closed', async (t) => {
  for (const more of ['', BROKEN]) {
    t.is(await responsesTo(KEYLESS.repeat(200) + more), '', more);
  }
  const last = KEYLESS.replace('\r\n\r\n', '\r\nConnection: close\r\n\r\n');
  t.is(
    (await responsesTo(KEYLESS.repeat(32) + last)).split('HTTP/1.1 401').length - 1,
    33,
  );
});

/** Returns all that the API writes to a new connection until the connection ends. */
async function responsesTo(text: string): Promise<string> {
  const socket = connect(api.port, '127.0.0.1');
  let replies = '';
  socket.on('data', (bytes) => {
    replies += bytes;
  });
  socket.on('error', () => {});
  socket.write(text);
  await once(socket, 'close');
  return replies;
}

// Fails unless `guesses.refusal` is called before `authenticate` in api/http/auth.ts.
test('after 100 bad keys, an IP address may use only keys that worked there recently', async (t) => {
  const own = await startApi();
  const [known, other] = [await own.organization(), await own.organization()];
  t.is((await known.get('/api/v1/credits')).status, 200);
  await revokeKey(own.db, BY, other.keyId);
  const statuses = [];
  for (let i = 0; i < 110; i += 1)
    statuses.push((await other.get('/api/v1/credits')).status);
  t.deepEqual(statuses, [...Array(100).fill(403), ...Array(10).fill(429)]);
  await reactivateKey(own.db, BY, other.keyId);
  t.is(
    (await other.get('/api/v1/credits')).status,
    429,
    'nobody asked what became of the key',
  );
  t.is((await known.get('/api/v1/credits')).status, 200);
  await own.stop();
});

// Fails without `createAddressOf` of api/http/overload.ts.
test("only trusted proxies may set the client's IP address by X-Forwarded-For", async (t) => {
  const [behind, open] = [
    await startApi({ trustedProxies: ['127.0.0.0/8', '10.0.0.0/8'] }),
    await startApi(),
  ];
  const knock = async ({ baseUrl }: Api, forwarded: string) => {
    const headers = { 'x-forwarded-for': forwarded };
    return (await fetch(`${baseUrl}/api/v1/credits`, { headers })).status;
  };
  for (let i = 0; i < 100; i += 1) {
    t.is(await knock(behind, `198.51.100.${i}, 203.0.113.7, 10.0.0.1`), 401);
    t.is(await knock(open, `198.51.100.${i}`), 401);
  }
  t.is(await knock(behind, '203.0.113.7'), 429);
  t.is(await knock(behind, '203.0.113.7, 203.0.113.8'), 401);
  t.is(await knock(open, '203.0.113.8'), 429);
  await behind.stop();
  await open.stop();
});

/** Keeps an organization's submits from ending until the returned function is called. */
async function holdBalance({ organizationId }: ApiClient): Promise<() => Promise<void>> {
  const { promise: released, resolve: release } = Promise.withResolvers<void>();
  const { promise: held, resolve: isHeld } = Promise.withResolvers<void>();
  const holding = sql.begin(async (tx) => {
    await tx`select 1 from credit_balances where organization_id = ${organizationId} for update`;
    isHeld();
    await released;
  });
  await held;
  return async () => {
    release();
    await holding;
  };
}

/** Submits like a client that does not retry. */
const submitOnce = ({ baseUrl }: Pick<Api, 'baseUrl'>, { apiKey }: ApiClient) =>
  fetch(`${baseUrl}/api/v1/email`, {
    method: 'POST',
    headers: { 'x-api-key': apiKey, 'content-type': 'application/json' },
    body: '{"npi":"2000000010"}',
  });

const codeOf = async (reply: Response) => ((await reply.json()) as { code: string }).code;

// Fails without `maxPerClient` and `maxRunningPerClient` of the writes in api/http/turn-queue.ts,
// and unless `enterQueue` comes before `countRequest`.
test.serial(
  "an organization's submits wait in a short queue, and those beyond it get a 429",
  async (t) => {
    const [client, other] = [await api.organization(0, 150), await api.organization()];
    const release = await holdBalance(client);
    const statuses: number[] = [];
    const pending = Array.from({ length: 120 }, async () => {
      const reply = await submitOnce(api, client);
      statuses.push(reply.status);
      return reply;
    });
    // The queue of a client has 100 places.
    await eventually(async () => statuses.length === 20 || null);
    t.deepEqual([...new Set(statuses)], [429]);
    const refused = await Promise.race(pending);
    t.is(await codeOf(refused), 'too_many_at_once');
    t.regex(refused.headers.get('retry-after') ?? '', /^[1-9]$/);
    t.is(refused.headers.get('ratelimit'), null);
    const [waiting] = await sql`
    select count(*)::int as n from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%credit_balances%'`;
    t.true(waiting?.n <= 2, `${waiting?.n} connections wait`);
    t.is((await submitOnce(api, other)).status, 202);
    await release();
    await Promise.all(pending);
    // The client has no credits, so that its turns are short.
    t.deepEqual([...new Set(statuses.slice(20))], [402]);
    const [hits] =
      await sql`select sum(n)::int as n from rate_windows, unnest(counts) n where api_key_id = ${client.keyId}`;
    t.is(hits?.n, 100);
  },
);

// Fails without `maxTotal` in api/http/turn-queue.ts.
test.serial(
  'if too many submits of all organizations wait, the next one gets a 503 at once',
  async (t) => {
    const own = await startApi({ databaseUrl, databasePool: 1 });
    const clients = await Promise.all([
      own.organization(),
      own.organization(),
      own.organization(),
    ]);
    const releases = await Promise.all(clients.map(holdBalance));
    const pending = clients.flatMap((client) =>
      Array.from({ length: 50 }, () => submitOnce(own, client)),
    );
    const refused = await Promise.any(
      pending.map((one) =>
        one.then((reply) => (reply.status === 503 ? reply : Promise.reject())),
      ),
    );
    t.is(await codeOf(refused), 'overloaded');
    t.regex(refused.headers.get('retry-after') ?? '', /^[1-9]$/);
    for (const release of releases) await release();
    const statuses = new Set((await Promise.all(pending)).map(({ status }) => status));
    t.deepEqual([...statuses].sort(), [202, 503]);
    await own.stop();
  },
);

// Fails without `whenOver` in `enterQueue` of api/http/auth.ts.
test('a client that disconnects while its API key is looked up leaves the submit queue', async (t) => {
  const own = await startApi();
  const client = await own.organization(1000, 1000);
  await transaction(own.db, async (tx) => {
    await tx.execute(query`lock table api_keys in access exclusive mode`);
    const sockets = Array.from({ length: 100 }, () =>
      connect(Number(own.port), '127.0.0.1'),
    );
    for (const socket of sockets) {
      socket.write('GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n');
      await once(socket, 'data');
      socket.write(
        `POST /api/v1/email HTTP/1.1\r\nHost: x\r\nX-API-Key: ${client.apiKey}\r\nContent-Length: 1\r\n\r\n`,
      );
    }
    // A response means that the API has read the requests sent before it, and the second one that
    // it has seen the ends.
    await fetch(`${own.baseUrl}/healthz`);
    for (const socket of sockets) await once(socket.destroy(), 'close');
    await fetch(`${own.baseUrl}/healthz`);
  });
  const replies = await Promise.all(
    Array.from({ length: 20 }, () => submitOnce(own, client)),
  );
  t.deepEqual([...new Set(replies.map(({ status }) => status))], [202]);
  await own.stop();
});

// Fails without `nextLookAt` of api/routes/service.ts, because each request would hold a
// connection. Also fails without the race there.
test.serial(
  'concurrent readiness checks share one query and respond even if PostgreSQL hangs',
  async (t) => {
    const client = await api.organization();
    const ask = async () => (await fetch(`${api.baseUrl}/readyz`)).text();
    t.is(await ask(), '{"status":"ready"}');
    const { promise: released, resolve: release } = Promise.withResolvers<void>();
    const { promise: held, resolve: isHeld } = Promise.withResolvers<void>();
    const holding = sql.begin(async (tx) => {
      await tx`lock table drizzle.__drizzle_migrations in access exclusive mode`;
      isHeld();
      await released;
    });
    await held;
    const asked = Array.from({ length: 100 }, ask);
    // While all of them wait, the pool of 20 still has free connections.
    for (let i = 0; i < 20; i += 1)
      t.is((await client.get('/api/v1/credits')).status, 200);
    // If the responses waited for the query to end, they would say database_away.
    t.deepEqual([...new Set(await Promise.all(asked))], ['{"status":"ready"}']);
    const away = '{"status":"database_away"}';
    t.is(await eventually(async () => ((await ask()) === away ? away : null)), away);
    release();
    await holding;
    t.truthy(
      await eventually(async () =>
        (await ask()) === '{"status":"ready"}' ? true : null,
      ),
    );
  },
);
