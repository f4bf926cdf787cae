import { randomUUID } from 'node:crypto';
import test from 'ava';
import { sql } from 'drizzle-orm';
import { settle } from '../../db/requests/settle.ts';
import { claimDelivery } from '../../db/webhooks/attempts.ts';
import { findDueDelivery } from '../../db/webhooks/deliveries.ts';
import { WORKFLOWS } from '../../workflows/messages.ts';
import { eventually, RULES } from '../support/organization.ts';
import { type Stack, startStack } from '../support/stack.ts';
import {
  createScriptedVendor,
  foundStep,
  heldScript,
  ordinaryNpis,
} from '../support/vendors.ts';

// Tests that workflows decide by the state in PostgreSQL. Signals only wake them. Unexpected
// signals and workflows started by hand change nothing.

const vendor = createScriptedVendor();
const npis = ordinaryNpis('found', 20);
let stack: Stack;

test.before(async () => {
  // This is longer than any test takes on a busy machine, so that no request reaches its deadline.
  stack = await startStack({ lookupTimeoutMs: 900_000, providers: [vendor] });
});

test.after.always(async () => {
  await stack?.stop();
});

function workflow(id = '') {
  return stack.client.workflow.getHandle(id);
}

async function deliveriesOf(batchId: string) {
  return [
    ...(await stack.db.drizzle.execute<{ id: string; attempts: number }>(
      sql`select id, attempts from webhook_deliveries where batch_id = ${batchId} order by id`,
    )),
  ];
}

/**
 * Submits a bulk of two NPIs. The vendor holds its response for the first one until `release` is
 * called.
 */
async function heldBatch(path: string) {
  const [slow = '', quick = ''] = npis.splice(0, 2);
  const held = heldScript(foundStep(slow));
  vendor.script(slow, held.script);
  vendor.script(quick, () => foundStep(quick));
  const client = await stack.organization();
  const { json } = await client.bulk({
    npis: [slow, quick],
    webhook: { url: `${stack.receiver.url}${path}` },
  });
  await eventually(async () => {
    const { batch } = await client.batch(json.batch_id);
    return vendor.asked(slow, 'submit') > 0 && batch.completed_count === 1 ? true : null;
  });
  const received = () =>
    stack.receiver
      .deliveries()
      .filter((delivery) => delivery.path === path)
      .map(({ body }) => JSON.parse(body).data[0])
      .map(({ npi, status }) => `${npi} ${status}`);
  return { client, json, slow, quick, received, release: held.release };
}

test('false, empty, and unknown signals to a batch workflow have no effect', async (t) => {
  const { client, json, slow, quick, received, release } = await heldBatch('/lies');
  const [first] = json.requests;
  const batch = workflow(json.batch_id);
  await batch.signal('requestSettled', {
    requestId: first?.request_id,
    deliveryId: null,
  });
  await batch.signal('requestSettled', {
    requestId: first?.request_id,
    deliveryId: 'msg_unknown',
  });
  await batch.signal('requestSettled');
  await batch.signal('requestSettled', 'rubbish', { more: [null] });
  await batch.signal('requestSettled', { requestId: 'req_unknown', deliveryId: 7 });
  await batch.signal('nobodyListens', { at: 'all' });
  for (const encoding of ['json/plain', 'binary/unheard-of']) {
    await stack.client.workflowService.signalWorkflowExecution({
      ...{ namespace: 'default', signalName: 'requestSettled' },
      workflowExecution: { workflowId: json.batch_id },
      input: {
        payloads: [
          { metadata: { encoding: Buffer.from(encoding) }, data: Buffer.from('{"half') },
        ],
      },
    });
  }
  await eventually(async () => {
    const { events } = await batch.fetchHistory();
    const signals = (events ?? []).filter(
      (event) => event.workflowExecutionSignaledEventAttributes,
    );
    return signals.length >= 9 ? true : null;
  });
  release();
  await batch.result();
  t.deepEqual(received().sort(), [`${slow} completed`, `${quick} completed`].sort());
  t.deepEqual(await client.credits(), { balance: 998, total: 1000, used: 2 });
});

