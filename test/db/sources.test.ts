import test from 'ava';
import { sql } from 'drizzle-orm';
import { type Database, openDatabase } from '../../db/connection/client.ts';
import { nextCandidate, recordUndecided } from '../../db/lookups/candidate-checks.ts';
import { copyKnown } from '../../db/lookups/candidates.ts';
import { joinLookup } from '../../db/lookups/lookups.ts';
import {
  type Admission,
  admitCall,
  type BreakerChange,
  type CallOutcome,
  recordOne,
  type SourceLimits,
} from '../../db/lookups/sources.ts';
import { giveBackTurn } from '../../db/lookups/turns.ts';
import { recordVendorJob } from '../../db/lookups/vendor-attempts.ts';
import { beginVendorStep } from '../../db/lookups/vendor-steps.ts';
import { settle } from '../../db/requests/settle.ts';
import { freshDatabase } from '../support/database.ts';
import {
  joinLookups,
  openOrganization,
  RULES,
  submitAccepted,
} from '../support/organization.ts';

// Tests the admission of calls to a source by several workers at the same time.

const FREE: SourceLimits = { rates: [], dailyCredits: null };

const { db: first, url } = freshDatabase(test);
const others = Array.from({ length: 2 }, () =>
  openDatabase({ url, poolSize: 5, applicationName: 'test' }),
);
const workers = [first, ...others];

test.after.always(() => Promise.all(others.map((db) => db.close())));

const admitNow = (source: string, limits = FREE, cost = 1) =>
  admitBy(first, source, limits, cost);

/** Asks for a call of our own, without a request, from one of the workers. */
async function admitBy(db: Database, source: string, limits: SourceLimits, cost: number) {
  return await admitCall(db, {
    source,
    limits,
    cost,
    requestId: null,
    patienceMs: 60_000,
  });
}

/** Records the outcome of a call. */
type End = (outcome: CallOutcome) => Promise<BreakerChange | null>;

/** Begins calls on all workers. */
async function begin(source: string, calls: number): Promise<End[]> {
  return await Promise.all(
    Array.from({ length: calls }, async (_, i): Promise<End> => {
      const db = workers[i % 3] as Database;
      const { kind, era } = await admitBy(db, source, FREE, 1);
      if (kind !== 'go') throw new Error(`${source}: ${kind}`);
      return (outcome) => recordOne(db, source, era, outcome);
    }),
  );
}

/** Makes one whole call. */
async function record(source: string, outcome: CallOutcome): Promise<void> {
  for (const end of await begin(source, 1)) await end(outcome);
}

async function fail(source: string, times: number): Promise<void> {
  for (let i = 0; i < times; i += 1)
    await record(source, { kind: 'failed', why: 'upstream' });
}

/** Returns the milliseconds until the breaker admits a trial; 0 if it is closed. */
async function waitOf(source: string): Promise<number> {
  const admission = await admitNow(source);
  return admission.kind === 'wait' && admission.why === 'breaker_open'
    ? admission.afterMs
    : 0;
}

/** Lets time pass for one source: its breaker and its pause end `seconds` earlier. */
async function pass(source: string, seconds: number): Promise<void> {
  const span = sql`make_interval(secs => ${seconds})`;
  await first.drizzle.execute(sql`
    update source_health set open_until = open_until - ${span}, paused_until = paused_until - ${span}
     where source = ${source}`);
}

/** Lets a day pass: moves today's spending to yesterday and deletes older spending. */
async function passDay(source: string): Promise<void> {
  await first.drizzle.execute(sql`
    delete from source_spend where source = ${source} and day < (clock_timestamp() at time zone 'UTC')::date`);
  await first.drizzle.execute(
    sql`update source_spend set day = day - 1 where source = ${source}`,
  );
}

const npis = Array.from({ length: 100 }, (_, n) => String(2_000_000_000 + n));

