import { server as hapiServer } from '@hapi/hapi';
import test, { type ExecutionContext } from 'ava';
import { sql } from 'drizzle-orm';
import { type Send, sendFile } from '../../api/http/file.ts';
import { createQueues } from '../../api/http/turn-queue.ts';
import { adjustCredits } from '../../db/accounts/credits.ts';
import { rotateKey } from '../../db/accounts/keys.ts';
import { run } from '../../db/connection/client.ts';
import { fresh } from '../support/database.ts';
import { BY, createCaller, eventually } from '../support/organization.ts';
import { type ApiClient, startApi } from '../support/stack.ts';

// Tests the ledger of a period, the usage by day and type, and both as files.

const LEDGER = '/api/v1/credits/ledger';
const USAGE = '/api/v1/usage';
const NPIS = ['1234567893', '1234567894', '1234567895', '1234567896'];

const api = fresh(test, startApi);

test('after a rotation, /api/v1/credits says when the old key ends', async (t) => {
  const old = await api.organization();
  const endOf = async (client: Pick<ApiClient, 'get'>) =>
    (await client.get('/api/v1/credits')).headers.get('x-api-key-expires');
  t.is(await endOf(old), null);
  const { issued, replaced } = await rotateKey(api.db, BY, old.keyId, 3_600_000);
  const ends = await eventually(() => endOf(old));
  t.is(ends, replaced.expiresAt?.toISOString() ?? '');
  t.is(await endOf(createCaller(api.baseUrl, issued.apiKey)), null);
});

interface Sums {
  readonly found: number;
  readonly replayed: number;
  readonly not_found: number;
  readonly failed: number;
  readonly credits_charged: number;
}

interface UsageView {
  readonly since: string;
  readonly until: string;
  readonly by: string;
  readonly usage: readonly (Sums & {
    readonly day: string | null;
    readonly requested_type: string | null;
  })[];
  readonly total: Sums;
}

interface LedgerView {
  readonly entries: readonly Readonly<Record<string, string | number | null>>[];
  readonly next_cursor: string | null;
}

const usageOf = async (client: ApiClient, query: string) =>
  (await client.get<UsageView>(USAGE + query)).json;
const ledgerOf = async (client: ApiClient, query: string) =>
  (await client.get<LedgerView>(LEDGER + query)).json;

type End = 'found' | 'replayed' | 'not_found' | 'failed';

/** Settles a request at a time in the past. */
async function settleAt(id: string | undefined, end: End, at: string): Promise<void> {
  const isFound = end === 'found' || end === 'replayed';
  await api.db.drizzle.execute(sql`
    update requests
       set status = ${isFound ? 'completed' : end}, settled_at = ${at}, replayed = ${end === 'replayed'},
           email = ${isFound ? 'jo@example.com' : null}, email_type = ${isFound ? 'personal' : null},
           email_last_validated_at = ${isFound ? at : null}
     where id = ${id ?? ''}`);
}

/** Opens an organization with requests of two types that became final on three days. */
async function live(): Promise<ApiClient> {
  const client = await api.organization(100);
  const [a, b, c] = (await client.bulk({ npis: NPIS })).json.requests;
  const personal = { npis: NPIS.slice(0, 2), enrichment_email_type: 'personal' };
  const [e, f] = (await client.bulk(personal)).json.requests;
  await settleAt(a?.request_id, 'found', '2026-01-05T00:00:00Z');
  await settleAt(b?.request_id, 'not_found', '2026-01-05T23:59:59.999Z');
  await settleAt(c?.request_id, 'replayed', '2026-01-06T12:00:00Z');
  await settleAt(e?.request_id, 'found', '2026-01-06T12:00:00Z');
  await settleAt(f?.request_id, 'failed', '2026-02-01T00:00:00Z');
  return client;
}

const sums = (...[found, replayed, not_found, failed, credits_charged]: number[]) => ({
  found,
  replayed,
  not_found,
  failed,
  credits_charged,
});

