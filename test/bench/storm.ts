import { sql } from 'drizzle-orm';
import { workerProcesses } from '../support/programs.ts';
import { startServers } from '../support/servers.ts';
import { startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';
import { timeLookups } from './lookups.ts';

/**
 * `node test/bench/storm.ts [BULKS]`: how long one organization waits for a lookup, alone and
 * during a storm of another. The storm is one burst of bulks (95 by default) of 60 NPIs, reported
 * in real time to a receiver that answers 500, so that each delivery becomes a workflow. Starts its
 * own servers.
 */
const BULKS = Number(process.argv[2] ?? 95);
const BULK = 60;
const SAMPLES = 20;
/** Its check digit is wrong, so it ends as `not_found` without a vendor call. */
const NOBODY = '1234567890';

const stopServers = await startServers();
const { TEST_TEMPORAL_ADDRESS: temporalAddress = '' } = process.env;
// The worker runs in its own process, as in production. In this process, it would delay the API.
const elsewhere = { temporalAddress, taskQueue: `storm-${process.pid}` };
const stack = await startStack({ lookupTimeoutMs: 15 * 60_000, elsewhere });
const workers = workerProcesses();
try {
  await workers.start(stack, { SWEEP_INTERVAL: '15s' });
  const npis = ordinaryNpis('found', 2 * SAMPLES + 1);
  const storming = await stack.organization(100_000);
  const other = await stack.organization();
  await timeLookups(other, npis.splice(0, 1));
  const quiet = await timeLookups(other, npis.splice(0, SAMPLES));
  const submit = () =>
    storming.bulk({
      npis: Array.from({ length: BULK }, () => NOBODY),
      webhook: { url: `${stack.receiver.url}/status/500` },
    });
  const submitting = Promise.all(Array.from({ length: BULKS }, submit));
  const storm = await timeLookups(other, npis.splice(0, SAMPLES));
  await submitting;
  const open = (await stack.openRequests(storming.organizationId)).length;
  const [undecided] = await stack.db.drizzle.execute<{ n: number }>(sql`
    select count(*)::int as n from webhook_deliveries where state = 'pending'`);
  console.log(`quiet: ${quiet.median} ms, at most ${quiet.longest} ms`);
  console.log(
    `storm: ${storm.median} ms, at most ${storm.longest} ms; ${storm.failed} of ${SAMPLES} failed`,
  );
  console.log(`quiet to storm: ${(storm.median / quiet.median).toFixed(2)}`);
  console.log(
    `${open} requests and ${undecided?.n} deliveries of the storm were open still`,
  );
} finally {
  await workers.stop();
  await stack.stop();
  await stopServers();
}
process.exit();