/** Submits requests of a new organization, for new NPIs if no NPIs are given. */
async function requestsOf(
  count: number,
  asked = npis.splice(0, count),
): Promise<string[]> {
  const organization = await openOrganization(first, 1000);
  return (await submitAccepted(first, organization, { npis: asked })).requestIds;
}

async function askAll(
  source: string,
  limits: SourceLimits,
  calls: number,
  cost = 1,
): Promise<Admission[]> {
  return await Promise.all(
    Array.from({ length: calls }, (_, i) =>
      admitBy(workers[i % 3] as Database, source, limits, cost),
    ),
  );
}

const kinds = (admissions: readonly Admission[]) => {
  const count = (kind: Admission['kind']) =>
    admissions.filter((one) => one.kind === kind).length;
  return { go: count('go'), wait: count('wait'), spent: count('spent') };
};

test('all workers together stay within a rate limit; calls over it get a wait time', async (t) => {
  const limits = { rates: [{ calls: 20, perMs: 600_000 }], dailyCredits: null };
  const admissions = await askAll('paced', limits, 60);
  const { go, wait } = kinds(admissions);
  t.true(go >= 1 && go <= 20, `${go} at once`);
  t.is(go + wait, 60);
  for (const one of admissions) {
    if (one.kind === 'wait')
      t.true(one.why === 'rate_limit' && one.afterMs > 0 && one.afterMs <= 600_000);
  }
});

test('two requests for the same NPI call and pay a vendor only once', async (t) => {
  const asked = npis.splice(0, 1);
  const [one = '', other = ''] = [
    ...(await requestsOf(1, asked)),
    ...(await requestsOf(1, asked)),
  ];
  const call = {
    vendor: 'asked-once',
    mayRepeat: true,
    callMs: 1000,
    freshnessMs: 1000,
    patienceMs: 0,
  };
  const limits = { rates: [{ calls: 100_000, perMs: 1000 }], dailyCredits: 100 };
  for (const requestId of [one, other]) await joinLookups(first, [requestId]);
  const steps = await Promise.all(
    Array.from({ length: 12 }, (_, i) => {
      const requestId = i % 2 === 0 ? one : other;
      return beginVendorStep(workers[i % 3] as Database, {
        ...call,
        requestId,
        limits,
        cost: () => 1,
      });
    }),
  );
  t.is(steps.filter(({ kind }) => kind === 'ask').length, 1);
  t.is(
    steps.filter((step) => step.kind === 'wait' && step.why === 'shared_lookup').length,
    11,
  );
  const [spent] = await first.drizzle.execute(
    sql`select sum(credits)::int as credits from source_spend where source = 'asked-once'`,
  );
  t.is(spent?.credits, 1);
});

/** Returns functions that begin a step of one of two requests that share a lookup. */
async function sharedLookup(vendor: string) {
  const asked = npis.splice(0, 1);
  const requestIds = [...(await requestsOf(1, asked)), ...(await requestsOf(1, asked))];
  await joinLookups(first, requestIds);
  const [npi = ''] = asked;
  const steps = requestIds.map((requestId) => () => {
    return beginVendorStep(first, {
      ...{ requestId, vendor, mayRepeat: true, callMs: 30_000, freshnessMs: 1000 },
      ...{ patienceMs: 0, limits: FREE, cost: () => 1 },
    });
  });
  const [mine, others] = steps;
  if (mine === undefined || others === undefined) throw new Error('two requests');
  /** Lets the turn end, as if its worker had died. */
  const endTurn = () =>
    first.drizzle.execute(sql`
    update lookups set turn_until = clock_timestamp() where npi = ${npi}`);
  return { npi, requestIds, mine, others, endTurn };
}

const TAKEN = { kind: 'wait', why: 'shared_lookup' };

