import anyTest, { type TestFn } from 'ava';
import { sql } from 'drizzle-orm';
import { createLanes } from '../../../activities/webhooks/lanes.ts';
import type { Answer, Message } from '../../../activities/webhooks/post.ts';
import { showDelivery } from '../../../db/webhooks/log.ts';
import { answered, type Delivering, HOUR, type Look, startDelivering } from '../../support/delivering.ts';

// Receivers that are away or slow: what waits for them costs little and holds up nobody else.

interface Context {
  /** By host. */
  answers: Map<string, (message: Message) => Answer | Promise<Answer>>;
  sent: string[];
  life: Delivering;
}

const test = anyTest as TestFn<Context>;
const SILENT: Answer = { kind: 'failed', reason: 'timeout_connect' };
const DEAD = 'https://dead.example/hook';
const MINUTE = 60_000;

test.beforeEach(async (t) => {
  const answers: Context['answers'] = new Map();
  const sent: string[] = [];
  const life = await startDelivering(async (message) => {
    const { host } = new URL(message.url);
    sent.push(host);
    return await (answers.get(host)?.(message) ?? answered(200));
  });
  t.context = { answers, sent, life };
});

test.afterEach.always(async (t) => {
  await t.context.life?.stop();
});

/**
 * Lets time pass as Temporal would: each delivery is looked at when its last look said.
 * @returns when each was decided, in milliseconds from now
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

test('a dead host: after five silences one attempt at a time, and every delivery still ends with its schedule', async (t) => {
  const { life, answers, sent } = t.context;
  answers.set('dead.example', () => SILENT);
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

test('a host that is back gets everything, within about the time that it was away', async (t) => {
  const { life, answers } = t.context;
  answers.set('dead.example', () => SILENT);
  const ids = await life.deliveries(await life.organization(), DEAD, 30);
  const { decided } = await run(t.context, ids, 6 * HOUR, (hour) => {
    if (hour >= 0.1) answers.delete('dead.example');
  });
  t.is(decided.size, ids.length);
  for (const { state } of decided.values()) t.is(state, 'delivered');
  const last = Math.max(...[...decided.values()].map(({ at }) => at));
  t.true(last < 1.2 * HOUR, `${last / MINUTE} min`);
});

test('while a host is away nothing is sent but one attempt at a time, first attempts of new deliveries too', async (t) => {
  const { life, answers, sent } = t.context;
  answers.set('dead.example', () => SILENT);
  const organization = await life.organization();
  const early = await life.deliveries(organization, DEAD, 6);
  for (const id of early) await life.look(id);
  const reply = Promise.withResolvers<Answer>();
  answers.set('dead.example', () => reply.promise);
  const before = sent.length;
  const late = await life.deliveries(organization, DEAD, 5);
  const [first, ...others] = late;
  const trying = life.look(first ?? '');
  while (sent.length === before) await new Promise(setImmediate);
  for (const id of others) t.like(await life.look(id), { kind: 'wait', why: 'host_away' });
  t.is(sent.length, before + 1);
  reply.resolve(answered(500));
  t.like(await trying, { why: 'tried' });
  answers.delete('dead.example');
  await life.time.advance(MINUTE);
  for (const id of others) t.deepEqual(await life.look(id), { kind: 'over', state: 'delivered' });
});

test('a host that one organization finds dead is not closed to another', async (t) => {
  const { life, answers, sent } = t.context;
  answers.set('dead.example', () => SILENT);
  const dead = await life.deliveries(await life.organization(), DEAD, 9);
  for (const id of dead.slice(1)) await life.look(id);
  // Its one attempt at a time is under way.
  const reply = Promise.withResolvers<Answer>();
  answers.set('dead.example', ({ url }) => (url.endsWith('/hook') ? reply.promise : answered(200)));
  const before = sent.length;
  const trying = life.look(dead[0] ?? '');
  while (sent.length === before) await new Promise(setImmediate);
  const fine = await life.deliveries(await life.organization(), 'https://dead.example/fine', 3);
  for (const id of fine) t.deepEqual(await life.look(id), { kind: 'over', state: 'delivered' });
  reply.resolve(SILENT);
  await trying;
});

test('attempts from before a host was given up change nothing about that, silent or answered', async (t) => {
  const { life, answers, sent } = t.context;
  const replies = Array.from({ length: 16 }, () => Promise.withResolvers<Answer>());
  answers.set('dead.example', () => replies[sent.length - 1]?.promise ?? answered(200));
  const ids = await life.deliveries(await life.organization(), DEAD, replies.length);
  const other = life.startWorker();
  const looks: Promise<Look>[] = [];
  for (const [i, id] of ids.entries()) {
    looks.push(i % 2 === 0 ? life.look(id) : life.look(id, other));
    while (sent.length <= i) await new Promise(setImmediate);
  }
  const silent = async (from: number, to: number) => {
    for (const reply of replies.slice(from, to)) reply.resolve(SILENT);
    for (const look of looks.slice(from, to)) t.like(await look, { why: 'tried' });
  };
  await silent(0, 5);
  replies[15]?.resolve(answered(500));
  t.like(await looks[15], { why: 'tried' });
  const shut = await life.db.drizzle.execute(sql`select 1 from webhook_hosts where open_until is not null`);
  t.is(shut.length, 1);
  // The host rests for five seconds, and is tried then.
  await life.time.advance(10_000);
  await silent(5, 10);
  t.deepEqual(await life.look(ids[0] ?? ''), { kind: 'over', state: 'delivered' });
  await silent(10, 15);
  t.deepEqual(await life.look(ids[1] ?? ''), { kind: 'over', state: 'delivered' });
});

test('an answer of whatever status keeps a host open', async (t) => {
  const { life, answers, sent } = t.context;
  answers.set('dead.example', () => answered(500));
  const ids = await life.deliveries(await life.organization(), DEAD, 20);
  for (const id of ids) t.like(await life.look(id), { why: 'tried' });
  t.is(sent.length, 20);
});

test('ten at once to a slow host; the others wait outside, and another host is not touched', async (t) => {
  const { life, answers, sent } = t.context;
  const reply = Promise.withResolvers<Answer>();
  answers.set('slow.example', () => reply.promise);
  const organization = await life.organization();
  const ids = await life.deliveries(organization, 'https://slow.example/', 15);
  const sending = ids.slice(0, 10).map((id) => life.look(id));
  while (sent.length < 10) await new Promise(setImmediate);
  for (const id of ids.slice(10)) t.like(await life.look(id), { kind: 'wait', why: 'no_room' });
  const [other = ''] = await life.deliveries(organization, 'https://fast.example/', 1);
  t.deepEqual(await life.look(other), { kind: 'over', state: 'delivered' });
  reply.resolve(answered(200));
  for (const look of await Promise.all(sending)) t.deepEqual(look, { kind: 'over', state: 'delivered' });
  for (const id of ids.slice(10)) t.deepEqual(await life.look(id), { kind: 'over', state: 'delivered' });
});

test('room: so many per host and per organization, and what is left is shared', (t) => {
  const lanes = createLanes({ total: 8, perOrganization: 6, perHost: 4 });
  const fill = (organization: string, host: string) => {
    const leaves: ((ms: number) => void)[] = [];
    for (;;) {
      const entry = lanes.enter(organization, host);
      if (entry.kind === 'wait') return leaves;
      leaves.push(entry.leave);
    }
  };
  t.is(fill('a', 'one').length, 4);
  // Half of what there is: as much is left for all the others.
  t.is(fill('a', 'two').length, 0);
  t.is(fill('b', 'one').length, 2);
  const last = fill('c', 'one');
  t.is(last.length, 1);
  t.is(fill('d', 'one').length, 1);
  t.is(fill('e', 'one').length, 0);
  for (const leave of last) leave(5);
  t.is(fill('e', 'one').length, 1);
});

test('who waits for room is told a turn behind those who wait already, as far off as attempts take', (t) => {
  const lanes = createLanes({ total: 100, perOrganization: 50, perHost: 2 });
  const enter = () => lanes.enter('org', 'host');
  for (let n = 0; n < 40; n += 1) {
    const entry = enter();
    if (entry.kind === 'go') entry.leave(10_000);
  }
  t.is(enter().kind, 'go');
  t.is(enter().kind, 'go');
  const waits = Array.from({ length: 200 }, () => {
    const entry = enter();
    return entry.kind === 'wait' ? entry.afterMs : 0;
  });
  const [first = 0, second = 0] = waits;
  t.true(first > 4000 && first < 5500, `${first} ms`);
  t.true(second > 9000 && second < 10_500, `${second} ms`);
  t.true(Math.max(...waits) <= 600_000);
});
