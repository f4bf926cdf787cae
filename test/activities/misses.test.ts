import { MockActivityEnvironment } from '@temporalio/testing';
import test from 'ava';
import { pino } from 'pino';
import { createAskActivities } from '../../activities/ask.ts';
import type { ActivityDeps } from '../../activities/deps.ts';
import { createLookupActivities, createSubjects } from '../../activities/lookup.ts';
import { createSpending } from '../../activities/spending.ts';
import type { Step } from '../../activities/vendors/vendor.ts';
import type {
  Verifier,
  VerifierStep,
} from '../../activities/verification/verifiers/verifier.ts';
import { createVerifyActivities } from '../../activities/verify.ts';
import { forgetChecks } from '../../db/lookups/lookups.ts';
import { CHECK_MS } from '../../db/lookups/turns.ts';
import { eraseSubject } from '../../db/privacy/privacy.ts';
import { removeSuppression } from '../../db/privacy/suppressions.ts';
import { forgetOld } from '../../db/requests/retention.ts';
import { settle } from '../../db/requests/settle.ts';
import type { RequestedType } from '../../db/words.ts';
import { withCheckDigit } from '../../deploy/local/sim/people.ts';
import type { VendorResult } from '../../workflows/messages.ts';
import { checkOf, verifierOf } from '../support/checks.ts';
import { freshDatabase } from '../support/database.ts';
import { operatorOn, WHY } from '../support/operator.ts';
import {
  ASKED,
  BY,
  eventually,
  openOrganization,
  RETENTION,
  submitAccepted,
  WORKER_RULES,
} from '../support/organization.ts';
import { NO_TEMPORAL } from '../support/runtime.ts';
import { vendorSource } from '../support/stack.ts';
import { createScriptedVendor, employeeEmail, foundStep } from '../support/vendors.ts';

// The service remembers which vendors had no usable result, and does not pay them again. The tests
// run lookups one after the other like the workflow, but without Temporal and with scripted
// vendors.

const DAY = 86_400_000;
const CHECK = `${CHECK_MS} ms`;
const { db, sql, url } = freshDatabase(test);
const one = createScriptedVendor('one');
const other = createScriptedVendor('other');
let taken = 100_700_000;

/** Stores an imported person, and returns the NPI. */
async function person(): Promise<string> {
  taken += 1;
  const npi = withCheckDigit(taken);
  await sql`insert into providers (npi, entity_type, first_name, last_name, origin, row_hash)
    values (${npi}, 1, 'MARY', 'DOE', 'nppes', 1)`;
  return npi;
}

interface Setting {
  readonly requestedType?: RequestedType;
  readonly vendors?: ActivityDeps['vendors'];
  readonly verifiers?: ActivityDeps['verifiers'];
  readonly rules?: Partial<ActivityDeps['rules']>;
  /** The worker's clock. */
  readonly clock?: () => number;
}

/** Submits and settles a request for the NPI, and returns the vendors called and the outcome. */
async function lookUp(
  npi: string,
  { requestedType = 'any', verifiers = [], ...rest }: Setting = {},
) {
  const vendors = rest.vendors ?? [vendorSource(one)];
  const rules = { ...WORKER_RULES, ...rest.rules };
  const log = pino({ level: 'silent' });
  const check = checkOf({ verifiers, now: rest.clock ?? Date.now });
  const spending = createSpending(db, { isAuto: false, maxPricePerLookup: null });
  const deps = {
    db,
    log,
    spending,
    control: NO_TEMPORAL,
    vendors,
    verifiers,
    rules,
    registry: null,
    check,
    requiredVerifiers: { of: () => [], tryAgain: async () => null },
    subjects: createSubjects(db),
  };
  const organization = await openOrganization(db, 10);
  const { batchId, requestIds } = await submitAccepted(db, organization, {
    npis: [npi],
    requestedType,
  });
  const requestId = requestIds[0] ?? '';
  const ids = { requestId, batchId, npi };
  const plan = await createLookupActivities(deps).planLookup({ ...ids, registry: null });
  if (plan.kind === 'settled') return `${plan.result.status} ${plan.result.reason}`;
  const asked: string[] = [];
  let reason = 'no_source';
  for (const { vendor } of plan.kind === 'ask' ? plan.sources : []) {
    if (plan.kind !== 'ask' || vendor === null) continue;
    asked.push(vendor);
    const run = async (work: () => Promise<VendorResult>) =>
      (await new MockActivityEnvironment().run(work)) as VendorResult;
    const request = { ...ids, vendor, again: false, until: Date.now() + DAY };
    let result = await run(() => createAskActivities(deps).askVendor(request));
    if (result.kind === 'later') {
      await sql`update candidates set check_after = now() where npi = ${npi} and check_after is not null`;
      const { lookupId } = plan;
      result = await run(() =>
        createVerifyActivities(deps).verifyEmails({
          ...ids,
          lookupId,
          requestedType,
          patience: 'over',
        }),
      );
    }
    reason = result.reason ?? result.kind;
    if (result.kind === 'found' || result.kind === 'stored') break;
  }
  const { status } = await settle(db, requestId, 'finished', reason, rules);
  return [...asked, status, reason].join(' ');
}

