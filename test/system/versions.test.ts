import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import test from 'ava';
import { sql } from 'drizzle-orm';
import postgres from 'postgres';
import { diagnose } from '../../db/doctor/doctor.ts';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { freePort, LOOPBACK } from '../../deploy/ports.ts';
import { checkWorkflows } from '../../deploy/temporal/doctor.ts';
import { createRollout, versionOf } from '../../deploy/temporal/versions.ts';
import { bundleWorkflows } from '../../deploy/temporal/workers.ts';
import { testSetting } from '../support/database.ts';
import { tasksOf } from '../support/histories.ts';
import { eventually, onceServed, RULES } from '../support/organization.ts';
import { runProgram, workerProcesses } from '../support/programs.ts';
import { quiet } from '../support/runtime.ts';
import { type Stack, startStack } from '../support/stack.ts';
import { lockRows } from '../support/turns.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests releases with incompatible workflows, rolled out and back while batches run.

const BATCH = 12;

let folder: string;
let nextBundle: string;
const workers = workerProcesses();

test.before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'versions-'));
  const workflowsPath = fileURLToPath(
    new URL('../support/next-workflows.ts', import.meta.url),
  );
  const { code } = await bundleWorkflows(workflowsPath);
  nextBundle = join(folder, 'next.js');
  await writeFile(nextBundle, code);
});

test.after.always(async () => {
  await workers.stop();
  await rm(folder, { recursive: true, force: true });
});

/** Starts a stack whose workers are processes. */
async function startWithoutWorker(
  temporalAddress = testSetting('TEST_TEMPORAL_ADDRESS'),
): Promise<Stack> {
  const taskQueue = `enrichment-${randomBytes(8).toString('hex')}`;
  return await startStack({
    elsewhere: { temporalAddress, taskQueue },
    simulatorSpeed: 0.3,
    lookupTimeoutMs: 100_000,
  });
}

async function versionIn(stack: Stack, bundle: string) {
  return versionOf(stack.taskQueue, await readFile(bundle, 'utf8'));
}

/** Sets the current version as an operator does. */
async function setCurrent({
  deploymentName,
  buildId,
}: {
  deploymentName: string;
  buildId: string;
}) {
  const names = ['--deployment-name', deploymentName, '--build-id', buildId];
  const args = ['worker', 'deployment', 'set-current-version', ...names, '--yes'];
  const address = ['--address', testSetting('TEST_TEMPORAL_ADDRESS')];
  const cli = testSetting('TEST_TEMPORAL_CLI');
  await onceServed(() => promisify(execFile)(cli, [...args, ...address]));
}

async function findings({ db, client, taskQueue }: Stack): Promise<string[]> {
  const checks = await diagnose(db, {
    ...RULES,
    webhookScheduleMs: [0, 100, 200, 300],
  });
  const workflows = await checkWorkflows(db, client, taskQueue);
  const all = [...checks, ...workflows];
  return all.filter((check) => check.findings > 0).map(({ code }) => code);
}

