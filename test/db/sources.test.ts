import test from 'ava';
import { sql } from 'drizzle-orm';
import { type Database, openDatabase } from '../../db/client.ts';
import {
  type Admission,
  admitOne,
  type CallOutcome,
  recordOne,
  type SourceLimits,
} from '../../db/lookups/sources.ts';
import { openTestDatabase, type TestDatabase } from '../support/database.ts';

// The gate before every call of a source, as several workers go through it at once.

const FREE: SourceLimits = { rates: [], dailyCredits: null };

let database: TestDatabase;
let workers: Database[];

test.before(async () => {
  database = await openTestDatabase();
  workers = Array.from({ length: 3 }, () =>
    openDatabase({ url: database.url, poolSize: 5, applicationName: 'test' }),
  );
});

test.after.always(async () => {
  for (const db of workers ?? []) await db.close();
  await database?.drop();
});

const first = () => workers[0] as Database;
const admit = (source: string, limits = FREE, cost = 1) => admitOne(first(), source, limits, cost);
const record = (source: string, outcome: CallOutcome) => recordOne(first(), source, outcome);

/** Lets time pass for one source: everything that was to last until some moment is over `seconds` earlier. */
async function pass(source: string, seconds: number): Promise<void> {
  await first().drizzle.execute(sql`
    update source_health set open_until = open_until - make_interval(secs => ${seconds}),
           trial_until = trial_until - make_interval(secs => ${seconds}),
           paused_until = paused_until - make_interval(secs => ${seconds}) where source = ${source}`);
}

async function askAll(source: string, limits: SourceLimits, calls: number, cost = 1): Promise<Admission[]> {
  return await Promise.all(
    Array.from({ length: calls }, (_, i) => admitOne(workers[i % 3] as Database, source, limits, cost)),
  );
}

const kinds = (admissions: readonly Admission[]) => {
  const count = (kind: Admission['kind']) => admissions.filter((one) => one.kind === kind).length;
  return { go: count('go'), wait: count('wait'), spent: count('spent') };
};

test('a rate holds across workers: never more calls than it says, and the rest are told when to come back', async (t) => {
  const limits = { rates: [{ calls: 20, perMs: 600_000 }], dailyCredits: null };
  const admissions = await askAll('paced', limits, 60);
  const { go, wait } = kinds(admissions);
  t.true(go >= 1 && go <= 20, `${go} at once`);
  t.is(go + wait, 60);
  for (const one of admissions) {
    if (one.kind === 'wait') t.true(one.why === 'rate_limit' && one.afterMs > 0 && one.afterMs <= 600_000);
  }
});

test('in any window of a rate there are at most as many calls as it says', async (t) => {
  const windowMs = 1000;
  const limits = { rates: [{ calls: 10, perMs: windowMs }], dailyCredits: null };
  const admitted: number[] = [];
  const until = Date.now() + 3 * windowMs;
  while (Date.now() < until) {
    const admission = await admit('windowed', limits);
    if (admission.kind === 'go') admitted.push(admission.at.getTime());
  }
  for (const start of admitted) {
    const within = admitted.filter((at) => at >= start && at < start + windowMs).length;
    t.true(within <= 10, `${within} calls within ${windowMs} ms`);
  }
  // How many more come through is a question of the machine.
  t.true(admitted.length >= 3, `${admitted.length} calls in three windows`);
});

test('the smallest of several rates decides', async (t) => {
  const limits = {
    rates: [
      { calls: 1000, perMs: 1000 },
      { calls: 2, perMs: 600_000 },
    ],
    dailyCredits: null,
  };
  t.is((await admit('two-rates', limits)).kind, 'go');
  t.like(await admit('two-rates', limits), { kind: 'wait', why: 'rate_limit' });
});

test('a day’s credits are spent to the last one and not beyond, however many ask at once', async (t) => {
  const limits = { rates: [], dailyCredits: 30 };
  t.deepEqual(kinds(await askAll('dear', limits, 40, 3)), { go: 10, wait: 0, spent: 30 });
  const [row] = await first().drizzle.execute<{ credits: string }>(sql`
    select credits from source_spend where source = 'dear'`);
  t.is(Number(row?.credits), 30);
});

