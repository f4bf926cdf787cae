import { join } from 'node:path';
import test from 'ava';
import postgres from 'postgres';
import { openDatabase } from '../../../db/connection/client.ts';
import { DatabaseError } from '../../../db/connection/errors.ts';
import { migrate, readiness } from '../../../db/operations/migrate.ts';
import { noteBackup, noteDoctor } from '../../../db/operations/routines.ts';
import { submit } from '../../../db/requests/submit.ts';
import { startPostgres } from '../../../deploy/local/postgres.ts';
import { launch } from '../../../deploy/local/processes.ts';
import { freePort, LOOPBACK } from '../../../deploy/ports.ts';
import { explain } from '../../../deploy/problem.ts';
import {
  asRole,
  freshDatabase,
  openTestDatabase,
  temporaryFolder,
  testSetting,
  withSql,
} from '../../support/database.ts';
import { operatorOn, WHY } from '../../support/operator.ts';
import {
  BY,
  createCaller,
  eventually,
  openOrganization,
  RULES,
  submitCommand,
} from '../../support/organization.ts';
import { programCommand } from '../../support/programs.ts';
import { SITE_SETTINGS } from '../../support/site.ts';
import { startApi } from '../../support/stack.ts';

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

test.serial(
  'status names the session that locks a table, and doctor refers to it',
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
    t.regex(
      status.stdout,
      /^a session locks balances, batches, or requests \(pid \d+ postgres\.js\): /m,
    );
    t.regex(
      status.stdout,
      /^these could not be read from PostgreSQL: requests and credits \(57014\), customers \(57014\)$/m,
    );
    t.regex(status.stdout, /^migrations +ready$/m);
    t.deepEqual([doctor.code, doctor.stdout], [1, '']);
    t.regex(doctor.stderr, /^operator: .*"status" names /);
    const [routine] = await sql`
      select ended_at > now() - interval '1 minute' as is_noted
        from routines where kind = 'doctor' and findings > 0`;
    t.is(routine, undefined, 'an incomplete run is not noted');
  },
);

test('status counts the 500s of an API that has lost a right', async (t) => {
  await using database = await openTestDatabase();
  const port = await freePort();
  const env = {
    DATABASE_URL: asRole(database.url, 'api'),
    API_HOST: LOOPBACK,
    API_PORT: String(port),
    ...SITE_SETTINGS,
  };
  const api = launch({ name: 'the API', ...programCommand('api', [], { env }) });
  t.teardown(() => api.stop());
  const baseUrl = `http://${LOOPBACK}:${port}`;
  await eventually(async () => {
    const response = await fetch(`${baseUrl}/readyz`).catch(() => null);
    return response?.ok || null;
  });
  const { apiKey } = await openOrganization(database.db, 10);
  await database.sql`revoke insert on batches from npe_api`;
  const client = createCaller(baseUrl, apiKey);
  t.is((await client.single({ npi: '2000000401' })).status, 500);
  const { operator: own } = operatorOn(database.url);
  await eventually(async () => {
    const { stdout } = await own('status');
    return stdout.match(/^1 response of the last 15 minutes had status 500: /m);
  });
});

test('the error of a command that only reads mentions no change', (t) => {
  const codes = [
    'CONNECTION_CLOSED',
    '55P03',
    '57014',
    '40P01',
    '53100',
    '42501',
    'XX000',
  ];
  for (const code of codes) {
    t.notRegex(explain(new DatabaseError(code)), /this step|the change|audit/, code);
  }
});

test.serial(
  'only a command that changes something refers to the audit log',
  async (t) => {
    const broken = async (...args: string[]) => {
      const holder = postgres(url, { max: 1 });
      t.teardown(() => holder.end());
      await holder`begin`;
      await holder`lock table organizations in access exclusive mode`;
      const running = operator(...args);
      await eventually(async () => {
        const ended = await sql`
        select pg_terminate_backend(pid)
          from pg_stat_activity
         where datname = current_database() and application_name = 'operator'
           and wait_event_type = 'Lock'`;
        return ended.length > 0 || null;
      });
      const { stderr } = await running;
      await holder`rollback`;
      return stderr;
    };
    t.regex(
      await broken('org', 'list'),
      /^operator: lost the connection to PostgreSQL at \S+ \(\w+\); run the same command again\n$/,
    );
    t.regex(await broken('org', 'create', 'x', ...WHY), /"audit list" shows whether/);
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

test.serial(
  '/readyz and status report that a synchronous standby is gone, and doctor still checks',
  async (t) => {
    const server = await startPostgres({
      dataDir: join(temporaryFolder(t.teardown), 'data'),
    });
    t.teardown(() => server.stop());
    await migrate(server.url);
    const api = await startApi({ databaseUrl: server.url });
    t.teardown(api.stop);
    const client = await api.organization(1000);
    const ready = async () => (await fetch(`${api.baseUrl}/readyz`)).text();
    t.is(await ready(), '{"status":"ready"}');

    const nameStandbys = (names: string) =>
      withSql(server.url, async (admin) => {
        await admin.unsafe(`alter system set synchronous_standby_names = '${names}'`);
        await admin`select pg_reload_conf()`;
      });
    await nameStandbys('gone');
    const submits = Array.from({ length: 3 }, () => client.single({ npi: '2000000010' }));
    const hangs = '{"status":"commits_hang"}';
    t.is(await eventually(async () => ((await ready()) === hangs ? hangs : null)), hangs);

    for (const role of ['operator', 'viewer'] as const) {
      const { code, stdout, stderr } = await operatorOn(server.url, role).operator(
        'status',
      );
      t.deepEqual([code, stderr], [3, ''], role);
      t.regex(stdout, /^PostgreSQL commits nothing, .*postgresql-down\.md$/m, role);
    }
    const { operator: onServer } = operatorOn(server.url);
    for (const option of [['--offline'], []]) {
      const { code, stdout, stderr } = await onServer('doctor', ...option);
      t.deepEqual([code, stderr], [0, '']);
      t.is(/takes no writes/.test(stdout), option.length === 0);
    }

    const busy = openDatabase({ url: server.url, poolSize: 2, applicationName: 'busy' });
    t.teardown(() => busy.close());
    const writes = Promise.allSettled([noteDoctor(busy, 0), noteBackup(busy, BY)]);
    await withSql(server.url, (admin) =>
      eventually(async () => {
        const committing = await admin`
          select from pg_stat_activity
           where application_name = 'busy' and wait_event = 'SyncRep'`;
        return committing.length === 2 || null;
      }),
    );
    t.is(await readiness(busy), 'commits_hang');

    await nameStandbys('');
    await writes;
    t.truthy(await eventually(async () => (await ready()).includes('"ready"') || null));
    const replies = await Promise.all(submits);
    t.deepEqual(
      replies
        .map(({ status }) => status)
        .filter((status) => status !== 202 && status !== 503),
      [],
    );
  },
);
