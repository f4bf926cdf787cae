import test from 'ava';
import { sql } from 'drizzle-orm';
import { type LedgerPlace, listLedger } from '../../db/accounts/ledger.ts';
import type { Database, Period } from '../../db/connection/client.ts';
import { type BatchFilter, listBatches } from '../../db/requests/batches.ts';
import {
  type DeliveryFilter,
  listOrganizationDeliveries,
} from '../../db/webhooks/log.ts';
import { freshDatabase } from '../support/database.ts';

// Tests the lists of a large customer. An index finds each page, and only the rows of the page are
// read.

const { db, sql: admin } = freshDatabase(test);

const ORGANIZATION = `org_${'0'.repeat(26)}`;
const MANY = 20_000;
/** Every 5,000th batch is in progress, and every 1,000th requests the same NPI. */
const batchId = (n: number) => `bat_${String(n).padStart(26, '0')}`;
const dayAt = (n: number) => new Date(Date.UTC(2026, 0, 1) + n * 60_000);
const ALL: BatchFilter = {
  status: null,
  since: null,
  until: null,
  npi: null,
  keyId: null,
};
const ALWAYS: DeliveryFilter = { status: null, since: null, until: null };

test.before(async () => {
  await admin.begin(async (tx) => {
    await tx`set local session_replication_role = replica`;
    await tx`insert into organizations (id, name, webhook_secret) values (${ORGANIZATION}, 'Much', 'none')`;
    await tx`insert into credit_balances (organization_id, total, available) values (${ORGANIZATION}, ${MANY}, ${MANY})`;
    await tx`
      insert into batches (id, organization_id, submitted_as, requested_type, total, completed_count, created_at, updated_at, deadline_at)
      select 'bat_' || lpad(n::text, 26, '0'), ${ORGANIZATION}, 'single', 'any', 1, case when n % 5000 = 0 then 0 else 1 end, at, at, at
        from generate_series(1, ${MANY}::int) n, lateral (select timestamptz '2026-01-01Z' + n * interval '1 minute' as at) times`;
    await tx`
      insert into requests (id, batch_id, organization_id, position, npi, requested_type, cost, status, accepted_at, deadline_at, settled_at)
      select 'req_' || right(id, 26), id, organization_id, 0, (1000000000 + right(id, 26)::int % 1000)::text, 'any', 1, 'not_found',
             created_at, created_at, created_at from batches`;
    await tx`
      insert into webhook_deliveries (id, batch_id, organization_id, state, created_at, decided_at)
      select 'msg_' || right(id, 26), id, organization_id, case when right(id, 26)::int % 5000 = 0 then 'failed' else 'delivered' end,
             created_at, created_at from batches`;
    // Other organizations have entries in between, so that neighbors in the index are not neighbors in
    // the table.
    await tx`insert into ledger_entries (organization_id, request_id, kind, amount, created_at)
      select case when other = 0 then organization_id else 'org_' || lpad((other + hashtext(id) % 50)::text, 26, '0') end,
             case when other = 0 then id else replace(id, 'req_', 'req_' || other) end, 'hold', 1, accepted_at
        from requests, generate_series(0, 100, 50) other order by id, other`;
  });
  await admin`vacuum analyze batches, requests, ledger_entries, webhook_deliveries`;
});

/** Returns the number of rows that a list reads; null if it scans a whole table. */
async function rowsRead(
  list: (db: Database) => Promise<unknown>,
): Promise<number | null> {
  return await db.drizzle.transaction(async (tx) => {
    const read = async () => {
      const [row] = await tx.execute<{ whole: number; fetched: number }>(sql`
        select sum(seq_scan)::int as whole, sum(coalesce(idx_tup_fetch, 0))::int as fetched from pg_stat_xact_user_tables
         where relname in ('batches', 'requests', 'ledger_entries', 'webhook_deliveries')`);
      return row ?? { whole: 0, fetched: 0 };
    };
    const before = await read();
    await list({ ...db, drizzle: tx as unknown as Database['drizzle'] });
    const after = await read();
    return after.whole > before.whole ? null : after.fetched - before.fetched;
  });
}

