import { createHash, randomBytes } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import postgres, { type Sql } from 'postgres';
import { migrate } from '../../db/migrate.ts';
import { testSetting } from './environment.ts';

export interface TestDatabase {
  readonly url: string;
  /** Removes it, open connections or not. */
  drop(): Promise<void>;
}

const MIGRATIONS = new URL('../../db/migrations/', import.meta.url);
/** Any constant that no one else locks. */
const TEMPLATE_LOCK = 5_120_431;

/**
 * A database of its own for one test file, with all migrations applied. It is copied from a template, which the
 * first caller makes.
 */
export async function openTestDatabase(): Promise<TestDatabase> {
  return await createDatabase(ensureTemplate);
}

/** As `openTestDatabase`, without a single migration. */
export async function openEmptyDatabase(): Promise<TestDatabase> {
  return await createDatabase(async () => 'template0');
}

async function createDatabase(templateOf: (admin: Sql) => Promise<string>): Promise<TestDatabase> {
  const name = `test_${randomBytes(8).toString('hex')}`;
  await withAdmin(async (admin) => {
    const template = await templateOf(admin);
    await admin`create database ${admin(name)} template ${admin(template)}`;
  });
  return {
    url: urlOf(name),
    drop: () =>
      withAdmin(async (admin) => {
        await admin`drop database if exists ${admin(name)} with (force)`;
      }),
  };
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
  const files = entries.filter((entry) => entry.isFile()).map((entry) => `${entry.parentPath}/${entry.name}`);
  for (const file of files.sort()) hash.update(await readFile(file));
  return hash.digest('hex').slice(0, 12);
}

async function withAdmin(use: (admin: Sql) => Promise<void>): Promise<void> {
  const admin = postgres(testSetting('TEST_DATABASE_URL'), { max: 1, onnotice: () => {} });
  try {
    await use(admin);
  } finally {
    await admin.end({ timeout: 5 });
  }
}

function urlOf(database: string): string {
  const url = new URL(testSetting('TEST_DATABASE_URL'));
  url.pathname = `/${database}`;
  return url.href;
}
