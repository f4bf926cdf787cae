import { randomBytes } from 'node:crypto';
import test, { type ExecutionContext } from 'ava';
import { sql } from 'drizzle-orm';
import { checkWorkflows } from '../../../deploy/temporal/doctor.ts';
import { fresh, temporaryFolder, testSetting } from '../../support/database.ts';
import { tasksOf } from '../../support/histories.ts';
import { eventually } from '../../support/organization.ts';
import { bundleWithBug, PLANTED } from '../../support/planted.ts';
import { type WorkerProcess, workerProcesses } from '../../support/programs.ts';
import { startStack } from '../../support/stack.ts';
import { ordinaryNpis } from '../../support/vendors.ts';

// Tests that a bug in workflow code fails its workflow task and stays visible. Each test plants a
// bug into one function.

const folder = temporaryFolder(test.after.always);
const workers = workerProcesses();
test.after.always(() => workers.stop());
const stack = fresh(test, () => {
  const taskQueue = `enrichment-${randomBytes(8).toString('hex')}`;
  const elsewhere = { temporalAddress: testSetting('TEST_TEMPORAL_ADDRESS'), taskQueue };
  return startStack({ lookupTimeoutMs: 8000, elsewhere });
});

/**
 * Starts a worker whose workflows have a bug in the named function. The worker is killed at the end
 * of the test.
 */
async function workWithBug(t: ExecutionContext, name: string): Promise<WorkerProcess> {
  const worker = await workers.start(stack, {
    WORKFLOW_BUNDLE: await bundleWithBug(folder, name),
  });
  t.teardown(async () => {
    process.kill(worker.pid, 'SIGKILL');
    await worker.exited;
  });
  return worker;
}

/**
 * Checks that the history of a workflow and the worker's log show the failed task and its cause.
 */
async function isShown(
  t: ExecutionContext,
  worker: WorkerProcess,
  workflowId: string,
): Promise<void> {
  await stack.startedWorkflow(workflowId);
  const failed = await eventually(async () => {
    const { failed } = await tasksOf(stack.client, [workflowId]);
    return failed.length > 0 ? failed : null;
  });
  t.true(
    failed.every((message) => PLANTED.test(message)),
    failed.join(),
  );
  await eventually(async () => {
    const lines = worker.output().split('\n');
    return (
      lines.some((line) => line.includes(workflowId) && line.includes('TypeError')) ||
      null
    );
  });
}

/** Checks that a workflow stays open while its task fails, and that the doctor lists it. */
async function isStuck(t: ExecutionContext, workflowId: string): Promise<void> {
  await eventually(async () => {
    // On a busy machine, Temporal's dev server may time out while it describes a Schedule.
    const checking = checkWorkflows(stack.db, stack.client, stack.taskQueue);
    const checks = await checking.catch(() => []);
    const failing = checks.find(({ code }) => code === 'workflow_task_failing');
    return failing?.examples.includes(workflowId) || null;
  });
  const handle = stack.client.workflow.getHandle(workflowId);
  t.is((await handle.describe()).status.name, 'RUNNING');
  await handle.terminate();
}

async function reasonsOf(batchId: string): Promise<string[]> {
  const rows = await stack.db.drizzle.execute<{ reason: string }>(
    sql`select reason from requests where batch_id = ${batchId}`,
  );
  return rows.map(({ reason }) => reason);
}

test.serial(
  'a bug in a lookup is visible in history and log, and its requests are refunded',
  async (t) => {
    const worker = await workWithBug(t, 'callSource');
    const client = await stack.organization(10);
    const [npi = '', ...npis] = ordinaryNpis('found', 3);
    const bulk = (await client.bulk({ npis })).json;
    const single = (await client.single({ npi })).json;
    for (const { batch_id } of [bulk, single]) {
      const { data } = await client.completed(batch_id);
      t.true(data.every(({ status }) => status === 'failed'));
      t.deepEqual([...new Set(await reasonsOf(batch_id))], ['deadline']);
    }
    t.deepEqual(await client.credits(), { balance: 10, total: 10, used: 0 });
    await isShown(t, worker, single.requests[0]?.request_id ?? '');
    for (const { request_id } of bulk.requests) await isShown(t, worker, request_id);
  },
);

/**
 * A bug at the top keeps a batch stuck. A batch with a later bug continues once the sweep has
 * refunded its requests.
 */
for (const [name, staysStuck] of [
  ['enrichBatch', true],
  ['lookUp', false],
] as const) {
  test.serial(
    `a bug in ${name} is visible in history and log, and its requests are refunded`,
    async (t) => {
      const worker = await workWithBug(t, name);
      const client = await stack.organization(10);
      const { json } = await client.bulk({ npis: ordinaryNpis('found', 2, 200) });
      await isShown(t, worker, json.batch_id);
      await client.completed(json.batch_id);
      t.deepEqual(await reasonsOf(json.batch_id), ['deadline', 'deadline']);
      t.deepEqual(await client.credits(), { balance: 10, total: 10, used: 0 });
      if (staysStuck) await isStuck(t, json.batch_id);
    },
  );
}

test.serial(
  "a bug in startDelivery is visible in the workflow's history and in the log",
  async (t) => {
    const worker = await workWithBug(t, 'startDelivery');
    const client = await stack.organization(10);
    const webhook = { url: `${stack.receiver.url}/fail/1/bug` };
    const { json } = await client.bulk({ npis: ordinaryNpis('found', 2, 300), webhook });
    await isShown(t, worker, json.batch_id);
    await isStuck(t, json.batch_id);
  },
);
