import { type SQL, sql } from 'drizzle-orm';
import { bigint, customType, timestamp } from 'drizzle-orm/pg-core';

// Column types that the tables share.

/** A time with milliseconds, because the API returns milliseconds. */
export function time(name: string) {
  return timestamp(name, { withTimezone: true, precision: 3, mode: 'date' });
}

/** The default of a time that the database sets. Unlike `now()`, it moves inside a transaction. */
export const clockTime = sql`clock_timestamp()`;

export function count(name: string) {
  return bigint(name, { mode: 'number' });
}

/** Text that is compared by its bytes, whichever locale the database has. */
export const bytewiseText = customType<{ data: string; driverData: string }>({
  dataType: () => 'text collate "C"',
});

export const bytea = customType<{ data: Buffer; driverData: Buffer }>({ dataType: () => 'bytea' });

/** Returns the condition that a column has one of the given values. */
export function isOneOf(column: string, values: readonly string[]): SQL {
  return sql.raw(`${column} in (${values.map((value) => `'${value}'`).join(', ')})`);
}
