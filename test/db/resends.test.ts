import anyTest, { type TestFn } from 'ava';
import { sql } from 'drizzle-orm';
import type { AttemptResult } from '../../activities/webhooks/post.ts';
import { suspendWebhooks } from '../../db/accounts/organizations.ts';
import type { Database } from '../../db/connection/client.ts';
import { listAudit } from '../../db/operations/audit.ts';
import { forgetOld } from '../../db/requests/retention.ts';
import { submit } from '../../db/requests/submit.ts';
import {
  listBatchDeliveries,
  listOrganizationDeliveries,
  showDelivery,
} from '../../db/webhooks/log.ts';
import {
  listDeliveriesToLookAt,
  noteDeliveryLook,
  resendAny,
  resendFailed,
  resendOwn,
} from '../../db/webhooks/resends.ts';
import type { DeliveryState } from '../../db/words.ts';
import { HOUR, responded, SCHEDULE_MS, startResponding } from '../support/deliveries.ts';
import { acceptedIds, RETENTION, RULES, submitCommand } from '../support/organization.ts';

// Tests resends of webhook deliveries, and their log, in the database.

const test = anyTest as TestFn<Awaited<ReturnType<typeof startResponding>>>;
const BY = { actor: 'test', reason: 'test' };
const HOOK = 'https://hooks.example/';
/** A response that ends a delivery at once. */
const BLOCKED: AttemptResult = { kind: 'failed', reason: 'blocked_address' };
const DAY = 24 * HOUR;
const LONG_AGO = new Date(0);
const FAR_OFF = new Date(Date.now() + 10 * DAY);
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
  t.is((await resendAny(life.db, BY, id)).kind, 'resent');
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

test('a delivered webhook can be resent, and is pending until the next attempt ends', async (t) => {
  const { life, receiver } = t.context;
  const [id = ''] = await life.deliveries(await life.organization(), HOOK, 1);
  receiver.respond = () => responded(200);
  await life.look(id);
  await resendAny(life.db, BY, id);
  receiver.respond = () => BLOCKED;
  t.is((await showDelivery(life.db, id)).state, 'pending');
  t.deepEqual(await life.look(id), { kind: 'over', state: 'failed' });
  t.is((await showDelivery(life.db, id)).state, 'failed');
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
  const outcomes = await Promise.all([1, 2, 3].map(() => resendAny(life.db, BY, id)));
  t.deepEqual(outcomes.map(({ kind }) => kind).sort(), ['pending', 'pending', 'resent']);
  receiver.respond = () => responded(204);
  t.deepEqual(await life.look(id), { kind: 'over', state: 'delivered' });
  t.is(receiver.calls, 4);
});

test('a response to an attempt is ignored if the delivery was resent in the meantime', async (t) => {
  const { life, receiver } = t.context;
  const organization = await life.organization();
  const [id = ''] = await life.deliveries(organization, HOOK, 1);
  await life.look(id);
  const reply = Promise.withResolvers<AttemptResult>();
  await resendAny(life.db, BY, id);
  receiver.respond = () => reply.promise;
  const trying = life.look(id);
  while (receiver.calls < 2) await new Promise(setImmediate);
  // The worker hangs, its lease expires, and a resend is requested again.
  await life.time.advance(HOUR);
  await life.db.drizzle.execute(
    sql`update webhook_deliveries set due_at = clock_timestamp() + interval '1 hour'`,
  );
  t.is((await resendAny(life.db, BY, id)).kind, 'resent');
  reply.resolve(BLOCKED);
  await trying;
  t.like(await showDelivery(life.db, id), { state: 'pending', resends: 2, attempts: 2 });
});

test('a customer can resend only its own deliveries that have ended', async (t) => {
  const { life } = t.context;
  const organization = await life.organization();
  const other = await life.organization();
  const [id = ''] = await life.deliveries(organization, HOOK, 1);
  await life.look(id);
  const batchId = await batchOf(life.db, id);
  const ask = (over: object) =>
    resendOwn(life.db, {
      organizationId: organization.organizationId,
      batchId,
      deliveryId: id,
      ...over,
    });
  t.is((await ask({ organizationId: other.organizationId })).kind, 'unknown');
  t.is((await ask({ batchId: 'bat_00000000000000000000000000' })).kind, 'unknown');
  t.is((await ask({ deliveryId: 'msg_00000000000000000000000000' })).kind, 'unknown');
  t.is((await ask({})).kind, 'resent');

  const command = submitCommand(organization, {
    npis: ['2000000028'],
    webhook: { url: HOOK, mode: 'batch' },
  });
  const open = acceptedIds(await submit(life.db, command, RULES));
  const page = await listBatchDeliveries(
    life.db,
    organization.organizationId,
    open.batchId,
    {
      after: null,
      limit: 10,
    },
  );
  const openId = page?.deliveries[0]?.id ?? '';
  t.is((await ask({ batchId: open.batchId, deliveryId: openId })).kind, 'pending');
});

