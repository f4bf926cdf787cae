import type { Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { TransactionSql } from 'postgres';

// The staging tables, which hold rows of CMS files until they are merged. The columns are in the
// order in which the importer writes them.

/** The columns of `providers` that a file contains. */
const PROVIDER_COLUMNS = [
  'npi',
  'entity_type',
  'last_name',
  'first_name',
  'middle_name',
  'name_suffix',
  'credential',
  'other_last_name',
  'other_first_name',
  'organization_name',
  'parent_name',
  'practice_line_1',
  'practice_line_2',
  'practice_city',
  'practice_state',
  'practice_postal_code',
  'practice_phone',
  'phone_key',
  'address_key',
  'updated_on',
  'deactivated_on',
  'reactivated_on',
  'deactivated',
  'taxonomy',
];

/**
 * The columns that are copied: the values in the file, a hash that shows whether a row has changed,
 * the date and the origin of the file, and the number of the import.
 */
export const COPIED_PROVIDER_COLUMNS = [
  'row_hash',
  'as_of',
  'origin',
  'import_number',
  ...PROVIDER_COLUMNS,
];

/**
 * The kinds of details that a provider may have several of. Each kind has its own table and file.
 * `key` lists the key columns and `rest` the others.
 */
export const DETAIL_COLUMNS = {
  provider_endpoints: { key: ['npi', 'kind', 'endpoint'], rest: ['affiliation_name'] },
  provider_other_names: { key: ['npi', 'name', 'type_code'], rest: [] },
  provider_locations: {
    key: ['npi', 'line_1', 'line_2', 'city', 'state', 'postal_code'],
    rest: ['phone', 'phone_key', 'address_key'],
  },
  clinician_practices: {
    key: ['npi', 'pac_id', 'phone_key', 'address_key'],
    rest: ['name', 'members'],
  },
};
export type DetailTable = keyof typeof DETAIL_COLUMNS;

/**
 * Creates the staging tables of a connection. `changed_providers` holds the NPIs that the main file
 * would change.
 */
export const STAGING_TABLES = `
  create temporary table staged_providers on commit delete rows as
    select ${COPIED_PROVIDER_COLUMNS.join(', ')} from providers with no data;
  create temporary table changed_providers (npi text collate "C" not null);
  create temporary table staged_provider_endpoints (like provider_endpoints);
  create temporary table staged_provider_other_names (like provider_other_names);
  create temporary table staged_provider_locations (like provider_locations);
  create temporary table staged_clinician_practices (like clinician_practices);`;

/** Sends lines of COPY's text format to a table. @throws the error of the copy */
export async function copyTo(
  tx: TransactionSql,
  table: string,
  columns: readonly string[],
  lines: readonly Buffer[],
): Promise<void> {
  if (lines.length === 0) return;
  const stream: Writable =
    await tx`copy ${tx(table)} (${tx(columns)}) from stdin`.writable();
  // If the copy fails after the last line, the next statement reports the error.
  stream.on('error', () => {});
  await pipeline(lines, stream, { end: false });
  // A short last piece may still be buffered. The copy must not end before this piece is sent.
  // Otherwise the next statement would be rejected.
  await new Promise<void>((resolve) => {
    stream.write(Buffer.alloc(0), () => resolve());
  });
  // The end of the stream is not awaited, because postgres.js never ends it if PostgreSQL rejects
  // the last bytes.
  stream.end();
  await tx`select`;
}
