import { createHash, randomBytes } from 'node:crypto';
import { chmodSync, mkdtempSync, rmSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestFn } from 'ava';
import postgres, { type Sql } from 'postgres';
import { type Database, openDatabase } from '../../db/client.ts';
import { migrate } from '../../db/migrate.ts';
import { loadOperatorConfig } from '../../deploy/config/config.ts';

/** A database that nobody else uses, and two ways to it. */
export interface TestDatabase extends AsyncDisposable {
  readonly url: string;
  /** As the service has it. */
  readonly db: Database;
  /** For what the service has no function for. */
  readonly sql: Sql;
  /** Closes both and removes the database, other open connections or not. */
  stop(): Promise<void>;
}

/** As `SECRETS_KEY`. */
export const SECRETS_KEY = `v1:${Buffer.alloc(32, 7).toString('base64')}`;
export const { secretKeys: SECRET_KEYS } = loadOperatorConfig({
  DATABASE_URL: 'postgres://x',
  SECRETS_KEY,
});

const MIGRATIONS = new URL('../../db/migrations/', import.meta.url);
/** Any constant that no one else locks. */
const TEMPLATE_LOCK = 5_120_431;

/** Stopped in the reverse order when a test file is over: AVA runs each in a process of its own. */
const running = new AsyncDisposableStack();

/**
 * What `start` makes, from the first test of a file to its last. The object is filled before the
 * first test: take it apart in tests, not at the top of the file. What is started later may use
 * what was started earlier, and is stopped before it.
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
 * A database of its own for one test file, with all migrations applied. It may be taken apart at
 * once.
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
 * A temporary folder.
 * @param atEnd when it goes: `t.teardown`, or `test.after.always`
 */
export function temporaryFolder(atEnd: (remove: () => void) => void): string {
  const folder = mkdtempSync(join(tmpdir(), 'npi-email-enrichment-'));
  // PostgreSQL, which may have its data there, runs as a user of its own if this runs as root.
  chmodSync(folder, 0o755);
  atEnd(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/**
 * A database for one test: `await using`. It is copied from a template, which the first caller
 * makes.
 */
export async function openTestDatabase(): Promise<TestDatabase> {
  const { create, ...database } = nameDatabase();
  await create(ensureTemplate);
  return database;
}

/** As `openTestDatabase`, without a single migration. */
export async function openEmptyDatabase(): Promise<TestDatabase> {
  const { create, ...database } = nameDatabase();
  await create(async () => 'template0');
  return database;
}

/** A database that is still to be created. Its pools connect when they are used first. */
function nameDatabase() {
  const name = `test_${randomBytes(8).toString('hex')}`;
  const url = urlOf(name);
  const db = openDatabase({
    url,
    poolSize: 24,
    applicationName: 'test',
    secretKeys: SECRET_KEYS,
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

/** Named by the content of the migrations: a cluster that is kept never serves an old schema. */
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
      // What a test makes there beside our tables, a trigger's notes say, is everybody's.
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

/** Uses a connection of its own, for as long as it takes. */
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

/** The same database with no more rights than a process of that kind has. */
export function asRole(
  databaseUrl: string,
  process: 'api' | 'worker' | 'operator',
): string {
  const url = new URL(databaseUrl);
  url.searchParams.set('role', `npe_${process}`);
  return url.href;
}

/** A database whose clock can be put forward, and frozen. */
export interface Travel {
  /** Puts the clock forward, for every connection at once. */
  advance(ms: number): Promise<void>;
  /** From now on only `advance` moves it: for what must not depend on how busy the machine is. */
  freeze(): Promise<void>;
  /** Puts the clock this far ahead of the machine's, never back. */
  keepAhead(ms: number): Promise<void>;
  stop(): Promise<void>;
}

/**
 * Shadows `clock_timestamp()` and `now()`, which our statements tell the time by, with functions of
 * ours. Only for connections made afterwards.
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
    alter database ${name} set search_path = travel, public, pg_catalog;
    -- The trigger that refuses charges in the future runs as its owner, with its own search path.
    alter function require_charges() set search_path = travel, public, pg_catalog;`);
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

/** What the runner gives each test file. */
export const TEST_SETTINGS = [
  'TEST_DATABASE_URL',
  'TEST_TEMPORAL_ADDRESS',
  'TEST_TEMPORAL_CLI',
  'TEST_WORKFLOW_BUNDLE',
] as const;
export type TestSetting = (typeof TEST_SETTINGS)[number];

/** @throws {Error} when the test file was not started by the runner */
export function testSetting(name: TestSetting): string {
  const value = process.env[name];
  if (value) return value;
  throw new Error(
    `${name} is not set: run this test through the runner, npm test -- test/this.test.ts`,
  );
}
