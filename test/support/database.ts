import { createHash, randomBytes } from 'node:crypto';
import { chmodSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import type { TestFn } from 'ava';
import postgres, { type Sql } from 'postgres';
import { type Database, openDatabase } from '../../db/connection/client.ts';
import { migrate } from '../../db/operations/migrate.ts';
import { loadOperatorConfig } from '../../deploy/config/config.ts';

/** A database for one test or test file, with two connection pools. */
export interface TestDatabase extends AsyncDisposable {
  readonly url: string;
  /** The pool that the service's functions take. */
  readonly db: Database;
  /** A pool for statements that the service does not contain. */
  readonly sql: Sql;
  /** Closes both pools and drops the database, even if other connections are open. */
  stop(): Promise<void>;
}

/** A time limit that a busy machine does not reach, for what a test itself does. */
export const BUSY_MS = 60_000;
/** The value of `SECRETS_KEY` in tests. */
export const SECRETS_KEY = `v1:${Buffer.alloc(32, 7).toString('base64')}`;
export const { secretKeys: SECRET_KEYS } = loadOperatorConfig({
  DATABASE_URL: 'postgres://x',
  SECRETS_KEY,
});

const MIGRATIONS = new URL('../../db/migrations/', import.meta.url);
/** The key of an advisory lock that no other code uses. */
const TEMPLATE_LOCK = 5_120_431;

/** Stopped in reverse order at the end of the test file. AVA runs each file in its own process. */
const running = new AsyncDisposableStack();

/**
 * Calls `start` before the first test of a file, and stops its result after the last one. The
 * returned object is filled before the first test, so read its members only inside tests. A later
 * call may use the results of earlier calls, and is stopped before them.
 */
export function fresh<T extends object, C>(test: TestFn<C>, start: () => Promise<T>): T {
  const started = {} as T & { stop?(): Promise<unknown> };
  test.serial.before(async () => {
    Object.assign(started, await start());
    running.defer(async () => void (await started.stop?.()));
  });
  test.after.always(() => running.disposeAsync());
  return started;
}

/**
 * Creates a migrated database for one test file. Its members can be read at the top of the file.
 */
export function freshDatabase<C>(test: TestFn<C>): TestDatabase {
  const { create, ...database } = nameDatabase();
  fresh(test, async () => {
    await create(ensureTemplate);
    return database;
  });
  return database;
}

/**
 * Creates a temporary folder.
 * @param atEnd `t.teardown` or `test.after.always`, which removes the folder
 */
export function temporaryFolder(atEnd: (remove: () => void) => void): string {
  const folder = mkdtempSync(join(tmpdir(), 'npi-email-enrichment-'));
  // If tests run as root, PostgreSQL runs as another user, and its data may be in this folder.
  chmodSync(folder, 0o755);
  atEnd(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/**
 * Creates a database for one test, for `await using`. It is a copy of a template, which the first
 * caller creates.
 */
export async function openTestDatabase(): Promise<TestDatabase> {
  const { create, ...database } = nameDatabase();
  await create(ensureTemplate);
  return database;
}

/** Like `openTestDatabase`, but without migrations. */
export async function openEmptyDatabase(): Promise<TestDatabase> {
  const { create, ...database } = nameDatabase();
  await create(async () => 'template0');
  return database;
}

const DUMPS = new URL('../db/', import.meta.url);

/** The versions of which record-dump.ts has recorded a database. */
export const DUMPED: readonly string[] = readdirSync(DUMPS)
  .filter((file) => file.endsWith('.sql.gz'))
  .map((file) => file.slice(0, -'.sql.gz'.length));

/**
 * Matches a time of day in a dump, as PostgreSQL or JSON writes it, without the fraction of its
 * second.
 */
const RECORDED_TIME = /(\d{4}-\d\d-\d\d)([ T])(\d\d:\d\d:\d\d)(?=(?:\.\d+)?(?:\+00|Z))/g;

/** Sums usage by day again, because the days of moved requests may have changed. */
const SUM_USAGE = `
  delete from public.daily_usage;
  insert into public.daily_usage (
    organization_id, day, requested_type, found, replayed, not_found, failed, credits_charged)
  select organization_id, (settled_at at time zone 'UTC')::date, requested_type,
         count(*) filter (where credits_used > 0), count(*) filter (where replayed),
         count(*) filter (where status = 'not_found'), count(*) filter (where status = 'failed'),
         sum(credits_used)
    from public.requests
   where settled_at is not null
   group by 1, 2, 3`;

/**
 * Like `openTestDatabase`, but with the recorded database of a version, without later migrations.
 * All its times are moved, as if it had been recorded just now. Days without a time stay.
 */
export async function openDump(version: string): Promise<TestDatabase> {
  const database = await openEmptyDatabase();
  const file = await readFile(new URL(`${version}.sql.gz`, DUMPS));
  const dump = moveToNow(gunzipSync(file).toString());
  // The dump changes the search path of its connection.
  await withSql(database.url, (sql) => sql.unsafe(dump + SUM_USAGE));
  return database;
}

function moveToNow(dump: string): string {
  const [, recordedAt = ''] = dump.match(/^-- Recorded at (.+)$/m) ?? [];
  // Only whole seconds are added, so the fractions of seconds stay as they are.
  const seconds = Math.floor((Date.now() - Date.parse(recordedAt)) / 1000);
  return dump.replaceAll(RECORDED_TIME, (_, day, separator, time) => {
    const moved = new Date(Date.parse(`${day}T${time}Z`) + seconds * 1000).toISOString();
    return moved.slice(0, 10) + separator + moved.slice(11, 19);
  });
}

/** Counts what is not final yet. */
export async function readOpen(sql: Sql) {
  const [open = { requests: 0, jobs: 0, deliveries: 0, uploads: 0 }] = await sql<
    { requests: number; jobs: number; deliveries: number; uploads: number }[]
  >`
    select (select count(*)::int from requests where settled_at is null) as requests,
           (select count(*)::int from vendor_attempts where state = 'pending') as jobs,
           (select count(*)::int from webhook_deliveries where state = 'pending') as deliveries,
           (select count(*)::int from uploads
             where started_at is not null and submitted_at is null and stop_reason is null) as uploads`;
  return open;
}

/** @throws {Error} if a recorded database has too little open work for a test of upgrades */
export async function requireOpenWork(sql: Sql): Promise<void> {
  const open = await readOpen(sql);
  const { requests, jobs, deliveries, uploads } = open;
  if (requests > 40 && jobs === 1 && deliveries > 1 && uploads === 1) return;
  throw new Error(
    'a recorded database must have more than 40 open requests, one open job of a vendor, ' +
      `two open deliveries, and one open upload, but has ${JSON.stringify(open)}`,
  );
}

/** Returns a database that `create` creates later. Its pools connect at their first query. */
function nameDatabase() {
  const name = `test_${randomBytes(8).toString('hex')}`;
  const url = urlOf(name);
  const db = openDatabase({
    url,
    poolSize: 24,
    applicationName: 'test',
    secretKeys: SECRET_KEYS,
    deadlineMs: BUSY_MS,
  });
  const sql = postgres(url, { max: 8, onnotice: () => {} });
  const stop = async () => {
    await Promise.all([sql.end({ timeout: 5 }), db.close()]);
    await withAdmin(
      (admin) => admin`drop database if exists ${admin(name)} with (force)`,
    );
  };
  const create = (templateOf: (admin: Sql) => Promise<string>) =>
    withAdmin(async (admin) => {
      const template = await templateOf(admin);
      await admin`create database ${admin(name)} template ${admin(template)}`;
    });
  return { url, db, sql, create, stop, [Symbol.asyncDispose]: stop };
}

/**
 * Creates the template if it is missing. Its name has a digest of the migrations, so servers that
 * are kept between runs never use an old schema.
 */
async function ensureTemplate(admin: Sql): Promise<string> {
  const template = `test_template_${await digestOfMigrations()}`;
  await admin`select pg_advisory_lock(${TEMPLATE_LOCK})`;
  try {
    const [present] = await admin`select 1 from pg_database where datname = ${template}`;
    if (present === undefined) {
      const unfinished = `${template}_unfinished`;
      await admin`drop database if exists ${admin(unfinished)} with (force)`;
      await admin`create database ${admin(unfinished)} template template0`;
      await migrate(urlOf(unfinished));
      // All roles may use the tables that a test creates, such as one in which a trigger notes its
      // calls.
      await withSql(
        urlOf(unfinished),
        (sql) =>
          sql`alter default privileges in schema public grant all on tables to public`,
      );
      await admin`alter database ${admin(unfinished)} rename to ${admin(template)}`;
    }
  } finally {
    await admin`select pg_advisory_unlock(${TEMPLATE_LOCK})`;
  }
  return template;
}

async function digestOfMigrations(): Promise<string> {
  const hash = createHash('sha256');
  const entries = await readdir(MIGRATIONS, { recursive: true, withFileTypes: true });
  const files = entries
    .filter((entry) => entry.isFile())
    .map((entry) => `${entry.parentPath}/${entry.name}`);
  for (const file of files.sort()) hash.update(await readFile(file));
  return hash.digest('hex').slice(0, 12);
}

/** Opens a connection, and closes it after `use`. */
export async function withSql<T>(url: string, use: (sql: Sql) => Promise<T>): Promise<T> {
  const sql = postgres(url, { max: 1, onnotice: () => {} });
  try {
    return await use(sql);
  } finally {
    await sql.end({ timeout: 5 });
  }
}

function withAdmin(use: (admin: Sql) => Promise<unknown>): Promise<unknown> {
  return withSql(testSetting('TEST_DATABASE_URL'), use);
}

function urlOf(database: string): string {
  const url = new URL(testSetting('TEST_DATABASE_URL'));
  url.pathname = `/${database}`;
  return url.href;
}

/** Returns the URL of the same database with the rights of one kind of process. */
export function asRole(
  databaseUrl: string,
  process: 'api' | 'worker' | 'operator' | 'viewer',
): string {
  const url = new URL(databaseUrl);
  url.searchParams.set('role', `npe_${process}`);
  return url.href;
}

/** Controls the clock of a database. */
export interface Travel {
  /** Moves the clock for all connections, back if the number is negative. */
  advance(ms: number): Promise<void>;
  /** Stops the clock, so that only `advance` moves it and the machine's speed does not matter. */
  freeze(): Promise<void>;
  /** Sets how far the clock is ahead of the machine's. It never goes back. */
  keepAhead(ms: number): Promise<void>;
  stop(): Promise<void>;
}

/**
 * Replaces `clock_timestamp()` and `now()`, from which our statements read the time. Only later
 * connections use the replacements.
 */
export async function travel(databaseUrl: string): Promise<Travel> {
  const admin = postgres(databaseUrl, { max: 1, onnotice: () => {} });
  const name = new URL(databaseUrl).pathname.slice(1);
  await admin.unsafe(`
    create schema travel;
    create table travel.clock as select null::timestamptz as frozen, interval '0' as ahead;
    create function travel.clock_timestamp() returns timestamptz language sql volatile as
      'select coalesce(frozen, pg_catalog.clock_timestamp()) + ahead from travel.clock';
    create function travel.now() returns timestamptz language sql stable as
      'select coalesce(frozen, pg_catalog.now()) + ahead from travel.clock';
    grant usage on schema travel to public;
    grant select on travel.clock to public;
    alter database ${name} set search_path = public, travel, pg_catalog;
    -- These run as their owner, with their own search path.
    alter function require_charges() set search_path = travel, public, pg_catalog;
    alter function forget_sandbox set search_path = travel, public, pg_catalog;`);
  return {
    async advance(ms) {
      await admin`update travel.clock set ahead = ahead + make_interval(secs => ${ms / 1000})`;
    },
    async freeze() {
      await admin`update travel.clock set frozen = date_trunc('milliseconds', pg_catalog.clock_timestamp())`;
    },
    async keepAhead(ms) {
      await admin`update travel.clock set ahead = greatest(ahead, make_interval(secs => ${ms / 1000}))`;
    },
    stop: () => admin.end({ timeout: 5 }),
  };
}

/** The environment variables that the runner sets for each test file. */
export const TEST_SETTINGS = [
  'TEST_DATABASE_URL',
  'TEST_TEMPORAL_ADDRESS',
  'TEST_TEMPORAL_CLI',
  'TEST_WORKFLOW_BUNDLE',
] as const;
export type TestSetting = (typeof TEST_SETTINGS)[number];

/** @throws {Error} if the runner did not start the test file */
export function testSetting(name: TestSetting): string {
  const value = process.env[name];
  if (value) return value;
  throw new Error(
    `${name} is not set: run this test through the runner, npm test -- test/this.test.ts`,
  );
}
