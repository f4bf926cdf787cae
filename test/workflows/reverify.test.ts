import test from 'ava';
import { sql } from 'drizzle-orm';
import { nextCandidate } from '../../db/lookups/candidate-checks.ts';
import { copyKnown } from '../../db/lookups/candidates.ts';
import { listFading } from '../../db/lookups/checks.ts';
import { personOf } from '../../deploy/local/sim/people.ts';
import { WORKFLOWS } from '../../workflows/messages.ts';
import { fresh } from '../support/database.ts';
import { startStack } from '../support/stack.ts';
import { storeEmail } from '../support/stored.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests the scheduled check of stored addresses before they go stale. The tests start it by hand.

const DAY = 86_400_000;

const stack = fresh(test, () => startStack({ allSources: true }));

async function store(npi: string, email: string, ageDays: number): Promise<void> {
  const lastValidatedAt = new Date(Date.now() - ageDays * DAY);
  await storeEmail(stack.db, {
    npi,
    email,
    lastValidatedAt,
  });
}

async function verdictOn(npi: string): Promise<{ verdict: string; age_days: number }> {
  const [row] = await stack.db.drizzle.execute<{ verdict: string; age_days: number }>(sql`
    select verdict, round(extract(epoch from clock_timestamp() - last_validated_at) / 86400)::int as age_days
      from stored_emails where npi = ${npi}`);
  if (!row) throw new Error('nothing stored');
  return { ...row };
}

test.serial(
  'the scheduled check covers only requested addresses that are about to go stale',
  async (t) => {
    const [fading = '', dead = '', young = '', unasked = '', typed = ''] = ordinaryNpis(
      'found',
      5,
      70_000,
    );
    const emailOf = (npi: string) => personOf(npi).workEmail;
    const domain = emailOf(dead).split('@')[1];
    await store(fading, emailOf(fading), 27);
    await store(dead, `missing.person@${domain}`, 27);
    await store(young, emailOf(young), 10);
    await store(unasked, emailOf(unasked), 27);
    await store(typed, emailOf(typed), 27);
    const client = await stack.organization();
    await client.bulk({ npis: [fading, dead, young, typed] });
    await stack.db.drizzle.execute(sql`
    insert into provider_endpoints (npi, kind, endpoint) values (${typed}, 'DIRECT', ${emailOf(typed)})`);

    const result = await stack.client.workflow.execute(WORKFLOWS.reverify, {
      taskQueue: stack.taskQueue,
      workflowId: `reverify-by-hand-${stack.taskQueue}`,
    });
    t.deepEqual(result, { valid: 1, notValid: 2, undecided: 0 });
    t.deepEqual(await verdictOn(fading), { verdict: 'valid', age_days: 0 });
    t.is((await verdictOn(dead)).verdict, 'invalid');
    t.is(
      (await verdictOn(typed)).verdict,
      'invalid',
      'NPPES says by now that it takes Direct messages',
    );
    t.deepEqual(await verdictOn(young), { verdict: 'valid', age_days: 10 });
    t.deepEqual(await verdictOn(unasked), { verdict: 'valid', age_days: 27 });

    const asked = stack.simulator.calls().filter(({ vendor }) => vendor === 'reacher');
    t.is(asked.length, 2);
  },
);

// Fails without the condition on `email_checks` in `listFading`.
test.serial(
  'an address without a clear result is not checked by the next scheduled run',
  async (t) => {
    const [npi = ''] = ordinaryNpis('found', 1, 71_000);
    const domain = personOf(npi).workEmail.split('@')[1];
    await store(npi, `unknown.person@${domain}`, 27);
    await (await stack.organization()).single({ npi });
    const round = (n: number) =>
      stack.client.workflow.execute(WORKFLOWS.reverify, {
        taskQueue: stack.taskQueue,
        workflowId: `reverify-undecided-${n}-${stack.taskQueue}`,
      });
    t.is((await round(1)).undecided, 1);
    t.is((await round(2)).undecided, 0);
    t.deepEqual(await verdictOn(npi), { verdict: 'valid', age_days: 27 });
  },
);

