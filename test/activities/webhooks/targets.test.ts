import anyTest, { type TestFn } from 'ava';
import { sql } from 'drizzle-orm';
import { CountedTooLate } from '../../../activities/webhooks/attempt.ts';
import type { AttemptResult, Message } from '../../../activities/webhooks/post.ts';
import { forgetOld } from '../../../db/requests/retention.ts';
import { setBlock } from '../../../db/webhooks/blocks.ts';
import { listDeliveriesToLookAt, noteDeliveryLook } from '../../../db/webhooks/due.ts';
import { showDelivery } from '../../../db/webhooks/log.ts';
import { admitToAddresses } from '../../../db/webhooks/networks.ts';
import {
  type Delivering,
  HOUR,
  resendOne,
  responded,
  startDelivering,
} from '../../support/deliveries.ts';
import { openTestKey, RETENTION } from '../../support/organization.ts';

// Tests the limits on deliveries from all organizations to one host, which prevent attacks by
// deliveries.

interface Context {
  respond: (message: Message) => AttemptResult | Promise<AttemptResult>;
  sent: number;
  life: Delivering;
}

const test = anyTest as TestFn<Context>;
const HOOK = 'https://hooks.example/';
const MINUTE = 60_000;

test.beforeEach(async (t) => {
  t.context.sent = 0;
  t.context.respond = () => responded(200);
  t.context.life = await startDelivering(async (message) => {
    t.context.sent += 1;
    return await t.context.respond(message);
  });
});

test.afterEach.always(async (t) => {
  await t.context.life?.stop();
});

/** Checks all deliveries at once, and waits until each has been sent or deferred. */
async function lookAtAll(
  { context }: { readonly context: Context },
  ids: readonly string[],
) {
  const before = context.sent;
  const putOff: string[] = [];
  const looks = Promise.all(
    ids.map(async (id) => {
      const look = await context.life.look(id);
      if (look.kind === 'wait' && look.why === 'no_room') putOff.push(id);
      return look;
    }),
  );
  let over = false;
  void looks.finally(() => {
    over = true;
  });
  while (!over && context.sent - before + putOff.length < ids.length)
    await new Promise(setImmediate);
  return { sent: context.sent - before, putOff, looks };
}

test('a new webhook host gets one delivery at a time until its first 2xx', async (t) => {
  const { life } = t.context;
  const reply = Promise.withResolvers<AttemptResult>();
  t.context.respond = () => reply.promise;
  const ids = await life.deliveries(await life.organization(), HOOK, 12, 'unproven');
  const first = await lookAtAll(t, ids);
  t.is(first.sent, 1);
  reply.resolve(responded(204));
  await first.looks;
  const later = Promise.withResolvers<AttemptResult>();
  t.context.respond = () => later.promise;
  const second = await lookAtAll(t, first.putOff);
  t.is(second.sent, 10);
  later.resolve(responded(200));
  await second.looks;
});

/**
 * Gives all hosts these addresses and this response from now on, if the attempt may be sent there.
 */
function standAt(
  { context }: { readonly context: Context },
  addresses: readonly string[],
  result: AttemptResult,
) {
  const posts: string[] = [];
  context.respond = async ({ url, admit }) => {
    const admitted = admit === undefined ? addresses : await admit(addresses);
    if (admitted.length === 0) return { kind: 'failed', reason: 'unproven_host' };
    posts.push(url);
    const [address = ''] = admitted;
    return result.kind === 'responded' ? { ...result, address } : result;
  };
  return posts;
}

