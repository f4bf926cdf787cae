import test from 'ava';
import { balanceOf } from '../../db/accounts/credits.ts';
import { listLedger } from '../../db/accounts/ledger.ts';
import { openSession, useSession } from '../../db/accounts/sessions.ts';
import { openDatabase } from '../../db/connection/client.ts';
import { diagnose } from '../../db/doctor/doctor.ts';
import { findEnvelope } from '../../db/requests/envelope.ts';
import { forgetOld } from '../../db/requests/retention.ts';
import { settle, settleOverdue } from '../../db/requests/settle.ts';
import { type SubmitCommand, submit } from '../../db/requests/submit.ts';
import { loadConfig } from '../../deploy/config/config.ts';
import { rulesOf } from '../../deploy/config/worker.ts';
import { asRole, freshDatabase, openTestDatabase } from '../support/database.ts';
import { logAttempt } from '../support/deliveries.ts';
import { auditLedger } from '../support/ledger.ts';
import {
  acceptedIds,
  eventually,
  joinLookups,
  type Organization,
  openOrganization,
  openTestKey,
  RETENTION,
  RULES,
  submitAccepted,
  submitCommand,
} from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';
import { startedUpload } from '../support/uploads.ts';

const { db, sql } = freshDatabase(test);
const DAY = 86_400_000;
const NPI = '2000000010';

/** Makes a paid result with custom_data in a batch of this age. */
async function responded(ageMs: number) {
  await storeEmail(db, {
    ...{ npi: NPI, email: 'a@clinic.example', emailType: 'professional' },
  });
  const organization = await openOrganization(db, 10);
  const { batchId } = await submitAccepted(db, organization, {
    npis: [NPI],
    customData: '{"order":17}',
  });
  await sql.begin(async (tx) => {
    await tx`set local session_replication_role = replica`;
    await tx`update requests set settled_at = now() - make_interval(secs => ${ageMs / 1000}) where batch_id = ${batchId}`;
    await tx`update batches set created_at = now() - make_interval(secs => ${ageMs / 1000}) where id = ${batchId}`;
  });
  const envelope = async () => {
    const found = await findEnvelope(db, {
      organizationId: organization.organizationId,
      batchId,
    });
    return { ...found, request: found?.items[0] };
  };
  return { organization, envelope };
}

test.serial(
  'an old result loses custom_data and its address, but stays completed and paid',
  async (t) => {
    const { organization, envelope } = await responded(91 * DAY);
    const fresh = await envelope();
    await forgetOld(db, RETENTION);
    const older = await envelope();
    t.is(older.customData, null);
    t.true((older.updatedAt?.getTime() ?? 0) > (fresh.updatedAt?.getTime() ?? 0));
    t.is(older.request?.email, 'a@clinic.example');

    await forgetOld(db, { ...RETENTION, resultsMs: 90 * DAY });
    const { request } = await envelope();
    t.like(request, {
      status: 'completed',
      creditsUsed: 1,
      email: null,
      emailType: null,
      validatedAt: null,
    });
    t.deepEqual(
      await auditLedger(sql, [organization.organizationId], RULES.replayMs),
      [],
    );
  },
);

test.serial(
  'a result is kept until its retention ends, and a replay returns it again',
  async (t) => {
    const { organization, envelope } = await responded(29 * DAY);
    await forgetOld(db, { ...RETENTION, resultsMs: 30 * DAY });
    t.like(await envelope(), {
      customData: '{"order":17}',
      request: { email: 'a@clinic.example' },
    });
    const again = await submitAccepted(db, organization, { npis: [NPI] });
    const found = await findEnvelope(db, {
      organizationId: organization.organizationId,
      batchId: again.batchId,
    });
    t.like(found?.items[0], { replayed: true, email: 'a@clinic.example' });
  },
);

test('a session of the console is deleted after its seven days', async (t) => {
  const { keyId } = await openOrganization(db, 0);
  const known = await openSession(db, keyId);
  await forgetOld(db, RETENTION);
  t.like(await useSession(db, known), { keyId });
  await sql`update console_sessions set created_at = now() - interval '7 days' where api_key_id = ${keyId}`;
  await forgetOld(db, RETENTION);
  t.is((await sql`select from console_sessions where api_key_id = ${keyId}`).length, 0);
});

