import type { TransactionSql } from 'postgres';
import { DatabaseError } from '../../errors.ts';
import { copyTo, type NppesConnection } from './connection.ts';
import { type NppesRun, type Step, saveStep } from './runs.ts';
import { COPIED_PROVIDER_COLUMNS } from './staging.ts';

/** What became of the rows of a chunk. */
export interface ProviderCounts {
  readonly inserted: number;
  readonly updated: number;
  readonly unchanged: number;
  /** Older than what is stored. */
  readonly outdated: number;
  /** The same NPI again: the last row counts. */
  readonly repeated: number;
  /** Of those updated. */
  readonly deactivated: number;
  readonly reactivated: number;
}

/** Rows of the main file that are merged together. */
export interface ProviderChunk {
  /** The day whose state the file is. */
  readonly asOf: string;
  /** Lines of COPY's text format, of COPIED_PROVIDER_COLUMNS. */
  readonly copy: readonly Buffer[];
  /** How many lines there are. */
  readonly rows: number;
  /** True where no NPI of it is expected to be known: it is then tried without a comparison, in a third of the time. */
  readonly expectsNew: boolean;
  readonly step: Step;
}

const COLUMNS = COPIED_PROVIDER_COLUMNS.join(', ');
const CHANGES = COPIED_PROVIDER_COLUMNS.filter((column) => column !== 'npi')
  .map((column) => `${column} = excluded.${column}`)
  .join(', ');

// Rows are compared before anything is written: an unchanged one costs no lock and no log. Of rows with one NPI the
// last one of the file is taken.
const JUDGED = `
  judged as materialized (
    select distinct on (s.npi) s.*, p.active as was_active,
           s.deactivated_on is null or coalesce(s.reactivated_on >= s.deactivated_on, false) as is_active,
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

const COUNTED = `
  select count(*) filter (where change = 'inserted')::integer as inserted,
         count(*) filter (where change = 'updated')::integer as updated,
         count(*) filter (where change = 'unchanged')::integer as unchanged,
         count(*) filter (where change = 'outdated')::integer as outdated,
         ((select count(*) from staged_providers) - count(*))::integer as repeated,
         count(*) filter (where change = 'updated' and was_active and not is_active)::integer as deactivated,
         count(*) filter (where change = 'updated' and is_active and not was_active)::integer as reactivated
    from judged`;

/** What a copy of rows that are not all new ends with, and the statement after it. */
const NOT_NEW: ReadonlySet<string> = new Set(['23505', '25P02']);

/**
 * Merges a chunk of the main file and moves the run's checkpoint, in one transaction. An NPI that the chunk does not
 * name stays as it is.
 * @returns the run as it is then, and what became of the rows
 * @throws {DatabaseError}
 */
export async function importProviders(
  connection: NppesConnection,
  run: NppesRun,
  chunk: ProviderChunk,
): Promise<{ readonly run: NppesRun; readonly counts: ProviderCounts }> {
  if (chunk.expectsNew && run.id !== null) {
    try {
      return await connection.transaction(async (tx) => {
        await copyTo(tx, 'providers', COPIED_PROVIDER_COLUMNS, chunk.copy);
        return await save(tx, run, chunk.step, { ...NONE, inserted: chunk.rows });
      });
    } catch (error) {
      if (!(error instanceof DatabaseError && NOT_NEW.has(error.code))) throw error;
    }
  }
  return await connection.transaction(async (tx) => {
    await copyTo(tx, 'staged_providers', COPIED_PROVIDER_COLUMNS, chunk.copy);
    await lookUpByIndex(tx);
    const statement = run.id === null ? `with ${JUDGED} ${COUNTED}` : `with ${JUDGED}, ${WRITTEN} ${COUNTED}`;
    const [counts = NONE] = await tx.unsafe<ProviderCounts[]>(statement, [chunk.asOf]);
    return await save(tx, run, chunk.step, counts);
  });
}

const NONE: ProviderCounts = {
  inserted: 0,
  updated: 0,
  unchanged: 0,
  outdated: 0,
  repeated: 0,
  deactivated: 0,
  reactivated: 0,
};

async function save(tx: TransactionSql, run: NppesRun, step: Step, counts: ProviderCounts) {
  const named = Object.entries(counts).map(([name, count]) => [`npidata.${name}`, count]);
  return { run: await saveStep(tx, run, step, Object.fromEntries(named)), counts };
}

/** A chunk is small beside the table, and staging tables have no statistics to show it. */
async function lookUpByIndex(tx: TransactionSql): Promise<void> {
  await tx`select set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)`;
}