const VERDICT = (
  verdict: 'valid' | 'invalid' | 'unknown',
  reason: 'mailbox_ok' | 'mailbox_missing' | 'timeout',
): VerifierStep => ({ kind: 'judgment', verdict, reason });
const AGAIN = 'one not_found nobody';
const REMEMBERED = 'not_found known_miss';

/** An address without a date of validation by the vendor. */
function undated(npi: string): Step {
  const found = foundStep(npi);
  if (found.kind !== 'found') return found;
  return {
    ...found,
    candidates: found.candidates.map((one) => ({
      ...one,
      verdict: 'unknown',
      validatedAt: null,
    })),
  };
}

/** An address whose date of validation is one hour in the future. */
function datedAhead(npi: string): Step {
  const found = foundStep(npi);
  if (found.kind !== 'found') return found;
  const validatedAt = new Date(Date.now() + 3_600_000);
  return {
    ...found,
    candidates: found.candidates.map((one) => ({ ...one, validatedAt })),
  };
}

test('a check gets a full turn for each verifier that it calls', async (t) => {
  const npi = await person();
  one.script(npi, () => undated(npi));
  const ends: Date[] = [];
  const verifiers = ['first', 'second'].map((id): Verifier => {
    return {
      id,
      cost: 1,
      async check() {
        const [turn] = await sql`select turn_until from lookups where npi = ${npi}`;
        const end: Date = turn?.turn_until;
        ends.push(end);
        await eventually(async () => {
          const [clock] =
            await sql`select clock_timestamp() + ${CHECK}::interval > ${end} as goes_on`;
          return clock?.goes_on || null;
        });
        return { ...VERDICT('unknown', 'timeout'), durationMs: 0, waitedMs: 0 };
      },
    };
  });
  await lookUp(npi, { verifiers });
  const [first, second] = ends;
  t.true(second !== undefined && first !== undefined && second > first);
});

test('a check whose turn another request has taken calls no second verifier', async (t) => {
  const npi = await person();
  one.script(npi, () => undated(npi));
  const slow: Verifier = {
    id: 'slow',
    cost: 1,
    async check() {
      await sql`update lookups set turn_until = turn_until + interval '1 s' where npi = ${npi}`;
      return { ...VERDICT('unknown', 'timeout'), durationMs: 0, waitedMs: 0 };
    },
  };
  const second = verifierOf('second', VERDICT('valid', 'mailbox_ok'));
  const lookup = lookUp(npi, { verifiers: [slow, second] });
  await t.throwsAsync(lookup, { message: 'verification: shared_lookup' });
  t.is(second.asked(), 0);
});

test('a vendor that had no result for an NPI is not called again for the next request', async (t) => {
  const npi = await person();
  t.is(await lookUp(npi), AGAIN);
  t.is(await lookUp(npi), REMEMBERED);
  t.is(one.asked(npi, 'submit'), 1);
  const spent =
    await sql`select sum(credits_used)::int as credits from requests where npi = ${npi}`;
  t.is(spent[0]?.credits, 0);
  const noted =
    await sql`select a.state, a.reason from vendor_attempts a join lookups l on l.id = a.lookup_id
    where l.npi = ${npi} order by a.started_at`;
  t.deepEqual(
    [...noted].map(({ state, reason }) => `${state} ${reason}`),
    ['miss nobody', 'skip known_miss'],
  );
});

test('a vendor without a result is called again 14 days after its response', async (t) => {
  const npi = await person();
  await lookUp(npi);
  const age = (
    days: number,
  ) => sql`update vendor_attempts a set ended_at = now() - make_interval(days => ${days})
    from lookups l where l.id = a.lookup_id and l.npi = ${npi} and a.state = 'miss'`;
  await age(13);
  t.is(await lookUp(npi), REMEMBERED);
  t.is(await lookUp(npi, { rules: { missMs: 12 * DAY } }), AGAIN);
  await age(15);
  t.is(await lookUp(npi), AGAIN);
  t.is(await lookUp(await person(), { rules: { missMs: 0 } }), AGAIN);
});

