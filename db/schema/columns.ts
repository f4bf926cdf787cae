import { type SQL, sql } from 'drizzle-orm';
import { bigint, customType, timestamp } from 'drizzle-orm/pg-core';

// Column types and conditions that several tables use.

/** A time that is rounded to milliseconds, because the API returns milliseconds. */
export function time(name: string) {
  return timestamp(name, { withTimezone: true, precision: 3, mode: 'date' });
}

/**
 * The default value of columns whose time the database sets. It is the current time. `now()` would
 * be the start of the transaction.
 */
export const clockTime = sql`clock_timestamp()`;

export function count(name: string) {
  return bigint(name, { mode: 'number' });
}

/** A text column that is compared and sorted by its bytes, regardless of the database's locale. */
export const bytewiseText = customType<{ data: string; driverData: string }>({
  dataType: () => 'text collate "C"',
});

export const bytea = customType<{ data: Buffer; driverData: Buffer }>({
  dataType: () => 'bytea',
});

/** Returns the condition that a column has one of the given values. */
export function isOneOf(column: string, values: readonly string[]): SQL {
  return sql.raw(`${column} in (${values.map((value) => `'${value}'`).join(', ')})`);
}
