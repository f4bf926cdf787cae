import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  Client,
  Connection,
  WorkflowExecutionAlreadyStartedError,
} from '@temporalio/client';
import test, { type ExecutionContext } from 'ava';
import { sql } from 'drizzle-orm';
import { pino } from 'pino';
import postgres from 'postgres';
import type { WorkflowControl } from '../../activities/deps.ts';
import { balanceOf } from '../../db/accounts/credits.ts';
import { type Database, openDatabase, transaction } from '../../db/connection/client.ts';
import { newId } from '../../db/connection/ids.ts';
import { migrate } from '../../db/operations/migrate.ts';
import {
  admitWaiting,
  claimTurn,
  claimWorkflowTurn,
  noteHome,
} from '../../db/requests/outbox.ts';
import { settle, settleOverdue } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { createLog } from '../../deploy/log.ts';
import {
  keepBooks,
  runReconciler,
  startAdmitted,
  tendWorkflows,
} from '../../deploy/reconciler/reconciler.ts';
import { createControl } from '../../deploy/temporal/client.ts';
import { openTestDatabase, testSetting } from '../support/database.ts';
import { responded, startDelivering } from '../support/deliveries.ts';
import { auditLedger } from '../support/ledger.ts';
import {
  acceptedIds,
  eventually,
  joinLookups,
  type Organization,
  openOrganization,
  openTestKey,
  RULES,
  submitAccepted,
  submitCommand,
  WORKER_RULES,
} from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';

// Tests the reconciler without a worker around it: the turns of several processes, its work while
// PostgreSQL or Temporal is down, and that it settles nothing twice.

const MINUTE = 60_000;
const log = pino({ level: 'silent' });
const npiOf = (index: number) => `1${String(index).padStart(9, '0')}`;
const times = <T>(count: number, make: (index: number) => T) =>
  Array.from({ length: count }, (_, i) => make(i));

async function open(t: ExecutionContext): Promise<{ db: Database; url: string }> {
  const database = await openTestDatabase();
  t.teardown(() => database.stop());
  return database;
}

/** Returns a control for a Temporal that does not exist. */
function temporalAway(t: ExecutionContext): WorkflowControl {
  const connection = Connection.lazy({ address: '127.0.0.1:1' });
  t.teardown(() => connection.close());
  return createControl(new Client({ connection }), 'enrichment');
}

/** Sweeps in the background until the test ends. */
function sweeping(
  t: ExecutionContext,
  db: Database,
  control: WorkflowControl,
  to = log,
): void {
  const stopping = new AbortController();
  const sweeps = runReconciler(
    { db, log: to, control, rules: WORKER_RULES },
    200,
    stopping.signal,
  );
  t.teardown(async () => {
    stopping.abort();
    await sweeps;
  });
}

/** Submits a batch and moves its deadline into the past. */
async function overdue(
  db: Database,
  organization: Organization,
  npis: readonly string[],
) {
  const ids = await submitAccepted(db, organization, { npis });
  await query(
    db,
    sql`
    update requests set accepted_at = accepted_at - interval '16 minutes', deadline_at = now() - interval '1 second'
     where batch_id = ${ids.batchId}`,
  );
  return ids;
}

async function query(db: Database, statement: ReturnType<typeof sql>) {
  return await transaction(db, (tx) => tx.execute<Record<string, unknown>>(statement));
}

async function refunded(
  db: Database,
  { organizationId }: Organization,
  credits: number,
): Promise<void> {
  await eventually(async () =>
    (await balanceOf(db, organizationId)).available === credits ? true : null,
  );
}

