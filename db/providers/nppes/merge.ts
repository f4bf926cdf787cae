import { DatabaseError } from '../../errors.ts';
import type { Counts } from '../../lookups/imports.ts';
import type { NppesConnection } from './run.ts';
import { COPIED_PROVIDER_COLUMNS, copyTo, DETAIL_COLUMNS, type DetailTable } from './staging.ts';

/** Rows of the main file that are merged together. */
export interface ProviderChunk {
  /** The day whose state the file is. */
  readonly asOf: string;
  /** Lines of COPY's text format, of COPIED_PROVIDER_COLUMNS. */
  readonly copy: readonly Buffer[];
  /** How many lines there are. */
  readonly rows: number;
  /** True if no NPI of it is expected to be known: it is then tried without a comparison, in a third of the time. */
  readonly expectsNew: boolean;
  /** True to count only. */
  readonly dryRun: boolean;
}

const COLUMNS = COPIED_PROVIDER_COLUMNS.join(', ');
const CHANGES = COPIED_PROVIDER_COLUMNS.filter((column) => column !== 'npi')
  .map((column) => `${column} = excluded.${column}`)
  .join(', ');

// Rows are compared before anything is written: an unchanged one costs no lock and no log. The last row of the
// file with an NPI is taken.
const JUDGED = `
  judged as materialized (
    select distinct on (s.npi) s.*, p.active as was_active,
           s.deactivated is null and
             (s.deactivated_on is null or coalesce(s.reactivated_on >= s.deactivated_on, false)) as is_active,
           case when p.npi is null then 'inserted'
                when p.as_of > $1::date then 'outdated'
                when p.row_hash = s.row_hash and p.origin = 'nppes' then 'unchanged'
                else 'updated' end as change
      from staged_providers s left join providers p on p.npi = s.npi
     order by s.npi, s.ctid desc
  )`;

const WRITTEN = `
  written as (
    insert into providers (${COLUMNS}) select ${COLUMNS} from judged where change in ('inserted', 'updated')
    on conflict (npi) do update set ${CHANGES}, imported_at = clock_timestamp()
     where providers.as_of <= excluded.as_of
  )`;

/** What became of the rows that were staged. */
const fates = (staged: string) => `
         count(*) filter (where change = 'inserted')::integer as inserted,
         count(*) filter (where change = 'updated')::integer as updated,
         count(*) filter (where change = 'unchanged')::integer as unchanged,
         count(*) filter (where change = 'outdated')::integer as outdated,
         ((select count(*) from ${staged}) - count(*))::integer as repeated`;

const COUNTED = `
  select ${fates('staged_providers')},
         count(*) filter (where change = 'updated' and was_active and not is_active)::integer as deactivated,
         count(*) filter (where change = 'updated' and is_active and not was_active)::integer as reactivated
    from judged`;

/** What a copy of rows that are not all new ends with, and the statement after it. */
const NOT_NEW: ReadonlySet<string> = new Set(['23505', '25P02']);

/**
 * Merges a chunk of the main file, in one transaction. An NPI that the chunk does not name stays as it is.
 * @returns what became of the rows
 */
export async function importProviders(connection: NppesConnection, chunk: ProviderChunk): Promise<Counts> {
  if (chunk.expectsNew && !chunk.dryRun) {
    try {
      return await connection.transaction(async (tx) => {
        await copyTo(tx, 'providers', COPIED_PROVIDER_COLUMNS, chunk.copy);
        return { inserted: chunk.rows };
      });
    } catch (error) {
      if (!(error instanceof DatabaseError && NOT_NEW.has(error.code))) throw error;
    }
  }
  return await connection.transaction(async (tx) => {
    await copyTo(tx, 'staged_providers', COPIED_PROVIDER_COLUMNS, chunk.copy);
    // A chunk is small beside the table, and staging tables have no statistics to show it.
    await tx`select set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)`;
    const statement = chunk.dryRun ? `with ${JUDGED} ${COUNTED}` : `with ${JUDGED}, ${WRITTEN} ${COUNTED}`;
    const [counts] = await tx.unsafe<Counts[]>(statement, [chunk.asOf]);
    return counts ?? {};
  });
}