test.serial(
  'checking an address again considers how many sources named it recently',
  async (t) => {
    const [npi = ''] = ordinaryNpis('found', 1, 73_000);
    await store(npi, personOf(npi).workEmail, 27);
    await (await stack.organization()).single({ npi });
    await stack.db.drizzle.execute(sql`
    insert into email_checks (npi, email, kind, source, verdict, at)
    select ${npi}, ${personOf(npi).workEmail}, 'named', source, 'unknown', now() - make_interval(days => days)
      from (values ('one', 40), ('two', 50), ('three', 70)) named (source, days)`);
    const fading = await listFading(stack.db, {
      freshnessMs: 30 * DAY,
      leadMs: 5 * DAY,
      limit: 50,
    });
    t.is(
      fading.find((one) => one.npi === npi)?.namedBy,
      2,
      'the third is older than 60 days',
    );
  },
);

test.serial(
  'checking an old address again does not count as another source naming it',
  async (t) => {
    const [npi = ''] = ordinaryNpis('found', 1, 74_000);
    const email = personOf(npi).workEmail;
    await store(npi, email, 40);
    await stack.db.drizzle.execute(sql`
    insert into email_checks (npi, email, kind, source, verdict) values (${npi}, ${email}, 'named', 'another', 'unknown')`);
    const lookup = { npi, lookupId: 'lookup-of-a-test' };
    await stack.db.drizzle.execute(sql`
    insert into lookups (id, npi, requested_type, opened_at) values (${lookup.lookupId}, ${npi}, 'any', now())`);
    await copyIn(lookup);
    t.like(await firstCandidate(lookup), { email, namedBy: 1 });
  },
);

interface Lookup {
  readonly npi: string;
  readonly lookupId: string;
}

/** Copies the known addresses of a lookup. Returns true if any waits for a check. */
function copyIn(lookup: Lookup): Promise<boolean> {
  const known = { ...lookup, listed: [], freshnessMs: 30 * DAY, canVerify: true };
  return copyKnown(stack.db, known);
}

/** Takes the lookup's turn, and returns its first candidate. */
async function firstCandidate({ lookupId }: Lookup) {
  const until = new Date(Date.now() + DAY);
  await stack.db.drizzle.execute(sql`
    update lookups set turn_of = 'req_of_a_test', turn_until = ${until.toISOString()} where id = ${lookupId}`);
  const turn = { lookupId, requestId: 'req_of_a_test', until };
  const next = await nextCandidate(stack.db, turn, {
    ...{ employerDomains: [], except: [], isDeadline: false },
    ...{
      greylistMs: 1000,
      turnMs: 1000,
      requestedType: 'any',
      freshnessMs: 86_400_000,
    },
  });
  return next?.candidate;
}

/**
 * Stores an address that was rejected this many hours ago, with the evidence of the check that
 * rejected it.
 */
async function reject(
  npi: string,
  hours: number,
  kind: string,
  reason: string,
): Promise<void> {
  const email = personOf(npi).workEmail;
  await stack.db.drizzle.execute(sql`
    insert into stored_emails (npi, email, email_type, verdict, reason, source, updated_at)
    values (${npi}, ${email}, 'professional', 'invalid', ${reason}, 'nppes', now() - make_interval(hours => ${hours}))`);
  await stack.db.drizzle.execute(sql`
    insert into email_checks (npi, email, kind, source, verdict, reason, at)
    select ${npi}, ${email}, kind, source, verdict, ${reason}, now() - make_interval(hours => ${hours})
      from (values ('named', 'nppes', 'unknown'), (${kind}, 'test', 'invalid'), ('verdict', 'service', 'invalid'))
             line (kind, source, verdict)
     where kind <> ''`);
}

for (const [n, [by, kind, reason]] of [
  ['name servers', 'local', 'nxdomain'],
  ['a verifier', 'verifier', 'mailbox_missing'],
].entries()) {
  test.serial(
    `an address that ${by} rejected is checked again in a lookup a day later`,
    async (t) => {
      const [npi = ''] = ordinaryNpis('found', 1, 75_000 + n * 1000);
      await reject(npi, 25, kind ?? '', reason ?? '');
      const client = await stack.organization();
      const { data } = await client.completed(
        (await client.single({ npi })).json.batch_id,
      );
      t.deepEqual(
        [data[0]?.status, data[0]?.email],
        ['completed', personOf(npi).workEmail],
      );
      const bought = await stack.db.drizzle.execute(sql`
      select vendor from vendor_attempts join lookups on lookups.id = lookup_id
       where npi = ${npi} and state <> 'skip'`);
      t.deepEqual([...bought], [], 'no vendor was asked');
    },
  );
}

