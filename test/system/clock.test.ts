import { randomBytes } from 'node:crypto';
import test from 'ava';
import { Webhook } from 'standardwebhooks';
import { showWebhookSecret } from '../../db/accounts/webhook-secrets.ts';
import { testSetting } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { workerProcesses } from '../support/programs.ts';
import { startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests that a worker's clock may be five minutes off. Only PostgreSQL's and Temporal's clocks
// decide.

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