test('a customer sends twenty webhooks an hour to an IP address without a 2xx', async (t) => {
  const { life } = t.context;
  const posts = standAt(t, ['192.0.2.7'], responded(404));
  await life.time.freeze();
  const customer = await life.organization();
  const ids: string[] = [];
  for (let n = 0; n < 12; n += 1) {
    for (const url of [
      `https://name${n}.example/`,
      `https://other.example:${8000 + n}/`,
    ]) {
      ids.push(...(await life.deliveries(customer, url, 1, 'unproven')));
    }
  }
  for (const id of ids) t.like(await life.look(id), { kind: 'wait', why: 'tried' });
  t.is(posts.length, 20);
  // Attempts beyond the limit count as attempts and are not sent.
  const { attempts, state, log } = await showDelivery(life.db, ids[23] ?? '');
  t.deepEqual(
    [attempts, state, log.at(-1)?.reason, log.at(-1)?.statusCode],
    [1, 'pending', 'unproven_host', null],
  );
  const sandbox = await openTestKey(life.db, customer);
  t.deepEqual(await admitToAddresses(life.db, sandbox.organizationId, ['192.0.2.7']), []);
  // Other customers have their own attempts.
  const [first = ''] = await life.deliveries(
    await life.organization(),
    HOOK,
    1,
    'unproven',
  );
  t.like(await life.look(first), { kind: 'wait', why: 'tried' });
  t.is(posts.length, 21);
  // The customer gets one attempt back every three minutes.
  await life.time.advance(3 * MINUTE);
  for (const id of ids.slice(0, 2))
    t.like(await life.look(id), { kind: 'wait', why: 'tried' });
  t.is(posts.length, 22);
  const elsewhere = standAt(t, ['192.0.2.8'], responded(404));
  for (const id of ids.slice(2, 4))
    t.like(await life.look(id), { kind: 'wait', why: 'tried' });
  t.is(elsewhere.length, 2);
});

test('an attempt that was not made counts neither for the customer nor for all', async (t) => {
  const { life } = t.context;
  await life.time.freeze();
  const customers = await Promise.all(
    Array.from({ length: 6 }, () => life.organization()),
  );
  t.context.respond = async ({ admit }) => {
    await admit?.(['192.0.2.7']);
    throw new CountedTooLate('too late');
  };
  for (const customer of customers) {
    for (const id of await life.deliveries(customer, HOOK, 20, 'unproven'))
      await life.look(id).catch(() => {});
  }
  for (const { organizationId } of customers)
    t.is((await admitToAddresses(life.db, organizationId, ['192.0.2.7'])).length, 1);
});

test('all customers together send a hundred webhooks an hour to an unproven address', async (t) => {
  const { life } = t.context;
  await life.time.freeze();
  const customers = await Promise.all(
    Array.from({ length: 6 }, () => life.organization()),
  );
  const addresses = ['192.0.2.7', '2001:db8::7'];
  const asked = customers.flatMap(({ organizationId }) =>
    Array.from({ length: 21 }, () =>
      admitToAddresses(life.db, organizationId, addresses),
    ),
  );
  const admitted = (await Promise.all(asked)).flat();
  for (const address of addresses)
    t.is(admitted.filter((one) => one === address).length, 100, address);
  await life.time.advance(MINUTE);
  const { organizationId } = await life.organization();
  t.deepEqual(await admitToAddresses(life.db, organizationId, addresses), addresses);
});

test('all IP addresses of an IPv6 /64 network share one limit of webhooks', async (t) => {
  const { life } = t.context;
  await life.time.freeze();
  const organization = await life.organization();
  const ids = await life.deliveries(organization, HOOK, 22, 'unproven');
  let sent = 0;
  for (const [n, id] of ids.slice(0, 21).entries()) {
    const posts = standAt(t, [`2001:db8:0:1:${n + 1}::${n + 1}`], responded(404));
    await life.look(id);
    sent += posts.length;
  }
  t.is(sent, 20);
  const next = standAt(t, ['2001:db8:0:2::1'], responded(404));
  await life.look(ids[21] ?? '');
  t.is(next.length, 1);
});

test('a 2xx proves a webhook host only for its name, port, and organization', async (t) => {
  const { life } = t.context;
  await life.time.freeze();
  const organization = await life.organization();
  const ids = await life.deliveries(organization, HOOK, 30, 'unproven');
  const proven = standAt(t, ['192.0.2.7'], responded(204));
  for (const id of ids)
    t.deepEqual(await life.look(id), { kind: 'over', state: 'delivered' });
  t.is(proven.length, 30);
  const posts = standAt(t, ['192.0.2.7'], responded(404));
  const others = [
    ...(await life.deliveries(
      organization,
      'https://hooks.example:8443/',
      10,
      'unproven',
    )),
    ...(await life.deliveries(organization, 'https://other.example/', 10, 'unproven')),
    ...(await life.deliveries(await life.organization(), HOOK, 10, 'unproven')),
  ];
  for (const id of others) await life.look(id);
  // The first attempt, which proved the receiver, was counted too. The other organization has its
  // own attempts.
  t.is(posts.length, 19 + 10);
});

