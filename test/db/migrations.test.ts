import test from 'ava';
import { DatabaseError, OperatorProblem, toDatabaseError } from '../../db/errors.ts';
import { migrate, readiness } from '../../db/migrate.ts';
import { openTestDatabase } from '../support/database.ts';

test('three migrators at once leave one schema, another run changes nothing, and only what is ours counts', async (t) => {
  await using database = await openTestDatabase();
  const { db, sql } = database;
  await sql`drop schema public cascade`;
  await sql`drop schema drizzle cascade`;
  await sql`create schema public`;
  t.is(await readiness(db), 'migrations_missing');
  await Promise.all([migrate(database.url), migrate(database.url), migrate(database.url)]);
  t.is(await readiness(db), 'ready');
  const applied = await sql`select hash from drizzle.__drizzle_migrations`;
  t.is(new Set(applied.map((row) => row.hash)).size, applied.length);
  await migrate(database.url);
  t.is((await sql`select 1 from drizzle.__drizzle_migrations`).length, applied.length);

  // The release before this one still runs when a newer one has migrated, and a later migration is not one of ours.
  await sql`insert into drizzle.__drizzle_migrations (hash, created_at) values ('newer', 9999999999999)`;
  t.is(await readiness(db), 'ready');
  await sql`delete from drizzle.__drizzle_migrations where id = 2`;
  t.is(await readiness(db), 'migrations_missing');
});

test('a database that other migrations made is refused with what to do, and left as it is', async (t) => {
  await using database = await openTestDatabase();
  const { db, sql } = database;
  for (const earlier of [sql`created_at - 1`, sql`created_at + 86400000`]) {
    await sql`update drizzle.__drizzle_migrations set created_at = ${earlier}`;
    const before = await sql`select * from drizzle.__drizzle_migrations`;
    const error = await t.throwsAsync(migrate(database.url), { instanceOf: OperatorProblem });
    t.regex(error?.message ?? '', /other migrations .* empty one.* remove its folder \(\.local\)/);
    t.deepEqual(await sql`select * from drizzle.__drizzle_migrations`, before);
    t.is(await readiness(db), 'migrations_missing');
  }
  // A migrator that died before its first statement leaves no history.
  await sql`drop schema public cascade`;
  await sql`create schema public`;
  await sql`truncate drizzle.__drizzle_migrations`;
  await migrate(database.url);
  t.is(await readiness(db), 'ready');
});

test('a database error carries its code and constraint, and no value', async (t) => {
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
