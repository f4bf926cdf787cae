import test from 'ava';
import {
  type Database,
  openDatabase,
  type Transaction,
} from '../../db/connection/client.ts';
import type { StatsRules } from '../../db/operations/stats.ts';
import { noteUsedCredits, readConcerns, readStats } from '../../db/operations/stats.ts';
import { claimTurn, noteSweep } from '../../db/requests/outbox.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { asRole, freshDatabase, openTestDatabase } from '../support/database.ts';
import {
  acceptedIds,
  openOrganization,
  openTestKey,
  RULES,
  submitCommand,
} from '../support/organization.ts';

// Tests the statistics of the service, which are read with the rights of a worker.

const { db, sql, url } = freshDatabase(test);
const worker = openDatabase({
  url: asRole(url, 'worker'),
  poolSize: 1,
  applicationName: 'stats',
});
test.after.always(() => worker.close());

const HOUR_MS = 3_600_000;
const STATS_RULES: StatsRules = {
  sources: [['registry', 'registry', null]],
  webhookScheduleMs: [0, HOUR_MS, 2 * HOUR_MS],
};

/** Returns the value of each metric, by its name and the values of its labels. */
async function stats(): Promise<Readonly<Record<string, number>>> {
  const read = await readStats(worker, STATS_RULES);
  return Object.fromEntries(
    read.map(({ name, labels, value }) => [
      [name, ...Object.values(labels)].join(' '),
      value,
    ]),
  );
}

let stem = 0;
const npis = (count: number) =>
  Array.from({ length: count }, () => String(2_100_000_000 + stem++));

async function submitFor(credits: number, count: number, over = {}) {
  const organization = await openOrganization(db, credits);
  const command = submitCommand(organization, { npis: npis(count), ...over });
  const outcome = await submit(db, command, RULES);
  return { ...organization, ...acceptedIds(outcome) };
}

test.serial(
  'a new service without any requests already reports all metrics',
  async (t) => {
    t.deepEqual(await stats(), {
      'npe_requests_open accepted': 0,
      'npe_requests_open in_progress': 0,
      'npe_lookups_open other': 0,
      'npe_lookups_waiting other': 0,
      'npe_lookup_oldest_wait_seconds other': 0,
      npe_request_overdue_seconds: 0,
      npe_sweep_age_seconds: Number.POSITIVE_INFINITY,
      npe_outbox_batches: 0,
      npe_outbox_overdue_seconds: 0,
      'npe_source_breaker registry closed registry': 1,
      'npe_source_breaker registry half_open registry': 0,
      'npe_source_breaker registry idle registry': 0,
      'npe_source_breaker registry open registry': 0,
      'npe_source_waiting registry': 0,
      'npe_source_budget_credits used registry': 0,
      'npe_credits_balance available': 0,
      'npe_credits_balance held': 0,
      'npe_credits_balance used': 0,
      npe_organizations_low: 0,
      npe_deliveries_pending: 0,
      npe_delivery_overdue_seconds: 0,
      'npe_hosts_failing other': 0,
    });
  },
);

test.serial(
  'metrics count lookups for each of the ten busiest organizations, and for the rest',
  async (t) => {
    const large = [];
    for (let count = 12; count > 0; count -= 1) large.push(await submitFor(20, count));
    const now = await stats();
    const named = Object.keys(now).filter((name) => name.startsWith('npe_lookups_open '));
    t.deepEqual(
      new Set(named.map((name) => name.split(' ')[1])),
      new Set([
        ...large.slice(0, 10).map(({ organizationId }) => organizationId),
        'other',
      ]),
    );
    t.is(now[`npe_lookups_open ${large[0]?.organizationId}`], 0);
    t.is(now[`npe_lookups_waiting ${large[0]?.organizationId}`], 12);
    t.deepEqual(
      [now['npe_lookups_open other'], now['npe_lookups_waiting other']],
      [0, 3],
    );
    t.is(now['npe_requests_open accepted'], 78);
    t.is(now.npe_outbox_batches, 12);
    t.true((now[`npe_lookup_oldest_wait_seconds ${large[0]?.organizationId}`] ?? 0) > 0);
    t.deepEqual(
      [now['npe_credits_balance available'], now['npe_credits_balance held']],
      [162, 78],
    );
    await sql`update requests set deadline_at = now() - interval '90 s' where id = ${large[0]?.requestIds[0] ?? ''}`;
    t.is(Math.floor((await stats()).npe_request_overdue_seconds ?? 0), 90);
  },
);

test.serial(
  'the metrics of credits leave out the test credits of sandboxes',
  async (t) => {
    const before = await stats();
    const { organizationId } = await openOrganization(db, 0);
    await sql`insert into organizations (id, name, webhook_secret, sandbox_of)
            values ('sbx_1', 'test', 'none', ${organizationId})`;
    await sql`insert into ledger_entries (organization_id, kind, amount) values ('sbx_1', 'grant', 1000)`;
    const after = await stats();
    t.is(after['npe_credits_balance available'], before['npe_credits_balance available']);
  },
);

