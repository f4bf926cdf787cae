import { randomBytes } from 'node:crypto';
import test from 'ava';
import { sql } from 'drizzle-orm';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { queuesOf } from '../../workflows/messages.ts';
import { fresh, testSetting } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { startStack } from '../support/stack.ts';
import { createScriptedVendor, foundStep, ordinaryNpis } from '../support/vendors.ts';

// Tests that one customer's backlog does not delay the others. Temporal serves organizations in
// turn.

const vendor = createScriptedVendor();
const elsewhere = (temporalAddress: string) => ({
  temporalAddress,
  taskQueue: `enrichment-${randomBytes(8).toString('hex')}`,
});
// This file needs its own dev server with one partition, because fairness applies only within a
// partition.
const fairTemporal = fresh(test, () =>
  startTemporal({
    cli: testSetting('TEST_TEMPORAL_CLI'),
    namespace: 'default',
    dynamicConfig: {
      'matching.numTaskqueueReadPartitions': 1,
      'matching.numTaskqueueWritePartitions': 1,
    },
  }),
);
const fair = fresh(test, () =>
  startStack({
    providers: [vendor],
    ...{ lookupTimeoutMs: 600_000, lookupSlots: 2 },
    elsewhere: elsewhere(fairTemporal.address),
  }),
);
const stormy = fresh(test, () =>
  startStack({
    providers: [vendor],
    lookupTimeoutMs: 600_000,
    webhookScheduleMs: [0, 600_000],
    elsewhere: elsewhere(fairTemporal.address),
  }),
);

// Fails without `fairnessKey` in workflows/starts.ts.
test.serial(
  'a lookup overtakes most of 180 earlier lookups of another organization',
  async (t) => {
    const stack = fair;
    const [mine = '', ...theirs] = ordinaryNpis('found', 181, 500_000);
    const begin = Promise.withResolvers<void>();
    const order: string[] = [];
    for (const npi of [mine, ...theirs]) {
      vendor.script(npi, async () => {
        order.push(npi);
        await begin.promise;
        return foundStep(npi);
      });
    }
    const [many, one] = [await stack.organization(), await stack.organization()];
    const bulks = await Promise.all(
      [0, 60, 120].map((from) => many.bulk({ npis: theirs.slice(from, from + 60) })),
    );
    const running = await eventually(async () => {
      // It starts a batch whose start was late.
      await stack.reconcile();
      const runs = await Promise.allSettled(
        bulks.map(({ json }) =>
          stack.client.workflow.getHandle(json.batch_id).describe(),
        ),
      );
      return runs.filter(({ status }) => status === 'fulfilled').length || null;
    });
    t.is(running, 1, 'the reconciler starts the others, one after the other');
    await stack.startWorker();
    const items = async () =>
      (await Promise.all(bulks.map(({ json }) => many.batch(json.batch_id)))).flatMap(
        ({ data }) => data,
      );
    const countOf = async (...statuses: string[]) =>
      (await items()).filter(({ status }) => statuses.includes(status)).length;
    // Each of their lookups is in the queue before ours.
    await eventually(
      async () => (await countOf('in-progress')) === theirs.length || null,
    );
    const { json } = await one.single({ npi: mine });
    // Our lookup is in the queue too.
    await eventually(
      async () =>
        (await one.batch(json.batch_id)).data[0]?.status === 'in-progress' || null,
    );
    begin.resolve();
    await one.completed(json.batch_id);
    const before = order.indexOf(mine);
    t.true(before >= 0 && before < 90, `${before} of 180 were served before it`);
  },
);

/** Its check digit is wrong, so it ends as `not_found` without a vendor call. */
const NOBODY = '1234567890';
const BULKS = 8;
const BULK = 60;

// Fails without `fairnessKey` in workflows/starts.ts, and without `taskQueue` of `startDelivery` in
// workflows/delivery.ts.
test.serial(
  'many failing webhooks do not delay a lookup of another organization',
  async (t) => {
    const stack = stormy;
    const queues = queuesOf(stack.taskQueue);
    const count = async (type: string, queue: string) => {
      const query = `WorkflowType = '${type}' and TaskQueue = '${queue}'`;
      return (await stack.client.workflow.count(query)).count;
    };
    const [npi = ''] = ordinaryNpis('found', 1, 600_000);
    vendor.script(npi, () => foundStep(npi));
    const many = await stack.organization();
    const one = await stack.organization();
    const npis = Array.from({ length: BULK }, () => NOBODY);
    const webhook = { url: `${stack.receiver.url}/status/500` };
    await Promise.all(Array.from({ length: BULKS }, () => many.bulk({ npis, webhook })));
    // Starts all bulks at once. Otherwise, each would wait until the earlier ones are planned.
    await stack.db.drizzle.execute(
      sql`update batches set admitted_at = now() - interval '1 minute'`,
    );
    await stack.startWorker();
    await eventually(async () => (await count('deliver', queues.webhooks)) > 20 || null);
    // Without a worker, a task of each open lookup is queued before ours.
    await stack.stopWorker();
    await eventually(
      async () =>
        (await count('lookUpEmail', queues.enrichment)) === BULKS * BULK || null,
    );
    const before = (await stack.openRequests(many.organizationId)).length;
    const { json } = await one.single({ npi });
    await stack.startWorker();
    const { data } = await one.completed(json.batch_id);
    t.is(data[0]?.status, 'completed');
    const [later] = await stack.db.drizzle.execute<{ n: number }>(sql`
      select count(*)::int as n from requests r, requests mine
       where r.organization_id = ${many.organizationId} and mine.batch_id = ${json.batch_id}
         and coalesce(r.settled_at > mine.settled_at, true)`);
    const after = later?.n ?? 0;
    t.true(after > before / 2, `${before} were in front of it, ${after} ended after it`);
    t.is(await count('deliver', queues.enrichment), 0);
  },
);