test('a request that becomes final while its lookup still runs gets its webhook at once', async (t) => {
  const { json, slow, received, release } = await heldBatch('/stuck');
  const requestId = json.requests[0]?.request_id ?? '';
  await settle(stack.db, requestId, 'failed', 'deadline', RULES);
  const deliveryId = await findDueDelivery(stack.db, json.batch_id, requestId);
  await workflow(json.batch_id).signal('requestSettled', { requestId, deliveryId });
  await eventually(async () => received().includes(`${slow} failed`) || null);
  t.is((await workflow(requestId).describe()).status.name, 'RUNNING');
  release();
  t.deepEqual(await workflow(requestId).result(), {
    status: 'failed',
    reason: 'deadline',
  });
  t.deepEqual(await workflow(json.batch_id).result(), {
    completed: 1,
    notFound: 0,
    failed: 1,
  });
});

test('a webhook is not sent before the requests in it are final', async (t) => {
  const { json, slow, received, release } = await heldBatch('/early');
  const rows = await eventually(async () => {
    const all = await deliveriesOf(json.batch_id);
    return all.some(({ attempts }) => attempts === 1) ? all : null;
  });
  const open = rows.find(({ attempts }) => attempts === 0)?.id ?? '';
  const schedule = { webhookScheduleMs: [0], webhookLongestRestMs: 300 };
  t.like(await claimDelivery(stack.db, open, schedule), {
    kind: 'wait',
    why: 'not_final',
  });
  // An operator starts the delivery by hand.
  await stack.client.workflow.start(WORKFLOWS.deliver, {
    taskQueue: stack.taskQueue,
    workflowId: open,
    args: [{ deliveryId: open }],
  });
  await eventually(async () => {
    const { raw } = await workflow(open).describe();
    return raw.pendingActivities?.[0]?.lastFailure?.message === 'not now: not_final'
      ? true
      : null;
  });
  t.false(received().some((one) => one.startsWith(slow)));
  await workflow(open).terminate('test');
  release();
  await workflow(json.batch_id).result();
  t.true(received().includes(`${slow} completed`));
});

test('a webhook is retried although the first attempt of its group names an unknown one', async (t) => {
  const own = await startStack({
    lookupTimeoutMs: 900_000,
    sweepIntervalMs: 900_000,
    webhookScheduleMs: [0, 100],
    providers: [vendor],
  });
  t.teardown(own.stop);
  const [npi = ''] = npis.splice(0, 1);
  vendor.script(npi, () => ({ kind: 'pending', jobRef: npi, pollAfterMs: 1000 }));
  const client = await own.organization();
  const path = '/fail/1/group';
  const { json } = await client.single({
    npi,
    webhook: { url: `${own.receiver.url}${path}` },
  });
  const requestId = json.requests[0]?.request_id ?? '';
  const batch = own.client.workflow.getHandle(json.batch_id);
  await eventually(async () => (vendor.asked(npi, 'submit') > 0 ? true : null));
  // Both signals wait for the worker, so the batch dispatches both deliveries as one group.
  await own.stopWorker();
  await settle(own.db, requestId, 'failed', 'deadline', RULES);
  const deliveryId = await findDueDelivery(own.db, json.batch_id, requestId);
  await batch.signal('requestSettled', { requestId, deliveryId: 'msg_unknown' });
  await batch.signal('requestSettled', { requestId, deliveryId });
  await own.startWorker();
  await eventually(async () => {
    const { events } = await batch.fetchHistory();
    const started = (events ?? []).map(
      (event) => event.childWorkflowExecutionStartedEventAttributes,
    );
    return started.some((one) => one?.workflowExecution?.workflowId === deliveryId)
      ? true
      : null;
  });
  await own.client.workflow.getHandle(deliveryId ?? '').result();
  const attempts = own.receiver.deliveries().filter((one) => one.path === path);
  t.is(attempts.length, 2);
  await batch.result();
});

test('workflows that are started by hand with unknown IDs fail and call no vendor', async (t) => {
  const start = async (type: string, input: object) => {
    const handle = await stack.client.workflow.start(type, {
      taskQueue: stack.taskQueue,
      workflowId: `by-hand-${randomUUID()}`,
      args: [input],
    });
    await t.throwsAsync(handle.result());
    const { status, historyLength } = await handle.describe();
    t.is(status.name, 'FAILED', type);
    t.true(historyLength < 20, `${type}: ${historyLength} events`);
  };
  await start(WORKFLOWS.batch, { batchId: 'bat_nobody' });
  await start(WORKFLOWS.lookup, {
    requestId: 'req_nobody',
    batchId: 'bat_nobody',
    npi: npis[0],
    deadline: Date.now() + 60_000,
  });
  await start(WORKFLOWS.deliver, { deliveryId: 'msg_nobody' });
  await start(WORKFLOWS.batch, {});
  t.is(vendor.asked(npis[0] ?? '', 'submit'), 0);
});
