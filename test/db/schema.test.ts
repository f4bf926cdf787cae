import test from 'ava';
import { is } from 'drizzle-orm';
import { getTableConfig, PgTable } from 'drizzle-orm/pg-core';
import * as schema from '../../db/schema.ts';
import { freshDatabase } from '../support/database.ts';

// The schema is written twice: the migrations make it, db/schema.ts types the queries, but for tables that are asked in
// SQL alone. They must say the same.

interface Column {
  readonly name: string;
  readonly type: string;
  readonly nullable: boolean;
  readonly hasDefault: boolean;
  /** Computed by the database: an expression, or an identity. */
  readonly generated: boolean;
}

const { sql } = freshDatabase(test);

test('every table of the code is in the database, with the same columns', async (t) => {
  const inDatabase = await readTables();
  const inCode = new Map(
    Object.values(schema)
      .filter((table) => is(table, PgTable))
      .map((table) => [getTableConfig(table).name, columnsOf(table)]),
  );
  t.true(inCode.size >= 12);
  for (const [table, columns] of inCode) t.deepEqual(columns, inDatabase.get(table), table);
});

test('primary keys are the same in both', async (t) => {
  const inDatabase = await readPrimaryKeys();
  for (const table of Object.values(schema)) {
    if (!is(table, PgTable)) continue;
    const { name, columns, primaryKeys } = getTableConfig(table);
    const key = primaryKeys[0]?.columns ?? columns.filter((column) => column.primary);
    t.deepEqual(
      key.map((column) => column.name),
      inDatabase.get(name),
      name,
    );
  }
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
  for (const { table, ...column } of rows) tables.set(table, [...(tables.get(table) ?? []), column]);
  for (const columns of tables.values()) columns.sort(byName);
  return tables;
}

async function readPrimaryKeys(): Promise<Map<string, string[]>> {
  const rows = await sql<{ table: string; columns: string[] }[]>`
    select c.relname as "table", array_agg(a.attname::text order by k.position) as columns
       from pg_constraint p join pg_class c on c.oid = p.conrelid join pg_namespace n on n.oid = c.relnamespace
            cross join unnest(p.conkey) with ordinality k (number, position)
            join pg_attribute a on a.attrelid = c.oid and a.attnum = k.number
      where p.contype = 'p' and n.nspname = 'public' group by c.relname`;
  return new Map(rows.map(({ table, columns }) => [table, columns]));
}

function byName(a: Column, b: Column): number {
  return a.name < b.name ? -1 : 1;
}
