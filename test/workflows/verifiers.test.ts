import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { json } from 'node:stream/consumers';
import test from 'ava';
import { sql } from 'drizzle-orm';
import type { Step } from '../../activities/vendors/vendor.ts';
import { readSourceStats } from '../../db/lookups/source-stats.ts';
import { beginStep } from '../../db/lookups/turns.ts';
import { fresh } from '../support/database.ts';
import { operatorOn } from '../support/operator.ts';
import {
  eventually,
  joinLookups,
  openOrganization,
  RULES,
  submitAccepted,
} from '../support/organization.ts';
import { startApi, startStack, vendorSource } from '../support/stack.ts';
import { storeEmail } from '../support/stored.ts';
import { waitsForTurn } from '../support/turns.ts';
import { createScriptedVendor, foundStep, ordinaryNpis } from '../support/vendors.ts';

// Tests lookups with a configured verifier. It checks every address that a vendor returns, and no
// vendor is called while it is unavailable. Reacher is a server of this test, and the vendor is
// scripted. Everything else is as in production.

const RESPONSES = {
  safe: { is_reachable: 'safe' },
  missing: {
    is_reachable: 'invalid',
    mx: { accepts_mail: true },
    smtp: { can_connect_smtp: true },
  },
  silent: {
    is_reachable: 'unknown',
    smtp: { error: { type: 'IOError', message: 'io: incomplete' } },
  },
};
type Says = keyof typeof RESPONSES | 'down';

let says: Says = 'safe';
const asked: string[] = [];
const reacher = createServer(async (request, response) => {
  const { to_email: email } = (await json(request)) as { to_email: string };
  asked.push(email);
  response.writeHead(says === 'down' ? 503 : 200, { 'content-type': 'application/json' });
  response.end(
    says === 'down'
      ? '{}'
      : JSON.stringify({ misc: {}, mx: {}, smtp: {}, ...RESPONSES[says] }),
  );
}).listen(0, '127.0.0.1');
test.after.always(() => void reacher.close());

const ELSEWHERE = { baseUrl: 'http://127.0.0.1:9', apiKey: 'k' };
const vendor = createScriptedVendor();
const stack = fresh(test, () =>
  startStack({
    lookupTimeoutMs: 20_000,
    allSources: true,
    vendors: [vendorSource(vendor)],
    access: {
      // Configured as in the file of sources, but never called.
      ...{
        rocketreach: ELSEWHERE,
        fullenrich: ELSEWHERE,
        prospeo: ELSEWHERE,
        hunter: ELSEWHERE,
      },
      ...{ zerobounce: null, neverbounce: null, 'hunter-verifier': null },
      reacher: {
        baseUrl: `http://127.0.0.1:${(reacher.address() as AddressInfo).port}`,
        apiKey: '',
      },
    },
  }),
);
const client = fresh(test, () => stack.organization(1000));
/** An API whose requests have more time, for the same workers. */
const patient = fresh(test, () => {
  const { databaseUrl, taskQueue } = stack;
  return startApi({ databaseUrl, taskQueue, lookupTimeoutMs: 240_000 });
});
const npis = ordinaryNpis('found', 120, 80_000).values();
const take = () => npis.next().value ?? '';
const run = (statement: ReturnType<typeof sql>) => stack.db.drizzle.execute(statement);

test.beforeEach(async () => {
  says = 'safe';
  asked.length = 0;
  await run(sql`delete from source_health`);
  await run(sql`delete from source_spend`);
});

/** Returns the address that the vendor finds for an NPI. */
const emailOf = (npi: string) => {
  const step = foundStep(npi);
  return (step.kind === 'found' && step.candidates[0]?.email) || '';
};

async function lookUp(npi: string) {
  const { json: submitted } = await client.single({ npi });
  const { data } = await client.completed(submitted.batch_id);
  const [row] = await run(
    sql`select reason from requests where id = ${submitted.requests[0]?.request_id}`,
  );
  return { status: data[0]?.status, email: data[0]?.email, reason: row?.reason ?? null };
}

for (const [word, does, end] of [
  ['safe', 'confirms', 'completed'],
  ['missing', 'rejects', 'not_found'],
  ['silent', 'cannot check', 'completed'],
] as const) {
  test.serial(
    `if a verifier ${does} an address that a vendor verified, the request is ${end}`,
    async (t) => {
      const npi = take();
      vendor.script(npi, () => foundStep(npi));
      says = word;
      t.like(await lookUp(npi), { status: end });
      t.deepEqual(asked, [emailOf(npi)]);
    },
  );
}

