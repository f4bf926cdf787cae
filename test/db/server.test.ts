import test from 'ava';
import postgres from 'postgres';
import { type Database, openDatabase, run } from '../../db/connection/client.ts';
import { DatabaseError } from '../../db/connection/errors.ts';
import type { StatName } from '../../db/operations/metrics.ts';
import { readiness } from '../../db/operations/migrate.ts';
import { noteBackup, noteDoctor } from '../../db/operations/routines.ts';
import { readServerStats } from '../../db/operations/server.ts';
import type { Stat } from '../../db/operations/stats.ts';
import { LIMITS } from '../../deploy/limits.ts';
import { asRole, freshDatabase } from '../support/database.ts';
import { operatorOn } from '../support/operator.ts';
import { eventually } from '../support/organization.ts';

// Tests the metrics of PostgreSQL's health with the rights of a worker.

const { db, sql, url } = freshDatabase(test);
const { operator } = operatorOn(url);
const roleDb = (role: 'worker' | 'operator') =>
  openDatabase({ url: asRole(url, role), poolSize: 1, applicationName: 'server' });
const worker = roleDb('worker');
const checker = roleDb('operator');
test.after.always(() => Promise.all([worker.close(), checker.close()]));

async function stats(): Promise<Readonly<Record<string, number>>> {
  const read = await readServerStats(worker);
  return Object.fromEntries(
    read.map(({ name, labels, value }) => [
      [name, ...Object.values(labels)].join(' '),
      value,
    ]),
  );
}

/** Returns the stats that are above their limit. */
function aboveLimits(read: readonly Stat[]): Stat[] {
  return read.filter(({ name, value }) =>
    LIMITS.some(({ stat, max }) => stat === name && value > max),
  );
}

/** Returns the names of the stats that are above their limit, each with its subject. */
async function problems(): Promise<string[]> {
  const above = aboveLimits(await readServerStats(worker));
  return above.map(({ name, subject }) => [name, subject ?? []].flat().join(' '));
}

test.serial(
  'a healthy server reports all metrics, and none is above its limit',
  async (t) => {
    const now = await stats();
    t.deepEqual(Object.keys(now), [
      'npe_backup_age_seconds',
      'npe_database_active_slot_bytes',
      'npe_database_bytes',
      'npe_database_connections_percent',
      'npe_database_dead_rows',
      'npe_database_disk_full',
      'npe_database_inactive_slot_bytes',
      'npe_database_lock_seconds',
      'npe_database_oldest_transaction_seconds',
      'npe_doctor_age_seconds',
      'npe_doctor_findings',
    ]);
    t.is(now.npe_database_disk_full, 0);
    t.is(now.npe_database_lock_seconds, 0);
    t.true((now.npe_database_bytes ?? 0) > 1_000_000);
    t.true((now.npe_database_connections_percent ?? 0) > 0);
    t.deepEqual(await problems(), []);
  },
);

test.serial(
  'metrics show a session that locks a balance even if no other session waits',
  async (t) => {
    const holder = postgres(url, { max: 1 });
    t.teardown(() => holder.end());
    await holder`begin`;
    await holder`select from credit_balances for update`;
    const seen = await eventually(async () => {
      const now = await stats();
      return (now.npe_database_lock_seconds ?? 0) > 0.5 ? now : null;
    });
    t.true((seen.npe_database_oldest_transaction_seconds ?? 0) > 0.5);
    await holder`rollback`;
    t.is((await stats()).npe_database_lock_seconds, 0);
  },
);

test.serial('a database that takes no writes is not ready', async (t) => {
  const name = new URL(url).pathname.slice(1);
  await sql.unsafe(`alter database "${name}" set default_transaction_read_only = on`);
  const standby = openDatabase({ url, poolSize: 1, applicationName: 'test' });
  t.teardown(() => standby.close());
  t.is(await readiness(standby), 'database_read_only');
  const error = await t.throwsAsync(run(standby)`delete from sweeps`, {
    instanceOf: DatabaseError,
  });
  t.true(error?.isAway);
  await sql.unsafe(`alter database "${name}" reset default_transaction_read_only`);
});

