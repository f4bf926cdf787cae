import type { Sql, TransactionSql } from 'postgres';
import {
  DatabaseError,
  OperatorProblem,
  toDatabaseError,
} from '../../connection/errors.ts';
import { connect } from '../../connection/tls.ts';
import { STAGING_TABLES } from './staging.ts';

/**
 * The only connection of an import of CMS files. It holds the lock and the staging tables, so it
 * cannot reconnect.
 */
export interface NppesConnection {
  /** Runs `work` in one transaction. */
  transaction<T>(work: (tx: TransactionSql) => Promise<T>): Promise<T>;
  close(): Promise<void>;
}

/**
 * The key of the advisory lock that lets one import run at a time. Any constant works, as long as
 * all imports use the same one and no other code uses it.
 */
const IMPORT_LOCK = 7_041_777;
/** With this much memory, a chunk is sorted and staged rows are kept without using the disk. */
const MEMORY = '64MB';

/**
 * Connects, takes the lock that lets one import run at a time, and creates the staging tables.
 * These are temporary tables. PostgreSQL does not write them to its log, and they disappear with
 * the connection.
 * @param name shown in `pg_stat_activity`, and in the error of another import that finds the lock
 * taken
 * @throws {OperatorProblem} if another import holds the lock; the message names it
 */
export async function connectForImport(
  url: string,
  name: string,
): Promise<NppesConnection> {
  let lost = false;
  const client = connect(url, {
    max: 1,
    // A second connection would have neither the lock nor the staging tables.
    max_lifetime: null,
    idle_timeout: 0,
    connect_timeout: 15,
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
        // The cast is needed because the return type of `begin` unwraps arrays of promises.
        return (await client.begin(work)) as Awaited<ReturnType<typeof work>>;
      } catch (error) {
        throw toDatabaseError(error);
      }
    },
    close: () => client.end({ timeout: 5 }),
  };
}

/** Updates PostgreSQL's statistics after an import. */
export async function analyzeProviders(connection: NppesConnection): Promise<void> {
  await connection.transaction((tx) => tx`select analyze_providers()`);
}

async function takeLock(client: Sql): Promise<void> {
  const [lock] = await client<{ taken: boolean }[]>`
    select pg_try_advisory_lock(${IMPORT_LOCK}) as taken`;
  if (lock?.taken) return;
  // PostgreSQL does not show when the connection of another user started. If this time is hidden,
  // the message contains the start time of the import instead.
  const [holder] = await client<{ text: string }[]>`
    select concat_ws(', ', a.application_name, run.file, 'since ' || to_char(
             coalesce(a.backend_start, run.started_at) at time zone 'utc',
             'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')) as text
      from pg_locks l
      join pg_stat_activity a on a.pid = l.pid
      left join lateral (
        select file, started_at
          from import_runs
         where kind in ('nppes', 'clinicians') and state = 'running'
         order by started_at desc
         limit 1) run on true
     where l.locktype = 'advisory' and l.granted and l.classid = 0 and l.objid = ${IMPORT_LOCK}
       and l.database = (select oid from pg_database where datname = current_database())`;
  const name = holder?.text ?? 'one that has just ended';
  throw new OperatorProblem(
    `another import is under way (${name}); wait for its end, then run this again`,
  );
}
