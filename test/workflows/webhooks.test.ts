import type { ServerResponse } from 'node:http';
import anyTest, { type TestFn } from 'ava';
import { sql } from 'drizzle-orm';
import { Webhook } from 'standardwebhooks';
import { suspendWebhooks } from '../../db/accounts/organizations.ts';
import {
  rotateWebhookSecret,
  showWebhookSecret,
} from '../../db/accounts/webhook-secrets.ts';
import type { ReceivedDelivery } from '../../deploy/local/receiver.ts';
import { fresh } from '../support/database.ts';
import { countEvents } from '../support/histories.ts';
import { BY, type EnvelopeResponse, eventually } from '../support/organization.ts';
import { type Behavior, status } from '../support/receiver.ts';
import { startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests deliveries as a receiver sees them (api/docs/webhooks.md, Webhooks; DECISIONS.md,
// Webhooks).

const test = anyTest as TestFn<{ path: string; url: string }>;
const SCHEDULE_MS = [0, 100, 200, 300];
const [FOUND = '', FOUND_TOO = '', KNOWN = ''] = ordinaryNpis('found', 3);
const [NOBODY = ''] = ordinaryNpis('not_found', 1);

const stack = fresh(test, () => startStack({ webhookScheduleMs: SCHEDULE_MS }));
let paths = 0;

test.beforeEach((t) => {
  paths += 1;
  t.context.path = `/hook/${paths}`;
  t.context.url = `${stack.receiver.url}${t.context.path}`;
});

function arrived(path: string): ReceivedDelivery[] {
  return stack.receiver.deliveries().filter((delivery) => delivery.path === path);
}

function envelopeOf({ body }: Pick<ReceivedDelivery, 'body'>): EnvelopeResponse {
  return JSON.parse(body);
}

/**
 * Waits until the batch workflow has ended and every delivery is decided. Nothing is sent
 * afterwards.
 */
async function over(batchId: string) {
  await (await stack.startedWorkflow(batchId)).result();
  await eventually(async () =>
    (await deliveriesOf(batchId, "state = 'pending'")).length === 0 ? true : null,
  );
}

async function deliveriesOf(batchId: string, condition: string): Promise<string[]> {
  const rows = await stack.db.drizzle.execute<{ id: string }>(
    sql`select id from webhook_deliveries where batch_id = ${batchId} and ${sql.raw(condition)}`,
  );
  return rows.map(({ id }) => id);
}

function verify(delivery: ReceivedDelivery, secret: string): unknown {
  return new Webhook(secret).verify(
    delivery.body,
    delivery.headers as Record<string, string>,
  );
}

/** Returns the number of attempts that began before the requests they report were final. */
async function prematureAttempts(batchId: string): Promise<number> {
  const [row] = await stack.db.drizzle.execute<{
    premature: string;
    attempts: string;
  }>(sql`
    select count(*) filter (where a.started_at < r.settled_at) premature, count(*) attempts
      from webhook_attempts a join webhook_deliveries d on d.id = a.delivery_id
      join requests r on r.batch_id = d.batch_id and (d.request_id is null or r.id = d.request_id)
     where d.batch_id = ${batchId}`);
  if (!Number(row?.attempts)) throw new Error('no attempt was recorded');
  return Number(row?.premature);
}

test('in real-time mode, each final request gets its own signed webhook', async (t) => {
  const { url, path } = t.context;
  const client = await stack.organization();
  const { webhookSecret } = await showWebhookSecret(stack.db, client.organizationId);
  const npis = [FOUND, NOBODY, '1234567890'];
  const { json } = await client.bulk({
    npis,
    webhook: { url },
    custom_data: { patient: 'none' },
  });
  const envelope = await client.completed(json.batch_id);
  await over(json.batch_id);

  const bodies = new Map(
    arrived(path).map((one) => [envelopeOf(one).data[0]?.request_id, one]),
  );
  t.is(bodies.size, npis.length);
  for (const item of envelope.data) {
    const delivery = bodies.get(item.request_id);
    if (!delivery) return t.fail(`nothing was delivered for ${item.npi}`);
    const body = envelopeOf(delivery);
    t.deepEqual(verify(delivery, webhookSecret), body);
    t.deepEqual(body.data, [item]);
    t.deepEqual(body.webhook, { url, mode: 'real-time', status: 'pending' });
    t.deepEqual(body.custom_data, { patient: 'none' });
    t.is(body.usage.credits_used, item.status === 'completed' ? 1 : 0);
    t.is(body.batch.id, json.batch_id);
    t.is(body.batch.total, npis.length);
    t.true(body.batch.completed_count >= 1);
    t.is(delivery.headers['content-type'], 'application/json');
    t.truthy(delivery.headers['user-agent']);
  }
  t.is(new Set(arrived(path).map(({ id }) => id)).size, npis.length);
  t.is(await prematureAttempts(json.batch_id), 0);

  const [delivery] = arrived(path);
  const otherSecret = (
    await showWebhookSecret(stack.db, (await stack.organization(0)).organizationId)
  ).webhookSecret;
  t.throws(() => delivery && verify(delivery, otherSecret));
});

test('in batch mode, a completed batch gets one webhook with all its requests', async (t) => {
  const { url, path } = t.context;
  const client = await stack.organization();
  const npis = [FOUND_TOO, NOBODY, FOUND_TOO];
  const { json } = await client.bulk({ npis, webhook: { url, mode: 'batch' } });
  await over(json.batch_id);
  const [delivery, ...more] = arrived(path);
  if (!delivery) return t.fail('nothing was delivered');
  t.is(more.length, 0);
  const { webhook, batch, ...delivered } = envelopeOf(delivery);
  const polled = await client.batch(json.batch_id);
  t.deepEqual(delivered, { custom_data: null, usage: polled.usage, data: polled.data });
  t.is(polled.data.length, npis.length);
  t.deepEqual(webhook, { url, mode: 'batch', status: 'pending' });
  t.deepEqual({ ...batch, updated_at: '' }, { ...polled.batch, updated_at: '' });
  t.is(batch.completed_count, npis.length);
  t.is(await prematureAttempts(json.batch_id), 0);
});

test('a submit that is completed at once gets its webhooks in both modes', async (t) => {
  const { url, path } = t.context;
  const first = await stack.organization();
  await first.completed((await first.single({ npi: KNOWN })).json.batch_id);

  // The organization that paid gets a replay. Another one gets the stored email.
  const other = await stack.organization();
  const submits = [
    await first.single({ npi: KNOWN, webhook: { url: `${url}/replay` } }),
    await first.single({
      npi: KNOWN,
      webhook: { url: `${url}/replay-batch`, mode: 'batch' },
    }),
    await other.single({ npi: KNOWN, webhook: { url: `${url}/stored` } }),
  ];
  for (const submit of submits) {
    t.is(submit.json.status, 'completed');
    await over(submit.json.batch_id);
  }
  const item = (suffix: string) => {
    const [delivery, ...more] = arrived(`${path}/${suffix}`);
    t.is(more.length, 0);
    return delivery && envelopeOf(delivery).data[0];
  };
  t.like(item('replay'), { npi: KNOWN, status: 'completed', replayed: true });
  t.like(item('replay-batch'), { npi: KNOWN, status: 'completed', replayed: true });
  t.like(item('stored'), { npi: KNOWN, status: 'completed', replayed: false });
});

test('a webhook that is retried after a 500 keeps its ID and is pending until delivered', async (t) => {
  const { url, path } = t.context;
  const client = await stack.organization();
  const held: ServerResponse[] = [];
  const behavior: Behavior = (response) => {
    if (arrived(path).length < SCHEDULE_MS.length) status(500)(response);
    else held.push(response);
  };
  stack.receiver.setBehavior(path, behavior);
  const { json } = await client.single({ npi: FOUND, webhook: { url } });
  const last = await eventually(async () => held[0] ?? null);
  const pollUrl = json.requests[0]?.poll_url ?? '';
  t.is((await client.get(pollUrl)).json.webhook?.status, 'pending');
  t.is((await client.batch(json.batch_id)).webhook?.status, 'pending');
  status(200)(last);
  await over(json.batch_id);
  t.is((await client.get(pollUrl)).json.webhook?.status, 'delivered');
  t.is((await client.batch(json.batch_id)).webhook?.status, 'delivered');

  const attempts = arrived(path);
  t.is(attempts.length, SCHEDULE_MS.length);
  t.is(new Set(attempts.map(({ id }) => id)).size, 1);
  t.is(
    new Set(attempts.map((attempt) => JSON.stringify(envelopeOf(attempt).data))).size,
    1,
  );

  // The batch made the first attempt. One activity in the delivery's own workflow made the others.
  const [first, own] = await Promise.all(
    [json.batch_id, attempts[0]?.id ?? ''].map((id) =>
      stack.client.workflow.getHandle(id).fetchHistory(),
    ),
  );
  t.is(
    first && countEvents(first).StartChildWorkflowExecutionInitiated,
    2,
    'the lookup and the delivery',
  );
  const { ActivityTaskScheduled, ActivityTaskStarted, ActivityTaskCompleted, ...rest } =
    own ? countEvents(own) : {};
  t.deepEqual(
    [ActivityTaskScheduled, ActivityTaskStarted, ActivityTaskCompleted],
    [1, 1, 1],
  );
  t.is(rest.ActivityTaskFailed, undefined);
  const started = (own?.events ?? []).find(
    (event) => event.activityTaskStartedEventAttributes,
  );
  const { attempt, lastFailure } = started?.activityTaskStartedEventAttributes ?? {};
  t.true(
    Number(attempt) >= SCHEDULE_MS.length - 1,
    'the attempts after the first, and the wait for the second',
  );
  // The wait comes from the schedule, ±20 %. The retry policy would have waited for seconds.
  const delay = lastFailure?.applicationFailureInfo?.nextRetryDelay;
  const waited = Number(delay?.seconds ?? 0) * 1000 + (delay?.nanos ?? 0) / 1e6;
  t.true(waited >= 0.8 * 300 && waited <= 1.2 * 300, `${waited} ms`);
});

test('a batch with a failed and a delivered webhook has the webhook status failed', async (t) => {
  const { url, path } = t.context;
  const client = await stack.organization();
  let refused = '';
  const behavior: Behavior = (response) => {
    refused ||= arrived(path)[0]?.id ?? '';
    status(response.req.headers['webhook-id'] === refused ? 410 : 204)(response);
  };
  stack.receiver.setBehavior(path, behavior);
  const { json } = await client.bulk({ npis: [FOUND, NOBODY], webhook: { url } });
  await over(json.batch_id);
  t.is(arrived(path).length, SCHEDULE_MS.length + 1);
  const ids = arrived(path).map((delivery) => envelopeOf(delivery).data[0]?.request_id);
  const [first, second] = new Set(ids);
  const single = async (id?: string) =>
    (await client.get(`/api/v1/email/${id}`)).json.webhook?.status;
  t.is(await single(first), 'failed');
  t.is(await single(second), 'delivered');
  t.is((await client.batch(json.batch_id)).webhook?.status, 'failed');
});

test('requests submitted while webhooks are suspended have the webhook status "none"', async (t) => {
  const { url, path } = t.context;
  const client = await stack.organization();
  await suspendWebhooks(stack.db, BY, client.organizationId, true);
  const single = await client.single({ npi: FOUND, webhook: { url } });
  const bulk = await client.bulk({
    npis: [FOUND, NOBODY],
    webhook: { url, mode: 'batch' },
  });
  for (const { json } of [single, bulk]) {
    await over(json.batch_id);
    const { webhook } = await client.completed(json.batch_id);
    t.deepEqual(webhook, {
      url,
      mode: json === bulk.json ? 'batch' : 'real-time',
      status: 'none',
    });
  }
  t.is(arrived(path).length, 0);

  await suspendWebhooks(stack.db, BY, client.organizationId, false);
  await over((await client.single({ npi: FOUND, webhook: { url } })).json.batch_id);
  t.is(arrived(path).length, 1);
});

test('after a rotation of the secret, webhooks have a signature by each secret', async (t) => {
  const { url, path } = t.context;
  const client = await stack.organization();
  const { organizationId } = client;
  const before = await showWebhookSecret(stack.db, organizationId);
  const after = await rotateWebhookSecret(stack.db, BY, organizationId);
  t.not(before.webhookSecret, after.webhookSecret);
  await over((await client.single({ npi: FOUND, webhook: { url } })).json.batch_id);
  const [delivery] = arrived(path);
  if (!delivery) return t.fail('nothing was delivered');
  t.is(String(delivery.headers['webhook-signature']).match(/\bv1,/g)?.length, 2);
  t.notThrows(() => verify(delivery, before.webhookSecret));
  t.notThrows(() => verify(delivery, after.webhookSecret));
});
