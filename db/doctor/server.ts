import { type SQL, sql } from 'drizzle-orm';
import {
  type Database,
  only,
  run,
  snapshot,
  type Transaction,
} from '../connection/client.ts';
import {
  CONNECTIONS,
  IMPORTS,
  IS_CLIENT,
  isDiskFull,
  SERVER_LIMITS as LIMITS,
  LOCKS_WORK,
} from '../operations/server.ts';
import { type CheckResult, found, type Pass, resultOf, runPasses } from './check.ts';

/**
 * Checks what slows PostgreSQL down or stops it, and the age of backups and imports. These findings
 * come and go by themselves, so they are not counted in `npe_doctor_findings`. Each has its own
 * metric (db/operations/server.ts).
 */
export async function checkServer(db: Database): Promise<CheckResult[]> {
  const full = { findings: Number(await isDiskFull(db)), examples: [] };
  const commits = await checkCommits(db);
  const checks = await snapshot(db, checkServerIn);
  return [resultOf('disk_full', full), commits, ...checks];
}

/** Checks that transactions commit. The example names the standbys for which they may wait. */
async function checkCommits(db: Database): Promise<CheckResult> {
  if (await db.canCommit()) return found('commits_hang', []);
  const rows = await run<{ setting: string }>(db)`
    select 'synchronous_standby_names = ' || current_setting('synchronous_standby_names') as setting`;
  return found('commits_hang', [only(rows).setting]);
}

/**
 * Runs the checks of this file that are one query, in the caller's transaction.
 */
export function checkServerIn(tx: Transaction): Promise<CheckResult[]> {
  return runPasses(tx, PASSES);
}

function isOlder(time: SQL, seconds: number): SQL {
  return sql`${time} < now() - make_interval(secs => ${seconds})`;
}

const TRANSACTIONS: Pass = {
  from: sql`pg_stat_activity`,
  subject: sql`concat_ws(' ', 'pid', pid, application_name)`,
  checks: {
    transaction_open_long: sql`${IS_CLIENT}
        and ${isOlder(sql`xact_start`, LIMITS.transactionSeconds)}`,
  },
};

const LOCKS: Pass = {
  from: sql`(
    select distinct pid, a.application_name, a.xact_start
      from pg_locks l
      join pg_stat_activity a using (pid)
     where ${LOCKS_WORK}) locking`,
  subject: sql`concat_ws(' ', 'pid', pid, application_name)`,
  checks: {
    lock_held: isOlder(sql`xact_start`, LIMITS.lockSeconds),
  },
};

const SESSIONS: Pass = {
  from: CONNECTIONS,
  subject: sql`format('%s: %s of %s', owner, used, most)`,
  checks: {
    connections_spent: sql`used >= ${LIMITS.connectionShare}::float8 * most`,
  },
};

const TABLES: Pass = {
  from: sql`pg_stat_user_tables`,
  subject: sql`relname`,
  checks: {
    dead_rows: sql`n_dead_tup > greatest(n_live_tup, ${LIMITS.deadRows}::int)`,
  },
};

const SETTINGS: Pass = {
  from: sql`pg_settings`,
  subject: sql`name`,
  checks: {
    autovacuum_off: sql`name in ('autovacuum', 'track_counts') and setting = 'off'`,
  },
};

const SLOTS: Pass = {
  from: sql`pg_replication_slots`,
  subject: sql`slot_name`,
  checks: {
    slot_keeps_wal: sql`pg_current_wal_lsn() - restart_lsn
        > case when active then ${LIMITS.slotBytes}::int8
               else ${LIMITS.inactiveSlotBytes}::int8 end`,
  },
};

const RIGHTS: Pass = {
  from: sql`unnest(array['npe_worker', 'npe_operator']) name`,
  subject: sql`name`,
  checks: {
    statistics_hidden: sql`not pg_has_role(name, 'pg_read_all_stats', 'member')`,
  },
};

const BACKUPS: Pass = {
  from: sql`routines`,
  subject: sql`to_char(ended_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI"Z"')`,
  checks: {
    backup_old: sql`kind = 'backup' and ${isOlder(sql`ended_at`, LIMITS.routineSeconds)}`,
  },
};

const FILES: Pass = {
  from: IMPORTS,
  subject: sql`kind`,
  checks: {
    import_old: isOlder(sql`finished_at`, LIMITS.importSeconds),
  },
};

const PASSES = [
  TRANSACTIONS,
  LOCKS,
  SESSIONS,
  TABLES,
  SETTINGS,
  SLOTS,
  RIGHTS,
  BACKUPS,
  FILES,
];