test.serial(
  'running batches finish even if an incompatible release is rolled out and back',
  async (t) => {
    const stack = await startWithoutWorker();
    t.teardown(() => stack.stop());
    const admin = postgres(stack.databaseUrl, { max: 2, onnotice: () => {} });
    t.teardown(() => admin.end({ timeout: 1 }));
    const client = await stack.organization(1000);
    const old = await versionIn(stack, testSetting('TEST_WORKFLOW_BUNDLE'));
    const next = await versionIn(stack, nextBundle);
    t.not(old.buildId, next.buildId);
    const submit = async (which: number) => {
      const npis = ordinaryNpis('found_later', BATCH, 1000 * which);
      const { json } = await client.bulk({
        npis,
        webhook: { url: `${stack.receiver.url}/versions` },
      });
      return json;
    };
    /** Locks a request, so that its batch can't end until the lock is released. */
    const holdOpen = ({ requests }: Awaited<ReturnType<typeof submit>>) =>
      lockRows(admin, 'requests', 'id', [requests[0]?.request_id ?? '']);
    const halfway = (batchId: string) =>
      eventually(async () => {
        const { completed_count } = (await client.batch(batchId)).batch;
        return completed_count > 0 || null;
      });

    const ports = [await freePort(), await freePort()] as const;
    const metricsAt = (port: number) => ({ METRICS_PORT: String(port) });
    const needed = async () => {
      const asked = ports.map((port) => fetch(`http://${LOOPBACK}:${port}/needed`));
      return (await Promise.all(asked)).map(({ ok }) => ok);
    };
    await workers.start(stack, metricsAt(ports[0]));
    t.is(await stack.currentBuild(), old.buildId, 'the first version is current at once');
    const first = await submit(1);
    const firstLock = await holdOpen(first);
    await eventually(async () => stack.simulator.calls().length >= BATCH || null);

    const nextWorker = await workers.start(stack, {
      WORKFLOW_BUNDLE: nextBundle,
      ...metricsAt(ports[1]),
    });
    t.is(await stack.currentBuild(), next.buildId, 'so is a new one');
    // The old version is needed until its batches have ended. The current one can be replaced at
    // once.
    await eventually(async () => (await needed())[0] || null);
    t.deepEqual(await needed(), [true, false]);
    t.is((await client.batch(first.batch_id)).batch.status, 'in-progress');
    await firstLock.release();
    const second = await submit(2);
    const secondLock = await holdOpen(second);
    await halfway(second.batch_id);

    await setCurrent(old);
    await secondLock.release();
    // The version that was rolled back is not needed either.
    t.deepEqual(await needed(), [false, false]);
    const third = await submit(3);
    const batches = [first, second, third];
    for (const { batch_id } of batches) {
      const envelope = await client.completed(batch_id);
      t.deepEqual([...new Set(envelope.data.map(({ status }) => status))], ['completed']);
    }
    for (const { batch_id } of batches)
      await stack.client.workflow.getHandle(batch_id).result();

    const seen = [];
    for (const { batch_id, requests } of batches) {
      const ids = [batch_id, ...requests.map(({ request_id }) => request_id)];
      seen.push(await tasksOf(stack.client, ids));
    }
    t.deepEqual(seen, [
      { failed: [], builds: [old.buildId] },
      { failed: [], builds: [next.buildId] },
      { failed: [], builds: [old.buildId] },
    ]);
    t.deepEqual(await findings(stack), []);

    // A new worker of another version changes nothing while workers of the current version run.
    await workers.start(stack, { WORKFLOW_BUNDLE: nextBundle });
    t.is(await stack.currentBuild(), old.buildId);

    // When the last worker of the current version ends, a worker of another version makes its own
    // current.
    await setCurrent(next);
    await workers.stop();
    t.is(await nextWorker.exited, 'exit code 0', nextWorker.output().slice(-3000));
    await workers.start(stack);
    t.is(await stack.currentBuild(), old.buildId);
  },
);

test.serial(
  'with WORKER_ROLLOUT=manual, a version waits until its logged command is run',
  async (t) => {
    const stack = await startWithoutWorker();
    t.teardown(() => stack.stop());
    const client = await stack.organization(10);
    const worker = await workers.start(stack, { WORKER_ROLLOUT: 'manual' });
    const { json } = await client.single({ npi: '2000000010' });
    t.is(await stack.currentBuild(), null);

    const logged = /temporal (worker deployment set-current-version [\w -]+)/;
    const command = await eventually(
      async () => logged.exec(worker.output())?.[1] ?? null,
    );
    const args = [
      ...command.split(' '),
      '--yes',
      '--address',
      testSetting('TEST_TEMPORAL_ADDRESS'),
    ];
    await onceServed(() => promisify(execFile)(testSetting('TEST_TEMPORAL_CLI'), args));
    await client.completed(json.batch_id);
    await worker.stop();
  },
);

