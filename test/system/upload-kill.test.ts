import test from 'ava';
import { eq, sql } from 'drizzle-orm';
import { only } from '../../db/client.ts';
import { requests } from '../../db/schema.ts';
import { listUploadBatches } from '../../db/uploads/uploads.ts';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { TASK_QUEUE } from '../../workflows/messages.ts';
import { fresh, testSetting } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { workerProcesses } from '../support/programs.ts';
import { startStack } from '../support/stack.ts';
import { startedUpload } from '../support/uploads.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests an upload of the console while the worker is killed again and again.

const NPIS = 600;
const PARTS = NPIS / 60;

const temporal = fresh(test, () =>
  startTemporal({ cli: testSetting('TEST_TEMPORAL_CLI'), namespace: 'default' }),
);
const stack = fresh(test, () =>
  startStack({ elsewhere: { temporalAddress: temporal.address, taskQueue: TASK_QUEUE } }),
);
const workers = fresh(test, async () => workerProcesses());

test('an upload continues after workers are killed, and submits no NPI twice', async (t) => {
  const live = await stack.organization(0);
  const sandbox = await stack.sandboxOf(live);
  const { organizationId } = sandbox;
  const uploadId = await startedUpload(stack.db, sandbox, ordinaryNpis('found', NPIS));
  const submitted = async () => (await listUploadBatches(stack.db, uploadId)).length;
  for (const parts of [1, 4]) {
    const worker = await workers.start(stack);
    await eventually(async () => ((await submitted()) >= parts ? true : null));
    process.kill(worker.pid, 'SIGKILL');
    await worker.exited;
  }
  t.true((await submitted()) < PARTS, 'killed in the middle');

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
});