test('usage sums the final requests of each UTC day, and of each requested type', async (t) => {
  const client = await live();
  const period = '?since=2026-01-01T00:00:00Z&until=2026-03-01T00:00:00Z';
  const total = sums(2, 1, 1, 1, 4);
  const [since, until] = ['2026-01-01T00:00:00.000Z', '2026-03-01T00:00:00.000Z'];
  t.deepEqual(await usageOf(client, period), {
    since,
    until,
    by: 'day',
    usage: [
      { day: '2026-01-05', requested_type: null, ...sums(1, 0, 1, 0, 1) },
      { day: '2026-01-06', requested_type: null, ...sums(1, 1, 0, 0, 3) },
      { day: '2026-02-01', requested_type: null, ...sums(0, 0, 0, 1, 0) },
    ],
    total,
  });
  t.deepEqual(await usageOf(client, `${period}&by=type`), {
    since,
    until,
    by: 'type',
    usage: [
      { day: null, requested_type: 'any', ...sums(1, 1, 1, 0, 1) },
      { day: null, requested_type: 'personal', ...sums(1, 0, 0, 1, 3) },
    ],
    total,
  });
});

test('the period of usage is rounded to UTC days, and begins with a month by default', async (t) => {
  const client = await live();
  const periods = [
    [
      '?since=2026-01-05T00:00:00Z&until=2026-01-06T00:00:00Z',
      '2026-01-05',
      '2026-01-06',
    ],
    [
      '?since=2026-01-05T23:59:59Z&until=2026-01-06T00:00:01Z',
      '2026-01-05',
      '2026-01-07',
    ],
    [
      '?since=2026-01-06T01:00:00%2B02:00&until=2026-01-06T00:00:00Z',
      '2026-01-05',
      '2026-01-06',
    ],
    ['?until=2026-02-01T00:00:00Z', '2026-01-01', '2026-02-01'],
    ['?until=2026-02-01T00:00:01Z', '2026-02-01', '2026-02-02'],
  ];
  const days: (readonly (string | null)[])[] = [];
  for (const [query = '', since, until] of periods) {
    const usage = await usageOf(client, query);
    const midnight = 'T00:00:00.000Z';
    t.is(usage.since, `${since}${midnight}`, query);
    t.is(usage.until, `${until}${midnight}`, query);
    days.push(usage.usage.map(({ day }) => day?.slice(5) ?? null));
  }
  t.deepEqual(days, [
    ['01-05'],
    ['01-05', '01-06'],
    ['01-05'],
    ['01-05', '01-06'],
    ['02-01'],
  ]);
  const { since, until, total } = await usageOf(client, '');
  const now = Date.now();
  t.true(Date.parse(until) >= now && Date.parse(until) <= now + 86_400_000);
  const lastDay = new Date(Date.parse(until) - 1).toISOString();
  t.is(since, `${lastDay.slice(0, 7)}-01T00:00:00.000Z`);
  t.deepEqual(total, sums(0, 0, 0, 0, 0));
});

test('usage of more than 366 days is rejected, and the error says what to do', async (t) => {
  const client = await api.organization();
  const ask = (until: string) =>
    client.get<{ detail: unknown }>(`${USAGE}?since=2024-01-01T00:00:00Z&until=${until}`);
  t.is((await ask('2025-01-01T00:00:00Z')).status, 200, 'a leap year');
  const { status, json } = await ask('2025-01-01T00:00:01Z');
  t.is(status, 422);
  t.deepEqual(json.detail, [
    {
      loc: ['query', 'since'],
      msg: 'Period has more than 366 days. Choose a later since or an earlier until, and read the rest separately',
      type: 'period_too_long',
    },
  ]);
});

test('usage is a CSV file for format=csv', async (t) => {
  const client = await live();
  const period = '?format=csv&since=2026-01-06T00:00:00Z&until=2026-03-01T00:00:00Z';
  const byDay = await client.get(USAGE + period);
  t.is(byDay.headers.get('content-type'), 'text/csv; charset=utf-8');
  t.is(byDay.headers.get('content-disposition'), 'attachment; filename="usage.csv"');
  const lines = [
    'day,found,replayed,not_found,failed,credits_charged',
    '2026-01-06,1,1,0,0,3',
    '2026-02-01,0,0,0,1,0',
    '',
  ];
  t.is(byDay.text, lines.join('\r\n'));
  const byType = await client.get(`${USAGE}${period}&by=type`);
  t.is(
    byType.text.split('\r\n')[0],
    'requested_type,found,replayed,not_found,failed,credits_charged',
  );
});