test('a call that was lost with its worker is repeated once, after its turn is over', async (t) => {
  const { mine, others, endTurn } = await sharedLookup('lossy');
  t.like(await mine(), { kind: 'ask', key: { n: 1 } });
  t.like(await mine(), TAKEN, 'a retry waits, too: the first call may still run');
  t.like(await others(), TAKEN);
  await endTurn();
  t.like(await others(), { kind: 'ask', key: { n: 2 } });
  t.like(await mine(), TAKEN);
  await endTurn();
  t.like(await mine(), { kind: 'over', state: 'lost' });
  t.like(await others(), { kind: 'over', state: 'lost' }, 'the turn is free again');
});

test('a turn outlasts its call, even if PostgreSQL is slow before and after it', async (t) => {
  const [before] = await first.drizzle.execute(sql`select clock_timestamp() as at`);
  const { mine } = await sharedLookup('slow-database');
  const step = await mine();
  if (step.kind !== 'ask') return t.fail(step.kind);
  const [production] = others;
  const slowest = production?.deadlineMs ?? Number.POSITIVE_INFINITY;
  const lastsMs = step.turn.until.getTime() - Date.parse(String(before?.at));
  t.true(lastsMs >= slowest + 30_000 + slowest, `${lastsMs} ms`);
});

test('a worker that lost its turn cannot give back or renew the turn of another', async (t) => {
  const { mine, others, endTurn } = await sharedLookup('zombie');
  const lost = await mine();
  if (lost.kind !== 'ask') return t.fail(lost.kind);
  await endTurn();
  const taken = await others();
  if (taken.kind !== 'ask') return t.fail(taken.kind);
  await giveBackTurn(first, lost.turn);
  const search = {
    ...{ employerDomains: [], except: [], isDeadline: false },
    ...{
      greylistMs: 1000,
      turnMs: 60_000,
      requestedType: 'any' as const,
      freshnessMs: RULES.freshnessMs,
    },
  };
  t.is(await nextCandidate(first, lost.turn, search), null);
  t.like(await mine(), TAKEN);
  t.truthy(await nextCandidate(first, taken.turn, search));
  await giveBackTurn(first, taken.turn);
  t.like(await mine(), { kind: 'over' }, 'the renewed turn was given back');
});

test('a settled request keeps its turn until its worker gives it back', async (t) => {
  const { requestIds, mine, others } = await sharedLookup('overdue');
  const step = await mine();
  if (step.kind !== 'ask') return t.fail(step.kind);
  await settle(first, requestIds[0] ?? '', 'failed', 'cancelled', RULES);
  t.like(await mine(), { kind: 'settled' });
  t.like(await others(), TAKEN, 'the call still runs');
  await giveBackTurn(first, step.turn);
  t.like(await others(), { kind: 'ask' });
});

test('a request that must wait for a rate limit gives the turn back', async (t) => {
  const { requestIds, others } = await sharedLookup('slow-down');
  const limits = { rates: [{ calls: 1, perMs: 3_600_000 }], dailyCredits: null };
  const limited = {
    vendor: 'once-an-hour',
    mayRepeat: true,
    callMs: 1000,
    freshnessMs: 1000,
  };
  const step = () =>
    beginVendorStep(first, {
      ...{ ...limited, requestId: requestIds[0] ?? '', limits },
      ...{ patienceMs: 0, cost: () => 1 },
    });
  await admitNow('once-an-hour', limits);
  t.like(await step(), { kind: 'wait', why: 'rate_limit' });
  t.like(await others(), { kind: 'ask' });
});

test('a single submit overtakes the queued bulk that shares its lookup', async (t) => {
  const asked = npis.splice(0, 10);
  const bulk = await requestsOf(10, asked);
  const [single = ''] = await requestsOf(1, asked.slice(-1));
  await joinLookups(first, [...bulk, single]);
  const limits = { rates: [{ calls: 1, perMs: 10_000 }], dailyCredits: null };
  const waitFor = async (requestId: string) => {
    const step = await beginVendorStep(first, {
      ...{
        requestId,
        vendor: 'queued',
        mayRepeat: true,
        callMs: 1000,
        freshnessMs: 1000,
      },
      ...{ patienceMs: 600_000, limits, cost: () => 1 },
    });
    return step.kind === 'wait' && step.why === 'rate_limit' ? step.afterMs : 0;
  };
  const waits: number[] = [];
  for (const requestId of bulk) waits.push(await waitFor(requestId));
  t.true((waits.at(-1) ?? 0) > 70_000);
  t.true((await waitFor(single)) < 30_000, 'its own place, in the first round');
});

