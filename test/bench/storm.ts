import { loadavg } from 'node:os';
import { setTimeout } from 'node:timers/promises';
import { sql } from 'drizzle-orm';
import { setLimit } from '../../db/accounts/organizations.ts';
import { USUAL_RATE } from '../../db/schema/accounts.ts';
import { BY } from '../support/organization.ts';
import { workerProcesses } from '../support/programs.ts';
import { startServers } from '../support/servers.ts';
import { type ApiClient, startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';
import { timeLookups } from './lookups.ts';

/**
 * `node test/bench/storm.ts`: how long one organization waits for a lookup, alone and in two storms
 * of another organization. In the first storm, a live key sends 20 bulks of 60 NPIs at once. In the
 * second one, a test key sends such bulks at its rate limit for a minute. The NPIs cost nothing,
 * because their check digit is wrong. Starts its own servers.
 */
const NOBODY = '1234567890';
const BULK = 60;
const SAMPLES = 20;
const STORM_MS = 60_000;
const LIVE_BULKS = 20;
const SENDERS = 8;

const stopServers = await startServers();
const { TEST_TEMPORAL_ADDRESS: temporalAddress = '' } = process.env;
// The worker runs in its own process, as in production. In this process, it would delay the API.
const elsewhere = { temporalAddress, taskQueue: `storm-${process.pid}` };
const stack = await startStack({ lookupTimeoutMs: 15 * 60_000, elsewhere });
const workers = workerProcesses();
try {
  await workers.start(stack, { SWEEP_INTERVAL: '15s' });
  const npis = ordinaryNpis('found', 5000);
  const other = await stack.organization(100_000);
  const live = await stack.organization(100_000);
  const test = await stack.sandboxOf(live);
  await setLimit(stack.db, BY, test.organizationId, USUAL_RATE);
  await timeLookups(other, npis.splice(0, 3));
  const load = loadavg()[0]?.toFixed(1);
  const quiet = await timeLookups(other, npis.splice(0, SAMPLES));
  console.log(`quiet: ${quiet.median} ms, at most ${quiet.longest} ms; load ${load}`);

  const measure = async (name: string, sender: ApiClient, sending: Promise<unknown>) => {
    let isOver = false;
    void sending.then(() => (isOver = true));
    function* whileSending() {
      while (!isOver) yield* npis.splice(0, 1);
    }
    const began = Date.now();
    const during = await timeLookups(other, whileSending());
    const ratio = (during.median / quiet.median).toFixed(2);
    console.log(
      `${name}: ${ratio} times; ${during.median} ms, at most ${during.longest} ms;`,
      `${during.failed} of ${during.n} failed`,
    );
    await allFinal(sender);
    const statuses = await stack.db.drizzle.execute(sql`
      select status, count(*)::int as n,
             ceil(max(extract(epoch from settled_at - accepted_at)))::int as longest_s
        from requests where organization_id = ${sender.organizationId} group by status`);
    const seconds = Math.round((Date.now() - began) / 1000);
    console.log(`${name}: the sender's own ended after ${seconds} s:`, ...statuses);
  };

  const bulks = Promise.all(Array.from({ length: LIVE_BULKS }, () => bulk(live)));
  const ended = bulks.then(() => allFinal(live));
  await measure('live key', live, ended);

  const endsAt = Date.now() + STORM_MS;
  const sendOn = async () => {
    while (Date.now() < endsAt) {
      const { headers } = await bulk(test);
      await setTimeout(1000 * Number(headers.get('retry-after') ?? 0));
    }
  };
  await measure('test key', test, Promise.all(Array.from({ length: SENDERS }, sendOn)));
} finally {
  await workers.stop();
  await stack.stop();
  await stopServers();
}
process.exit();

function bulk(sender: ApiClient) {
  return sender.bulk({ npis: Array.from({ length: BULK }, () => NOBODY) });
}

async function allFinal({ organizationId }: ApiClient): Promise<void> {
  while ((await stack.openRequests(organizationId)).length > 0) await setTimeout(500);
}