test('only one process per interval runs the reconciler, even if its due time was wrong', async (t) => {
  const { db, url } = await open(t);
  const other = openDatabase({ url, poolSize: 10, applicationName: 'test' });
  t.teardown(() => other.close());
  const turns = async () => {
    const taken = await Promise.all(
      times(20, (index) => claimTurn(index % 2 === 0 ? db : other, MINUTE, 'default')),
    );
    return taken.filter(Boolean).length;
  };
  const workflowTurns = async () => {
    const taken = await Promise.all(
      times(20, (index) =>
        claimWorkflowTurn(index % 2 === 0 ? db : other, MINUTE, 'default'),
      ),
    );
    return taken.filter(Boolean).length;
  };
  t.deepEqual([await turns(), await turns()], [1, 0]);
  t.deepEqual([await workflowTurns(), await workflowTurns()], [1, 0]);
  for (const at of [sql`clock_timestamp()`, sql`clock_timestamp() + interval '1 day'`]) {
    await query(db, sql`update sweeps set due_at = ${at}`);
    t.deepEqual([await turns(), await turns()], [1, 0]);
    t.is(await workflowTurns(), 0, 'each kind has its own turn');
    await query(db, sql`update sweeps set workflows_due_at = ${at}`);
    t.deepEqual([await workflowTurns(), await workflowTurns()], [1, 0]);
  }
});

test('the reconciler refunds 2,000 overdue requests while Temporal is down', async (t) => {
  const { db, url } = await open(t);
  const organizations = await Promise.all(times(4, () => openOrganization(db, 500)));
  for (const organization of organizations) {
    for (const batch of times(10, (index) => index)) {
      const npis = times(50, (index) => npiOf(batch * 50 + index));
      const { requestIds } = await overdue(db, organization, npis);
      // All four organizations share these lookups.
      if (batch === 0) await joinLookups(db, requestIds);
    }
  }
  const waiting = await openOrganization(db, 1);
  const { requestIds } = await submitAccepted(db, waiting, { npis: [npiOf(0)] });
  await joinLookups(db, requestIds.slice(0, 1));

  const deps = { db, log, control: temporalAway(t), rules: WORKER_RULES };
  t.is(await keepBooks(deps, new AbortController().signal), 2000);
  for (const organization of organizations) await refunded(db, organization, 500);

  const [counts] = await query(
    db,
    sql`select count(*) filter (where status = 'failed' and reason = 'deadline')::int as failed,
               count(*) filter (where settled_at is null)::int as open from requests`,
  );
  t.deepEqual({ ...counts }, { failed: 2000, open: 1 });
  const [batches] = await query(
    db,
    sql`select count(*)::int as n from batches where status = 'in-progress'`,
  );
  t.is(batches?.n, 1);
  // One organization still waits for this lookup.
  const lookups = await query(db, sql`select npi from lookups where closed_at is null`);
  t.deepEqual([...lookups], [{ npi: npiOf(0) }]);
  const reader = postgres(url, { max: 1 });
  t.teardown(() => reader.end());
  const ids = [...organizations, waiting].map(({ organizationId }) => organizationId);
  t.deepEqual(await auditLedger(reader, ids, RULES.replayMs), []);
});

test('a worker in another Temporal namespace than the API starts no workflows', async (t) => {
  const { db } = await open(t);
  await noteHome(db, 'home');
  await noteHome(db, 'home');
  t.deepEqual(await claimTurn(db, MINUTE, 'home'), { isHome: true });
  const dueAgo = (ms: number) =>
    query(
      db,
      sql`update sweeps set due_at = clock_timestamp() - ${ms} * interval '1 millisecond'`,
    );
  await dueAgo(MINUTE / 2);
  t.is(await claimTurn(db, MINUTE, 'elsewhere'), null);
  t.deepEqual(await claimTurn(db, MINUTE, 'home'), { isHome: true });
  await dueAgo(MINUTE);

  const organization = await openOrganization(db, 3);
  const running = await submitAccepted(db, organization, { npis: [npiOf(0)] });
  await submit(db, submitCommand(organization, { npis: [npiOf(1)] }), RULES);
  await query(
    db,
    sql`update batches set started_at = now() - interval '1 minute' where id = ${running.batchId}`,
  );
  await overdue(db, organization, [npiOf(2)]);
  const asked: string[] = [];
  const control: WorkflowControl = {
    namespace: 'elsewhere',
    startBatch: async () => void asked.push('start'),
    signalBatch: async () => void asked.push('signal'),
    stateOf: async () => {
      asked.push('state');
      return 'unknown';
    },
    startDelivery: async () => void asked.push('deliver'),
    startUpload: async () => void asked.push('upload'),
  };
  sweeping(t, db, control);
  await refunded(db, organization, 1);
  await eventually(async () => {
    const [row] = await query(db, sql`select swept_at from sweeps`);
    return row?.swept_at ?? null;
  });
  t.deepEqual(asked, []);
  t.like(await balanceOf(db, organization.organizationId), { available: 1, held: 2 });
});

