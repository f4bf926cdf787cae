import { fileURLToPath } from 'node:url';
import { drizzle } from 'drizzle-orm/postgres-js';
import { migrate as runMigrations } from 'drizzle-orm/postgres-js/migrator';
import postgres from 'postgres';
import { requirePatchedDriver } from './client.ts';
import { toDatabaseError } from './errors.ts';

const FOLDER = fileURLToPath(new URL('./migrations', import.meta.url));
/** Any constant will do, as long as every migrator takes the same. */
const MIGRATION_LOCK = 7_041_776;

/**
 * Brings the database at `url` to the newest schema. Safe to run from several machines at once: drizzle's
 * migrator takes no lock of its own, so an advisory lock lets one work while the others wait.
 * @throws {DatabaseError | DriverNotPatched}
 */
export async function migrate(url: string): Promise<void> {
  requirePatchedDriver();
  const client = postgres(url, { max: 1, onnotice: () => {}, connection: { application_name: 'migrate' } });
  try {
    await client`select pg_advisory_lock(${MIGRATION_LOCK})`;
    await runMigrations(drizzle(client), { migrationsFolder: FOLDER });
  } catch (error) {
    throw toDatabaseError(error);
  } finally {
    // Ending the session frees the lock.
    await client.end({ timeout: 5 });
  }
}