test('only operators can resend a delivery more than ten times an hour', async (t) => {
  const { life } = t.context;
  const organization = await life.organization();
  const { organizationId } = organization;
  const [id = '', other = ''] = await life.deliveries(organization, HOOK, 2);
  await life.look(id);
  await life.look(other);
  const batchId = await batchOf(life.db, id);
  const ask = (deliveryId: string) =>
    resendOwn(life.db, { organizationId, batchId, deliveryId });
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
  t.is((await resendAny(life.db, BY, id)).kind, 'resent');
  await life.look(id);
  await life.time.advance(HOUR);
  t.is((await ask(id)).kind, 'resent');
});

test('nothing is resent while webhooks are suspended; operators can resend it later', async (t) => {
  const { life, receiver } = t.context;
  receiver.respond = () => responded(200);
  const organization = await life.organization();
  const { organizationId } = organization;
  await suspendWebhooks(life.db, BY, organizationId, true);
  const [id = ''] = await life.deliveries(organization, HOOK, 1);
  const batchId = await batchOf(life.db, id);
  t.is((await showDelivery(life.db, id)).state, 'none');
  const own = () => resendOwn(life.db, { organizationId, batchId, deliveryId: id });
  t.is((await own()).kind, 'suspended');
  t.is((await resendAny(life.db, BY, id)).kind, 'suspended');
  const failed = { organizationId, since: LONG_AGO, until: FAR_OFF, limit: 10 };
  await t.throwsAsync(resendFailed(life.db, BY, failed), { code: 'webhooks_suspended' });
  await suspendWebhooks(life.db, BY, organizationId, false);
  t.is((await own()).kind, 'suspended');
  t.is((await resendAny(life.db, BY, id)).kind, 'resent');
  t.deepEqual(await life.look(id), { kind: 'over', state: 'delivered' });
});

test('all deliveries that failed since a given time can be resent, each exactly once', async (t) => {
  const { life } = t.context;
  const organization = await life.organization();
  const { organizationId } = organization;
  const early = await life.deliveries(organization, HOOK, 3);
  for (const id of early) await life.look(id);
  await life.time.advance(DAY);
  const since = new Date(
    (await showDelivery(life.db, early.at(-1) ?? '')).decidedAt ?? 0,
  );
  since.setTime(since.getTime() + HOUR);
  const late = await life.deliveries(organization, HOOK, 5);
  for (const id of late) await life.look(id);
  const foreign = await life.deliveries(await life.organization(), HOOK, 1);
  for (const id of foreign) await life.look(id);

  const nothing = { organizationId, since, until: since, limit: 3 };
  t.deepEqual(await resendFailed(life.db, BY, nothing), { resent: 0, more: false });
  const ask = () =>
    resendFailed(life.db, BY, { organizationId, since, until: FAR_OFF, limit: 3 });
  t.deepEqual(await ask(), { resent: 3, more: true });
  t.deepEqual(await ask(), { resent: 2, more: false });
  t.deepEqual(await ask(), { resent: 0, more: false });
  const stateOf = async (id: string) => (await showDelivery(life.db, id)).state;
  for (const id of late) t.is(await stateOf(id), 'pending');
  for (const id of [...early, ...foreign]) t.is(await stateOf(id), 'failed');
  const audited = (await listAudit(life.db, organizationId, 10)).filter(
    ({ action }) => action === 'webhooks.resend',
  );
  t.deepEqual(audited.map(({ details }) => details.resent).reverse(), [0, 3, 2, 0]);
});

test('the reconciler lists a resend until its workflow begins, and again 30 s later', async (t) => {
  const { life } = t.context;
  const ids = await life.deliveries(await life.organization(), HOOK, 3);
  for (const id of ids) await life.look(id);
  for (const id of ids) await resendAny(life.db, BY, id);
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
