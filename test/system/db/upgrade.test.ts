import { randomBytes } from 'node:crypto';
import test from 'ava';
import type { Sql } from 'postgres';
import { asRole, DUMPED, openDump, testSetting, travel } from '../../support/database.ts';
import { auditLedger } from '../../support/ledger.ts';
import { type EnvelopeResponse, eventually, RULES } from '../../support/organization.ts';
import { runProgram } from '../../support/programs.ts';
import { startStack } from '../../support/stack.ts';

// Upgrades the recorded database of each release (record-dump.ts), and settles its open work. Its
// Temporal is lost, so the sweep starts the workflows again.

const HOUR = 3_600_000;

/** A poll before the dump was made, and its response. */
interface Poll {
  readonly apiKey: string;
  readonly path: string;
  readonly at: Date;
  readonly response: string;
}

/** Removes the recorded polls from the dump, and returns them. */
async function takePolls(sql: Sql): Promise<Poll[]> {
  const polls = await sql<Poll[]>`
    select api_key as "apiKey", path, at, response from recorded.polls`;
  await sql`drop schema recorded cascade`;
  return [...polls];
}

async function poll(baseUrl: string, { apiKey, path }: Poll): Promise<string> {
  const response = await fetch(baseUrl + path, { headers: { 'x-api-key': apiKey } });
  return await response.text();
}

/** Reads the ledger, and the totals and held credits of all organizations. */
async function readMoney(sql: Sql) {
  const entries = await sql<{ id: string; request: string | null; kind: string }[]>`
    select id, organization_id, request_id as request, kind, amount, created_at
      from ledger_entries order by id`;
  const balances = await sql<{ id: string; total: number; held: number }[]>`
    select organization_id as id, total::int, held::int from credit_balances order by id`;
  return { entries: [...entries], balances: [...balances] };
}

type Money = Awaited<ReturnType<typeof readMoney>>;

/** Returns the number of charges and releases of each request with a hold. */
function settlementsOf({ entries }: Money): Map<string, number> {
  const settlements = new Map<string, number>();
  for (const { request, kind } of entries) {
    if (request === null) continue;
    const earlier = settlements.get(request) ?? 0;
    settlements.set(request, kind === 'hold' ? earlier : earlier + 1);
  }
  return settlements;
}

/** Counts what is not final yet. */
async function readOpen(sql: Sql) {
  const [open] = await sql<{ requests: number; deliveries: number; uploads: number }[]>`
    select (select count(*)::int from requests where settled_at is null) as requests,
           (select count(*)::int from webhook_deliveries where state = 'pending') as deliveries,
           (select count(*)::int from uploads
             where started_at is not null and submitted_at is null and stop_reason is null) as uploads`;
  return open;
}

for (const version of DUMPED) {
  test.serial(
    `a database of ${version} is upgraded, and its open work ends`,
    async (t) => {
      const database = await openDump(version);
      t.teardown(() => database.stop());
      const { sql, url } = database;
      const polls = await takePolls(sql);
      const before = await readMoney(sql);
      const migrated = await runProgram('migrate', [], { env: { DATABASE_URL: url } });
      t.is(migrated.code, 0, migrated.stderr);

      // The clock begins at the time of the dump, so that nothing is overdue or too old yet.
      const clock = await travel(url);
      t.teardown(() => clock.stop());
      await clock.advance((polls[0]?.at.getTime() ?? 0) - Date.now());
      const temporalAddress = testSetting('TEST_TEMPORAL_ADDRESS');
      const taskQueue = `enrichment-${randomBytes(8).toString('hex')}`;
      const elsewhere = { temporalAddress, taskQueue };
      const stack = await startStack({ database, elsewhere });
      t.teardown(() => stack.stop());
      for (const one of polls)
        t.is(await poll(stack.baseUrl, one), one.response, one.path);

      const { deliveries = 0, uploads = 0 } = (await readOpen(sql)) ?? {};
      t.true(deliveries > 1 && uploads === 1);
      const openAtFirst = [...settlementsOf(before)].filter(([, count]) => count === 0);
      t.true(openAtFirst.length > 40);
      // The recorded receiver had another port.
      await sql`update batches set webhook_url = ${`${stack.receiver.url}/upgraded`} where webhook_url is not null`;
      await sql`update organizations set requests_per_minute = 100`;
      // Now all open work is due or overdue.
      await clock.advance(2 * HOUR);
      await stack.startWorker();
      await eventually(async () => {
        await stack.reconcile();
        const open = Object.values((await readOpen(sql)) ?? {});
        return open.every((one) => one === 0) || null;
      });

      const after = await readMoney(sql);
      const known = new Set(before.entries.map(({ id }) => id));
      t.deepEqual(
        after.entries.filter(({ id }) => known.has(id)),
        before.entries,
      );
      const settlements = [...settlementsOf(after).values()];
      t.deepEqual([...new Set(settlements)], [1]);
      const totals = ({ balances }: Money) =>
        balances.map(({ id, total }) => [id, total]);
      t.deepEqual(totals(after), totals(before));
      t.true(after.balances.every(({ held }) => held === 0));
      const ids = after.balances.map(({ id }) => id);
      t.deepEqual(await auditLedger(sql, ids, RULES.replayMs), []);
      for (const one of polls) {
        const was = JSON.parse(one.response) as EnvelopeResponse;
        if (was.batch.status !== 'completed') continue;
        const now = JSON.parse(await poll(stack.baseUrl, one)) as EnvelopeResponse;
        t.deepEqual(now.data, was.data);
      }
      const doctor = await runProgram('operator', ['doctor'], {
        env: {
          DATABASE_URL: asRole(url, 'operator'),
          TEMPORAL_ADDRESS: temporalAddress,
          TASK_QUEUE: taskQueue,
        },
      });
      t.is(doctor.code, 0, doctor.stdout);
    },
  );
}
