import { only } from '../../connection/client.ts';
import { DatabaseError } from '../../connection/errors.ts';
import type { Counts } from '../../lookups/imports.ts';
import type { NppesConnection } from './run.ts';
import {
  COPIED_PROVIDER_COLUMNS,
  copyTo,
  DETAIL_COLUMNS,
  type DetailTable,
} from './staging.ts';

/** Rows of the main file that are merged together. */
export interface ProviderChunk {
  /** The date of the file. */
  readonly asOf: string;
  /** Lines of COPY's text format, with COPIED_PROVIDER_COLUMNS. */
  readonly copy: readonly Buffer[];
  /** The number of lines. */
  readonly rows: number;
  /**
   * True if all NPIs of the chunk are expected to be new. The rows are then first inserted without
   * a comparison, which takes a third of the time. If an NPI exists already, they are compared
   * after all.
   */
  readonly expectsNew: boolean;
  /**
   * True to change no provider. Then the changes are only counted, and the NPIs that would change
   * are stored in `changed_providers`.
   */
  readonly dryRun: boolean;
}

const COLUMNS = COPIED_PROVIDER_COLUMNS.join(', ');
const CHANGES = COPIED_PROVIDER_COLUMNS.filter((column) => column !== 'npi')
  .map((column) => `${column} = excluded.${column}`)
  .join(', ');

// Compares rows before writing, so that unchanged rows are neither locked nor written to
// PostgreSQL's write-ahead log. If a chunk has several rows for an NPI, the last one is used.
const JUDGED = `
  judged as materialized (
    select distinct on (s.npi) s.*, p.active as was_active,
           s.deactivated is null and
             (s.deactivated_on is null
              or coalesce(s.reactivated_on >= s.deactivated_on, false)) as is_active,
           case when p.npi is null then 'inserted'
                when p.as_of > $1::date then 'outdated'
                when p.row_hash = s.row_hash and p.origin = 'nppes' then 'unchanged'
                else 'updated' end as change
      from staged_providers s left join providers p on p.npi = s.npi
     order by s.npi, s.ctid desc
  )`;

const WRITTEN = `
  written as (
    insert into providers (${COLUMNS})
    select ${COLUMNS} from judged where change in ('inserted', 'updated')
    on conflict (npi) do update
       set ${CHANGES}, imported_at = clock_timestamp(),
           former_last_names = kept_surnames(providers, excluded.first_name, excluded.last_name)
     where providers.as_of <= excluded.as_of
  )`;

const NOTED = `
  noted as (
    insert into changed_providers select npi from judged where change in ('inserted', 'updated')
  )`;

/** Returns the SQL columns that count the staged rows by result. */
function countsOf(staged: string): string {
  return `
         count(*) filter (where change = 'inserted')::integer as inserted,
         count(*) filter (where change = 'updated')::integer as updated,
         count(*) filter (where change = 'unchanged')::integer as unchanged,
         count(*) filter (where change = 'outdated')::integer as outdated,
         ((select count(*) from ${staged}) - count(*))::integer as repeated`;
}

const COUNTED = `
  select ${countsOf('staged_providers')},
         count(*) filter (where change = 'updated' and was_active and not is_active)::integer
           as deactivated,
         count(*) filter (where change = 'updated' and is_active and not was_active)::integer
           as reactivated
    from judged`;

/**
 * If some of the copied rows exist already, the copy fails with 23505, or the next statement with
 * 25P02.
 */
const NOT_NEW: ReadonlySet<string> = new Set(['23505', '25P02']);

/**
 * Merges a chunk of the main file in one transaction. NPIs that are not in the chunk stay as they
 * are.
 * @returns the number of rows by result
 */
export async function importProviders(
  connection: NppesConnection,
  chunk: ProviderChunk,
): Promise<Counts> {
  if (chunk.expectsNew && !chunk.dryRun && (await insertNew(connection, chunk.copy))) {
    return { inserted: chunk.rows };
  }
  return await connection.transaction(async (tx) => {
    await copyTo(tx, 'staged_providers', COPIED_PROVIDER_COLUMNS, chunk.copy);
    // Staging tables have no statistics, so the planner does not know that a chunk is much smaller
    // than `providers`. Without these settings, it could choose a join that reads all of
    // `providers`.
    await tx`
      select set_config('enable_hashjoin', 'off', true),
             set_config('enable_mergejoin', 'off', true)`;
    const write = chunk.dryRun ? NOTED : WRITTEN;
    const counts = await tx.unsafe<Counts[]>(`with ${JUDGED}, ${write} ${COUNTED}`, [
      chunk.asOf,
    ]);
    return only(counts);
  });
}

/**
 * Inserts the rows of a chunk. If some of them exist already, inserts nothing and returns false.
 */
async function insertNew(
  connection: NppesConnection,
  copy: readonly Buffer[],
): Promise<boolean> {
  try {
    await connection.transaction((tx) =>
      copyTo(tx, 'providers', COPIED_PROVIDER_COLUMNS, copy),
    );
    return true;
  } catch (error) {
    if (error instanceof DatabaseError && NOT_NEW.has(error.code)) {
      return false;
    }
    throw error;
  }
}

// The functions below import details, such as endpoints, other names, and practice locations. Their
// files have a hundredth of the size of the main file, so each is staged completely and then
// compared in one statement.

