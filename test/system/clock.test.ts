import { randomBytes } from 'node:crypto';
import test from 'ava';
import { Webhook } from 'standardwebhooks';
import { showWebhookSecret } from '../../db/accounts/webhook-secrets.ts';
import { findUpload } from '../../db/uploads/uploads.ts';
import { testSetting } from '../support/database.ts';
import { eventually, submitAccepted } from '../support/organization.ts';
import { workerProcesses } from '../support/programs.ts';
import { startStack } from '../support/stack.ts';
import { startedUpload } from '../support/uploads.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests that a worker's clock may be five minutes off. Only PostgreSQL's and Temporal's clocks
// decide. PostgreSQL's clock may be set back, for example by a failover (test/db/set-back.test.ts).

const STEPS = { 'five minutes ahead': 300_000, 'five minutes behind': -300_000 };
/** RocketReach works on this NPI first and has to be polled. */
const [LATER = ''] = ordinaryNpis('found_later', 1);
const [FOUND = ''] = ordinaryNpis('found', 1);
/** RocketReach first returns a rate limit with its duration, and then finds this NPI. */
const LIMITED = '2000000127';
const workers = workerProcesses();

test.after.always(() => workers.stop());

for (const [title, stepMs] of Object.entries(STEPS)) {
  test.serial(`a worker works normally even if its clock is ${title}`, async (t) => {
    const stack = await startStack({
      elsewhere: {
        temporalAddress: testSetting('TEST_TEMPORAL_ADDRESS'),
        taskQueue: `enrichment-${randomBytes(8).toString('hex')}`,
      },
    });
    t.teardown(() => stack.stop());
    const preload = new URL('../support/stepped-clock.ts', import.meta.url);
    await workers.start(stack, {
      NODE_OPTIONS: `--import=${preload}`,
      CLOCK_STEP_MS: String(stepMs),
    });
    const client = await stack.organization();
    const npis = [LATER, FOUND, LIMITED, '2000000044', '2000000101'];
    const { json } = await client.bulk({
      npis,
      webhook: { url: `${stack.receiver.url}/clock` },
    });
    // The last one hangs at the vendor until its deadline.
    const waited = await eventually(async () => {
      const { data, batch } = await client.batch(json.batch_id);
      return batch.completed_count === npis.length - 1 ? data : null;
    });
    t.deepEqual(
      waited.map(({ status }) => status),
      ['completed', 'completed', 'completed', 'not_found', 'in-progress'],
    );
    const { webhookSecret } = await showWebhookSecret(stack.db, client.organizationId);
    const deliveries = await eventually(async () => {
      const received = stack.receiver.deliveries();
      return received.length === npis.length - 1 ? received : null;
    });
    for (const { body, headers } of deliveries) {
      t.notThrows(() =>
        new Webhook(webhookSecret).verify(body, headers as Record<string, string>),
      );
    }
    await workers.stop();
  });
}

test.serial(
  "work goes on after PostgreSQL's clock was set back by ten minutes",
  async (t) => {
    const stack = await startStack({
      travels: true,
      rocketReach: { rates: ['5/1s'] },
      sweepIntervalMs: 1000,
    });
    t.teardown(() => stack.stop());
    const client = await stack.organization();
    const { organizationId } = client;
    const npis = ordinaryNpis('found', 40, 70_000);
    let sent = 0;
    /** Does each kind of work, and waits for its end, which takes much less than ten minutes. */
    const work = async () => {
      const webhook = { url: `${stack.receiver.url}/set-back` };
      const { json } = await client.bulk({ npis: npis.splice(0, 8), webhook });
      const uploadId = await startedUpload(stack.db, client, npis.splice(0, 4));
      const { data } = await client.completed(json.batch_id);
      t.true(data.every(({ status }) => status === 'completed'));
      sent += data.length;
      await eventually(async () => {
        const upload = await findUpload(stack.db, { organizationId, uploadId });
        return upload?.final === 4 || null;
      });
      await eventually(async () => stack.receiver.deliveries().length >= sent || null);
    };
    await stack.clock?.advance(600_000);
    await work();
    // Accepted by an API that died before it started the workflow.
    const { batchId } = await submitAccepted(stack.db, client, {
      npis: npis.splice(0, 1),
    });
    await stack.clock?.advance(-600_000);
    await client.completed(batchId);
    await work();
  },
);
