import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { NativeConnection, Worker } from '@temporalio/worker';
import test from 'ava';
import { eq, sql } from 'drizzle-orm';
import { setLimit } from '../../db/accounts/organizations.ts';
import { only } from '../../db/connection/client.ts';
import { requests } from '../../db/schema.ts';
import { listUploadBatches } from '../../db/uploads/uploads.ts';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { versionOf } from '../../deploy/temporal/versions.ts';
import { bundleWorkflows } from '../../deploy/temporal/workers.ts';
import { TASK_QUEUE, type UploadInput, WORKFLOWS } from '../../workflows/messages.ts';
import { startUpload } from '../../workflows/starts.ts';
import { fresh, temporaryFolder, testSetting } from '../support/database.ts';
import { eventNames, type History } from '../support/histories.ts';
import { BY, eventually } from '../support/organization.ts';
import { workerProcesses } from '../support/programs.ts';
import { startStack } from '../support/stack.ts';
import { uploadInParts } from '../support/uploads.ts';

// Tests an upload of the console while its workers are killed or replaced. Its Temporal suggests a
// new run after a few parts.

const PARTS = 10;
const SIZE = 6;
const NPIS = PARTS * SIZE;
/** The number of events after which Temporal suggests a new run. */
const LONG_HISTORY = 20;

const temporal = fresh(test, () =>
  startTemporal({
    cli: testSetting('TEST_TEMPORAL_CLI'),
    namespace: 'default',
    dynamicConfig: { 'limit.historyCount.suggestContinueAsNew': LONG_HISTORY },
  }),
);
const stack = fresh(test, () =>
  startStack({ elsewhere: { temporalAddress: temporal.address, taskQueue: TASK_QUEUE } }),
);
const workers = fresh(test, async () => workerProcesses());

/** Returns the histories of all runs of a workflow, oldest first. */
async function historiesOf(workflowId: string): Promise<History[]> {
  const { workflow } = stack.client;
  const newest = await workflow.getHandle(workflowId).fetchHistory();
  let runId =
    newest.events?.[0]?.workflowExecutionStartedEventAttributes?.firstExecutionRunId;
  const histories: History[] = [];
  while (runId) {
    const history = await workflow.getHandle(workflowId, runId).fetchHistory();
    histories.push(history);
    const end = history.events?.at(-1);
    runId = end?.workflowExecutionContinuedAsNewEventAttributes?.newExecutionRunId;
  }
  return histories;
}

/** Returns the builds that completed the workflow tasks of a run, oldest first. */
function buildsOf({ events }: History): string[] {
  const builds = (events ?? []).flatMap(
    ({ workflowTaskCompletedEventAttributes: completed }) =>
      completed?.deploymentVersion?.buildId ?? [],
  );
  return [...new Set(builds)];
}

test.serial(
  'an upload continues after workers are killed, and submits no NPI twice',
  async (t) => {
    const live = await stack.organization(0);
    const sandbox = await stack.sandboxOf(live);
    const { organizationId } = sandbox;
    const whole = { parts: PARTS, size: SIZE };
    const uploadId = await uploadInParts(stack.db, sandbox, whole);
    const submitted = async () => (await listUploadBatches(stack.db, uploadId)).length;
    for (const parts of [1, 4]) {
      // The rate limit keeps the upload from its end until the worker is killed.
      await setLimit(stack.db, BY, organizationId, parts + 2);
      const worker = await workers.start(stack);
      await eventually(async () => ((await submitted()) >= parts ? true : null));
      process.kill(worker.pid, 'SIGKILL');
      await worker.exited;
    }
    t.true((await submitted()) < PARTS, 'killed in the middle');

    await setLimit(stack.db, BY, organizationId, 100_000);
    await workers.start(stack);
    await eventually(async () => {
      const open = await stack.openRequests(organizationId);
      return open.length === 0 && (await submitted()) === PARTS ? true : null;
    });
    const rows = await stack.db.drizzle
      .select({
        total: sql<number>`count(*)::int`,
        npis: sql<number>`count(distinct npi)::int`,
        batches: sql<number>`count(distinct batch_id)::int`,
        charged: sql<number>`sum(credits_used)::int`,
      })
      .from(requests)
      .where(eq(requests.organizationId, organizationId));
    const { charged, ...counts } = only(rows);
    t.deepEqual(counts, { total: NPIS, npis: NPIS, batches: PARTS });
    t.is((await sandbox.credits()).used, charged);
  },
);