test('ledger entries name the batch, NPI, and requested type of their request', async (t) => {
  const client = await api.organization(10);
  const submit = { npi: NPIS[0], enrichment_email_type: 'personal' };
  const { batch_id } = (await client.single(submit)).json;
  const [hold, grant] = (await ledgerOf(client, '')).entries;
  t.like(hold, { reason: 'hold', batch_id, npi: NPIS[0], requested_type: 'personal' });
  t.like(grant, { reason: 'grant', batch_id: null, npi: null, requested_type: null });
});

test('entries in a period of the ledger have the balances of the whole ledger', async (t) => {
  const client = await api.organization(10);
  for (const npi of NPIS) await client.single({ npi });
  await adjustCredits(api.db, BY, client.organizationId, -1);
  // Each entry gets a day of January 2026, because they are only milliseconds apart.
  await api.db.drizzle.transaction(async (tx) => {
    await tx.execute(sql`set local session_replication_role = replica`);
    await tx.execute(sql`
      update ledger_entries l set created_at = timestamptz '2026-01-01Z' + n * interval '1 day'
        from (select id, row_number() over (order by id) as n from ledger_entries
               where organization_id = ${client.organizationId}) o
       where l.id = o.id`);
  });
  const all = (await ledgerOf(client, '')).entries;
  t.deepEqual(
    all.map(({ balance_after }) => balance_after),
    [5, 6, 7, 8, 9, 10],
  );
  const [since, until] = ['since=2026-01-03T00:00:00Z', 'until=2026-01-06T00:00:00Z'];
  t.deepEqual((await ledgerOf(client, `?${since}`)).entries, all.slice(0, 5));
  t.deepEqual((await ledgerOf(client, `?${until}`)).entries, all.slice(2));
  t.deepEqual((await ledgerOf(client, `?${since}&${until}`)).entries, all.slice(2, 5));
  const first = await ledgerOf(client, `?${since}&${until}&limit=2`);
  t.deepEqual(first.entries, all.slice(2, 4));
  const cursor = `&cursor=${first.next_cursor}`;
  const second = await ledgerOf(client, `?${since}&${until}&limit=2${cursor}`);
  t.deepEqual(second, { entries: all.slice(4, 5), next_cursor: null });
});

test('the ledger is one CSV file for format=csv, whatever its limit', async (t) => {
  const client = await live();
  const { entries } = await ledgerOf(client, '?limit=100');
  const file = await client.get(`${LEDGER}?format=csv&limit=1`);
  t.is(file.headers.get('content-disposition'), 'attachment; filename="ledger.csv"');
  const columns =
    'created_at,reason,amount,balance_after,request_id,batch_id,npi,requested_type'.split(
      ',',
    );
  const lines = entries.map((entry) =>
    columns.map((column) => entry[column] ?? '').join(','),
  );
  t.is(file.text, [columns.join(','), ...lines, ''].join('\r\n'));
  t.is(lines.length, 12);
});

test('a CSV file of more than 100,000 ledger entries is rejected', async (t) => {
  const client = await api.organization(1);
  const add = (count: number) =>
    api.db.drizzle.execute(sql`
      insert into ledger_entries (organization_id, kind, amount, created_at)
      select ${client.organizationId}, 'grant', 1, '2026-01-05' from generate_series(1, ${count}::int)`);
  await add(99_999);
  const file = await client.get(`${LEDGER}?format=csv`);
  t.is(file.text.split('\r\n').length, 100_002);
  await add(1);
  const tooLong = await client.get<{ detail: unknown }>(`${LEDGER}?format=csv`);
  t.is(tooLong.status, 422);
  t.like(tooLong.json.detail, [{ loc: ['query', 'since'], type: 'period_too_long' }]);
  const month = '&since=2026-01-06T00:00:00Z';
  t.is((await client.get(`${LEDGER}?format=csv${month}`)).status, 200);
});

/** Adds grants, so that a file has 6 MB. A socket buffers 4 MB for a client that does not read. */
async function addEntries({ organizationId }: ApiClient): Promise<void> {
  await api.db.drizzle.execute(sql`
    insert into ledger_entries (organization_id, kind, amount)
    select ${organizationId}, 'grant', 1000000000 from generate_series(1, 99000)`);
}

