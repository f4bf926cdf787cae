import { once } from 'node:events';
import { Context } from '@temporalio/activity';
import test from 'ava';
import { sql } from 'drizzle-orm';
import { readSourceStats } from '../../db/lookups/source-stats.ts';
import { loadConfig } from '../../deploy/config/config.ts';
import { fresh } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { startStack } from '../support/stack.ts';
import {
  aborted,
  createScriptedVendor,
  foundStep,
  ordinaryNpis,
  serveVendor,
} from '../support/vendors.ts';

// Tests failures of workers, vendors, and steps during a lookup. After each failure every request ends
// once, and every credit is charged for an email or refunded.

const vendor = createScriptedVendor();
const npis = ordinaryNpis('found', 200);

const stack = fresh(test, () =>
  startStack({ lookupTimeoutMs: 60_000, providers: [vendor] }),
);

/** Returns NPIs that no other test of this file uses. */
function freshNpis(count: number): string[] {
  return npis.splice(0, count);
}

test('requests that expire while no worker runs are refunded when a worker starts again', async (t) => {
  const own = await startStack({ lookupTimeoutMs: 1500, sweepIntervalMs: 1000 });
  try {
    await own.stopWorker();
    const client = await own.organization();
    const { json } = await client.bulk({
      npis: ['2000000010', '2000000044'],
      webhook: { url: `${own.receiver.url}/away` },
    });
    t.is((await client.credits()).balance, 998);
    await eventually(async () => {
      const [row] = await own.db.drizzle.execute(
        sql`select 1 from batches where id = ${json.batch_id} and deadline_at < clock_timestamp()`,
      );
      return row ?? null;
    });
    await own.startWorker();
    const envelope = await client.completed(json.batch_id);
    t.deepEqual(
      envelope.data.map(({ status }) => status),
      ['failed', 'failed'],
    );
    t.deepEqual(await client.credits(), { balance: 1000, total: 1000, used: 0 });
    await (await own.startedWorkflow(json.batch_id)).result();
    t.is(own.receiver.deliveries().length, 2);
  } finally {
    await own.stop();
  }
});

// Serial, because the test fails if the call misses a heartbeat. The heartbeat timeout is a third
// of the deadline.
test.serial(
  'a request whose vendor hangs past the deadline fails and is refunded',
  async (t) => {
    const [npi = ''] = freshNpis(1);
    vendor.script(npi, ({ signal }) => aborted(signal));
    const client = await stack.organization();
    const { json } = await client.single({ npi, enrichment_email_type: 'personal' });
    t.is((await client.credits()).balance, 997);
    const envelope = await client.completed(json.batch_id);
    t.like(envelope.data[0], { status: 'failed', email: null });
    t.deepEqual(await client.credits(), { balance: 1000, total: 1000, used: 0 });
    const [row] = await stack.db.drizzle.execute<{ late: string; reason: string }>(
      sql`select extract(epoch from settled_at - deadline_at) late, reason from requests where batch_id = ${json.batch_id}`,
    );
    t.true(
      Number(row?.late) > -1 && Number(row?.late) < 15,
      `${row?.late} s after the deadline`,
    );
    t.is(row?.reason, 'deadline');
  },
);

// Serial, because the test fails if the call misses a heartbeat. The heartbeat timeout is a third
// of the deadline.
test.serial(
  'a result after the deadline is not charged, but stored for the next request',
  async (t) => {
    const [npi = ''] = freshNpis(1);
    vendor.script(npi, async ({ signal }) => {
      await once(Context.current().cancellationSignal, 'abort');
      signal.throwIfAborted();
      return foundStep(npi);
    });
    const client = await stack.organization();
    const { json } = await client.single({ npi });
    const envelope = await client.completed(json.batch_id);
    t.is(envelope.data[0]?.status, 'failed');
    await eventually(async () => {
      const rows = await stack.db.drizzle.execute(
        sql`select 1 from stored_emails where npi = ${npi} and verdict = 'valid'`,
      );
      return rows[0] ?? null;
    });
    t.deepEqual(await client.credits(), { balance: 1000, total: 1000, used: 0 });
    t.is((await client.batch(json.batch_id)).data[0]?.status, 'failed');

    const again = await client.single({ npi });
    t.is(again.json.status, 'completed');
    t.deepEqual(await client.credits(), { balance: 999, total: 1000, used: 1 });
    t.is(vendor.asked(npi, 'submit'), 1);
  },
);

