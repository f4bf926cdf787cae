import { randomBytes } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';
import test from 'ava';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { fresh, testSetting } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { startStack } from '../support/stack.ts';
import { createScriptedVendor, foundStep, ordinaryNpis } from '../support/vendors.ts';

// One customer's backlog does not stand in front of the others: Temporal serves organizations in turn.

const vendor = createScriptedVendor();
const elsewhere = (temporalAddress: string) => ({
  temporalAddress,
  taskQueue: `enrichment-${randomBytes(8).toString('hex')}`,
});
// A dev server of its own. A partition serves its own backlog fairly, so there is one.
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
// Guard: `fairnessKey` in api/temporal.ts.
test('a lookup behind 180 of another organization is done when most of them still wait', async (t) => {
  const stack = fair;
  const [mine = '', ...theirs] = ordinaryNpis('found', 181, 500_000);
  const begin = Promise.withResolvers<void>();
  for (const npi of [mine, ...theirs]) {
    vendor.script(npi, async () => {
      await begin.promise;
      await setTimeout(200);
      return foundStep(npi);
    });
  }
  const [many, one] = [await stack.organization(), await stack.organization()];
  const bulks = await Promise.all(
    [0, 60, 120].map((from) => many.bulk({ npis: theirs.slice(from, from + 60) })),
  );
  await stack.startWorker();
  const items = async () =>
    (await Promise.all(bulks.map(({ json }) => many.batch(json.batch_id)))).flatMap(({ data }) => data);
  const countOf = async (...statuses: string[]) =>
    (await items()).filter(({ status }) => statuses.includes(status)).length;
  // Each has its place in the line before ours comes.
  await eventually(async () => (await countOf('in-progress')) === theirs.length || null);
  const { json } = await one.single({ npi: mine });
  // Ours is in the line too.
  await eventually(async () => (await one.batch(json.batch_id)).data[0]?.status === 'in-progress' || null);
  begin.resolve();
  await one.completed(json.batch_id);
  const left = await countOf('accepted', 'in-progress');
  t.true(left > 90, `180 were in front of it, ${left} still wait`);
});
