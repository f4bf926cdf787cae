import test from 'ava';
import { sql } from 'drizzle-orm';
import { Webhook } from 'standardwebhooks';
import { showWebhookSecret } from '../../db/accounts/webhook-secrets.ts';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { TASK_QUEUE } from '../../workflows/messages.ts';
import { fresh, testSetting } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { workerProcesses } from '../support/programs.ts';
import { status } from '../support/receiver.ts';
import { startStack } from '../support/stack.ts';
import { storeEmail } from '../support/stored.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests deliveries while the worker is killed every few seconds.

const DELIVERIES = 300;
const KILLS = 4;
/** Milliseconds until the receiver responds. They give a kill as many open attempts as possible. */
const RESPONSE_MS = 300;

const temporal = fresh(test, () =>
  startTemporal({
    cli: testSetting('TEST_TEMPORAL_CLI'),
    namespace: 'default',
  }),
);
const stack = fresh(test, () =>
  startStack({ elsewhere: { temporalAddress: temporal.address, taskQueue: TASK_QUEUE } }),
);
const workers = fresh(test, async () => workerProcesses());

async function countDelivered(): Promise<number> {
  const [row] = await stack.db.drizzle.execute<{ n: number }>(
    sql`select count(*)::int as n from webhook_deliveries where state = 'delivered'`,
  );
  return row?.n ?? 0;
}

test('killing workers every few seconds loses no webhook', async (t) => {
  const npis = ordinaryNpis('found', 50);
  for (const npi of npis) {
    await storeEmail(stack.db, { npi, email: `p${npi}@clinic.example` });
  }
  const client = await stack.organization();
  const { webhookSecret } = await showWebhookSecret(stack.db, client.organizationId);
  let kills = 0;
  /** Number of kills before each arrival, by delivery. */
  const arrivals = new Map<string, number[]>();
  const receiver = new Webhook(webhookSecret);
  stack.receiver.setBehavior('/kill', (response) => {
    // Checks the signature while it is young enough.
    const { body = '', headers } = stack.receiver.deliveries().at(-1) ?? {};
    t.notThrows(() => receiver.verify(body, headers as Record<string, string>));
    const id = String(response.req.headers['webhook-id']);
    arrivals.set(id, [...(arrivals.get(id) ?? []), kills]);
    setTimeout(() => status(204)(response), RESPONSE_MS);
  });
  const webhook = { url: `${stack.receiver.url}/kill` };
  for (let sent = 0; sent < DELIVERIES; sent += npis.length)
    await client.bulk({ npis, webhook });

  while (kills < KILLS) {
    const worker = await workers.start(stack);
    const before = await countDelivered();
    // Kills the worker in the middle of its work, or after it waited for attempts that the previous
    // kill interrupted.
    const isBusy = async () => ((await countDelivered()) >= before + 40 ? true : null);
    await eventually(isBusy);
    process.kill(worker.pid, 'SIGKILL');
    await worker.exited;
    kills += 1;
  }
  t.true((await countDelivered()) < DELIVERIES, 'killed in the middle');
  await workers.start(stack);
  await eventually(async () => ((await countDelivered()) === DELIVERIES ? true : null));

  t.is(arrivals.size, DELIVERIES);
  const repeats = [...arrivals.values()].flatMap((after) =>
    after.slice(1).map((again, i) => ({ first: after[i] ?? 0, again })),
  );
  t.true(repeats.length > 0, 'a kill met an attempt');
  t.true(repeats.length <= 10 * KILLS, `${repeats.length} repeats`);
  t.true(repeats.every(({ first, again }) => first < again));
  const logged = await stack.db.drizzle.execute<{ attempts: number; made: number }>(sql`
    select d.attempts, count(a.n)::int as made from webhook_deliveries d
      left join webhook_attempts a on a.delivery_id = d.id group by d.id`);
  t.deepEqual(
    [...new Set(logged.map(({ attempts, made }) => `${attempts} ${made}`))],
    ['1 1'],
  );
  t.log(`${repeats.length} attempts cut off by ${KILLS} kills`);
});