test('a reconciler that is stopping starts no more batches', async (t) => {
  const { db } = await open(t);
  const organization = await openOrganization(db, 5);
  for (const index of times(5, (i) => i)) {
    await submit(db, submitCommand(organization, { npis: [npiOf(index)] }), RULES);
  }
  const stopping = new AbortController();
  const startBatch = async () => stopping.abort();
  const control = { ...temporalAway(t), startBatch };
  t.like(
    await tendWorkflows({ db, log, control, rules: WORKER_RULES }, stopping.signal),
    {
      started: 1,
    },
  );
});

// Fails without `more` in `forEachPage`, and without `place` in `listToStart`.
test('the reconciler starts all waiting batches, or stops early if Temporal fails', async (t) => {
  const { db } = await open(t);
  const [many, one] = [await openOrganization(db, 210), await openOrganization(db, 1)];
  for (const npi of times(210, npiOf))
    await submit(db, submitCommand(many, { npis: [npi] }), RULES);
  const { batchId } = await submitAccepted(db, one, { npis: [npiOf(0)] });
  const sweepWith = async (takes: boolean) => {
    const asked: string[] = [];
    const startBatch = async (batch: { readonly batchId: string }) => {
      asked.push(batch.batchId);
      if (!takes) throw new Error('no response');
    };
    const deps = {
      db,
      log,
      control: { ...temporalAway(t), startBatch },
      rules: WORKER_RULES,
    };
    const { started } = await tendWorkflows(deps, new AbortController().signal);
    return { started, asked };
  };
  t.is((await sweepWith(false)).asked.length, 200);
  const { started, asked } = await sweepWith(true);
  t.is(started, 211);
  t.is(asked.indexOf(batchId), 1);
});

/** Submits a bulk, and says whether it may start at once. */
async function submitBulk(db: Database, organization: Organization, total = 60) {
  const submittedAs = 'bulk' as const;
  const command = {
    ...submitCommand(organization, { npis: times(total, npiOf) }),
    submittedAs,
  };
  const outcome = await submit(db, command, RULES);
  return {
    ...acceptedIds(outcome),
    isAdmitted: outcome.kind === 'accepted' && outcome.isAdmitted,
  };
}

// Each assertion fails without one condition of `admitWaiting` or `insertBatch`.
test('a bulk starts when fewer than 30 earlier requests of its organization are not planned', async (t) => {
  const { db } = await open(t);
  await noteHome(db, 'home');
  const [many, one] = [await openOrganization(db, 999), await openOrganization(db, 999)];
  const admit = async (namespace = 'home') =>
    (await admitWaiting(db, namespace, 200)).map(({ batchId }) => batchId);

  const bulks = await Promise.all(times(3, () => submitBulk(db, many)));
  t.is(bulks.filter(({ isAdmitted }) => isAdmitted).length, 1);
  const mine = await submitBulk(db, one);
  t.true(mine.isAdmitted);
  t.false((await submitBulk(db, one)).isAdmitted);
  t.false((await submitBulk(db, many, 1)).isAdmitted);
  t.deepEqual(await admit(), []);

  for (const { requestIds, isAdmitted } of [mine, ...bulks]) {
    if (isAdmitted) await joinLookups(db, requestIds);
  }
  const single = submitCommand(many, { npis: [npiOf(99)] });
  t.like(await submit(db, single, RULES), { isAdmitted: true });
  t.deepEqual(await admit('elsewhere'), []);
  const turns = (await Promise.all([admit(), admit()])).flat();
  t.is(turns.length, 2);
  t.deepEqual(await admit(), []);

  for (const { batchId, requestIds } of bulks) {
    if (turns.includes(batchId)) await joinLookups(db, requestIds);
  }
  const [last, ...others] = await admit();
  t.true(bulks.some(({ batchId }) => batchId === last));
  t.deepEqual(others, []);

  // The workflow of the last batch may be stuck.
  await query(
    db,
    sql`update batches set admitted_at = admitted_at - interval '1 minute' where id = ${last}`,
  );
  t.is((await admit()).length, 1);

  const few = await openOrganization(db, 999);
  for (let n = 0; n < 3; n += 1) t.true((await submitBulk(db, few, 10)).isAdmitted);
  t.false((await submitBulk(db, few, 10)).isAdmitted);
});

