import { randomBytes } from 'node:crypto';
import postgres from 'postgres';
import { openDatabase } from '../../db/connection/client.ts';
import { migrate } from '../../db/operations/migrate.ts';
import { readStats, type StatsRules } from '../../db/operations/stats.ts';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { addWaiting, fillDatabase } from './doctor-data.ts';

/**
 * `node test/bench/stats.ts [REQUESTS]`: measures the Prometheus metrics from PostgreSQL on
 * generated data (a multiple of 50000; by default 1000000) next to a plain count of the requests.
 * Measures them again with 100,000 more waiting requests and pending deliveries. Creates a database
 * on the server in TEST_DATABASE_URL, which needs a superuser, or starts its own PostgreSQL.
 */
const ROUNDS = 15;
const RULES: StatsRules = {
  sources: [['vendor', 'rocketreach', null]],
  webhookScheduleMs: [0],
};

const count = Number(process.argv[2] ?? 1_000_000);
const server = process.env.TEST_DATABASE_URL ? null : await startPostgres({});
const serverUrl = process.env.TEST_DATABASE_URL ?? server?.url ?? '';
const url = new URL(serverUrl);
url.pathname = `/bench_${randomBytes(6).toString('hex')}`;
const name = url.pathname.slice(1);
const admin = postgres(serverUrl, { max: 1, onnotice: () => {} });
await admin`create database ${admin(name)}`;
await migrate(url.href);
const sql = postgres(url.href, { max: 1, onnotice: () => {} });
const db = openDatabase({ url: url.href, poolSize: 1, applicationName: 'bench' });
try {
  await fillDatabase(sql, count);
  await measure(`${count} requests`);
  await addWaiting(sql);
  await measure('100,000 more that wait, each with a pending delivery');
} finally {
  await db.close();
  await sql.end();
  await admin`drop database ${admin(name)} with (force)`;
  await admin.end();
  await server?.stop();
}

async function measure(what: string): Promise<void> {
  const figures: number[] = [];
  const counts: number[] = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    figures.push(await timed(() => readStats(db, RULES)));
    counts.push(await timed(() => sql`select count(*) from requests`));
  }
  console.log(
    `${what}: figures ${median(figures)} ms; select count(*) from requests ${median(counts)} ms`,
  );
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const begun = performance.now();
  await work();
  return performance.now() - begun;
}

function median(times: readonly number[]): number {
  return (
    Math.round(
      (times.toSorted((a, b) => a - b)[Math.floor(times.length / 2)] ?? 0) * 10,
    ) / 10
  );
}
