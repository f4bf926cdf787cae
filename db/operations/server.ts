import { sql } from 'drizzle-orm';
import { type Database, run } from '../connection/client.ts';
import { DatabaseError } from '../connection/errors.ts';
import type { Stat } from './stats.ts';

// The health of the PostgreSQL server, and the age of what operators do regularly. All of it is
// read without our tables' locks, so it is known while a lock blocks everything else.

/**
 * The limits above which `status` and `doctor` report a problem. The alerts use the same limits.
 */
export const SERVER_LIMITS = {
  transactionSeconds: 3600,
  lockSeconds: 30,
  /** The share of the connections that may be in use. */
  connectionShare: 0.9,
  deadRows: 100_000,
  /** The WAL that a replication slot may keep for a standby or backup that reads it. */
  slotBytes: 10_000_000_000,
  /** The same for a slot without a reader. A standby that restarts leaves less than this behind. */
  inactiveSlotBytes: 1_000_000_000,
  /** Backups and runs of the doctor are daily. */
  routineSeconds: 2 * 86_400,
  /** CMS publishes a new file every month. */
  importSeconds: 45 * 86_400,
} as const;

/** Matches sessions of clients in our database. A backup by pg_dump has a long transaction. */
export const IS_CLIENT = sql`datname = current_database()
  and backend_type = 'client backend'
  and application_name <> 'pg_dump'`;

/**
 * Matches sessions that lock balances, batches, or requests, or rows of them. Our own transactions
 * end within seconds. The sessions that wait for such a lock give up after ten seconds, so their
 * waits do not show how long it has been held.
 */
export const LOCKS_WORK = sql`a.datname = current_database()
  and a.backend_type = 'client backend'
  and l.relation in ('credit_balances'::regclass, 'batches'::regclass, 'requests'::regclass)
  and l.mode not in ('AccessShareLock', 'ShareUpdateExclusiveLock')`;

/**
 * The connections in use, with their limit: those of the server, and those of our database and of
 * each user of an API or a worker, if they have their own limit.
 */
export const CONNECTIONS = sql`(
  select 'server' as owner,
         (select sum(numbackends) from pg_stat_database) as used,
         current_setting('max_connections')::int
           - current_setting('superuser_reserved_connections')::int as most
  union all
  select 'database ' || datname, pg_stat_get_db_numbackends(oid), datconnlimit
    from pg_database
   where datname = current_database() and datconnlimit >= 0
  union all
  select 'user ' || rolname,
         (select count(*) from pg_stat_activity where usesysid = oid),
         rolconnlimit
    from pg_roles
   where rolcanlogin and not rolsuper and rolconnlimit >= 0
     and (pg_has_role(oid, 'npe_api', 'member')
          or pg_has_role(oid, 'npe_worker', 'member'))) connections`;

/** The newest import of each file of CMS. */
export const IMPORTS = sql`(
  select kind, max(finished_at) as finished_at
    from import_runs
   where kind in ('nppes', 'clinicians') and state = 'done'
   group by kind) imports`;

const DISK_FULL = '53100';

/** Tests whether PostgreSQL's disk is full, by writing a temporary file. */
export async function isDiskFull(db: Database): Promise<boolean> {
  try {
    await run(db)`select write_temporary_file()`;
    return false;
  } catch (error) {
    if (error instanceof DatabaseError && error.code === DISK_FULL) return true;
    throw error;
  }
}

/** Reads the gauges of PostgreSQL and of the regular work (deploy/metrics.md). */
export async function readServerStats(db: Database): Promise<Stat[]> {
  const diskFull = Number(await isDiskFull(db));
  return await run<Stat>(db)`
    with moment as (
      select clock_timestamp() as at
    ), ages as (
      select coalesce(extract(epoch from at - (
               select min(xact_start)
                 from pg_stat_activity
                where ${IS_CLIENT})), 0) as oldest_transaction,
             coalesce(extract(epoch from at - (
               select min(a.xact_start)
                 from pg_locks l
                 join pg_stat_activity a using (pid)
                where ${LOCKS_WORK})), 0) as lock_age
        from moment
    ), connections as (
      select used, most
        from ${CONNECTIONS}
       order by used / nullif(most, 0)::float8 desc nulls first
       limit 1
    ), tables as (
      select coalesce(max(n_dead_tup), 0) as dead_rows
        from pg_stat_user_tables
       where n_dead_tup > n_live_tup
    ), slots as (
      select coalesce(max(bytes) filter (where active), 0) as active,
             coalesce(max(bytes) filter (where not active), 0) as inactive
        from (select active, pg_current_wal_lsn() - restart_lsn as bytes
                from pg_replication_slots) one
    ), stats (name, labels, value) as (
      select name, labels::jsonb, value
        from ages, connections, tables, slots, lateral (values
          ('npe_database_oldest_transaction_seconds', '{}', oldest_transaction),
          ('npe_database_lock_seconds', '{}', lock_age),
          ('npe_database_connections', '{"what": "limit"}', most),
          ('npe_database_connections', '{"what": "used"}', used),
          ('npe_database_bytes', '{}', pg_database_size(current_database())),
          ('npe_database_disk_full', '{}', ${diskFull}::int),
          ('npe_database_dead_rows', '{}', dead_rows),
          ('npe_database_slot_bytes', '{"state": "active"}', active),
          ('npe_database_slot_bytes', '{"state": "inactive"}', inactive)) one (name, labels, value)
      union all
      select 'npe_doctor_findings', '{}', findings from routines where kind = 'doctor'
      union all
      select format('npe_%s_age_seconds', kind), '{}', extract(epoch from at - ended_at)
        from moment, routines
      union all
      select 'npe_import_age_seconds',
             jsonb_build_object('dataset', kind),
             extract(epoch from at - finished_at)
        from moment, ${IMPORTS}
    )
    select name, labels, value::float8 as value from stats order by name, labels`;
}