test('a bulk of a test key starts when all earlier requests of the sandbox are planned', async (t) => {
  const { db } = await open(t);
  await noteHome(db, 'home');
  const sandbox = await openTestKey(db, await openOrganization(db, 1));
  const over = { submittedAs: 'bulk' as const, outcomes: ['found' as const] };
  const send = () =>
    submit(db, submitCommand(sandbox, { npis: [npiOf(1)], ...over }), RULES);
  t.like(await send(), { isAdmitted: true });
  t.like(await send(), { isAdmitted: false });
  t.deepEqual(await admitWaiting(db, 'home', 200), []);
  await query(
    db,
    sql`update requests set status = 'in-progress', started_at = now()
         where batch_id in (select id from batches where admitted_at is not null)`,
  );
  t.is((await admitWaiting(db, 'home', 200)).length, 1);
});

// Fails without `admitted_at` in `listToStart`, and without `status` in `admitWaiting`.
test('a bulk that waits past its deadline is refunded, and then started', async (t) => {
  const { db } = await open(t);
  await noteHome(db, 'home');
  const many = await openOrganization(db, 300);
  for (const _ of times(5, (i) => i)) await submitBulk(db, many);
  const asked: string[] = [];
  const startBatch = async ({ batchId }: { readonly batchId: string }) =>
    void asked.push(batchId);
  const control = { ...temporalAway(t), namespace: 'home', startBatch };
  const deps = { db, log, control, rules: WORKER_RULES };
  const { signal } = new AbortController();
  t.is((await tendWorkflows(deps, signal)).started, 1);
  t.is(await startAdmitted(deps, signal), 0);
  await query(db, sql`update requests set deadline_at = now() - interval '1 second'`);
  t.is(await keepBooks(deps, signal), 300);
  t.like(await balanceOf(db, many.organizationId), { available: 300, held: 0 });
  t.is(await startAdmitted(deps, signal), 4);
  t.is(new Set(asked).size, 5);
  t.is((await tendWorkflows(deps, signal)).started, 0);
});

test('the reconciler refunds overdue requests while calls to Temporal hang', async (t) => {
  const { db } = await open(t);
  const organization = await openOrganization(db, 2);
  await submit(db, submitCommand(organization, { npis: [npiOf(0)] }), RULES);
  const asked = Promise.withResolvers<void>();
  const mayEnd = Promise.withResolvers<void>();
  const startBatch = async () => {
    asked.resolve();
    await mayEnd.promise;
  };
  sweeping(t, db, { ...temporalAway(t), startBatch });
  t.teardown(mayEnd.resolve);
  await asked.promise;
  // The call lasts until the test ends, and so does the turn that makes it.
  await overdue(db, organization, [npiOf(1)]);
  await refunded(db, organization, 1);
  await overdue(db, organization, [npiOf(1)]);
  await refunded(db, organization, 1);
  t.pass();
});

test('one broken balance does not keep other organizations from their refunds', async (t) => {
  const { db } = await open(t);
  const [broken, well] = [await openOrganization(db, 1), await openOrganization(db, 1)];
  const { requestIds } = await overdue(db, broken, [npiOf(0)]);
  await overdue(db, well, [npiOf(1)]);
  // Simulates lost credits, so that its hold can't be released.
  await query(
    db,
    sql`update credit_balances set held = 0, total = 0 where organization_id = ${broken.organizationId}`,
  );
  sweeping(t, db, temporalAway(t));
  await refunded(db, well, 1);
  const [row] = await query(
    db,
    sql`select settled_at from requests where id = ${requestIds[0]}`,
  );
  t.is(row?.settled_at, null);
});

