import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import postgres from 'postgres';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { temporaryFolder } from '../support/database.ts';
import { startServers } from '../support/servers.ts';
import { startStack } from '../support/stack.ts';
import { startTemporalServer } from '../support/temporal-server.ts';
import { createScriptedVendor, foundStep, ordinaryNpis } from '../support/vendors.ts';

/**
 * `node test/bench/shards.ts [BULKS]`: measures the cost of a found NPI for Temporal's real server
 * with four history shards, as transactions and bytes of its PostgreSQL, which flushes as in
 * production. Submits bulks of 60 one after the other, 10 by default.
 */
const BULK = 60;
const BULKS = Number(process.argv[2] ?? 10);
const SHARDS = 4;
const IDLE_S = 10;

await using ending = new AsyncDisposableStack();
ending.defer(await startServers());
const dir = temporaryFolder((remove) => ending.defer(remove));
const own = await startPostgres({ dataDir: join(dir, 'postgres') });
ending.defer(() => own.stop());
const server = await startTemporalServer({
  namespace: 'default',
  postgresUrl: own.url,
  dir,
});
ending.defer(() => server.stop());
const sql = postgres(own.url, { max: 1 });
ending.defer(() => sql.end());
const vendor = createScriptedVendor();
const taskQueue = `enrichment-${randomBytes(8).toString('hex')}`;
const elsewhere = { temporalAddress: server.address, taskQueue };
const stack = await startStack({
  providers: [vendor],
  elsewhere,
  lookupTimeoutMs: 600_000,
});
ending.defer(() => stack.stop());
await stack.startWorker();
ending.defer(() => stack.stopWorker());
const client = await stack.organization(100_000);
const npis = ordinaryNpis('found', (BULKS + 1) * BULK);

const run = async () => {
  const taken = npis.splice(0, BULK);
  for (const npi of taken) vendor.script(npi, () => foundStep(npi));
  const { json } = await client.bulk({ npis: taken });
  await client.completed(json.batch_id);
  await stack.client.workflow.getHandle(json.batch_id).result();
};
const look = async () => {
  // Backends report their statistics with a delay.
  await setTimeout(2000);
  const rows = await sql<{ name: string; commits: number; bytes: number }[]>`
    select datname as name, xact_commit::float8 as commits, pg_database_size(datname)::float8 as bytes
      from pg_stat_database where datname in ('temporal', 'temporal_visibility') order by datname`;
  return { at: performance.now(), rows };
};
// The first bulk fills caches.
await run();
const before = await look();
await setTimeout(IDLE_S * 1000);
const idle = await look();
for (let bulk = 0; bulk < BULKS; bulk += 1) await run();
const busy = performance.now() - idle.at;
const after = await look();
const count = BULKS * BULK;
console.log(
  `${count} NPIs on ${SHARDS} shards: ${((count * 1000) / busy).toFixed(1)} NPIs a second`,
);
for (const [n, { name, commits, bytes }] of after.rows.entries()) {
  const [first, second] = [before.rows[n], idle.rows[n]];
  if (!first || !second) continue;
  const idlePerMs = (second.commits - first.commits) / (idle.at - before.at);
  const perNpi = (commits - second.commits - idlePerMs * (after.at - idle.at)) / count;
  console.log(
    `${name}: ${perNpi.toFixed(1)} transactions and ${Math.round((bytes - second.bytes) / count)} bytes an NPI;`,
    `idle ${(idlePerMs * 1000).toFixed(0)} transactions a second`,
  );
}
await ending.disposeAsync();
process.exit();
