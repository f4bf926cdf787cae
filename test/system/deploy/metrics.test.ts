import { readFile } from 'node:fs/promises';
import { isDeepStrictEqual } from 'node:util';
import { Client, Connection } from '@temporalio/client';
import test from 'ava';
import { sql } from 'drizzle-orm';
import { startNewBatch } from '../../../api/temporal.ts';
import { openDatabase } from '../../../db/connection/client.ts';
import { newId } from '../../../db/connection/ids.ts';
import { countCall } from '../../../db/operations/metrics.ts';
import type { StatsRules } from '../../../db/operations/stats.ts';
import { settle } from '../../../db/requests/settle.ts';
import { createLog } from '../../../deploy/log.ts';
import { healthOf, serveMetrics, statsOf } from '../../../deploy/metrics.ts';
import { freePort, LOOPBACK } from '../../../deploy/ports.ts';
import { checkLostBatches, checkLostResults } from '../../../deploy/temporal/doctor.ts';
import manifest from '../../../package.json' with { type: 'json' };
import { fresh } from '../../support/database.ts';
import { eventually, RULES } from '../../support/organization.ts';
import { startApiProcess, workerProcesses } from '../../support/programs.ts';
import { startStack } from '../../support/stack.ts';
import {
  closedUrl,
  createScriptedVendor,
  foundStep,
  heldScript,
} from '../../support/vendors.ts';

// Tests the metrics that Prometheus reads over HTTP. This process has all counters of the service,
// so tests compare how much they have grown.

const [FOUND, NOBODY, TROUBLE] = ['2000000010', '2000000028', '2000000036'] as const;
const CANARY = 'canary-7f3a';

/**
 * Metrics of the SDK: those that every worker has, and those that only appear with a
 * `failure_reason` or `status_code` after a failure.
 */
const OF_TEMPORAL = [
  'temporal_worker_task_slots_available',
  'temporal_worker_task_slots_used',
  'temporal_workflow_task_schedule_to_start_latency_seconds',
  'temporal_activity_schedule_to_start_latency_seconds',
  'temporal_sticky_cache_size',
];
const IN_TROUBLE = [
  'temporal_request_failure_total',
  'temporal_long_request_failure_total',
  'temporal_workflow_task_execution_failed_total',
];

const vendor = createScriptedVendor('good');
const broken = createScriptedVendor('bad');
const lines: string[] = [];
const stack = fresh(test, () =>
  startStack({ providers: [vendor, broken], onLog: (line) => lines.push(line) }),
);
const workers = fresh(test, async () => workerProcesses());
const STATS_RULES: StatsRules = {
  sources: [
    ['vendor', 'good', 500],
    ['vendor', 'bad', null],
  ],
  webhookScheduleMs: [0],
};

/** Samples by name and labels, as in the text. */
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

type Told = Partial<
  Readonly<{
    readiness: () => Promise<string>;
    parts: (() => Promise<string>)[];
    health: ReturnType<typeof healthOf>;
  }>
>;

/** Requests a path from a metrics port. */
async function ask(
  { readiness = async () => 'ready', parts, health }: Told,
  path: string,
) {
  const place = { metricsHost: LOOPBACK, metricsPort: 0 };
  const server = await serveMetrics(place, stack.workerDb, readiness, parts, health);
  const address = server?.address();
  if (!server || typeof address !== 'object') throw new Error('nobody listens');
  try {
    return await get(address?.port ?? 0, path);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

async function get(port: number, path: string) {
  const response = await fetch(`http://${LOOPBACK}:${port}${path}`);
  return { status: response.status, text: await response.text() };
}

/** Reads the metrics once, with new stats. */
async function scrape(): Promise<string> {
  const parts = [statsOf(stack.workerDb, STATS_RULES, createLog('test', 'silent'))];
  return (await ask({ parts }, '/metrics')).text;
}

/** Returns how much each sample has grown since an earlier scrape. */
async function grown(before: Samples): Promise<Samples> {
  const after = Object.entries(parse(await scrape()));
  return Object.fromEntries(
    after.map(([name, value]) => [name, value - (before[name] ?? 0)]),
  );
}

test.serial('the metrics count each event of a batch exactly once', async (t) => {
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
    const stats = await grown(before);
    return stats['npe_delivery_attempts_total{outcome="delivered"}'] === 5 ? stats : null;
  });
  const settled = (labels: string) =>
    now[`npe_requests_settled_total{${labels},sandbox="false"}`];
  t.like(now, {
    'npe_submits_total{kind="bulk",result="new"}': 1,
    'npe_submits_total{kind="bulk",result="repeat"}': 1,
    'npe_requests_submitted_total{requested_type="any",sandbox="false"}': 5,
    'npe_request_duration_seconds_count{status="completed"}': 2,
    'npe_credits_total{movement="hold"}': 5,
    'npe_credits_total{movement="charge"}': 1,
    'npe_credits_total{movement="release"}': 4,
    'npe_source_calls_total{kind="vendor",source="good",result="found"}': 1,
    'npe_source_calls_total{kind="vendor",source="bad",result="plan"}': 1,
    'npe_delivery_attempt_duration_seconds_count{outcome="delivered"}': 5,
    'npe_http_request_duration_seconds_count{route="/api/v1/email/bulk",method="post",status="202"}': 2,
  });
  t.is(settled('status="completed",email_type="professional",replayed="false"'), 1);
  t.is(settled('status="completed",email_type="professional",replayed="true"'), 1);
});

