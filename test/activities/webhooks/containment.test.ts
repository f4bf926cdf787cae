import anyTest, { type TestFn } from 'ava';
import { sql } from 'drizzle-orm';
import type { AttemptResult, Message } from '../../../activities/webhooks/post.ts';
import { claimDelivery } from '../../../db/webhooks/attempts.ts';
import { showDelivery } from '../../../db/webhooks/log.ts';
import {
  type Delivering,
  HOUR,
  type Look,
  responded,
  startDelivering,
  WEBHOOK_RULES,
} from '../../support/deliveries.ts';

// Tests that deliveries to slow or unavailable receivers cost little and do not delay others.

interface Context {
  /** Responses by host. */
  results: Map<string, (message: Message) => AttemptResult | Promise<AttemptResult>>;
  sent: string[];
  life: Delivering;
}

const test = anyTest as TestFn<Context>;
const SILENT: AttemptResult = { kind: 'failed', reason: 'timeout_connect' };
const DEAD = 'https://dead.example/hook';
const MINUTE = 60_000;

test.beforeEach(async (t) => {
  const results: Context['results'] = new Map();
  const sent: string[] = [];
  const life = await startDelivering(async (message) => {
    const { host } = new URL(message.url);
    sent.push(host);
    return await (results.get(host)?.(message) ?? responded(200));
  });
  t.context = { results, sent, life };
});

test.afterEach.always(async (t) => {
  await t.context.life?.stop();
});

/**
 * Lets time pass like Temporal: each delivery is checked at the time that its last check returned.
 * @returns the time of each decision, in milliseconds from now
 */
async function run(
  { life }: Pick<Context, 'life'>,
  ids: readonly string[],
  untilMs: number,
  onHour: (hour: number) => void = () => {},
) {
  let now = 0;
  let looks = 0;
  const due = new Map(ids.map((id) => [id, 0]));
  const decided = new Map<string, { at: number; state: string }>();
  for (;;) {
    const [next] = [...due].sort((a, b) => a[1] - b[1]);
    if (!next || next[1] > untilMs) return { decided, looks };
    const [id, at] = next;
    if (at > now) {
      onHour(at / HOUR);
      await life.time.advance(at - now);
      now = at;
    }
    looks += 1;
    const look = await life.look(id);
    if (look.kind === 'wait') due.set(id, now + look.afterMs);
    else {
      due.delete(id);
      decided.set(id, { at: now, state: look.state });
    }
  }
}

/** Returns the wait of a delivery that got no slot, rounded to 10 ms. */
function roomAfter(look: Look): number | null {
  return look.kind === 'wait' && look.why === 'no_room'
    ? Math.round(look.afterMs / 10) * 10
    : null;
}

test('webhooks to a host that never responds fail after 60 to 95 hours', async (t) => {
  const { life, results, sent } = t.context;
  results.set('dead.example', () => SILENT);
  const ids = await life.deliveries(await life.organization(), DEAD, 12);
  const { decided, looks } = await run(t.context, ids, 200 * HOUR);
  t.is(decided.size, ids.length);
  for (const { at, state } of decided.values()) {
    t.is(state, 'failed');
    t.true(at > 60 * HOUR && at < 95 * HOUR, `${at / HOUR} h`);
  }
  for (const id of ids) {
    const { attempts, log } = await showDelivery(life.db, id);
    t.true(attempts >= 2 && attempts <= 10, `${attempts} attempts`);
    t.is(log.at(-1)?.reason, 'timeout_connect');
  }
  t.true(sent.length < 10 * ids.length, `${sent.length} attempts`);
  t.true(looks < 200 * ids.length, `${looks} looks`);
});

test('after a webhook host was down for 6 minutes, its webhooks arrive within 72 minutes', async (t) => {
  const { life, results } = t.context;
  results.set('dead.example', () => SILENT);
  const ids = await life.deliveries(await life.organization(), DEAD, 30);
  const { decided } = await run(t.context, ids, 6 * HOUR, (hour) => {
    if (hour >= 0.1) results.delete('dead.example');
  });
  t.is(decided.size, ids.length);
  for (const { state } of decided.values()) t.is(state, 'delivered');
  const last = Math.max(...[...decided.values()].map(({ at }) => at));
  t.true(last < 1.2 * HOUR, `${last / MINUTE} min`);
});