// Serial, because starting other stacks at the same time could use up its deadline.
test.serial('a vendor job is not paid for again after a failed poll', async (t) => {
  const [npi = ''] = freshNpis(1);
  vendor.script(npi, ({ operation, nth }) => {
    if (operation === 'submit')
      return { kind: 'pending', jobRef: 'job-1', pollAfterMs: 50 };
    return nth === 1 ? { kind: 'retry', why: 'upstream', afterMs: 50 } : foundStep(npi);
  });
  const client = await stack.organization();
  const { json } = await client.single({ npi });
  t.is((await client.completed(json.batch_id)).data[0]?.status, 'completed');
  t.is(vendor.asked(npi, 'submit'), 1);
  t.is(vendor.asked(npi, 'poll'), 2);
});

test.serial(
  'requests complete once a vendor and a verifier recover from an outage',
  async (t) => {
    const away = new Set<string>();
    const unstable = createScriptedVendor('unstable');
    const expired = {
      kind: 'retry',
      why: 'unsent',
      cause: 'CERT_HAS_EXPIRED',
      afterMs: null,
    } as const;
    const lines: string[] = [];
    const baseUrl = await serveVendor(t, (_request, response) => {
      response.writeHead(away.has('reacher') ? 503 : 200, {
        'content-type': 'application/json',
      });
      response.end(JSON.stringify({ is_reachable: 'safe' }));
    });
    const { access } = loadConfig({ DATABASE_URL: stack.databaseUrl });
    const own = await startStack({
      providers: [unstable],
      access: { ...access, reacher: { baseUrl, apiKey: '' } },
      lookupTimeoutMs: 300_000,
      onLog: (line) => lines.push(line),
    });
    const healthOf = async (source: string) => {
      const [row] = await own.db.drizzle.execute<{ state: string; era: number }>(
        sql`select state, era from source_health where source = ${source}`,
      );
      return { ...row };
    };
    const opened = (source: string) =>
      eventually(async () => ((await healthOf(source)).state === 'open' ? true : null));
    try {
      const asked = freshNpis(12);
      for (const npi of asked) {
        const found = foundStep(npi);
        if (found.kind !== 'found') throw new Error(found.kind);
        // The vendor reports no mailbox check, so the verifier has to decide.
        const candidates = found.candidates.map((one) => ({
          ...one,
          verdict: 'unknown' as const,
        }));
        unstable.script(npi, () =>
          away.has('unstable') ? expired : { ...found, candidates },
        );
      }
      away.add('unstable').add('reacher');
      const client = await own.organization();
      const { json } = await client.bulk({ npis: asked });
      for (const source of ['unstable', 'reacher']) {
        await opened(source);
        away.delete(source);
      }
      const { data } = await client.completed(json.batch_id);
      t.deepEqual([...new Set(data.map(({ status }) => status))], ['completed']);
      // Each breaker opened once and closed once.
      for (const source of ['unstable', 'reacher'])
        t.deepEqual(await healthOf(source), { state: 'closed', era: 2 }, source);
      const logged = lines
        .map((line) => JSON.parse(line))
        .filter((line) => 'breaker' in line);
      const ofSource = (id: string) =>
        logged
          .filter(({ source }) => source === id)
          .map(({ breaker, why }) => [breaker, why]);
      t.deepEqual(ofSource('unstable'), [
        ['open', 'unsent: CERT_HAS_EXPIRED'],
        ['closed', undefined],
      ]);
      t.deepEqual(ofSource('reacher'), [
        ['open', 'upstream'],
        ['closed', undefined],
      ]);
      const figures = await readSourceStats(own.db, new Date(0));
      const errors = figures.find(({ source }) => source === 'unstable')?.errors;
      t.true((errors?.['retry: unsent: CERT_HAS_EXPIRED'] ?? 0) >= 5);
    } finally {
      await own.stop();
    }
  },
);
