import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import test, { type ExecutionContext } from 'ava';
import postgres from 'postgres';
import { submit } from '../../db/requests/submit.ts';
import { personOf } from '../../deploy/local/sim/people.ts';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { TASK_QUEUE } from '../../workflows/messages.ts';
import { fresh, temporaryFolder, testSetting } from '../support/database.ts';
import {
  acceptedIds,
  eventually,
  RULES,
  submitCommand,
} from '../support/organization.ts';
import { workerProcesses } from '../support/programs.ts';
import { startRelay } from '../support/relay.ts';
import { startStack } from '../support/stack.ts';
import { endTurn, isWaitingForTurn, lockRows } from '../support/turns.ts';
import { ordinaryNpis, serveVendor } from '../support/vendors.ts';

// Tests the worker as a process, as in production: after kill -9 in the middle of a batch, and after it
// lost its connection to Temporal.

const LOOKUP_TIMEOUT_MS = 300_000;

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
    lookupTimeoutMs: LOOKUP_TIMEOUT_MS,
    sweepIntervalMs: 1000,
    simulatorSpeed: 0.5,
    rocketReach: { call: '8s' },
    elsewhere: { temporalAddress: temporal.address, taskQueue: TASK_QUEUE },
  }),
);
const workers = fresh(test, async () => workerProcesses());

/**
 * Starts a server in front of the simulated sources. It holds the responses to calls that contain one
 * of the given texts, after the source got the call.
 */
async function startGate(t: ExecutionContext, ...texts: readonly string[]) {
  const held = new Map(texts.map((one) => [one, Promise.withResolvers<void>()]));
  const reached = new Set<string>();
  const open = new Map<string, number>();
  const overlaps: string[] = [];
  const { ROCKETREACH_URL = '', ROCKETREACH_API_KEY = '' } = stack.workerEnvironment;
  const { origin, pathname } = new URL(ROCKETREACH_URL);
  const url = await serveVendor(t, async (request, response) => {
    const body = request.method === 'POST' ? await text(request) : null;
    const key = texts.find((one) => `${request.url} ${body}`.includes(one));
    if (key !== undefined) {
      const others = open.get(key) ?? 0;
      if (others > 0) overlaps.push(key);
      open.set(key, others + 1);
      // `close` means that the response was sent, or that the caller closed the connection or died.
      response.once('close', () => open.set(key, (open.get(key) ?? 0) - 1));
    }
    const { host: _, connection: __, ...headers } = request.headers;
    const reply = await fetch(`${origin}${request.url}`, {
      method: request.method ?? 'GET',
      headers: headers as Record<string, string>,
      body,
    });
    const content = await reply.text();
    if (key !== undefined) {
      reached.add(key);
      await held.get(key)?.promise;
    }
    response.writeHead(reply.status, { 'content-type': 'application/json' });
    response.end(content);
  });
  // The calls are held for longer than the stack's settings allow.
  const sourcesFile = join(temporaryFolder(t.teardown), 'sources.json');
  writeFileSync(
    sourcesFile,
    JSON.stringify({ vendors: { rocketreach: { call: '180s' } } }),
  );
  return {
    /** The settings of workers that call the sources through this server. */
    settings: {
      SOURCES_FILE: sourcesFile,
      ROCKETREACH_URL: `${url}${pathname}`,
      REACHER_URL: `${url}/reacher`,
      REACHER_API_KEY: ROCKETREACH_API_KEY,
    },
    /** Waits until the source got all calls that are held. */
    isReached: () =>
      eventually(async () => (reached.size === texts.length ? true : null)),
    /** Lists the texts whose call began while another call with the same text was open. */
    overlaps: (): readonly string[] => overlaps,
    /** Waits until no call that contains one of the texts is open. */
    isEmpty: () =>
      eventually(async () => ([...open.values()].every((n) => n === 0) ? true : null)),
    release: (key: string) => held.get(key)?.resolve(),
    releaseAll() {
      for (const { resolve } of held.values()) resolve();
    },
  };
}

/** Returns the numbers of paid calls to the vendor and to the verifier for an NPI. */
function paid(npi: string): readonly [number, number] {
  const calls = stack.simulator.calls();
  const lookups = calls.filter(
    ({ route, subject }) => route === 'GET /person/lookup' && subject === npi,
  );
  const { workEmail, homeEmail } = personOf(npi);
  const checks = calls.filter(({ subject }) => {
    return subject === workEmail || subject === homeEmail;
  });
  return [lookups.length, checks.length];
}