test.serial(
  'a vendor call that could not connect is counted with its cause',
  async (t) => {
    const before = parse(await scrape());
    const step = {
      kind: 'retry',
      why: 'unsent',
      cause: 'CERT_HAS_EXPIRED',
      afterMs: null,
    } as const;
    await countCall('registry', 'registry', Promise.resolve(step));
    const name =
      'npe_source_calls_total{kind="registry",source="registry",result="unsent",cause="CERT_HAS_EXPIRED"}';
    t.is((await grown(before))[name], 1);
  },
);

test.serial('settling a request twice counts it only once', async (t) => {
  const client = await stack.organization(10);
  const { json } = await client.single({ npi: TROUBLE });
  await client.completed(json.batch_id);
  const before = parse(await scrape());
  const [{ request_id: id } = { request_id: '' }] = json.requests;
  t.false((await settle(stack.workerDb, id, 'finished', 'test', RULES)).settledNow);
  const now = Object.entries(await grown(before));
  const settled = now.filter(([name]) =>
    /^npe_(requests_settled|credits)_total/.test(name),
  );
  t.true(settled.length > 2);
  t.deepEqual([...new Set(settled.map(([, value]) => value))], [0]);
});

test.serial(
  'the time that a client asked the API to wait does not count as response time',
  async (t) => {
    const sandbox = await stack.sandboxOf(await stack.organization(10));
    const { json } = await sandbox.single({ npi: FOUND }, { 'test-outcome': 'deadline' });
    const seconds =
      'npe_http_request_duration_seconds_sum{route="/api/v1/batch/{batch_id}",method="get",status="200"}';
    const before = parse(await scrape());
    const { headers } = await sandbox.get(`/api/v1/batch/${json.batch_id}`, {
      prefer: 'wait=3',
    });
    t.is(headers.get('preference-applied'), 'wait=3');
    const took = await eventually(async () => (await grown(before))[seconds] || null);
    t.true(took < 3, `${took} s`);
  },
);

test.serial(
  'sandbox requests are counted separately, and not in the metrics of credits',
  async (t) => {
    const sandbox = await stack.sandboxOf(await stack.organization(10));
    const before = parse(await scrape());
    const { json } = await sandbox.single(
      { npi: FOUND },
      { 'test-outcome': 'professional' },
    );
    await sandbox.completed(json.batch_id);
    const now = await grown(before);
    t.is(now['npe_requests_submitted_total{requested_type="any",sandbox="true"}'], 1);
    const settled =
      'status="completed",email_type="professional",replayed="false",sandbox="true"';
    t.is(now[`npe_requests_settled_total{${settled}}`], 1);
    const moved = Object.entries(now).filter(([name]) =>
      /^npe_(credits_total|request_duration_seconds_count|credits_balance)/.test(name),
    );
    t.true(moved.length >= 6);
    t.deepEqual([...new Set(moved.map(([, value]) => value))], [0]);
  },
);

test.serial(
  "metrics show each source's breaker and its spending next to its daily limit",
  async (t) => {
    const stats = parse(await scrape());
    const breaker = (source: string, state: string) =>
      stats[`npe_source_breaker{kind="vendor",state="${state}",source="${source}"}`];
    t.deepEqual(
      ['closed', 'half_open', 'open'].map((state) => [
        breaker('good', state),
        breaker('bad', state),
      ]),
      [
        [1, 0],
        [0, 0],
        [0, 1],
      ],
    );
    t.is(stats['npe_source_budget_credits{what="limit",source="good"}'], 500);
    t.true((stats['npe_source_budget_credits{what="used",source="good"}'] ?? 0) > 0);
    t.false('npe_source_budget_credits{what="limit",source="bad"}' in stats);
  },
);