test('credits that were set aside and not charged can be spent again', async (t) => {
  const limits = { rates: [], dailyCredits: 1 };
  const { at } = await admitOne(first(), 'pay-on-find', limits, 1);
  t.is((await admit('pay-on-find', limits)).kind, 'spent');
  await recordOne(first(), 'pay-on-find', { kind: 'answered' }, 1, at);
  t.is((await admit('pay-on-find', limits)).kind, 'go');
});

test('a question that costs more than a whole day’s credits is never put', async (t) => {
  t.is((await admit('tiny-budget', { rates: [], dailyCredits: 2 }, 3)).kind, 'spent');
});

test('five failures in a row open the breaker; an answer in between does not let them add up', async (t) => {
  for (let i = 0; i < 4; i += 1) await record('shaky', { kind: 'failed', why: 'upstream' });
  await record('shaky', { kind: 'answered' });
  for (let i = 0; i < 4; i += 1) await record('shaky', { kind: 'failed', why: 'upstream' });
  t.is((await admit('shaky')).kind, 'go');
  await record('shaky', { kind: 'failed', why: 'upstream' });
  t.like(await admit('shaky'), { kind: 'wait', why: 'breaker_open' });
});

test('an open breaker lets exactly one trial through when its time is over, whoever asks', async (t) => {
  for (let i = 0; i < 5; i += 1) await record('half-open', { kind: 'failed', why: 'upstream' });
  await pass('half-open', 31);
  t.deepEqual(kinds(await askAll('half-open', FREE, 12)), { go: 1, wait: 11, spent: 0 });
});

test('a trial that succeeds closes the breaker, one that fails opens it for longer', async (t) => {
  for (let i = 0; i < 5; i += 1) await record('trial', { kind: 'failed', why: 'upstream' });
  await pass('trial', 31);
  t.is((await admit('trial')).kind, 'go');
  await record('trial', { kind: 'failed', why: 'upstream' });
  const again = await admit('trial');
  t.true(again.kind === 'wait' && again.afterMs > 45_000, 'longer than the first 30 s');
  await pass('trial', 61);
  t.is((await admit('trial')).kind, 'go');
  await record('trial', { kind: 'answered' });
  t.deepEqual(kinds(await askAll('trial', FREE, 6)), { go: 6, wait: 0, spent: 0 });
});

test('a trial whose worker died does not keep the breaker shut for ever', async (t) => {
  for (let i = 0; i < 5; i += 1) await record('died', { kind: 'failed', why: 'upstream' });
  await pass('died', 31);
  t.is((await admit('died')).kind, 'go');
  t.is((await admit('died')).kind, 'wait');
  await pass('died', 61);
  t.is((await admit('died')).kind, 'go');
});

test('a refused key opens the breaker at once, for minutes', async (t) => {
  await record('refused', { kind: 'refused', why: 'auth' });
  const admission = await admit('refused');
  t.true(admission.kind === 'wait' && admission.why === 'breaker_open' && admission.afterMs > 200_000);
});

test('Retry-After pauses everyone, and is no failure', async (t) => {
  for (let i = 0; i < 9; i += 1) await record('limited', { kind: 'rate_limit', afterMs: 20_000 });
  await record('limited', { kind: 'rate_limit', afterMs: 1000 });
  const admission = await admit('limited');
  t.true(admission.kind === 'wait' && admission.why === 'paused' && admission.afterMs > 15_000);
  await pass('limited', 21);
  t.is((await admit('limited')).kind, 'go');
});

test('one question that fails again and again does not shut the source for all others', async (t) => {
  await record('poisoned', { kind: 'failed', why: 'upstream' });
  for (let i = 0; i < 9; i += 1) await record('poisoned', { kind: 'failed_again', why: 'upstream' });
  t.is((await admit('poisoned')).kind, 'go');
});
