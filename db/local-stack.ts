import { sql } from 'drizzle-orm';
import { openDatabase, transaction } from './client.ts';

/**
 * Marks a database as the local stack's, by the table `local_stack`: only in a marked database do simulated vendors
 * answer. The mark is made while there is no table yet, so nobody else's organization is ever in a marked one;
 * whoever replaces the schema, by a dump that is restored say, takes the mark away with it.
 * @param isOwnServer the stack made the server too, so what is in it is the stack's, marked or not
 * @returns the id in the mark; null, and nothing is written, if the database is somebody else's
 * @throws {DatabaseError}
 */
export async function claimForLocalStack(url: string, isOwnServer: boolean): Promise<string | null> {
  const db = openDatabase({ url, poolSize: 1, applicationName: 'local-stack' });
  try {
    return await transaction(db, async (tx) => {
      const [found] = await tx.execute<{ marked: boolean; used: boolean }>(sql`
        select to_regclass('public.local_stack') is not null as marked,
               exists (select from pg_tables where schemaname not in ('pg_catalog', 'information_schema')) as used`);
      if (!found?.marked) {
        if (found?.used && !isOwnServer) return null;
        await tx.execute(sql`create table public.local_stack as select gen_random_uuid() as id`);
      }
      const [mark] = await tx.execute<{ id: string }>(sql`select id from public.local_stack`);
      return mark?.id ?? null;
    });
  } finally {
    await db.close();
  }
}
