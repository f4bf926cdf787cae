import { setTimeout } from 'node:timers/promises';
import { startServers } from '../support/servers.ts';
import { startStack } from '../support/stack.ts';
import { createScriptedVendor, foundStep, ordinaryNpis } from '../support/vendors.ts';
import { batchCompleted, timeLookups } from './lookups.ts';

/**
 * `node test/bench/fairness.ts [BULKS]`: how long one organization waits for a lookup, alone and
 * while bulks of another (20 by default) are in flight, with a vendor that takes two seconds.
 * Starts its own servers.
 */
const BULKS = Number(process.argv[2] ?? 20);
const SAMPLES = 5;
const VENDOR_MS = 2000;

const stopServers = await startServers();
const vendor = createScriptedVendor();
const npis = ordinaryNpis('found', 60 * BULKS + 3 * SAMPLES);
for (const npi of npis) {
  vendor.script(npi, async () => {
    await setTimeout(VENDOR_MS);
    return foundStep(npi);
  });
}
const stack = await startStack({
  providers: [vendor],
  lookupTimeoutMs: 15 * 60_000,
  lookupSlots: 200,
});
try {
  const many = await stack.organization(100_000);
  const one = await stack.organization();
  await timeLookups(one, npis.splice(0, 1));
  const alone = await timeLookups(one, npis.splice(0, SAMPLES));
  const bulks = await Promise.all(
    Array.from(
      { length: BULKS },
      async () => (await many.bulk({ npis: npis.splice(0, 60) })).json.batch_id,
    ),
  );
  const beside = await timeLookups(one, npis.splice(0, SAMPLES));
  const open = (await stack.openRequests(many.organizationId)).length;
  const ratio = (beside.median / alone.median).toFixed(2);
  console.log(
    `alone ${alone.median} ms, beside ${BULKS} bulks ${beside.median} ms: ${ratio};`,
    `${open} of the other's were open still`,
  );
  const ended = await Promise.all(bulks.map((id) => batchCompleted(many, id)));
  const failed = ended.flatMap(({ data }) =>
    data.filter(({ status }) => status !== 'completed'),
  );
  console.log(`${failed.length} of ${60 * BULKS} failed`);
} finally {
  await stack.stop();
  await stopServers();
}
process.exit();