test('a webhook host that is down gets one attempt at a time, even of new webhooks', async (t) => {
  const { life, results, sent } = t.context;
  results.set('dead.example', () => SILENT);
  const organization = await life.organization();
  const early = await life.deliveries(organization, DEAD, 6);
  for (const id of early) await life.look(id);
  const reply = Promise.withResolvers<AttemptResult>();
  results.set('dead.example', () => reply.promise);
  const before = sent.length;
  const late = await life.deliveries(organization, DEAD, 5);
  const [first, ...others] = late;
  const trying = life.look(first ?? '');
  while (sent.length === before) await new Promise(setImmediate);
  for (const id of others)
    t.like(await life.look(id), { kind: 'wait', why: 'host_away' });
  t.is(sent.length, before + 1);
  reply.resolve(responded(500));
  t.like(await trying, { why: 'tried' });
  results.delete('dead.example');
  await life.time.advance(MINUTE);
  for (const id of others)
    t.deepEqual(await life.look(id), { kind: 'over', state: 'delivered' });
});

test('a host that is down for one organization still gets webhooks of another one', async (t) => {
  const { life, results, sent } = t.context;
  results.set('dead.example', () => SILENT);
  const dead = await life.deliveries(await life.organization(), DEAD, 9);
  for (const id of dead.slice(1)) await life.look(id);
  // Starts the only attempt that the host may get at a time.
  const reply = Promise.withResolvers<AttemptResult>();
  results.set('dead.example', ({ url }) =>
    url.endsWith('/hook') ? reply.promise : responded(200),
  );
  const before = sent.length;
  const trying = life.look(dead[0] ?? '');
  while (sent.length === before) await new Promise(setImmediate);
  const fine = await life.deliveries(
    await life.organization(),
    'https://dead.example/fine',
    3,
  );
  for (const id of fine)
    t.deepEqual(await life.look(id), { kind: 'over', state: 'delivered' });
  reply.resolve(SILENT);
  await trying;
});

test('attempts from before the pause of a webhook host do not pause it again', async (t) => {
  const { life, results, sent } = t.context;
  const replies = Array.from({ length: 10 }, () =>
    Promise.withResolvers<AttemptResult>(),
  );
  results.set('dead.example', () => replies[sent.length - 1]?.promise ?? responded(200));
  const ids = await life.deliveries(await life.organization(), DEAD, replies.length + 3);
  const looks: Promise<Look>[] = [];
  for (const [i, id] of ids.slice(0, replies.length).entries()) {
    looks.push(life.look(id));
    while (sent.length <= i) await new Promise(setImmediate);
  }
  const silent = async (from: number, to: number) => {
    for (const reply of replies.slice(from, to)) reply.resolve(SILENT);
    for (const look of looks.slice(from, to)) t.like(await look, { why: 'tried' });
  };
  await silent(0, 5);
  replies[9]?.resolve(responded(500));
  t.like(await looks[9], { why: 'tried' });
  const shut = await life.db.drizzle.execute(
    sql`select 1 from webhook_hosts where open_until is not null`,
  );
  t.is(shut.length, 1);
  // The host's pause lasts five seconds. After 30 s, all running attempts must have ended, so the
  // host is tried again.
  await life.time.advance(30_000);
  await silent(5, 7);
  t.deepEqual(await life.look(ids[0] ?? ''), { kind: 'over', state: 'delivered' });
  // Two time-outs from before the pause do not add up with three new ones to the limit of five.
  results.set('dead.example', () => SILENT);
  for (const id of ids.slice(10)) t.like(await life.look(id), { why: 'tried' });
  await silent(7, 9);
  results.delete('dead.example');
  t.deepEqual(await life.look(ids[1] ?? ''), { kind: 'over', state: 'delivered' });
});

test('a webhook host that responds is not limited, even if it responds with errors', async (t) => {
  const { life, results, sent } = t.context;
  results.set('dead.example', () => responded(500));
  const ids = await life.deliveries(await life.organization(), DEAD, 20);
  for (const id of ids) t.like(await life.look(id), { why: 'tried' });
  t.is(sent.length, 20);
});