test.serial(
  'metrics contain no text from users, vendors, or webhook receivers',
  async (t) => {
    const client = await stack.organization(10);
    await stack.db.drizzle.execute(
      sql`update organizations set name = ${CANARY} where id = ${client.organizationId}`,
    );
    const [missed, unread] = ['2000000069', '2000000077'] as const;
    vendor.script(missed, () => ({ kind: 'miss', reason: CANARY }));
    vendor.script(unread, () => ({ kind: 'fatal', why: 'protocol', field: CANARY }));
    const webhook = { url: `https://${CANARY}.test/${CANARY}`, mode: 'batch' };
    const submitted = await client.bulk({ npis: [missed, unread], webhook });
    await client.completed(submitted.json.batch_id);
    await eventually(
      async () =>
        /_attempts_total\{outcome="dns_\w+"\} [1-9]/.test(await scrape()) || null,
    );
    const look = async (paths: readonly string[]) => {
      for (const path of paths)
        await client.call('GET', path, undefined, { 'x-request-id': CANARY });
      return await scrape();
    };
    await look([
      `/${CANARY}`,
      `/api/v1/batch/${CANARY}`,
      `/docs/${CANARY}`,
      `/%00"}${CANARY}`,
    ]);
    const some = (from: number) =>
      Array.from({ length: 50 }, (_, n) => `/${CANARY}/${from + n}`);
    const few = await look(some(0));
    const many = await look(some(50));
    t.regex(many, /route="\/\{any\*\}"/);
    t.regex(many, /source="good",result="protocol"/);
    for (const text of [CANARY, client.organizationId.slice(4), FOUND, '@'])
      t.false(many.includes(text), text);
    // Compares only metrics of requests, because the worker may add other series in the meantime.
    const requests = (text: string) =>
      Object.keys(parse(text)).filter((name) => name.startsWith('npe_http_'));
    t.deepEqual(requests(many), requests(few));
  },
);

test.serial(
  'database metrics are read at most every 10 s and kept while PostgreSQL is down',
  async (t) => {
    const nowhere = new URL(await closedUrl()).host;
    const away = openDatabase({
      url: `postgres://u@${nowhere}/none`,
      poolSize: 1,
      applicationName: 'test',
    });
    t.teardown(() => away.close());
    const db = { ...stack.workerDb };
    const parts = [statsOf(db, STATS_RULES, createLog('test', 'silent'))];
    const look = async () => (await ask({ parts }, '/metrics')).text;
    t.regex(await look(), /^npe_stats_up 1$/m);
    Object.assign(db, { drizzle: away.drizzle });
    t.regex(await look(), /^npe_stats_up 1$/m);
    const { now } = performance;
    performance.now = () => now.call(performance) + 10_000;
    t.teardown(() => Object.assign(performance, { now }));
    const text = await look();
    t.regex(text, /^npe_stats_up 0$/m);
    t.regex(text, /^npe_requests_open\{state="accepted"\} 0$/m);
    t.regex(text, /^npe_credits_total\{movement="charge"\}/m);
  },
);

test.serial(
  "a worker's health checks say why it cannot work, or that it is shutting down",
  async (t) => {
    const ending = new AbortController();
    const nowhere = new URL(await closedUrl()).host;
    const away = openDatabase({
      url: `postgres://u@${nowhere}/none`,
      poolSize: 1,
      applicationName: 'test',
    });
    t.teardown(() => away.close());
    const lost = new Client({ connection: Connection.lazy({ address: nowhere }) });
    t.teardown(() => lost.connection.close());
    const isNeeded = async () => false;
    const healthy = { db: stack.workerDb, client: stack.client, isPolling: () => true };
    const look = async (over: Partial<typeof healthy> = {}) => {
      const { db, client, isPolling } = { ...healthy, ...over };
      const health = healthOf(db, client, ending.signal, { isPolling, isNeeded });
      const [alive, ready] = [
        await ask({ health }, '/healthz'),
        await ask({ health }, '/readyz'),
      ];
      return [alive, ready].map(
        ({ status, text }) => `${status} ${JSON.parse(text).status}`,
      );
    };
    t.deepEqual(await look(), ['200 ok', '200 ok']);
    t.deepEqual(await look({ isPolling: () => false }), ['200 ok', '503 not_polling']);
    t.deepEqual(await look({ db: away }), ['200 ok', '503 database_away']);
    const canCommit = async () => false;
    t.deepEqual(await look({ db: { ...stack.workerDb, canCommit } }), [
      '200 ok',
      '503 commits_hang',
    ]);
    t.deepEqual(await look({ client: lost }), ['200 ok', '503 temporal_away']);
    const secretKeys = [{ version: 'v1', key: Buffer.alloc(32, 9) }];
    t.deepEqual(await look({ db: { ...stack.db, secretKeys } }), [
      '200 ok',
      '503 not_ready_for_deliveries',
    ]);
    ending.abort();
    t.deepEqual(await look(), ['503 ending', '503 ending']);
  },
);

