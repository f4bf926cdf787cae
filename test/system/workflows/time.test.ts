import test, { type ExecutionContext } from 'ava';
import { sql } from 'drizzle-orm';
import { beginStep, CHECK_MS } from '../../../db/lookups/turns.ts';
import { submit } from '../../../db/requests/submit.ts';
import { countUploadResults } from '../../../db/uploads/uploads.ts';
import { STORED_EMAILS } from '../../../deploy/local/sim/magic.ts';
import { startUpload } from '../../../workflows/starts.ts';
import { HOUR, SCHEDULE_MS } from '../../support/deliveries.ts';
import { eventNames } from '../../support/histories.ts';
import { operatorOn } from '../../support/operator.ts';
import {
  acceptedIds,
  type EnvelopeResponse,
  eventually,
  joinLookups,
  RULES,
  submitCommand,
} from '../../support/organization.ts';
import { SkippedTime } from '../../support/skipped-time.ts';
import {
  type Stack,
  type StackOptions,
  startStack,
  vendorSource,
} from '../../support/stack.ts';
import { storeEmail } from '../../support/stored.ts';
import { waitsForTurn } from '../../support/turns.ts';
import { uploadInParts } from '../../support/uploads.ts';
import { createScriptedVendor, foundStep, ordinaryNpis } from '../../support/vendors.ts';

// Tests work that takes minutes, hours, or days, with the default settings.

const SECOND = 1000;
const MINUTE = 60 * SECOND;
/** Time also passes while the machine works. AVA ends a test that works longer than this. */
const SLACK_MS = 5 * MINUTE;
const JITTER = 0.2;

async function startInSkippedTime(t: ExecutionContext, options: StackOptions = {}) {
  const time = await SkippedTime.start();
  const stack = await startStack({ ...options, time });
  t.teardown(() => stack.stop());
  return { time, stack };
}

/**
 * Skips time until a workflow has closed, and returns its result. The time may then be that of a
 * later timer.
 */
async function resultOf(
  { client, reconcile }: Stack,
  workflowId: string,
): Promise<unknown> {
  const run = client.workflow.getHandle(workflowId);
  await eventually(async () => {
    // On a slow machine, the API leaves the start of a batch to the reconciler.
    await reconcile();
    return await run.describe().catch(() => null);
  });
  return await run.result();
}

/**
 * Waits until a workflow has come to an event and has no task. A workflow that is terminated during
 * a task stops the time of the test server.
 */
async function rests(
  { client }: Stack,
  workflowId: string,
  event: string,
): Promise<void> {
  const run = client.workflow.getHandle(workflowId);
  await eventually(async () => {
    const description = await run.describe().catch(() => null);
    if (description === null) return null;
    const names = eventNames(await run.fetchHistory());
    const hasTask = ['WorkflowTaskScheduled', 'WorkflowTaskStarted'].includes(
      names.at(-1) ?? '',
    );
    const pending = description.raw.pendingActivities ?? [];
    const hasAttempt = pending.some(({ lastFailure }) => !lastFailure);
    return names.includes(event) && !hasTask && !hasAttempt ? true : null;
  });
}

/** Asserts that something took at least one time, and at most another plus the slack. */
function isAbout(t: ExecutionContext, ms: number, atLeast: number, atMost: number): void {
  const limit = atMost + SLACK_MS;
  t.true(ms >= atLeast && ms <= limit, `${ms} ms is not between ${atLeast} and ${limit}`);
}

/** Returns the time from the submit of a batch to its last change. */
function lasted({ batch }: EnvelopeResponse): number {
  return Date.parse(batch.updated_at) - Date.parse(batch.created_at);
}

