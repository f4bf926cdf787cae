import { randomBytes } from 'node:crypto';
import postgres, { type Sql } from 'postgres';
import { migrate } from '../../db/operations/migrate.ts';
import { startServers } from '../support/servers.ts';
import { startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';
import { fillDatabase } from './doctor-data.ts';

/**
 * `node test/bench/sizes.ts [REQUESTS] [LOOKUPS]`: measures the disk space of a request, by table.
 * First for generated data (a multiple of 50000; 200000 by default): nine in ten requests are in
 * bulks of 45, and half of the bulks have webhooks. Then for real lookups (1200 by default), each
 * found by the first vendor. Starts its own servers, unless the environment names some.
 */
const REQUESTS = Number(process.argv[2] ?? 200_000);
const LOOKUPS = Number(process.argv[3] ?? 1200);
const BULK = 60;

const stopServers = await startServers();
const url = new URL(process.env.TEST_DATABASE_URL ?? '');
const admin = postgres(url.href, { max: 1, onnotice: () => {} });
const name = `bench_${randomBytes(6).toString('hex')}`;
await admin`create database ${admin(name)}`;
url.pathname = `/${name}`;
await migrate(url.href);
const generated = postgres(url.href, { max: 1, onnotice: () => {} });
await fillDatabase(generated, REQUESTS);
console.log(`${REQUESTS} requests as generated`);
await print(generated, REQUESTS);
await generated.end();
await admin`drop database ${admin(name)} with (force)`;
await admin.end();

const stack = await startStack({ lookupTimeoutMs: 3_600_000 });
const client = await stack.organization(LOOKUPS);
const npis = ordinaryNpis('found', LOOKUPS);
const bulks = Array.from({ length: LOOKUPS / BULK }, (_, n) =>
  npis.slice(n * BULK, (n + 1) * BULK),
);
for (const bulk of bulks)
  await client.completed((await client.bulk({ npis: bulk })).json.batch_id);
const live = postgres(stack.databaseUrl, { max: 1, onnotice: () => {} });
await live`vacuum analyze`;
console.log(`\n${LOOKUPS} lookups, each found by the first vendor`);
await print(live, LOOKUPS);
await live.end();
await stack.stop();
await stopServers();
process.exit();

/** Prints the tables that grow with requests, largest first. */
async function print(sql: Sql, requests: number): Promise<void> {
  const tables = await sql<
    { name: string; rows: number; total: number; indexes: number }[]
  >`
    select relname as name, reltuples::float8 as rows, pg_total_relation_size(oid)::float8 as total,
           pg_indexes_size(oid)::float8 as indexes
      from pg_class
     where relkind = 'r' and relnamespace = 'public'::regnamespace and reltuples > ${requests / 200}
     order by total desc`;
  console.log(
    `${'table'.padEnd(22)} rows per req.  bytes per row     indexes  bytes per req.`,
  );
  for (const { name, rows, total, indexes } of tables) {
    const columns = [
      (rows / requests).toFixed(2),
      ...[total / rows, indexes / rows, total / requests].map(Math.round),
    ];
    const [first = '', second = '', third = '', fourth = ''] = columns.map(String);
    console.log(
      name.padEnd(22),
      first.padStart(14),
      second.padStart(12),
      third.padStart(14),
      fourth.padStart(16),
    );
  }
  const all = tables.reduce((sum, { total }) => sum + total, 0);
  console.log(`total: ${Math.round(all / requests)} bytes per request`);
}