for (const [hours, verdict, reason, times, end] of [
  [23, 'invalid', 'mailbox_missing', 0, 'not_found'],
  [25, 'invalid', 'mailbox_missing', 1, 'completed'],
  [23, 'unknown', 'inconclusive', 0, 'completed'],
  [23, 'unknown', 'greylisted', 1, 'completed'],
  [23, 'unknown', 'verifier_unsent', 1, 'completed'],
] as const) {
  test.serial(
    `a verifier that said ${verdict} (${reason}) is ${times ? '' : 'not '}called again ${hours} hours later`,
    async (t) => {
      const npi = take();
      vendor.script(npi, () => foundStep(npi));
      await run(sql`insert into email_checks (npi, email, kind, source, verdict, reason, at)
      values (${npi}, ${emailOf(npi)}, 'verifier', 'reacher', ${verdict}, ${reason}, now() - make_interval(hours => ${hours}))`);
      t.like(await lookUp(npi), { status: end });
      t.is(asked.length, times);
    },
  );
}

test.serial(
  'if a vendor only repeats the name we sent, a verifier must confirm the address',
  async (t) => {
    const [echoed, known, both] = [take(), take(), take()];
    for (const npi of [echoed, known, both]) {
      vendor.script(
        npi,
        () => ({ ...foundStep(npi), repeatsInput: npi !== known }) as Step,
      );
    }
    // Another source has named this address before and identified its person.
    await run(sql`insert into lookups (id, npi, requested_type, opened_at, closed_at)
    values ('earlier', ${both}, 'any', now(), now())`);
    await run(sql`insert into candidates (lookup_id, npi, email, source, claimed_verdict, repeats_input, may_store)
    values ('earlier', ${both}, ${emailOf(both)}, 'another', 'unknown', false, true)`);
    says = 'silent';
    t.like(await lookUp(echoed), { status: 'not_found' });
    t.like(await lookUp(known), { status: 'completed' });
    t.like(await lookUp(both), { status: 'completed' });
  },
);

test.serial(
  'three organizations that look up the same 60 NPIs share each call and each check',
  async (t) => {
    const shared = Array.from({ length: 60 }, take);
    for (const npi of shared) vendor.script(npi, () => foundStep(npi));
    const before = asked.length;
    const clients = await Promise.all([1, 2, 3].map(() => patient.organization(100)));
    const batches = await Promise.all(clients.map((one) => one.bulk({ npis: shared })));
    for (const [n, one] of clients.entries()) {
      const { data } = await one.completed(batches[n]?.json.batch_id ?? '');
      t.true(data.every(({ status, replayed }) => status === 'completed' && !replayed));
      t.deepEqual(await one.credits(), { balance: 40, total: 100, used: 60 });
    }
    t.deepEqual(
      shared.filter((npi) => vendor.asked(npi, 'submit') !== 1),
      [],
    );
    t.deepEqual(asked.slice(before).sort(), shared.map(emailOf).sort());
    const [lookups] = await run(sql`
      select count(turn_of)::int as taken from lookups where npi in ${shared}`);
    t.is(lookups?.taken, 0);
  },
);

test.serial(
  'a request whose lookup PostgreSQL has lost in a restore joins another one',
  async (t) => {
    const npi = take();
    vendor.script(npi, () => foundStep(npi));
    const lastValidatedAt = new Date(Date.now() - 40 * 86_400_000);
    const known = { npi, email: `old${npi}@clinic.example`, lastValidatedAt };
    await storeEmail(stack.db, { ...known, emailType: 'professional' });
    const [other = ''] = (
      await submitAccepted(stack.db, await openOrganization(stack.db, 10), {
        npis: [npi],
      })
    ).requestIds;
    await joinLookups(stack.db, [other]);
    const { freshnessMs } = RULES;
    const longer = { vendor: null, turnMs: 200_000, freshnessMs };
    await beginStep(stack.db, { ...longer, requestId: other });

    const { json: submitted } = await client.single({ npi });
    const [{ request_id: requestId } = { request_id: '' }] = submitted.requests;
    await waitsForTurn(stack, requestId);
    await run(sql`update requests set lookup_id = null where id = ${requestId}`);
    await run(sql`update lookups set closed_at = now() where npi = ${npi}`);
    const { data } = await client.completed(submitted.batch_id);
    t.is(data[0]?.email, emailOf(npi));
  },
);