test('at a new IP address, a proven webhook host gets only twenty attempts an hour', async (t) => {
  const { life } = t.context;
  await life.time.freeze();
  const ids = await life.deliveries(await life.organization(), HOOK, 60, 'unproven');
  const deliver = async (
    address: readonly string[],
    result: AttemptResult,
    count: number,
  ) => {
    const posts = standAt(t, address, result);
    for (const id of ids.splice(0, count)) await life.look(id);
    return posts.length;
  };
  t.is(await deliver(['2001:db8:0:1::1'], responded(204), 1), 1);
  t.is(await deliver(['192.0.2.7'], responded(404), 22), 20);
  // A 2xx from one IPv6 address proves its whole /64 network.
  t.is(await deliver(['2001:db8:0:1::2'], responded(404), 2), 2);
  // A first attempt goes only to proven addresses. The 2xx here also proves the IPv4 address.
  t.is(await deliver(['192.0.2.7', '2001:db8:0:1::2'], responded(204), 5), 5);
  t.is(await deliver(['192.0.2.8'], responded(204), 25), 25);
});

test('if a host is proven at one IP address, only a retry calls its other addresses', async (t) => {
  const { life } = t.context;
  const admitted: (readonly string[])[] = [];
  t.context.respond = async ({ admit }) => {
    admitted.push((await admit?.(['192.0.2.7', '192.0.2.8'])) ?? []);
    return {
      ...responded(admitted.length === 1 ? 204 : 500),
      address: '192.0.2.8',
    } as AttemptResult;
  };
  const [first = '', second = ''] = await life.deliveries(
    await life.organization(),
    HOOK,
    2,
    'unproven',
  );
  await life.look(first);
  await life.look(second);
  await life.time.advance(2 * MINUTE);
  await life.look(second);
  t.deepEqual(
    admitted.map((addresses) => [...addresses].sort()),
    [['192.0.2.7', '192.0.2.8'], ['192.0.2.8'], ['192.0.2.7', '192.0.2.8']],
  );
});

test('the counter of webhooks to an IP address is deleted when it is no longer needed', async (t) => {
  const { life } = t.context;
  standAt(t, ['192.0.2.7'], responded(404));
  const [id = ''] = await life.deliveries(await life.organization(), HOOK, 1, 'unproven');
  await life.look(id);
  const known = async () =>
    (await life.db.drizzle.execute(sql`select network from webhook_networks`)).length;
  await forgetOld(life.db, RETENTION);
  t.is(await known(), 2, 'for the customer and for all');
  await life.time.advance(4 * MINUTE);
  await forgetOld(life.db, RETENTION);
  t.is(await known(), 0);
});

test('a webhook host stays proven until a month after its last 2xx', async (t) => {
  const { life } = t.context;
  const organization = await life.organization();
  // Creates all deliveries now, because later their requests would be too old to be delivered.
  const [first = '', second = '', ...others] = await life.deliveries(
    organization,
    HOOK,
    6,
    'unproven',
  );
  await life.look(first);
  await life.time.advance(20 * 24 * HOUR);
  await life.look(second);
  await life.time.advance(20 * 24 * HOUR);
  await forgetOld(life.db, RETENTION);
  const reply = Promise.withResolvers<AttemptResult>();
  t.context.respond = () => reply.promise;
  const both = await lookAtAll(t, others.slice(0, 2));
  t.is(both.sent, 2);
  reply.resolve(responded(200));
  await both.looks;
  await life.time.advance(31 * 24 * HOUR);
  await forgetOld(life.db, RETENTION);
  const again = Promise.withResolvers<AttemptResult>();
  t.context.respond = () => again.promise;
  const one = await lookAtAll(t, others.slice(2));
  t.is(one.sent, 1);
  again.resolve(responded(200));
  await one.looks;
});

