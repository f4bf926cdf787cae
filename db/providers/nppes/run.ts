import postgres, { type Sql, type TransactionSql } from 'postgres';
import { DatabaseError, OperatorProblem, toDatabaseError } from '../../errors.ts';
import { STAGING_TABLES } from './staging.ts';

/**
 * The one connection of an import of CMS's files. It holds the lock and the staging tables, so it
 * is never made again.
 */
export interface NppesConnection {
  /** Runs `work` in one transaction. */
  transaction<T>(work: (tx: TransactionSql) => Promise<T>): Promise<T>;
  close(): Promise<void>;
}

/** Any constant, as long as every importer takes the same and nobody else takes it. */
const IMPORT_LOCK = 7_041_777;
/** Sorting a chunk in memory, and keeping the staged rows there. */
const MEMORY = '64MB';

/**
 * Connects, takes the lock that lets one import run at a time, and makes the staging tables. They
 * are temporary: written without a log, and gone with the connection.
 * @param name shown in `pg_stat_activity`, and to whoever finds the lock taken
 * @throws {OperatorProblem} naming who holds the lock if it is taken
 */
export async function connectForImport(url: string, name: string): Promise<NppesConnection> {
  let lost = false;
  const client = postgres(url, {
    max: 1,
    // A second connection would have neither lock nor staging tables.
    max_lifetime: null,
    idle_timeout: 0,
    connect_timeout: 5,
    onnotice: () => {},
    onclose: () => {
      lost = true;
    },
    connection: {
      application_name: name,
      statement_timeout: 0,
      idle_in_transaction_session_timeout: 0,
      work_mem: MEMORY,
      temp_buffers: MEMORY,
    },
  });
  try {
    await takeLock(client);
    await client.unsafe(STAGING_TABLES).simple();
  } catch (error) {
    await client.end({ timeout: 5 });
    throw toDatabaseError(error);
  }
  return {
    async transaction(work) {
      if (lost) throw new DatabaseError('CONNECTION_CLOSED');
      try {
        // The cast undoes postgres.js's unwrapping of arrays of promises.
        return (await client.begin(work)) as Awaited<ReturnType<typeof work>>;
      } catch (error) {
        throw toDatabaseError(error);
      }
    },
    close: () => client.end({ timeout: 5 }),
  };
}

/** Lets PostgreSQL look at what an import has changed. */
export async function analyzeProviders(connection: NppesConnection): Promise<void> {
  await connection.transaction((tx) => tx`select analyze_providers()`);
}

async function takeLock(client: Sql): Promise<void> {
  const [taken] = await client<
    { taken: boolean }[]
  >`select pg_try_advisory_lock(${IMPORT_LOCK}) as taken`;
  if (taken?.taken) return;
  // Since when somebody else's user is connected, PostgreSQL does not tell.
  const [holder] = await client<{ text: string }[]>`
    select concat_ws(', ', a.application_name, run.file, 'since ' || to_char(
             coalesce(a.backend_start, run.started_at) at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')) as text
      from pg_locks l join pg_stat_activity a on a.pid = l.pid
      left join lateral (
        select file, started_at from import_runs where kind in ('nppes', 'clinicians') and state = 'running'
         order by started_at desc limit 1) run on true
     where l.locktype = 'advisory' and l.granted and l.classid = 0 and l.objid = ${IMPORT_LOCK}
       and l.database = (select oid from pg_database where datname = current_database())`;
  const who = holder?.text ?? 'one that has just ended';
  throw new OperatorProblem(
    `another import is under way (${who}); wait for its end, then run this again`,
  );
}
