import { Context } from '@temporalio/activity';
import test from 'ava';
import { cancelOpen, openOfBatch } from '../../../db/requests/cancel.ts';
import { settle } from '../../../db/requests/settle.ts';
import { fresh } from '../../support/database.ts';
import { eventually, RULES } from '../../support/organization.ts';
import { startStack } from '../../support/stack.ts';
import { storeEmail } from '../../support/stored.ts';
import {
  aborted,
  createScriptedVendor,
  foundStep,
  heldScript,
  ordinaryNpis,
} from '../../support/vendors.ts';

// Tests an operator's actions on workflows in the Temporal UI. After each one every request ends,
// every credit is charged for an email or refunded, and every webhook is sent.

const LOOKUP_TIMEOUT_MS = 60_000;
const vendor = createScriptedVendor();
const npis = ordinaryNpis('found', 20);

const stack = fresh(test, () =>
  startStack({
    lookupTimeoutMs: LOOKUP_TIMEOUT_MS,
    sweepIntervalMs: 1000,
    providers: [vendor],
  }),
);

/** Waits until its activity is canceled, so that it doesn't outlive the test. */
function hang(): Promise<never> {
  return aborted(Context.current().cancellationSignal);
}

/** Returns NPIs that no other test of this file uses. */
function freshNpis(count: number): string[] {
  return npis.splice(0, count);
}

function workflow(id = '') {
  return stack.client.workflow.getHandle(id);
}

async function closedAs(id: string | undefined, status: string): Promise<void> {
  await eventually(async () =>
    (await workflow(id).describe()).status.name === status ? true : null,
  );
}

/** Waits until the sweep has started the batch again and the new run has made its plan. */
async function startedAgain(batchId: string, firstRunId: string): Promise<void> {
  await eventually(async () => {
    const { runId, historyLength } = await workflow(batchId).describe();
    return runId !== firstRunId && historyLength > 4 ? true : null;
  });
}

async function asked(npi: string): Promise<void> {
  await eventually(async () => (vendor.asked(npi, 'submit') > 0 ? true : null));
}

/** Returns the NPI and status that each delivery to a path reports, sorted. */
function delivered(path: string): string[] {
  const items = stack.receiver
    .deliveries()
    .filter((delivery) => delivery.path === path)
    .map((delivery) => JSON.parse(delivery.body).data[0]);
  return items.map((item) => `${item.npi} ${item.status}`).sort();
}

test('a terminated batch workflow restarts, keeps its lookups, and sends all webhooks', async (t) => {
  const [quick = '', slow = ''] = freshNpis(2);
  const held = heldScript(foundStep(slow));
  vendor.script(quick, () => foundStep(quick));
  vendor.script(slow, held.script);
  const client = await stack.organization();
  const url = `${stack.receiver.url}/terminated`;
  const { json } = await client.bulk({ npis: [quick, slow], webhook: { url } });
  await asked(slow);
  const first = await workflow(json.batch_id).describe();
  await workflow(json.batch_id).terminate('test');
  await startedAgain(json.batch_id, first.runId);
  t.is((await workflow(json.requests[1]?.request_id).describe()).status.name, 'RUNNING');
  held.release();
  await client.completed(json.batch_id);
  await closedAs(json.batch_id, 'COMPLETED');
  t.deepEqual(
    delivered('/terminated'),
    [`${quick} completed`, `${slow} completed`].sort(),
  );
  t.is(vendor.asked(slow, 'submit'), 1);
  t.deepEqual(await client.credits(), { balance: 998, total: 1000, used: 2 });
});

test('terminated or canceled lookups are refunded, and their batch completes', async (t) => {
  const [good = '', ended = '', called = ''] = freshNpis(3);
  vendor.script(good, () => foundStep(good));
  for (const npi of [ended, called]) vendor.script(npi, hang);
  const client = await stack.organization();
  const url = `${stack.receiver.url}/children`;
  const { json } = await client.bulk({ npis: [good, ended, called], webhook: { url } });
  await Promise.all([asked(ended), asked(called)]);
  const [, second, third] = json.requests;
  await workflow(second?.request_id).terminate('test');
  await workflow(third?.request_id).cancel();
  const envelope = await client.completed(json.batch_id);
  t.deepEqual(
    envelope.data.map(({ status }) => status),
    ['completed', 'failed', 'failed'],
  );
  await closedAs(json.batch_id, 'COMPLETED');
  await closedAs(third?.request_id, 'CANCELLED');
  t.deepEqual(
    delivered('/children'),
    [`${good} completed`, `${ended} failed`, `${called} failed`].sort(),
  );
  t.deepEqual(await client.credits(), { balance: 999, total: 1000, used: 1 });
});