test('results are kept for the whole replay window even if the retention is shorter', (t) => {
  const config = loadConfig({
    ...{
      DATABASE_URL: 'postgres://host/name',
      RESULT_RETENTION: '1d',
      REPLAY_WINDOW: '60d',
    },
  });
  t.is(rulesOf(config).retention.resultsMs, 60 * DAY);
});

test('old evidence except open calls is deleted 1,000 rows at a time, oldest first', async (t) => {
  await using database = await openTestDatabase();
  const { db, sql } = database;
  const organization = await openOrganization(db, 1);
  const { batchId, requestIds } = await submitAccepted(db, organization, { npis: [NPI] });
  t.truthy(batchId);
  await sql`insert into lookups (id, npi, requested_type, opened_at) values ('lkp_1', ${NPI}, 'any', now())`;
  await sql`insert into email_checks (npi, email, lookup_id, kind, source, verdict, at)
    select ${NPI}, 'a' || n || '@clinic.example', 'lkp_1', 'named', 'test', 'valid', now() - (201 - n / 10.0) * interval '1 day'
      from generate_series(1, 1500) n`;
  await sql`insert into vendor_attempts (lookup_id, vendor, n, request_id, state, started_at, ended_at)
    select 'lkp_1', 'test', n, ${requestIds[0] ?? ''}, case when n = 1 then 'submitting' else 'miss' end,
           now() - interval '181 days', case when n > 1 then now() end
      from generate_series(1, 1300) n`;
  await sql`insert into source_spend (source, day)
    select 'test', (now() at time zone 'UTC')::date - n from generate_series(0, 100) n`;
  const left = async () => {
    const [row] = await sql`select (select count(*)::int from email_checks) as checks,
      (select min(substr(email, 2, strpos(email, '@') - 2)::int) from email_checks) as oldest,
      (select count(*)::int from vendor_attempts) as attempts, (select count(*)::int from source_spend) as days`;
    return row;
  };
  await forgetOld(db, { ...RETENTION, evidenceMs: 80 * DAY });
  t.deepEqual(await left(), { checks: 500, oldest: 1001, attempts: 300, days: 81 });
  await forgetOld(db, { ...RETENTION, evidenceMs: 80 * DAY });
  const { checks, attempts } = (await left()) ?? {};
  t.true(checks > 0 && checks < 500, `${checks}`);
  t.is(attempts, 1);
  await forgetOld(db, { ...RETENTION, evidenceMs: DAY });
  t.is((await left())?.days, 2, 'what a day may cost is decided by the day before, too');
});

test('candidates are kept as long as a request of their closed lookup is open', async (t) => {
  await using database = await openTestDatabase();
  const { db, sql } = database;
  const requestOf = async () => {
    const organization = await openOrganization(db, 10);
    const { requestIds } = await submitAccepted(db, organization, { npis: [NPI] });
    return requestIds[0] ?? '';
  };
  const [paused, quick] = [await requestOf(), await requestOf()];
  await joinLookups(db, [paused, quick]);
  const [lookup] = await sql`select id from lookups`;
  await sql`insert into candidates (lookup_id, npi, email, source, claimed_verdict, repeats_input,
      may_store, verdict, email_type, validated_at)
    select ${lookup?.id}, ${NPI}, may || '@clinic.example', 'test', 'valid', false,
           may, 'valid', 'professional', now()
      from (values (true), (false)) kept (may)`;
  t.is((await settle(db, quick, 'finished', null, RULES)).status, 'completed');
  await sql`update lookups set closed_at = closed_at - interval '2 hours'`;
  const afterwards = async () => {
    await forgetOld(db, RETENTION);
    return (await sql`select from candidates`).length;
  };
  t.is(await afterwards(), 2);
  t.is((await settle(db, paused, 'finished', null, RULES)).status, 'completed');
  t.is(await afterwards(), 0);
});

test.serial(
  'retention skips a locked request and deletes its result in the next run',
  async (t) => {
    const { envelope } = await responded(400 * DAY);
    const id = (await envelope()).request?.requestId ?? '';
    await sql.begin(async (tx) => {
      await tx`select from requests where id = ${id} for update`;
      await forgetOld(db, RETENTION);
      t.is((await envelope()).request?.email, 'a@clinic.example');
    });
    await forgetOld(db, RETENTION);
    t.is((await envelope()).request?.email, null);
  },
);

test('a failure to delete one kind of data does not stop the deletion of the others', async (t) => {
  await using database = await openTestDatabase();
  const { db, sql } = database;
  await sql`insert into source_spend (source, day) select 'test', current_date - 100`;
  await sql`alter table vendor_attempts rename to elsewhere`;
  await t.throwsAsync(forgetOld(db, { ...RETENTION, evidenceMs: DAY }), {
    message: /42P01/,
  });
  t.is((await sql`select from source_spend`).length, 0);
});

