import test from 'ava';
import { type Database, openDatabase, query } from '../../db/connection/client.ts';
import { findEnvelope, findEnvelopeState } from '../../db/requests/envelope.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { freshDatabase } from '../support/database.ts';
import {
  acceptedIds,
  joinLookups,
  openOrganization,
  RULES,
  submitAccepted,
  submitCommand,
} from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';

// Tests that the number of prepared statements, which every connection keeps, does not grow with
// the size of requests.

const { url } = freshDatabase(test);

const npisFrom = (first: number, count: number) =>
  Array.from({ length: count }, (_, i) => String(1_000_000_000 + first + i));

/** Returns the prepared statements of the only connection of a pool. */
async function kept(db: Database): Promise<string[]> {
  const rows = await query(db, (tx) =>
    tx.execute<{ statement: string }>(
      'select statement from pg_prepared_statements order by 1',
    ),
  );
  return rows.map(({ statement }) => statement);
}

test('submits and polls use the same prepared statements for two NPIs as for 60', async (t) => {
  const db = openDatabase({ url, poolSize: 1, applicationName: 'test' });
  t.teardown(() => db.close());
  const organization = await openOrganization(db, 1000);
  for (const npi of npisFrom(0, 40)) {
    await storeEmail(db, { npi, email: 'a@example.com' });
  }
  const take = async (npis: string[]) => {
    const webhook = { url: 'https://receiver.example/hook', mode: 'real-time' } as const;
    const { batchId } = await submitAccepted(db, organization, { npis, webhook });
    const envelope = await findEnvelope(db, {
      organizationId: organization.organizationId,
      batchId,
    });
    t.is(envelope?.items.length, npis.length);
  };
  // A single NPI has its own statement, several share one.
  for (const count of [1, 2]) await take(npisFrom(39, count));
  const before = await kept(db);
  t.true(before.some((statement) => statement.includes('insert into requests')));
  for (const count of [1, 7, 60]) await take(npisFrom(0, count));
  t.deepEqual(await kept(db), before);
});

test('successive queries use the same connection, so its cached plans are used', async (t) => {
  const db = openDatabase({ url, poolSize: 5, applicationName: 'test' });
  t.teardown(() => db.close());
  const ask = () =>
    query(db, (tx) => tx.execute<{ pid: number }>('select pg_backend_pid() as pid'));
  const pidsOf = (responses: readonly { pid: number }[][]) =>
    new Set(responses.map(([row]) => row?.pid));
  t.is(pidsOf(await Promise.all(Array.from({ length: 5 }, ask))).size, 5);
  const responses = [];
  for (let i = 0; i < 10; i += 1) responses.push(await ask());
  t.is(pidsOf(responses).size, 1);
});

/** Counts the rows of each table that were read so far, by index or by scan. */
async function rowsRead(db: Database): Promise<Record<string, number>> {
  await query(db, (tx) => tx.execute('select pg_stat_force_next_flush()'));
  const tables = await query(db, (tx) =>
    tx.execute<{ name: string; n: number }>(
      'select relname as name, seq_tup_read + coalesce(idx_tup_fetch, 0) as n from pg_stat_user_tables',
    ),
  );
  return Object.fromEntries(tables.map(({ name, n }) => [name, n]));
}

test('a submit, its settlement, and its polls read few rows even in large tables', async (t) => {
  const db = openDatabase({ url, poolSize: 1, applicationName: 'test' });
  t.teardown(() => db.close());
  const others = await openOrganization(db, 0);
  await query(db, (tx) =>
    tx.transaction(async (filling) => {
      await filling.execute('set local session_replication_role = replica');
      for (const rows of [
        `credit_balances (organization_id) select 'org_' || n`,
        `batches (id, organization_id, submitted_as, requested_type, total, created_at, updated_at, deadline_at)
          select 'bat_' || n, '${others.organizationId}', 'single', 'any', 1, now(), now(), now()`,
        `lookups (id, npi, requested_type, opened_at) select 'lkp_' || n, (2000000000 + n)::text, 'any', now()`,
        `requests (id, batch_id, organization_id, position, npi, requested_type, cost, status, accepted_at, deadline_at, settled_at, lookup_id)
          select 'req_' || n, 'bat_' || n, '${others.organizationId}', 0, (2000000000 + n)::text, 'any', 1,
                 'failed', now(), now(), now(), 'lkp_' || n`,
        `vendor_attempts (lookup_id, vendor, n, request_id, state, started_at, ended_at)
          select 'lkp_' || n, 'test', 1, 'req_' || n, 'found', now(), now()`,
        `webhook_deliveries (id, batch_id, organization_id, state, created_at)
          select 'msg_' || n, 'bat_' || n, '${others.organizationId}', 'none', now()`,
      ])
        await filling.execute(`insert into ${rows} from generate_series(1, 3000) n`);
    }),
  );
  await query(db, (tx) => tx.execute('analyze'));
  const organization = await openOrganization(db, 1000);
  const { organizationId } = organization;
  const one = async (n: number) => {
    const asked = {
      npis: npisFrom(500 + n, 1),
      webhook: { url: 'https://example.com/', mode: 'batch' },
    } as const;
    const submitted = await submit(db, submitCommand(organization, asked), RULES);
    const { requestIds: ids, batchId } = acceptedIds(submitted);
    const [requestId = ''] = ids;
    await joinLookups(db, ids);
    await settle(db, requestId, 'finished', 'test', RULES);
    for (const subject of [{ requestId }, { batchId }]) {
      t.truthy(await findEnvelope(db, { organizationId, ...subject }));
      t.truthy(await findEnvelopeState(db, { organizationId, ...subject }));
    }
  };
  // From the sixth execution on, PostgreSQL may use a generic plan.
  for (let n = 0; n < 10; n += 1) await one(n);
  const before = await rowsRead(db);
  await one(10);
  const after = await rowsRead(db);
  for (const name of [
    'batches',
    'credit_balances',
    'lookups',
    'requests',
    'vendor_attempts',
    'webhook_deliveries',
  ]) {
    const read = (after[name] ?? 0) - (before[name] ?? 0);
    t.true(read < 200, `${read} rows of ${name} were read`);
  }
});