test.serial('a full disk is reported until there is space again', async (t) => {
  await sql.unsafe(`
    create or replace function write_temporary_file() returns bigint language plpgsql as $$
    begin raise exception using errcode = 'disk_full'; end $$`);
  t.is((await stats()).npe_database_disk_full, 1);
  t.deepEqual(await problems(), ['npe_database_disk_full']);
  await sql.unsafe(`
    create or replace function write_temporary_file() returns bigint language sql
    set work_mem = '64kB' as 'select count(*) from generate_series(1, 40000)'`);
  t.is((await stats()).npe_database_disk_full, 0);
});

test.serial('the disk is tested by a temporary file of a megabyte', async (t) => {
  const plan = await sql.begin(async (tx) => {
    await tx`set local work_mem = '64kB'`;
    return await tx`explain (analyze, buffers, format json)
      select count(*) from generate_series(1, 40000)`;
  });
  const text = JSON.stringify(plan);
  const pages = Number(/"Temp Written Blocks":(\d+)/.exec(text)?.[1]);
  t.true(pages * 8192 > 500_000 && pages * 8192 < 2_000_000, `${pages} pages`);
});

/** Each stat with what brings it above its limit in a transaction, and with the named subject. */
const TROUBLES: readonly (readonly [stat: StatName, cause: string, subject: RegExp])[] = [
  [
    'npe_database_oldest_transaction_seconds',
    `create temp view pg_stat_activity as
       select 7 as pid, 0::oid as usesysid, 'psql' as application_name, current_database() as datname,
              'client backend' as backend_type, now() - interval '61 minutes' as xact_start`,
    /^pid 7 psql$/,
  ],
  [
    'npe_database_lock_seconds',
    `create temp view pg_stat_activity as
       select 7 as pid, 0::oid as usesysid, 'psql' as application_name, current_database() as datname,
              'client backend' as backend_type, now() - interval '31 s' as xact_start;
     create temp view pg_locks as
       select 7 as pid, 'requests'::regclass::oid as relation, 'RowShareLock' as mode`,
    /^pid 7 psql$/,
  ],
  [
    'npe_database_connections_percent',
    `create temp view pg_stat_database as
       select current_setting('max_connections')::int - 4 as numbackends`,
    /^server: \d+ of \d+$/,
  ],
  [
    'npe_database_connections_percent',
    'create role cut_off login connection limit 0 in role npe_worker',
    /^user cut_off: 0 of 0$/,
  ],
  [
    'npe_database_connections_percent',
    `do $$ begin execute format('alter database %I connection limit 1',
       current_database()); end $$`,
    /^database \S+: \d+ of 1$/,
  ],
  [
    'npe_database_dead_rows',
    `create temp view pg_stat_user_tables as
       select 'requests'::name as relname, 100001 as n_dead_tup, 100000 as n_live_tup`,
    /^requests$/,
  ],
  [
    'npe_database_inactive_slot_bytes',
    `create schema later;
     create function later.pg_current_wal_lsn() returns pg_lsn return 'F/0'::pg_lsn;
     set local search_path = later, public, pg_catalog;
     create temp view pg_replication_slots as
       select slot_name, active, 'F/0'::pg_lsn - kept as restart_lsn
         from (values ('busy'::name, true, 9e9), ('restarting', false, 9e8),
                      ('gone', false, 1.1e9)) one (slot_name, active, kept)`,
    /^gone$/,
  ],
];

