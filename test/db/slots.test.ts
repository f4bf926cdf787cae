import test from 'ava';
import {
  type Admission,
  admitCall,
  type Rate,
  type SourceLimits,
} from '../../db/lookups/sources.ts';
import { settle } from '../../db/requests/settle.ts';
import { fresh, freshDatabase, travel } from '../support/database.ts';
import { openOrganization, RULES, submitAccepted } from '../support/organization.ts';

// Tests slots under the rate limits of a source. PostgreSQL's clock is frozen, and only the tests
// advance it.

const { db, url } = freshDatabase(test);
const time = fresh(test, () => travel(url));

test.before(() => time.freeze());

/** A slot every ten seconds. */
const SLOW: SourceLimits = { rates: [rateOf(10_000)], dailyCredits: null };
/** A slot every second. */
const QUICK: SourceLimits = { rates: [rateOf(1000)], dailyCredits: null };
const DAY_MS = 86_400_000;

/** Returns the rate whose slots are `slotMs` apart. We call 3 % less often than a source allows. */
function rateOf(slotMs: number): Rate {
  return { calls: 1, perMs: slotMs / 1.03 };
}

let nextNpi = 2_000_000_000;

/** Submits requests of a new organization, each for a new NPI. */
async function requestsOf(count: number): Promise<string[]> {
  const organization = await openOrganization(db, 1000);
  const ids: string[] = [];
  while (ids.length < count) {
    const npis = Array.from({ length: Math.min(60, count - ids.length) }, () =>
      String(nextNpi++),
    );
    ids.push(...(await submitAccepted(db, organization, { npis })).requestIds);
  }
  return ids;
}

/** Returns the milliseconds until the request should ask again; 0 if its call is admitted. */
async function ask(
  source: string,
  requestId = '',
  limits = SLOW,
  patienceMs = DAY_MS,
): Promise<number> {
  const admission = await admit(source, requestId, limits, patienceMs);
  if (admission.kind === 'go') return 0;
  if (admission.kind === 'wait' && admission.why === 'rate_limit')
    return admission.afterMs;
  throw new Error(`not admitted: ${admission.kind}`);
}

async function admit(
  source: string,
  requestId: string,
  limits: SourceLimits,
  patienceMs: number,
): Promise<Admission> {
  return await admitCall(db, { source, limits, cost: 1, requestId, patienceMs });
}

test.serial(
  'slots never allow more calls in any window than the rate limit',
  async (t) => {
    const limits = { rates: [{ calls: 10, perMs: 1000 }], dailyCredits: null };
    const slots: number[] = [];
    for (const id of await requestsOf(40)) slots.push(await ask('windows', id, limits));
    for (const slot of slots) {
      const within = slots.filter((other) => other >= slot && other < slot + 1000).length;
      t.true(within <= 10, `${within} calls within a second`);
    }
  },
);

test.serial(
  'half of the calls of an hour are made at once, and the others spread out',
  async (t) => {
    const rate = { calls: 10, perMs: 3_600_000 };
    const limits = { rates: [rate], dailyCredits: null };
    const made: number[] = [];
    for (let minute = 0; minute < 180; minute += 1) {
      while ((await ask('burst', '', limits, 0)) === 0) made.push(minute);
      await time.advance(60_000);
    }
    t.deepEqual(made.slice(0, 7), [0, 0, 0, 0, 0, 11, 21]);
    for (const from of made) {
      const within = made.filter((minute) => minute >= from && minute < from + 60);
      t.true(within.length <= 10, `${within.length} calls in an hour`);
    }
  },
);

test.serial(
  'a request that must wait for a slot is asked to return 2 s before the slot',
  async (t) => {
    const [one, two, three] = await requestsOf(3);
    t.deepEqual(
      [await ask('told', one), await ask('told', two), await ask('told', three)],
      [0, 8000, 18_000],
    );
    await time.advance(1000);
    t.deepEqual([await ask('told', three), await ask('told', two)], [17_000, 7000]);
    await time.advance(7000);
    t.is(await ask('told', two), 2000);
    await time.advance(2000);
    t.is(await ask('told', two), 0);
  },
);

test.serial('a request keeps its slot when later requests ask for slots', async (t) => {
  const [one, two, late] = await requestsOf(3);
  await ask('places', one);
  await ask('places', two);
  await time.advance(9000);
  t.is(await ask('places', late), 9000);
  await time.advance(1000);
  t.deepEqual([await ask('places', late), await ask('places', two)], [8000, 0]);
});

