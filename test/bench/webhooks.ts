import { once } from 'node:events';
import { createServer, type Socket } from 'node:net';
import { setTimeout } from 'node:timers/promises';
import { sql } from 'drizzle-orm';
import { poll } from '../../deploy/local/processes.ts';
import { startServers } from '../support/servers.ts';
import { startStack } from '../support/stack.ts';
import { measureArrivals } from './arrivals.ts';

/**
 * `node test/bench/webhooks.ts [DELIVERIES]`: measures how long a healthy receiver waits for a
 * delivery, from a submit that is completed at once to its arrival. Measures it first without other
 * traffic, and then next to deliveries (10000 by default) of another organization to a host that
 * accepts connections and never responds. These deliveries first arrive at the rate limit of one
 * organization, and then wait. Starts its own servers.
 */
const WAITING = Number(process.argv[2] ?? 10_000);
const SAMPLES = 100;
const EVERY_MS = 250;
/** Its check digit is wrong, so it ends as `not_found` without a lookup. */
const NOBODY = '1234567890';
const BULK = 60;
/** The interval that a rate limit of 100 requests a minute allows. */
const BULK_EVERY_MS = 600;
const ARRIVE_MS = 900_000;

const stopServers = await startServers();
const dead = await startDeadHost();
const stack = await startStack({
  webhookScheduleMs: [0, 5000, 300_000, 1_800_000, 7_200_000, 18_000_000],
  webhookLongestRestMs: 1_800_000,
  sweepIntervalMs: 15_000,
});
try {
  const healthy = await stack.organization(100_000);
  const alone = await measure('alone', healthy);
  const other = await stack.organization(100_000);
  const arriving = (async () => {
    for (let sent = 0; sent < WAITING; sent += BULK) {
      const npis = Array.from({ length: Math.min(BULK, WAITING - sent) }, () => NOBODY);
      await other.bulk({ npis, webhook: { url: `https://127.0.0.1:${dead.port}/` } });
      await setTimeout(BULK_EVERY_MS);
    }
  })();
  await measure(`while ${WAITING} for the dead host arrive`, healthy);
  await arriving;
  if (!(await poll(async () => (await untouched()) === 0 || undefined, ARRIVE_MS)))
    throw new Error('they do not arrive');
  dead.forget();
  const beside = await measure(`beside ${WAITING} that wait for the dead host`, healthy);
  const ratio = (q: 'p50' | 'p95') => (beside[q] / alone[q]).toFixed(2);
  console.log(`ratio of loaded to idle: p50 ${ratio('p50')}, p95 ${ratio('p95')}`);
  console.log(`most slots that the dead host held: ${dead.most()}`);
} finally {
  await stack.stop();
  dead.close();
  await stopServers();
}
process.exit();

function measure(what: string, client: Awaited<ReturnType<typeof stack.organization>>) {
  return measureArrivals(stack, client, what, Array(SAMPLES).fill(NOBODY), EVERY_MS);
}

/**
 * Returns the number of untouched deliveries to the dead host: without an attempt and without a
 * later due time.
 */
async function untouched(): Promise<number> {
  const [row] = await stack.db.drizzle.execute<{ n: number }>(sql`
    select count(*)::int as n from webhook_deliveries where state = 'pending' and attempts = 0 and due_at is null`);
  return row?.n ?? 0;
}

async function startDeadHost() {
  const sockets = new Set<Socket>();
  let most = 0;
  const server = createServer((socket) => {
    sockets.add(socket);
    most = Math.max(most, sockets.size);
    socket.on('error', () => {});
    socket.resume();
    socket.on('close', () => sockets.delete(socket));
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const address = server.address();
  return {
    port: typeof address === 'object' && address !== null ? address.port : 0,
    most: () => most,
    forget: () => {
      most = sockets.size;
    },
    close: () => {
      for (const socket of sockets) socket.destroy();
      server.close();
    },
  };
}
