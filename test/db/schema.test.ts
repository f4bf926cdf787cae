import { cp, readFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'ava';
import { readMigrationFiles } from 'drizzle-orm/migrator';
import type { Sql } from 'postgres';
import CHECKSUMS from '../../db/migrations/meta/_checksums.json' with { type: 'json' };
import JOURNAL from '../../db/migrations/meta/_journal.json' with { type: 'json' };
import { migrate } from '../../db/operations/migrate.ts';
import { run } from '../../deploy/local/processes.ts';
import {
  DUMPED,
  freshDatabase,
  openDump,
  openEmptyDatabase,
  temporaryFolder,
} from '../support/database.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const MIGRATIONS = join(ROOT, 'db/migrations');
const DRIZZLE_KIT = join(ROOT, 'node_modules/drizzle-kit/bin.cjs');

const { sql } = freshDatabase(test);

test('drizzle-kit finds no change of the schema since the newest snapshot', async (t) => {
  const folder = temporaryFolder(t.teardown);
  await cp(join(MIGRATIONS, 'meta'), join(folder, 'meta'), { recursive: true });
  const files = ['--schema', 'db/schema.ts', '--out', relative(ROOT, folder)];
  const output = await drizzleKit('generate', '--dialect', 'postgresql', ...files);
  t.regex(output, /No schema changes/, 'db/schema.ts has changes: run npm run migration');
});

test('no migration changes after its release', (t) => {
  const files = readMigrationFiles({ migrationsFolder: MIGRATIONS });
  const lines = JOURNAL.entries.map(
    ({ tag, when }, n) => `${tag} ${when} ${files[n]?.hash}`,
  );
  t.deepEqual(
    lines,
    CHECKSUMS,
    'If the migration was released, undo the change and write a new migration. ' +
      'If it was not, put its line into db/migrations/meta/_checksums.json.',
  );
});

test('the migrations make the tables of the schema and no others', async (t) => {
  await using generated = await openEmptyDatabase();
  const functions = await readFile(join(MIGRATIONS, '0000_functions.sql'), 'utf8');
  await generated.sql.unsafe(functions);
  const tables = await drizzleKit('export', '--config', 'db/drizzle.config.ts');
  await generated.sql.unsafe(tables);
  const expected = await describeTables(generated.sql);
  const migrated = await describeTables(sql);
  t.true(expected.length > 400);
  const missing = expected.filter((line) => !migrated.includes(line));
  t.deepEqual(missing, [], 'missing in the migrations');
  const unknown = migrated.filter((line) => !expected.includes(line));
  t.deepEqual(unknown, [], 'missing in db/schema.ts');
});

for (const version of DUMPED) {
  test(`a database of ${version} gets the schema of a new database`, async (t) => {
    await using old = await openDump(version);
    const { url, sql: upgraded } = old;
    await migrate(url);
    const expected = [...(await describeTables(sql)), ...(await describeCode(sql))];
    t.true(expected.length > 500);
    const got = [...(await describeTables(upgraded)), ...(await describeCode(upgraded))];
    t.deepEqual(got, expected);
  });

  test(`the dump of ${version} has rows in every table, with every status`, async (t) => {
    await using old = await openDump(version);
    const tables = await old.sql<{ name: string }[]>`
      select tablename as name from pg_tables where schemaname = 'public'`;
    t.true(tables.length > 40);
    for (const { name } of tables) {
      t.not((await old.sql`select from ${old.sql(name)} limit 1`).length, 0, name);
    }
    const lists = await old.sql<{ table: string; column: string; values: string[] }[]>`
      select conrelid::regclass::text as table,
             (regexp_match(text, '\\(\\(?(\\w+) = ANY'))[1] as column,
             array(select m[1] from regexp_matches(text, '''?(\\w[\\w-]*)''?(?:::text)?[,\\]]', 'g') m) as values
        from pg_constraint, pg_get_constraintdef(oid) text
       where connamespace = 'public'::regnamespace and contype = 'c'
         and text ~ '^CHECK \\(\\(\\w+ = ANY \\(ARRAY'`;
    t.true(lists.length > 30);
    for (const { table, column, values } of lists) {
      const rows = await old.sql<{ value: string }[]>`
        select distinct ${old.sql(column)}::text as value from ${old.sql(table)}`;
      const found = new Set(rows.map(({ value }) => value));
      const missing = values.filter((value) => !found.has(value));
      t.deepEqual(missing, [], `${table}.${column}`);
    }
  });
}

async function drizzleKit(...args: string[]): Promise<string> {
  const { output } = await run(process.execPath, [DRIZZLE_KIT, ...args], { cwd: ROOT });
  return output;
}

/**
 * Returns a line for each column, constraint, and index of a database. Storage parameters are left
 * out, because drizzle has no words for them.
 */
async function describeTables(sql: Sql): Promise<string[]> {
  const rows = await sql<{ line: string }[]>`
    select concat_ws(' ', c.relname, 'column', a.attname, format_type(a.atttypid, a.atttypmod), l.collname,
                     case when a.attnotnull then 'not null' end, a.attidentity, a.attgenerated,
                     pg_get_expr(d.adbin, d.adrelid)) as line
      from pg_attribute a
           join pg_class c on c.oid = a.attrelid
           left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
           left join pg_collation l on l.oid = a.attcollation
     where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p')
       and a.attnum > 0 and not a.attisdropped
    union all
    select concat_ws(' ', c.relname, 'constraint', s.conname, pg_get_constraintdef(s.oid))
      from pg_constraint s join pg_class c on c.oid = s.conrelid
     where s.connamespace = 'public'::regnamespace and s.contype <> 't'
    union all
    select concat_ws(' ', tablename, 'index', indexdef) from pg_indexes where schemaname = 'public'
     order by line`;
  return rows.map((row) => row.line);
}

/** Returns the definition of each function, trigger, and view, and each storage parameter. */
async function describeCode(sql: Sql): Promise<string[]> {
  const rows = await sql<{ text: string }[]>`
    select pg_get_functiondef(oid) as text
      from pg_proc where pronamespace = 'public'::regnamespace
    union all
    select pg_get_triggerdef(t.oid)
      from pg_trigger t join pg_class c on c.oid = t.tgrelid
     where c.relnamespace = 'public'::regnamespace and not t.tgisinternal
    union all
    select concat_ws(' ', relname, relowner::regrole, reloptions::text, relacl::text, pg_get_viewdef(oid))
      from pg_class
     where relnamespace = 'public'::regnamespace and relkind in ('r', 'v', 'm')
     order by text`;
  return rows.map((row) => row.text);
}
