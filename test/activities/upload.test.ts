import type { ApplicationFailure } from '@temporalio/common';
import test from 'ava';
import { and, eq, isNull } from 'drizzle-orm';
import { createMail } from '../../activities/mail.ts';
import { createUploadActivities } from '../../activities/upload.ts';
import { balanceOf } from '../../db/accounts/credits.ts';
import { type Database, query } from '../../db/connection/client.ts';
import { type LookupEnd, settle } from '../../db/requests/settle.ts';
import { requests, uploadParts } from '../../db/schema.ts';
import { claimUnsubmitted, finishUpload } from '../../db/uploads/parts.ts';
import {
  deleteUpload,
  findUpload,
  listUploadBatches,
  stopUpload,
} from '../../db/uploads/uploads.ts';
import { freshDatabase, openTestDatabase, travel } from '../support/database.ts';
import { startMailServer } from '../support/mail-server.ts';
import {
  joinLookups,
  openOrganization,
  RULES,
  WORKER_RULES,
} from '../support/organization.ts';
import { NO_TEMPORAL, quiet } from '../support/runtime.ts';
import { startedUpload, uploadInParts } from '../support/uploads.ts';
import { ordinaryNpis } from '../support/vendors.ts';

const { db } = freshDatabase(test);

const deps = { db, log: quiet, control: NO_TEMPORAL, mail: null, rules: WORKER_RULES };
const activities = createUploadActivities(deps);
const { submitNextPart } = activities;
const TWO_PARTS = { parts: 2, size: 1 };
const MINUTE = 60_000;

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

