import { readFileSync } from 'node:fs';
import test from 'ava';
import postgres from 'postgres';
import { submit } from '../../db/requests/submit.ts';
import { LIMITS } from '../../deploy/operator/status.ts';
import { freshDatabase, testSetting } from '../support/database.ts';
import { operatorOn } from '../support/operator.ts';
import { openOrganization, RULES, submitCommand } from '../support/organization.ts';

// Tests what `status` and `doctor` report while PostgreSQL has trouble. Views in the schema `faked`
// replace tables and views of PostgreSQL.

const { db, sql, url } = freshDatabase(test);
const faked = new URL(url);
faked.searchParams.set('search_path', 'faked, public, pg_catalog');
const { operator } = operatorOn(faked.href);

/** Creates a view that the commands read in place of the table or view with the same name. */
async function fake(name: string, query: string): Promise<() => Promise<unknown>> {
  await sql.unsafe(`create view faked.${name} as ${query}`);
  return () => sql.unsafe(`drop view faked.${name}`);
}

test.before(async () => {
  process.env.DATABASE_URL = url;
  delete process.env.TEMPORAL_ADDRESS;
  await sql.unsafe(`
    create schema faked;
    grant usage on schema faked to npe_operator;
    alter default privileges in schema faked grant select on tables to npe_operator`);
});

test.serial('status reports that nearly all connections are in use', async (t) => {
  const warning = /^PostgreSQL has few connections left: /m;
  t.notRegex((await operator('status')).stdout, warning);
  const undo = await fake(
    'pg_stat_database',
    `select current_setting('max_connections')::int - 4 as numbackends`,
  );
  const { code, stdout } = await operator('status');
  await undo();
  t.is(code, 3);
  t.regex(stdout, warning);
});

test.serial(
  'status and doctor report a locked table, although they cannot read it',
  async (t) => {
    const undo = await fake(
      'pg_stat_activity',
      `select pid, usesysid, application_name, datname, backend_type,
              xact_start - interval '31 s' as xact_start
         from pg_catalog.pg_stat_activity`,
    );
    const holder = postgres(url, { max: 1 });
    t.teardown(() => holder.end());
    await holder`begin`;
    await holder`lock table requests in access exclusive mode`;
    const status = await operator('status');
    const doctor = await operator('doctor');
    await holder`rollback`;
    await undo();
    t.deepEqual([status.code, status.stderr], [3, '']);
    t.regex(status.stdout, /^a session locks balances, batches, or requests: /m);
    t.regex(status.stdout, /^nothing else could be read from PostgreSQL \(57014\)$/m);
    t.deepEqual([doctor.code, doctor.stderr], [3, '']);
    t.regex(doctor.stdout, /^lock_held: .*\n.*\n {2}1 found {2}pid \d+ postgres\.js$/m);
    t.regex(doctor.stdout, /^Nothing else was checked: other processes held a lock /m);
    const [routine] = await sql`
      select ended_at > now() - interval '1 minute' as is_noted
        from routines where kind = 'doctor' and findings > 0`;
    t.is(routine, undefined, 'an incomplete run is not noted');
  },
);

test.serial('doctor does not blame Temporal for an error of PostgreSQL', async (t) => {
  const organization = await openOrganization(db, 10);
  await submit(db, submitCommand(organization, { npis: ['2000000401'] }), RULES);
  // Only the checks of PostgreSQL run in a transaction that is read-only.
  const undo = await fake(
    'batches',
    `select * from public.batches
      where 1 / (current_setting('transaction_read_only') = 'on')::int = 1`,
  );
  process.env.TEMPORAL_ADDRESS = testSetting('TEST_TEMPORAL_ADDRESS');
  const { code, stdout, stderr } = await operator('doctor');
  delete process.env.TEMPORAL_ADDRESS;
  await undo();
  t.deepEqual([code, stdout], [1, '']);
  t.regex(stderr, /reported an error \(code 22012\)/);
});

test('status has the limits of the alerts', (t) => {
  const file = new URL('../../deploy/prometheus/alerts.yaml', import.meta.url);
  const alerts = new Map<string, number>();
  const rules = /npe_(\w+)(?:\{state="(\w+)"\})?\) > ([\de* ]*\d)/g;
  for (const [, name, state, limit = ''] of readFileSync(file, 'utf8').matchAll(rules)) {
    const stat = state === undefined ? name : `${name}_${state}`;
    const factors = limit.split(' * ').map(Number);
    alerts.set(
      String(stat),
      factors.reduce((product, factor) => product * factor, 1),
    );
  }
  for (const { stat, max } of LIMITS) {
    // The alert on a full disk has no limit. The data sets of CMS have the same one.
    if (stat === 'database_disk_full') continue;
    t.is(alerts.get(stat.replace(/_(nppes|clinicians)$/, '')), max, stat);
  }
});
