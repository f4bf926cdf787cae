import type { ApplicationFailure } from '@temporalio/common';
import test from 'ava';
import { eq } from 'drizzle-orm';
import { createUploadActivities } from '../../activities/upload.ts';
import { balanceOf } from '../../db/accounts/credits.ts';
import { query } from '../../db/client.ts';
import { uploadParts } from '../../db/schema.ts';
import { claimUnsubmitted, finishUpload } from '../../db/uploads/parts.ts';
import {
  deleteUpload,
  findUpload,
  listUploadBatches,
  stopUpload,
} from '../../db/uploads/uploads.ts';
import { freshDatabase } from '../support/database.ts';
import { openOrganization, WORKER_RULES } from '../support/organization.ts';
import { NO_TEMPORAL, quiet } from '../support/runtime.ts';
import { startedUpload, uploadInParts } from '../support/uploads.ts';
import { ordinaryNpis } from '../support/vendors.ts';

const { db } = freshDatabase(test);

const deps = { db, log: quiet, control: NO_TEMPORAL, rules: WORKER_RULES };
const activities = createUploadActivities(deps);
const { submitNextPart } = activities;
const TWO_PARTS = { parts: 2, size: 1 };

test('a part counts as submitted even if its batch cannot be started', async (t) => {
  const organization = await openOrganization(db, 60);
  const uploadId = await startedUpload(db, organization, ordinaryNpis('found', 1));
  const startBatch = () => Promise.reject(new Error('no Temporal'));
  const control = { ...NO_TEMPORAL, startBatch };
  const failing = createUploadActivities({ ...deps, control });
  await t.throwsAsync(failing.submitNextPart({ uploadId }), { message: 'no Temporal' });
  await stopUpload(db, { organizationId: organization.organizationId, uploadId });
  await submitNextPart({ uploadId });
  t.is((await listUploadBatches(db, uploadId)).length, 1);
});

test('an upload whose parts are all submitted is not stopped', async (t) => {
  const organization = await openOrganization(db, 60);
  const { organizationId } = organization;
  const uploadId = await startedUpload(db, organization, ordinaryNpis('found', 1));
  await submitNextPart({ uploadId });
  await stopUpload(db, { organizationId, uploadId });
  await activities.stopUpload({ uploadId });
  t.is((await findUpload(db, { organizationId, uploadId }))?.stopReason, null);
});

test('an upload that waits for credits tries again at growing intervals', async (t) => {
  const organization = await openOrganization(db, 60);
  const uploadId = await startedUpload(db, organization, ordinaryNpis('found', 61));
  const first = await submitNextPart({ uploadId });
  t.deepEqual(first, { kind: 'submitted', submitted: 1, parts: 2 });
  const waiting = submitNextPart({ uploadId });
  const failure = await t.throwsAsync<ApplicationFailure>(waiting);
  t.is(failure?.message, 'waits for credits');
  // The error sets no delay, so the retry policy decides. Its delays grow.
  t.is(failure?.nextRetryDelay, undefined);
});

test('an upload waits while another one holds the last credits', async (t) => {
  const organization = await openOrganization(db, 1);
  const [first = '', second = ''] = ordinaryNpis('found', 2);
  const holder = await startedUpload(db, organization, [first]);
  const waiter = await startedUpload(db, organization, [second]);
  await submitNextPart({ uploadId: holder });
  await t.throwsAsync(submitNextPart({ uploadId: waiter }), {
    message: 'waits for credits',
  });
});

test('an upload with parts left does not count as submitted', async (t) => {
  const client = await openOrganization(db, 1);
  const uploadId = await startedUpload(db, client, ordinaryNpis('found', 2));
  await finishUpload(db, uploadId);
  const waiting = await claimUnsubmitted(db, 0, 1000);
  t.true(waiting.some((upload) => upload.uploadId === uploadId));
});

test('a part is submitted once, even if the process dies before it is recorded', async (t) => {
  const organization = await openOrganization(db, 9);
  const { organizationId } = organization;
  const uploadId = await startedUpload(db, organization, ordinaryNpis('found', 1));
  await submitNextPart({ uploadId });
  const before = await listUploadBatches(db, uploadId);
  await query(db, (tx) =>
    tx
      .update(uploadParts)
      .set({ batchId: null })
      .where(eq(uploadParts.uploadId, uploadId)),
  );
  await submitNextPart({ uploadId });
  t.deepEqual(await listUploadBatches(db, uploadId), before);
  t.is((await balanceOf(db, organizationId)).held, 1);
});

test('an upload can be deleted as soon as its last part is submitted', async (t) => {
  const organization = await openOrganization(db, 9);
  const { organizationId } = organization;
  const uploadId = await uploadInParts(db, organization, TWO_PARTS);
  await submitNextPart({ uploadId });
  t.false(await deleteUpload(db, { organizationId, uploadId }));
  await submitNextPart({ uploadId });
  t.true(await deleteUpload(db, { organizationId, uploadId }));
});

test('the next part waits while 180 requests of its upload are open', async (t) => {
  const organization = await openOrganization(db, 181);
  const uploadId = await startedUpload(db, organization, ordinaryNpis('found', 181));
  for (let part = 0; part < 3; part += 1) await submitNextPart({ uploadId });
  await t.throwsAsync(submitNextPart({ uploadId }), {
    message: 'waits for open requests',
  });
});