// Endpoints, other names and practice locations: their files are a hundredth of the main one, so each is staged
// wholly and then compared once.

/**
 * Adds lines to the staging table.
 * @param copy lines of COPY's text format, of the table's DETAIL_COLUMNS
 */
export async function stageDetails(
  connection: NppesConnection,
  table: DetailTable,
  copy: readonly Buffer[],
): Promise<void> {
  const { key, rest } = DETAIL_COLUMNS[table];
  await connection.transaction((tx) => copyTo(tx, `staged_${table}`, [...key, ...rest], copy));
}

/**
 * Makes the details of every NPI that the download names those of the file, in one transaction. Named is who has a row
 * in this file, and whom the main file of the same day has changed: NPPES counts a change of details as a change of
 * the provider. Who was changed by a later file is left alone.
 * @param asOf the day whose state the file is; `infinity` for a file that names none: no provider's day has to do with it
 * @returns what became of the rows
 */
export async function importDetails(
  connection: NppesConnection,
  table: DetailTable,
  asOf: string,
): Promise<Counts> {
  const { remove, merge } = statementsOf(table);
  return await connection.transaction(async (tx) => {
    // What a person had erased is not theirs to have again. Who erases at this moment is seen by the table's trigger.
    const { count: erased } = table === 'provider_endpoints' ? await tx.unsafe(REMOVE_ERASED) : { count: 0 };
    await tx`analyze ${tx(`staged_${table}`)}`;
    const { count: removed } = await tx.unsafe(remove, [asOf]);
    const [merged] = await tx.unsafe<Counts[]>(merge, [asOf]);
    return { erased, removed, ...merged };
  });
}

const REMOVE_ERASED = `
  delete from staged_provider_endpoints where endpoint like '%@%' and is_erased(npi, endpoint_address(endpoint))`;

/** As text, because postgres.js has no date that is `infinity`. */
const DAY = '$1::text::date';

function statementsOf(table: DetailTable) {
  const { key, rest } = DETAIL_COLUMNS[table];
  const columns = [...key, ...rest].join(', ');
  const sameKey = (a: string, b: string) =>
    key.map((column) => `${a}.${column} = ${b}.${column}`).join(' and ');
  const differs = rest.map((column) => `d.${column} is distinct from s.${column}`).join(' or ') || 'false';
  const takes =
    rest.length === 0
      ? 'nothing'
      : `update set ${rest.map((column) => `${column} = excluded.${column}`).join(', ')}`;
  const remove = `
    delete from ${table} d
     using (select npi from staged_${table} union
            select npi from providers where as_of = ${DAY} and origin = 'nppes') named
     where d.npi = named.npi
       and not exists (select from staged_${table} s where ${sameKey('s', 'd')})
       and not exists (select from providers p where p.npi = d.npi and p.as_of > ${DAY})`;
  // The choice among rows with one key must be the same in every run, or none would find nothing to do.
  const merge = `
    with picked as (
      select distinct on (${key.join(', ')}) ${columns} from staged_${table} order by ${columns}
    ), judged as materialized (
      select s.*,
             case when exists (select from providers p where p.npi = s.npi and p.as_of > ${DAY}) then 'outdated'
                  when d.npi is null then 'inserted'
                  when ${differs} then 'updated'
                  else 'unchanged' end as change
        from picked s left join ${table} d on ${sameKey('d', 's')}
    ), written as (
      insert into ${table} (${columns}) select ${columns} from judged where change in ('inserted', 'updated')
      on conflict (${key.join(', ')}) do ${takes}
    )
    select ${fates(`staged_${table}`)} from judged`;
  return { remove, merge };
}