test.serial(
  'a stored personal address completes "any" only after a professional one was looked for',
  async (t) => {
    const [better, only, stale, same] = [take(), take(), take(), take()];
    const personal = (npi: string): Step => {
      const found = foundStep(npi) as Extract<Step, { kind: 'found' }>;
      const email = `npi${npi}@gmail.com`;
      return {
        ...found,
        candidates: found.candidates.map((one) => ({
          ...one,
          email,
          vendorType: 'personal',
        })),
      };
    };
    vendor.script(better, ({ nth }) =>
      nth === 1 ? personal(better) : foundStep(better),
    );
    vendor.script(only, ({ nth }) =>
      nth === 1 ? personal(only) : { kind: 'miss', reason: 'nobody' },
    );
    vendor.script(stale, ({ nth }) => (nth === 1 ? personal(stale) : foundStep(stale)));
    vendor.script(same, () => personal(same));
    const ask = async (npi: string, enrichment_email_type: 'any' | 'personal') => {
      const one = await patient.organization(10);
      const { json: submitted } = await one.single({ npi, enrichment_email_type });
      const atOnce = submitted.status === 'completed';
      const { data } = await one.completed(submitted.batch_id);
      return [data[0]?.email_type, atOnce];
    };
    for (const npi of [better, only, stale, same]) {
      t.deepEqual(await ask(npi, 'personal'), ['personal', false]);
    }
    t.deepEqual(await ask(better, 'any'), ['professional', false]);
    t.deepEqual(await ask(only, 'any'), ['personal', false]);
    t.deepEqual(await ask(only, 'any'), ['personal', true], 'it was looked for just now');
    t.deepEqual([vendor.asked(better, 'submit'), vendor.asked(only, 'submit')], [2, 2]);

    await patient.db.drizzle.execute(
      sql`update stored_emails set last_validated_at = last_validated_at - interval '40 days' where npi = ${stale}`,
    );
    t.deepEqual(await ask(stale, 'any'), ['professional', false]);
    t.deepEqual(await ask(same, 'any'), ['personal', false]);
    const attempts = await patient.db.drizzle.execute(sql`
      select a.state, a.reason from vendor_attempts a join lookups l on l.id = a.lookup_id
       where l.npi = ${same} and l.requested_type = 'any'`);
    t.deepEqual([...attempts], [{ state: 'found', reason: null }], 'known and valid');
  },
);

test.serial(
  'while no verifier is available, no vendor is called and requests are refunded',
  async (t) => {
    const npi = take();
    vendor.script(npi, () => foundStep(npi));
    await run(sql`insert into source_health (source, state, failures, open_until, last_error)
    values ('reacher', 'open', 5, now() + interval '1 hour', 'auth')`);
    const before = await client.credits();
    t.like(await lookUp(npi), {
      status: 'failed',
      reason: 'deadline (verifier_unavailable)',
    });
    t.is(vendor.asked(npi, 'submit'), 0);
    t.deepEqual(await client.credits(), before);
    const figures = await readSourceStats(stack.db, new Date(Date.now() - 60_000));
    t.is(figures.find(({ source }) => source === 'reacher')?.lastError, 'auth');
  },
);

test.serial(
  'a recovered verifier gets a test address before the vendor is called',
  async (t) => {
    const npi = take();
    vendor.script(npi, () => foundStep(npi));
    await run(sql`insert into source_health (source, state, failures, open_until, last_error)
    values ('reacher', 'open', 5, now() - interval '1 second', 'upstream')`);
    t.like(await lookUp(npi), { status: 'completed' });
    t.deepEqual(asked, ['invalid@example.com', emailOf(npi)]);
    t.is(vendor.asked(npi, 'submit'), 1);
  },
);

test.serial('failures of a verifier are reported under its own name', async (t) => {
  const npi = take();
  vendor.script(npi, () => foundStep(npi));
  says = 'down';
  const { json: submitted } = await client.single({ npi });
  await eventually(async () => (asked.length > 1 ? true : null));
  says = 'safe';
  await client.completed(submitted.batch_id);
  const operator = operatorOn(stack.databaseUrl);
  t.regex(
    await operator.text('explain', npi),
    /unknown \(verifier_upstream\) by verifier reacher/,
  );
  t.regex(await operator.text('vendors'), /^reacher +unknown: verifier_upstream +\d+$/m);
  t.regex(await operator.text('vendors'), /^reacher +verifier /m);
});

test.serial(
  'our own checks of an address are recorded only once, even if its verifier fails',
  async (t) => {
    const npi = take();
    vendor.script(npi, () => foundStep(npi));
    says = 'down';
    const { json: submitted } = await client.single({ npi });
    await eventually(async () => (asked.length > 2 ? true : null));
    says = 'safe';
    await client.completed(submitted.batch_id);
    const lines = await run(sql`
    select kind, count(*)::int as lines from email_checks where npi = ${npi} and kind <> 'verifier' group by kind`);
    t.deepEqual(lines.map(({ kind, lines }) => `${kind} ${lines}`).sort(), [
      'local 1',
      'named 1',
      'verdict 1',
    ]);
  },
);
