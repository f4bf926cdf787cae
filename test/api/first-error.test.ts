import test, { type ExecutionContext } from 'ava';
import type { TransactionSql } from 'postgres';
import { fresh, freshDatabase } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { startRelay } from '../support/relay.ts';
import { type ApiClient, startApi } from '../support/stack.ts';

// Tests that the response names the cause if a statement of a transaction fails. Later statements
// fail too, but only because the transaction has failed (25P02).

const NPI = '1234567893';
/** Advisory locks. The insert of a submit waits for the first, then for the second. */
const [GATE, CYCLE] = [11, 12];

const { sql: admin, url } = freshDatabase(test);
const there = new URL(url);
const relay = fresh(test, () =>
  startRelay({ host: there.hostname, port: Number(there.port) }),
);
const api = fresh(test, () => {
  const relayed = new URL(url);
  relayed.host = `${relay.host}:${relay.port}`;
  // The pool has one connection, so each submit uses the connection on which its statements are
  // prepared.
  return startApi({ databaseUrl: relayed.href, poolSize: 1 });
});

test.before(() =>
  admin.unsafe(`
    create table failures (organization_id text, code text);
    create function fail_insert() returns trigger language plpgsql as $$
      declare planned text;
      begin
        perform pg_advisory_xact_lock_shared(${GATE});
        perform pg_advisory_xact_lock_shared(${CYCLE});
        select code into planned from failures where organization_id = new.organization_id;
        if planned is not null then raise exception 'planned' using errcode = planned; end if;
        return new;
      end $$;
    create trigger fail_insert before insert on batches for each row execute function fail_insert()`),
);
test.after.always(() => relay.close());

const KEYS = [
  { title: 'without an Idempotency-Key', headers: {} },
  { title: 'with an Idempotency-Key', headers: { 'idempotency-key': 'first' } },
];
type Key = (typeof KEYS)[number];

/** Begins a transaction that ends when `finish` is called. */
async function begin(work: (tx: TransactionSql) => Promise<unknown>) {
  const { promise: begun, resolve: hasBegun } = Promise.withResolvers<void>();
  const { promise: finishing, resolve: finish } = Promise.withResolvers<void>();
  const ended = admin.begin(async (tx) => {
    await work(tx);
    hasBegun();
    await finishing;
  });
  await Promise.race([begun, ended]);
  return { finish, ended };
}

/** Waits until exactly one session meets the condition. */
async function oneSession(condition: string): Promise<void> {
  await eventually(async () => {
    const rows = await admin.unsafe(`select from pg_stat_activity
      where datname = current_database() and pid <> pg_backend_pid() and ${condition}`);
    return rows.length === 1 ? true : null;
  });
}

/** Submits, and holds back PostgreSQL's responses until the insert of the batch has failed. */
async function submitThatFails(
  client: ApiClient,
  { headers }: Key,
  onceAtGate = async () => {},
) {
  const gate = await begin((tx) => tx`select pg_advisory_xact_lock(${GATE})`);
  const submitted = client.single({ npi: NPI }, headers);
  await oneSession("wait_event = 'advisory'");
  await onceAtGate();
  const release = relay.hold();
  gate.finish();
  await oneSession(
    `state = 'idle in transaction (aborted)' and query ~ '^\\s*with batch'`,
  );
  release();
  await gate.ended;
  return await submitted;
}

/**
 * Opens an organization, and submits once to prepare the statements on the connection of the next
 * submit.
 */
async function openClient({ headers }: Key): Promise<ApiClient> {
  const client = await api.organization(10);
  const prepared = Object.keys(headers).length > 0 ? { 'idempotency-key': 'before' } : {};
  await client.single({ npi: NPI }, prepared);
  return client;
}

async function batchesOf({ organizationId }: ApiClient): Promise<number> {
  const [row] =
    await admin`select count(*)::int as n from batches where organization_id = ${organizationId}`;
  return row?.n;
}

async function failsAs503(t: ExecutionContext, code: string, key: Key): Promise<void> {
  const client = await openClient(key);
  await admin`insert into failures values (${client.organizationId}, ${code})`;
  const refused = await submitThatFails(client, key);
  t.is(refused.status, 503);
  t.like(refused.json, { code: 'service_unavailable' });
  await admin`delete from failures where organization_id = ${client.organizationId}`;
  t.is((await client.single({ npi: NPI }, key.headers)).status, 202);
  t.is(await batchesOf(client), 2);
}

const CAUSES = [
  { code: '53100', cause: 'a full disk' },
  { code: '57014', cause: 'a statement time-out' },
];

for (const key of KEYS) {
  for (const { code, cause } of CAUSES) {
    test.serial(
      `a submit ${key.title} gets a 503 if it fails because of ${cause} in PostgreSQL`,
      (t) => failsAs503(t, code, key),
    );
  }

  test.serial(
    `a submit ${key.title} is repeated if PostgreSQL ends it in a deadlock`,
    async (t) => {
      const client = await openClient(key);
      const { promise: atGate, resolve: goOn } = Promise.withResolvers<void>();
      // PostgreSQL ends the session that detects the deadlock. This session waits longer before it
      // checks, so the submit is the one that ends.
      const other = admin.begin(async (tx) => {
        await tx`set local deadlock_timeout = '10min'`;
        await tx`select pg_advisory_xact_lock(${CYCLE})`;
        await atGate;
        await tx`select 1 from credit_balances where organization_id = ${client.organizationId} for update`;
      });
      const accepted = await submitThatFails(client, key, async () => {
        goOn();
        await oneSession("wait_event = 'transactionid'");
      });
      await other;
      t.is(accepted.status, 202);
      t.is(await batchesOf(client), 2);
    },
  );
}
