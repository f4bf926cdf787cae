import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { arch, platform } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { openDatabase } from '../db/connection/client.ts';
import { migrate } from '../db/operations/migrate.ts';
import { readServerStats } from '../db/operations/server.ts';
import { readConcerns, readStats, type StatsRules } from '../db/operations/stats.ts';
import { startPostgres } from '../deploy/local/postgres.ts';
import { addWaiting, fillDatabase } from './bench/doctor-data.ts';
import { withSql } from './support/database.ts';
import { succeed } from './support/installed.ts';
import { runCheck, step } from './support/long-check.ts';
import { runProgram } from './support/programs.ts';
import { TOOLS } from './support/tools.ts';

/**
 * `npm run postgresql`: runs the tests of the migrations and of the ledger on the oldest PostgreSQL
 * that the service supports. `npm test` runs them on the newest. `migrate` must refuse an older
 * one. npm installs both servers, once. Then it reads the metrics from a full database on Debian's
 * PostgreSQL. Unlike the others, that one can compile queries.
 */
const OLDEST = 15;
const TOO_OLD = 14;
const FILES = [
  'test/db/migrations.test.ts',
  'test/db/schema.test.ts',
  'test/db/ledger.test.ts',
  'test/db/roles.test.ts',
  'test/db/windows.test.ts',
];

const REQUESTS = 200_000;
const RULES: StatsRules = {
  sources: [
    ['vendor', 'rocketreach', 1000],
    ['verifier', 'hunter', null],
    ['registry', 'registry', null],
  ],
  webhookScheduleMs: [0, 86_400_000],
};
/** Makes the server log the plan of each statement of a session as JSON. */
const LOG_PLANS = `
  alter database postgres set session_preload_libraries = 'auto_explain';
  alter database postgres set auto_explain.log_min_duration = 0;
  alter database postgres set auto_explain.log_analyze = on;
  alter database postgres set auto_explain.log_format = 'json'`;

/** Matches the statement of the metrics that reads the open requests. */
const OPEN_REQUESTS = /from requests\s+where settled_at is null/;

await runCheck(async (started) => {
  const packages = await TOOLS.postgresqlPackages();
  const folderOf = (major: number) =>
    join(packages, `postgresql-${major}-${platform()}-${arch()}`);
  if (existsSync(folderOf(TOO_OLD))) {
    const url = await start(folderOf(TOO_OLD), started);
    await step(`migrate on PostgreSQL ${TOO_OLD}`, () => isRefused(url));
  } else {
    console.log(
      `npm has no PostgreSQL ${TOO_OLD} for this machine: that migrate refuses it is left out`,
    );
  }
  const url = await start(folderOf(OLDEST), started);
  await step(`tests on PostgreSQL ${OLDEST}`, () => runTests(url));
  const binaries = await TOOLS.compilingPostgresql();
  await step('plans of the metrics on a PostgreSQL that compiles queries', () =>
    requireCheapPlans(binaries),
  );
});

/** Starts the server in this folder. @returns the URL of its superuser */
async function start(folder: string, started: AsyncDisposableStack): Promise<string> {
  // Its install script makes the links between libraries, which npm cannot store as files.
  const links = `cd "${folder}" && node scripts/hydrate-symlinks.js`;
  await succeed('/bin/sh', ['-c', links], 'npm has no PostgreSQL for this machine');
  const server = await startPostgres({ package: folder });
  started.defer(() => server.stop());
  return server.url;
}

async function isRefused(url: string): Promise<void> {
  const { code, stderr } = await runProgram('migrate', [], {
    env: { DATABASE_URL: url },
  });
  const sentence = new RegExp(
    `^migrate: .* is PostgreSQL ${TOO_OLD}\\.\\d+, and this service needs ${OLDEST} or later: `,
  );
  if (code !== 1 || !sentence.test(stderr))
    throw new Error(`migrate ended with ${code}: ${stderr}`);
}

async function runTests(url: string): Promise<void> {
  const runner = fileURLToPath(new URL('run.ts', import.meta.url));
  const env = { ...process.env, TEST_DATABASE_URL: url };
  const child = spawn(process.execPath, [runner, '--only-tests', ...FILES], {
    stdio: 'inherit',
    env,
  });
  const [code] = await once(child, 'close');
  if (code !== 0) throw new Error(`the tests on PostgreSQL ${OLDEST} failed`);
}

/** A plan that the server logged. `JIT` is present if the server compiled the query. */
interface Logged {
  readonly 'Query Text': string;
  readonly Plan: { readonly 'Total Cost': number };
  readonly JIT?: unknown;
}

/**
 * Runs the statements of the metrics and of the command `status` once, on a full database. The
 * estimated costs must be too low for PostgreSQL to compile them, even if the setting `jit` is on.
 */
async function requireCheapPlans(binaries: string): Promise<void> {
  const log: string[] = [];
  const server = await startPostgres({ binaries, onLog: (line) => log.push(line) });
  const limit = await readStatistics(server.url).finally(() => server.stop());
  const plans = plansIn(log);
  const costs = plans.map(({ Plan }) => Plan['Total Cost']);
  const bad = plans.filter(({ Plan, JIT }) => JIT || Plan['Total Cost'] >= limit);
  if (bad.length > 0) throw new Error(JSON.stringify(bad, null, 2));
  if (!plans.some((plan) => OPEN_REQUESTS.test(plan['Query Text'])))
    throw new Error('the plan of the metrics was not logged');
  console.log(`${plans.length} plans cost at most ${Math.max(...costs)} of ${limit}`);
}

/** @returns the cost from which the server compiles a query */
async function readStatistics(url: string): Promise<number> {
  await migrate(url);
  const limit = await withSql(url, async (sql) => {
    await fillDatabase(sql, REQUESTS);
    await addWaiting(sql);
    await sql.unsafe(LOG_PLANS);
    const [setting] = await sql`
      select pg_jit_available() as jit, current_setting('jit_above_cost') as cost`;
    if (!setting?.jit) throw new Error('this PostgreSQL cannot compile queries');
    return Number(setting.cost);
  });
  const db = openDatabase({ url, poolSize: 1, applicationName: 'plans' });
  try {
    await readServerStats(db);
    await readStats(db, RULES);
    await readConcerns(db, RULES.webhookScheduleMs);
  } finally {
    await db.close();
  }
  return limit;
}

/** Finds the plans in the lines of a server's log. The lines of a plan begin with a tab. */
function plansIn(log: readonly string[]): Logged[] {
  const entries = log.join('\n').matchAll(/ plan:\n((?:\t.*\n?)+)/g);
  return Array.from(entries, ([, plan = '']) => JSON.parse(plan));
}
