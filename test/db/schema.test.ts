import { cp, readFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'ava';
import { readMigrationFiles } from 'drizzle-orm/migrator';
import type { Sql } from 'postgres';
import CHECKSUMS from '../../db/migrations/meta/_checksums.json' with { type: 'json' };
import JOURNAL from '../../db/migrations/meta/_journal.json' with { type: 'json' };
import { run } from '../../deploy/local/processes.ts';
import {
  freshDatabase,
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
