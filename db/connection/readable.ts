import { getTableName, sql } from 'drizzle-orm';
import type { PgColumn } from 'drizzle-orm/pg-core';
import { run, type Transaction } from './client.ts';

/**
 * Returns the columns of one table to select, with null in place of each column that the user may
 * not read. So the commands for reading also work for viewers (roles.sql).
 */
export async function readable<T extends Readonly<Record<string, PgColumn>>>(
  tx: Pick<Transaction, 'execute'>,
  columns: T,
): Promise<T> {
  const [first] = Object.values(columns);
  if (first === undefined) return columns;
  const names = sql.param(Object.values(columns).map(({ name }) => name));
  const hidden = await run<{ name: string }>(tx)`
    select name from unnest(${names}::text[]) name
     where not has_column_privilege(${getTableName(first.table)}, name, 'select')`;
  const hiddenNames = hidden.map(({ name }) => name);
  const entries = Object.entries(columns).map(([member, column]) => {
    const isHidden = hiddenNames.includes(column.name);
    return [member, isHidden ? sql`null` : column];
  });
  return Object.fromEntries(entries) as T;
}
