import anyTest, { type TestFn } from 'ava';
import { sql } from 'drizzle-orm';
import type { AttemptResult } from '../../activities/webhooks/post.ts';
import type { Database } from '../../db/connection/client.ts';
import { forgetOld } from '../../db/requests/retention.ts';
import { listDeliveriesToLookAt, noteDeliveryLook } from '../../db/webhooks/due.ts';
import {
  listBatchDeliveries,
  listOrganizationDeliveries,
  showDelivery,
} from '../../db/webhooks/log.ts';
import { resend } from '../../db/webhooks/resends.ts';
import type { DeliveryState } from '../../db/words.ts';
import {
  HOUR,
  resendOne,
  responded,
  SCHEDULE_MS,
  startResponding,
} from '../support/deliveries.ts';
import { RETENTION } from '../support/organization.ts';

// Tests resends of webhook deliveries, and their log, in the database.

const test = anyTest as TestFn<Awaited<ReturnType<typeof startResponding>>>;
const HOOK = 'https://hooks.example/';
/** A response that ends a delivery at once. */
const BLOCKED: AttemptResult = { kind: 'failed', reason: 'blocked_address' };
const DAY = 24 * HOUR;
const ALWAYS = { since: null, until: null };
const FIRST = { after: null, limit: 100 };

test.beforeEach(async (t) => {
  t.context = await startResponding(BLOCKED);
});

test.afterEach.always(async (t) => {
  await t.context.life?.stop();
});

/** Returns the batch of a delivery. */
async function batchOf(db: Database, deliveryId: string): Promise<string> {
  const { batchId } = await showDelivery(db, deliveryId);
  return String(batchId);
}

test('a resend repeats all attempts, with the same webhook id and the same log', async (t) => {
  const { life, receiver } = t.context;
  const [id = ''] = await life.deliveries(await life.organization(), HOOK, 1);
  // Fails at the second attempt of its schedule.
  receiver.respond = () => responded(500);
  const first = await life.look(id);
  await life.time.advance(first.kind === 'wait' ? first.afterMs : 0);
  receiver.respond = () => BLOCKED;
  t.deepEqual(await life.look(id), { kind: 'over', state: 'failed' });
  t.is((await resendOne(life.db, id)).kind, 'resent');
  t.like(await showDelivery(life.db, id), {
    state: 'pending',
    decidedAt: null,
    resends: 1,
    attempts: 2,
  });
  receiver.respond = () => responded(500);
  for (let attempt = 1; attempt < SCHEDULE_MS.length; attempt += 1) {
    const look = await life.look(id);
    if (look.kind === 'over') return t.fail(`decided after ${attempt} attempts`);
    await life.time.advance(look.afterMs);
  }
  t.deepEqual(await life.look(id), { kind: 'over', state: 'failed' });
  const { log } = await showDelivery(life.db, id);
  t.deepEqual(
    log.map(({ n }) => n),
    Array.from({ length: 12 }, (_, index) => index + 1),
  );
  t.is(receiver.calls, 12);
});

test('resending a delivery several times at once makes exactly one immediate attempt', async (t) => {
  const { life, receiver } = t.context;
  receiver.respond = () => responded(500);
  const [id = ''] = await life.deliveries(await life.organization(), HOOK, 1);
  for (let step = 0; step < 3; step += 1) {
    const look = await life.look(id);
    if (look.kind === 'wait' && step < 2) await life.time.advance(look.afterMs);
  }
  t.truthy((await showDelivery(life.db, id)).nextAttemptAt);
  const outcomes = await Promise.all([1, 2, 3].map(() => resendOne(life.db, id)));
  t.deepEqual(outcomes.map(({ kind }) => kind).sort(), ['pending', 'pending', 'resent']);
  receiver.respond = () => responded(204);
  t.deepEqual(await life.look(id), { kind: 'over', state: 'delivered' });
  t.is(receiver.calls, 4);
  t.is((await resendOne(life.db, id)).kind, 'resent', 'a delivered one, too');
});

test('a response to an attempt is ignored if the delivery was resent in the meantime', async (t) => {
  const { life, receiver } = t.context;
  const organization = await life.organization();
  const [id = ''] = await life.deliveries(organization, HOOK, 1);
  await life.look(id);
  const reply = Promise.withResolvers<AttemptResult>();
  await resendOne(life.db, id);
  receiver.respond = () => reply.promise;
  const trying = life.look(id);
  while (receiver.calls < 2) await new Promise(setImmediate);
  // The worker hangs, its lease expires, and a resend is requested again.
  await life.time.advance(HOUR);
  await life.db.drizzle.execute(
    sql`update webhook_deliveries set due_at = clock_timestamp() + interval '1 hour'`,
  );
  t.is((await resendOne(life.db, id)).kind, 'resent');
  reply.resolve(BLOCKED);
  await trying;
  t.like(await showDelivery(life.db, id), { state: 'pending', resends: 2, attempts: 2 });
});