test.serial(
  'a lookup whose vendor never finishes fails after 15 minutes and is refunded',
  async (t) => {
    const [npi = ''] = ordinaryNpis('found', 1);
    const vendor = createScriptedVendor();
    const pollAfterMs = 20 * SECOND;
    vendor.script(npi, () => ({ kind: 'pending', jobRef: 'job', pollAfterMs }));
    const { stack } = await startInSkippedTime(t, { providers: [vendor] });
    const client = await stack.organization(10);
    const { json } = await client.single({ npi });
    t.deepEqual(await client.credits(), { balance: 9, total: 10, used: 0 });

    t.deepEqual(await resultOf(stack, json.batch_id), {
      completed: 0,
      notFound: 0,
      failed: 1,
    });
    const [request] = json.requests;
    t.deepEqual(await resultOf(stack, request?.request_id ?? ''), {
      status: 'failed',
      reason: 'deadline (pending)',
    });
    t.deepEqual(await client.credits(), { balance: 10, total: 10, used: 0 });
    const envelope = await client.batch(json.batch_id);
    t.is(envelope.data[0]?.status, 'failed');
    // Temporal makes no attempt that would begin after the deadline.
    isAbout(t, lasted(envelope), 15 * MINUTE - pollAfterMs, 15 * MINUTE);
    t.is(vendor.asked(npi, 'submit'), 1);
  },
);

test.serial(
  'a lookup calls a source whose breaker was open again when it can',
  async (t) => {
    const [npi = ''] = ordinaryNpis('found', 1);
    const resting = createScriptedVendor('resting');
    const working = createScriptedVendor('working');
    resting.script(npi, () => foundStep(npi));
    working.script(npi, ({ nth, operation }) => {
      if (operation === 'poll' && nth === 5) return { kind: 'miss', reason: 'nobody' };
      return { kind: 'pending', jobRef: 'job', pollAfterMs: MINUTE };
    });
    const vendors = [resting, working].map((vendor) =>
      vendorSource(vendor, { capMs: MINUTE }),
    );
    const { stack } = await startInSkippedTime(t, { vendors });
    const client = await stack.organization(10);
    // Longer than the first share of the rest of the time.
    await stack.db.drizzle.execute(sql`
    insert into source_health (source, state, opened_at, open_until)
    values ('resting', 'open', clock_timestamp(), clock_timestamp() + interval '9 minutes')`);
    const { json } = await client.single({ npi });
    const requestId = json.requests[0]?.request_id ?? '';
    t.deepEqual(await resultOf(stack, requestId), { status: 'completed', reason: null });
    t.deepEqual([resting.asked(npi, 'submit'), working.asked(npi, 'submit')], [1, 1]);
    const { text } = operatorOn(stack.databaseUrl);
    const story = await text('explain', requestId);
    t.regex(story, /resting not called \(breaker_open until \d{4}-\S+Z\)$/m);
    await resultOf(stack, json.batch_id);
    isAbout(t, lasted(await client.batch(json.batch_id)), 8 * MINUTE, 10 * MINUTE);
  },
);

test.serial('a lookup that ends before its deadline does not say deadline', async (t) => {
  const [npi = ''] = ordinaryNpis('found', 1);
  // As slow as its time-out, and it may charge for each call.
  const vendor = { ...createScriptedVendor(), repeatIsFree: false };
  vendor.script(npi, () => ({ kind: 'retry', why: 'unanswered', afterMs: null }));
  const { stack } = await startInSkippedTime(t, { providers: [vendor] });
  const client = await stack.organization(10);
  const { json } = await client.single({ npi });
  const requestId = json.requests[0]?.request_id ?? '';
  const failed = { status: 'failed', reason: 'unanswered' };
  t.deepEqual(await resultOf(stack, requestId), failed);
  t.is(vendor.asked(npi, 'submit'), 2);
  await resultOf(stack, json.batch_id);
  isAbout(t, lasted(await client.batch(json.batch_id)), 0, MINUTE);
});

