import { randomUUID } from 'node:crypto';
import test from 'ava';
import { leftOver } from '../../support/all-ended.ts';
import { eventually } from '../../support/organization.ts';
import { type Stack, startStack } from '../../support/stack.ts';
import {
  createScriptedVendor,
  foundStep,
  heldScript,
  ordinaryNpis,
} from '../../support/vendors.ts';

// Tests that an operator can reset a workflow to any of its workflow tasks in the Temporal UI
// without a second vendor call, charge, or webhook.

/** A vendor that charges again for a repeated call. A call may last as long as a test needs. */
const vendor = { ...createScriptedVendor(), repeatIsFree: false, callMs: 120_000 };
const npis = ordinaryNpis('found', 20);
/**
 * Events after the task that a reset in the UI leaves out: nothing, or all (numbers of
 * ResetReapplyExcludeType).
 */
const [NOTHING, ALL] = [[], [1, 2, 3, 4]];

let stack: Stack;

test.before(async () => {
  stack = await startStack({
    lookupTimeoutMs: 120_000,
    sweepIntervalMs: 1000,
    providers: [vendor],
  });
});

test.after.always(async () => {
  await stack?.stop();
});

function workflow(id: string, runId?: string) {
  return stack.client.workflow.getHandle(id, runId);
}

/** Returns the completed workflow tasks of a run. */
async function tasksOf(id: string, runId: string) {
  const { events } = await workflow(id, runId).fetchHistory();
  return (events ?? []).flatMap(
    ({ eventId, workflowTaskCompletedEventAttributes: completed }) =>
      eventId && completed ? [{ id, runId, eventId }] : [],
  );
}

type Task = Awaited<ReturnType<typeof tasksOf>>[number];

async function reset(
  { id, runId, eventId }: Task,
  leftOut: number[] = [],
): Promise<string> {
  const { namespace } = stack.client.options;
  const reply = await stack.client.workflowService.resetWorkflowExecution({
    namespace,
    workflowExecution: { workflowId: id, runId },
    workflowTaskFinishEventId: eventId,
    requestId: randomUUID(),
    reason: 'test',
    resetReapplyExcludeTypes: leftOut,
  });
  return reply.runId;
}

/**
 * Resets the newest run to each of its tasks in turn. Each new run gets past that task before the
 * next reset.
 */
async function resetWhileRunning(id: string): Promise<void> {
  const tasks = await tasksOf(id, (await workflow(id).describe()).runId);
  for (const task of tasks) {
    for (const leftOut of [ALL, NOTHING]) {
      const runId = await reset(task, leftOut);
      const isBeyond = ({ eventId }: Task) => eventId.gt(task.eventId);
      await eventually(async () =>
        (await tasksOf(id, runId)).some(isBeyond) ? true : null,
      );
    }
  }
}

/**
 * Resets the newest run, which has ended, to each of its tasks in turn. Each new run ends before
 * the next reset.
 */
async function resetWhenOver(id: string): Promise<void> {
  const tasks = await tasksOf(id, (await workflow(id).describe()).runId);
  for (const task of tasks) await workflow(id, await reset(task, NOTHING)).result();
}

/** Returns the NPI and status of each request delivered to a path, sorted. */
function delivered(path: string): string[] {
  return stack.receiver
    .deliveries()
    .filter((delivery) => delivery.path === path)
    .flatMap(({ body }) => JSON.parse(body).data)
    .map(({ npi, status }) => `${npi} ${status}`)
    .sort();
}

/**
 * Submits a batch and waits until only its first NPI is open. The vendor holds its response for
 * that one, finds `quick` at once, and finds nothing for the others.
 */
async function heldBatch(
  path: string,
  { held: slow = '', quick = '', others = [] as string[], mode = 'real-time' },
) {
  const { script, release } = heldScript(foundStep(slow));
  vendor.script(slow, script);
  vendor.script(quick, () => foundStep(quick));
  const client = await stack.organization();
  const all = [slow, quick, ...others].filter((npi) => npi !== '');
  const { json } = await client.bulk({
    npis: all,
    webhook: { url: `${stack.receiver.url}${path}`, mode },
  });
  await eventually(async () => {
    const { batch } = await client.batch(json.batch_id);
    const waits =
      vendor.asked(slow, 'submit') > 0 && batch.completed_count === all.length - 1;
    return waits && (mode === 'batch' || delivered(path).length === all.length - 1)
      ? true
      : null;
  });
  return {
    client,
    batchId: json.batch_id,
    requestId: json.requests[0]?.request_id ?? '',
    release,
  };
}