test.serial(
  'the service runs on a Temporal without Worker Deployments, and logs that once',
  async (t) => {
    const temporal = await startTemporal({
      cli: testSetting('TEST_TEMPORAL_CLI'),
      namespace: 'default',
      dynamicConfig: { 'system.enableDeploymentVersions': false },
    });
    t.teardown(() => temporal.stop());
    const stack = await startWithoutWorker(temporal.address);
    t.teardown(() => stack.stop());
    const client = await stack.organization(10);
    const worker = await workers.start(stack);
    const { json } = await client.single({ npi: '2000000010' });
    await client.completed(json.batch_id);
    t.is(
      worker.output().match(/"msg":"this Temporal has no Worker Deployments/g)?.length,
      1,
    );
    await worker.stop();
  },
);

test.serial(
  'workflows of a version that has no more workers continue with the current version',
  async (t) => {
    const stack = await startStack({ simulatorSpeed: 1, lookupTimeoutMs: 100_000 });
    t.teardown(() => stack.stop());
    const client = await stack.organization(100);
    const { json } = await client.bulk({
      npis: ordinaryNpis('found_later', BATCH, 9000),
    });
    await eventually(async () => stack.simulator.calls().length >= BATCH || null);
    await stack.stopWorker();

    // The bundle has the same workflows, but its comment gives it another version.
    const code = `// another\n${await readFile(testSetting('TEST_WORKFLOW_BUNDLE'), 'utf8')}`;
    const step = await stack.startWorker(code);
    const old = await versionIn(stack, testSetting('TEST_WORKFLOW_BUNDLE'));
    const { buildId } = versionOf(stack.taskQueue, code);
    t.is(await stack.currentBuild(), buildId);
    const ids = [json.batch_id, ...json.requests.map(({ request_id }) => request_id)];
    t.deepEqual((await tasksOf(stack.client, ids)).builds, [old.buildId]);
    await eventually(async () => {
      await step();
      return (await client.batch(json.batch_id)).batch.status === 'completed' || null;
    });
    await stack.client.workflow.getHandle(json.batch_id).result();
    const { failed, builds } = await tasksOf(stack.client, ids);
    t.deepEqual(failed, []);
    t.true(builds.includes(buildId));
  },
);

test.serial(
  'a workflow version stays current for one minute after its last worker was seen',
  async (t) => {
    const stack = await startStack();
    t.teardown(() => stack.stop());
    await stack.stopWorker();
    const step = await stack.startWorker();
    const old = await versionIn(stack, testSetting('TEST_WORKFLOW_BUNDLE'));
    const next = await versionIn(stack, nextBundle);
    const nextWorker = await workers.start(stack, { WORKFLOW_BUNDLE: nextBundle });
    const after = async (steps: number) => {
      for (let n = 0; n < steps; n += 1) await step();
      return await stack.currentBuild();
    };
    t.is(await after(5), next.buildId);
    process.kill(nextWorker.pid, 'SIGKILL');
    await nextWorker.exited;
    t.is(await after(5), next.buildId, 'it was seen a moment ago');
    await stack.db.drizzle.execute(
      sql`update workers set seen_at = seen_at - interval '1 minute' where build_id = ${next.buildId}`,
    );
    t.is(await after(3), next.buildId);
    t.is(await after(1), old.buildId);
  },
);

test.serial(
  'a version becomes current later if Temporal was too slow at its start',
  async (t) => {
    const stack = await startStack();
    t.teardown(() => stack.stop());
    const { workerDb: db, client, taskQueue } = stack;
    const old = await versionIn(stack, testSetting('TEST_WORKFLOW_BUNDLE'));
    const version = await versionIn(stack, nextBundle);
    const versioned = { version, isVersioned: true, automatic: true };
    const rollout = createRollout({ db, client, log: quiet, taskQueue, ...versioned });
    // The server does not know the version, because no worker polls for it.
    await rollout.begin();
    await workers.start(stack, {
      WORKFLOW_BUNDLE: nextBundle,
      WORKER_ROLLOUT: 'manual',
    });
    t.is(await stack.currentBuild(), old.buildId);
    await eventually(async () => {
      await rollout.step();
      return (await stack.currentBuild()) === version.buildId || null;
    });
    // An operator can go back to the other version.
    await setCurrent(old);
    await rollout.step();
    t.is(await stack.currentBuild(), old.buildId);
  },
);

test.serial('status counts the batches that wait for a stopped build', async (t) => {
  const stack = await startStack({ simulatorSpeed: 0.3, lookupTimeoutMs: 300_000 });
  t.teardown(() => stack.stop());
  const client = await stack.organization(10);
  const submit = () => client.bulk({ npis: ordinaryNpis('found_later', 1, 9000) });
  const env = {
    DATABASE_URL: stack.databaseUrl,
    TEMPORAL_ADDRESS: testSetting('TEST_TEMPORAL_ADDRESS'),
    TASK_QUEUE: stack.taskQueue,
  };
  const waiting = async () => {
    // The worker of a stack sends one heartbeat only.
    await stack.db.drizzle.execute(sql`update workers set seen_at = clock_timestamp()`);
    const { stdout } = await runProgram('operator', ['status', '--json'], { env });
    const { waiting_batches: builds, attention } = JSON.parse(stdout);
    return { builds, attention: attention.join('\n') };
  };
  const untilCounted = (batches: number) =>
    eventually(async () => {
      const counted = await waiting();
      return counted.builds[0]?.batches === batches ? counted : null;
    });
  await submit();
  await eventually(async () => stack.simulator.calls().length > 0 || null);
  t.deepEqual((await waiting()).builds, []);
  await stack.stopWorker();
  const { buildId } = await versionIn(stack, testSetting('TEST_WORKFLOW_BUNDLE'));
  const { attention } = await untilCounted(1);
  t.regex(
    attention,
    new RegExp(
      `^no worker of the build ${buildId} is alive, and open batches wait .*1`,
      'm',
    ),
  );
  // This batch has no workflow task yet, and so no build.
  await submit();
  await untilCounted(2);
  await stack.startWorker();
  t.deepEqual((await waiting()).builds, []);
});
