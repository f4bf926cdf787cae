import { setTimeout } from 'node:timers/promises';
import { sql } from 'drizzle-orm';
import { VENDORS } from '../../activities/vendors/catalogue.ts';
import { createSimulator } from '../../deploy/local/simulator.ts';
import { sayThisMachine, startNameServer } from '../support/name-server.ts';
import { startServers } from '../support/servers.ts';
import { startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';
import { measureArrivals } from './arrivals.ts';

/**
 * `node test/bench/names.ts [DOMAINS]`: measures the time from a submit to its webhook, with a
 * lookup at a vendor whose host is found by name. Measures it first without other traffic, and then
 * next to webhooks of another organization to domains (20 by default) with silent name servers, as
 * many as its rate limit admits. Starts its own servers.
 */
const DOMAINS = Number(process.argv[2] ?? 20);
const SAMPLES = 40;
const EVERY_MS = 1500;
/** The interval that a rate limit of 100 requests a minute allows. */
const SUBMIT_EVERY_MS = 600;
const NOBODY = '1234567890';

const stopServers = await startServers();
const names = await startNameServer(
  (name, type) =>
    name.endsWith('.silent.example') ? 'silence' : sayThisMachine(name, type),
  1,
);
const simulator = await createSimulator({ port: 0, speed: 20, apiKey: 'k' });
const baseUrl = simulator.urls.rocketreach.replace('127.0.0.1', 'vendor.example');
const vendor = VENDORS.rocketreach.create({
  baseUrl,
  apiKey: 'k',
  api: 'legacy',
  callMs: 30_000,
});
const stack = await startStack({
  dnsServers: [names.address],
  providers: [vendor],
  webhookScheduleMs: [0, 5000, 300_000],
  sweepIntervalMs: 15_000,
});
try {
  const healthy = await stack.organization(100_000, 10_000);
  const npis = ordinaryNpis('found', 2 * SAMPLES + 1);
  await measureArrivals(stack, healthy, 'first', npis.slice(2 * SAMPLES), 0);
  const alone = await measureArrivals(
    stack,
    healthy,
    'alone',
    npis.slice(0, SAMPLES),
    EVERY_MS,
  );
  const other = await stack.organization(100_000);
  const ending = new AbortController();
  const submitting = (async () => {
    for (let n = 0; !ending.signal.aborted; n += 1) {
      const url = `https://hook${n % DOMAINS}.silent.example/`;
      await other.single({ npi: NOBODY, webhook: { url } });
      await setTimeout(SUBMIT_EVERY_MS);
    }
  })();
  while (!names.questions.some((question) => question.includes('silent')))
    await setTimeout(100);
  const what = `beside ${DOMAINS} silent domains`;
  const beside = await measureArrivals(
    stack,
    healthy,
    what,
    npis.slice(SAMPLES, 2 * SAMPLES),
    EVERY_MS,
  );
  ending.abort();
  await submitting;
  const ratio = (q: 'p50' | 'p95') => (beside[q] / alone[q]).toFixed(2);
  console.log(`ratio of loaded to idle: p50 ${ratio('p50')}, p95 ${ratio('p95')}`);
  const failed = await stack.db.drizzle.execute(sql`
    select from requests where organization_id = ${healthy.organizationId} and status <> 'completed'`);
  console.log(
    `look-ups at the vendor that failed: ${failed.length} of ${2 * SAMPLES + 1}`,
  );
} finally {
  await stack.stop();
  await simulator.close();
  names.close();
  await stopServers();
}
process.exit();
