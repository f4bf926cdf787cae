import test from 'ava';
import { DatabaseError, toDatabaseError } from '../../db/errors.ts';
import { freshDatabase } from '../support/database.ts';

// Tests which errors of PostgreSQL are permanent, and which are retried.

const { sql } = freshDatabase(test);

for (const [about, statement, code] of [
  ['a syntax error', 'selec 1', '42601'],
  ['an ambiguous column', 'select id from requests join batches on true', '42702'],
  ['an ambiguous function', "select date_trunc('day', '2026-01-01')", '42725'],
  ['a column that is not grouped', 'select id, count(*) from requests', '42803'],
  ['types that do not match', 'select case when true then 1 else now() end', '42804'],
  ['a cast that does not exist', 'select 1::int::timestamptz', '42846'],
  ['a value that does not fit its type', "select 'x'::int", '22P02'],
  ['a missing value', 'insert into sweeps select null', '23502'],
] as const) {
  test(`a statement that fails because of ${about} is not retried`, async (t) => {
    t.like(await failureOf(statement), { code, isPermanent: true });
  });
}

for (const [about, statement, code] of [
  ['a table that a migration has yet to add', 'select from not_yet', '42P01'],
  ['a column that a migration has yet to add', 'select not_yet from requests', '42703'],
  ['a function that a migration has yet to add', 'select not_yet()', '42883'],
  ['a time-out', 'set statement_timeout = 1; select pg_sleep(9)', '57014'],
] as const) {
  test(`a statement that fails because of ${about} is retried`, async (t) => {
    t.like(await failureOf(statement), { code, isPermanent: false });
  });
}

async function failureOf(statement: string): Promise<unknown> {
  const error = await sql.unsafe(statement).then(
    () => null,
    (thrown: unknown) => toDatabaseError(thrown),
  );
  if (!(error instanceof DatabaseError))
    throw new Error(`no error of PostgreSQL: ${error}`);
  return { code: error.code, isPermanent: error.isPermanent };
}