test.serial(
  'a worker that is killed in every step of lookups buys no job twice',
  async (t) => {
    await workers.stop();
    const [called = '', checked = '', settled = '', planned = ''] = ordinaryNpis(
      'found',
      4,
      5000,
    );
    const [polled = ''] = ordinaryNpis('found_later', 1, 5000);
    const gate = await startGate(
      t,
      `npi_number=${called}`,
      `ids=${polled}`,
      personOf(checked).workEmail,
      `npi_number=${settled}`,
    );
    t.teardown(gate.releaseAll);
    const admin = postgres(stack.databaseUrl, { max: 3, onnotice: () => {} });
    t.teardown(() => admin.end({ timeout: 1 }));
    const worker = await workers.start(stack, gate.settings);
    const clients = [await stack.organization(10), await stack.organization(10)] as const;
    const shared = { npis: [called, polled, checked, settled] };
    const batches = await Promise.all(clients.map((client) => client.bulk(shared)));
    await gate.isReached();
    const [planner] = clients;
    const command = submitCommand(planner, { npis: [planned] });
    const rules = { ...RULES, lookupTimeoutMs: LOOKUP_TIMEOUT_MS };
    const { batchId } = acceptedIds(await submit(stack.db, command, rules));
    const requests = await lockRows(admin, 'requests', 'batch_id', [batchId]);
    await stack.startedWorkflow(batchId);
    await requests.isInTheWay();
    const ids = clients.map(({ organizationId }) => organizationId);
    const balances = await lockRows(admin, 'credit_balances', 'organization_id', ids);
    gate.release(`npi_number=${settled}`);
    await balances.isInTheWay();

    process.kill(worker.pid, 'SIGKILL');
    await worker.exited;
    gate.releaseAll();
    await requests.release();
    await balances.release();
    // The turns of the killed worker end.
    await admin`update lookups set turn_until = clock_timestamp() where turn_of is not null`;
    await workers.start(stack, gate.settings);
    for (const [n, client] of clients.entries()) {
      const { data } = await client.completed(batches[n]?.json.batch_id ?? '');
      t.deepEqual([...new Set(data.map(({ status }) => status))], ['completed']);
    }
    t.is((await planner.completed(batchId)).data[0]?.status, 'completed');
    t.deepEqual(await planner.credits(), { balance: 5, total: 10, used: 5 });
    t.deepEqual(await clients[1].credits(), { balance: 6, total: 10, used: 4 });

    t.deepEqual(paid(planned), [1, 1]);
    t.deepEqual(paid(called), [2, 1], 'the lost call is repeated once');
    const attempts = await admin`
      select a.state, a.credits::float8
        from vendor_attempts a join lookups l on l.id = a.lookup_id
       where l.npi = ${called}
         and a.vendor = 'rocketreach'
       order by a.n`;
    t.deepEqual(
      attempts.map(({ state, credits }) => [state, credits]),
      [
        ['lost', 1],
        ['found', 1],
      ],
      'the lost call counts, and its credits count as spent',
    );
    t.deepEqual(paid(polled), [1, 1]);
    t.deepEqual(paid(checked), [1, 2], 'the lost check is repeated once');
    t.deepEqual(paid(settled), [1, 1]);
  },
);

test.serial('a live worker that Temporal lost overlaps with no call', async (t) => {
  await workers.stop();
  const [answered = '', lost = '', checked = ''] = ordinaryNpis('found', 3, 6000);
  const gate = await startGate(
    t,
    `npi_number=${answered}`,
    `npi_number=${lost}`,
    personOf(checked).workEmail,
  );
  t.teardown(gate.releaseAll);
  const [host = '', port] = temporal.address.split(':');
  const relay = await startRelay({ host, port: Number(port) });
  t.teardown(relay.close);
  const client = await stack.organization(10);
  const first = await workers.start(stack, {
    ...gate.settings,
    TEMPORAL_ADDRESS: `${relay.host}:${relay.port}`,
  });
  const submitOne = async (npi: string) => {
    const { json } = await client.single({ npi });
    return { batchId: json.batch_id, id: json.requests[0]?.request_id ?? '' };
  };
  const early = await submitOne(answered);
  const late = [await submitOne(lost), await submitOne(checked)];
  await gate.isReached();

  // Without heartbeats, Temporal gives the activities to the second worker.
  relay.cut();
  await workers.start(stack, gate.settings);
  await eventually(async () => {
    if (gate.overlaps().length > 0) return true;
    const waits = [early, ...late].map(({ id }) => isWaitingForTurn(stack, id));
    return (await Promise.all(waits)).every(Boolean) || null;
  });
  t.deepEqual(gate.overlaps(), []);
  t.is(first.ending(), undefined, 'the first worker is alive, and so are its calls');

  // The second worker finds the response that the first one recorded.
  gate.release(`npi_number=${answered}`);
  t.is((await client.completed(early.batchId)).data[0]?.status, 'completed');

  // The other calls end without a response, and later their turns end.
  process.kill(first.pid, 'SIGKILL');
  await first.exited;
  await gate.isEmpty();
  gate.releaseAll();
  for (const { id } of late) t.not(await endTurn(stack, id), null);
  for (const { batchId } of late) {
    t.is((await client.completed(batchId)).data[0]?.status, 'completed');
  }
  t.deepEqual(gate.overlaps(), []);
  t.deepEqual(paid(answered), [1, 1]);
  t.deepEqual(paid(lost), [2, 1], 'the lost call is repeated once');
  t.deepEqual(paid(checked), [1, 2], 'the lost check is repeated once');
  t.deepEqual(await client.credits(), { balance: 7, total: 10, used: 3 });
});