test.serial(
  'the metric npe_ready shows whether the process can work, and why not',
  async (t) => {
    const look = async (readiness: () => Promise<string>) => {
      const { text } = await ask({ readiness }, '/metrics');
      return text.match(/^npe_ready.*$/gm);
    };
    t.deepEqual(await look(async () => 'worker_elsewhere'), [
      'npe_ready{reason="worker_elsewhere"} 0',
    ]);
    t.deepEqual(await look(async () => 'ready'), ['npe_ready{reason="ready"} 1']);
    t.deepEqual(await look(() => new Promise(() => {})), [
      'npe_ready{reason="timeout"} 0',
    ]);
  },
);

test.serial(
  'batches that PostgreSQL has lost are counted, logged, and named with their organization',
  async (t) => {
    const client = await stack.organization(10);
    const { organizationId } = client;
    const [finished, running] = ['2000000085', '2000000093'] as const;
    const { script, release } = heldScript(foundStep(running));
    vendor.script(finished, () => foundStep(finished));
    vendor.script(running, script);
    const ended = (await client.single({ npi: finished })).json.batch_id;
    await client.completed(ended);
    const open = (await client.single({ npi: running })).json;
    await eventually(async () => vendor.asked(running, 'submit') || null);
    const before = parse(await scrape());
    // PostgreSQL goes back to a moment before these submits.
    await stack.db.drizzle.transaction(async (tx) => {
      await tx.execute(sql`set local session_replication_role = replica`);
      await tx.execute(
        sql`delete from requests where organization_id = ${organizationId}`,
      );
      await tx.execute(
        sql`delete from batches where organization_id = ${organizationId}`,
      );
    });
    release();
    // The workflow of this batch starts after the loss.
    const late = newId('bat');
    const start = { batchId: late, organizationId, npis: [running] };
    await startNewBatch(stack.client, stack.taskQueue, {
      ...start,
      submittedAs: 'single',
      requestedType: 'any',
    });
    const [request] = open.requests;
    // The log cannot name the organization of an activity that runs inside the workflow task.
    const losses = [
      `${open.batch_id} ${organizationId}`,
      `${request?.request_id} ${organizationId}`,
      `${late} undefined`,
    ].sort();
    await eventually(async () => {
      const logged = lines
        .map((line) => JSON.parse(line) as Record<string, string>)
        .filter(({ msg }) => msg?.startsWith('PostgreSQL has lost work'))
        .map((line) => `${line.workflow_id} ${line.organization_id}`);
      return isDeepStrictEqual([...new Set(logged)].sort(), losses) || null;
    });
    const now = await grown(before);
    const lost = (what: string) => now[`npe_lost_work_total{what="${what}"}`] ?? 0;
    t.true(lost('request') > 0);
    t.true(lost('batch') > 0);
    t.is(lost('delivery'), 0);

    const check = await eventually(async () => {
      const found = await checkLostBatches(stack.db, stack.client, stack.taskQueue);
      return found.findings === 3 ? found : null;
    });
    const named = check.examples.map((one) => one.replace(/ at \d{4}-.*Z$/, ''));
    t.deepEqual(
      named,
      [ended, open.batch_id, late].map((id) => `${id} of ${organizationId}`).sort(),
    );
  },
);

