import test from 'ava';
import type { Sql } from 'postgres';
import { startTemporal } from '../../../deploy/local/temporal.ts';
import { TASK_QUEUE } from '../../../workflows/messages.ts';
import {
  asRole,
  DUMPED,
  openDump,
  readOpen,
  requireOpenWork,
  testSetting,
  travel,
} from '../../support/database.ts';
import { auditLedger } from '../../support/ledger.ts';
import { type EnvelopeResponse, eventually, RULES } from '../../support/organization.ts';
import { runProgram } from '../../support/programs.ts';
import { startStack } from '../../support/stack.ts';
import {
  createScriptedVendor,
  foundStep,
  type ScriptedVendor,
} from '../../support/vendors.ts';

// Upgrades the recorded database of each release (record-dump.ts), and settles its open work. Its
// Temporal is lost, so the sweep starts the workflows again.

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;

/** A poll before the dump was made, and its response. */
interface Poll {
  readonly apiKey: string;
  readonly path: string;
  readonly response: string;
}

/** Removes the recorded polls from the dump, and returns them. */
async function takePolls(sql: Sql): Promise<Poll[]> {
  const polls = await sql<Poll[]>`
    select api_key as "apiKey", path, response from recorded.polls`;
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

/**
 * Scripts the responses for the open work. The recorded job ends, and most requests without a lookup
 * are found. The upload's NPIs are not found. One request has no result before its deadline.
 * @returns the NPI of the job, and the NPI without a result
 */
async function scriptOpenWork(sql: Sql, finder: ScriptedVendor) {
  const [job] = await sql<{ npi: string }[]>`
    select npi from lookups where id in (
      select lookup_id from vendor_attempts where state = 'pending')`;
  const [late, ...waiting] = await sql<{ npi: string }[]>`
    select npi from requests where settled_at is null and lookup_id is null order by id`;
  if (!job || !late) throw new Error('no job or no waiting request was recorded');
  for (const { npi } of [job, ...waiting]) finder.script(npi, () => foundStep(npi));
  finder.script(late.npi, () => ({
    kind: 'pending',
    jobRef: 'late',
    pollAfterMs: 1000,
  }));
  return { job: job.npi, late: late.npi };
}

const countOf = ({ entries }: Money, kind: string) =>
  entries.filter((entry) => entry.kind === kind).length;

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

      const clock = await travel(url);
      t.teardown(() => clock.stop());
      // The ids of workflows are the recorded ones, so each run needs a new Temporal.
      const cli = testSetting('TEST_TEMPORAL_CLI');
      const temporal = await startTemporal({ cli, namespace: 'default' });
      t.teardown(() => temporal.stop());
      const elsewhere = { temporalAddress: temporal.address, taskQueue: TASK_QUEUE };
      // The recorder's vendors have these ids.
      const finder = createScriptedVendor('finder');
      const providers = [finder, createScriptedVendor('slow')];
      const stack = await startStack({ database, elsewhere, providers });
      t.teardown(() => stack.stop());
      for (const one of polls)
        t.is(await poll(stack.baseUrl, one), one.response, one.path);

      await requireOpenWork(sql);
      const { job, late } = await scriptOpenWork(sql, finder);
      // The recorded receiver had another port.
      await sql`update batches set webhook_url = ${`${stack.receiver.url}/upgraded`} where webhook_url is not null`;
      await sql`update organizations set requests_per_minute = 100`;
      // The recorded job is due in ten minutes.
      await sql`update vendor_attempts set next_poll_at = polled_at where state = 'pending'`;
      await stack.startWorker();
      await eventually(async () => {
        await stack.reconcile();
        const { requests, uploads } = await readOpen(sql);
        return (requests === 1 && uploads === 0) || null;
      });
      t.true(finder.asked(job, 'poll') > 0);
      t.is(finder.asked(job, 'submit'), 0);
      // Now the request without a result is overdue, and the delivery that failed is due.
      await clock.advance(2 * HOUR);
      await eventually(async () => {
        await stack.reconcile();
        const { requests, deliveries, uploads } = await readOpen(sql);
        return requests + deliveries + uploads === 0 || null;
      });

      const after = await readMoney(sql);
      t.true(countOf(after, 'charge') > countOf(before, 'charge') + 20);
      t.true(countOf(after, 'release') > countOf(before, 'release') + 3);
      const [overdue] = await sql`select reason from requests where npi = ${late}`;
      t.is(overdue?.reason, 'deadline');
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
          TEMPORAL_ADDRESS: temporal.address,
          TASK_QUEUE,
        },
      });
      t.is(doctor.code, 0, doctor.stdout);
    },
  );
}
