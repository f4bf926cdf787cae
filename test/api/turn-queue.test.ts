import { setImmediate } from 'node:timers/promises';
import test from 'ava';
import { TurnQueue } from '../../api/http/turn-queue.ts';

const LIMITS = { maxRunning: 1, maxRunningPerClient: 1, maxPerClient: 10, maxTotal: 20 };

/** Fills a queue with named work that runs until `end` is called. */
function createWork(queue: TurnQueue) {
  const begun: string[] = [];
  const ends = new Map<string, () => void>();
  return {
    begun,
    add: (name: string) =>
      queue.inTurn(name.charAt(0), async () => {
        begun.push(name);
        await new Promise<void>((resolve) => ends.set(name, resolve));
      }),
    async end(name: string): Promise<void> {
      ends.get(name)?.();
      await setImmediate();
    },
  };
}

test('clients in the queue take turns even if one of them has much more waiting work', async (t) => {
  const work = createWork(new TurnQueue(LIMITS));
  const all = ['a1', 'a2', 'a3', 'b1', 'c1'].map(work.add);
  await setImmediate();
  t.deepEqual(work.begun, ['a1']);
  for (const name of ['a1', 'a2', 'b1', 'c1', 'a3']) await work.end(name);
  await Promise.all(all);
  t.deepEqual(work.begun, ['a1', 'a2', 'b1', 'c1', 'a3']);
});

test('the queue limits how much work of one client runs at a time', async (t) => {
  const work = createWork(
    new TurnQueue({ ...LIMITS, maxRunning: 3, maxRunningPerClient: 2 }),
  );
  const all = ['a1', 'a2', 'a3', 'b1'].map(work.add);
  await setImmediate();
  t.deepEqual(work.begun, ['a1', 'a2', 'b1']);
  for (const name of ['a1', 'a2', 'b1', 'a3']) await work.end(name);
  await Promise.all(all);
});

test('a client with too much waiting work gets a 429, and others can still enter', (t) => {
  const queue = new TurnQueue({ ...LIMITS, maxPerClient: 2 });
  queue.enter('a');
  queue.enter('a');
  t.throws(() => queue.enter('a'), { message: 'HTTP 429' });
  t.notThrows(() => queue.enter('b'));
});

test('a full queue rejects every client with a 503 until a place is free', (t) => {
  const queue = new TurnQueue({ ...LIMITS, maxTotal: 2 });
  const place = queue.enter('a');
  queue.enter('b');
  t.throws(() => queue.enter('c'), { message: 'HTTP 503' });
  place.leave();
  t.notThrows(() => queue.enter('c'));
});

test('failed work and abandoned places no longer count in the queue', async (t) => {
  const queue = new TurnQueue({ ...LIMITS, maxPerClient: 1, maxTotal: 2 });
  const failed = queue.inTurn('a', async () => {
    throw new Error('failed');
  });
  await t.throwsAsync(failed, { message: 'failed' });
  const place = queue.enter('a');
  t.throws(() => queue.enter('a'), { message: 'HTTP 429' });
  t.notThrows(() => queue.enter('b').leave());
  place.leave();
  place.leave();
  await t.throwsAsync(
    place.inTurn(async () => 'late'),
    { message: 'HTTP 503' },
  );
  t.is(await queue.inTurn('a', async () => 'done'), 'done');
});