test.serial(
  'a webhook receiver that always returns 500 gets ten attempts in three days',
  async (t) => {
    const [npi = ''] = ordinaryNpis('found', 1);
    const { stack } = await startInSkippedTime(t);
    const client = await stack.organization(10);
    const { json } = await client.single({
      npi,
      webhook: { url: `${stack.receiver.url}/status/500` },
    });
    await resultOf(stack, json.batch_id);
    const path = `/api/v1/batch/${json.batch_id}/deliveries`;
    const { deliveries } = (await client.get<{ deliveries: { id: string }[] }>(path))
      .json;

    t.is(await resultOf(stack, deliveries[0]?.id ?? ''), 'failed');
    const sentAt = stack.receiver
      .deliveries()
      .map(({ headers }) => Number(headers['webhook-timestamp']) * SECOND);
    t.is(sentAt.length, SCHEDULE_MS.length);
    for (const [index, step] of SCHEDULE_MS.entries()) {
      const waited = (sentAt[index] ?? 0) - (sentAt[index - 1] ?? sentAt[0] ?? 0);
      isAbout(t, waited, step * (1 - JITTER) - SECOND, step * (1 + JITTER) + SECOND);
    }
    t.is(
      SCHEDULE_MS.reduce((sum, step) => sum + step),
      75.5 * HOUR + 305 * SECOND,
    );
    t.is((await client.batch(json.batch_id)).webhook?.status, 'failed');
  },
);

test.serial('a greylisted address is checked again after five minutes', async (t) => {
  const npi = '2000000143';
  const { stack } = await startInSkippedTime(t, { allSources: true });
  const client = await stack.organization(10);
  const { json } = await client.single({ npi });
  const requestId = json.requests[0]?.request_id ?? '';

  t.deepEqual(await resultOf(stack, requestId), { status: 'completed', reason: null });
  const { events } = await stack.client.workflow.getHandle(requestId).fetchHistory();
  const timers = (events ?? []).filter(
    ({ timerStartedEventAttributes }) => timerStartedEventAttributes,
  );
  const summaries = timers.map(({ userMetadata }) =>
    Buffer.from(userMetadata?.summary?.data ?? '').toString(),
  );
  t.deepEqual(summaries, ['"greylisted: rocketreach"']);
  const calls = stack.simulator.calls().map(({ vendor, route }) => `${vendor} ${route}`);
  const checks = calls.filter((call) => call.startsWith('reacher'));
  const lookups = calls.filter((call) => call.endsWith('/person/lookup'));
  t.deepEqual([checks.length, lookups.length], [2, 1]);
  await resultOf(stack, json.batch_id);
  isAbout(t, lasted(await client.batch(json.batch_id)), 5 * MINUTE, 5 * MINUTE);
});

test.serial(
  'after a check was lost with its worker, known addresses still come before vendors',
  async (t) => {
    const [stale] = STORED_EMAILS.filter(({ validatedAgoMs }) => validatedAgoMs > 0);
    const { npi = '', email = '', type: emailType = 'professional' } = stale ?? {};
    const { stack } = await startInSkippedTime(t, { allSources: true });
    const lastValidatedAt = new Date(Date.now() - 40 * 24 * HOUR);
    const known = { npi, email, emailType, lastValidatedAt, source: 'test' };
    await storeEmail(stack.db, known);
    const command = submitCommand(await stack.organization(10), { npis: [npi] });
    const rules = { ...RULES, lookupTimeoutMs: 15 * MINUTE };
    const outcome = acceptedIds(await submit(stack.db, command, rules));
    const [requestId = ''] = outcome.requestIds;
    await joinLookups(stack.db, [requestId]);
    const { freshnessMs } = RULES;
    const step = { requestId, vendor: null, turnMs: 200 * SECOND, freshnessMs };
    await beginStep(stack.db, step);
    await stack.startedWorkflow(outcome.batchId);
    await waitsForTurn(stack, requestId);
    // The lost check began after the activity.
    await stack.db.drizzle.execute(sql`
      update lookups set turn_until = clock_timestamp() + make_interval(secs => ${CHECK_MS / 1000})`);
    t.deepEqual(await resultOf(stack, requestId), { status: 'completed', reason: null });
    t.deepEqual(
      stack.simulator.calls().map(({ route, subject }) => `${route} ${subject}`),
      [`POST /v1/check_email ${email}`],
    );
  },
);

