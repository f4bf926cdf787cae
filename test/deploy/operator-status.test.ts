import { readFileSync } from 'node:fs';
import test from 'ava';
import { openDatabase } from '../../db/connection/client.ts';
import { forgetSources } from '../../db/lookups/sources.ts';
import { noteApi, noteStopped, noteWorker } from '../../db/operations/workers.ts';
import { settleOverdue } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { withLimits } from '../../deploy/build/alerts.ts';
import { asRole, freshDatabase } from '../support/database.ts';
import { operatorOn } from '../support/operator.ts';
import {
  openOrganization,
  openTestKey,
  RULES,
  submitAccepted,
  submitCommand,
} from '../support/organization.ts';

// Tests that `status` shows everything that needs attention. Tests in test/system/ cover Temporal.

const { db, sql, url } = freshDatabase(test);
const { operator } = operatorOn(url);
const worker = openDatabase({
  url: asRole(url, 'worker'),
  poolSize: 1,
  applicationName: 'test',
});
test.after.always(() => worker.close());

const WORKER = { id: 'w1', namespace: 'default', taskQueue: 'enrichment', buildId: 'v1' };
const API = { namespace: 'default', taskQueue: 'enrichment' };

interface Status {
  readonly attention: readonly string[];
  readonly temporal: string;
  readonly migrations: string;
  readonly last_quarter_hour: Readonly<Record<string, number>>;
  readonly stats: Readonly<Record<string, number>>;
  readonly workers: readonly object[];
  readonly apis: readonly object[];
  readonly settled_in_the_last_quarter_hour: readonly object[];
  readonly waiting_to_start: readonly object[];
  readonly nearly_out_of_credits: readonly object[];
  readonly webhook_hosts_away: readonly object[];
  readonly switched_off: readonly object[];
}

async function status(): Promise<Status & { readonly code: number | null }> {
  const { code, stdout } = await operator('status', '--json');
  return { ...(JSON.parse(stdout) as Status), code };
}

test.before(async () => {
  process.env.DATABASE_URL = url;
  delete process.env.TEMPORAL_ADDRESS;
  await noteWorker(db, WORKER);
  await noteWorker(db, { ...WORKER, id: 'w2' });
  await noteWorker(db, { ...WORKER, id: 'w3', buildId: 'v2' });
  await noteApi(db, { ...API, id: 'a1' });
  await noteApi(db, { ...API, id: 'a2' });
  await sql`insert into sweeps (due_at, swept_at) values (now(), now())`;
});

test.serial(
  'status fits on one screen and exits with 0 if the service is healthy',
  async (t) => {
    const { code, attention, temporal, migrations, apis, workers } = await status();
    t.deepEqual([code, attention], [0, []]);
    t.is(migrations, 'ready');
    t.regex(temporal, /not checked: TEMPORAL_ADDRESS/);
    t.deepEqual(apis, [
      {
        namespace: 'default',
        queue: 'enrichment',
        apis: 2,
        errors: 0,
        has_worker: true,
      },
    ]);
    t.deepEqual(workers, [
      { namespace: 'default', queue: 'enrichment', version: 'v1', workers: 2 },
      { namespace: 'default', queue: 'enrichment', version: 'v2', workers: 1 },
    ]);
    const { stdout } = await operator('status');
    t.regex(stdout, /^Nothing needs attention\.\n\nNOW\ntemporal +not checked/);
    t.regex(stdout, /^apis alive +2$/m);
    t.regex(stdout, /^workers alive +3$/m);
    t.true(stdout.split('\n').length < 50, stdout);
  },
);

/** Problems that need attention. Each is caused in a healthy service, and then undone. */
const TROUBLES: Readonly<
  Record<string, readonly [what: RegExp, begin: string, end: string]>
