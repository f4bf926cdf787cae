import { randomBytes } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';
import test from 'ava';
import { fresh, testSetting } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { startStack } from '../support/stack.ts';
import { createScriptedVendor, foundStep, ordinaryNpis } from '../support/vendors.ts';

// On a cluster that has fairness switched on, as the tests' has, one customer's backlog is not in front of everybody
// else's.

const [MINE = '', ...THEIRS] = ordinaryNpis('found', 181, 400_000);
const vendor = createScriptedVendor();
const stack = fresh(test, () =>
  startStack({
    providers: [vendor],
    lookupSlots: 2,
    elsewhere: {
      temporalAddress: testSetting('TEST_TEMPORAL_ADDRESS'),
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
  await stack.startWorker();
  const envelopes = () => Promise.all(bulks.map(({ json }) => many.batch(json.batch_id)));
  const waiting = async () => (await envelopes()).flatMap(({ data }) => data.filter((one) => !isFinal(one)));
  // Each has its place in the line before ours comes.
  await eventually(async () => (await waiting()).every(({ status }) => status === 'in-progress') || null);
  const { json } = await one.single({ npi: MINE });
  const before = await waiting();
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
