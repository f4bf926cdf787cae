import { randomBytes } from 'node:crypto';
import test from 'ava';
import { LOOPBACK, launch } from '../../deploy/local/processes.ts';
import { testSetting } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { programCommand } from '../support/programs.ts';
import { startRelay } from '../support/relay.ts';
import { startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests a worker that starts while Temporal is unstable.

/** The first bytes of an HTTP/2 connection. */
const PREFACE = 'PRI * HTTP/2.0';
/**
 * The connection to cut. The first one checks Temporal, the second belongs to the client, and the
 * third to the workers.
 */
const CUT_AT = 3;

test('a worker survives an outage of Temporal during its start', async (t) => {
  const temporalAddress = testSetting('TEST_TEMPORAL_ADDRESS');
  const taskQueue = `enrichment-${randomBytes(8).toString('hex')}`;
  const stack = await startStack({ elsewhere: { temporalAddress, taskQueue } });
  t.teardown(() => stack.stop());
  let connections = 0;
  const [host = LOOPBACK, port] = temporalAddress.split(':');
  const relay = await startRelay({ host, port: Number(port) }, (sent) => {
    if (sent.startsWith(PREFACE)) connections += 1;
    if (sent.startsWith(PREFACE) && connections === CUT_AT) relay.cut();
    return sent;
  });
  t.teardown(() => relay.close());

  let output = '';
  const env = {
    ...stack.workerEnvironment,
    TEMPORAL_ADDRESS: `${LOOPBACK}:${relay.port}`,
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
  await says(
    '"msg":"Temporal went away while the worker started; the start is tried again"',
  );
  t.false(output.includes('"worker ready"'));
  relay.mend();
  await says('"worker ready"');

  const client = await stack.organization(1);
  const { json } = await client.bulk({ npis: ordinaryNpis('found', 1) });
  const { data } = await client.completed(json.batch_id);
  t.is(data[0]?.status, 'completed');
});
