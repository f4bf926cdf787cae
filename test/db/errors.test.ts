import { createRequire } from 'node:module';
import test from 'ava';
import type postgres from 'postgres';
import { authenticate, issueKey, parseApiKey } from '../../db/accounts/keys.ts';
import { createOrganization } from '../../db/accounts/organizations.ts';
import { openDatabase, run } from '../../db/connection/client.ts';
import { DatabaseError, toDatabaseError } from '../../db/connection/errors.ts';
import { freshDatabase } from '../support/database.ts';

// Tests which errors of PostgreSQL are permanent, which are retried, and that a failed statement
// does not change the results of the next one.

const BY = { actor: 'test', reason: 'test' };

const database = freshDatabase(test);
const { db, sql } = database;

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

/** Limits the time of the connection's statements, and returns its process in PostgreSQL. */
const LIMITED =
  "select pg_backend_pid() as pid, set_config('statement_timeout', '1s', false)";
/** Statements whose fourth row ends them, after the first three rows were sent. */
const ENDINGS = [
  ['fails', '1 / (4 - g)', '22012'],
  ['is canceled', 'case g when 4 then pg_cancel_backend(pg_backend_pid()) end', '57014'],
  ['times out', 'case g when 4 then pg_sleep(600) end', '57014'],
] as const;

for (const [about, value, code] of ENDINGS) {
  const statement = `select g, ${value} from generate_series(1, 1000) g`;

  test(`a statement that ${about} after some rows does not change the next result`, async (t) => {
    const { id: organizationId } = await createOrganization(db, BY, 'Rows');
    const { apiKey } = await issueKey(db, BY, organizationId, 'valid');
    const hash = parseApiKey(apiKey) ?? Buffer.of();
    const one = openDatabase({ url: database.url, poolSize: 1, applicationName: 'test' });
    t.teardown(() => one.close());
    const client = one.drizzle.$client;
    const [backend] = await client.unsafe(LIMITED);

    await t.throwsAsync(client.unsafe(statement), { code });
    t.like(await authenticate(one, hash), { kind: 'active', organizationId });

    await t.throwsAsync(client.unsafe(statement), { code });
    t.deepEqual(await run(one)`select pg_backend_pid() as pid`, [{ pid: backend?.pid }]);
  });

  test(`a statement that ${about} is harmless in the CommonJS build too`, async (t) => {
    const commonJs: typeof postgres = createRequire(import.meta.url)('postgres');
    const client = commonJs(database.url, { max: 1 });
    t.teardown(() => client.end({ timeout: 1 }));
    const [backend] = await client.unsafe(LIMITED);

    await t.throwsAsync(client.unsafe(statement), { code });
    const [...rows] = await client`select pg_backend_pid() as pid`;
    t.deepEqual(rows, [{ pid: backend?.pid }]);
  });
}
