import test from 'ava';
import { Webhook } from 'standardwebhooks';
import { adjustCredits } from '../../db/accounts/credits.ts';
import { showWebhookSecret } from '../../db/accounts/webhook-secrets.ts';
import { listOrganizationDeliveries } from '../../db/webhooks/log.ts';
import {
  createLowCreditMessage,
  setLowCreditAlert,
} from '../../db/webhooks/low-credits.ts';
import { violations } from '../support/conformance.ts';
import { fresh } from '../support/database.ts';
import { resendOne } from '../support/deliveries.ts';
import { eventually } from '../support/organization.ts';
import { status } from '../support/receiver.ts';
import { startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests the webhook `credits.low` as its receiver sees it (api/docs/webhooks.md, Low credits).

const BY = { actor: 'test', reason: 'test' };
const stack = fresh(test, () => startStack());

/** Opens an organization with 10 credits and an alert. */
async function watched(threshold: number, url: string) {
  const client = await stack.organization(10);
  await setLowCreditAlert(stack.db, BY, client.organizationId, { threshold, url });
  return client;
}

function arrived(path: string) {
  return stack.receiver.deliveries().filter((delivery) => delivery.path === path);
}

/** Sweeps until the newest delivery of an organization has succeeded or failed. */
async function decided(organizationId: string) {
  return await eventually(async () => {
    await stack.reconcile();
    const { deliveries } = await listOrganizationDeliveries(
      stack.db,
      organizationId,
      { status: null, since: null, until: null },
      { after: null, limit: 1 },
    );
    const [newest] = deliveries;
    if (newest === undefined || newest.state === 'pending') return null;
    return newest;
  });
}

test('a submit that leaves fewer credits than the threshold causes one signed webhook', async (t) => {
  const path = '/low/once';
  const client = await watched(10, `${stack.receiver.url}${path}`);
  const { organizationId } = client;
  await client.bulk({ npis: ordinaryNpis('found', 2) });
  t.like(await decided(organizationId), { state: 'delivered', batchId: null });
  await stack.reconcile();
  const [message, ...more] = arrived(path);
  if (message === undefined) return t.fail('nothing arrived');
  t.deepEqual(more, []);
  const { webhookSecret } = await showWebhookSecret(stack.db, organizationId);
  const headers = message.headers as Record<string, string>;
  const body = new Webhook(webhookSecret).verify(message.body, headers);
  t.deepEqual(violations('#/components/schemas/CreditsLow', body), []);
  const { timestamp, data } = body as {
    readonly timestamp: string;
    readonly data: { readonly held: number };
  };
  t.is(new Date(timestamp).toISOString(), timestamp);
  // The lookups may have ended before the message was created.
  const { held } = data;
  t.true(held >= 0 && held <= 2);
  t.deepEqual(body, {
    type: 'credits.low',
    timestamp,
    data: { threshold: 10, available: 8, held },
  });
  t.regex(message.id, /^msg_/);
});

// Runs alone, because the sweeps of other tests would create the message.
test.serial(
  'a credits.low whose workflow was lost in a crash is still sent',
  async (t) => {
    const path = '/low/crash';
    const { organizationId } = await watched(10, `${stack.receiver.url}${path}`);
    await adjustCredits(stack.db, BY, organizationId, -1);
    t.true(await createLowCreditMessage(stack.workerDb, organizationId));
    t.is((await decided(organizationId)).state, 'delivered');
    t.is(arrived(path).length, 1);
  },
);

test('a failed credits.low is retried with the same id, and can be resent', async (t) => {
  const path = '/low/retried';
  stack.receiver.setBehavior(path, status(500));
  const { organizationId } = await watched(11, `${stack.receiver.url}${path}`);
  const failed = await decided(organizationId);
  t.like(failed, { state: 'failed', attempts: 4 });
  stack.receiver.setBehavior(path, null);
  t.is((await resendOne(stack.db, failed.id)).kind, 'resent');
  t.like(await decided(organizationId), { state: 'delivered', attempts: 5 });
  const ids = arrived(path).map(({ id }) => id);
  t.deepEqual([...new Set(ids)], [failed.id]);
});

test('a credits.low to a private address fails without a connection', async (t) => {
  const { organizationId } = await watched(11, 'https://10.0.0.1/low');
  const failed = await decided(organizationId);
  t.is(failed.state, 'failed');
  t.deepEqual(
    failed.log.map(({ reason }) => reason),
    ['blocked_address'],
  );
});
