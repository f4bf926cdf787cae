import { fileURLToPath } from 'node:url';
import test from 'ava';
import { run } from '../../../../db/connection/client.ts';
import { bundleWorkflows } from '../../../../deploy/temporal/workers.ts';
import { eventually } from '../../../support/organization.ts';
import { type Stack, startStack } from '../../../support/stack.ts';
import { createScriptedVendor } from '../../../support/vendors.ts';

// Tests that failures contain no paths of the worker's machine, because operators can read
// histories.

const NPI = '2000000010';
const ROOT = fileURLToPath(new URL('../../../..', import.meta.url));

async function failuresOf({ client }: Stack, id: string): Promise<string[]> {
  const { events } = await client.workflow.getHandle(id).fetchHistory();
  const failures = (events ?? []).map(
    (event) =>
      event.workflowTaskFailedEventAttributes?.failure ??
      event.activityTaskStartedEventAttributes?.lastFailure ??
      event.activityTaskFailedEventAttributes?.failure,
  );
  return failures
    .filter((failure) => failure != null)
    .map((failure) => JSON.stringify(failure));
}

function hasNoPath(text: string): boolean {
  return !text.includes(ROOT) && !/ at |node_modules|\.[jt]s:/.test(text);
}

test("a failed activity leaves no file path in the workflow's history", async (t) => {
  const vendor = createScriptedVendor();
  vendor.script(NPI, ({ nth }) => {
    if (nth === 1) throw new TypeError('a fault');
    return { kind: 'miss', reason: 'nobody' };
  });
  const stack = await startStack({ providers: [vendor] });
  t.teardown(() => stack.stop());
  const client = await stack.organization();
  const { json } = await client.single({ npi: NPI });
  await client.completed(json.batch_id);
  const failures = await failuresOf(stack, json.requests[0]?.request_id ?? '');
  t.true(failures.length > 0);
  t.true(failures.every(hasNoPath), failures.join('\n'));
});

test('an activity with wrong SQL is not retried', async (t) => {
  const vendor = createScriptedVendor();
  const stack = await startStack({ providers: [vendor], lookupTimeoutMs: 15 * 60_000 });
  t.teardown(() => stack.stop());
  vendor.script(NPI, async () => {
    await run(stack.workerDb)`selec 1`;
    return { kind: 'miss', reason: 'nobody' };
  });
  const client = await stack.organization();
  const before = await client.credits();
  const { json } = await client.single({ npi: NPI });
  const { data } = await client.completed(json.batch_id);
  t.is(data[0]?.status, 'failed');
  t.deepEqual(await client.credits(), before);
  t.is(vendor.asked(NPI, 'submit'), 1);
});

test("a failed workflow task leaves no file path in the workflow's history", async (t) => {
  const stack = await startStack({ providers: [] });
  t.teardown(() => stack.stop());
  await stack.stopWorker();
  const workflowsPath = fileURLToPath(
    new URL('../../../support/failing-workflows.ts', import.meta.url),
  );
  await stack.startWorker((await bundleWorkflows(workflowsPath)).code);
  const client = await stack.organization();
  const { json } = await client.single({ npi: NPI });
  const failures = await eventually(async () => {
    const found = await failuresOf(stack, json.batch_id);
    return found.length > 0 ? found : null;
  });
  t.true(failures.every((failure) => failure.includes('a fault')));
  t.true(failures.every(hasNoPath), failures.join('\n'));
  await stack.client.workflow.getHandle(json.batch_id).terminate();
});
