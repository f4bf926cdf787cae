import test from 'ava';
import { sql } from 'drizzle-orm';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { TASK_QUEUE } from '../../workflows/messages.ts';
import { fresh, testSetting } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { workerProcesses } from '../support/programs.ts';
import { startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests the worker as a process, as in production, and the state after kill -9 in the middle of a
// batch.

const FOUND = 20;
const NOT_FOUND = 10;

// This test needs its own Temporal, because the process uses the same task queue as every
// deployment.
const temporal = fresh(test, () =>
  startTemporal({
    cli: testSetting('TEST_TEMPORAL_CLI'),
    namespace: 'default',
  }),
);
const stack = fresh(test, () =>
  startStack({
    lookupTimeoutMs: 100_000,
    sweepIntervalMs: 1000,
    simulatorSpeed: 0.5,
    rocketReach: { call: '8s' },
    elsewhere: { temporalAddress: temporal.address, taskQueue: TASK_QUEUE },
  }),
);
const workers = fresh(test, async () => workerProcesses());

test.serial(
  'killing a worker during a batch loses nothing and charges nothing twice',
  async (t) => {
    const client = await stack.organization(100);
    const npis = [
      ...ordinaryNpis('found', FOUND),
      ...ordinaryNpis('not_found', NOT_FOUND),
    ];
    // Few lookups run at once, so that the batch takes long enough on any machine.
    const worker = await workers.start(stack, { LOOKUP_SLOTS: '5' });
    const { json } = await client.bulk({
      npis,
      webhook: { url: `${stack.receiver.url}/kill` },
    });

    const counts: number[] = [];
    const count = async () => {
      const { completed_count } = (await client.batch(json.batch_id)).batch;
      counts.push(completed_count);
      return completed_count;
    };
    await eventually(async () => ((await count()) >= 5 ? true : null));
    process.kill(worker.pid, 'SIGKILL');
    t.is(await worker.exited, 'signal SIGKILL');
    t.true((await count()) < npis.length, 'killed in the middle');

    await workers.start(stack);
    await eventually(async () => ((await count()) === npis.length ? true : null));
    t.deepEqual(
      counts,
      counts.toSorted((a, b) => a - b),
    );
    const envelope = await client.batch(json.batch_id);
    t.is(envelope.batch.status, 'completed');
    t.deepEqual(
      envelope.data.map(({ npi, status }) => [npi, status]),
      npis.map((npi, i) => [npi, i < FOUND ? 'completed' : 'not_found']),
    );
    t.deepEqual(await client.credits(), {
      balance: 100 - FOUND,
      total: 100,
      used: FOUND,
    });

    const entries = await stack.db.drizzle.execute<{
      status: string;
      entries: string;
    }>(sql`
    select r.status, string_agg(l.kind, '+' order by l.id) entries
      from requests r join ledger_entries l on l.request_id = r.id
     where r.batch_id = ${json.batch_id} group by r.id`);
    t.is(entries.length, npis.length);
    t.deepEqual(
      [...new Set(entries.map((row) => `${row.status}: ${row.entries}`))].sort(),
      ['completed: hold+charge', 'not_found: hold+release'],
    );
    for (const npi of npis) {
      const bought = stack.simulator
        .calls()
        .filter(({ subject }) => subject === npi).length;
      t.true(bought >= 1 && bought <= 2, `${npi} was looked up ${bought} times`);
    }

    // An attempt that died with the worker is repeated by the delivery's own workflow.
    await eventually(async () =>
      (await client.batch(json.batch_id)).webhook?.status === 'delivered' ? true : null,
    );
    const bodies = stack.receiver
      .deliveries()
      .map(({ body }) => JSON.parse(body).data[0]);
    t.is(new Set(bodies.map((item) => item.request_id)).size, npis.length);
    t.deepEqual([...new Set(bodies.map((item) => item.status))].sort(), [
      'completed',
      'not_found',
    ]);
  },
);

test.serial(
  'after a worker is killed, open vendor jobs are polled, not paid for again',
  async (t) => {
    await workers.stop();
    const client = await stack.organization(100);
    const npis = ordinaryNpis('found_later', 10, 5000);
    const worker = await workers.start(stack);
    const { json } = await client.bulk({ npis });
    const jobs = async () => {
      const rows = await stack.db.drizzle.execute<{ npi: string }>(sql`
      select l.npi from vendor_attempts a join lookups l on l.id = a.lookup_id
       where a.state = 'pending' and a.job_ref is not null and l.npi in ${npis}`);
      return rows.length;
    };
    await eventually(async () => ((await jobs()) === npis.length ? true : null));
    process.kill(worker.pid, 'SIGKILL');
    await worker.exited;
    t.is(
      await jobs(),
      npis.length,
      'every job is in the database, and none has a response',
    );

    await workers.start(stack);
    const envelope = await client.completed(json.batch_id);
    t.deepEqual([...new Set(envelope.data.map(({ status }) => status))], ['completed']);
    for (const npi of npis) {
      const bought = stack.simulator
        .calls()
        .filter(
          ({ route, subject }) => route === 'GET /person/lookup' && subject === npi,
        );
      t.is(bought.length, 1, npi);
    }
    t.deepEqual(await client.credits(), { balance: 90, total: 100, used: 10 });
  },
);