test('a greylisted address is not checked before its pause is over, except at the deadline', async (t) => {
  const { npi, mine } = await sharedLookup('greylisting');
  const step = await mine();
  if (step.kind !== 'ask') return t.fail(step.kind);
  const { turn } = step;
  const { lookupId } = turn;
  const email = 'jane@greylisted.example';
  const known = { npi, lookupId, listed: [email], freshnessMs: 1000, canVerify: true };
  t.true(await copyKnown(first, known));
  const next = async (isDeadline: boolean) => {
    const found = await nextCandidate(first, turn, {
      ...{ employerDomains: [], except: [], isDeadline },
      ...{
        greylistMs: 300_000,
        turnMs: 60_000,
        requestedType: 'any' as const,
        freshnessMs: RULES.freshnessMs,
      },
    });
    return [found?.candidate?.email ?? null, found?.areLater];
  };
  t.deepEqual(await next(false), [email, false]);
  await recordUndecided(first, { lookupId, email }, [], 300_000);
  t.deepEqual(await next(false), [null, true]);
  t.deepEqual(await next(true), [email, false]);
  // A lookup of another type copies the pause, too.
  const organization = await openOrganization(first, 10);
  const [other = ''] = (
    await submitAccepted(first, organization, { npis: [npi], requestedType: 'personal' })
  ).requestIds;
  const joined = await joinLookup(first, other);
  await copyKnown(first, { ...known, lookupId: joined?.lookupId ?? '' });
  const [copied] = await first.drizzle.execute(sql`
    select check_after > clock_timestamp() + interval '4 minutes' as waits
      from candidates where lookup_id = ${joined?.lookupId}`);
  t.true(copied?.waits);
  await first.drizzle.execute(sql`
    update candidates set check_after = clock_timestamp() where lookup_id = ${lookupId}`);
  t.deepEqual(await next(false), [email, false]);
});

test('a vendor job that several lookups share is polled no more often than allowed', async (t) => {
  const asked = npis.splice(0, 1);
  const [one = '', other = ''] = [
    ...(await requestsOf(1, asked)),
    ...(await requestsOf(1, asked)),
  ];
  const call = {
    vendor: 'patient',
    mayRepeat: true,
    callMs: 1000,
    freshnessMs: 1000,
    patienceMs: 0,
  };
  const ask = (requestId: string) =>
    beginVendorStep(first, { ...call, requestId, limits: FREE, cost: () => 1 });
  for (const requestId of [one, other]) await joinLookups(first, [requestId]);
  const step = await ask(one);
  if (step.kind !== 'ask') return t.fail(step.kind);
  await recordVendorJob(first, step.key, 'job', 300_000, { kind: 'responded' });
  await giveBackTurn(first, step.turn);
  const waits = async (requestId: string) => {
    const { afterMs, ...next } = { afterMs: 0, ...(await ask(requestId)) };
    t.like(next, { kind: 'wait', why: 'pending' });
    t.true(afterMs > 200_000 && afterMs <= 300_000, `${afterMs} ms`);
  };
  for (const requestId of [one, other]) await waits(requestId);
  for (const requestId of [one, other])
    await settle(first, requestId, 'failed', 'deadline', RULES);
  const [later = ''] = await requestsOf(1, asked);
  await joinLookups(first, [later]);
  await waits(later);
});

