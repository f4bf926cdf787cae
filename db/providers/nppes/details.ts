import { copyTo, type NppesConnection } from './connection.ts';
import { type NppesRun, type Step, saveStep } from './runs.ts';
import { DETAIL_COLUMNS, type DetailTable } from './staging.ts';

// Endpoints, other names and practice locations: their files are a hundredth of the main one, so each is staged
// wholly and then compared once.

/** Empties the staging table: a run that was interrupted begins the file again. @throws {DatabaseError} */
export async function clearStagedDetails(connection: NppesConnection, table: DetailTable): Promise<void> {
  await connection.transaction(async (tx) => {
    await tx`truncate ${tx(`staged_${table}`)}`;
  });
}

/**
 * Adds lines to the staging table.
 * @param copy lines of COPY's text format, of the table's DETAIL_COLUMNS
 * @throws {DatabaseError}
 */
export async function stageDetails(
  connection: NppesConnection,
  table: DetailTable,
  copy: readonly Buffer[],
): Promise<void> {
  const { key, rest } = DETAIL_COLUMNS[table];
  await connection.transaction(async (tx) => {
    await copyTo(tx, `staged_${table}`, [...key, ...rest], copy);
    await tx`select`;
  });
}

/**
 * Makes the details of every NPI that the download names those of the file, and moves the run's checkpoint, in one
 * transaction. Named is who has a row in this file, and whom the main file of the same day has changed: NPPES counts
 * a change of details as a change of the provider. Who was changed by a later file is left alone.
 * @param asOf the day whose state the file is
 * @returns the run as it is then
 * @throws {DatabaseError}
 */
export async function importDetails(
  connection: NppesConnection,
  run: NppesRun,
  file: { readonly kind: string; readonly table: DetailTable; readonly asOf: string; readonly step: Step },
): Promise<NppesRun> {
  const statements = STATEMENTS[file.table];
  return await connection.transaction(async (tx) => {
    // What a person had erased is not theirs to have again. Who erases at this moment is seen by the table's trigger.
    const { count: erased } =
      file.table === 'provider_endpoints' ? await tx.unsafe(REMOVE_ERASED) : { count: 0 };
    await tx`analyze ${tx(`staged_${file.table}`)}`;
    const { count: removed } = await tx.unsafe(statements.remove, [file.asOf]);
    const [merged] = await tx.unsafe<Record<string, string>[]>(statements.merge, [file.asOf]);
    const counts = { erased, removed, ...merged };
    const named = Object.entries(counts).map(([name, count]): [string, number] => [
      `${file.kind}.${name}`,
      Number(count),
    ]);
    return await saveStep(tx, run, file.step, Object.fromEntries(named));
  });
}

const REMOVE_ERASED = `
  delete from staged_provider_endpoints where endpoint like '%@%' and is_erased(npi, endpoint_address(endpoint))`;

const STATEMENTS: Readonly<Record<DetailTable, { readonly remove: string; readonly merge: string }>> = {
  provider_endpoints: statementsOf('provider_endpoints'),
  provider_other_names: statementsOf('provider_other_names'),
  provider_locations: statementsOf('provider_locations'),
};

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
            select npi from providers where as_of = $1::date and origin = 'nppes') named
     where d.npi = named.npi
       and not exists (select from staged_${table} s where ${sameKey('s', 'd')})
       and not exists (select from providers p where p.npi = d.npi and p.as_of > $1::date)`;
  // Of rows with one key the choice must be the same in every run, or none would find nothing to do.
  const merge = `
    with picked as (
      select distinct on (${key.join(', ')}) ${columns} from staged_${table} order by ${columns}
    ), judged as materialized (
      select s.*,
             case when exists (select from providers p where p.npi = s.npi and p.as_of > $1::date) then 'outdated'
                  when d.npi is null then 'inserted'
                  when ${differs} then 'updated'
                  else 'unchanged' end as change
        from picked s left join ${table} d on ${sameKey('d', 's')}
    ), written as (
      insert into ${table} (${columns}) select ${columns} from judged where change in ('inserted', 'updated')
      on conflict (${key.join(', ')}) do ${takes}
    )
    select count(*) filter (where change = 'inserted') as inserted,
           count(*) filter (where change = 'updated') as updated,
           count(*) filter (where change = 'unchanged') as unchanged,
           count(*) filter (where change = 'outdated') as outdated,
           (select count(*) from staged_${table}) - count(*) as repeated
      from judged`;
  return { remove, merge };
}