test('a vendor without a result is called again for another requested type', async (t) => {
  const npi = await person();
  await lookUp(npi);
  t.is(await lookUp(npi, { requestedType: 'personal' }), AGAIN);
  t.is(await lookUp(npi, { requestedType: 'personal' }), REMEMBERED);
});

test('after a lookup without a result, the next request calls only new vendors', async (t) => {
  const npi = await person();
  await lookUp(npi);
  const vendors = [vendorSource(one), vendorSource(other)];
  t.is(await lookUp(npi, { vendors }), 'other not_found nobody');
  t.is(await lookUp(npi, { vendors }), REMEMBERED);
});

for (const [about, change] of [
  [
    "the person's name",
    (npi: string) => sql`update providers set last_name = 'ROE' where npi = ${npi}`,
  ],
  [
    'the employer',
    (
      npi: string,
    ) => sql`insert into provider_endpoints (npi, kind, endpoint, affiliation_name)
      values (${npi}, 'OTHERS', 'https://clinic.example/', 'HARBOR CLINIC LLC')`,
  ],
] as const) {
  test(`all vendors are called again after an import changes ${about}`, async (t) => {
    const npi = await person();
    await lookUp(npi);
    await change(npi);
    t.is(await lookUp(npi), AGAIN);
    t.is(await lookUp(npi), REMEMBERED);
  });
}

test('vendors are called again after the verification policy or the verifiers change', async (t) => {
  const npi = await person();
  await lookUp(npi);
  const verifiers = [verifierOf('reacher', VERDICT('valid', 'mailbox_ok'))];
  t.is(await lookUp(npi, { verifiers }), AGAIN);
  t.is(
    await lookUp(npi, { verifiers, rules: { policy: 'verifier-required reject' } }),
    AGAIN,
  );
});

test('after the audited command `lookups forget NPI`, all vendors are called again', async (t) => {
  const npi = await person();
  await lookUp(npi);
  const { json, operator } = operatorOn(url);
  const forget = ['lookups', 'forget', npi, '--reason', 'ticket 93'];
  t.like(await json(...forget, '--dry-run'), { lookups: 1 });
  t.deepEqual(await json('lookups', 'forget', npi, '--reason', 'ticket 93'), {
    npi,
    forgotten: 1,
  });
  t.is(await lookUp(npi), AGAIN);
  t.is((await operator('lookups', 'forget', '12345', '--reason', 'ticket 93')).code, 2);
  const [entry] =
    await sql`select action, subject, details from audit_log where subject = ${npi}`;
  t.deepEqual(entry, { action: 'lookups.forget', subject: npi, details: { lookups: 1 } });
});

test('`lookups forget` undoes the verdicts of a broken verifier, after a dry run', async (t) => {
  const npi = await person();
  const later = await person();
  const { operator, json } = operatorOn(url);
  for (const which of [npi, later]) one.script(which, () => undated(which));
  const broken = {
    verifiers: [verifierOf('reacher', VERDICT('invalid', 'mailbox_missing'))],
  };
  const repaired = { verifiers: [verifierOf('reacher', VERDICT('valid', 'mailbox_ok'))] };
  t.is(await lookUp(npi, broken), 'one not_found none_valid');
  t.is(await lookUp(later, broken), 'one not_found none_valid');
  await sql`update email_checks set at = at - interval '2 hours' where npi = ${npi}`;
  t.is(await lookUp(npi, repaired), REMEMBERED);

  const forget = [
    'lookups',
    'forget',
    '--since',
    '3h',
    '--until',
    '1h',
    '--reason',
    'ticket 93',
  ];
  const counts = { checks: 1, addresses: 1, misses: 1 };
  t.like(await json(...forget, '--source', 'zerobounce'), {
    checks: 0,
    addresses: 0,
    misses: 0,
  });
  t.like(await json(...forget, '--source', 'reacher', '--dry-run'), {
    dry_run: true,
    ...counts,
  });
  t.is(await lookUp(npi, repaired), REMEMBERED);
  t.like(await json(...forget, '--source', 'reacher'), { dry_run: false, ...counts });
  t.is(await lookUp(npi, repaired), 'one completed found');
  t.is(await lookUp(later, repaired), REMEMBERED);
  const entries = await sql`select details from audit_log
    where action = 'lookups.forget' and details->>'source' = 'reacher'`;
  t.is(entries.length, 1);
  t.like(entries[0]?.details, counts);
  t.is(
    (await operator('lookups', 'forget', npi, '--since', '3h', '--reason', 'x')).code,
    2,
  );
  t.is((await operator('lookups', 'forget', '--reason', 'x')).code, 2);
  const both = await operator(
    ...['lookups', 'forget', npi, '--source', 'reacher'],
    ...WHY,
  );
  t.is(both.code, 2);
  t.regex(both.stderr, /with an NPI, give none of --until/);
});