test.serial(
  'an organization is low on credits if it has fewer than it used in the last day',
  async (t) => {
    const spend = async (credits: number, count: number) => {
      const { requestIds } = await submitFor(credits, count, {
        requestedType: 'professional',
      });
      for (const id of requestIds) {
        await sql`insert into stored_emails (npi, email, email_type, verdict, last_validated_at, source)
                select npi, npi || '@clinic.test', 'professional', 'valid', now(), 'test' from requests where id = ${id}`;
        t.is((await settle(db, id, 'finished', 'test', RULES)).status, 'completed');
      }
    };
    const before = (await stats()).npe_organizations_low;
    await spend(5, 2);
    t.is((await stats()).npe_organizations_low, before, 'three are left, two were used');
    await spend(5, 3);
    t.is(
      (await stats()).npe_organizations_low,
      (before ?? 0) + 1,
      'two are left, three were used',
    );
    await sql`
      update organizations
         set closed_at = now(), suspended = true, webhooks_suspended = true
       where id in (select organization_id from credit_balances where available < used)`;
    t.is((await stats()).npe_organizations_low, 0, 'closed ones need no credits');
    await sql`update organizations set closed_at = null`;
    // Only the first of the two calls writes, because used credits are noted once an hour.
    await noteUsedCredits(worker);
    await noteUsedCredits(worker);
    t.is((await stats()).npe_organizations_low, before, 'used before the day began');
    const [{ hours } = { hours: 0 }] =
      await sql`select count(distinct hour)::int as hours from used_credits`;
    t.is(hours, 1);
    await sql`update used_credits set hour = hour - interval '25 h'`;
    await noteUsedCredits(worker);
    const [{ old } = { old: 0 }] = await sql`
    select count(*)::int as old from used_credits where hour < now() - interval '1 day'`;
    t.is(old, 0);
  },
);

test.serial(
  'metrics report the last run of the reconciler and the state of each breaker',
  async (t) => {
    await claimTurn(worker, 60_000, 'default');
    await noteSweep(worker);
    await sql`update sweeps set swept_at = now() - interval '40 s'`;
    await sql`insert into source_health (source, state, open_until) values ('registry', 'open', now() + interval '1 h')`;
    const open = await stats();
    t.is(Math.floor(open.npe_sweep_age_seconds ?? 0), 40);
    t.is(open['npe_source_breaker registry open registry'], 1);
    await sql`update source_health set open_until = now() - interval '1 s'`;
    const trial = await stats();
    t.is(trial['npe_source_breaker registry half_open registry'], 1);
    t.is(trial['npe_source_breaker registry open registry'], 0);
    await sql`update source_health set open_until = now() - interval '16 minutes'`;
    const idle = await stats();
    t.is(idle['npe_source_breaker registry idle registry'], 1);
    t.is(idle['npe_source_breaker registry half_open registry'], 0);
  },
);

test.serial(
  'a webhook is overdue from when its request is final or its next attempt is due',
  async (t) => {
    const webhook = { url: 'https://hooks.test/', mode: 'real-time' };
    const { requestIds } = await submitFor(5, 2, { webhook });
    t.deepEqual(
      await stats().then((now) => [
        now.npe_deliveries_pending,
        now.npe_delivery_overdue_seconds,
      ]),
      [2, 0],
    );
    const [first = '', second = ''] = requestIds;
    await settle(db, first, 'finished', 'test', RULES);
    await sql`update webhook_deliveries set due_at = now() - interval '70 s' where request_id = ${second}`;
    t.is(Math.floor((await stats()).npe_delivery_overdue_seconds ?? 0), 70);
    await sql`update webhook_deliveries set state = 'failed', due_at = null, decided_at = now() where request_id = ${second}`;
    const now = await stats();
    t.is(now.npe_deliveries_pending, 1);
    t.true(
      (now.npe_delivery_overdue_seconds ?? 0) > 0 &&
        (now.npe_delivery_overdue_seconds ?? 0) < 70,
    );
    const lease = (until: string) => sql`
      update webhook_deliveries set leased_until = now() + ${until}::interval where request_id = ${first}`;
    await lease('1 minute');
    t.is((await stats()).npe_delivery_overdue_seconds, 0, 'it is being sent');
    await lease('-1 second');
    t.true(((await stats()).npe_delivery_overdue_seconds ?? 0) > 0, 'its sender died');
    const { organizationId } = await openOrganization(db, 0);
    await sql`insert into webhook_hosts (organization_id, host, failures, open_until)
            values (${organizationId}, 'a.test', 5, now()), (${organizationId}, 'b.test', 1, null)`;
    const failing = await stats();
    t.is(failing[`npe_hosts_failing ${organizationId}`], 1);
    t.is(failing['npe_hosts_failing other'], 0);
    await sql`
      update organizations set webhooks_suspended = true where id = ${organizationId}`;
    t.is((await stats())[`npe_hosts_failing ${organizationId}`], undefined, 'suspended');
  },
);