test('a part that must wait for its turn is not started', async (t) => {
  const organization = await openOrganization(db, 120);
  const uploadId = await startedUpload(db, organization, ordinaryNpis('found', 120));
  const started: string[] = [];
  const startBatch = async ({ batchId }: { readonly batchId: string }) =>
    void started.push(batchId);
  const control = { ...NO_TEMPORAL, startBatch };
  const { submitNextPart } = createUploadActivities({ ...deps, control });
  for (const submitted of [1, 2]) {
    t.like(await submitNextPart({ uploadId }), { submitted });
  }
  t.is(started.length, 1);
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

/** Returns the ids of an organization's open requests. */
async function openIds(db: Database, organizationId: string): Promise<string[]> {
  const open = await query(db, (tx) =>
    tx
      .select({ id: requests.id })
      .from(requests)
      .where(
        and(eq(requests.organizationId, organizationId), isNull(requests.settledAt)),
      ),
  );
  return open.map(({ id }) => id);
}

test('while the lookups of an upload fail, it tries one NPI every five minutes', async (t) => {
  await using database = await openTestDatabase();
  const clock = await travel(database.url);
  t.teardown(() => clock.stop());
  const { db } = database;
  const { submitNextPart } = createUploadActivities({ ...deps, db });
  const organization = await openOrganization(db, 1000);
  const { organizationId } = organization;
  const uploadId = await startedUpload(db, organization, ordinaryNpis('found', 300));
  const next = () => submitNextPart({ uploadId });
  const waits = (message: string) => t.throwsAsync(next(), { message });
  const open = () => openIds(db, organizationId);
  const endAll = async (end: LookupEnd, reason: string) => {
    for (const id of await open()) await settle(db, id, end, reason, RULES);
  };
  const triesOne = async () => {
    await waits('waits for a smaller part');
    await next();
    t.is((await open()).length, 1);
  };

  for (let part = 0; part < 3; part += 1) await next();
  await endAll('failed', 'deadline');
  await waits('waits for lookups to succeed');
  await clock.advance(5 * MINUTE);
  await triesOne();
  await clock.advance(5 * MINUTE);
  // The request of this NPI is still open.
  await waits('waits for lookups to succeed');
  await endAll('failed', 'deadline');
  await waits('waits for lookups to succeed');

  // NPIs for which no source is asked say nothing about an outage.
  await clock.advance(5 * MINUTE);
  await triesOne();
  await endAll('finished', 'inactive');
  await triesOne();
  await joinLookups(db, await open());
  await endAll('finished', 'known_miss');
  await triesOne();
  await joinLookups(db, await open());
  await endAll('finished', 'suppressed');

  await triesOne();
  await joinLookups(db, await open());
  await endAll('finished', 'nobody');
  await next();
  t.true((await open()).length > 50);
  t.is((await findUpload(db, { organizationId, uploadId }))?.total, 300);
});

test('an upload does not wait for a failure that is in the future', async (t) => {
  await using database = await openTestDatabase();
  const clock = await travel(database.url);
  t.teardown(() => clock.stop());
  const { db } = database;
  const { submitNextPart } = createUploadActivities({ ...deps, db });
  const organization = await openOrganization(db, 9);
  const uploadId = await uploadInParts(db, organization, { parts: 2, size: 2 });
  await submitNextPart({ uploadId });
  await clock.advance(10 * MINUTE);
  for (const id of await openIds(db, organization.organizationId))
    await settle(db, id, 'failed', 'deadline', RULES);
  await clock.advance(-10 * MINUTE);
  await t.throwsAsync(submitNextPart({ uploadId }), {
    message: 'waits for a smaller part',
  });
});

test('a part that a dead process submitted is recorded even while lookups fail', async (t) => {
  const organization = await openOrganization(db, 9);
  const { organizationId } = organization;
  const uploadId = await uploadInParts(db, organization, { parts: 2, size: 2 });
  await submitNextPart({ uploadId });
  await submitNextPart({ uploadId });
  const before = await listUploadBatches(db, uploadId);
  for (const id of await openIds(db, organizationId))
    await settle(db, id, 'failed', 'deadline', RULES);
  await query(db, (tx) =>
    tx
      .update(uploadParts)
      .set({ batchId: null })
      .where(and(eq(uploadParts.uploadId, uploadId), eq(uploadParts.position, 1))),
  );
  await submitNextPart({ uploadId });
  t.deepEqual(await listUploadBatches(db, uploadId), before);
});

/** Submits an upload of one NPI that wants an email, and returns it with its activities. */
async function noticedUpload(smtpUrl: string, to: string) {
  const organization = await openOrganization(db, 9);
  const { organizationId } = organization;
  const npis = ordinaryNpis('found', 1);
  const uploadId = await startedUpload(db, organization, npis, '', to);
  const publicUrl = 'https://api.example.com';
  const mail = createMail({ smtpUrl, from: 'uploads@service.example', publicUrl });
  const activities = createUploadActivities({ ...deps, mail });
  return { organizationId, uploadId, ...activities };
}

test('an email waits for the results, and is retried while its server fails', async (t) => {
  const mails = await startMailServer();
  t.teardown(mails.stop);
  const to = 'ana@clinic.example';
  const upload = await noticedUpload(mails.url, to);
  const { uploadId, submitNextPart, notifyEnd } = upload;
  await submitNextPart({ uploadId });
  t.deepEqual(await submitNextPart({ uploadId }), { kind: 'ended', hasNotice: true });
  await t.throwsAsync(notifyEnd({ uploadId }), { message: 'waits for results' });
  for (const id of await openIds(db, upload.organizationId))
    await settle(db, id, 'finished', 'nobody', RULES);
  mails.state.status = 451;
  const failure = await t.throwsAsync<ApplicationFailure>(notifyEnd({ uploadId }));
  t.is(failure?.message, 'SMTP failed: EENVELOPE 451');
  t.falsy(failure?.nonRetryable);
  t.is(mails.to(to).length, 0);
  mails.state.status = null;
  for (let n = 0; n < 2; n += 1) await notifyEnd({ uploadId });
  t.is(mails.to(to).length, 1);
});

test('no email is sent about an upload that its visitor has stopped', async (t) => {
  const mails = await startMailServer();
  t.teardown(mails.stop);
  const to = 'ana@clinic.example';
  const upload = await noticedUpload(mails.url, to);
  const { uploadId, organizationId, submitNextPart, notifyEnd } = upload;
  await stopUpload(db, { organizationId, uploadId });
  t.deepEqual(await submitNextPart({ uploadId }), { kind: 'ended' });
  await notifyEnd({ uploadId });
  t.is(mails.to(to).length, 0);
});

test('no email is sent in the clear to another machine', async (t) => {
  const mails = await startMailServer();
  t.teardown(mails.stop);
  // Our rule does not know this name of this machine.
  const smtpUrl = `smtp://[::ffff:127.0.0.1]:${mails.port}`;
  const upload = await noticedUpload(smtpUrl, 'ana@clinic.example');
  const { uploadId, submitNextPart, notifyEnd } = upload;
  await submitNextPart({ uploadId });
  await submitNextPart({ uploadId });
  for (const id of await openIds(db, upload.organizationId))
    await settle(db, id, 'finished', 'nobody', RULES);
  await t.throwsAsync(notifyEnd({ uploadId }), { message: /^SMTP failed: ETLS / });
});