test.serial(
  'the reconciler repairs a batch at most once an hour and refunds it at its deadline',
  async (t) => {
    const [found = '', closed = '', silent = ''] = ordinaryNpis('found', 3);
    const vendor = createScriptedVendor();
    vendor.script(found, () => foundStep(found));
    for (const npi of [closed, silent]) {
      vendor.script(npi, () => ({
        kind: 'pending',
        jobRef: 'job',
        pollAfterMs: 5 * MINUTE,
      }));
    }
    const { stack, time } = await startInSkippedTime(t, { providers: [vendor] });
    const client = await stack.organization(10);
    const ids = new Map<
      string,
      { readonly batchId: string; readonly requestId: string }
    >();
    const idsOf = (npi: string) => ids.get(npi) ?? { batchId: '', requestId: '' };
    const terminate = (workflowId: string) =>
      stack.client.workflow.getHandle(workflowId).terminate();
    /** Lets a minute pass before the reconciler makes its round. */
    const round = async () => {
      await time.skip(MINUTE);
      const { started, restarted, refunded } = await stack.reconcile();
      return `${started} started, ${restarted} restarted, ${refunded} refunded`;
    };

    // Accepted by an API that died before it started the workflows.
    for (const npi of [found, closed, silent]) {
      const rules = { ...RULES, lookupTimeoutMs: 15 * MINUTE };
      const { batchId, requestIds } = acceptedIds(
        await submit(stack.db, submitCommand(client, { npis: [npi] }), rules),
      );
      ids.set(npi, { batchId, requestId: requestIds[0] ?? '' });
    }
    t.is(await round(), '3 started, 0 restarted, 0 refunded');
    await client.completed(idsOf(found).batchId);

    for (const npi of [closed, silent]) {
      const { batchId, requestId } = idsOf(npi);
      await rests(stack, requestId, 'ActivityTaskScheduled');
      await rests(stack, batchId, 'ChildWorkflowExecutionStarted');
      await terminate(batchId);
    }
    await terminate(idsOf(closed).requestId);
    t.is(await round(), '0 started, 2 restarted, 0 refunded');
    await client.completed(idsOf(closed).batchId);

    // The batch runs again and waits for its lookup, which now can't report its end.
    await rests(stack, idsOf(silent).batchId, 'TimerStarted');
    await terminate(idsOf(silent).requestId);
    const later: string[] = [];
    for (let minute = 3; minute <= 60; minute += 1) later.push(await round());
    const quiet = '0 started, 0 restarted, 0 refunded';
    t.deepEqual(
      later.filter((line) => line !== quiet),
      ['0 started, 0 restarted, 1 refunded'],
    );
    const envelope = await client.batch(idsOf(silent).batchId);
    t.is(envelope.data[0]?.status, 'failed');
    isAbout(t, lasted(envelope), 15 * MINUTE, 16 * MINUTE);
    const { status } = await stack.client.workflow
      .getHandle(idsOf(silent).batchId)
      .describe();
    t.is(status.name, 'COMPLETED');
    t.deepEqual(await client.credits(), { balance: 9, total: 10, used: 1 });
  },
);

test.serial(
  'an upload waits during an outage of two hours, and goes on after it',
  async (t) => {
    const npis = ordinaryNpis('found', 60);
    const vendor = createScriptedVendor();
    let isDown = true;
    for (const npi of npis) {
      vendor.script(npi, () =>
        isDown ? { kind: 'fatal', why: 'auth' } : foundStep(npi),
      );
    }
    const { stack, time } = await startInSkippedTime(t, { providers: [vendor] });
    // With one submit of one NPI a minute, all could be submitted during the outage. The first ones
    // fail after 15 minutes.
    const client = await stack.organization(100, 1);
    const uploadId = await uploadInParts(stack.db, client, { parts: 60, size: 1 });
    const { organizationId } = client;
    await startUpload(stack.client, stack.taskQueue, { uploadId, organizationId });
    await time.skip(2 * HOUR);
    const { failed } = await countUploadResults(stack.db, uploadId);
    t.true(failed > 1 && failed < 30, `${failed} failed`);

    isDown = false;
    await resultOf(stack, uploadId);
    const ended = await eventually(async () => {
      const results = await countUploadResults(stack.db, uploadId);
      return results.found + results.failed === npis.length ? results : null;
    });
    t.true(ended.failed <= failed + 1, `${ended.failed} failed`);
  },
);