test('forgetting checks locks a candidate before its stored address, as a verdict does', async (t) => {
  const npi = await person();
  one.script(npi, () => undated(npi));
  await lookUp(npi, {
    verifiers: [verifierOf('reacher', VERDICT('invalid', 'mailbox_missing'))],
  });
  await sql`update email_checks set reason = 'wrong' where npi = ${npi} and kind = 'verifier'`;
  const period = { since: new Date(0), until: new Date(Date.now() + DAY) };
  const doubted = { ...period, verdictReason: 'wrong', source: null };
  const { forgotten } = await sql.begin(async (verdict) => {
    await verdict`update candidates set reason = reason where npi = ${npi}`;
    const forgotten = forgetChecks(db, BY, doubted, false);
    await eventually(async () => {
      const waiting = await sql`
        select from pg_stat_activity
         where datname = current_database() and wait_event_type = 'Lock'
           and query like '%forget_checks%'`;
      return waiting.length > 0 ? true : null;
    });
    const free = await sql`
      select from stored_emails where npi = ${npi} for update skip locked`;
    t.is(free.length, 1);
    return { forgotten };
  });
  t.like(await forgotten, { addresses: 1 });
});

test('`lookups forget --verdict-reason` undoes the verdicts of a broken DNS resolver', async (t) => {
  const npi = await person();
  one.script(npi, () => undated(npi));
  const verifiers = [verifierOf('reacher', VERDICT('invalid', 'mailbox_missing'))];
  await lookUp(npi, { verifiers });
  await sql`update email_checks set kind = 'local', source = 'service', reason = 'nxdomain'
             where npi = ${npi} and kind = 'verifier'`;
  const forget = [
    'lookups',
    'forget',
    '--since',
    '1h',
    '--reason',
    'ticket 93',
    '--verdict-reason',
  ];
  const { json } = operatorOn(url);
  t.like(await json(...forget, 'no_mx'), { checks: 0 });
  t.like(await json(...forget, 'nxdomain'), { checks: 1, addresses: 1, misses: 1 });
  const [stored] =
    await sql`select verdict, reason from stored_emails where npi = ${npi}`;
  t.like(stored, { verdict: 'unknown', reason: 'forgotten' });
  t.regex(await lookUp(npi, { verifiers }), /^one /);
});

for (const [about, step] of [
  ['by a verifier', undated],
  ['by a vendor', (npi: string) => datedAhead(npi)],
] as const) {
  test(`a worker whose clock is ahead does not store a future date for a validation ${about}`, async (t) => {
    const npi = await person();
    one.script(npi, () => step(npi));
    const verifiers = [verifierOf('reacher', VERDICT('valid', 'mailbox_ok'))];
    const setting = step === undated ? { verifiers } : {};
    t.is(
      await lookUp(npi, { ...setting, clock: () => Date.now() + 3_600_000 }),
      'one completed found',
    );
    const [row] =
      await sql`select email_last_validated_at between now() - interval '1 minute' and now() as is_now
      from requests where npi = ${npi}`;
    t.true(row?.is_now);
  });
}

test('erasing an NPI also makes us forget which vendors had no result for it', async (t) => {
  const npi = await person();
  await lookUp(npi);
  await eraseSubject(db, { ...ASKED, reason: 'test' }, { npi });
  await removeSuppression(db, BY, { kind: 'npi', value: npi });
  t.is(await lookUp(npi), AGAIN);
});

test('erasing an address also makes us forget which vendors had no result for its NPI', async (t) => {
  const npi = await person();
  one.script(npi, () => undated(npi));
  t.is(await lookUp(npi), 'one not_found none_valid');
  await eraseSubject(db, { ...ASKED, reason: 'test' }, { email: employeeEmail(npi) });
  const [kept] =
    await sql`select count(facts)::int as facts from lookups where npi = ${npi}`;
  t.is(kept?.facts, 0);
});

test('after 180 days, we forget which vendors had no result for an NPI', async (t) => {
  const npi = await person();
  await lookUp(npi);
  await sql`update lookups set opened_at = now() - interval '181 days' where npi = ${npi}`;
  await forgetOld(db, RETENTION);
  const [kept] =
    await sql`select count(facts)::int as facts from lookups where npi = ${npi}`;
  t.is(kept?.facts, 0);
});

