import test from 'ava';
import { sql } from 'drizzle-orm';
import type { Step } from '../../activities/vendors/vendor.ts';
import { fresh } from '../support/database.ts';
import { eventually } from '../support/organization.ts';
import { startApi, startStack, vendorSource } from '../support/stack.ts';
import { createScriptedVendor, foundStep, ordinaryNpis } from '../support/vendors.ts';

// Tests how the results of several vendors combine, and how limits change them. The vendors are
// scripted. Everything else is as in production.

const vendors = {
  first: createScriptedVendor('first'),
  second: createScriptedVendor('second'),
  /** Ten credits a day, three per call. */
  capped: createScriptedVendor('capped'),
  /** A repeated call may cost again. */
  costly: createScriptedVendor('costly'),
  /** Its license does not let us store its results. */
  borrowed: createScriptedVendor('borrowed'),
};
const npis = ordinaryNpis('found', 60, 40_000).values();
const take = () => npis.next().value ?? '';

const stack = fresh(test, () =>
  startStack({
    vendors: [
      vendorSource(vendors.first, { capMs: 2000 }),
      vendorSource(vendors.second),
      vendorSource(
        { ...vendors.capped, cost: () => 3 },
        { limits: { rates: [], dailyCredits: 10 } },
      ),
      vendorSource({ ...vendors.costly, repeatIsFree: false }),
      vendorSource(vendors.borrowed, { mayStore: false }),
    ],
  }),
);
const client = fresh(test, () => stack.organization(1000));
/** An API whose requests have too little time, for the same workers. */
const hasty = fresh(test, () => {
  const { databaseUrl, taskQueue } = stack;
  return startApi({ databaseUrl, taskQueue, lookupTimeoutMs: 5000 });
});

test.beforeEach(async () => {
  // The vendor health and spending of one test must not affect the next one.
  await stack.db.drizzle.execute(sql`delete from source_health`);
  await stack.db.drizzle.execute(sql`delete from source_spend`);
});

async function lookUp(npi: string, caller = client) {
  const { json } = await caller.single({ npi });
  const envelope = await caller.completed(json.batch_id);
  const [row] = await stack.db.drizzle.execute<{ reason: string | null }>(sql`
    select reason from requests where id = ${json.requests[0]?.request_id}`);
  return {
    status: envelope.data[0]?.status,
    reason: row?.reason ?? null,
    atOnce: json.status === 'completed',
  };
}

test.serial(
  'a vendor at its daily credit limit is not called and costs nothing',
  async (t) => {
    const { capped } = vendors;
    const asked = Array.from({ length: 6 }, take);
    for (const npi of asked)
      capped.script(npi, () => ({ kind: 'miss', reason: 'nobody', credits: 3 }));
    const ends = await Promise.all(asked.map((npi) => lookUp(npi)));
    const calls = asked.filter((npi) => capped.asked(npi, 'submit') > 0).length;
    t.true(calls <= 3, `${calls} calls at three credits each`);
    const [row] = await stack.db.drizzle.execute<{ n: number }>(sql`
    select count(*)::int n from vendor_attempts a join lookups l on l.id = a.lookup_id
     where a.vendor = 'capped' and a.reason = 'daily_credits' and l.npi in ${asked}`);
    t.is(row?.n, asked.length - calls);
    // A call that we skip because of our own limit is not a reason for not_found.
    t.deepEqual(ends.map(({ status }) => status).sort(), [
      ...Array(asked.length - calls).fill('failed'),
      ...Array(calls).fill('not_found'),
    ]);
  },
);

test.serial(
  'a result that we may not store is used only for its own lookup',
  async (t) => {
    const npi = take();
    vendors.borrowed.script(npi, () => foundStep(npi));
    t.like(await lookUp(npi), { status: 'completed' });
    const other = await stack.organization(10);
    const again = await lookUp(npi, other);
    t.like(again, { status: 'completed', atOnce: false });
    t.is(vendors.borrowed.asked(npi, 'submit'), 2);
    t.true(
      (await lookUp(npi)).atOnce,
      'its own organization has it replayed: it was paid for',
    );
  },
);

