import { randomUUID } from 'node:crypto';
import test from 'ava';
import { leftOver } from '../support/all-ended.ts';
import { eventually } from '../support/organization.ts';
import { type Stack, startStack } from '../support/stack.ts';
import { createScriptedVendor, foundStep, heldScript, ordinaryNpis } from '../support/vendors.ts';

// Operators reset workflows in the Temporal UI, to any of their workflow tasks: nobody is asked, charged or told twice.

/** A question that is put twice is paid twice. It may be held for as long as a test takes. */
const vendor = { ...createScriptedVendor(), repeatIsFree: false, callMs: 120_000 };
const npis = ordinaryNpis('found', 20);
/** What the UI may leave out of what came after the task: nothing, or all (numbers of ResetReapplyExcludeType). */
const [NOTHING, ALL] = [[], [1, 2, 3, 4]];

let stack: Stack;

test.before(async () => {
  stack = await startStack({ lookupTimeoutMs: 120_000, sweepIntervalMs: 1000, providers: [vendor] });
});

test.after.always(async () => {
  await stack?.stop();
});

function workflow(id: string, runId?: string) {
  return stack.client.workflow.getHandle(id, runId);
}

/** The completed workflow tasks of a run. */
async function tasksOf(id: string, runId: string) {
  const { events } = await workflow(id, runId).fetchHistory();
  return (events ?? []).flatMap(({ eventId, workflowTaskCompletedEventAttributes: completed }) =>
    eventId && completed ? [{ id, runId, eventId }] : [],
  );
}

type Task = Awaited<ReturnType<typeof tasksOf>>[number];

async function reset({ id, runId, eventId }: Task, leftOut: number[] = []): Promise<string> {
  const { namespace } = stack.client.options;
  const answer = await stack.client.workflowService.resetWorkflowExecution({
    namespace,
    workflowExecution: { workflowId: id, runId },
    workflowTaskFinishEventId: eventId,
    requestId: randomUUID(),
    reason: 'test',
    resetReapplyExcludeTypes: leftOut,
  });
  return answer.runId;
}

/** Resets the newest run to each of its tasks in turn; the new run has done a task of its own before the next. */
async function resetWhileRunning(id: string): Promise<void> {
  const tasks = await tasksOf(id, (await workflow(id).describe()).runId);
  for (const task of tasks) {
    for (const leftOut of [ALL, NOTHING]) {
      const runId = await reset(task, leftOut);
      const isBeyond = ({ eventId }: Task) => eventId.gt(task.eventId);
      await eventually(async () => ((await tasksOf(id, runId)).some(isBeyond) ? true : null));
    }
  }
}

/** Resets the newest run, which is over, to each of its tasks in turn; the new run ends before the next. */
async function resetWhenOver(id: string): Promise<void> {
  const tasks = await tasksOf(id, (await workflow(id).describe()).runId);
  for (const task of tasks) await workflow(id, await reset(task, NOTHING)).result();
}

/** What was delivered to a path: NPI and status of each request. */
function delivered(path: string): string[] {
  return stack.receiver
    .deliveries()
    .filter((delivery) => delivery.path === path)
    .flatMap(({ body }) => JSON.parse(body).data)
    .map(({ npi, status }) => `${npi} ${status}`)
    .sort();
}

/** A batch of these NPIs, of whom one is held at the vendor, one found at once, and the vendor knows nobody else. */
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
    const waits = vendor.asked(slow, 'submit') > 0 && batch.completed_count === all.length - 1;
    return waits && (mode === 'batch' || delivered(path).length === all.length - 1) ? true : null;
  });
  return { client, batchId: json.batch_id, requestId: json.requests[0]?.request_id ?? '', release };
}

test.serial('a batch is reset to each of its tasks, while it runs and when it is over', async (t) => {
  const [slow = '', quick = '', nobody = ''] = npis.splice(0, 3);
  const { client, batchId, release } = await heldBatch('/bulk', { held: slow, quick, others: [nobody] });
  await resetWhileRunning(batchId);
  release();
  await workflow(batchId).result();
  await resetWhenOver(batchId);
  t.deepEqual(delivered('/bulk'), [`${quick} completed`, `${nobody} not_found`, `${slow} completed`].sort());
  for (const npi of [quick, nobody, slow]) t.is(vendor.asked(npi, 'submit'), 1, npi);
  t.deepEqual(await client.credits(), { balance: 998, total: 1000, used: 2 });
  t.deepEqual(await leftOver(stack), []);
});

test.serial('a batch of one is reset to each of its tasks', async (t) => {
  const [npi = ''] = npis.splice(0, 1);
  const { client, batchId, release } = await heldBatch('/one', { held: npi });
  await resetWhileRunning(batchId);
  release();
  await workflow(batchId).result();
  await resetWhenOver(batchId);
  t.deepEqual(delivered('/one'), [`${npi} completed`]);
  t.is(vendor.asked(npi, 'submit'), 1);
  t.deepEqual(await client.credits(), { balance: 999, total: 1000, used: 1 });
  t.deepEqual(await leftOver(stack), []);
});

test.serial('a lookup is reset to each of its tasks, while it runs and when it is over', async (t) => {
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
  t.deepEqual(delivered('/lookup'), [`${nobody} not_found`, `${slow} completed`].sort());
  t.is(vendor.asked(slow, 'submit'), 1);
  t.deepEqual(await client.credits(), { balance: 999, total: 1000, used: 1 });
  t.deepEqual(await leftOver(stack), []);
});

test.serial('a batch that lost in a reset what should wake it does not hold its webhook', async (t) => {
  const [slow = '', quick = ''] = npis.splice(0, 2);
  const { client, batchId, release } = await heldBatch('/lost', { held: slow, quick, mode: 'batch' });
  // By then it has started its lookups, and nobody has told it of their ends.
  const [, second] = await tasksOf(batchId, (await workflow(batchId).describe()).runId);
  t.truthy(second);
  if (second) await reset(second, ALL);
  release();
  await eventually(async () => ((await client.batch(batchId)).webhook?.status === 'delivered' ? true : null));
  // It waits for its deadline, unless it has looked for another reason. As the doctor advises once it has been so for a
  // minute.
  await workflow(batchId)
    .terminate('test')
    .catch(() => {});
  t.deepEqual(delivered('/lost'), [`${quick} completed`, `${slow} completed`].sort());
  t.deepEqual(await client.credits(), { balance: 998, total: 1000, used: 2 });
  t.deepEqual(await leftOver(stack), []);
});

test.serial('a delivery that waits for its next attempt is reset, and again when it is over', async (t) => {
  const [npi = ''] = npis.splice(0, 1);
  vendor.script(npi, () => foundStep(npi));
  const client = await stack.organization();
  const { json } = await client.single({ npi, webhook: { url: `${stack.receiver.url}/fail/3/again` } });
  const deliveryId = await eventually(async () => {
    const [attempt] = stack.receiver.deliveries().filter(({ path }) => path === '/fail/3/again');
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
});