test('settling overdue requests can be limited to an organization and a number', async (t) => {
  const { db } = await open(t);
  const organization = await openOrganization(db, 100);
  const { organizationId } = organization;
  await submit(db, submitCommand(organization, { npis: [npiOf(0)] }), RULES);
  await overdue(db, await openOrganization(db, 1), [npiOf(1)]);
  const { requestIds } = await overdue(
    db,
    organization,
    times(3, (index) => npiOf(10 + index)),
  );
  const first = await settleOverdue(db, { organizationId, limit: 1 });
  t.is(first.length, 1);
  const rest = await settleOverdue(db, { organizationId, limit: 60 });
  t.deepEqual(
    [...first, ...rest].map(({ requestId }) => requestId).sort(),
    requestIds.toSorted(),
  );
  t.deepEqual(await settleOverdue(db, { organizationId, limit: 60 }), []);
  t.like(await balanceOf(db, organizationId), { available: 99, held: 1 });
});

test('settling requests while other requests join their lookups causes no deadlock', async (t) => {
  const { db, url } = await open(t);
  const name = newId('org');
  const pool = openDatabase({ url, poolSize: 10, applicationName: name });
  const organizations = await Promise.all(times(4, () => openOrganization(db, 1000)));
  // The IDs of their lookups have the opposite order of their NPIs.
  const npis = times(60, npiOf).toReversed();
  for (const organization of organizations) {
    const { requestIds } = await overdue(db, organization, npis);
    await joinLookups(db, requestIds);
  }
  const late = await submit(
    db,
    submitCommand(await openOrganization(db, 1000), { npis }),
    RULES,
  );
  const settled = await transaction(db, async (tx) => {
    await tx.execute(sql`select 1 from lookups order by npi offset 1 limit 1 for update`);
    const waiting = async (count: number) => {
      const [row] = await query(
        db,
        sql`select count(*)::int as waiting from pg_stat_activity
             where datname = current_database() and wait_event_type = 'Lock'`,
      );
      return row?.waiting === count ? true : null;
    };
    // The join has locked the first lookup and waits for the second.
    const joining = joinLookups(pool, acceptedIds(late).requestIds);
    await eventually(() => waiting(1));
    const settling = organizations.map(({ organizationId }) =>
      settleOverdue(pool, { organizationId, limit: 60 }),
    );
    await eventually(() => waiting(1 + organizations.length));
    return { ends: [...settling, joining] };
  });
  await Promise.all<unknown>(settled.ends);
  // PostgreSQL counts the deadlocks of a connection once it is closed.
  await pool.close();
  await eventually(async () => {
    const rows = await query(
      db,
      sql`select 1 from pg_stat_activity where application_name = ${name}`,
    );
    return rows.length === 0 ? true : null;
  });
  const [row] = await query(
    db,
    sql`select deadlocks::int, (select count(*)::int from lookups where closed_at is null) as open
          from pg_stat_database where datname = current_database()`,
  );
  t.deepEqual({ ...row }, { deadlocks: 0, open: npis.length });
});

test('a locked overdue request does not delay the others', async (t) => {
  const { db } = await open(t);
  const organization = await openOrganization(db, 2);
  const { organizationId } = organization;
  const { requestIds } = await overdue(db, organization, times(2, npiOf));
  const rest = await transaction(db, async (tx) => {
    await tx.execute(sql`select 1 from requests where id = ${requestIds[0]} for update`);
    return await settleOverdue(db, { organizationId, limit: 60 });
  });
  t.deepEqual(
    rest.map(({ requestId }) => requestId),
    [requestIds[1]],
  );
  t.is((await settleOverdue(db, { organizationId, limit: 60 })).length, 1);
});

