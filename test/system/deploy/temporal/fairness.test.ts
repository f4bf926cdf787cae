import { randomBytes } from 'node:crypto';
import test, { type ExecutionContext } from 'ava';
import { startTemporal } from '../../../../deploy/local/temporal.ts';
import { fairnessOf } from '../../../../deploy/temporal/fairness.ts';
import { testSetting } from '../../../support/database.ts';
import { runProgram, workerProcesses } from '../../../support/programs.ts';
import { startRefusing } from '../../../support/refusing.ts';
import { startStack } from '../../../support/stack.ts';
import { ordinaryNpis } from '../../../support/vendors.ts';

// Tests that the worker and the doctor report if Temporal does not serve organizations in turn.

const WARNING = 'Temporal does not serve organizations in turn';

/**
 * Starts a service with its own Temporal, in which no task has waited yet, and without a worker.
 */
async function startService(t: ExecutionContext, isFair: boolean) {
  const temporal = await startTemporal({
    cli: testSetting('TEST_TEMPORAL_CLI'),
    namespace: 'default',
    dynamicConfig: {
      'matching.enableFairness': isFair,
      // The check reads only the first partition, so all tasks must be in it.
      'matching.numTaskqueueReadPartitions': 1,
      'matching.numTaskqueueWritePartitions': 1,
    },
  });
  t.teardown(() => temporal.stop());
  const taskQueue = `enrichment-${randomBytes(8).toString('hex')}`;
  const stack = await startStack({
    elsewhere: { temporalAddress: temporal.address, taskQueue },
  });
  t.teardown(() => stack.stop());
  const workers = workerProcesses();
  t.teardown(() => workers.stop());
  const env = {
    DATABASE_URL: stack.databaseUrl,
    TEMPORAL_ADDRESS: temporal.address,
    TASK_QUEUE: taskQueue,
  };
  return {
    stack,
    startWorker: () => workers.start(stack),
    doctor: async () => (await runProgram('operator', ['doctor'], { env })).stdout,
  };
}

/** Leaves a task in the queue, because no worker is there. */
async function submit({
  stack,
}: Awaited<ReturnType<typeof startService>>): Promise<void> {
  const client = await stack.organization(1);
  await client.bulk({ npis: ordinaryNpis('found', 1) });
}

test('worker and doctor report a Temporal that does not serve organizations in turn', async (t) => {
  const service = await startService(t, false);
  await submit(service);
  const worker = await service.startWorker();
  t.is(worker.output().split(WARNING).length - 1, 1);
  t.regex(
    worker.output(),
    /switch fairness on, see \\"Fairness\\" in deploy\/operations\.md/,
  );
  t.regex(await service.doctor(), /^fairness_off: .*\n.*\n {2}1 found {2}enrichment-/m);
});

test('worker and doctor say nothing if Temporal serves organizations in turn', async (t) => {
  const service = await startService(t, true);
  const idle = await service.doctor();
  t.regex(idle, /^Temporal does not show whether fairness is on: see "Fairness"/m);
  await submit(service);
  const worker = await service.startWorker();
  t.false(worker.output().includes(WARNING));
  t.notRegex(await service.doctor(), /fairness/i);
});

test('a Temporal that does not say how it serves organizations is not reported', async (t) => {
  const address = await startRefusing(t, 7);
  t.is(await fairnessOf({ connectionOptions: { address } }, 'enrichment'), 'unknown');
});