test('a webhook host gets at most forty webhooks at a time from all organizations', async (t) => {
  const { life } = t.context;
  const reply = Promise.withResolvers<AttemptResult>();
  t.context.respond = ({ url }) => (url === HOOK ? reply.promise : responded(200));
  const ids: string[] = [];
  for (let n = 0; n < 5; n += 1)
    ids.push(...(await life.deliveries(await life.organization(), HOOK, 9)));
  const all = await lookAtAll(t, ids);
  t.is(all.sent, 40);
  const [other = ''] = await life.deliveries(
    await life.organization(),
    'https://other.example/',
    1,
  );
  t.deepEqual(await life.look(other), { kind: 'over', state: 'delivered' });
  reply.resolve(responded(200));
  await all.looks;
  for (const id of all.putOff)
    t.deepEqual(await life.look(id), { kind: 'over', state: 'delivered' });
});

test('even a fast webhook host gets at most two hundred webhooks a second', async (t) => {
  const { life } = t.context;
  const ids = await life.deliveries(await life.organization(), HOOK, 201);
  await life.time.freeze();
  for (const id of ids.slice(0, 200))
    t.deepEqual(await life.look(id), { kind: 'over', state: 'delivered' });
  const last = ids[200] ?? '';
  t.like(await life.look(last), { kind: 'wait', why: 'no_room' });
  const [other = ''] = await life.deliveries(
    await life.organization(),
    'https://other.example/',
    1,
  );
  t.deepEqual(await life.look(other), { kind: 'over', state: 'delivered' });
  await life.time.advance(1001);
  t.deepEqual(await life.look(last), { kind: 'over', state: 'delivered' });
});

test('a webhook host that an operator blocks gets no webhook until the block is removed', async (t) => {
  const { life } = t.context;
  const by = { actor: 'test', reason: 'a complaint' };
  const blocked: (readonly string[])[] = [];
  t.context.respond = (message) => {
    blocked.push(message.blocked);
    return message.blocked.length === 0
      ? responded(200)
      : { kind: 'failed', reason: 'blocked_by_operator' };
  };
  const [id = ''] = await life.deliveries(await life.organization(), HOOK, 1);
  t.true(await setBlock(life.db, by, 'hooks.example', true));
  t.deepEqual(await life.look(id), { kind: 'over', state: 'failed' });
  t.is((await showDelivery(life.db, id)).log.at(-1)?.reason, 'blocked_by_operator');
  t.true(await setBlock(life.db, by, 'hooks.example', false));
  t.is((await resendOne(life.db, id)).kind, 'resent');
  t.deepEqual(await life.look(id), { kind: 'over', state: 'delivered' });
  t.deepEqual(blocked, [['hooks.example'], []]);
});

test('the reconciler finds a lost webhook while others wait for a slot', async (t) => {
  const { life } = t.context;
  const reply = Promise.withResolvers<AttemptResult>();
  t.context.respond = () => reply.promise;
  // With the clock stopped, these deliveries keep waiting for their slots.
  await life.time.freeze();
  const waiting = await lookAtAll(
    t,
    await life.deliveries(await life.organization(), HOOK, 13),
  );
  t.is(waiting.putOff.length, 3);
  const [lost] = await life.deliveries(
    await life.organization(),
    'https://other.example/',
    1,
  );
  await life.time.advance(1);
  const taken = async () =>
    (await listDeliveriesToLookAt(life.db, 0, 0, 100)).map(
      ({ deliveryId }) => deliveryId,
    );
  const first = await taken();
  t.true(first.includes(lost ?? ''));
  t.deepEqual(
    first.filter((id) => waiting.putOff.includes(id)),
    [],
  );
  await life.time.advance(2 * MINUTE);
  const later = await taken();
  for (const id of waiting.putOff)
    t.true(later.includes(id), 'after its turn it is checked like the others');
  reply.resolve(responded(200));
  await waiting.looks;
});

test('the reconciler checks a stuck webhook at intervals that grow up to an hour', async (t) => {
  const { life } = t.context;
  const [id] = await life.deliveries(await life.organization(), HOOK, 1);
  await life.time.freeze();
  const taken: number[] = [];
  for (let second = 0; second < 8 * 3600; second += 60) {
    const rows = await listDeliveriesToLookAt(life.db, 5000, 30_000, 10);
    for (const row of rows) await noteDeliveryLook(life.db, row);
    if (rows.some(({ deliveryId }) => deliveryId === id)) taken.push(second);
    await life.time.advance(MINUTE);
  }
  // The interval doubles up to an hour.
  t.true(taken.length > 8 && taken.length < 20, `${taken.length} times in eight hours`);
  t.true((taken[1] ?? HOUR) < 240, 'soon at first');
});