test('polls do not count toward a limit that is only for new calls', async (t) => {
  const [one = '', other = ''] = await requestsOf(2);
  const ask = (requestId: string) =>
    beginVendorStep(first, {
      vendor: 'planned',
      requestId,
      mayRepeat: true,
      callMs: 1000,
      freshnessMs: 1000,
      patienceMs: 0,
      limits: {
        rates: [{ calls: 1, perMs: 3_600_000, exceptPolls: true }],
        dailyCredits: null,
      },
      cost: () => 1,
    });
  for (const requestId of [one, other]) await joinLookups(first, [requestId]);
  const step = await ask(one);
  if (step.kind !== 'ask') return t.fail(step.kind);
  await recordVendorJob(first, step.key, 'job', 0, { kind: 'responded' });
  await giveBackTurn(first, step.turn);
  t.like(await ask(one), { kind: 'ask', jobRef: 'job' });
  t.like(await ask(other), { kind: 'wait', why: 'rate_limit' });
});

test('if a source has several rate limits, the lowest one applies', async (t) => {
  const limits = {
    rates: [
      { calls: 1000, perMs: 1000 },
      { calls: 2, perMs: 600_000 },
    ],
    dailyCredits: null,
  };
  t.is((await admitNow('two-rates', limits)).kind, 'go');
  t.like(await admitNow('two-rates', limits), { kind: 'wait', why: 'rate_limit' });
});

test('concurrent calls can spend a daily credit limit in full, but not exceed it', async (t) => {
  const limits = { rates: [], dailyCredits: 30 };
  t.deepEqual(kinds(await askAll('dear', limits, 40, 3)), { go: 10, wait: 0, spent: 30 });
  const [row] = await first.drizzle.execute<{ credits: string }>(sql`
    select credits from source_spend where source = 'dear'`);
  t.is(Number(row?.credits), 30);
});

test('daily credits that were reserved for a call but not charged can be spent again', async (t) => {
  const limits = { rates: [], dailyCredits: 1 };
  const { at: askedAt, era } = await admitNow('pay-on-find', limits);
  t.is((await admitNow('pay-on-find', limits)).kind, 'spent');
  await recordOne(
    first,
    'pay-on-find',
    era,
    { kind: 'responded' },
    { credits: 1, askedAt, requestId: null },
  );
  t.is((await admitNow('pay-on-find', limits)).kind, 'go');
});

test('an organization may use all daily credits of a vendor, or half if others need them', async (t) => {
  const limits = { rates: [], dailyCredits: 10 };
  const [greedy = '', other = ''] = [...(await requestsOf(1)), ...(await requestsOf(1))];
  const goes = async (requestId: string | null, calls = 12) => {
    const asked = Array.from({ length: calls }, (_, i) =>
      admitCall(workers[i % 3] as Database, {
        source: 'rationed',
        limits,
        cost: 1,
        requestId,
        patienceMs: 0,
      }),
    );
    return kinds(await Promise.all(asked)).go;
  };
  t.is(await goes(greedy), 10);
  t.is(await goes(other), 0);
  await passDay('rationed');
  t.is(await goes(greedy), 5);
  await passDay('rationed');
  // The other organization's half is reserved from its first call on.
  t.is(await goes(other, 1), 1);
  t.deepEqual(await Promise.all([goes(greedy), goes(other)]), [5, 4]);
  await passDay('rationed');
  t.deepEqual([await goes(other), await goes(greedy, 2)], [5, 2]);
  await passDay('rationed');
  await passDay('rationed');
  // The other organization has made no call since yesterday, and calls without a request belong to
  // no organization.
  t.is(await goes(null, 1), 1);
  t.is(await goes(other), 9);
});

test('a call that costs more than the daily credit limit is never admitted', async (t) => {
  t.is((await admitNow('tiny-budget', { rates: [], dailyCredits: 2 }, 3)).kind, 'spent');
});