const PAGES: readonly (readonly [string, Partial<BatchFilter>, number])[] = [
  ['all batches', {}, 51],
  ['completed batches', { status: 'completed' }, 52],
  ['running batches', { status: 'in-progress' }, 4],
  ['batches of one day', { since: dayAt(5000), until: dayAt(5040) }, 40],
  ['batches with an NPI', { npi: '1000000017' }, 40],
  ['running batches with an NPI', { npi: '1000000017', status: 'in-progress' }, 40],
  ['batches with an NPI that was never requested', { npi: '1999999999' }, 0],
];

// Fails without the indexes, and without `interval '0'` of db/requests/batches.ts.
for (const [name, filter, atMost] of PAGES) {
  for (const after of [null, batchId(MANY / 2)]) {
    test(`the ${after ? 'middle' : 'first'} page of a list of ${name} is read by an index`, async (t) => {
      const page = { after, limit: 50 };
      const read = await rowsRead((tx) =>
        listBatches(tx, ORGANIZATION, { ...ALL, ...filter }, page),
      );
      // The limit also allows for the requests of the NPI, and for the batch before the page.
      t.true(read !== null && read <= 2 * atMost + 2, `${read} rows`);
    });
  }
}

const DELIVERIES: readonly (readonly [string, Partial<DeliveryFilter>, number])[] = [
  ['all deliveries', {}, 55],
  ['delivered ones', { status: 'delivered' }, 52],
  ['failed ones', { status: 'failed' }, 4],
  ['pending ones', { status: 'pending' }, 0],
  ['deliveries of one day', { since: dayAt(5000), until: dayAt(5040) }, 40],
];

for (const [name, filter, atMost] of DELIVERIES) {
  for (const after of [null, `msg_${String(MANY / 2).padStart(26, '0')}`]) {
    test(`the ${after ? 'middle' : 'first'} page of a list of ${name} is read by an index`, async (t) => {
      const page = { after, limit: 50 };
      const read = await rowsRead((tx) =>
        listOrganizationDeliveries(tx, ORGANIZATION, { ...ALWAYS, ...filter }, page),
      );
      // Each delivery is read by its state and by its id, and with its batch. The planner reads a
      // few more rows.
      t.true(read !== null && read <= 3 * atMost + 15, `${read} rows`);
    });
  }
}

const ledgerPage = (
  tx: Database,
  after: LedgerPlace | null,
  period: Partial<Period> = {},
  limit = 50,
) => listLedger(tx, ORGANIZATION, { since: null, until: null, ...period, after, limit });

test('each page of the ledger and its balances is read by an index, even the oldest', async (t) => {
  let { entries, next } = await ledgerPage(db, null);
  t.is(entries.at(-1)?.availableAfter, MANY + 49);
  const newest = await rowsRead((tx) => ledgerPage(tx, null));
  for (let n = 1; n < 200 && next; n += 1) {
    ({ entries, next } = await ledgerPage(db, next));
  }
  t.is(entries.at(-1)?.availableAfter, MANY + 9999);
  const oldest = await rowsRead((tx) => ledgerPage(tx, next));
  // Each page reads its entries and their requests. The second page also reads the entry before it.
  t.deepEqual([newest, oldest], [51 + 51, 52 + 51]);
});

test('a period of a large ledger has correct balances, and reads only newer entries', async (t) => {
  const period = { since: dayAt(MANY - 300), until: dayAt(MANY - 100) };
  const read = await rowsRead(async (tx) => {
    const { entries, next } = await ledgerPage(tx, null, period, 1000);
    t.is(next, null);
    t.is(entries.length, 200);
    t.deepEqual(entries[0]?.createdAt, dayAt(MANY - 101));
    t.is(entries[0]?.availableAfter, MANY + 101);
    t.deepEqual(entries.at(-1)?.createdAt, period.since);
    t.is(entries.at(-1)?.availableAfter, MANY + 300);
  });
  // Each entry until one minute before the period is read twice, and each request once.
  t.true(read !== null && read <= 2 * 303 + 200, `${read} rows`);
  const [first, second] = [
    await ledgerPage(db, null, period, 150),
    await ledgerPage(db, null, period, 1000),
  ];
  const rest = await ledgerPage(db, first.next, period, 150);
  t.deepEqual([...first.entries, ...rest.entries], second.entries);
  t.is(rest.next, null);
});