test.serial(
  'a host is away until its trial is overdue by twice the longest wait of the schedule',
  async (t) => {
    const { organizationId } = await openOrganization(db, 0);
    await sql`
      insert into webhook_hosts (organization_id, host, failures, open_until)
      values (${organizationId}, 'a.test', 5, now() - interval '239 minutes'),
             (${organizationId}, 'b.test', 5, now() - interval '241 minutes')`;
    t.is((await stats())[`npe_hosts_failing ${organizationId}`], 1);
    const { webhookHostsAway } = await readConcerns(db, STATS_RULES.webhookScheduleMs);
    const away = webhookHostsAway.filter((one) => one.organization === organizationId);
    t.deepEqual(
      away.map(({ host }) => host),
      ['a.test'],
    );
  },
);

test.serial(
  'sandboxes are neither low on credits nor among recent outcomes',
  async (t) => {
    const live = await openOrganization(db, 5);
    const sandbox = await openTestKey(db, live);
    const { organizationId } = sandbox;
    const command = submitCommand(sandbox, { npis: npis(1), outcomes: ['stored'] });
    const before = await readConcerns(db, [0]);
    const outcome = await submit(db, command, RULES);
    await sql`
      update credit_balances
         set available = 1, used = 1000, total = 1001
       where organization_id = ${organizationId}`;
    const low = (await stats()).npe_organizations_low;
    t.is(outcome.kind, 'accepted');
    const after = await readConcerns(db, [0]);
    t.deepEqual(after.settledInTheLastQuarterHour, before.settledInTheLastQuarterHour);
    t.is(low, before.nearlyOutOfCredits.length);
    t.deepEqual(after.nearlyOutOfCredits, before.nearlyOutOfCredits);
    await sql`delete from used_credits`;
    await noteUsedCredits(worker);
    const noted = await sql`select organization_id from used_credits`;
    t.true(noted.some((one) => one.organization_id === live.organizationId));
    t.false(noted.some((one) => one.organization_id === organizationId));
  },
);

/** Tables that the metrics and `status` read only with an index, because they grow forever. */
const LARGE = "'requests', 'batches', 'ledger_entries', 'webhook_deliveries'";
/** Adds 20,000 rows that are not open to the large tables. */
const FINAL_ROWS = [
  `batches (id, organization_id, submitted_as, requested_type, total, completed_count,
            created_at, updated_at, deadline_at, started_at)
   select 'bat_' || n, 'org_1', 'single', 'any', 1, 1, now(), now(), now(), now()`,
  `requests (id, batch_id, organization_id, position, npi, requested_type, cost, status, accepted_at,
             deadline_at, settled_at)
   select 'req_' || n, 'bat_' || n, 'org_1', 0, (2000000000 + n)::text, 'any', 1, 'not_found',
          now() - interval '1 day', now(), now() - interval '1 day'`,
  `webhook_deliveries (id, batch_id, organization_id, state, created_at, decided_at)
   select 'msg_' || n, 'bat_' || n, 'org_1', 'delivered', now(), now()`,
].map((rows) => `insert into ${rows} from generate_series(1, 20000) n`);

test('the metrics and status scan no large table, even if it was small before', async (t) => {
  await using fresh = await openTestDatabase();
  const one = openDatabase({ url: fresh.url, poolSize: 1, applicationName: 'stats' });
  t.teardown(() => one.close());
  const organization = await openOrganization(fresh.db, 10);
  const webhook = { url: 'https://example.com/', mode: 'real-time' } as const;
  await submit(fresh.db, submitCommand(organization, { npis: npis(2), webhook }), RULES);
  await fresh.sql`vacuum analyze`;
  const reads = [
    (from: Database) => readStats(from, STATS_RULES),
    (from: Database) => readConcerns(from, STATS_RULES.webhookScheduleMs),
  ];
  // From the sixth execution on, PostgreSQL may keep a plan.
  for (let round = 0; round < 10; round += 1) {
    for (const read of reads) await read(one);
  }
  await fresh.sql.begin(async (tx) => {
    await tx`set local session_replication_role = replica`;
    for (const rows of FINAL_ROWS) await tx.unsafe(rows);
  });
  await fresh.sql`vacuum analyze`;
  for (const read of reads) t.is(await largeScans(one, read), 0);
});

/** Counts the scans of whole large tables during `read`. */
async function largeScans(
  db: Database,
  read: (db: Database) => Promise<unknown>,
): Promise<number> {
  const count = async (tx: Transaction) => {
    const scans = async () => {
      const [row] = await tx.execute<{ tables: number; scans: number }>(`
        select count(*)::int as tables, sum(seq_scan)::int as scans
          from pg_stat_xact_user_tables where relname in (${LARGE})`);
      if (row?.tables !== 4) throw new Error('a table is missing');
      return row.scans;
    };
    const before = await scans();
    await read({ ...db, drizzle: tx as unknown as Database['drizzle'] });
    return (await scans()) - before;
  };
  // `readStats` cannot change the isolation level of a transaction that has begun.
  return await db.drizzle.transaction(count, { isolationLevel: 'repeatable read' });
}
