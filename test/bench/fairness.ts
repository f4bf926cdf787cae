import { setTimeout } from 'node:timers/promises';
import type { EnvelopeAnswer } from '../support/organization.ts';
import { startServers } from '../support/servers.ts';
import { type ApiClient, startStack } from '../support/stack.ts';
import { createScriptedVendor, foundStep, ordinaryNpis } from '../support/vendors.ts';

/**
 * `node test/bench/fairness.ts [BULKS]`: how long one organization waits for a lookup, alone and while bulks of another
 * (20 by default) are in flight, with a vendor that takes two seconds. Brings its own servers.
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
  const [many, one] = [await stack.organization(100_000), await stack.organization()];
  await sample(one, 1);
  const alone = await sample(one, SAMPLES);
  const bulks = await Promise.all(
    Array.from({ length: BULKS }, async () => (await many.bulk({ npis: npis.splice(0, 60) })).json.batch_id),
  );
  const beside = await sample(one, SAMPLES);
  const open = (await stack.openRequests(many.organizationId)).length;
  console.log(
    `alone ${Math.round(alone)} ms, beside ${BULKS} bulks ${Math.round(beside)} ms: ${(beside / alone).toFixed(2)};`,
    `${open} of the other's were open still`,
  );
  const ended = await Promise.all(bulks.map((id) => completed(many, id)));
  const failed = ended.flatMap(({ data }) => data.filter(({ status }) => status !== 'completed'));
  console.log(`${failed.length} of ${60 * BULKS} failed`);
} finally {
  await stack.stop();
  await stopServers();
}
process.exit();

/** The median, in milliseconds, until a request is completed. */
async function sample(client: ApiClient, count: number): Promise<number> {
  const times: number[] = [];
  for (let n = 0; n < count; n += 1) {
    const begun = performance.now();
    const { json } = await client.single({ npi: npis.pop() });
    await completed(client, json.batch_id);
    times.push(performance.now() - begun);
  }
  return times.sort((a, b) => a - b)[Math.floor(count / 2)] ?? Number.NaN;
}

/** Asks with a wait, which costs next to nothing. */
async function completed(client: ApiClient, batchId: string): Promise<EnvelopeAnswer> {
  for (;;) {
    const path = `/api/v1/batch/${batchId}`;
    const { json } = await client.call<EnvelopeAnswer>('GET', path, undefined, { prefer: 'wait=60' });
    if (json.batch.status === 'completed') return json;
  }
}