> = {
  'the reconciler has not run for three minutes': [
    /no sweep/,
    `update sweeps set swept_at = now() - interval '3 minutes'`,
    'update sweeps set swept_at = now()',
  ],
  'no worker is alive': [
    /no worker/,
    `update workers set seen_at = now() - interval '1 hour' where kind = 'worker'`,
    'update workers set seen_at = now()',
  ],
  'one of several workers hangs': [
    /a worker was killed or hangs \(w2\): /,
    `update workers set seen_at = now() - interval '1 minute' where id = 'w2'`,
    'update workers set seen_at = now()',
  ],
  'no API is alive': [
    /no API is alive/,
    `update workers set seen_at = now() - interval '1 hour' where kind = 'api'`,
    'update workers set seen_at = now()',
  ],
  'an API uses a queue that never had a worker': [
    /in the queue enrichmnt of the namespace default, .* check TEMPORAL_NAMESPACE and TASK_QUEUE/,
    `update workers set task_queue = 'enrichmnt' where kind = 'api'`,
    `update workers set task_queue = 'enrichment' where kind = 'api'`,
  ],
  'APIs sent responses with status 500': [
    /^6 responses of the last 15 minutes had status 500: .*api-errors\.md$/,
    `update workers set errors = 3 where kind = 'api'`,
    'update workers set errors = 0',
  ],
  'all workers wait for Temporal': [
    /^all workers wait for Temporal, and only refund overdue requests: .*temporal-down/,
    `update workers set build_id = 'none' where kind = 'worker'`,
    `update workers set build_id = case id when 'w3' then 'v2' else 'v1' end where kind = 'worker'`,
  ],
  'a breaker is open': [
    /prospeo is not called \(upstream\)/,
    `insert into source_health (source, state, open_until, last_error)
     values ('prospeo', 'open', now() + interval '1 hour', 'upstream')`,
    `update source_health set state = 'closed', open_until = null`,
  ],
  'the last run of the doctor had findings': [
    /"doctor" had findings/,
    `update routines set findings = 2 where kind = 'doctor'`,
    'update routines set findings = 0',
  ],
  'NPPES was imported 46 days ago': [
    /a file of CMS was last imported 45 days ago \(nppes\): .*routines\.md$/,
    `insert into import_runs (id, kind, file, fingerprint, state, finished_at)
     values ('imp_old', 'nppes', 'old.zip', 'old', 'done', now() - interval '46 days')`,
    `delete from import_runs where id = 'imp_old'`,
  ],
  'the disk of PostgreSQL is full': [
    /disk of PostgreSQL is full/,
    `create or replace function write_temporary_file() returns bigint language plpgsql as $$
     begin raise exception using errcode = 'disk_full'; end $$`,
    `create or replace function write_temporary_file() returns bigint language sql
     as 'select 1::bigint'`,
  ],
  'a migration is missing': [
    /npm run migrate/,
    'update drizzle.__drizzle_migrations set created_at = -created_at where id = 2',
    'update drizzle.__drizzle_migrations set created_at = -created_at where id = 2',
  ],
};

for (const [name, [what, begin, end]] of Object.entries(TROUBLES)) {
  test.serial(`status reports a problem and exits with 3 if ${name}`, async (t) => {
    await sql.unsafe(begin);
    const { code, attention } = await status();
    await sql.unsafe(end);
    t.deepEqual([code, attention.length], [3, 1], attention.join());
    t.regex(attention[0] ?? '', what);
    t.is((await status()).code, 0);
  });
}

test.serial(
  'status reports credits that are held although no request is open',
  async (t) => {
    const { organizationId } = await openOrganization(db, 20);
    const hold = (credits: number) => sql`
      update credit_balances set available = available - ${credits}, held = held + ${credits}
       where organization_id = ${organizationId}`;
    await hold(7);
    const { code, attention } = await status();
    t.deepEqual([code, attention.length], [3, 1], attention.join());
    t.regex(attention[0] ?? '', /held although no request is open/);
    await hold(-7);
    t.is((await status()).code, 0);
  },
);

test.serial('status reports a connection to PostgreSQL without TLS', async (t) => {
  process.env.DATABASE_URL = 'postgres://npe_operator_1@db.example.com/enrichment';
  const { code, attention } = await status();
  process.env.DATABASE_URL = url;
  t.deepEqual([code, attention.length], [3, 1], attention.join());
  t.regex(attention[0] ?? '', /sslmode/);
});

test.serial(
  'status reports no source that no request has needed for 15 minutes',
  async (t) => {
    await sql`
      insert into source_health (source, state, open_until, last_error)
      values ('hunter', 'open', now() - interval '16 minutes', 'upstream')`;
    t.deepEqual((await status()).attention, []);
    await sql`update source_health set open_until = now() where source = 'hunter'`;
    t.is((await status()).attention.length, 1);
    await forgetSources(worker, ['prospeo', 'dns']);
    t.deepEqual((await status()).attention, []);
  },
);

