import { Context } from '@temporalio/activity';
import { msToTs, optionalTsToMs } from '@temporalio/common/lib/time.js';
import test from 'ava';
import { sql } from 'drizzle-orm';
import { VENDORS } from '../../../activities/vendors/catalogue.ts';
import { leftOver } from '../../support/all-ended.ts';
import { fresh } from '../../support/database.ts';
import { eventually } from '../../support/organization.ts';
import { startStack } from '../../support/stack.ts';
import {
  aborted,
  createScriptedVendor,
  foundStep,
  heldScript,
  ordinaryNpis,
} from '../../support/vendors.ts';

// Tests an operator's actions on single activities in the Temporal UI.

/** A vendor that charges again for a repeated call. */
const vendor = { ...createScriptedVendor(), repeatIsFree: false };
const npis = ordinaryNpis('found', 20);

/** Starts the whole service, with access to its activities like an operator's. */
async function start(lookupTimeoutMs: number, webhookScheduleMs: readonly number[]) {
  const sweepIntervalMs = 500;
  const stack = await startStack({
    lookupTimeoutMs,
    webhookScheduleMs,
    sweepIntervalMs,
    providers: [vendor],
  });
  const { workflowService: service, workflow, options } = stack.client;
  return {
    ...stack,
    service,
    workflow: (id: string) => workflow.getHandle(id),
    /**
     * Returns the last heartbeat of a workflow's only pending activity, in milliseconds since the
     * epoch, or 0.
     */
    async lastHeartbeat(workflowId: string): Promise<number> {
      const { raw } = await workflow.getHandle(workflowId).describe();
      return optionalTsToMs(raw.pendingActivities?.[0]?.lastHeartbeatTime) ?? 0;
    },
    vendorOf: (workflowId: string) => ({
      namespace: options.namespace,
      execution: { workflowId },
      id: vendor.id,
    }),
    /** Returns the NPI and status of each request delivered to a path, sorted. */
    delivered: (path: string): string[] =>
      stack.receiver
        .deliveries()
        .filter((delivery) => delivery.path === path)
        .flatMap(({ body }) => JSON.parse(body).data)
        .map(({ npi, status }) => `${npi} ${status}`)
        .sort(),
  };
}

const stack = fresh(test, () => start(60_000, [0, 3_600_000]));

test.after('every request of these tests ends, and nothing stays held', async (t) => {
  t.deepEqual(await leftOver(stack), []);
});

async function asked(npi: string, operation: 'submit' | 'poll'): Promise<void> {
  await eventually(async () => (vendor.asked(npi, operation) > 0 ? true : null));
}

for (const how of ['pauseActivity', 'resetActivity'] as const) {
  test(`${how} during a vendor call lets the call finish, and its result is used`, async (t) => {
    const [npi = '', other = ''] = npis.splice(0, 2);
    const held = heldScript(foundStep(npi));
    vendor.script(npi, held.script);
    const client = await stack.organization();
    const { json } = await client.bulk({
      npis: [npi, other],
      webhook: { url: `${stack.receiver.url}/${how}` },
    });
    const requestId = json.requests[0]?.request_id ?? '';
    await asked(npi, 'submit');
    const before = await stack.lastHeartbeat(requestId);
    if (how === 'pauseActivity')
      await stack.service.pauseActivity(stack.vendorOf(requestId));
    else await stack.service.resetActivity(stack.vendorOf(requestId));
    // The response to the next heartbeat informs the worker about the pause or the reset.
    await eventually(async () =>
      (await stack.lastHeartbeat(requestId)) > before ? true : null,
    );
    held.release();
    await stack.workflow(json.batch_id).result();
    t.deepEqual(
      stack.delivered(`/${how}`),
      [`${npi} completed`, `${other} not_found`].sort(),
    );
    t.is(vendor.asked(npi, 'submit'), 1);
    t.deepEqual(await client.credits(), { balance: 999, total: 1000, used: 1 });
  });
}

test('the longest vendor call is shorter than two thirds of the heartbeat time-out', async (t) => {
  const stack = await start(900_000, [0]);
  t.teardown(stack.stop);
  const [npi = ''] = npis.splice(0, 1);
  const held = heldScript(foundStep(npi));
  vendor.script(npi, held.script);
  const client = await stack.organization();
  const { json } = await client.single({ npi });
  await asked(npi, 'submit');
  const { events } = await stack
    .workflow(json.requests[0]?.request_id ?? '')
    .fetchHistory();
  const asking = events?.map((event) => event.activityTaskScheduledEventAttributes);
  const timeoutMs = optionalTsToMs(
    asking?.find((one) => one?.activityId === vendor.id)?.heartbeatTimeout,
  );
  const calls = Object.values(VENDORS).map(({ callMs }) => callMs);
  t.true(Math.max(...calls) < ((timeoutMs ?? 0) * 2) / 3, `${timeoutMs} ms`);
  held.release();
  await stack.workflow(json.batch_id).result();
});