/**
 * Adds lines to the staging table.
 * @param copy lines of COPY's text format, with the table's DETAIL_COLUMNS
 */
export async function stageDetails(
  connection: NppesConnection,
  table: DetailTable,
  copy: readonly Buffer[],
): Promise<void> {
  const { key, rest } = DETAIL_COLUMNS[table];
  await connection.transaction((tx) =>
    copyTo(tx, `staged_${table}`, [...key, ...rest], copy),
  );
}

/** A file with details of providers. */
export interface DetailFile {
  readonly table: DetailTable;
  /**
   * The date of the file. `infinity` for a file without a date, which then counts as newer than all
   * providers.
   */
  readonly asOf: string;
  /** Identifies the download, as in `import_runs`. */
  readonly fingerprint: string;
}

/** The date is passed as text, because postgres.js cannot pass `infinity` as a date. */
const DAY = '$1::text::date';

/**
 * Returns whether a table has any rows. An import cannot remove anything from a table
 * without rows.
 */
export async function hasRows(
  connection: NppesConnection,
  table: DetailTable,
): Promise<boolean> {
  const [row] = await connection.transaction(
    (tx) => tx`select from ${tx(table)} limit 1`,
  );
  return row !== undefined;
}

/**
 * Counts the rows that `importDetails` would remove, and all rows of the table. Call it only after
 * the download is staged completely and the changes of its main file are in `changed_providers`.
 */
export async function countRemovals(
  connection: NppesConnection,
  { table, asOf, fingerprint }: DetailFile,
): Promise<{ removed: number; total: number }> {
  return await connection.transaction(async (tx) => {
    await tx`analyze ${tx(`staged_${table}`)}, changed_providers`;
    const { areRemoved } = statementsOf(table);
    const statement = `
      select (select count(*)::integer from ${table} d ${areRemoved}) as removed,
             (select count(*)::integer from ${table}) as total`;
    const counts = await tx.unsafe<{ removed: number; total: number }[]>(statement, [
      asOf,
      fingerprint,
    ]);
    return only(counts);
  });
}

const REMOVE_ERASED = `
  delete from staged_provider_endpoints
   where endpoint like '%@%' and is_erased(npi, endpoint_address(endpoint))`;

/**
 * Replaces the details of the NPIs in the download, in one transaction. An NPI counts as part of
 * the download if it has a row in this file, or if the main file of this download has changed it,
 * because NPPES counts a change of details as a change of the provider. If a later file has already
 * changed a provider, its details stay as they are.
 * @param importNumber stored in the written rows
 * @returns the number of rows by result
 */
export async function importDetails(
  connection: NppesConnection,
  { table, asOf, fingerprint }: DetailFile,
  importNumber: number,
): Promise<Counts> {
  const { areRemoved, merge } = statementsOf(table);
  return await connection.transaction(async (tx) => {
    // An import must not bring erased addresses back. A trigger of the table handles an erasure
    // that runs at the same time.
    let erased = 0;
    if (table === 'provider_endpoints') {
      erased = (await tx.unsafe(REMOVE_ERASED)).count;
    }
    await tx`analyze ${tx(`staged_${table}`)}`;
    const removed = await tx.unsafe(`delete from ${table} d ${areRemoved}`, [
      asOf,
      fingerprint,
    ]);
    const [merged] = await tx.unsafe<Counts[]>(merge, [asOf, importNumber]);
    return { erased, removed: removed.count, ...merged };
  });
}

function statementsOf(table: DetailTable) {
  const { key, rest } = DETAIL_COLUMNS[table];
  const columns = [...key, ...rest].join(', ');
  const sameKey = (a: string, b: string) =>
    key.map((column) => `${a}.${column} = ${b}.${column}`).join(' and ');
  const differs =
    rest.map((column) => `d.${column} is distinct from s.${column}`).join(' or ') ||
    'false';
  const takes = [...rest, 'import_number']
    .map((column) => `${column} = excluded.${column}`)
    .join(', ');
  // An earlier run of the same download may have changed providers before it was killed. It has
  // another number and the same fingerprint.
  const areRemoved = `
     where d.npi in (select npi from staged_${table} union
                     select npi from changed_providers union
                     select npi from providers
                      where import_number in (
                        select number from import_runs where fingerprint = $2))
       and not exists (select from staged_${table} s where ${sameKey('s', 'd')})
       and not exists (select from providers p where p.npi = d.npi and p.as_of > ${DAY})`;
  // If several rows have the same key, every run must pick the same one. Otherwise a repeated run
  // would always find changes.
  const merge = `
    with picked as (
      select distinct on (${key.join(', ')}) ${columns} from staged_${table} order by ${columns}
    ), judged as materialized (
      select s.*,
             case when exists (
                         select from providers p where p.npi = s.npi and p.as_of > ${DAY})
                    then 'outdated'
                  when d.npi is null then 'inserted'
                  when ${differs} then 'updated'
                  else 'unchanged' end as change
        from picked s left join ${table} d on ${sameKey('d', 's')}
    ), written as (
      insert into ${table} (${columns}, import_number)
      select ${columns}, $2::integer from judged where change in ('inserted', 'updated')
      on conflict (${key.join(', ')}) do update set ${takes}
    )
    select ${countsOf(`staged_${table}`)} from judged`;
  return { areRemoved, merge };
}