test.serial(
  'a request that failed although its lookup had a result is reported',
  async (t) => {
    const client = await stack.organization(10);
    const [found, mistyped, broken] = ['2000000101', '2000000110', '2000000127'] as const;
    vendor.script(found, () => foundStep(found));
    vendor.script(broken, () => ({ kind: 'fatal', why: 'protocol', field: 'emails' }));
    const { json } = await client.bulk({ npis: [found, mistyped, broken] });
    await client.completed(json.batch_id);
    t.deepEqual((await checkLostResults(stack.db, stack.client)).examples, []);
    // PostgreSQL lost these results, and the sweep failed the requests at their deadline.
    await stack.db.drizzle.transaction(async (tx) => {
      await tx.execute(sql`set local session_replication_role = replica`);
      await tx.execute(
        sql`update requests
             set status = 'failed', reason = 'deadline',
                 email = null, email_type = null, email_last_validated_at = null
           where batch_id = ${json.batch_id}`,
      );
    });
    const lost = json.requests.filter(({ npi }) => npi !== broken);
    const check = await eventually(async () => {
      const found = await checkLostResults(stack.db, stack.client);
      return found.findings === lost.length ? found : null;
    });
    t.deepEqual(
      check.examples,
      lost.map((one) => `${one.request_id} of ${client.organizationId}`).sort(),
    );
  },
);

test.serial(
  "API and worker serve metrics on their own ports; the worker adds Temporal's",
  async (t) => {
    await stack.stopWorker();
    const [ofApi, ofWorker] = [await freePort(), await freePort()];
    const settings = { METRICS_PORT: String(ofApi), TASK_QUEUE: stack.taskQueue };
    const api = await startApiProcess(stack.databaseUrl, settings);
    t.teardown(() => api.stop());
    t.teardown(() => workers.stop());
    const commit = { GIT_COMMIT: '73b311b' };
    await workers.start(stack, { METRICS_PORT: String(ofWorker), ...commit });
    const client = await stack.organization(10);
    await client.completed((await client.single({ npi: '2000000044' })).json.batch_id);
    const [{ text: told }, { text: toldByWorker }] = [
      await get(ofApi, '/metrics'),
      await get(ofWorker, '/metrics'),
    ];
    const responded = 'route="/healthz",method="get",status="200"';
    t.true(told.includes(`\nnpe_http_request_duration_seconds_count{${responded}} `));
    for (const name of [
      'nodejs_eventloop_lag_p99_seconds',
      'process_resident_memory_bytes',
    ])
      t.true(told.includes(`\n# TYPE ${name} gauge`), name);
    t.regex(told, /^npe_database_pool\{state="size"\} 16$/m);
    const build = (text: string) => text.match(/^npe_build_info.*$/gm);
    t.deepEqual(build(told), [
      `npe_build_info{version="${manifest.version}",build=""} 1`,
    ]);
    t.regex(build(toldByWorker)?.join() ?? '', /\+73b311b",build="[0-9a-f]{12}"\} 1$/);
    t.notRegex(told, /npe_stats_up|temporal_/);
    for (const text of [told, toldByWorker])
      t.regex(text, /^npe_ready\{reason="ready"\} 1$/m);
    // The native part of the SDK would cost every API process 30 MB.
    if (process.platform === 'linux')
      t.notRegex(await readFile(`/proc/${api.pid()}/maps`, 'utf8'), /core-bridge/);
    t.regex(toldByWorker, /^npe_stats_up 1$/m);
    t.regex(toldByWorker, /^temporal_num_pollers\{.*task_queue="webhooks-/m);
    t.regex(
      toldByWorker,
      /^temporal_worker_task_slots_used\{.*worker_type="LocalActivityWorker"/m,
    );
    for (const name of OF_TEMPORAL)
      t.true(toldByWorker.includes(`\n# TYPE ${name} `), name);
    t.deepEqual(await get(ofApi, '/readyz'), { status: 404, text: 'not found\n' });
    t.deepEqual(await get(ofWorker, '/healthz'), {
      status: 200,
      text: '{"status":"ok"}',
    });
    t.deepEqual(await get(ofWorker, '/readyz'), { status: 200, text: '{"status":"ok"}' });
  },
);

test("the page metrics.md names exactly the tested metrics of Temporal's SDK", async (t) => {
  const page = await readFile(
    new URL('../../../deploy/metrics.md', import.meta.url),
    'utf8',
  );
  const named = new Set(page.match(/\btemporal_(?!away)\w+/g));
  t.deepEqual(
    [...named].filter((name) => name !== 'temporal_').sort(),
    [...OF_TEMPORAL, ...IN_TROUBLE].sort(),
  );
});