test('only operators can resend a delivery more than ten times an hour', async (t) => {
  const { life } = t.context;
  const organization = await life.organization();
  const [id = '', other = ''] = await life.deliveries(organization, HOOK, 2);
  await life.look(id);
  await life.look(other);
  const owner = { ...organization, batchId: await batchOf(life.db, id) };
  const ask = (deliveryId: string) =>
    resend(life.db, { kind: 'one', deliveryId, owner }, 'customer');
  for (let n = 0; n < 10; n += 1) {
    t.is((await ask(id)).kind, 'resent');
    t.is((await ask(id)).kind, 'pending');
    await life.look(id);
  }
  const refused = await ask(id);
  if (refused.kind !== 'limited') return t.fail(refused.kind);
  t.true(refused.waitMs > 0 && refused.waitMs <= HOUR, `${refused.waitMs} ms`);
  t.is((await showDelivery(life.db, id)).state, 'failed');
  t.is((await ask(other)).kind, 'resent');
  t.is((await resendOne(life.db, id)).kind, 'resent');
  await life.look(id);
  await life.time.advance(HOUR);
  t.is((await ask(id)).kind, 'resent');
});

test('the reconciler lists a resend until its workflow begins, and again 30 s later', async (t) => {
  const { life } = t.context;
  const ids = await life.deliveries(await life.organization(), HOOK, 3);
  for (const id of ids) await life.look(id);
  for (const id of ids) await resendOne(life.db, id);
  await noteDeliveryLook(life.db, { deliveryId: ids[0] ?? '', resends: 1 });
  // A note about an earlier resend does not count for this one.
  await noteDeliveryLook(life.db, { deliveryId: ids[1] ?? '', resends: 0 });
  const take = () => listDeliveriesToLookAt(life.db, 5000, 30_000, 10);
  t.is((await take()).length, 0);
  await life.time.advance(6000);
  const taken = await take();
  // A resend stays new until its own workflow has begun. A workflow of an earlier resend may still
  // sleep.
  t.is((await take()).length, 2);
  for (const delivery of taken) await noteDeliveryLook(life.db, delivery);
  t.deepEqual(taken.map(({ deliveryId, round }) => [deliveryId, round]).sort(), [
    [ids[1], 'new'],
    [ids[2], 'new'],
  ]);
  t.is((await take()).length, 0);
  await life.time.advance(31_000);
  t.deepEqual(
    (await take()).map(({ round }) => round),
    ['seen', 'seen', 'seen'],
  );
});

test('deliveries can be listed by batch, page by page, and by organization', async (t) => {
  const { life } = t.context;
  const organization = await life.organization();
  const { organizationId } = organization;
  const ids = (await life.deliveries(organization, HOOK, 5)).sort();
  for (const id of ids.slice(0, 2)) await life.look(id);
  const batchId = await batchOf(life.db, ids[0] ?? '');
  const page = async (after: string | null) =>
    await listBatchDeliveries(life.db, organizationId, batchId, { after, limit: 2 });
  const seen: string[] = [];
  let after: string | null = null;
  do {
    const found = await page(after);
    seen.push(...(found?.deliveries ?? []).map(({ id }) => id));
    after = found?.next ?? null;
  } while (after !== null);
  t.deepEqual(seen, ids);
  const other = await life.organization();
  t.is(
    await listBatchDeliveries(life.db, other.organizationId, batchId, {
      after: null,
      limit: 2,
    }),
    null,
  );

  const list = (status: DeliveryState | null) =>
    listOrganizationDeliveries(life.db, organizationId, { status, ...ALWAYS }, FIRST);
  t.deepEqual((await list(null)).deliveries.map(({ id }) => id).reverse(), ids);
  t.is((await list('failed')).deliveries.length, 2);
});

test('old webhook attempts are deleted from the log, but still counted', async (t) => {
  const { life, receiver } = t.context;
  receiver.respond = () => responded(500);
  const [id = ''] = await life.deliveries(await life.organization(), HOOK, 1);
  for (let attempt = 0; attempt < 3; attempt += 1) {
    const look = await life.look(id);
    await life.time.advance(look.kind === 'wait' ? look.afterMs : 0);
  }
  await life.time.advance(30 * DAY - HOUR);
  await forgetOld(life.db, RETENTION);
  t.is((await showDelivery(life.db, id)).log.length, 3);
  await life.db.drizzle.execute(
    sql`update webhook_attempts set started_at = clock_timestamp() where n = 3`,
  );
  await life.time.advance(2 * HOUR);
  await forgetOld(life.db, RETENTION);
  const { attempts, log } = await showDelivery(life.db, id);
  t.is(attempts, 3);
  t.deepEqual(
    log.map(({ n }) => n),
    [3],
  );
  const [row] = await life.db.drizzle.execute(
    sql`select forgotten from webhook_deliveries where id = ${id}`,
  );
  t.is(row?.forgotten, 2);
});
