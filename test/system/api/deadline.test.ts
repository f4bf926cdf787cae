import { mock } from 'node:test';
import test, { type ExecutionContext } from 'ava';
import { sql } from 'drizzle-orm';
import type { TransactionSql } from 'postgres';
import { endOf } from '../../../db/connection/changes.ts';
import {
  type Database,
  openDatabase,
  query,
  transaction,
} from '../../../db/connection/client.ts';
import { fresh, freshDatabase } from '../../support/database.ts';
import { type ApiResponse, eventually } from '../../support/organization.ts';
import { type ApiClient, startApi } from '../../support/stack.ts';

// Tests a PostgreSQL that is slower than our deadline. A submit that failed at the deadline must
// not take effect later.

/** Long enough for everything that the test does not hold up. */
const DEADLINE_MS = 10_000;
const NPI = '1234567893';

const { sql: admin, url } = freshDatabase(test);
const api = fresh(test, () => startApi({ databaseUrl: url, deadlineMs: DEADLINE_MS }));

test.before(async () => {
  // While the gate is shut, a transaction that writes here stops in the middle of its COMMIT.
  await admin.unsafe(`
    create function pass_gate() returns trigger language plpgsql as $$
      begin perform pg_advisory_xact_lock_shared(1); return null; end $$;
    create constraint trigger gate after insert on batches deferrable initially deferred
      for each row execute function pass_gate();
    create table notes (text text);
    create constraint trigger gate after insert on notes deferrable initially deferred
      for each row execute function pass_gate()`);
});

/** Takes a lock in another session, and returns a function that releases it. */
async function hold(
  take: (tx: TransactionSql) => Promise<unknown>,
): Promise<() => Promise<void>> {
  const taken = Promise.withResolvers<void>();
  const wanted = Promise.withResolvers<void>();
  const held = admin.begin(async (tx) => {
    await take(tx);
    taken.resolve();
    await wanted.promise;
  });
  await Promise.race([taken.promise, held]);
  return async () => {
    wanted.resolve();
    await held;
  };
}

const shutGate = () => hold((tx) => tx`select pg_advisory_xact_lock(1)`);

/** Waits until all connections of this application are idle. */
async function settled(applicationName: string): Promise<void> {
  await eventually(async () => {
    const busy = await admin`
      select 1 from pg_stat_activity
       where datname = current_database() and application_name = ${applicationName} and state <> 'idle'`;
    return busy.length === 0 || null;
  });
}

async function factsOf({ organizationId }: ApiClient) {
  const [facts] = await admin`
    select (select count(*)::int from batches where organization_id = ${organizationId}) as batches,
           (select count(*)::int from ledger_entries where organization_id = ${organizationId} and kind = 'hold') as holds,
           (select count(*)::int from idempotency_keys where organization_id = ${organizationId}) as keys,
           available::int, held::int from credit_balances where organization_id = ${organizationId}`;
  return { ...facts };
}

function isAway(t: ExecutionContext, reply: ApiResponse): void {
  t.is(reply.status, 503);
  t.like(reply.json, { code: 'service_unavailable' });
  t.regex(reply.text, /same Idempotency-Key/);
  t.is(reply.headers.get('retry-after'), '5');
}

test.serial(
  'a submit that waits too long for a lock gets a 503 and writes nothing later',
  async (t) => {
    const client = await api.organization(10);
    const submit = () => client.single({ npi: NPI }, { 'idempotency-key': 'late' });
    const release = await hold(
      (tx) =>
        tx`select 1 from credit_balances where organization_id = ${client.organizationId} for update`,
    );
    isAway(t, await submit());
    await release();
    await settled('test api');
    t.deepEqual(await factsOf(client), {
      batches: 0,
      holds: 0,
      keys: 0,
      available: 10,
      held: 0,
    });
    t.is((await submit()).status, 202);
    t.deepEqual(await factsOf(client), {
      batches: 1,
      holds: 1,
      keys: 1,
      available: 9,
      held: 1,
    });
  },
);

test.serial(
  'a submit whose commit is not confirmed gets a 503 and can be repeated safely',
  async (t) => {
    const client = await api.organization(10);
    const submit = () => client.single({ npi: NPI }, { 'idempotency-key': 'lost' });
    const open = await shutGate();
    isAway(t, await submit());
    await open();
    await settled('test api');
    const again = await submit();
    t.is(again.status, 202);
    t.is(again.headers.get('idempotent-replayed'), 'true');
    t.deepEqual(await factsOf(client), {
      batches: 1,
      holds: 1,
      keys: 1,
      available: 9,
      held: 1,
    });
  },
);

test.serial(
  'an accepted submit gets a 202 even if waiting for its results fails',
  async (t) => {
    const client = await api.organization(10);
    const submitted = client.single({ npi: NPI }, { prefer: 'wait=55' });
    const batchId = await eventually(async () => {
      const [row] =
        await admin`select id from batches where organization_id = ${client.organizationId}`;
      return row?.id ?? null;
    });
    const release = await hold((tx) => tx`lock table batches in access exclusive mode`);
    await admin`select pg_notify('changed', ${endOf(batchId)})`;
    const reply = await submitted;
    await release();
    t.is(reply.status, 202);
    t.is(reply.json.batch_id, batchId);
  },
);

test.serial(
  'a transaction that waits too long for a connection fails without starting',
  async (t) => {
    const db = openDatabase({
      url,
      poolSize: 1,
      applicationName: 'narrow',
      deadlineMs: 3000,
    });
    const begun: string[] = [];
    const { promise: held, resolve: release } = Promise.withResolvers<void>();
    const first = transaction(db, () => held);
    const second = transaction(db, async () => begun.push('second'));
    await t.throwsAsync(second, { message: /client_deadline/ });
    release();
    await t.throwsAsync(first, { message: /client_deadline/ });
    await transaction(db, async () => begun.push('third'));
    t.deepEqual(begun, ['third']);
    await db.close();
  },
);

test.serial(
  'a transaction whose COMMIT was sent in time succeeds despite a late response',
  async (t) => {
    const db = openDatabase({
      url,
      poolSize: 1,
      applicationName: 'slow',
      deadlineMs: 10_000,
    });
    await query(db, (tx) => tx.execute(sql`select 1`));
    const open = await shutGate();
    mock.timers.enable({ apis: ['setTimeout'] });
    const { promise: working, resolve: finish } = Promise.withResolvers<void>();
    const written = t.notThrowsAsync(write(db, working));
    mock.timers.tick(9000);
    finish();
    await inCommit();
    mock.timers.tick(9000);
    mock.timers.reset();
    await open();
    await written;
    t.is((await admin`select text from notes`).length, 1);
    await db.close();
  },
);

async function write(db: Database, working: Promise<void>): Promise<void> {
  await transaction(db, async (tx) => {
    await working;
    await tx.execute(sql`insert into notes values ('written')`);
  });
}

/**
 * Waits until a session of this database waits at the gate. It polls without a timer, because the
 * test mocks all timers.
 */
async function inCommit(): Promise<void> {
  for (;;) {
    const waiting = await admin`
      select 1 from pg_stat_activity where datname = current_database() and wait_event = 'advisory'`;
    if (waiting.length > 0) return;
  }
}