test('a lookup whose request is already completed completes when it is canceled', async (t) => {
  const [npi = ''] = freshNpis(1);
  vendor.script(npi, hang);
  const client = await stack.organization();
  const { json } = await client.single({ npi });
  const requestId = json.requests[0]?.request_id ?? '';
  await asked(npi);
  await storeEmail(stack.db, {
    npi,
    email: `known-${npi}@clinic.example`,
  });
  const { status } = await settle(stack.db, requestId, 'finished', 'test', RULES);
  t.is(status, 'completed');
  await workflow(requestId).cancel();
  await closedAs(requestId, 'COMPLETED');
  t.deepEqual(await workflow(requestId).result(), { status: 'completed', reason: null });
  await closedAs(json.batch_id, 'COMPLETED');
  t.deepEqual(await client.credits(), { balance: 999, total: 1000, used: 1 });
});

test('canceling a batch refunds its open requests and sends all webhooks', async (t) => {
  const [good = '', open = ''] = freshNpis(2);
  vendor.script(good, () => foundStep(good));
  vendor.script(open, hang);
  const client = await stack.organization();
  const url = `${stack.receiver.url}/cancelled`;
  const { json } = await client.bulk({ npis: [good, open], webhook: { url } });
  await asked(open);
  await eventually(async () =>
    (await client.batch(json.batch_id)).batch.completed_count === 1 ? true : null,
  );
  await workflow(json.batch_id).cancel();
  await closedAs(json.batch_id, 'CANCELLED');
  const envelope = await client.batch(json.batch_id);
  t.deepEqual(
    envelope.data.map(({ status }) => status),
    ['completed', 'failed'],
  );
  t.is(envelope.webhook?.status, 'delivered');
  t.deepEqual(delivered('/cancelled'), [`${good} completed`, `${open} failed`].sort());
  t.deepEqual(await client.credits(), { balance: 999, total: 1000, used: 1 });
});

test('after "batch cancel", lookups end by themselves and all webhooks are sent', async (t) => {
  const [npi = ''] = freshNpis(1);
  vendor.script(npi, () => ({ kind: 'pending', jobRef: npi, pollAfterMs: 1000 }));
  const client = await stack.organization();
  const url = `${stack.receiver.url}/by-operator`;
  const { json } = await client.bulk({ npis: [npi], webhook: { url } });
  await asked(npi);
  const by = { actor: 'test', reason: 'test' };
  const open = await openOfBatch(stack.db, json.batch_id);
  t.is(await cancelOpen(stack.db, by, open), 1);
  t.like(await client.credits(), { balance: 1000, used: 0 });
  await closedAs(json.requests[0]?.request_id, 'COMPLETED');
  await closedAs(json.batch_id, 'COMPLETED');
  t.deepEqual(delivered('/by-operator'), [`${npi} failed`]);
});

test('a batch that is canceled before it starts refunds everything and sends webhooks', async (t) => {
  const own = await startStack();
  try {
    await own.stopWorker();
    const client = await own.organization();
    const url = `${own.receiver.url}/early`;
    const { json } = await client.bulk({
      npis: ['2000000010', '2000000036'],
      webhook: { url },
    });
    const handle = await own.startedWorkflow(json.batch_id);
    await handle.cancel();
    await own.startWorker();
    await t.throwsAsync(handle.result());
    t.is((await handle.describe()).status.name, 'CANCELLED');
    const { data, webhook } = await client.completed(json.batch_id);
    t.deepEqual(
      data.map(({ status }) => status),
      ['failed', 'failed'],
    );
    t.is(webhook?.status, 'delivered');
    t.is(own.receiver.deliveries().length, 2);
    t.is(own.simulator.calls().length, 0);
    t.deepEqual(await client.credits(), { balance: 1000, total: 1000, used: 0 });
  } finally {
    await own.stop();
  }
});