test('submits of a sandbox are deleted after 30 days, and its balance stays right', async (t) => {
  await using database = await openTestDatabase();
  const { db, sql, url } = database;
  const worker = openDatabase({
    url: asRole(url, 'worker'),
    poolSize: 1,
    applicationName: 'worker',
  });
  t.teardown(() => worker.close());
  const live = await openOrganization(db, 10);
  const sandbox = await openTestKey(db, live);
  const { organizationId } = sandbox;
  const tried = async (
    npi: string,
    outcome: 'stored' | 'not_found',
    webhook: SubmitCommand['webhook'] = null,
  ) => {
    const over = { npis: [npi], outcomes: [outcome], webhook };
    const { batchId } = await submitAccepted(db, sandbox, over);
    return batchId;
  };
  /** Adds an upload that has submitted this batch. */
  const uploaded = async (owner: Organization, batchId: string) => {
    const uploadId = await startedUpload(db, owner, [NPI]);
    await sql`update upload_parts set batch_id = ${batchId} where upload_id = ${uploadId}`;
  };
  const countRows = async ({ organizationId: owner }: Organization) => {
    const [counts] = await sql`
      select (select count(*)::int from requests where organization_id = ${owner}) as requests,
             (select count(*)::int from ledger_entries where organization_id = ${owner}) as entries,
             (select count(*)::int from entitlements where organization_id = ${owner}) as entitlements,
             (select count(*)::int from uploads where organization_id = ${owner}) as uploads`;
    return counts;
  };
  /** Makes all rows of the database older. */
  const age = (days: number) =>
    sql.begin(async (tx) => {
      await tx`set local session_replication_role = replica`;
      const by = tx`make_interval(days => ${days})`;
      await tx`update batches set started_at = now(), created_at = created_at - ${by}, updated_at = updated_at - ${by}, deadline_at = deadline_at - ${by}`;
      await tx`update requests set accepted_at = accepted_at - ${by}, settled_at = settled_at - ${by}, deadline_at = deadline_at - ${by}`;
      await tx`update ledger_entries set created_at = created_at - ${by}`;
      await tx`update entitlements set charged_at = charged_at - ${by}`;
      await tx`update daily_usage set day = day - ${days}::int`;
    });
  await storeEmail(db, {
    ...{ npi: NPI, email: 'a@clinic.example', emailType: 'professional' },
  });
  const paid = submitCommand(live, { npis: [NPI] });
  await uploaded(live, acceptedIds(await submit(db, paid, RULES)).batchId);
  const first = await tried('2000000010', 'stored', {
    url: 'https://hooks.example/',
    mode: 'real-time',
  });
  await logAttempt(db, (await deliveriesOf(first))[0] ?? '', 200, 'delivered');
  await uploaded(sandbox, first);
  await tried('2000000028', 'not_found');
  await age(1);
  t.is((await settleOverdue(db, { organizationId, limit: 10 })).length, 1);
  await tried('2000000036', 'stored');
  const funded = await balanceOf(db, organizationId);
  const ofLive = { requests: 1, entries: 3, entitlements: 1, uploads: 1 };
  t.deepEqual(await countRows(live), ofLive);
  t.like(await countRows(sandbox), { requests: 3, entitlements: 2, uploads: 1 });
  t.like(funded, { used: 2, held: 0 });

  /** Deletes, and returns what is left of the sandbox. */
  const deleteOld = async () => {
    await forgetOld(worker, RETENTION);
    const page = { after: null, limit: 100, since: null, until: null };
    const { entries } = await listLedger(db, organizationId, page);
    const findings = await diagnose(db, { ...RULES, webhookScheduleMs: [0] });
    return {
      entries: entries.map(({ kind, amount }) => [kind, amount]),
      balance: await balanceOf(db, organizationId),
      findings: findings.filter((one) => one.findings > 0).map(({ code }) => code),
    };
  };
  async function deliveriesOf(batchId: string) {
    const rows = await sql`select id from webhook_deliveries where batch_id = ${batchId}`;
    return rows.map(({ id }) => String(id));
  }
  const grant = ['grant', 10_000];
  const lastPair = [
    ['charge', 1],
    ['hold', 1],
  ];
  await age(1);
  // A free replay, which stays for a day after its charge is deleted.
  const replay = await tried('2000000036', 'stored');
  await forgetOld(worker, { ...RETENTION, sandboxMs: 0 });
  await age(28);
  const young = await deleteOld();
  t.is(young.entries.length, 7, 'nothing is deleted');
  t.deepEqual([young.balance, young.findings], [funded, []]);
  await age(1);
  const { available } = funded ?? {};
  t.deepEqual(await deleteOld(), {
    entries: [...lastPair, ['adjustment', -1], grant],
    balance: { available, held: 0, used: 1, total: 9999 },
    findings: [],
  });
  t.is(await findEnvelope(db, { organizationId, batchId: first }), null);
  t.deepEqual(await deliveriesOf(first), []);
  t.like(await countRows(sandbox), { requests: 2, entitlements: 1, uploads: 0 });
  // The charged request is deleted, so the same NPI is paid for again.
  const paidAgain = await tried('2000000010', 'stored');
  const found = await findEnvelope(db, { organizationId, batchId: paidAgain });
  t.like(found?.items[0], { replayed: false, creditsUsed: 1 });
  await age(1);
  t.deepEqual(await deleteOld(), {
    entries: [...lastPair, ['adjustment', -2], grant],
    balance: { available: Number(available) - 1, held: 0, used: 1, total: 9998 },
    findings: [],
  });
  const replayed = await findEnvelope(db, { organizationId, batchId: replay });
  t.like(replayed?.items[0], { replayed: true });
  t.deepEqual(await countRows(live), ofLive, 'old rows of live organizations stay');
});

