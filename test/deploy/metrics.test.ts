import test from 'ava';
import { sql } from 'drizzle-orm';
import { openDatabase } from '../../db/client.ts';
import type { ConfiguredSource } from '../../db/figures.ts';
import { freePort } from '../../deploy/local/processes.ts';
import { createLog } from '../../deploy/log.ts';
import { figuresOf, serveMetrics } from '../../deploy/metrics.ts';
import { fresh } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { startApiProcess, workerProcesses } from '../support/programs.ts';
import { startStack } from '../support/stack.ts';
import { closedUrl, createScriptedVendor, foundStep } from '../support/vendors.ts';

// What Prometheus reads of the service, over HTTP. The counters are of this process, which is all of it: what a test
// compares is what they have grown by.

const [FOUND, NOBODY, TROUBLE] = ['2000000010', '2000000028', '2000000036'] as const;
const CANARY = 'canary-7f3a';

const vendor = createScriptedVendor('good');
const broken = createScriptedVendor('bad');
const stack = fresh(test, () => startStack({ providers: [vendor, broken] }));
const workers = fresh(test, async () => workerProcesses());
const SOURCES: readonly ConfiguredSource[] = [
  { kind: 'vendor', source: 'good', dailyCredits: 500 },
  { kind: 'vendor', source: 'bad', dailyCredits: null },
];

/** Samples by their name and labels, as they stand in the text. */
type Samples = Readonly<Record<string, number>>;

function parse(text: string): Samples {
  const lines = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  return Object.fromEntries(
    lines.map((line) => [
      line.slice(0, line.lastIndexOf(' ')),
      Number(line.slice(line.lastIndexOf(' ') + 1)),
    ]),
  );
}