test.serial(
  'an operator can reset a batch workflow to any task, even after it has ended',
  async (t) => {
    const [slow = '', quick = '', nobody = ''] = npis.splice(0, 3);
    const { client, batchId, release } = await heldBatch('/bulk', {
      held: slow,
      quick,
      others: [nobody],
    });
    await resetWhileRunning(batchId);
    release();
    await workflow(batchId).result();
    await resetWhenOver(batchId);
    t.deepEqual(
      delivered('/bulk'),
      [`${quick} completed`, `${nobody} not_found`, `${slow} completed`].sort(),
    );
    for (const npi of [quick, nobody, slow]) t.is(vendor.asked(npi, 'submit'), 1, npi);
    t.deepEqual(await client.credits(), { balance: 998, total: 1000, used: 2 });
    t.deepEqual(await leftOver(stack), []);
  },
);

test.serial(
  'an operator can reset a lookup workflow to any task, even after it has ended',
  async (t) => {
    const [slow = '', nobody = ''] = npis.splice(0, 2);
    const { client, batchId, requestId, release } = await heldBatch('/lookup', {
      held: slow,
      others: [nobody],
    });
    await resetWhileRunning(requestId);
    release();
    await workflow(requestId).result();
    await workflow(batchId).result();
    await resetWhenOver(requestId);
    t.deepEqual(
      delivered('/lookup'),
      [`${nobody} not_found`, `${slow} completed`].sort(),
    );
    t.is(vendor.asked(slow, 'submit'), 1);
    t.deepEqual(await client.credits(), { balance: 999, total: 1000, used: 1 });
    t.deepEqual(await leftOver(stack), []);
  },
);

test.serial(
  'a batch workflow that loses signals in a reset still sends its webhook',
  async (t) => {
    const [slow = '', quick = ''] = npis.splice(0, 2);
    const { client, batchId, release } = await heldBatch('/lost', {
      held: slow,
      quick,
      mode: 'batch',
    });
    // At its second task the batch has started its lookups and has not received a signal about their
    // ends.
    const [, second] = await tasksOf(batchId, (await workflow(batchId).describe()).runId);
    t.truthy(second);
    if (second) await reset(second, ALL);
    release();
    await eventually(async () =>
      (await client.batch(batchId)).webhook?.status === 'delivered' ? true : null,
    );
    // The batch may wait for its deadline now. After a minute in this state, the doctor says that
    // the workflow can be terminated.
    await workflow(batchId)
      .terminate('test')
      .catch(() => {});
    t.deepEqual(delivered('/lost'), [`${quick} completed`, `${slow} completed`].sort());
    t.deepEqual(await client.credits(), { balance: 998, total: 1000, used: 2 });
    t.deepEqual(await leftOver(stack), []);
  },
);

test.serial(
  'an operator can reset a delivery workflow after several attempts',
  async (t) => {
    const [npi = ''] = npis.splice(0, 1);
    vendor.script(npi, () => foundStep(npi));
    const client = await stack.organization();
    const { json } = await client.single({
      npi,
      webhook: { url: `${stack.receiver.url}/fail/3/again` },
    });
    const deliveryId = await eventually(async () => {
      const [attempt] = stack.receiver
        .deliveries()
        .filter(({ path }) => path === '/fail/3/again');
      const id = String(attempt?.headers['webhook-id'] ?? '');
      return (await workflow(id)
        .describe()
        .catch(() => null))
        ? id
        : null;
    });
    await workflow(deliveryId).result();
    await resetWhenOver(deliveryId);
    t.is(delivered('/fail/3/again').length, 4);
    t.is((await client.completed(json.batch_id)).webhook?.status, 'delivered');
    t.deepEqual(await leftOver(stack), []);
  },
);