/** Begins to read the file, and returns when the cursor waits for the client. */
async function beginFile({ apiKey }: ApiClient, { baseUrl } = api) {
  const abort = new AbortController();
  const headers = { authorization: `Bearer ${apiKey}`, 'accept-encoding': 'identity' };
  const url = `${baseUrl}${LEDGER}?format=csv`;
  const response = await fetch(url, { headers, signal: abort.signal });
  const [pid] = await eventually(waitingCursors);
  return { response, pid, abort: () => abort.abort() };
}

/** Returns the processes of PostgreSQL whose cursor waits for a client, or null. */
async function waitingCursors(): Promise<readonly number[] | null> {
  const rows = await run<{ readonly pid: number }>(api.db)`
    select pid from pg_stat_activity
     where datname = current_database() and state = 'idle in transaction'
       and query like 'fetch %' and clock_timestamp() - state_change > interval '0.5 s'`;
  return rows.length === 0 ? null : rows.map(({ pid }) => pid);
}

test.serial(
  'a customer gets one file at a time, and stopping it frees the cursor',
  async (t) => {
    const client = await api.organization(1);
    await addEntries(client);
    const file = await beginFile(client);
    t.is(file.response.status, 200);
    const sandbox = await api.sandboxOf(client);
    const refused = await sandbox.get(`${LEDGER}?format=csv`);
    t.like(refused, { status: 429, json: { code: 'too_many_files' } });
    t.is(refused.headers.get('retry-after'), '5');
    t.is((await client.get(LEDGER)).status, 200);
    t.is((await (await live()).get(`${LEDGER}?format=csv`)).status, 200);
    file.abort();
    await eventually(async () => ((await waitingCursors()) === null ? true : null));
    await eventually(async () => {
      const { status } = await sandbox.get(`${LEDGER}?format=csv`);
      return status === 200 ? true : null;
    });
  },
);

test.serial('a file that is cut off ends its connection', async (t) => {
  const client = await api.organization(1);
  await addEntries(client);
  const { response, pid } = await beginFile(client);
  await run(api.db)`select pg_terminate_backend(${pid}::int)`;
  await t.throwsAsync(response.text());
  t.is((await client.get(LEDGER)).status, 200);
});

test.serial(
  'only a few customers get files at once, so that connections are left',
  async (t) => {
    const own = await startApi({ databaseUrl: api.databaseUrl, databasePool: 5 });
    t.teardown(own.stop);
    const client = await own.organization(1);
    await addEntries(client);
    const file = await beginFile(client, own);
    const other = await own.organization(1);
    const refused = await other.get(`${LEDGER}?format=csv`);
    t.like(refused, { status: 429, json: { code: 'too_many_files' } });
    file.abort();
  },
);

/** Serves an endless file, which clients have only a moment to read. */
async function serveEndlessFile(t: ExecutionContext) {
  const customerId = 'customer';
  const caller = {
    organizationId: customerId,
    customerId,
    keyId: '',
    keyName: 'test',
    role: 'full' as const,
    requestsPerMinute: 1,
  };
  const queues = createQueues(5);
  const { promise: ended, resolve: end } = Promise.withResolvers<void>();
  const read = async (send: Send) => {
    try {
      for (;;) await send('x'.repeat(100_000));
    } finally {
      end();
    }
  };
  const server = hapiServer({ host: '127.0.0.1' });
  t.teardown(() => server.stop({ timeout: 0 }));
  server.app.queues = queues;
  server.route({
    method: 'GET',
    path: '/',
    handler: (request, h) => {
      request.app.caller = caller;
      return sendFile(request, h, 'filename="a.csv"', read, 100);
    },
  });
  await server.start();
  const isFree = async () => {
    try {
      return queues.files.enter(customerId);
    } catch {
      return null;
    }
  };
  return { url: server.info.uri, ended, isFree };
}

test('a client that reads nothing of a file is disconnected and can read another', async (t) => {
  const { url, ended, isFree } = await serveEndlessFile(t);
  const client = async () => {
    const response = await fetch(url);
    await ended;
    await response.text();
  };
  await t.throwsAsync(client);
  t.truthy(await eventually(isFree));
});

test('a client that reads too slowly is disconnected and can read another', async (t) => {
  const { url, isFree } = await serveEndlessFile(t);
  const client = async () => (await fetch(url)).text();
  await t.throwsAsync(client);
  t.truthy(await eventually(isFree));
});