test('a vendor call waits while none of its required verifiers is available', async (t) => {
  const requiredVerifiers = [
    { source: 'verifier one', cost: 1, dailyCredits: null },
    { source: 'verifier two', cost: 1, dailyCredits: 2 },
  ];
  const call = {
    source: 'vendor',
    limits: { rates: [], dailyCredits: 9 },
    cost: 3,
    requestId: null,
    patienceMs: 1,
  };
  const admit = async () => {
    const admission = await admitCall(first, { ...call, requiredVerifiers });
    return admission.kind === 'wait' ? admission.why : admission.kind;
  };
  t.is(await admit(), 'go', 'nobody has asked them yet');
  await record('verifier one', { kind: 'refused', why: 'auth' });
  t.is(await admit(), 'go', 'the other one is well');
  await record('verifier two', { kind: 'rate_limit', afterMs: 60_000 });
  t.is(await admit(), 'verifier_unavailable');
  await pass('verifier one', 301);
  t.is(
    await admit(),
    'verifier_unavailable',
    'a trial that is due is not for us to make',
  );
  await pass('verifier two', 61);
  t.is(await admit(), 'go', 'its pause is over');
  await admitNow('verifier two');
  t.is(await admit(), 'verifier_unavailable', 'its credits of the day are spent');
  await record('verifier one', { kind: 'responded' });
  t.is(await admit(), 'spent', 'what waited has cost nothing: three calls have');
});

test("five failures in a row open a source's breaker, and a response resets the count", async (t) => {
  await fail('shaky', 4);
  await record('shaky', { kind: 'responded' });
  await fail('shaky', 4);
  t.is((await admitNow('shaky')).kind, 'go');
  await fail('shaky', 1);
  t.like(await admitNow('shaky'), { kind: 'wait', why: 'breaker_open' });
});

test("50 simultaneous failures open a source's breaker only once and only for seconds", async (t) => {
  const calls = await begin('crowded', 50);
  await Promise.all(calls.map((end) => end({ kind: 'failed', why: 'unanswered' })));
  t.true((await waitOf('crowded')) <= 8000);
  t.is((await admitNow('crowded')).era, 1);
  await pass('crowded', 8);
  t.deepEqual(kinds(await askAll('crowded', FREE, 12)), { go: 1, wait: 11, spent: 0 });
});

test('late failures of calls that began before the breaker opened do not prolong it', async (t) => {
  const calls = await begin('late', 45);
  for (const end of calls.slice(0, 5)) await end({ kind: 'failed', why: 'upstream' });
  await pass('late', 6);
  for (const end of calls.slice(5, 25)) await end({ kind: 'failed', why: 'unanswered' });
  t.true((await waitOf('late')) <= 2000);
  await pass('late', 8);
  await record('late', { kind: 'responded' });
  for (const end of calls.slice(25)) await end({ kind: 'failed', why: 'unanswered' });
  t.deepEqual(kinds(await askAll('late', FREE, 12)), { go: 12, wait: 0, spent: 0 });
});

test('a response to a call that began before the breaker opened does not close it', async (t) => {
  const [slow] = await begin('slow', 1);
  await fail('slow', 5);
  await slow?.({ kind: 'responded' });
  t.like(await admitNow('slow'), { kind: 'wait', why: 'breaker_open' });
});

test('after its pause, an open breaker admits one trial call, even if all workers ask', async (t) => {
  await fail('half-open', 5);
  t.deepEqual(kinds(await askAll('half-open', FREE, 12)), { go: 0, wait: 12, spent: 0 });
  await pass('half-open', 8);
  t.deepEqual(kinds(await askAll('half-open', FREE, 12)), { go: 1, wait: 11, spent: 0 });
});

test("a successful trial call closes a source's breaker", async (t) => {
  await fail('trial', 5);
  await pass('trial', 8);
  await record('trial', { kind: 'responded' });
  t.deepEqual(kinds(await askAll('trial', FREE, 6)), { go: 6, wait: 0, spent: 0 });
});

