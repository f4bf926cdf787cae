import { randomBytes } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';
import test from 'ava';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { fresh, testSetting } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { startStack } from '../support/stack.ts';
import { createScriptedVendor, foundStep, ordinaryNpis } from '../support/vendors.ts';

// On a cluster that has fairness switched on, one customer's backlog is not in front of everybody else's.

const [MINE = '', ...THEIRS] = ordinaryNpis('found', 181, 400_000);
const vendor = createScriptedVendor();
// A dev server of its own. A partition serves its own backlog fairly, so there is one.
const temporal = fresh(test, () =>
  startTemporal({
    cli: testSetting('TEST_TEMPORAL_CLI'),
    namespace: 'default',
    headless: true,
    dynamicConfig: [
      'matching.useNewMatcher=true',
      'matching.enableFairness=true',
      'matching.numTaskqueueReadPartitions=1',
      'matching.numTaskqueueWritePartitions=1',
    ],
  }),
);
const stack = fresh(test, () =>
  startStack({
    providers: [vendor],
    lookupSlots: 2,
    elsewhere: {
      temporalAddress: temporal.address,
      taskQueue: `enrichment-${randomBytes(8).toString('hex')}`,
    },
  }),
);

test('a lookup behind 180 of another organization is done when most of them still wait', async (t) => {
  const begin = Promise.withResolvers<void>();
  for (const npi of [MINE, ...THEIRS]) {
    vendor.script(npi, async () => {
      await begin.promise;
      await setTimeout(200);
      return foundStep(npi);
    });
  }
  const [many, one] = [await stack.organization(), await stack.organization()];
  const bulks = await Promise.all(
    [0, 60, 120].map((from) => many.bulk({ npis: THEIRS.slice(from, from + 60) })),
  );
  await stack.startWorker();
  const envelopes = () => Promise.all(bulks.map(({ json }) => many.batch(json.batch_id)));
  const waiting = async () => (await envelopes()).flatMap(({ data }) => data.filter((one) => !isFinal(one)));
  // Each has its place in the line before ours comes.
  await eventually(async () => (await waiting()).every(({ status }) => status === 'in-progress') || null);
  const { json } = await one.single({ npi: MINE });
  // Ours is in the line too.
  await eventually(async () => {
    const [item] = (await one.batch(json.batch_id)).data;
    return item?.status === 'in-progress' ? true : null;
  });
  const before = await waiting();
  begin.resolve();
  await one.completed(json.batch_id);
  const after = await waiting();
  t.true(
    after.length > before.length / 2,
    `${before.length} were in front of it, ${after.length} still wait`,
  );
});

function isFinal({ status }: { readonly status: string }): boolean {
  return ['completed', 'not_found', 'failed'].includes(status);
}