test.serial(
  'an upload moves to the next build, and to a new run when its history is long',
  async (t) => {
    const sandbox = await stack.sandboxOf(await stack.organization(0));
    const { organizationId } = sandbox;
    const uploadId = await uploadInParts(stack.db, sandbox, { parts: 20, size: 1 });
    const submitted = async () => (await listUploadBatches(stack.db, uploadId)).length;
    const oldBundle = await readFile(testSetting('TEST_WORKFLOW_BUNDLE'), 'utf8');
    const next = await bundleWorkflows(
      fileURLToPath(new URL('../support/next-workflows.ts', import.meta.url)),
    );
    const nextFile = join(temporaryFolder(t.teardown), 'next.js');
    await writeFile(nextFile, next.code);
    const [old, newer] = [oldBundle, next.code].map(
      (code) => versionOf(TASK_QUEUE, code).buildId,
    );

    await workers.start(stack);
    // The rate limit keeps the upload from its end until the next build is current.
    await setLimit(stack.db, BY, organizationId, 4);
    await startUpload(stack.client, TASK_QUEUE, { uploadId, organizationId });
    await eventually(async () => ((await submitted()) >= 4 ? true : null));
    await workers.start(stack, { WORKFLOW_BUNDLE: nextFile });
    await eventually(async () => (await stack.currentBuild()) === newer || null);
    await setLimit(stack.db, BY, organizationId, 100_000);
    await stack.client.workflow.getHandle(uploadId).result();

    t.is(await submitted(), 20);
    const histories = await historiesOf(uploadId);
    t.true(histories.length > 2, `${histories.length} runs`);
    const ends = histories.map((history) => eventNames(history).at(-1));
    t.is(ends.pop(), 'WorkflowExecutionCompleted');
    t.deepEqual([...new Set(ends)], ['WorkflowExecutionContinuedAsNew']);
    const builds = histories.map((history) => buildsOf(history).join(' then '));
    t.deepEqual([...new Set(builds)], [old, `${old} then ${newer}`, newer]);
    for (const { events } of histories) {
      const { priority, memo, searchAttributes } =
        events?.[0]?.workflowExecutionStartedEventAttributes ?? {};
      t.is(priority?.fairnessKey, organizationId);
      t.deepEqual(Object.keys(memo?.fields ?? {}), ['organization_id']);
      t.true('OrganizationId' in (searchAttributes?.indexedFields ?? {}));
    }
  },
);

test.serial(
  'canceling an upload stops it even if its activity has just succeeded',
  async (t) => {
    const connection = await NativeConnection.connect({ address: temporal.address });
    t.teardown(() => connection.close());
    const queue = { connection, taskQueue: 'by-hand' };
    const workflowBundle = { codePath: testSetting('TEST_WORKFLOW_BUNDLE') };
    const stopped: UploadInput[] = [];
    const activities = {
      submitNextPart: async () => ({ kind: 'submitted', submitted: 1, parts: 99 }),
      stopUpload: async (input: UploadInput) => void stopped.push(input),
    };
    const uploadId = 'upl_by_hand';
    const upload = await stack.client.workflow.start(WORKFLOWS.upload, {
      taskQueue: queue.taskQueue,
      workflowId: uploadId,
      args: [{ uploadId } satisfies UploadInput],
    });
    // These signals only make the history long.
    for (let signal = 0; signal < LONG_HISTORY; signal += 1) await upload.signal('none');
    const run = stack.client.workflow.getHandle(uploadId, upload.firstExecutionRunId);
    const has = (event: string) =>
      eventually(async () =>
        eventNames(await run.fetchHistory()).includes(event) ? true : null,
      );
    const closed = () =>
      eventually(async () => {
        const { status } = await run.describe();
        return status.name === 'RUNNING' ? null : status.name;
      });
    // A worker runs either the workflow or its activity, so that one task of the workflow has both
    // the cancellation and the success.
    const runWorkflow = () =>
      Worker.create({
        ...queue,
        workflowBundle,
        activities,
        enableNonLocalActivities: false,
      });
    await (await runWorkflow()).runUntil(has('ActivityTaskScheduled'));
    await upload.cancel();
    const runActivity = await Worker.create({ ...queue, activities });
    await runActivity.runUntil(has('ActivityTaskCompleted'));
    t.is(await (await runWorkflow()).runUntil(closed()), 'CANCELLED');
    t.deepEqual(stopped, [{ uploadId }]);
  },
);
