import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { sql } from 'drizzle-orm';
import { readMigrationFiles } from 'drizzle-orm/migrator';
import { drizzle } from 'drizzle-orm/postgres-js';
import { migrate as runMigrations } from 'drizzle-orm/postgres-js/migrator';
import postgres, { type Sql } from 'postgres';
import { type Database, only, requirePatchedDriver, run } from '../connection/client.ts';
import { DatabaseError, OperatorProblem, toDatabaseError } from '../connection/errors.ts';
import { connect } from '../connection/tls.ts';
import journal from '../migrations/meta/_journal.json' with { type: 'json' };

const FOLDER = fileURLToPath(new URL('../migrations', import.meta.url));
/**
 * The key of the advisory lock that lets only one process migrate at a time. Any constant works, as
 * long as all migrating processes use the same one.
 */
const MIGRATION_LOCK = 7_041_776;

/**
 * The timestamps of this release's migrations. drizzle stores the timestamp of each migration that
 * it has applied.
 */
const CARRIED = journal.entries.map((entry) => entry.when);

/**
 * SQLSTATEs for an unknown table, schema, or function. They mean that the database was never
 * migrated, or was made by other migrations than ours.
 */
const UNDEFINED: readonly string[] = ['42P01', '3F000', '42883'];

const OTHER_HISTORY =
  'the database was made by other migrations than those of db/migrations; use an empty database, ' +
  'or, if it belongs to the local stack, delete the folder .local with all its data and start again';

function otherText(tag: string): string {
  return (
    `the database ran another text of the migration ${tag} than that in db/migrations; run ` +
    'migrate from an unchanged copy of the release'
  );
}

/**
 * The oldest major version of PostgreSQL that has the features that the migrations use, such as
 * `unique nulls not distinct`.
 */
const OLDEST_SERVER = 15;

/**
 * Migrates the database at `url` to the newest schema, and grants each role the privileges it
 * needs. Several machines may run this at once: drizzle's migrator does not lock, so an advisory
 * lock lets one work while the others wait.
 * @throws {DatabaseError | OperatorProblem}
 */
export async function migrate(url: string): Promise<void> {
  requirePatchedDriver();
  const client = connect(url, {
    max: 1,
    onnotice: () => {},
    connection: { application_name: 'migrate' },
  });
  try {
    await refuseOldServer(client);
    await client`select pg_advisory_lock(${MIGRATION_LOCK})`;
    await refuseOtherHistory(client);
    await runMigrations(drizzle(client), { migrationsFolder: FOLDER });
    await grantRoles(client);
  } catch (error) {
    throw toDatabaseError(error);
  } finally {
    // Closing the connection releases the advisory lock.
    await client.end({ timeout: 5 });
  }
}

async function refuseOldServer(client: Sql): Promise<void> {
  const [server] = await client<{ version: string; number: number }[]>`
    select current_setting('server_version') as version,
           current_setting('server_version_num')::int as number`;
  if (server === undefined || server.number >= OLDEST_SERVER * 10_000) {
    return;
  }
  throw new OperatorProblem(
    `the server of DATABASE_URL is PostgreSQL ${server.version}, and this service needs ` +
      `${OLDEST_SERVER} or later: upgrade it, or set another server`,
  );
}

/**
 * Rejects a database that was made by other migrations, or by another text of one of our files. Our
 * migrations cannot upgrade such a database, but drizzle would try. drizzle stores the hash of each
 * migration that it applies, and never compares it.
 */
async function refuseOtherHistory(client: Sql): Promise<void> {
  const [noted] =
    await client`select to_regclass('drizzle.__drizzle_migrations') as name`;
  if (!noted?.name) return;
  const applied = await client<{ hash: string; time: string }[]>`
    select hash, created_at as time from drizzle.__drizzle_migrations`;
  if (applied.length === 0) return;
  const hashes = new Map(applied.map(({ hash, time }) => [Number(time), hash]));
  if (!hashes.has(Math.min(...CARRIED))) throw new OperatorProblem(OTHER_HISTORY);
  // A later release may have added migrations that we do not have.
  const files = readMigrationFiles({ migrationsFolder: FOLDER });
  for (const { when, tag } of journal.entries) {
    const ran = hashes.get(when);
    const file = files.find(({ folderMillis }) => folderMillis === when);
    if (ran !== undefined && ran !== file?.hash)
      throw new OperatorProblem(otherText(tag));
  }
}

async function grantRoles(client: Sql): Promise<void> {
  const [applied] = await client<{ newest: string; user: string }[]>`
    select max(created_at) as newest, current_user as user from drizzle.__drizzle_migrations`;
  // If a newer release has migrated this database, it has also granted all privileges.
  if (!applied || Number(applied.newest) > Math.max(...CARRIED)) return;
  const roles = await readFile(`${FOLDER}/roles.sql`, 'utf8');
  try {
    await client.begin((tx) => tx.unsafe(roles));
  } catch (error) {
    if (!(error instanceof postgres.PostgresError)) throw error;
    if (error.code === '42501') {
      throw new OperatorProblem(rolesMissing(applied.user));
    }
    if (UNDEFINED.includes(error.code)) {
      throw new OperatorProblem(OTHER_HISTORY);
    }
    throw error;
  }
}

function rolesMissing(user: string): string {
  const statements = [
    'create role npe_owner nologin;',
    'create role npe_api nologin;',
    'create role npe_worker nologin;',
    'create role npe_operator nologin;',
    'create role npe_viewer nologin;',
    `grant npe_owner to ${user};`,
    `alter database … owner to ${user};`,
  ];
  return (
    'the database has the newest schema, but its user may not set up the roles of ' +
    `db/migrations/roles.sql; as a superuser run "${statements.join(' ')}" ` +
    '(without the roles that already exist), then migrate again'
  );
}

export type Readiness =
  | 'ready'
  | 'migrations_missing'
  | 'database_read_only'
  | 'commits_hang'
  | 'database_away';

/**
 * Returns whether PostgreSQL responds, commits writes, and has all migrations of this release. It
 * may also have migrations of a newer release, because each migration stays compatible with the
 * previous release, which keeps running during a rollout.
 */
export async function readiness(db: Database): Promise<Readiness> {
  const read = readReadiness(db);
  // If all connections of the pool are committing, `read` hangs, too.
  if (!(await db.canCommit())) return 'commits_hang';
  return await read;
}

/** Returns what can be read about the readiness of PostgreSQL. */
async function readReadiness(db: Database): Promise<Exclude<Readiness, 'commits_hang'>> {
  try {
    const rows = await run<{ readonly applied: number; readonly isReadOnly: boolean }>(
      db,
    )`
      select count(distinct created_at)::int as applied,
             current_setting('transaction_read_only') = 'on' as "isReadOnly"
        from drizzle.__drizzle_migrations
       where created_at = any(${sql.param(CARRIED)}::bigint[])`;
    const { applied, isReadOnly } = only(rows);
    if (applied < CARRIED.length) return 'migrations_missing';
    return isReadOnly ? 'database_read_only' : 'ready';
  } catch (error) {
    const isUnmigrated = error instanceof DatabaseError && UNDEFINED.includes(error.code);
    return isUnmigrated ? 'migrations_missing' : 'database_away';
  }
}
