import test from 'ava';
import {
  DatabaseError,
  OperatorProblem,
  toDatabaseError,
} from '../../db/connection/errors.ts';
import { migrate, readiness } from '../../db/operations/migrate.ts';
import { openTestDatabase } from '../support/database.ts';

test('migrations may run concurrently or repeatedly, and the API is ready afterwards', async (t) => {
  await using database = await openTestDatabase();
  const { db, sql } = database;
  await sql`drop schema public cascade`;
  await sql`drop schema drizzle cascade`;
  await sql`create schema public`;
  t.is(await readiness(db), 'migrations_missing');
  await Promise.all([
    migrate(database.url),
    migrate(database.url),
    migrate(database.url),
  ]);
  t.is(await readiness(db), 'ready');
  const applied = await sql`select hash from drizzle.__drizzle_migrations`;
  t.is(new Set(applied.map((row) => row.hash)).size, applied.length);
  await migrate(database.url);
  t.is((await sql`select 1 from drizzle.__drizzle_migrations`).length, applied.length);

  // A process stays ready after a newer release has migrated, but not if one of its own migrations
  // is missing.
  await sql`insert into drizzle.__drizzle_migrations (hash, created_at) values ('newer', 9999999999999)`;
  t.is(await readiness(db), 'ready');
  await sql`delete from drizzle.__drizzle_migrations where id = 2`;
  t.is(await readiness(db), 'migrations_missing');
});

test('migrate leaves a database with unknown migrations unchanged and says what to do', async (t) => {
  await using database = await openTestDatabase();
  const { db, sql } = database;
  for (const other of [
    sql`created_at = created_at - 1`,
    sql`created_at = created_at + 86400000`,
  ]) {
    await sql`update drizzle.__drizzle_migrations set ${other}`;
    const before = await sql`select * from drizzle.__drizzle_migrations`;
    const error = await t.throwsAsync(migrate(database.url), {
      instanceOf: OperatorProblem,
    });
    t.regex(
      error?.message ?? '',
      /other migrations .* use an empty database.* delete the folder \.local/,
    );
    t.deepEqual(await sql`select * from drizzle.__drizzle_migrations`, before);
  }
  t.is(await readiness(db), 'migrations_missing');
  // A migrator that died before its first statement leaves an empty history.
  await sql`drop schema public cascade`;
  await sql`create schema public`;
  await sql`truncate drizzle.__drizzle_migrations`;
  await migrate(database.url);
  t.is(await readiness(db), 'ready');
});

test('migrate names a migration whose text has changed since the database ran it', async (t) => {
  await using database = await openTestDatabase();
  await database.sql`update drizzle.__drizzle_migrations set hash = 'other' where id = 2`;
  await t.throwsAsync(migrate(database.url), {
    instanceOf: OperatorProblem,
    message: /another text of the migration 0001_tables .* an unchanged copy/,
  });
});

test('a database error contains its code and constraint, but no values', async (t) => {
  await using database = await openTestDatabase();
  const { sql } = database;
  const secret = 'canary@example.com';
  const error = await t.throwsAsync(
    sql`insert into stored_emails (npi, email, verdict, source) values ('bad', ${secret}, 'valid', 'x')`,
  );
  const mapped = toDatabaseError(error);
  t.true(mapped instanceof DatabaseError);
  t.like(mapped, { code: '23514' });
  t.false(JSON.stringify(mapped, Object.getOwnPropertyNames(mapped)).includes('canary'));
});
