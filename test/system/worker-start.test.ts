import { randomBytes } from 'node:crypto';
import test, { type ExecutionContext } from 'ava';
import { sql } from 'drizzle-orm';
import { listVersions } from '../../db/operations/workers.ts';
import { launch } from '../../deploy/local/processes.ts';
import { LOOPBACK } from '../../deploy/ports.ts';
import { testSetting } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { programCommand, runProgram } from '../support/programs.ts';
import { startSilent } from '../support/refusing.ts';
import { startRelay } from '../support/relay.ts';
import { type Stack, startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests a worker that starts or runs while Temporal is unstable.

/** The first bytes of an HTTP/2 connection. */
const PREFACE = 'PRI * HTTP/2.0';
/**
 * The connection to cut. The first one checks Temporal, the second belongs to the client, and the
 * third to the workers.
 */
const CUT_AT = 3;

const [HOST = LOOPBACK, PORT] = testSetting('TEST_TEMPORAL_ADDRESS').split(':');

/** Starts the service without a worker. */
async function startWithoutWorker(t: ExecutionContext): Promise<Stack> {
  const temporalAddress = testSetting('TEST_TEMPORAL_ADDRESS');
  const taskQueue = `enrichment-${randomBytes(8).toString('hex')}`;
  const stack = await startStack({ elsewhere: { temporalAddress, taskQueue } });
  t.teardown(() => stack.stop());
  return stack;
}

/**
 * Starts a worker that reaches Temporal through a relay.
 * @returns a function that waits until the worker has logged a text
 */
function startWorkerAt(t: ExecutionContext, stack: Stack, relayPort: number) {
  let output = '';
  const env = {
    ...stack.workerEnvironment,
    TEMPORAL_ADDRESS: `${LOOPBACK}:${relayPort}`,
  };
  const worker = launch({
    name: 'worker',
    ...programCommand('worker', [], { env }),
    onLine: (line) => (output += `${line}\n`),
  });
  t.teardown(() => worker.stop());
  const says = (what: string) =>
    eventually(async () => {
      if (worker.ending() !== undefined) throw new Error(`the worker ended: ${output}`);
      return output.includes(what) || null;
    });
  return { says, output: () => output };
}

test('a worker survives an outage of Temporal during its start', async (t) => {
  const stack = await startWithoutWorker(t);
  let connections = 0;
  const relay = await startRelay({ host: HOST, port: Number(PORT) }, (sent) => {
    if (sent.startsWith(PREFACE)) connections += 1;
    if (sent.startsWith(PREFACE) && connections === CUT_AT) relay.cut();
    return sent;
  });
  t.teardown(() => relay.close());

  const { says, output } = startWorkerAt(t, stack, relay.port);
  await says(
    '"msg":"Temporal went away while the worker started; the start is tried again"',
  );
  t.false(output().includes('"worker ready"'));
  relay.mend();
  await says('"worker ready"');

  const client = await stack.organization(1);
  const { json } = await client.bulk({ npis: ordinaryNpis('found', 1) });
  const { data } = await client.completed(json.batch_id);
  t.is(data[0]?.status, 'completed');
});

test('a worker counts as alive while Temporal does not respond', async (t) => {
  const stack = await startWithoutWorker(t);
  const relay = await startRelay({ host: HOST, port: Number(PORT) });
  t.teardown(() => relay.close());
  const { says } = startWorkerAt(t, stack, relay.port);
  await says('"worker ready"');
  relay.hold();
  // The second heartbeat would not come if the first one waited for Temporal.
  for (let beat = 1; beat <= 2; beat += 1) {
    await stack.db.drizzle.execute(
      sql`update workers set seen_at = seen_at - interval '1 hour'`,
    );
    await eventually(async () => (await listVersions(stack.db)).at(0) ?? null);
  }
  const env = {
    DATABASE_URL: stack.databaseUrl,
    TEMPORAL_ADDRESS: await startSilent(t),
    TASK_QUEUE: stack.taskQueue,
  };
  const hangs =
    /Temporal at \S+ does not respond within 3 s; .*\(gRPC 4 DEADLINE_EXCEEDED: /;
  const status = await runProgram('operator', ['status'], { env });
  t.regex(status.stdout, hangs);
  t.notRegex(status.stdout, /worker is alive|workers wait|hangs|no sweep/);
  const doctor = await runProgram('operator', ['doctor'], { env });
  t.regex(doctor.stdout, hangs);
});
