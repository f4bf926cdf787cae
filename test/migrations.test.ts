import test from 'ava';
import postgres from 'postgres';
import { openDatabase } from '../db/client.ts';
import { DatabaseError, toDatabaseError } from '../db/errors.ts';
import { migrate } from '../db/migrate.ts';
import { readiness } from '../db/ready.ts';
import { openTestDatabase } from './support/database.ts';

test('three migrators at once leave one schema, and another run changes nothing', async (t) => {
  const database = await openTestDatabase();
  const sql = postgres(database.url, { max: 1, onnotice: () => {} });
  await sql`drop schema public cascade`;
  await sql`drop schema drizzle cascade`;
  await sql`create schema public`;
  const db = openDatabase({ url: database.url, poolSize: 1, applicationName: 'test' });
  t.is(await readiness(db), 'migrations_missing');
  await Promise.all([migrate(database.url), migrate(database.url), migrate(database.url)]);
  t.is(await readiness(db), 'ready');
  const applied = await sql`select hash from drizzle.__drizzle_migrations`;
  t.is(new Set(applied.map((row) => row.hash)).size, applied.length);
  await migrate(database.url);
  t.is((await sql`select 1 from drizzle.__drizzle_migrations`).length, applied.length);
  await sql.end();
  await db.close();
  await database.drop();
});

test('a database error carries its code and constraint, and no value', async (t) => {
  const database = await openTestDatabase();
  const sql = postgres(database.url, { max: 1, onnotice: () => {} });
  const secret = 'canary@example.com';
  const error = await t.throwsAsync(
    sql`insert into stored_emails (npi, email, verdict, source) values ('bad', ${secret}, 'valid', 'x')`,
  );
  const mapped = toDatabaseError(error);
  t.true(mapped instanceof DatabaseError);
  t.like(mapped, { code: '23514' });
  t.false(JSON.stringify(mapped, Object.getOwnPropertyNames(mapped)).includes('canary'));
  await sql.end();
  await database.drop();
});