test.serial(
  'an address is not returned if the vendor does not say whose it is',
  async (t) => {
    const npi = take();
    const found = foundStep(npi);
    if (found.kind !== 'found') throw new Error('not found');
    vendors.first.script(npi, () => ({
      ...found,
      identity: { npi: null, name: null, state: null, employerDomain: null },
    }));
    t.like(await lookUp(npi), { status: 'not_found' });
    const [row] = await stack.db.drizzle.execute<{ reason: string }>(sql`
    select reason from email_checks where npi = ${npi} and kind = 'identity'`);
    t.is(row?.reason, 'identity_unknown');
  },
);

test.serial(
  'a paid vendor call without a response is repeated once, after other vendors',
  async (t) => {
    const npi = take();
    const { costly, first, borrowed } = vendors;
    costly.script(npi, ({ nth }) =>
      nth === 1 ? { kind: 'retry', why: 'unanswered', afterMs: null } : foundStep(npi),
    );
    t.like(await lookUp(npi), { status: 'completed' });
    t.is(costly.asked(npi, 'submit'), 2);
    t.deepEqual(
      [first, borrowed].map((vendor) => vendor.asked(npi, 'submit')),
      [1, 1],
    );

    const never = take();
    costly.script(never, () => ({ kind: 'retry', why: 'unanswered', afterMs: null }));
    t.like(await lookUp(never), { status: 'failed' });
    t.is(costly.asked(never, 'submit'), 2, 'and no more than once');
  },
);

test.serial(
  'the next lookup polls an unfinished vendor job instead of paying for a new one',
  async (t) => {
    const npi = take();
    const { first } = vendors;
    first.script(npi, ({ operation }) =>
      operation === 'submit'
        ? { kind: 'pending', jobRef: 'slow job', pollAfterMs: 500 }
        : pollOf(npi),
    );
    done.delete(npi);
    // On a busy machine, the time can be over before the vendor is called.
    await eventually(async () => {
      t.like(await lookUp(npi, await hasty.organization(10)), { status: 'failed' });
      return first.asked(npi, 'submit') || null;
    });
    done.add(npi);
    t.like(await lookUp(npi, await stack.organization(10)), { status: 'completed' });
    t.is(first.asked(npi, 'submit'), 1);
    t.deepEqual(
      await attemptsAt('first', npi),
      ['lost 0', 'found 1'],
      'what it cost is booked once',
    );
  },
);

test.serial(
  'a vendor job whose poll had a rejected API key is polled again, not paid again',
  async (t) => {
    const npi = take();
    const { first } = vendors;
    first.script(npi, ({ operation, nth }) => {
      if (operation === 'submit')
        return { kind: 'pending', jobRef: 'job of a key', pollAfterMs: 1 };
      return nth === 1 ? { kind: 'fatal', why: 'auth' } : foundStep(npi);
    });
    t.like(await lookUp(npi), { status: 'failed', reason: 'auth' });
    await stack.db.drizzle.execute(sql`delete from source_health`);
    t.like(await lookUp(npi), { status: 'completed' });
    t.is(first.asked(npi, 'submit'), 1);
  },
);

/** Returns the final state and the credits of each attempt at a vendor. */
async function attemptsAt(vendor: string, npi: string): Promise<string[]> {
  const rows = await stack.db.drizzle.execute<{ state: string; credits: number }>(sql`
    select a.state, a.credits::float8 as credits from vendor_attempts a join lookups l on l.id = a.lookup_id
     where l.npi = ${npi} and a.vendor = ${vendor} order by l.opened_at`);
  return [...rows].map(({ state, credits }) => `${state} ${credits}`);
}

test.serial(
  "a vendor's address is not returned if NPPES lists it as a Direct address",
  async (t) => {
    const npi = take();
    vendors.first.script(npi, () => foundStep(npi));
    const step = foundStep(npi);
    const email = step.kind === 'found' ? step.candidates[0]?.email : undefined;
    const endpoint = ` mailto:${email?.toUpperCase()}`;
    await stack.db.drizzle.execute(sql`
    insert into provider_endpoints (npi, kind, endpoint) values (${npi}, 'DIRECT', ${endpoint})`);
    t.like(await lookUp(npi), { status: 'not_found' });
    const rows = await stack.db.drizzle.execute(
      sql`select reason from stored_emails where npi = ${npi}`,
    );
    t.deepEqual([...rows], [{ reason: 'direct' }]);
  },
);

const done = new Set<string>();
const pollOf = (npi: string): Step =>
  done.has(npi)
    ? foundStep(npi)
    : { kind: 'pending', jobRef: 'slow job', pollAfterMs: 500 };
