import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { Agent, type IncomingMessage, request } from 'node:http';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import test from 'ava';
import { versionOf } from '../../deploy/temporal/versions.ts';
import { bundleWorkflows } from '../../deploy/temporal/workers.ts';
import { leftOver } from '../support/all-ended.ts';
import { startBalancer } from '../support/balancer.ts';
import {
  fresh,
  freshDatabase,
  temporaryFolder,
  testSetting,
} from '../support/database.ts';
import {
  type ApiResponse,
  createCaller,
  eventually,
  openOrganization,
} from '../support/organization.ts';
import { startApiProcess, workerProcesses } from '../support/programs.ts';
import { startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests a release under load, with the programs as processes. Clients must not notice it.

const CLIENTS = 4;
const BATCH = 5;

const { url: databaseUrl, db } = freshDatabase(test);
const workers = fresh(test, async () => workerProcesses());

test('a stopping API is not ready, but serves requests until its connections close', async (t) => {
  const api = await startApiProcess(databaseUrl, { API_DRAIN_DELAY: '5m' });
  t.teardown(() => api.kill());
  const { apiKey } = await openOrganization(db, 0);
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  t.teardown(() => agent.destroy());
  const get = async (path: string) => {
    const asked = request(`${api.url}${path}`, {
      agent,
      headers: { 'x-api-key': apiKey },
    }).end();
    const [reply] = (await once(asked, 'response')) as [IncomingMessage];
    const body = JSON.parse(await text(reply)) as unknown;
    const { connection } = reply.headers;
    return { status: reply.statusCode, connection, body, isReused: asked.reusedSocket };
  };
  await eventually(async () => (await get('/readyz')).status === 200 || null);
  t.like(await get('/api/v1/credits'), {
    status: 200,
    connection: 'keep-alive',
    isReused: true,
  });
  process.kill(api.pid(), 'SIGTERM');
  const unready = await eventually(async () => {
    const ready = await fetch(`${api.url}/readyz`);
    return ready.ok ? null : { status: ready.status, body: await ready.json() };
  });
  t.deepEqual(unready, { status: 503, body: { status: 'draining' } });
  t.like(await get('/api/v1/credits'), {
    status: 200,
    connection: 'close',
    isReused: true,
  });
  t.like(await get('/api/v1/credits'), {
    status: 200,
    connection: 'close',
    isReused: false,
  });
  t.like(await get('/api/v1/nothing'), {
    status: 404,
    connection: 'close',
    isReused: false,
  });
  t.like(await get('/healthz'), { status: 200 });
});

test('replacing APIs and workers under load fails no request and loses no batch', async (t) => {
  // This only limits a hang. On a busy machine the test takes longer than the usual limit.
  t.timeout(1_200_000);
  const stack = await startStack({
    elsewhere: {
      temporalAddress: testSetting('TEST_TEMPORAL_ADDRESS'),
      taskQueue: `enrichment-${randomBytes(8).toString('hex')}`,
    },
    lookupTimeoutMs: 100_000,
    simulatorSpeed: 5,
  });
  t.teardown(() => stack.stop());
  const { TASK_QUEUE, WEBHOOK_OPEN_CIDRS } = stack.workerEnvironment;
  const settings = {
    TASK_QUEUE,
    WEBHOOK_OPEN_CIDRS,
    LOOKUP_TIMEOUT: '100s',
    API_DRAIN_DELAY: '5s',
  };
  const apis = await Promise.all(
    [1, 2].map(() => startApiProcess(stack.databaseUrl, settings)),
  );
  for (const api of apis) t.teardown(() => api.stop());
  const balancer = await startBalancer(apis.map(({ url }) => url));
  t.teardown(() => balancer.stop());
  const areReady = () =>
    eventually(async () => apis.every(({ url }) => balancer.hasInRotation(url)) || null);
  await areReady();
  const old = await Promise.all([1, 2].map(() => workers.start(stack)));

  const expectStatus = <T>(
    status: number,
    { status: got, text, json }: ApiResponse<T>,
  ): T => {
    if (got !== status)
      throw new Error(`${got} ${text}: ${JSON.stringify(balancer.replies())}`);
    return json;
  };
  // Half of the clients poll, and half wait for the end.
  const ending = new AbortController();
  t.teardown(() => ending.abort());
  const results: string[][] = Array.from({ length: CLIENTS }, () => []);
  const clients = results.map(async (own, which) => {
    const { apiKey } = await openOrganization(stack.db, 100_000);
    const client = createCaller(balancer.url, apiKey);
    const headers = which % 2 === 0 ? {} : { prefer: 'wait=20' };
    while (!ending.signal.aborted) {
      const from = (which * 1000 + own.length * BATCH) * 100;
      const npis = [
        ...ordinaryNpis('found', BATCH - 1, from),
        ...ordinaryNpis('found_later', 1, from),
      ];
      const webhook = { url: `${stack.receiver.url}/rolling` };
      const { batch_id } = expectStatus(202, await client.bulk({ npis, webhook }));
      const { data } = await eventually(async () => {
        const envelope = expectStatus(
          200,
          await client.get(`/api/v1/batch/${batch_id}`, headers),
        );
        return envelope.batch.status === 'completed' ? envelope : null;
      });
      own.push(data.map(({ status }) => status).join(' '));
    }
  });
  const all = Promise.all(clients);
  /** Waits until every client has received a result that it requested after this call. */
  const served = async () => {
    const before = results.map(({ length }) => length);
    const isServed = async () =>
      results.every(({ length }, n) => length >= (before[n] ?? 0) + 2) || null;
    await Promise.race([eventually(isServed), all]);
  };

  await served();
  for (const api of apis) {
    await api.stop();
    t.is(api.ending(), 'exit code 0');
    await served();
    await api.start();
    await areReady();
  }

  // The new workflows don't fit open runs. A run ends with the version it began with.
  const bundle = join(temporaryFolder(t.teardown), 'next.js');
  const workflows = fileURLToPath(
    new URL('../support/next-workflows.ts', import.meta.url),
  );
  await writeFile(bundle, (await bundleWorkflows(workflows)).code);
  const { deploymentName, buildId } = versionOf(
    stack.taskQueue,
    await readFile(testSetting('TEST_WORKFLOW_BUNDLE'), 'utf8'),
  );
  const oldRuns = `TemporalWorkerDeploymentVersion = '${deploymentName}:${buildId}' and ExecutionStatus = 'Running'`;
  for (const [n, worker] of old.entries()) {
    await workers.start(stack, { WORKFLOW_BUNDLE: bundle });
    // The last worker of a version stays until its runs have ended.
    if (n === old.length - 1)
      await eventually(
        async () => (await stack.client.workflow.count(oldRuns)).count === 0 || null,
      );
    process.kill(worker.pid, 'SIGTERM');
    t.is(await worker.exited, 'exit code 0');
    await served();
  }
  ending.abort();
  await all;

  t.deepEqual(Object.keys(balancer.replies()).sort(), ['200', '202']);
  t.deepEqual([...new Set(results.flat())], [Array(BATCH).fill('completed').join(' ')]);
  t.deepEqual(await leftOver(stack), []);
  t.log(`${results.flat().length} batches`, balancer.replies());
});
