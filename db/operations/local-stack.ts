import { randomBytes } from 'node:crypto';
import { sql } from 'drizzle-orm';
import {
  type Database,
  only,
  openDatabase,
  run,
  transaction,
} from '../connection/client.ts';

/**
 * Marks a database as belonging to the local stack, by creating the table `local_stack`. Simulated
 * vendors respond only in a marked database. On a server that the stack did not create, only a
 * database without tables is marked, so that no other installation's organizations get simulated
 * results. Replacing the schema, for example by restoring a dump, removes the mark.
 * @param isOwnServer true if the stack also created the PostgreSQL server; then a database with
 * tables is marked too
 * @returns the id in the table `local_stack`; null if the database belongs to another installation
 * and was not marked
 */
export async function claimForLocalStack(
  url: string,
  isOwnServer: boolean,
): Promise<string | null> {
  const db = openDatabase({ url, poolSize: 1, applicationName: 'local-stack' });
  try {
    return await transaction(db, async (tx) => {
      const found = await run<{ marked: boolean; used: boolean }>(tx)`
        select to_regclass('public.local_stack') is not null as marked,
               exists (
                 select from pg_tables
                  where schemaname not in ('pg_catalog', 'information_schema')) as used`;
      const { marked, used } = only(found);
      if (!marked && used && !isOwnServer) return null;
      if (!marked) {
        await run(tx)`create table public.local_stack as select gen_random_uuid() as id`;
      }
      const [mark] = await run<{ id: string }>(tx)`select id from public.local_stack`;
      return mark?.id ?? null;
    });
  } finally {
    await db.close();
  }
}

/**
 * Deletes the stored addresses of these NPIs, so that the local stack can store its sample
 * addresses as if they were new.
 */
export async function forgetStored(db: Database, npis: readonly string[]): Promise<void> {
  await run(db)`delete from stored_emails where npi = any(${sql.param(npis)})`;
}

/**
 * Creates a PostgreSQL user for each role of a migrated database, and sets a new password for each
 * user. The processes of the local stack then have the same privileges as in production.
 * @returns the database's URL for each user
 */
export async function openUsers(
  url: string,
): Promise<Record<'api' | 'worker' | 'operator', string>> {
  const db = openDatabase({ url, poolSize: 1, applicationName: 'local-stack' });
  try {
    return {
      api: await openUser(db, url, 'api'),
      worker: await openUser(db, url, 'worker'),
      operator: await openUser(db, url, 'operator'),
    };
  } finally {
    await db.close();
  }
}

async function openUser(db: Database, url: string, role: string): Promise<string> {
  const userUrl = new URL(url);
  const user = `local_${role}`;
  const password = randomBytes(18).toString('hex');
  userUrl.username = user;
  userUrl.password = password;
  const statement = `do $$ begin
    if not exists (select from pg_roles where rolname = '${user}') then
      create user ${user} in role npe_${role};
    end if;
    alter user ${user} password '${password}';
  end $$`;
  await run(db)`${sql.raw(statement)}`;
  return userUrl.href;
}