test('if concurrent calls open or close a breaker, only one of them reports the change', async (t) => {
  const endAll = (ends: readonly End[], outcome: CallOutcome) =>
    Promise.all(ends.map((end) => end(outcome)));
  const told = (changes: readonly (BreakerChange | null)[]) =>
    changes.filter((change) => change !== null);
  const failing = await begin('told', 12);
  t.deepEqual(
    told(await endAll(failing, { kind: 'failed', why: 'unsent: ECONNREFUSED' })),
    ['opened'],
  );
  const trials: End[] = [];
  for (let i = 0; i < 4; i += 1) {
    await pass('told', 300);
    trials.push(...(await begin('told', 1)));
  }
  t.deepEqual(
    told(await endAll(trials.splice(0, 2), { kind: 'refused', why: 'auth' })),
    [],
  );
  t.deepEqual(told(await endAll(trials, { kind: 'responded' })), ['closed']);
  const refused = await begin('told', 6);
  t.deepEqual(told(await endAll(refused, { kind: 'refused', why: 'auth' })), ['opened']);
});

test('a failing source gets a trial call every eight seconds, even if it fails slowly', async (t) => {
  await fail('away', 5);
  for (let i = 0; i < 20; i += 1) {
    await pass('away', 8);
    const [trial] = await begin('away', 1);
    await pass('away', 7);
    await trial?.({ kind: 'failed', why: 'unanswered' });
    const waitMs = await waitOf('away');
    t.true(waitMs <= 1000, `${waitMs} ms after trial ${i + 1}`);
  }
  await pass('away', 8);
  await record('away', { kind: 'responded' });
  t.is((await admitNow('away')).kind, 'go');
});

test('a hanging trial call does not delay the next one, and can still close the breaker', async (t) => {
  await fail('hanging', 5);
  const trials: End[] = [];
  for (let i = 0; i < 6; i += 1) {
    await pass('hanging', 8);
    trials.push(...(await begin('hanging', 1)));
    t.is((await admitNow('hanging')).kind, 'wait');
  }
  await trials[0]?.({ kind: 'responded' });
  // The failures of the other trials belong to the outage that is over.
  for (const end of trials.slice(1)) await end({ kind: 'failed', why: 'unanswered' });
  t.deepEqual(kinds(await askAll('hanging', FREE, 6)), { go: 6, wait: 0, spent: 0 });
});

test('a rejected API key opens the breaker for minutes, however older calls end', async (t) => {
  const calls = await begin('refused', 12);
  await calls[0]?.({ kind: 'refused', why: 'auth' });
  await pass('refused', 60);
  for (const end of calls.slice(1, 4)) await end({ kind: 'refused', why: 'auth' });
  for (const end of calls.slice(4, 10)) await end({ kind: 'failed', why: 'upstream' });
  for (const end of calls.slice(10)) await end({ kind: 'responded' });
  const waitMs = await waitOf('refused');
  t.true(waitMs > 200_000 && waitMs <= 240_000, `${waitMs} ms`);
});

test('a trial call with a rejected API key opens the breaker for minutes again', async (t) => {
  await fail('expired', 5);
  await pass('expired', 8);
  await record('expired', { kind: 'refused', why: 'credits' });
  t.true((await waitOf('expired')) > 200_000);
  await pass('expired', 300);
  await record('expired', { kind: 'refused', why: 'credits' });
  t.true((await waitOf('expired')) > 200_000);
});

test('a response with Retry-After pauses all calls to a source but is not a failure', async (t) => {
  const calls = await begin('limited', 10);
  for (const end of calls.slice(1)) await end({ kind: 'rate_limit', afterMs: 20_000 });
  await calls[0]?.({ kind: 'rate_limit', afterMs: 1000 });
  const admission = await admitNow('limited');
  t.true(
    admission.kind === 'wait' && admission.why === 'paused' && admission.afterMs > 15_000,
  );
  await pass('limited', 21);
  t.is((await admitNow('limited')).kind, 'go');
});

test("a single request whose calls fail repeatedly does not open a source's breaker", async (t) => {
  await fail('poisoned', 1);
  for (let i = 0; i < 9; i += 1)
    await record('poisoned', { kind: 'failed_again', why: 'upstream' });
  t.is((await admitNow('poisoned')).kind, 'go');
});