test('a request is refunded if its vendor activity is paused, reset, or misrouted', async (t) => {
  const { service, vendorOf } = stack;
  const [paused = '', reset = '', astray = '', endless = '', alone = '', good = ''] =
    npis.splice(0, 6);
  const waiting = [paused, reset, astray, endless, alone];
  for (const npi of waiting) {
    vendor.script(npi, () => ({ kind: 'pending', jobRef: npi, pollAfterMs: 200 }));
  }
  vendor.script(good, () => foundStep(good));
  const client = await stack.organization();
  const webhook = { url: `${stack.receiver.url}/late` };
  const { json } = await client.bulk({
    npis: [paused, reset, astray, endless, good],
    webhook,
  });
  const single = (await client.single({ npi: alone, webhook })).json;
  const ofAlone = single.requests[0]?.request_id ?? '';
  const [ofPaused = '', ofReset = '', ofAstray = '', ofEndless = ''] = json.requests.map(
    (r) => r.request_id,
  );
  await Promise.all(waiting.map((npi) => asked(npi, 'poll')));
  await service.pauseActivity(vendorOf(ofPaused));
  await service.pauseActivity(vendorOf(ofAlone));
  await service.resetActivity(vendorOf(ofReset));
  await service.updateActivityOptions({
    ...vendorOf(ofAstray),
    activityOptions: { taskQueue: { name: 'nobody' } },
    updateMask: { paths: ['task_queue.name'] },
  });
  await service.updateActivityOptions({
    ...vendorOf(ofEndless),
    activityOptions: { scheduleToCloseTimeout: msToTs('1h') },
    updateMask: { paths: ['schedule_to_close_timeout'] },
  });
  await eventually(async () =>
    stack.delivered('/late').length > waiting.length ? true : null,
  );
  const failed = waiting.map((npi) => `${npi} failed`);
  t.deepEqual(stack.delivered('/late'), [...failed, `${good} completed`].sort());
  for (const id of [ofPaused, ofAlone, ofEndless]) {
    await service.unpauseActivity(vendorOf(id)).catch(() => {});
  }
  for (const id of [json.batch_id, single.batch_id]) await stack.workflow(id).result();
  for (const npi of waiting) t.is(vendor.asked(npi, 'submit'), 1);
  t.deepEqual(await client.credits(), { balance: 999, total: 1000, used: 1 });
});

test('a response of an unknown kind fails its request as lookup_failed', async (t) => {
  const responses = [{ kind: 'splendid' }, { reason: 'none' }, 'text', null];
  const own = npis.splice(0, responses.length);
  for (const npi of own) {
    vendor.script(npi, () => aborted(Context.current().cancellationSignal));
  }
  const client = await stack.organization();
  const { json } = await client.bulk({ npis: own });
  await Promise.all(own.map((npi) => asked(npi, 'submit')));
  for (const [index, { request_id: workflowId }] of json.requests.entries()) {
    const activity = { workflowId, activityId: vendor.id };
    await stack.client.activity.complete(activity, responses[index]);
  }
  await client.completed(json.batch_id);
  const rows = await stack.db.drizzle.execute<{ reason: string }>(
    sql`select distinct reason from requests where batch_id = ${json.batch_id}`,
  );
  t.deepEqual([...rows], [{ reason: 'lookup_failed' }]);
  t.deepEqual(await client.credits(), { balance: 1000, total: 1000, used: 0 });
});

test('a response without its reason fails its request at the deadline', async (t) => {
  const stack = await start(29_000, [0]);
  t.teardown(stack.stop);
  const [npi = ''] = npis.splice(0, 1);
  vendor.script(npi, () => aborted(Context.current().cancellationSignal));
  const client = await stack.organization();
  const { json } = await client.single({ npi });
  const workflowId = json.requests[0]?.request_id ?? '';
  for (const activityId of [vendor.id, `${vendor.id}-again`]) {
    const open = { workflowId, activityId };
    await eventually(() =>
      stack.client.activity.complete(open, { kind: 'unresolved' }).then(
        () => true,
        () => null,
      ),
    );
  }
  await client.completed(json.batch_id);
  const [row] = await stack.db.drizzle.execute<{ reason: string }>(
    sql`select reason from requests where batch_id = ${json.batch_id}`,
  );
  t.is(row?.reason, 'deadline');
});

test('a paused webhook delivery is sent after it is unpaused or resent', async (t) => {
  const { service, vendorOf } = stack;
  const client = await stack.organization();
  const paused = async (npi: string, path: string) => {
    vendor.script(npi, () => foundStep(npi));
    const { json } = await client.single({
      npi,
      webhook: { url: `${stack.receiver.url}${path}` },
    });
    const deliveryId = await eventually(async () => {
      const first = stack.receiver
        .deliveries()
        .find((delivery) => delivery.path === path);
      return first ? String(first.headers['webhook-id']) : null;
    });
    const activity = { ...vendorOf(deliveryId), id: '1' };
    await eventually(() =>
      service.pauseActivity(activity).then(
        () => true,
        () => null,
      ),
    );
    return { batchId: json.batch_id, deliveryId, activity };
  };
  const [npi = '', other = ''] = npis.splice(0, 2);
  const first = await paused(npi, '/fail/1/unpaused');
  await stack.db.drizzle.execute(
    sql`update webhook_deliveries set due_at = now() where id = ${first.deliveryId}`,
  );
  await service.unpauseActivity(first.activity);
  await stack.workflow(first.deliveryId).result();
  const second = await paused(other, '/fail/1/resent');
  const path = `/api/v1/batch/${second.batchId}/deliveries/${second.deliveryId}/resend`;
  t.is((await client.call('POST', path)).status, 202);
  await eventually(async () =>
    stack.delivered('/fail/1/resent').length === 2 ? true : null,
  );
  t.is(stack.delivered('/fail/1/unpaused').length, 2);
});