for (const [about, step] of [
  ['that our checks rejected', undated],
  ['about another person', () => foundStep('2000000010')],
] as const) {
  test(`a vendor with a result ${about} is called again after a day`, async (t) => {
    const npi = await person();
    const age = (
      hours: number,
    ) => sql`update vendor_attempts a set ended_at = now() - make_interval(hours => ${hours})
      from lookups l where l.id = a.lookup_id and l.npi = ${npi} and a.state = 'found'`;
    one.script(npi, () => step(npi));
    await lookUp(npi);
    await age(23);
    t.is(await lookUp(npi), REMEMBERED);
    t.regex(await lookUp(npi, { rules: { missMs: DAY / 2 } }), /^one not_found/);
    await age(25);
    t.regex(await lookUp(npi), /^one not_found/);
  });
}

test('an address of the wrong type is not verified, and its vendor is not called again', async (t) => {
  const npi = await person();
  one.script(npi, () => undated(npi));
  const verifier = verifierOf('reacher', VERDICT('valid', 'mailbox_ok'));
  const setting = { requestedType: 'personal', verifiers: [verifier] } as const;
  t.is(await lookUp(npi, setting), 'one not_found none_valid');
  t.notRegex(await lookUp(npi, setting), /^one /);
  t.deepEqual([one.asked(npi, 'submit'), verifier.asked()], [1, 0]);
});

test('an undated result confirms a stored address, which keeps its validation date', async (t) => {
  const npi = await person();
  const [named] = (foundStep(npi) as Extract<Step, { kind: 'found' }>).candidates;
  await sql`insert into stored_emails (npi, email, email_type, verdict, last_validated_at, source, reason, repeats_input)
    values (${npi}, ${named?.email ?? ''}, 'professional', 'unknown', now() - interval '1 day', 'another', 'imported', true)`;
  one.script(npi, () => undated(npi));
  t.is(await lookUp(npi), 'one completed found');
});

test('a vendor is called again if its result could not be verified in time', async (t) => {
  const npi = await person();
  one.script(npi, () => undated(npi));
  const slow = [verifierOf('reacher', VERDICT('unknown', 'timeout'))];
  t.is(await lookUp(npi, { verifiers: slow }), 'one not_found none_valid');
  t.regex(await lookUp(npi, { verifiers: slow }), /^one /);
});

test('a vendor is called again if greylisting left its address undecided', async (t) => {
  const [npi, never] = [await person(), await person()];
  for (const which of [npi, never]) one.script(which, () => undated(which));
  const decided = [
    verifierOf('reacher', { kind: 'greylisted' }, VERDICT('invalid', 'mailbox_missing')),
  ];
  t.is(await lookUp(npi, { verifiers: decided }), 'one not_found none_valid');
  t.is(await lookUp(npi, { verifiers: decided }), REMEMBERED);
  const greylisting = [verifierOf('reacher', { kind: 'greylisted' })];
  t.is(await lookUp(never, { verifiers: greylisting }), 'one not_found none_valid');
  t.regex(await lookUp(never, { verifiers: greylisting }), /^one /);
});

test('a lookup that failed because a verifier was down does not count as "no result"', async (t) => {
  const npi = await person();
  one.script(npi, () => undated(npi));
  const broke = [verifierOf('reacher', { kind: 'fatal', why: 'credits' })];
  await t.throwsAsync(lookUp(npi, { verifiers: broke }), {
    message: 'verification: verifier_unavailable',
  });
  t.regex(await lookUp(npi), /^one /);
});

test('a vendor with a returned result is called again if we may not store the result', async (t) => {
  const npi = await person();
  one.script(npi, () => foundStep(npi));
  const borrowed = {
    vendors: [vendorSource(other), vendorSource(one, { mayStore: false })],
  };
  t.is(await lookUp(npi, borrowed), 'other one completed found');
  await sql`delete from email_checks where npi = ${npi}`;
  await sql`delete from candidates where npi = ${npi}`;
  t.is(await lookUp(npi, borrowed), 'one completed found');
  const returned =
    await sql`select a.vendor, a.returned from vendor_attempts a join lookups l on l.id = a.lookup_id
    where l.npi = ${npi} and a.state <> 'skip' order by a.started_at`;
  t.deepEqual(
    [...returned].map(({ vendor, returned }) => `${vendor} ${returned}`),
    ['other false', 'one true', 'one true'],
  );
});
