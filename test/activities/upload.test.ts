import type { ApplicationFailure } from '@temporalio/common';
import test from 'ava';
import { createUploadActivities } from '../../activities/upload.ts';
import { findUpload, listUploadBatches, stopUpload } from '../../db/uploads/uploads.ts';
import { freshDatabase } from '../support/database.ts';
import { openOrganization, WORKER_RULES } from '../support/organization.ts';
import { NO_TEMPORAL, quiet } from '../support/runtime.ts';
import { startedUpload } from '../support/uploads.ts';
import { ordinaryNpis } from '../support/vendors.ts';

const { db } = freshDatabase(test);

const deps = { db, log: quiet, control: NO_TEMPORAL, rules: WORKER_RULES };
const activities = createUploadActivities(deps);
const { submitNextPart } = activities;

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