test.serial(
  'status lists queues, waiting organizations, low credits, and failing hosts',
  async (t) => {
    const organization = await openOrganization(db, 20);
    const { organizationId } = organization;
    await sql`update organizations set name = 'Busy Clinics' where id = ${organizationId}`;
    const { requestIds } = await submitAccepted(db, organization, {
      npis: ['2000000401', '2000000419', '2000000427'],
    });
    const other = await openOrganization(db, 20);
    await submit(db, submitCommand(other, { npis: ['2000000435'] }), RULES);
    await sql`update requests set accepted_at = now() - interval '90 s' where status = 'accepted'`;
    await sql`update requests set accepted_at = now() - interval '2 minutes' where organization_id = ${organizationId}`;
    await sql`update credit_balances set available = 1, used = 16 where organization_id = ${organizationId}`;
    await sql`insert into webhook_hosts (organization_id, host, failures, failing_since, last_reason, open_until)
            values (${organizationId}, 'hooks.example', 9, now() - interval '5 minutes', 'timeout_connect', now())`;
    const named = { organization: organizationId, name: 'Busy Clinics' };
    const { code, stats, ...lists } = await status();
    t.is(code, 0, 'what customers have to see to is shown, and is no alarm');
    t.like(stats, {
      requests_open_accepted: 4,
      lookups_open: 0,
      lookups_waiting: 4,
      outbox_batches: 2,
    });
    t.true((stats.lookup_oldest_wait_seconds ?? 999) < 200, 'the longest wait of one');
    t.like(lists.waiting_to_start[0], { ...named, requests: 3 });
    t.like(lists.nearly_out_of_credits[0], { ...named, available: 1, used_today: 16 });
    t.like(lists.webhook_hosts_away[0], {
      ...named,
      host: 'hooks.example',
      reason: 'timeout_connect',
    });

    // The sandbox of an organization is not listed next to it.
    await openTestKey(db, organization);
    await sql`update organizations set requests_per_minute = 5, webhooks_suspended = true
               where ${organizationId} in (id, sandbox_of)`;
    const { organizationId: closed } = await openOrganization(db, 10);
    await sql`update organizations set suspended = true, webhooks_suspended = true, closed_at = now()
               where id = ${closed}`;
    t.deepEqual((await status()).switched_off, [
      { ...named, suspended: false, webhooks_suspended: true, requests_per_minute: 5 },
    ]);

    await sql`update requests set deadline_at = now() - interval '2 minutes' where id = ${requestIds[0] ?? ''}`;
    const late = await status();
    t.deepEqual([late.code, (late.stats.request_overdue_seconds ?? 0) >= 120], [3, true]);
    t.regex(late.attention[0] ?? '', /request is overdue/);
  },
);

test.serial('status does not count workers that have shut down normally', async (t) => {
  await noteStopped(db, 'w1');
  await noteStopped(db, 'w3');
  t.like((await status()).workers, [{ version: 'v1', workers: 1 }]);
});

test('each limit of status has its alert in alerts.yaml', (t) => {
  const file = new URL('../../deploy/prometheus/alerts.yaml', import.meta.url);
  const alerts = readFileSync(file, 'utf8');
  t.is(withLimits(alerts), alerts, 'run "node deploy/build/alerts.ts"');
});

// This test is the last one, because a settled request cannot be changed.
test.serial('status reports that many recent requests failed', async (t) => {
  const organization = await openOrganization(db, 20);
  const { organizationId } = organization;
  const fail = async (npis: readonly string[]) => {
    await submit(db, submitCommand(organization, { npis }), RULES);
    await sql`
      update requests set deadline_at = now() - interval '1 second'
       where organization_id = ${organizationId} and settled_at is null`;
    await settleOverdue(worker, { organizationId, limit: 10 });
  };
  await fail(['2000000302', '2000000310', '2000000328', '2000000336', '2000000344']);
  const failing =
    /^6 of the 6 requests of the last 15 minutes failed: .*requests-failing/;
  t.notRegex((await status()).attention.join('\n'), /failed/);
  await fail(['2000000351']);
  const { code, attention, last_quarter_hour: counts, ...lists } = await status();
  t.is(code, 3);
  t.true(
    attention.some((one) => failing.test(one)),
    attention.join(),
  );
  t.deepEqual(counts, { final: 6, failed: 6, errors: 0 });
  t.deepEqual(lists.settled_in_the_last_quarter_hour, [
    { status: 'failed', reason: 'deadline', requests: 6 },
  ]);
});
