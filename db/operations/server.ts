import { type Database, run } from '../connection/client.ts';
import { DatabaseError } from '../connection/errors.ts';
import type { Stat } from './stats.ts';

// The health of the PostgreSQL server, and the age of what operators do regularly. All of it is
// read without our tables' locks, so it is known while a lock blocks everything else.

const DISK_FULL = '53100';

/** Tests whether PostgreSQL's disk is full, by writing a temporary file. */
async function isDiskFull(db: Database): Promise<boolean> {
  try {
    await run(db)`select write_temporary_file()`;
    return false;
  } catch (error) {
    if (error instanceof DatabaseError && error.code === DISK_FULL) {
      return true;
    }
    throw error;
  }
}

/**
 * Reads the gauges of PostgreSQL and of the regular work (deploy/metrics.md). Each gauge shows the
 * worst session, table, or slot, which `subject` names. Their limits are in deploy/limits.ts.
 */
export async function readServerStats(db: Database): Promise<Stat[]> {
  const diskFull = Number(await isDiskFull(db));
  return await run<Stat>(db)`
    with moment as (
      select clock_timestamp() as at
    ), transactions as (
      -- A backup by pg_dump has a long transaction.
      select xact_start, concat_ws(' ', 'pid', pid, application_name) as session
        from pg_stat_activity
       where datname = current_database()
         and backend_type = 'client backend'
         and application_name <> 'pg_dump'
       order by xact_start
       limit 1
    ), locks as (
      -- Sessions that lock balances, batches, or requests, or rows of them. Our own transactions end
      -- within seconds. The sessions that wait for such a lock give up after ten seconds, so their
      -- waits do not show how long it has been held.
      select a.xact_start, concat_ws(' ', 'pid', pid, a.application_name) as session
        from pg_locks l
        join pg_stat_activity a using (pid)
       where a.datname = current_database()
         and a.backend_type = 'client backend'
         and l.relation in (
           'credit_balances'::regclass, 'batches'::regclass, 'requests'::regclass)
         and l.mode not in ('AccessShareLock', 'ShareUpdateExclusiveLock')
       order by a.xact_start
       limit 1
    ), connections as (
      -- The connections of the server, and those of our database and of each user of an API or a
      -- worker, if they have their own limit.
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
              or pg_has_role(oid, 'npe_worker', 'member'))
    ), shares as (
      select coalesce(100.0 * used / nullif(most, 0), 100) as percent,
             format('%s: %s of %s', owner, used, most) as subject
        from connections
       order by percent desc
       limit 1
    ), tables as (
      select n_dead_tup, relname
        from pg_stat_user_tables
       where n_dead_tup > n_live_tup
       order by n_dead_tup desc
       limit 1
    ), slots as (
      select distinct on (active) active, slot_name, pg_current_wal_lsn() - restart_lsn as bytes
        from pg_replication_slots
       where restart_lsn is not null
       order by active, bytes desc
    ), stats (name, labels, value, subject) as (
      select 'npe_database_oldest_transaction_seconds', '{}',
             extract(epoch from at - xact_start), session
        from moment left join transactions on true
      union all
      select 'npe_database_lock_seconds', '{}', extract(epoch from at - xact_start), session
        from moment left join locks on true
      union all
      select 'npe_database_connections_percent', '{}', percent, subject from shares
      union all
      select 'npe_database_bytes', '{}', pg_database_size(current_database()), null
      union all
      select 'npe_database_disk_full', '{}', ${diskFull}::int, null
      union all
      select 'npe_database_dead_rows', '{}', n_dead_tup, relname
        from moment left join tables on true
      union all
      select name, '{}', bytes, slot_name
        from (values
               (true, 'npe_database_active_slot_bytes'),
               (false, 'npe_database_inactive_slot_bytes')) known (active, name)
        left join slots using (active)
      union all
      select 'npe_doctor_findings', '{}', findings, null from routines where kind = 'doctor'
      union all
      select format('npe_%s_age_seconds', kind), '{}', extract(epoch from at - ended_at), null
        from moment, routines
      union all
      -- The newest import of each file of CMS.
      select 'npe_import_age_seconds',
             jsonb_build_object('dataset', kind)::text,
             extract(epoch from at - max(finished_at)),
             kind
        from moment, import_runs
       where kind in ('nppes', 'clinicians') and state = 'done'
       group by kind, at
    )
    select name, labels::jsonb as labels, coalesce(value, 0)::float8 as value, subject
      from stats
     order by name, labels`;
}