for (const [n, [about, hours, kind, reason, isCopied]] of (
  [
    ['rejected by name servers 25 hours ago is checked', 25, 'local', 'nxdomain', true],
    [
      'rejected by name servers 23 hours ago is not checked',
      23,
      'local',
      'nxdomain',
      false,
    ],
    ['rejected by our own rules is not checked', 25, 'local', 'lookalike', false],
    ['called invalid by its source is not checked', 25, '', 'mailbox_missing', false],
  ] as const
).entries()) {
  test.serial(`an address ${about} again`, async (t) => {
    const [npi = ''] = ordinaryNpis('found', 1, 77_000 + n * 1000);
    await reject(npi, hours, kind, reason);
    const lookup = { npi, lookupId: `lookup-of-a-rejection-${n}` };
    await stack.db.drizzle.execute(sql`
      insert into lookups (id, npi, requested_type, opened_at) values (${lookup.lookupId}, ${npi}, 'any', now())`);
    const waits = await copyIn(lookup);
    t.is(waits, isCopied);
  });
}

test.serial(
  'a rejected address whose evidence was deleted is checked again',
  async (t) => {
    const [npi = ''] = ordinaryNpis('found', 1, 81_000);
    await reject(npi, 200 * 24, 'local', 'nxdomain');
    await stack.db.drizzle.execute(sql`delete from email_checks where npi = ${npi}`);
    const lookup = { npi, lookupId: 'lookup-without-evidence' };
    await stack.db.drizzle.execute(sql`
    insert into lookups (id, npi, requested_type, opened_at) values (${lookup.lookupId}, ${npi}, 'any', now())`);
    const waits = await copyIn(lookup);
    t.true(waits);
  },
);

test.serial(
  'checking a rejected address again does not count as another source naming it',
  async (t) => {
    const [npi = ''] = ordinaryNpis('found', 1, 82_000);
    await reject(npi, 40 * 24, 'verifier', 'mailbox_missing');
    const lookup = { npi, lookupId: 'lookup-of-an-old-rejection' };
    await stack.db.drizzle.execute(sql`
    insert into lookups (id, npi, requested_type, opened_at) values (${lookup.lookupId}, ${npi}, 'any', now())`);
    await copyIn(lookup);
    t.like(await firstCandidate(lookup), { verdict: 'unknown', namedBy: 0 });
  },
);

test.serial(
  'an address that an earlier lookup left unchecked is checked before vendors are called',
  async (t) => {
    const [npi = ''] = ordinaryNpis('found', 1, 72_000);
    const email = personOf(npi).workEmail;
    await stack.db.drizzle.execute(sql`
    insert into lookups (id, npi, requested_type, opened_at, closed_at)
    values ('lookup-that-left-it', ${npi}, 'professional', now() - interval '30 days', now() - interval '30 days')`);
    await stack.db.drizzle.execute(sql`
    insert into candidates (lookup_id, npi, email, source, claimed_verdict, repeats_input, may_store, named_at)
    values ('lookup-that-left-it', ${npi}, ${email}, 'test', 'unknown', false, true, now() - interval '30 days'),
           ('lookup-that-left-it', ${npi}, ${`lent.${email}`}, 'lender', 'unknown', false, false, now() - interval '30 days')`);
    const client = await stack.organization();
    const { data } = await client.completed((await client.single({ npi })).json.batch_id);
    t.deepEqual(
      [data[0]?.status, data[0]?.email],
      ['completed', personOf(npi).workEmail],
    );
    const bought = await stack.db.drizzle.execute(sql`
    select vendor from vendor_attempts join lookups on lookups.id = lookup_id
       where npi = ${npi} and state <> 'skip'`);
    t.deepEqual([...bought], [], 'nobody was paid for it');
    const copied = await stack.db.drizzle.execute(sql`
    select email, named_at < now() - interval '29 days' as is_old
      from candidates where npi = ${npi} and lookup_id <> 'lookup-that-left-it'`);
    t.deepEqual(
      [...copied],
      [{ email, is_old: true }],
      'an address that may not be kept reaches only its lookup, and a copy keeps its age',
    );
  },
);