test('a slow webhook host gets ten webhooks at a time and does not delay another host', async (t) => {
  const { life, results, sent } = t.context;
  const reply = Promise.withResolvers<AttemptResult>();
  results.set('slow.example', () => reply.promise);
  const organization = await life.organization();
  const ids = await life.deliveries(organization, 'https://slow.example/', 30);
  // Two workers make all attempts at the same time.
  const second = life.startWorker();
  const waiting: string[] = [];
  const looks = ids.map(async (id, n) => {
    const look = await life.look(id, n % 2 === 0 ? undefined : second);
    if (look.kind === 'wait') waiting.push(id);
    return look;
  });
  const allLooked = Promise.all(looks).then(() => undefined);
  // Rejects if a check fails. Otherwise the loop would wait for it forever.
  while (sent.length + waiting.length < ids.length) {
    await Promise.race([new Promise(setImmediate), allLooked]);
  }
  t.is(sent.length, 10);
  for (const id of waiting) t.like(await life.look(id), { kind: 'wait', why: 'no_room' });
  const [other = ''] = await life.deliveries(organization, 'https://fast.example/', 1);
  t.deepEqual(await life.look(other), { kind: 'over', state: 'delivered' });
  reply.resolve(responded(200));
  await Promise.all(looks);
  for (const id of waiting.slice(0, 10))
    t.deepEqual(await life.look(id), { kind: 'over', state: 'delivered' });
});

test('an organization sends at most twenty webhooks at a time, to all hosts together', async (t) => {
  const { life, results, sent } = t.context;
  const reply = Promise.withResolvers<AttemptResult>();
  const organization = await life.organization();
  const sending: Promise<unknown>[] = [];
  for (const host of ['one.example', 'two.example']) {
    results.set(host, () => reply.promise);
    const ids = await life.deliveries(organization, `https://${host}/`, 10);
    sending.push(...ids.map((id) => life.look(id)));
  }
  while (sent.length < 20) await new Promise(setImmediate);
  const [third = ''] = await life.deliveries(organization, 'https://three.example/', 1);
  t.like(await life.look(third), { kind: 'wait', why: 'no_room' });
  const [other = ''] = await life.deliveries(
    await life.organization(),
    'https://one.example/other',
    1,
  );
  const looking = life.look(other);
  while (sent.length < 21) await new Promise(setImmediate);
  reply.resolve(responded(200));
  t.deepEqual(await looking, { kind: 'over', state: 'delivered' });
  await Promise.all(sending);
  t.deepEqual(await life.look(third), { kind: 'over', state: 'delivered' });
});

test('the slot of a webhook attempt whose worker died becomes free after 30 s', async (t) => {
  const { life } = t.context;
  const [next = '', ...ids] = await life.deliveries(await life.organization(), DEAD, 11);
  await life.time.freeze();
  for (const id of ids) {
    const claimed = await claimDelivery(life.db, id, WEBHOOK_RULES);
    t.is(claimed.kind, 'attempt');
  }
  await life.time.advance(20_000);
  // An attempt whose worker died does not count in the mean duration, so the wait is as short as
  // for fast attempts.
  t.is(roomAfter(await life.look(next)), 10);
  await life.time.advance(10_000);
  t.deepEqual(await life.look(next), { kind: 'over', state: 'delivered' });
});

test('a webhook waits for a slot as long as the webhooks before it will probably take', async (t) => {
  const { life, results, sent } = t.context;
  const reply = Promise.withResolvers<AttemptResult>();
  results.set('slow.example', () => reply.promise);
  const ids = await life.deliveries(
    await life.organization(),
    'https://slow.example/',
    60,
  );
  await life.time.freeze();
  const sending = ids.slice(0, 10).map((id) => life.look(id));
  while (sent.length < 10) await new Promise(setImmediate);
  // Half of an attempt of three seconds has passed, so one of the ten slots becomes free every 300
  // ms.
  await life.time.advance(1500);
  for (const [ahead, id] of ids.slice(10).entries()) {
    t.is(roomAfter(await life.look(id)), 300 * (ahead + 1));
  }
  reply.resolve(responded(200));
  await Promise.all(sending);
  // A response does not shorten the wait of later deliveries.
  const later = Promise.withResolvers<AttemptResult>();
  results.set('slow.example', () => later.promise);
  const others = ids.slice(10, 20).map((id) => life.look(id));
  while (sent.length < 20) await new Promise(setImmediate);
  t.is(roomAfter(await life.look(ids[20] ?? '')), 50 * 300 + 10);
  later.resolve(responded(200));
  await Promise.all(others);
});
