import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import test from 'ava';
import { DatabaseError, toDatabaseError } from '../../db/errors.ts';
import { migrate, readiness } from '../../db/migrate.ts';
import { openEmptyDatabase, openTestDatabase } from '../support/database.ts';

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

test('what vendors were asked before there were lookups becomes one lookup per request', async (t) => {
  await using database = await openEmptyDatabase();
  const { sql } = database;
  const first = await readFile(new URL('../../db/migrations/0000_init.sql', import.meta.url), 'utf8');
  for (const statement of first.split('--> statement-breakpoint')) await sql.unsafe(statement);
  // As drizzle notes what is applied.
  await sql`create schema drizzle`;
  await sql`create table drizzle.__drizzle_migrations (id serial primary key, hash text not null, created_at bigint)`;
  const hash = createHash('sha256').update(first).digest('hex');
  await sql`insert into drizzle.__drizzle_migrations (hash, created_at) values (${hash}, 1795219200000)`;
  await sql.begin(async (tx) => {
    await tx`insert into organizations (id, name, webhook_secret) values ('org_1', 'Test', 'x')`;
    await tx`insert into ledger_entries (organization_id, kind, amount) values ('org_1', 'grant', 10)`;
    await tx`insert into batches (id, organization_id, submitted_as, wanted_type, total, created_at, updated_at, deadline_at)
      values ('bat_1', 'org_1', 'bulk', 'any', 3, now(), now(), now() + interval '15 minutes')`;
    await tx`insert into requests (id, batch_id, organization_id, position, npi, wanted_type, status, accepted_at, deadline_at, started_at)
      select 'req_' || n, 'bat_1', 'org_1', n, '2000000010', 'any', case n when 2 then 'accepted' else 'in-progress' end,
             now(), now() + interval '15 minutes', case when n < 2 then now() end
        from generate_series(0, 2) n`;
    await tx`insert into ledger_entries (organization_id, request_id, kind, amount)
      select 'org_1', 'req_' || n, 'hold', 1 from generate_series(0, 2) n`;
    await tx`insert into vendor_attempts (request_id, vendor, n, state, job_ref, reason, started_at, ended_at)
      values ('req_0', 'rocketreach', 1, 'miss', null, 'no profile', now(), now()),
             ('req_1', 'rocketreach', 1, 'retry', null, 'upstream', now(), now()),
             ('req_1', 'rocketreach', 2, 'pending', 'job-7', null, now(), null)`;
    await tx`insert into ledger_entries (organization_id, request_id, kind, amount) values ('org_1', 'req_0', 'release', 1)`;
    await tx`update requests set status = 'not_found', settled_at = now() where id = 'req_0'`;
  });
  await migrate(database.url);

  const attempts =
    await sql`select lookup_id, request_id, n, state, job_ref from vendor_attempts order by request_id, n`;
  t.deepEqual(
    [...attempts].map((row) => Object.values(row)),
    [
      ['lkp_0', 'req_0', 1, 'miss', null],
      ['lkp_1', 'req_1', 1, 'retry', null],
      ['lkp_1', 'req_1', 2, 'pending', 'job-7'],
    ],
  );
  const requests = await sql`select lookup_id, status from requests order by id`;
  t.deepEqual(
    [...requests].map((row) => [row.lookup_id, row.status]),
    [
      ['lkp_0', 'not_found'],
      ['lkp_1', 'in-progress'],
      [null, 'accepted'],
    ],
  );
  await t.throwsAsync(sql`update requests set status = 'accepted', settled_at = null where id = 'req_0'`, {
    message: /is final/,
  });
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
