import { randomBytes } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { fresh, testSetting } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { type Stack, startStack } from '../support/stack.ts';
import { createScriptedVendor, foundStep, ordinaryNpis } from '../support/vendors.ts';

// One customer's backlog is not in front of everybody else's: on any cluster, because an organization has room for
// fewer lookups than workers make at once; and on one that has fairness switched on, whatever room there is.

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
      'matching.useNewMatcher': true,
      'matching.enableFairness': true,
      'matching.numTaskqueueReadPartitions': 1,
      'matching.numTaskqueueWritePartitions': 1,
    },
  }),
);
const fair = fresh(test, () =>
  startStack({
    providers: [vendor],
    ...{ lookupTimeoutMs: 600_000, lookupSlots: 2, lookupsPerOrganization: 1000 },
    elsewhere: elsewhere(fairTemporal.address),
  }),
);
const common = fresh(test, () =>
  startStack({
    providers: [vendor],
    ...{ lookupTimeoutMs: 600_000, lookupSlots: 4, lookupsPerOrganization: 2 },
    elsewhere: elsewhere(testSetting('TEST_TEMPORAL_ADDRESS')),
  }),
);

// Guard: `lookupsPerOrganization` in db/requests/room.ts.
test('a lookup behind 180 of another organization is done when most of them still wait', (t) =>
  requireFairness(t, common, 400_000, 2));

// Guard: `fairnessKey` in workflows/.
test('where Temporal itself is fair, it is as well if all of them are open', (t) =>
  requireFairness(t, fair, 500_000, 180));

/** @param begun how many of the 180 are under way before the other organization's comes */
async function requireFairness(t: ExecutionContext, stack: Stack, first: number, begun: number) {
  const [mine = '', ...theirs] = ordinaryNpis('found', 181, first);
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
  // Each that has room has its place in the line before ours comes.
  await eventually(async () => (await countOf('in-progress')) === begun || null);
  const { json } = await one.single({ npi: mine });
  // Ours is in the line too.
  await eventually(async () => (await one.batch(json.batch_id)).data[0]?.status === 'in-progress' || null);
  begin.resolve();
  await one.completed(json.batch_id);
  const left = await countOf('accepted', 'in-progress');
  t.true(left > 90, `180 were in front of it, ${left} still wait`);
}