test('results, time-outs, and the reconciler together settle each request once', async (t) => {
  const { db, url } = await open(t);
  const organizations = await Promise.all(times(2, () => openOrganization(db, 1000)));
  const npis = times(30, npiOf);
  for (const npi of npis.slice(0, 15)) {
    await storeEmail(db, { npi, email: `a${npi}@clinic.example` });
    await query(db, sql`update stored_emails set verdict = 'unknown' where npi = ${npi}`);
  }
  const accepted: { organizationId: string; batchId: string; requestIds: string[] }[] =
    [];
  for (const organization of times(8, (index) => organizations[index % 2])) {
    if (!organization) throw new Error('no organization was opened');
    const outcome = await submit(db, submitCommand(organization, { npis }), RULES);
    accepted.push({
      organizationId: organization.organizationId,
      ...acceptedIds(outcome),
    });
  }
  // The requests that are settled last become overdue first. The first three never do.
  await query(
    db,
    sql`update requests set deadline_at = clock_timestamp() +
          case when position < 3 then interval '10 minutes' else (30 - position) * interval '100 milliseconds' end`,
  );
  await query(db, sql`update stored_emails set verdict = 'valid'`);
  let bySweeps = 0;
  const counting = createLog('test', 'info', {
    write(line) {
      if (line.includes('"request settled"')) bySweeps += 1;
    },
  });
  const deps = { db, log: counting, control: temporalAway(t), rules: WORKER_RULES };
  const [one, two] = [new AbortController(), new AbortController()];
  const sweeps = [one, two].map((stopping) => runReconciler(deps, 20, stopping.signal));
  let settled = 0;
  await Promise.all(
    accepted.map(async ({ organizationId, requestIds }) => {
      for (const [index, requestId] of requestIds.entries()) {
        await joinLookups(db, [requestId]);
        const end = index % 3 === 0 ? 'failed' : 'finished';
        const [ended, again, ...others] = await Promise.all([
          settle(db, requestId, end, 'test', RULES),
          settle(db, requestId, end, 'test', RULES),
          settleOverdue(db, { organizationId, limit: 500 }),
          settleOverdue(db, { organizationId, limit: 10 }),
        ]);
        t.is(ended.status, again.status);
        settled +=
          Number(ended.settledNow) + Number(again.settledNow) + others.flat().length;
      }
    }),
  );
  one.abort();
  two.abort();
  await Promise.all(sweeps);
  const [row] = await query(
    db,
    sql`select count(*) filter (where settled_at is null)::int as open, count(*) filter (where status = 'completed')::int as completed,
               count(*) filter (where status = 'failed' and reason = 'deadline')::int as overdue,
               (select count(*)::int from ledger_entries where kind in ('charge', 'release')) as settlements,
               (select count(*)::int from lookups l where closed_at is null and not exists (
                  select from requests r where r.lookup_id = l.id and r.settled_at is null)) as abandoned
          from requests`,
  );
  t.log(row, `${settled} settled here, ${bySweeps} by the sweeps`);
  t.like(row, { open: 0, settlements: accepted.length * npis.length, abandoned: 0 });
  t.true(Number(row?.completed) > 0 && Number(row?.overdue) > 0);
  t.is(settled + bySweeps, accepted.length * npis.length);
  const reader = postgres(url, { max: 1 });
  t.teardown(() => reader.end());
  const ids = organizations.map(({ organizationId }) => organizationId);
  t.deepEqual(await auditLedger(reader, ids, RULES.replayMs), []);
});

