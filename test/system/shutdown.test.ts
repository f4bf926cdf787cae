import { randomBytes } from 'node:crypto';
import test from 'ava';
import type { Step } from '../../activities/vendors/vendor.ts';
import { testSetting } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { workerProcesses } from '../support/programs.ts';
import { startRelay } from '../support/relay.ts';
import { startStack } from '../support/stack.ts';
import { createScriptedVendor, foundStep } from '../support/vendors.ts';

// Tests that a worker ends after a stop signal, even during hanging work.

const NPI = '2000000010';
const workers = workerProcesses();

test.after.always(() => workers.stop());

test('an activity that ignores the shutdown is cut off and named in the log', async (t) => {
  const vendor = createScriptedVendor();
  const held = Promise.withResolvers<Step>();
  vendor.script(NPI, () => held.promise);
  const lines: string[] = [];
  const stack = await startStack({
    providers: [vendor],
    onLog: (line) => lines.push(line),
  });
  t.teardown(async () => {
    held.resolve(foundStep(NPI));
    await stack.stop();
  });
  const client = await stack.organization();
  const { json } = await client.single({ npi: NPI });
  await eventually(async () => vendor.asked(NPI, 'submit') > 0 || null);
  await stack.stopWorker();
  const cut = lines
    .map((line) => JSON.parse(line))
    .filter(({ msg }) => msg.startsWith('cut off'));
  t.is(cut.length, 1);
  const queue = stack.taskQueue.replace('enrichment', 'lookups');
  t.like(cut[0], {
    queues: [queue],
    activities: [
      { queue, activity: 'askVendor', workflow_id: json.requests[0]?.request_id },
    ],
  });
});

test('a worker stops even while it retries work because PostgreSQL is down', async (t) => {
  const taskQueue = `enrichment-${randomBytes(8).toString('hex')}`;
  const stack = await startStack({
    elsewhere: { temporalAddress: testSetting('TEST_TEMPORAL_ADDRESS'), taskQueue },
  });
  t.teardown(() => stack.stop());
  const url = new URL(stack.databaseUrl);
  const relay = await startRelay({ host: url.hostname, port: Number(url.port) });
  t.teardown(() => relay.close());
  url.port = String(relay.port);
  const worker = await workers.start(stack, { DATABASE_URL: url.href });
  const client = await stack.organization();
  relay.cut();
  const { json } = await client.single({ npi: NPI });
  const handle = await stack.startedWorkflow(json.batch_id);
  await eventually(async () => {
    const { raw } = await handle.describe();
    return raw.pendingWorkflowTask?.startedTime ?? null;
  });
  process.kill(worker.pid, 'SIGTERM');
  t.is(await worker.exited, 'exit code 0', worker.output().slice(-4000));
  t.notRegex(worker.output(), /cut off/);
});