test.serial('a slot that starts within 5 s stays reserved for its request', async (t) => {
  const [one, two, three] = await requestsOf(3);
  t.deepEqual([await ask('near', one, QUICK), await ask('near', two, QUICK)], [0, 1000]);
  await time.advance(1500);
  t.deepEqual([await ask('near', three, QUICK), await ask('near', two, QUICK)], [500, 0]);
});

test.serial(
  'a request that returns more than 2 s after its slot gets the next free slot',
  async (t) => {
    const [one, two, three] = await requestsOf(3);
    for (const id of [one, two, three]) await ask('overslept', id, QUICK);
    await time.advance(4500);
    t.deepEqual(
      [await ask('overslept', two, QUICK), await ask('overslept', three, QUICK)],
      [0, 1000],
    );
  },
);

test.serial(
  'a request that never returns for its slot does not delay the next request',
  async (t) => {
    const [one, dead, next] = await requestsOf(3);
    t.deepEqual(
      [await ask('dead', one), await ask('dead', dead), await ask('dead', next)],
      [0, 8000, 18_000],
    );
    await time.advance(10_000);
    t.is(await ask('dead', next), 8000);
    await time.advance(8000);
    t.is(await ask('dead', next), 0);
  },
);

test.serial('the slot of a settled request is given to the next request', async (t) => {
  const [one, settled, next] = await requestsOf(3);
  for (const id of [one, settled]) await ask('settled', id);
  await settle(db, settled ?? '', 'failed', 'deadline', RULES);
  t.is(await ask('settled', next), 8000);
});

test.serial(
  'a slot is not reserved for a request that times out before the slot',
  async (t) => {
    const [one, hasty, patient] = await requestsOf(3);
    await ask('hasty', one);
    t.is(await ask('hasty', hasty, SLOW, 5000), 10_000);
    t.is(await ask('hasty', patient), 8000);
  },
);

test.serial(
  'a request that has timed out still gets a slot that is free now',
  async (t) => {
    const [one] = await requestsOf(1);
    t.is(await ask('no-time', one, SLOW, -1000), 0);
  },
);

test.serial('an admission says how long the call waited for its slot', async (t) => {
  const [one, two] = await requestsOf(2);
  for (const id of [one, two]) await ask('waited', id);
  await time.advance(10_000);
  t.like(await admit('waited', two ?? '', SLOW, DAY_MS), {
    kind: 'go',
    waitedMs: 10_000,
  });
});

test.serial(
  'organizations take turns at slots even if one of them has many more requests',
  async (t) => {
    const many = await requestsOf(30);
    const few = await requestsOf(5);
    const calls = await play('turns', QUICK, [...many, ...few]);
    const firstTwenty = calls.slice(0, 20);
    t.is(firstTwenty.filter(({ id }) => few.includes(id)).length, 5);
  },
);

test.serial(
  "300 requests use 95 % of a source's 3 calls a second, asking at most 3 times each",
  async (t) => {
    const limits = { rates: [{ calls: 3, perMs: 1000 }], dailyCredits: null };
    const made = await play('a source', limits, await requestsOf(300));
    const seconds = (made.at(-1)?.at ?? 0) / 1000;
    t.true(299 / seconds >= 0.95 * 3, `300 calls in ${seconds} s`);
    t.true(made.every(({ asked }) => asked <= 3));
  },
);

interface Made {
  readonly id: string;
  /** Milliseconds since the start. */
  readonly at: number;
  /** How often the request asked for a slot. */
  readonly asked: number;
}

/**
 * Lets all requests ask at once, and again when their wait is over, until each has made its call.
 */
async function play(
  source: string,
  limits: SourceLimits,
  ids: readonly string[],
): Promise<Made[]> {
  const made: Made[] = [];
  let waiting = ids.map((id) => ({ id, at: 0, asked: 0 }));
  let now = 0;
  while (waiting.length > 0) {
    const next = Math.min(...waiting.map(({ at }) => at));
    await time.advance(next - now);
    now = next;
    const due = waiting.filter(({ at }) => at === now);
    waiting = waiting.filter(({ at }) => at > now);
    for (const { id, asked } of due) {
      const afterMs = await ask(source, id, limits);
      const after = { id, at: now + afterMs, asked: asked + 1 };
      if (afterMs === 0) made.push(after);
      else waiting.push(after);
    }
  }
  return made;
}
