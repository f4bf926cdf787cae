import test from 'ava';
import { listBatchDeliveries } from '../../../../db/webhooks/log.ts';
import { resendAny, resendFailed } from '../../../../db/webhooks/resends.ts';
import { fresh, temporaryFolder } from '../../../support/database.ts';
import { startHostileReceiver } from '../../../support/deliveries.ts';
import { eventually } from '../../../support/organization.ts';
import { status } from '../../../support/receiver.ts';
import { startStack } from '../../../support/stack.ts';

// Tests deliveries to misbehaving receivers, and resends, with the whole service.

const BY = { actor: 'test', reason: 'test' };
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

test('an operator can resend one failed webhook or all of them, and they arrive', async (t) => {
  const client = await stack.organization();
  const path = '/resent';
  const url = `${stack.receiver.url}${path}`;
  stack.receiver.setBehavior(path, status(410));
  const { json } = await client.bulk({ npis: Array(5).fill(NOBODY), webhook: { url } });
  const failed = await decided(client.organizationId, json.batch_id);
  t.deepEqual([...new Set(failed.map(({ state }) => state))], ['failed']);
  t.is((await client.batch(json.batch_id)).webhook?.status, 'failed');

  stack.receiver.setBehavior(path, null);
  const [first] = failed;
  t.is((await resendAny(stack.db, BY, first?.id ?? '')).kind, 'resent');
  t.is((await client.batch(json.batch_id)).webhook?.status, 'pending');
  await decided(client.organizationId, json.batch_id);
  t.is((await client.batch(json.batch_id)).webhook?.status, 'failed');

  const since = {
    organizationId: client.organizationId,
    since: new Date(0),
    until: new Date(),
  };
  t.deepEqual(await resendFailed(stack.db, BY, { ...since, limit: 100 }), {
    resent: 4,
    more: false,
  });
  const done = await decided(client.organizationId, json.batch_id);
  t.deepEqual(
    [...new Set(done.map(({ state, resends }) => `${state} ${resends}`))],
    ['delivered 1'],
  );
  t.is((await client.batch(json.batch_id)).webhook?.status, 'delivered');
  const arrived = stack.receiver
    .deliveries()
    .filter((delivery) => delivery.path === path);
  // Two attempts of the first round, and one of the resend.
  for (const { id } of failed)
    t.is(arrived.filter((delivery) => delivery.id === id).length, 3);
});
