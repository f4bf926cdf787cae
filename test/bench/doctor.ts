import { randomBytes } from 'node:crypto';
import postgres from 'postgres';
import { openDatabase } from '../../db/connection/client.ts';
import type { CheckResult } from '../../db/doctor/check.ts';
import { diagnose } from '../../db/doctor/doctor.ts';
import { migrate } from '../../db/operations/migrate.ts';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { RULES } from '../support/organization.ts';
import { fillDatabase } from './doctor-data.ts';
import { plantCorruptions } from './doctor-plants.ts';

/**
 * `node test/bench/doctor.ts [REQUESTS…]`: measures the doctor on generated data (multiples of
 * 50000; by default 200000, which is 375000 ledger entries, and 1000000) next to a plain count of
 * the ledger in the same run. Measures it again with planted corruptions, all of which it has to
 * find. Creates databases on the server in TEST_DATABASE_URL, which needs a superuser, or starts
 * its own PostgreSQL. Target: one minute for a million requests. Ends with exit code 1 after a
 * false or a missing finding.
 */
const HOUR = 3_600_000;
const DOCTOR_RULES = {
  ...RULES,
  webhookScheduleMs: [
    0,
    5000,
    300_000,
    ...[0.5, 2, 5, 10, 14, 20, 24].map((hours) => hours * HOUR),
  ],
};

const given = process.argv.slice(2).map(Number);
if (!given.every((count) => count > 0 && count % 50_000 === 0)) {
  console.error('usage: node test/bench/doctor.ts [REQUESTS…], each a multiple of 50000');
  process.exit(2);
}
const server = process.env.TEST_DATABASE_URL ? null : await startPostgres({});
const serverUrl = process.env.TEST_DATABASE_URL ?? server?.url ?? '';
try {
  for (const count of given.length > 0 ? given : [200_000, 1_000_000])
    await measure(count);
} finally {
  await server?.stop();
}

async function measure(count: number): Promise<void> {
  const name = `bench_${randomBytes(6).toString('hex')}`;
  const url = new URL(serverUrl);
  url.pathname = `/${name}`;
  const admin = postgres(serverUrl, { max: 1, onnotice: () => {} });
  await admin`create database ${admin(name)}`;
  await migrate(url.href);
  const sql = postgres(url.href, { max: 1, onnotice: () => {} });
  const db = openDatabase({ url: url.href, poolSize: 1, applicationName: 'bench' });
  try {
    const [filledMs] = await timed(() => fillDatabase(sql, count));
    const [baselineMs, [ledger]] = await timed(
      () => sql`select count(*)::int as entries from ledger_entries`,
    );
    console.log(
      `\n${count} requests, ${ledger?.entries} ledger entries (made in ${(filledMs / 1000).toFixed(0)} s)`,
    );
    console.log(`select count(*) from ledger_entries: ${baselineMs} ms (baseline)`);
    const [healthyMs, healthy] = await timed(() => diagnose(db, DOCTOR_RULES));
    print('doctor', healthyMs, baselineMs);
    require('no findings', JSON.stringify(codes(healthy)) === '[]', healthy);

    const planted = await plantCorruptions(sql);
    const [sickMs, sick] = await timed(() => diagnose(db, DOCTOR_RULES));
    const found = codes(sick).filter((code) => planted.includes(code));
    print(
      `doctor, ${found.length} of ${planted.length} planted corruptions found`,
      sickMs,
      baselineMs,
    );
    const findings = sick.reduce((sum, check) => sum + check.findings, 0);
    const exactly = findings === planted.length && found.length === planted.length;
    require('each planted corruption once, and nothing else', exactly, sick);
  } finally {
    await db.close();
    await sql.end();
    await admin`drop database ${admin(name)} with (force)`;
    await admin.end();
  }
}

function print(title: string, durationMs: number, baselineMs: number): void {
  console.log(
    `${title}: ${durationMs} ms, ${(durationMs / baselineMs).toFixed(1)} × the baseline`,
  );
}

function require(what: string, holds: boolean, checks: readonly CheckResult[]): void {
  if (holds) return;
  process.exitCode = 1;
  const seen = checks.filter(({ findings }) => findings > 0);
  console.error(`expected ${what}, but:`);
  for (const { code, findings, examples } of seen)
    console.error(`  ${code} ${findings} ${examples.join(' ')}`);
}

function codes(checks: readonly CheckResult[]): string[] {
  return checks.filter(({ findings }) => findings > 0).map(({ code }) => code);
}

async function timed<T>(work: () => Promise<T>): Promise<[number, T]> {
  const begun = performance.now();
  const result = await work();
  return [Math.round(performance.now() - begun), result];
}