for (const [stat, cause, subject] of TROUBLES) {
  test.serial(`${stat} above its limit names ${subject.source}`, async (t) => {
    const undone = new Error('undone');
    const work = db.drizzle.transaction(async (tx) => {
      await tx.execute(cause);
      const inside = { ...db, drizzle: tx as unknown as Database['drizzle'] };
      const above = aboveLimits(await readServerStats(inside));
      t.deepEqual(
        above.map(({ name }) => name),
        [stat],
      );
      t.regex(above[0]?.subject ?? '', subject);
      throw undone;
    });
    await t.throwsAsync(work, { is: undone });
  });
}

test.serial('the metric of dead rows is that of one table', async (t) => {
  const undone = new Error('undone');
  const work = db.drizzle.transaction(async (tx) => {
    await tx.execute(`create temp view pg_stat_user_tables as
      select * from (values ('a', 70000, 9), ('b', 60000, 9), ('c', 80000, 90000))
               one (relname, n_dead_tup, n_live_tup)`);
    const inside = { ...db, drizzle: tx as unknown as Database['drizzle'] };
    const read = await readServerStats(inside);
    t.is(read.find(({ name }) => name === 'npe_database_dead_rows')?.value, 70_000);
    throw undone;
  });
  await t.throwsAsync(work, { is: undone });
});

test.serial('the WAL that a replication slot keeps is measured', async (t) => {
  const slot = `slot_${process.pid}`;
  await sql`select pg_create_physical_replication_slot(${slot}, true)`;
  await sql`create table filler as select repeat('x', 1000) from generate_series(1, 5000)`;
  const now = await stats();
  await sql`select pg_drop_replication_slot(${slot})`;
  const kept = now.npe_database_inactive_slot_bytes ?? 0;
  t.true(kept > 1_000_000, `${kept} bytes`);
  t.is(now.npe_database_active_slot_bytes, 0);
});

test.serial('old backups and imports of CMS files are reported', async (t) => {
  await sql`
    insert into import_runs (id, kind, file, fingerprint, state, finished_at)
    values ('imp_1', 'nppes', 'a.zip', 'a', 'done', now() - interval '90 days'),
           ('imp_2', 'clinicians', 'b.csv', 'b', 'done', now() - interval '46 days'),
           ('imp_3', 'clinicians', 'c.csv', 'c', 'failed', now())`;
  await sql`update routines set ended_at = now() - interval '49 hours'`;
  const old = await stats();
  t.is(Math.floor((old['npe_import_age_seconds nppes'] ?? 0) / 86_400), 90);
  t.is(Math.floor((old['npe_import_age_seconds clinicians'] ?? 0) / 86_400), 46);
  t.is(Math.floor((old.npe_backup_age_seconds ?? 0) / 3600), 49);
  t.deepEqual(await problems(), [
    'npe_backup_age_seconds',
    'npe_doctor_age_seconds',
    'npe_import_age_seconds clinicians',
    'npe_import_age_seconds nppes',
  ]);
  await sql`update import_runs set finished_at = now()`;
  await noteBackup(checker, { actor: 'Ann', reason: 'test' });
  await noteDoctor(checker, 0);
  t.deepEqual(await problems(), []);
});

test.serial('running the doctor or noting a backup sets its age to zero', async (t) => {
  await sql`update routines set ended_at = now() - interval '49 hours'`;
  await noteDoctor(checker, 3);
  const { npe_doctor_findings, npe_doctor_age_seconds, npe_backup_age_seconds } =
    await stats();
  t.is(npe_doctor_findings, 3);
  t.true((npe_doctor_age_seconds ?? 99) < 60);
  t.true((npe_backup_age_seconds ?? 0) > 172_800);
  const { code, stdout } = await operator('backups', 'note');
  t.deepEqual([code, stdout], [0, 'noted that a backup has just ended\n']);
  t.true(((await stats()).npe_backup_age_seconds ?? 99) < 60);
  const [entry] =
    await sql`select action, reason from audit_log order by id desc limit 1`;
  t.deepEqual({ ...entry }, { action: 'backups.note', reason: 'backup' });
});
