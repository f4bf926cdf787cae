import { randomBytes } from 'node:crypto';
import anyTest, { type TestFn } from 'ava';
import type { AttemptResult } from '../../../activities/webhooks/post.ts';
import { suspendWebhooks } from '../../../db/accounts/organizations.ts';
import { claimDelivery, recordAttempt } from '../../../db/webhooks/attempts.ts';
import { showDelivery } from '../../../db/webhooks/log.ts';
import {
  HOUR,
  responded,
  SCHEDULE_MS,
  startResponding,
  WEBHOOK_RULES,
} from '../../support/deliveries.ts';

// Tests one delivery from its submit to its end. Instead of waiting, the tests advance the database's
// clock.

const test = anyTest as TestFn<Awaited<ReturnType<typeof startResponding>>>;
const BY = { actor: 'test', reason: 'test' };
const URL_ = 'https://hooks.example/';

test.beforeEach(async (t) => {
  t.context = await startResponding(responded(503));
});

test.afterEach.always(async (t) => {
  await t.context.life?.stop();
});

test('Retry-After can extend the wait for the next attempt to twice its usual time', async (t) => {
  const { life, receiver } = t.context;
  receiver.respond = () => responded(429, 1000 * HOUR);
  const [id = ''] = await life.deliveries(await life.organization(), URL_, 1);
  for (const step of SCHEDULE_MS.slice(1)) {
    const look = await life.look(id);
    t.like(look, { why: 'tried', afterMs: 2 * step });
    await life.time.advance(2 * step);
  }
  t.deepEqual(await life.look(id), { kind: 'over', state: 'failed' });
  t.is(receiver.calls, 10);
});

test('a webhook that a worker checks before its next attempt is due keeps waiting', async (t) => {
  const { life, receiver } = t.context;
  const [id = ''] = await life.deliveries(await life.organization(), URL_, 1);
  await life.look(id);
  await life.time.advance(10_000);
  await life.look(id);
  await life.time.advance(60_000);
  const early = await life.look(id, life.startWorker());
  t.is(early.kind === 'wait' && early.why, 'not_due');
  const left = early.kind === 'wait' ? early.afterMs : 0;
  t.true(left > 150_000 && left <= 300_000, `${left} ms`);
  t.is(receiver.calls, 2);
});

test('two workers that check the same webhook at once make only one attempt', async (t) => {
  const { life, receiver } = t.context;
  const reply = Promise.withResolvers<AttemptResult>();
  const sending = Promise.withResolvers<void>();
  receiver.respond = () => {
    sending.resolve();
    return reply.promise;
  };
  const [id = ''] = await life.deliveries(await life.organization(), URL_, 1);
  const first = life.look(id);
  await sending.promise;
  const second = await life.look(id, life.startWorker());
  t.like(second, { kind: 'wait', why: 'in_flight' });
  reply.resolve(responded(200));
  t.deepEqual(await first, { kind: 'over', state: 'delivered' });
  t.deepEqual(await life.look(id, life.startWorker()), {
    kind: 'over',
    state: 'delivered',
  });
  t.is(receiver.calls, 1);
});

test('an attempt whose worker died is repeated within 30 s, and counts as one attempt', async (t) => {
  const { life, receiver } = t.context;
  receiver.respond = () => responded(204);
  const [id = ''] = await life.deliveries(await life.organization(), URL_, 1);
  const claimed = await claimDelivery(life.db, id, WEBHOOK_RULES);
  t.is(claimed.kind, 'attempt');
  const look = await life.look(id);
  t.is(look.kind === 'wait' && look.why, 'in_flight');
  const wait = look.kind === 'wait' ? look.afterMs : 0;
  t.true(wait > 15_000 && wait <= 30_000, `${wait} ms`);
  await life.time.advance(wait);
  t.deepEqual(await life.look(id), { kind: 'over', state: 'delivered' });
  t.is(receiver.calls, 1);
  t.is((await showDelivery(life.db, id)).attempts, 1);
});

test('a webhook attempt is recorded only once, even if workers repeat the recording', async (t) => {
  const { life } = t.context;
  const [id = ''] = await life.deliveries(await life.organization(), URL_, 1);
  const claimed = await claimDelivery(life.db, id, WEBHOOK_RULES);
  if (claimed.kind !== 'attempt') return t.fail(claimed.kind);
  const attempt = {
    startedAt: new Date(),
    durationMs: 5,
    statusCode: 500,
    reason: 'http_status',
  } as const;
  const record = () =>
    recordAttempt(
      life.db,
      claimed.claim,
      { ...attempt, responseExcerpt: null },
      { state: 'pending', afterMs: 5000 },
      { kind: 'responded', accepted: false, address: '192.0.2.1' },
    );
  await Promise.all([record(), record()]);
  await record();
  const { attempts, log } = await showDelivery(life.db, id);
  t.deepEqual([attempts, log.length], [1, 1]);
});

test('a webhook waits while its organization is suspended, and then continues', async (t) => {
  const { life, receiver } = t.context;
  const organization = await life.organization();
  const [id = ''] = await life.deliveries(organization, URL_, 1);
  await life.look(id);
  await suspendWebhooks(life.db, BY, organization.organizationId, true);
  for (let hours = 0; hours < 200; hours += 20) {
    await life.time.advance(20 * HOUR);
    t.like(await life.look(id), { kind: 'wait', why: 'suspended' });
  }
  t.is(receiver.calls, 1);
  t.is((await showDelivery(life.db, id)).state, 'pending');
  await suspendWebhooks(life.db, BY, organization.organizationId, false);
  await life.time.advance(300_000);
  const look = await life.look(id);
  const step = SCHEDULE_MS[2] ?? 0;
  t.true(
    look.kind === 'wait' && look.why === 'tried' && look.afterMs <= 1.2 * step,
    JSON.stringify(look),
  );
  t.is(receiver.calls, 2);
});

test('a webhook whose secret cannot be decrypted stays pending, with one log entry', async (t) => {
  const { life, receiver } = t.context;
  const [id = ''] = await life.deliveries(await life.organization(), URL_, 1);
  const wrong = life.startWorker([{ version: 'v1', key: randomBytes(32) }]);
  for (let hours = 0; hours < 100; hours += 20) {
    await life.time.advance(20 * HOUR);
    t.like(await life.look(id, wrong), { kind: 'wait', why: 'secret_unreadable' });
  }
  const held = await showDelivery(life.db, id);
  t.like(held, { state: 'pending', attempts: 1 });
  t.deepEqual(
    held.log.map(({ n, statusCode, reason }) => [n, statusCode, reason]),
    [[1, null, 'secret_unreadable']],
  );
  t.is(receiver.calls, 0);
  await life.time.advance(60_000);
  const look = await life.look(id);
  const step = SCHEDULE_MS[1] ?? 0;
  t.true(
    look.kind === 'wait' && look.why === 'tried' && look.afterMs <= 1.2 * step,
    JSON.stringify(look),
  );
});