/** One look at `/metrics`, with figures that are of now. */
async function scrape(db = stack.workerDb): Promise<string> {
  const parts = [figuresOf(db, SOURCES, createLog('test', 'silent'))];
  const server = await serveMetrics({ metricsHost: '127.0.0.1', metricsPort: 0 }, db, { parts, health: {} });
  const address = server?.address();
  if (!server || typeof address !== 'object') throw new Error('nobody listens');
  try {
    return await (await fetch(`http://127.0.0.1:${address?.port}/metrics`)).text();
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

/** What has changed since an earlier look. */
async function grown(before: Samples): Promise<Samples> {
  const after = Object.entries(parse(await scrape()));
  return Object.fromEntries(after.map(([name, value]) => [name, value - (before[name] ?? 0)]));
}

test.serial('after a batch the figures say what happened, each thing once', async (t) => {
  const client = await stack.organization(10);
  vendor.script(FOUND, () => foundStep(FOUND));
  broken.script(TROUBLE, () => ({ kind: 'fatal', why: 'plan' }));
  const before = parse(await scrape());
  const body = {
    npis: [FOUND, FOUND, NOBODY, TROUBLE, '1234567890'],
    webhook: { url: `${stack.receiver.url}/metrics` },
  };
  const key = { 'idempotency-key': 'metrics' };
  const { json } = await client.bulk(body, key);
  await client.bulk(body, key);
  await client.completed(json.batch_id);
  await eventually(async () => (stack.receiver.deliveries().length < 5 ? null : true));
  const now = await eventually(async () => {
    const figures = await grown(before);
    return figures['npe_delivery_attempts_total{outcome="delivered"}'] === 5 ? figures : null;
  });
  const settled = (labels: string) => now[`npe_requests_settled_total{${labels},sandbox="false"}`];
  t.like(now, {
    'npe_submits_total{kind="bulk",answer="new"}': 1,
    'npe_submits_total{kind="bulk",answer="repeat"}': 1,
    'npe_requests_submitted_total{wanted_type="any",sandbox="false"}': 5,
    'npe_request_duration_seconds_count{status="completed"}': 2,
    'npe_credits_total{movement="hold"}': 5,
    'npe_credits_total{movement="charge"}': 1,
    'npe_credits_total{movement="release"}': 4,
    'npe_source_calls_total{kind="vendor",source="good",answer="found"}': 1,
    'npe_source_calls_total{kind="vendor",source="bad",answer="plan"}': 1,
    'npe_delivery_attempt_duration_seconds_count{outcome="delivered"}': 5,
    'npe_http_request_duration_seconds_count{route="/api/v1/email/bulk",method="post",status="202"}': 2,
  });
  t.is(settled('status="completed",email_type="professional",replayed="false"'), 1);
  t.is(settled('status="completed",email_type="professional",replayed="true"'), 1);
});

test.serial('what a sandbox does is told apart, and moves no credits', async (t) => {
  const sandbox = await stack.sandboxOf(await stack.organization(10));
  const before = parse(await scrape());
  const { json } = await sandbox.single({ npi: FOUND }, { 'test-outcome': 'professional' });
  await sandbox.completed(json.batch_id);
  const now = await grown(before);
  t.is(now['npe_requests_submitted_total{wanted_type="any",sandbox="true"}'], 1);
  const settled = 'status="completed",email_type="professional",replayed="false",sandbox="true"';
  t.is(now[`npe_requests_settled_total{${settled}}`], 1);
  const moved = Object.entries(now).filter(([name]) =>
    /^npe_(credits_total|request_duration_seconds_count|credits_balance)/.test(name),
  );
  t.true(moved.length >= 6);
  t.deepEqual([...new Set(moved.map(([, value]) => value))], [0]);
});

test.serial(
  'a source that refuses shows as an open breaker, and what it cost beside its limit',
  async (t) => {
    const figures = parse(await scrape());
    const breaker = (source: string, state: string) =>
      figures[`npe_source_breaker{kind="vendor",state="${state}",source="${source}"}`];
    t.deepEqual(
      ['closed', 'half_open', 'open'].map((state) => [breaker('good', state), breaker('bad', state)]),
      [
        [1, 0],
        [0, 0],
        [0, 1],
      ],
    );
    t.is(figures['npe_source_budget_credits{what="limit",source="good"}'], 500);
    t.true((figures['npe_source_budget_credits{what="used",source="good"}'] ?? 0) > 0);
    t.false('npe_source_budget_credits{what="limit",source="bad"}' in figures);
  },
);

test.serial('nothing that others wrote is in the text, whatever they write', async (t) => {
  const client = await stack.organization(10);
  await stack.db.drizzle.execute(
    sql`update organizations set name = ${CANARY} where id = ${client.organizationId}`,
  );
  vendor.script(NOBODY, () => ({ kind: 'miss', reason: CANARY }));
  broken.script(NOBODY, () => ({ kind: 'fatal', why: 'protocol', field: CANARY }));
  const submitted = await client.single({
    npi: NOBODY,
    webhook: { url: `https://${CANARY}.test/${CANARY}` },
  });
  await client.completed(submitted.json.batch_id);
  await eventually(async () => /_attempts_total\{outcome="dns_\w+"\} 1/.test(await scrape()) || null);
  const ask = async (paths: readonly string[]) => {
    for (const path of paths) await client.call('GET', path, undefined, { 'x-request-id': CANARY });
    return await scrape();
  };
  await ask([`/${CANARY}`, `/api/v1/batch/${CANARY}`, `/docs/${CANARY}`, `/%00"}${CANARY}`]);
  const some = (from: number) => Array.from({ length: 50 }, (_, n) => `/${CANARY}/${from + n}`);
  const few = await ask(some(0));
  const many = await ask(some(50));
  t.regex(many, /route="\/\{any\*\}"/);
  for (const text of [CANARY, client.organizationId.slice(4), FOUND, '@']) t.false(many.includes(text), text);
  t.is(Object.keys(parse(many)).length, Object.keys(parse(few)).length);
});

test.serial(
  'a scrape is answered while PostgreSQL is away, with what is known and counted here',
  async (t) => {
    const { port, hostname } = new URL(await closedUrl());
    const db = openDatabase({
      url: `postgres://u@${hostname}:${port}/none`,
      poolSize: 1,
      applicationName: 'test',
    });
    t.teardown(() => db.close());
    const text = await scrape(db);
    t.regex(text, /^npe_figures_up 0$/m);
    t.regex(text, /^npe_credits_total\{movement="charge"\}/m);
    t.notRegex(text, /^npe_requests_open/m);
  },
);

test.serial(
  'the programs tell on a port of their own, and the worker whether it lives and can work',
  async (t) => {
    await stack.stopWorker();
    const [ofApi, ofWorker] = [await freePort(), await freePort()];
    const api = await startApiProcess(stack.databaseUrl, { METRICS_PORT: String(ofApi) });
    t.teardown(() => api.stop());
    t.teardown(() => workers.stop());
    await workers.start(stack, { METRICS_PORT: String(ofWorker) });
    const get = async (port: number, path: string) => {
      const response = await fetch(`http://127.0.0.1:${port}${path}`);
      return { status: response.status, text: await response.text() };
    };
    const client = await stack.organization(10);
    await client.completed((await client.single({ npi: FOUND })).json.batch_id);
    const [apis, workersText] = [await get(ofApi, '/metrics'), await get(ofWorker, '/metrics')];
    t.regex(
      apis.text,
      /^npe_http_request_duration_seconds_count\{route="\/healthz",method="get",status="200"\} /m,
    );
    t.notRegex(apis.text, /npe_figures_up|temporal_/);
    for (const name of [
      'nodejs_eventloop_lag_p99_seconds',
      'process_resident_memory_bytes',
      'npe_database_pool',
    ])
      t.true(apis.text.includes(`# TYPE ${name} gauge`), name);
    t.regex(workersText.text, /^npe_figures_up 1$/m);
    t.regex(workersText.text, /^temporal_num_pollers\{.*task_queue="webhooks-/m);
    t.deepEqual(await get(ofApi, '/healthz'), { status: 404, text: 'not found\n' });
    t.deepEqual(await get(ofWorker, '/healthz'), { status: 200, text: '{"status":"ok"}' });
    t.deepEqual(await get(ofWorker, '/readyz'), { status: 200, text: '{"status":"ready"}' });
  },
);