test('each run deletes at most 500 submits of sandboxes', async (t) => {
  await using database = await openTestDatabase();
  const { db, sql } = database;
  const sandbox = await openTestKey(db, await openOrganization(db, 0));
  await sql.begin(async (tx) => {
    await tx`set local session_replication_role = replica`;
    await tx`insert into batches (id, organization_id, submitted_as, requested_type, total, completed_count, created_at, updated_at, deadline_at)
      select 'bat_' || n, ${sandbox.organizationId}, 'single', 'any', 1, 1, now() - interval '32 days', now(), now() from generate_series(1, 501) n`;
  });
  await forgetOld(db, RETENTION);
  t.is((await sql`select from batches`).length, 1);
  await forgetOld(db, RETENTION);
  t.is((await sql`select from batches`).length, 0);
});

test('retention uses indexes on all large tables', async (t) => {
  await using database = await openTestDatabase();
  const { sql, url } = database;
  const world = openDatabase({ url, poolSize: 1, applicationName: 'world' });
  const organization = await openOrganization(world, 0);
  await world.close();
  await sql.begin(async (tx) => {
    await tx`set local session_replication_role = replica`;
    // Autovacuum would read the tables while the retention is measured.
    await tx`alter table batches set (autovacuum_enabled = false)`;
    await tx`alter table requests set (autovacuum_enabled = false)`;
    await tx`insert into batches (id, organization_id, submitted_as, requested_type, total, completed_count, created_at, updated_at, deadline_at, custom_data)
      select 'bat_' || n, ${organization.organizationId}, 'single', 'any', 1, 1, now(), now(), now(), '{}' from generate_series(1, 20000) n`;
    await tx`insert into requests (id, batch_id, organization_id, position, npi, requested_type, cost, status, email, email_type,
        email_last_validated_at, accepted_at, deadline_at, settled_at)
      select 'req_' || n, 'bat_' || n, ${organization.organizationId}, 0, ${NPI}, 'any', 1, 'completed', 'a@clinic.example',
        'professional', now(), now(), now(), now() from generate_series(1, 20000) n`;
  });
  await sql`analyze requests, batches`;
  const wholeReads = async () => {
    // PostgreSQL counts the scans of a connection when the connection ends.
    await eventually(async () => {
      const open = await sql`
        select from pg_stat_activity
         where application_name in ('world', 'forgetting') and datname = current_database()`;
      return open.length === 0 ? true : null;
    });
    await sql`select pg_stat_clear_snapshot()`;
    return await sql`select relname, seq_scan from pg_stat_user_tables where relname in ('requests', 'batches') order by 1`;
  };
  const before = await wholeReads();
  const forgetting = openDatabase({ url, poolSize: 1, applicationName: 'forgetting' });
  await forgetOld(forgetting, RETENTION);
  await forgetting.close();
  t.deepEqual(await wholeReads(), before);
});
