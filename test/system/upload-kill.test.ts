import test from 'ava';
import { eq, sql } from 'drizzle-orm';
import { setLimit } from '../../db/accounts/organizations.ts';
import { only } from '../../db/client.ts';
import { requests } from '../../db/schema.ts';
import { listUploadBatches } from '../../db/uploads/uploads.ts';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { TASK_QUEUE } from '../../workflows/messages.ts';
import { fresh, testSetting } from '../support/database.ts';
import { BY, eventually } from '../support/organization.ts';
import { workerProcesses } from '../support/programs.ts';
import { startStack } from '../support/stack.ts';
import { uploadInParts } from '../support/uploads.ts';

// Tests an upload of the console while the worker is killed again and again.

const PARTS = 10;
const SIZE = 6;
const NPIS = PARTS * SIZE;

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
});
