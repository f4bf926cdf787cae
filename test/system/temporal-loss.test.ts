import test from 'ava';
import { sql } from 'drizzle-orm';
import { pino } from 'pino';
import { startTemporal, type Temporal } from '../../deploy/local/temporal.ts';
import { freePort } from '../../deploy/ports.ts';
import { isRunning } from '../../deploy/temporal/client.ts';
import { checkWorkflows } from '../../deploy/temporal/doctor.ts';
import { keepNamespace } from '../../deploy/temporal/namespace.ts';
import { NPI, ORGANIZATION_ID, OUTCOME } from '../../workflows/messages.ts';
import { leftOver } from '../support/all-ended.ts';
import { testSetting } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { startStack } from '../support/stack.ts';
import {
  createScriptedVendor,
  foundStep,
  heldScript,
  ordinaryNpis,
} from '../support/vendors.ts';

// Tests the loss of Temporal's database. Temporal returns on the same address, but empty.
// PostgreSQL knows the remaining work.

/** A vendor that charges again for a repeated call. */
const vendor = { ...createScriptedVendor(), repeatIsFree: false };
const taskQueue = 'enrichment';
/** Number of requests of a bulk that are open when Temporal is lost. */
const UNDER_WAY = 50;

test('open requests are looked up again if Temporal loses all its data', async (t) => {
  const temporalOptions = {
    cli: testSetting('TEST_TEMPORAL_CLI'),
    namespace: 'default',
    port: await freePort(),
  };
  let temporal: Temporal = await startTemporal(temporalOptions);
  t.teardown(() => temporal.stop());
  const stack = await startStack({
    lookupTimeoutMs: 600_000,
    sweepIntervalMs: 500,
    webhookScheduleMs: [0, 3_600_000],
    providers: [vendor],
    elsewhere: { temporalAddress: temporal.address, taskQueue },
  });
  t.teardown(stack.stop);
  const step = await stack.startWorker();
  const { receiver } = stack;
  const received = (path: string) =>
    receiver
      .deliveries()
      .filter((delivery) => delivery.path === path)
      .flatMap(({ body }) => JSON.parse(body).data)
      .map(({ npi, status }) => `${npi} ${status}`)
      .sort();
  const client = await stack.organization();
  const submit = async (path: string, given: readonly string[], mode = 'real-time') => {
    const webhook = { url: `${receiver.url}${path}`, mode };
    return (await client.bulk({ npis: given, webhook })).json.batch_id;
  };

  const [quick = '', alone = '', told = '', late = '', ...slow] = ordinaryNpis(
    'found',
    4 + UNDER_WAY,
  );
  const held = [...slow, alone].map((npi) => {
    const { script, release } = heldScript(foundStep(npi));
    vendor.script(npi, script);
    return release;
  });
  for (const npi of [quick, told, late]) vendor.script(npi, () => foundStep(npi));
  const batches = [
    await submit('/bulk', [...slow, quick]),
    await submit('/one', [alone], 'batch'),
    // Its next attempt is due an hour later.
    await submit('/fail/1/told', [told]),
  ];
  const [bulk = '', one = ''] = batches;
  await eventually(async () => {
    const waits = [...slow, alone].every((npi) => vendor.asked(npi, 'submit') === 1);
    const sent = [...received('/bulk'), ...received('/fail/1/told')];
    return waits && sent.length === 2 ? true : null;
  });

  process.kill(temporal.pid, 'SIGKILL');
  await temporal.exited;
  batches.push(await submit('/late', [late]));
  temporal = await startTemporal(temporalOptions);
  const { operatorService } = stack.client.connection;
  const { namespace } = stack.client.options;
  // Our dev server creates these search attributes at its start. Other servers don't.
  const searchAttributes = [NPI, ORGANIZATION_ID, OUTCOME].map(({ name }) => name);
  await operatorService.removeSearchAttributes({ namespace, searchAttributes });
  const checks = await checkWorkflows(stack.db, stack.client, taskQueue);
  t.true(
    checks.some(
      ({ code, findings }) => code === 'schedule_not_running' && findings === 1,
    ),
  );
  // Workers do this regularly.
  await keepNamespace(stack.client, taskQueue, 3_600_000, pino({ level: 'silent' }));
  await eventually(async () => (await step()) || null);
  for (const id of [bulk, one]) {
    await eventually(async () => (await isRunning(stack.client, id)) || null);
  }
  for (const npi of [...slow, alone]) t.is(vendor.asked(npi, 'submit'), 1, npi);
  for (const release of held) release();
  for (const batchId of batches) await client.completed(batchId);
  const again = await submit('/again', [late]);
  batches.push(again);
  await stack.db.drizzle.execute(
    sql`update webhook_deliveries set due_at = now() where state = 'pending'`,
  );
  for (const batchId of batches) {
    await eventually(async () =>
      (await client.batch(batchId)).webhook?.status === 'delivered' ? true : null,
    );
  }

  t.deepEqual(
    received('/bulk'),
    [quick, ...slow].map((npi) => `${npi} completed`).sort(),
  );
  t.deepEqual(received('/one'), [`${alone} completed`]);
  t.deepEqual(received('/fail/1/told'), [`${told} completed`, `${told} completed`]);
  for (const path of ['/late', '/again'])
    t.deepEqual(received(path), [`${late} completed`]);
  for (const npi of [quick, told, late]) t.is(vendor.asked(npi, 'submit'), 1, npi);
  const used = slow.length + 4;
  t.deepEqual(await client.credits(), { balance: 1000 - used, total: 1000, used });
  t.deepEqual(await leftOver(stack), []);
  await eventually(async () => {
    for await (const { workflowId } of stack.client.workflow.list({
      query: `Npi = '${late}'`,
    })) {
      if (workflowId === again) return true;
    }
    return null;
  });
});
