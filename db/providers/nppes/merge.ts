import { only } from '../../client.ts';
import { DatabaseError } from '../../errors.ts';
import type { Counts } from '../../lookups/imports.ts';
import type { NppesConnection } from './run.ts';
import { COPIED_PROVIDER_COLUMNS, copyTo, DETAIL_COLUMNS, type DetailTable } from './staging.ts';

/** Rows of the main file that are merged together. */
export interface ProviderChunk {
  /** The date of the file. */
  readonly asOf: string;
  /** Lines of COPY's text format, with COPIED_PROVIDER_COLUMNS. */
  readonly copy: readonly Buffer[];
  /** The number of lines. */
  readonly rows: number;
  /**
   * True if all its NPIs are expected to be new. It is then inserted without a comparison at first,
   * which takes a third of the time.
   */
  readonly expectsNew: boolean;
  /** True to only count changes and note the NPIs that would change. */
  readonly dryRun: boolean;
}

const COLUMNS = COPIED_PROVIDER_COLUMNS.join(', ');
const CHANGES = COPIED_PROVIDER_COLUMNS.filter((column) => column !== 'npi')
  .map((column) => `${column} = excluded.${column}`)
  .join(', ');

// Compares rows before writing, so that an unchanged row costs no lock and no log. The last row of
// the file with an NPI counts.
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
    on conflict (npi) do update set ${CHANGES}, imported_at = clock_timestamp()
     where providers.as_of <= excluded.as_of
  )`;

const NOTED = `
  noted as (
    insert into changed_providers select npi from judged where change in ('inserted', 'updated')
  )`;

/** Counts the staged rows by result. */
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

/** Error codes of a copy in which some rows exist already, and of the next statement. */
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
    // Staging tables have no statistics, so the planner does not know that a chunk is small next to
    // the table.
    await tx`
      select set_config('enable_hashjoin', 'off', true),
             set_config('enable_mergejoin', 'off', true)`;
    const write = chunk.dryRun ? NOTED : WRITTEN;
    const counts = await tx.unsafe<Counts[]>(`with ${JUDGED}, ${write} ${COUNTED}`, [chunk.asOf]);
    return only(counts);
  });
}

/** Returns false, and inserts nothing, if some of the rows exist already. */
async function insertNew(connection: NppesConnection, copy: readonly Buffer[]): Promise<boolean> {
  try {
    await connection.transaction((tx) => copyTo(tx, 'providers', COPIED_PROVIDER_COLUMNS, copy));
    return true;
  } catch (error) {
    if (error instanceof DatabaseError && NOT_NEW.has(error.code)) return false;
    throw error;
  }
}

// Endpoints, other names, and practice locations. Their files are a hundredth of the size of the
// main one, so each is staged completely and then compared in one statement.

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
  await connection.transaction((tx) => copyTo(tx, `staged_${table}`, [...key, ...rest], copy));
}

/** A file of details. */
export interface DetailFile {
  readonly table: DetailTable;
  /**
   * The date of the file. `infinity` for a file without a date, which is newer than all providers.
   */
  readonly asOf: string;
  /** Identifies the download, as in `import_runs`. */
  readonly fingerprint: string;
}

/** As text, because postgres.js has no date for `infinity`. */
const DAY = '$1::text::date';

/** Returns whether a table has any rows. An import removes nothing from an empty table. */
export async function hasRows(connection: NppesConnection, table: DetailTable): Promise<boolean> {
  const [row] = await connection.transaction((tx) => tx`select from ${tx(table)} limit 1`);
  return row !== undefined;
}

/**
 * Counts the rows that `importDetails` would remove, and the rows of the table. Before this, the
 * download must be staged completely, and the changes of its main file must be noted in
 * `changed_providers`.
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
 * because NPPES counts a change of details as a change of the provider. Details that a later file
 * has changed stay.
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
    // Erased data must not return. A concurrent erasure is handled by the table's trigger.
    let erased = 0;
    if (table === 'provider_endpoints') erased = (await tx.unsafe(REMOVE_ERASED)).count;
    await tx`analyze ${tx(`staged_${table}`)}`;
    const removed = await tx.unsafe(`delete from ${table} d ${areRemoved}`, [asOf, fingerprint]);
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
    rest.map((column) => `d.${column} is distinct from s.${column}`).join(' or ') || 'false';
  const takes = [...rest, 'import_number']
    .map((column) => `${column} = excluded.${column}`)
    .join(', ');
  // A killed run of the same file may have changed providers too. It has another number and the
  // same fingerprint.
  const areRemoved = `
     where d.npi in (select npi from staged_${table} union
                     select npi from changed_providers union
                     select npi from providers
                      where import_number in (
                        select number from import_runs where fingerprint = $2))
       and not exists (select from staged_${table} s where ${sameKey('s', 'd')})
       and not exists (select from providers p where p.npi = d.npi and p.as_of > ${DAY})`;
  // The choice among rows with the same key must be the same in each run. Otherwise a repeated run
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
