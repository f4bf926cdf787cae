import test from 'ava';
import { listBatchDeliveries } from '../../../../db/webhooks/log.ts';
import { fresh, temporaryFolder } from '../../../support/database.ts';
import { startHostileReceiver } from '../../../support/deliveries.ts';
import { eventually } from '../../../support/organization.ts';
import { startStack } from '../../../support/stack.ts';

// Tests deliveries to misbehaving receivers, with the whole service.

/** An NPI with a wrong check digit, which ends as `not_found` without a lookup. */
const NOBODY = '1234567890';

const stack = fresh(test, () =>
  startStack({ webhookScheduleMs: [0, 200], sweepIntervalMs: 1000 }),
);
const dir = temporaryFolder(test.after.always);

async function deliveriesOf(organizationId: string, batchId: string) {
  const page = await listBatchDeliveries(stack.db, organizationId, batchId, {
    after: null,
    limit: 60,
  });
  return page?.deliveries ?? [];
}

async function decided(organizationId: string, batchId: string) {
  return await eventually(async () => {
    const deliveries = await deliveriesOf(organizationId, batchId);
    return deliveries.every(({ state }) => state !== 'pending') ? deliveries : null;
  });
}

test('sixteen hostile receivers cause only the expected errors in the webhook log', async (t) => {
  const { hostilities, close } = await startHostileReceiver(stack.receiver, dir);
  t.teardown(close);
  t.is(hostilities.length, 16);
  const client = await stack.organization();
  const batches = await Promise.all(
    hostilities.map(
      async ({ url }) =>
        (await client.single({ npi: NOBODY, webhook: { url } })).json.batch_id,
    ),
  );
  for (const [index, { what, state, reasons }] of hostilities.entries()) {
    const [delivery] = await decided(client.organizationId, batches[index] ?? '');
    t.is(delivery?.state, state, what);
    t.deepEqual(
      // On a machine without a resolver, an unknown name fails in another way.
      delivery?.log.map(({ reason }) =>
        reason === 'dns_failed' ? 'dns_not_found' : reason,
      ),
      reasons,
      what,
    );
    for (const { responseExcerpt } of delivery?.log ?? [])
      t.true((responseExcerpt?.length ?? 0) <= 1024, what);
  }
});