test.serial('the reconciler continues after an outage of PostgreSQL', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'npi-email-enrichment-'));
  await chmod(folder, 0o755);
  const dataDir = join(folder, 'data');
  let server = await startPostgres({ dataDir });
  const { url, port } = server;
  t.teardown(async () => {
    await server.stop();
    await rm(folder, { recursive: true, force: true });
  });
  await migrate(url);
  const db = openDatabase({
    url,
    poolSize: 4,
    applicationName: 'test',
    deadlineMs: 2000,
  });
  t.teardown(() => db.close());
  // The test's own statements may take longer.
  const own = openDatabase({ url, poolSize: 2, applicationName: 'test' });
  t.teardown(() => own.close());
  const organization = await openOrganization(own, 2);
  const failed = Promise.withResolvers<void>();
  const write = (line: string) => {
    if (line.includes('"sweep failed')) failed.resolve();
  };
  const there = { startBatch: async () => {}, stateOf: async () => 'open' as const };
  sweeping(
    t,
    db,
    { ...temporalAway(t), ...there },
    createLog('test', 'error', { write }),
  );
  await overdue(own, organization, [npiOf(0)]);
  await refunded(own, organization, 2);
  await server.stop();
  await failed.promise;
  server = await startPostgres({ dataDir, port });
  const credits = () => balanceOf(own, organization.organizationId).catch(() => null);
  await eventually(credits);
  await overdue(own, organization, [npiOf(1)]);
  await refunded(own, organization, 2);
  t.pass();
});

test('a result that PostgreSQL has lost is reported, and looked up again', async (t) => {
  const { db } = await open(t);
  const organization = await openOrganization(db, 10);
  // A failover may also lose the note that a workflow was started.
  const noted = await submitAccepted(db, organization, { npis: [npiOf(0), npiOf(1)] });
  await query(db, sql`update batches set started_at = now() - interval '1 minute'`);
  const forgotten = await submitAccepted(db, organization, { npis: [npiOf(2)] });
  const terminated = noted.requestIds[1];
  const lines: string[] = [];
  const again: string[] = [];
  const control: WorkflowControl = {
    ...temporalAway(t),
    stateOf: async (id) => (id === terminated ? 'ended' : 'completed'),
    signalBatch: async () => {},
    startBatch: async ({ batchId }, reuse) => {
      if (reuse === 'ALLOW_DUPLICATE') return void again.push(batchId);
      throw new WorkflowExecutionAlreadyStartedError('closed', batchId, 'enrichBatch');
    },
  };
  const error = createLog('test', 'error', { write: (line) => lines.push(line) });
  const sweep = { startAfterMs: 0, checkEveryMs: 30_000 };
  const deps = { db, log: error, control, rules: { ...WORKER_RULES, sweep } };
  await tendWorkflows(deps, new AbortController().signal);
  t.deepEqual(again.sort(), [noted.batchId, forgotten.batchId].sort());
  const reported = lines.map((line) => JSON.parse(line) as Record<string, string>);
  t.deepEqual(
    reported.map(({ what, request_id }) => [what, request_id]).sort(),
    [noted.requestIds[0], forgotten.requestIds[0]].map((id) => ['result', id]).sort(),
  );
  t.like(await balanceOf(db, organization.organizationId), { available: 8, held: 2 });
});

test('after an outage of Temporal, the reconciler starts webhooks without a workflow', async (t) => {
  const life = await startDelivering(async () => responded(204));
  t.teardown(() => life.stop());
  const [deliveryId = ''] = await life.deliveries(
    await life.organization(),
    'https://a.example/',
    1,
  );
  await query(life.db, sql`update batches set started_at = now()`);
  const rules = {
    ...WORKER_RULES,
    sweep: { startAfterMs: 5000, checkEveryMs: 30_000 },
  };
  const sweepWith = (control: WorkflowControl) =>
    tendWorkflows({ db: life.db, log, control, rules }, new AbortController().signal);
  const away = temporalAway(t);
  for (let minutes = 0; minutes < 60; minutes += 10) {
    await life.time.advance(10 * MINUTE);
    t.like(await sweepWith(away), { redelivered: 0 });
  }
  const connection = await Connection.connect({
    address: testSetting('TEST_TEMPORAL_ADDRESS'),
  });
  t.teardown(() => connection.close());
  const client = new Client({ connection });
  const back = createControl(client, 'nobody');
  await life.time.advance(1000);
  t.like(await sweepWith(back), { redelivered: 1 });
  t.is((await client.workflow.getHandle(deliveryId).describe()).type, 'deliver');
  // The sweep has completed its check of the delivery, so the next one skips it.
  await life.time.advance(1000);
  t.like(await sweepWith(back), { redelivered: 0 });
});
