import { randomBytes } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';
import test from 'ava';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { fresh, testSetting } from '../support/database.ts';
import { startStack } from '../support/stack.ts';
import { createScriptedVendor, foundStep, ordinaryNpis } from '../support/vendors.ts';

// On a cluster that has fairness switched on, one customer's backlog is not in front of everybody else's.

const [MINE = '', ...THEIRS] = ordinaryNpis('found', 181, 400_000);
const vendor = createScriptedVendor();
const temporal = fresh(test, () =>
  startTemporal({
    cli: testSetting('TEST_TEMPORAL_CLI'),
    namespace: 'default',
    headless: true,
    dynamicConfig: ['matching.useNewMatcher=true', 'matching.enableFairness=true'],
  }),
);
const stack = fresh(test, () =>
  startStack({
    providers: [vendor],
    elsewhere: {
      temporalAddress: temporal.address,
      taskQueue: `enrichment-${randomBytes(8).toString('hex')}`,
    },
  }),
);

test('a lookup behind 180 of another organization is done when most of them still wait', async (t) => {
  for (const npi of [MINE, ...THEIRS]) {
    vendor.script(npi, async () => {
      await setTimeout(200);
      return foundStep(npi);
    });
  }
  const [many, one] = [await stack.organization(), await stack.organization()];
  const bulks = await Promise.all(
    [0, 60, 120].map((from) => many.bulk({ npis: THEIRS.slice(from, from + 60) })),
  );
  const single = await one.single({ npi: MINE });
  await stack.startWorker();
  await one.completed(single.json.batch_id);
  const envelopes = await Promise.all(bulks.map(({ json }) => many.batch(json.batch_id)));
  const done = envelopes.reduce((total, { batch }) => total + batch.completed_count, 0);
  t.true(done < THEIRS.length / 2, `${done} of ${THEIRS.length} were done before`);
});
