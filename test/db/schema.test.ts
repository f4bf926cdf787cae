import test from 'ava';
import { is } from 'drizzle-orm';
import { getTableConfig, PgTable } from 'drizzle-orm/pg-core';
import * as schema from '../../db/schema.ts';
import { freshDatabase } from '../support/database.ts';

// The schema is written twice: in the migrations, and for typed queries in db/schema.ts (except
// tables that only SQL text uses). This test compares the two.

interface Column {
  readonly name: string;
  readonly type: string;
  readonly nullable: boolean;
  readonly hasDefault: boolean;
  /** True if the database computes the value: an expression, or an identity. */
  readonly generated: boolean;
}

const { sql } = freshDatabase(test);

test('every table in db/schema.ts exists in the database, with the same columns', async (t) => {
  const inDatabase = await readTables();
  const inCode = new Map(
    Object.values(schema)
      .filter((table) => is(table, PgTable))
      .map((table) => [getTableConfig(table).name, columnsOf(table)]),
  );
  t.true(inCode.size >= 12);
  for (const [table, columns] of inCode) t.deepEqual(columns, inDatabase.get(table), table);
});

function columnsOf(table: PgTable): Column[] {
  const columns = getTableConfig(table).columns.map((column) => ({
    name: column.name,
    type: column
      .getSQLType()
      .replace(/\s*\((\d)\)/, '($1)')
      .replace(', ', ','),
    nullable: !column.notNull,
    hasDefault: column.default !== undefined,
    generated: column.generated !== undefined || column.generatedIdentity !== undefined,
  }));
  return columns.sort(byName);
}

async function readTables(): Promise<Map<string, Column[]>> {
  const rows = await sql<(Column & { table: string })[]>`
    select c.relname as "table", a.attname as name,
            format_type(a.atttypid, a.atttypmod) as type,
            not a.attnotnull as nullable,
            a.atthasdef and a.attgenerated = '' as "hasDefault",
            a.attgenerated <> '' or a.attidentity <> '' as generated
       from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
      where n.nspname = 'public' and c.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped`;
  const tables = new Map<string, Column[]>();
  for (const { table, ...column } of rows)
    tables.set(table, [...(tables.get(table) ?? []), column]);
  for (const columns of tables.values()) columns.sort(byName);
  return tables;
}

function byName(a: Column, b: Column): number {
  return a.name < b.name ? -1 : 1;
}
