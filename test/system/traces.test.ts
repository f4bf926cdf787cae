import { randomBytes } from 'node:crypto';
import { Worker } from '@temporalio/worker';
import test from 'ava';
import { showWebhookSecret } from '../../db/accounts/webhook-secrets.ts';
import { uuidOf } from '../../db/connection/ids.ts';
import manifest from '../../package.json' with { type: 'json' };
import { type ReceivedSpan, startCollector } from '../support/collector.ts';
import { fresh, testSetting } from '../support/database.ts';
import { createCaller, eventually } from '../support/organization.ts';
import { startApiProcess, workerProcesses } from '../support/programs.ts';
import { startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests traces as a collector receives them from the programs of deploy/, over real sockets.

/** An NPI that only the last simulated vendor knows. */
const ASK_ALL = '2000000218';
const CANARY = 'canary-7f3a';
const CALLER = {
  traceId: '4bf92f3577b34da6a3ce929d0e0e4736',
  spanId: '00f067aa0ba902b7',
};

const collector = fresh(test, () => startCollector());
const stack = fresh(test, () => {
  const taskQueue = `enrichment-${randomBytes(8).toString('hex')}`;
  const temporalAddress = testSetting('TEST_TEMPORAL_ADDRESS');
  return startStack({ allSources: true, elsewhere: { temporalAddress, taskQueue } });
});
const workers = fresh(test, async () => workerProcesses());
const api = fresh(test, () =>
  startApiProcess(stack.databaseUrl, {
    TASK_QUEUE: stack.taskQueue,
    ...settings(),
    LOG_LEVEL: 'info',
  }),
);
const customer = fresh(test, async () => {
  const organization = await stack.organization();
  return { ...organization, ...createCaller(api.url, organization.apiKey) };
});

const settings = () => ({
  OTEL_EXPORTER_OTLP_ENDPOINT: `${collector.url}/`,
  OTEL_EXPORTER_OTLP_HEADERS: 'authorization=Bearer%20token',
  OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment.name=test',
  GIT_COMMIT: '73b311b',
  WEBHOOK_SCHEDULE: '0s,100ms',
  WEBHOOK_OPEN_CIDRS: '127.0.0.0/8',
});

const traceOf = (batchId: string) =>
  collector.spans().filter(({ traceId }) => traceId === uuidOf(batchId));

/** Returns `parent > name` of all spans, each once, sorted. */
function edgesOf(trace: readonly ReceivedSpan[]): string[] {
  const names = new Map(trace.map(({ spanId, name }) => [spanId, name]));
  const edges = trace.map(
    ({ parentSpanId: up, name }) =>
      `${up ? (names.get(up) ?? 'unknown') : 'nothing'} > ${name}`,
  );
  return [...new Set(edges)].sort();
}

test.serial(
  'a submit is one trace, from its POST to the last attempt of its webhook',
  async (t) => {
    const worker = await workers.start(stack, settings());
    const submitted = await customer.single(
      {
        npi: ASK_ALL,
        webhook: { url: `${stack.receiver.url}/fail/1/${CANARY}` },
        custom_data: { [CANARY]: CANARY },
      },
      {
        'idempotency-key': CANARY,
        traceparent: `00-${CALLER.traceId}-${CALLER.spanId}-01`,
        tracestate: `vendor=${CANARY}`,
      },
    );
    const { batch_id: batchId, requests } = submitted.json;
    const { data } = await customer.completed(batchId);
    const trace = await eventually(async () => {
      const spans = traceOf(batchId);
      const isWhole = spans.filter(({ name }) => name === 'webhook attempt').length === 2;
      return isWhole && spans.some(({ kind }) => kind === 2) ? spans : null;
    });

    t.deepEqual(edgesOf(trace), [
      'POST /api/v1/email > enrichBatch: attemptDeliveries',
      'POST /api/v1/email > enrichBatch: readBatch',
      'POST /api/v1/email > request',
      'POST /api/v1/email > webhook attempt',
      'lookUpEmail: askVendor > fullenrich',
      'lookUpEmail: askVendor > hunter',
      'lookUpEmail: askVendor > prospeo',
      'lookUpEmail: askVendor > reacher',
      'lookUpEmail: askVendor > rocketreach',
      'lookUpEmail: askVendor > settle',
      'nothing > POST /api/v1/email',
      'request > lookUpEmail: askVendor',
      'request > lookUpEmail: planLookup',
    ]);
    const named = (name: string) => trace.filter((span) => span.name === name);
    const [root] = named('POST /api/v1/email');
    t.like(root, { kind: 2, status: { code: 0 }, links: [CALLER] });
    t.deepEqual(root?.resource, {
      'service.name': 'npi-email-api',
      'service.version': `${manifest.version}+73b311b`,
      'deployment.environment.name': 'test',
    });
    t.deepEqual(root?.attributes, {
      'http.route': '/api/v1/email',
      'http.response.status_code': 202,
      organization_id: customer.organizationId,
      batch_id: batchId,
    });
    const [request] = named('request');
    t.like(request?.attributes, {
      request_id: requests[0]?.request_id,
      status: 'completed',
    });
    t.is(request?.resource['service.name'], 'npi-email-worker');
    t.deepEqual(named('hunter')[0]?.attributes, { result: 'found' });
    t.deepEqual(
      named('webhook attempt').map(({ attributes, status }) => [
        attributes.attempt,
        attributes.status,
        status.code,
      ]),
      [
        [1, 500, 2],
        [2, 200, 0],
      ],
    );
    const [activity] = named('lookUpEmail: askVendor');
    t.like(activity?.attributes, { workflow_id: requests[0]?.request_id, attempt: 1 });

    const all = collector.exports.map(({ text }) => text).join('\n');
    const { webhookSecret } = await showWebhookSecret(stack.db, customer.organizationId);
    const host = new URL(stack.receiver.url).host;
    for (const secret of [
      CANARY,
      customer.apiKey,
      webhookSecret,
      host,
      ASK_ALL,
      String(data[0]?.email),
      '@',
    ]) {
      t.false(all.includes(secret), secret);
    }
    t.true(
      collector.exports.every(({ headers }) => headers.authorization === 'Bearer token'),
    );

    // The log contains the same IDs.
    const lines = worker
      .output()
      .split('\n')
      .filter((line) => line.startsWith('{'));
    const line = lines
      .map((text) => JSON.parse(text))
      .find(({ msg }) => msg === 'request settled');
    t.is(line.trace_id, root?.traceId);
    t.is(line.span_id, named('settle')[0]?.parentSpanId);
  },
);

test.serial('a bulk submit that calls the NPI Registry is one trace', async (t) => {
  const unknown = ordinaryNpis('found', 2, 90_000);
  const { json } = await customer.bulk({ npis: unknown });
  await customer.completed(json.batch_id);
  const expected = [
    'request > lookUpEmail: identify',
    'lookUpEmail: identify > registry',
    'request > lookUpEmail: askVendor',
    'lookUpEmail: askVendor > settle',
  ];
  // Each process sends its spans once a second, so a parent may arrive after its child.
  const edges = await eventually(async () => {
    const found = edgesOf(traceOf(json.batch_id));
    const isWhole = !found.some((edge) => edge.startsWith('unknown'));
    return isWhole && expected.every((edge) => found.includes(edge)) ? found : null;
  });
  t.true(edges.includes('nothing > POST /api/v1/email/bulk'), edges.join('\n'));
});

test.serial(
  'workflow histories contain no trace IDs and replay with and without traces',
  async (t) => {
    const { json } = await customer.single({ npi: ordinaryNpis('not_found', 1)[0] });
    await customer.completed(json.batch_id);
    const handle = stack.client.workflow.getHandle(json.batch_id);
    await handle.result();
    const history = await handle.fetchHistory();
    const { traceId = '' } = await eventually(
      async () => traceOf(json.batch_id)[0] ?? null,
    );
    t.false(JSON.stringify(history).includes(traceId));
    const workflowBundle = { codePath: testSetting('TEST_WORKFLOW_BUNDLE') };
    const runs = [{ workflowId: json.batch_id, history }];
    for await (const { error } of Worker.runReplayHistories({ workflowBundle }, runs))
      t.is(error, undefined);

    // The version of a worker is the hash of its workflows. It is the same without traces, so that
    // workers with and without traces continue each other's runs.
    const versions = await Promise.all(
      [settings(), {}].map(async (given) => {
        const worker = await workers.start(stack, given);
        const ready = worker
          .output()
          .split('\n')
          .find((line) => line.includes('"worker ready"'));
        return JSON.parse(ready ?? '{}').version;
      }),
    );
    t.regex(versions[0], /^[0-9a-f]{12}$/);
    t.is(versions[0], versions[1]);
  },
);

test.serial(
  'a trace collector that never responds delays neither submits nor shutdown',
  async (t) => {
    collector.respond('silence');
    const worker = await workers.start(stack, settings());
    const { json } = await customer.single({ npi: ordinaryNpis('found', 2)[1] });
    const { data } = await customer.completed(json.batch_id);
    t.is(data[0]?.status, 'completed');
    process.kill(worker.pid, 'SIGTERM');
    t.is(await worker.exited, 'exit code 0');
    await api.stop();
  },
);
