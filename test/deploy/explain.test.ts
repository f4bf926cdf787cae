import test from 'ava';
import { type SQL, sql } from 'drizzle-orm';
import { newId } from '../../db/connection/ids.ts';
import { admitCall } from '../../db/lookups/sources.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { freshDatabase, openTestDatabase } from '../support/database.ts';
import { operatorOn, WHY } from '../support/operator.ts';
import {
  acceptedIds,
  openOrganization,
  RULES,
  submitAccepted,
  submitCommand,
} from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';

// Tests `explain`, which shows how a result came about, and `vendors`, which shows the work of
// vendors.

const database = freshDatabase(test);
const { db } = database;

const run = (statement: SQL) => db.drizzle.execute(statement);

/**
 * Creates a lookup of two requests from two organizations. One vendor fails and then has no result.
 * Another names three addresses: one is a stranger's, one bounces, and one is returned.
 */
async function lookedUp(npi: string) {
  const requests: { requestId: string; organizationId: string }[] = [];
  for (let n = 0; n < 2; n += 1) {
    const organization = await openOrganization(db, 10);
    const { requestIds } = await submitAccepted(db, organization, { npis: [npi] });
    requests.push({
      requestId: requestIds[0] ?? '',
      organizationId: organization.organizationId,
    });
  }
  const [asker] = requests;
  const lookupId = newId('lkp');
  await run(
    sql`update requests set accepted_at = accepted_at - interval '10 seconds' where npi = ${npi}`,
  );
  // Seconds after the lookup began, which is when the first request was accepted.
  const at = (seconds: number) =>
    sql`(select accepted_at + make_interval(secs => ${seconds}) from requests where id = ${asker?.requestId})`;
  await run(
    sql`insert into lookups values (${lookupId}, ${npi}, 'any', ${at(0.1)}, null)`,
  );
  await run(
    sql`update requests set lookup_id = ${lookupId}, status = 'in-progress', started_at = ${at(0.1)} where npi = ${npi}`,
  );
  await run(sql`
    insert into vendor_attempts (lookup_id, vendor, n, request_id, state, reason, polls, credits, candidates, started_at, ended_at)
    values (${lookupId}, 'prospeo', 1, ${asker?.requestId}, 'retry', 'upstream', 0, 0, 0, ${at(0.2)}, ${at(0.3)}),
           (${lookupId}, 'prospeo', 2, ${asker?.requestId}, 'miss', 'NO_MATCH', 0, 0, 0, ${at(0.4)}, ${at(0.5)}),
           (${lookupId}, 'hunter', 1, ${asker?.requestId}, 'skip', ${'missing organization\u001b[2J'}, 0, 0, 0, ${at(0.6)}, ${at(0.6)}),
           (${lookupId}, 'rocketreach', 1, ${asker?.requestId}, 'found', null, 2, 1.5, 3, ${at(0.6)}, ${at(1.85)})`);
  const line = (
    email: string,
    kind: string,
    source: string,
    verdict: string,
    reason: string | null,
    ms: number | null,
    seconds: number,
  ) =>
    run(sql`
      insert into email_checks (npi, email, lookup_id, kind, source, verdict, reason, duration_ms, at)
      values (${npi}, ${email}, ${lookupId}, ${kind}, ${source}, ${verdict}, ${reason}, ${ms}, ${at(seconds)})`);
  const [own, bounced, stranger] = [
    'jane@clinic.example',
    'jroe@clinic.example',
    'joe@clinic.example',
  ];
  for (const email of [own, bounced, stranger])
    await line(email, 'named', 'rocketreach', 'valid', null, null, 1.85);
  await line(stranger, 'identity', 'service', 'valid', 'name_differs', null, 1.85);
  await line(bounced, 'local', 'service', 'valid', null, 4, 1.9);
  await line(bounced, 'verifier', 'reacher', 'invalid', 'mailbox_missing', 310, 2);
  await line(bounced, 'verdict', 'service', 'invalid', 'mailbox_missing', null, 2);
  await line(own, 'verifier', 'reacher', 'unknown', 'greylisted', 200, 2.1);
  await line(own, 'verifier', 'zerobounce', 'valid', 'mailbox_ok', 100, 2.2);
  await line(own, 'verdict', 'service', 'valid', 'mailbox_ok', null, 2.3);
  const known = {
    npi,
    email: own,
    emailType: 'professional',
    source: 'rocketreach',
  } as const;
  await storeEmail(db, known);
  for (const { requestId } of requests)
    await settle(db, requestId, 'finished', 'none_valid', RULES);
  return { requests, lookupId, own, bounced, stranger };
}

test('explain shows the vendor calls, results, and decisions of a request in order', async (t) => {
  const npi = '2000010010';
  const { requests, lookupId, own, bounced, stranger } = await lookedUp(npi);
  await run(sql`insert into providers (npi, entity_type, first_name, last_name, credential, origin, row_hash)
    values (${npi}, 1, 'JANE', 'ROE', 'M.D.', 'nppes', 1)`);
  const { text } = operatorOn(database.url);
  const [asker] = requests;
  const story = await text('explain', asker?.requestId ?? '', '--reveal', ...WHY);
  t.regex(
    story,
    /^provider +person \(type 1\)\nname +JANE ROE M\.D\.\nworks at +-\nactive +yes$/m,
  );
  t.regex(story, new RegExp(`^LOOKUP ${lookupId}, shared with 1 more request$`, 'm'));
  const lines = story
    .split('\n')
    .flatMap((line) => /^\d{4}-\S+Z {2}(.*)$/.exec(line)?.[1] ?? []);
  const accepted = `${asker?.requestId} of ${asker?.organizationId} accepted in `;
  t.true(lines[0]?.startsWith(accepted), lines[0]);
  t.deepEqual(lines.slice(1, -1), [
    `lookup ${lookupId} begins, for a requested type of any`,
    'prospeo called',
    'prospeo returns retry (upstream) after 100 ms, 0 credits of the vendor',
    'prospeo called, attempt 2',
    'prospeo returns miss (NO_MATCH) after 100 ms, 0 credits of the vendor',
    'hunter not called (missing organization\\u001b[2J)',
    'rocketreach called',
    'rocketreach returns found after 1250 ms, 2 polls, 3 candidates, 1.5 credits of the vendor',
    `${own} named by rocketreach as valid`,
    `${bounced} named by rocketreach as valid`,
    `${stranger} named by rocketreach as valid`,
    `${stranger} rejected (name_differs): it belongs to somebody else`,
    `${bounced} valid by our own checks in 4 ms`,
    `${bounced} invalid (mailbox_missing) by verifier reacher in 310 ms`,
    `${bounced} rejected as invalid (mailbox_missing)`,
    `${own} unknown (greylisted) by verifier reacher in 200 ms`,
    `${own} valid (mailbox_ok) by verifier zerobounce in 100 ms`,
    `${own} accepted (mailbox_ok)`,
    'lookup ends',
  ]);
  t.regex(
    lines.at(-1) ?? '',
    new RegExp(
      `${asker?.requestId} completed with ${own} \\(professional, validated .*1 credit charged$`,
    ),
  );
  t.regex(story, new RegExp(`^${own} +valid +yes +mailbox_ok +rocketreach +`, 'm'));
  t.regex(
    story,
    new RegExp(
      `^${bounced} +invalid +no +mailbox_missing +rocketreach +verifier reacher$`,
      'm',
    ),
  );
  t.regex(
    story,
    new RegExp(
      `^${stranger} +rejected +no +name_differs +rocketreach +identity check$`,
      'm',
    ),
  );
});

test('explain masks email addresses without --reveal, but keeps similar ones distinct', async (t) => {
  const npi = '2000020019';
  const { requests } = await lookedUp(npi);
  const { text, json } = operatorOn(database.url);
  for (const about of [npi, requests[1]?.requestId ?? '']) {
    for (const shown of [
      await text('explain', about),
      JSON.stringify(await json('explain', about)),
    ]) {
      t.notRegex(shown, /jane|jroe|joe@/);
      t.regex(shown, /j\*\*\*@clinic\.example \(3\)/);
    }
  }
  const { chapters } = await json<{ chapters: { candidates: object[] }[] }>(
    'explain',
    npi,
  );
  t.like(chapters[0]?.candidates, [
    {
      email: 'j***@clinic.example',
      verdict: 'valid',
      decided_by: 'verifier zerobounce',
      is_returned: true,
    },
    { verdict: 'invalid', is_returned: false },
    { verdict: 'rejected', decided_by: 'identity check', is_returned: false },
  ]);
});

test('explain shows all requests for an NPI, grouped by lookup', async (t) => {
  const npi = '2000030018';
  const { requests, lookupId, own } = await lookedUp(npi);
  const organization = await openOrganization(db, 10);
  const { requestIds } = await submitAccepted(db, organization, { npis: [npi, npi] });
  await run(
    sql`insert into email_checks (npi, email, kind, source, verdict) values (${npi}, ${own}, 'verifier', 'reacher', 'valid')`,
  );
  await run(
    sql`insert into suppressions (kind, value, origin) values ('npi', ${npi}, 'operator')`,
  );
  const { json, text } = operatorOn(database.url);
  const told = await json<{
    chapters: { lookup: { id: string } | null; requests: { id: string }[] }[];
  }>('explain', npi);
  t.like(told, { npi, provider: null, is_suppressed: true });
  t.deepEqual(
    told.chapters.map(({ lookup, requests }) => [
      lookup?.id ?? null,
      requests.map(({ id }) => id),
    ]),
    [
      [lookupId, requests.map(({ requestId }) => requestId)],
      ...requestIds.map((id) => [null, [id]]),
    ],
  );
  const story = await text('explain', npi);
  t.regex(story, new RegExp(`^LOOKUP ${lookupId}$`, 'm'));
  t.regex(
    story,
    new RegExp(`^REQUEST ${requestIds[1]}, completed without a lookup$`, 'm'),
  );
  t.regex(story, new RegExp(`${requestIds[1]} completed with .*free replay$`, 'm'));
  t.regex(story, /^CHECKED AGAIN WITHOUT A REQUEST$/m);
  t.regex(story, /^suppressed +yes$/m);
});

test('explain says whether a request is open, failed, erased, or not charged', async (t) => {
  const organization = await openOrganization(db, 10);
  const npis = ['2000040017', '2000040025'];
  const { requestIds } = await submitAccepted(db, organization, { npis });
  const { text } = operatorOn(database.url);
  t.regex(
    await text('explain', requestIds[0] ?? ''),
    /is still accepted: it waits for a worker, or its first step fails/,
  );
  await settle(db, requestIds[1] ?? '', 'failed', 'deadline', RULES);
  t.regex(
    await text('explain', requestIds[1] ?? ''),
    /failed: deadline, no worker or source was reached in time; nothing charged$/m,
  );
  const { requests } = await lookedUp('2000050016');
  const [paid] = requests;
  await run(sql`update requests set email = null, email_type = null, email_last_validated_at = null, erased_at = now()
    where id = ${paid?.requestId}`);
  const story = await text('explain', paid?.requestId ?? '');
  t.regex(story, /completed with an address that was erased since; 1 credit charged$/m);
  t.regex(story, /address erased from the result of req_/);
  await run(
    sql.raw(`do $$ begin
      set local session_replication_role = replica;
      delete from ledger_entries where request_id = '${paid?.requestId}' and kind = 'charge';
    end $$`),
  );
  t.regex(
    await text('explain', paid?.requestId ?? ''),
    /erased since; 1 credit not charged, see "doctor"$/m,
  );
});

test.serial('explain shows waits, terminations, and links', async (t) => {
  const organization = await openOrganization(db, 5);
  const npis = ['2000010325', '2000010333', '2000010341'];
  const command = submitCommand(organization, { npis });
  const { requestIds } = acceptedIds(await submit(db, command, RULES));
  const [terminated = '', canceled = '', late = ''] = requestIds;
  const lookupId = newId('lkp');
  await run(sql`insert into lookups (id, npi, requested_type, opened_at)
    select ${lookupId}, npi, 'any', accepted_at + interval '7 s'
      from requests where id = ${terminated}`);
  await run(sql`update requests set lookup_id = ${lookupId} where id = ${terminated}`);
  await settle(db, terminated, 'failed', 'lookup_lost', RULES);
  await settle(db, canceled, 'failed', 'cancelled', RULES);
  await settle(db, late, 'failed', 'deadline (greylisted)', RULES);
  process.env.TEMPORAL_UI_URL = 'https://temporal.example';
  t.teardown(() => delete process.env.TEMPORAL_UI_URL);
  const { text } = operatorOn(database.url);
  const story = await text('explain', terminated);
  t.regex(story, /begins, .* after 7\.0 s of waiting for a worker$/m);
  t.regex(
    story,
    /failed: lookup_lost, its workflow was terminated, or lost with Temporal;/,
  );
  t.regex(
    story,
    new RegExp(`^https://temporal.example/\\S+/workflows/${terminated}$`, 'm'),
  );
  t.regex(await text('explain', canceled), /failed: cancelled, an operator canceled it/);
  t.regex(
    await text('explain', late),
    /failed: deadline \(greylisted\), a mail server asked us to try again later;/,
  );
});

test('explain says which rate limit a request waits for, and since when', async (t) => {
  const organization = await openOrganization(db, 10);
  const npis = ['2000041015', '2000041023'];
  const { requestIds } = await submitAccepted(db, organization, { npis });
  const limits = { rates: [{ calls: 1, perMs: 600_000 }], dailyCredits: null };
  for (const requestId of requestIds) {
    await admitCall(db, {
      source: 'slow',
      limits,
      cost: 1,
      requestId,
      patienceMs: 3_600_000,
    });
  }
  const { text, json } = operatorOn(database.url);
  t.notRegex(await text('explain', requestIds[0] ?? ''), /rate limit/);
  t.regex(
    await text('explain', requestIds[1] ?? ''),
    new RegExp(
      `${requestIds[1]} is expected to call slow: it has waited for its rate limit since `,
    ),
  );
  const vendors = await json<{ source: string; next_slot_at: string }[]>('vendors');
  const slow = vendors.find(({ source }) => source === 'slow');
  t.like(slow, { waiting: 1 });
  t.true(Date.parse(slow?.next_slot_at ?? '') > Date.now() + 300_000);
});

test('explain distinguishes a suppressed person from a suppressed address', async (t) => {
  await storeEmail(db, { npi: '2000070014', email: 'jane@silent.example' });
  await run(
    sql`insert into suppressions (kind, value, origin) values ('domain', 'silent.example', 'operator')`,
  );
  const { text } = operatorOn(database.url);
  const story = await text('explain', '2000070014');
  t.regex(story, /^suppressed +1 of its addresses$/m);
  t.regex(story, /^SUPPRESSED BY\n[^\n]*\ndomain +silent\.example +operator/m);
  t.regex(
    await text('explain', '2000080013'),
    /^suppressed +neither the NPI nor an address below$/m,
  );
});

test('explain rejects an unknown request ID, but accepts an NPI without any requests', async (t) => {
  const { operator, json, text } = operatorOn(database.url);
  const id = newId('req');
  const unknown = await operator('explain', id);
  t.deepEqual([unknown.code, unknown.stdout], [1, '']);
  t.regex(unknown.stderr, new RegExp(`^operator: unknown request ${id}`));
  t.like(await json('explain', '2000090012'), {
    provider: null,
    chapters: [],
    stored: [],
  });
  t.regex(await text('explain', '2000090012'), /^There was no request for this NPI\.$/m);
  t.is((await operator('explain', 'jane')).code, 2);
});

test("the vendors command shows calls, times, costs, breakers, and today's credits", async (t) => {
  await using own = await openTestDatabase();
  const ownDb = own.db;
  const organization = await openOrganization(ownDb, 10);
  const { requestIds } = await submitAccepted(ownDb, organization, {
    npis: ['2000060015'],
  });
  await ownDb.drizzle.execute(sql`
    insert into lookups (id, npi, requested_type, opened_at, closed_at)
    select 'lkp_' || n, '2000060015', 'any', now(), now() from generate_series(1, 23) n`);
  await ownDb.drizzle.execute(sql`
    insert into vendor_attempts (lookup_id, vendor, n, request_id, returned, state, reason, credits, started_at, ended_at)
    select 'lkp_' || n, 'hunter', 1, ${requestIds[0] ?? ''}, n <= 4 or n > 21,
           case when n <= 10 then 'found' when n <= 15 then 'miss' when n <= 18 then 'retry' when n <= 19 then 'fatal'
                when n <= 20 then 'submitting' when n <= 21 then 'skip' else 'found' end,
           case when n between 16 and 18 then 'rate_limit' when n = 19 then 'auth' end,
           case when n <= 10 then 1.5 else 0 end,
           t, case when n <> 20 then t + make_interval(secs => n) end
      from generate_series(1, 23) n,
           lateral (select case when n > 21 then now() - interval '31 days' else now() end as t) s`);
  await ownDb.drizzle.execute(sql`
    insert into email_checks (npi, email, kind, source, verdict, reason, duration_ms, waited_ms)
    select '2000060015', 'x@clinic.example', 'verifier', 'reacher',
           (array['valid', 'valid', 'invalid', 'catch_all', 'unknown'])[n],
           case when n = 5 then 'timeout' end, n * 100, n * 1000
      from generate_series(1, 5) n`);
  await ownDb.drizzle.execute(sql`
    insert into source_health (source, state, failures, open_until, paused_until, last_error)
    values ('hunter', 'open', 5, now() + interval '1 hour', null, 'upstream'),
           ('reacher', 'open', 5, now() - interval '1 second', now() - interval '1 second', null),
           ('registry', 'closed', 0, null, now() + interval '1 minute', null)`);
  await ownDb.drizzle.execute(sql`
    insert into source_spend (source, day, credits)
    values ('hunter', (now() at time zone 'UTC')::date, 4.5), ('reacher', (now() at time zone 'UTC')::date, 5),
           ('reacher', (now() at time zone 'UTC')::date - 1, 2)`);
  const { json, text } = operatorOn(own.url);
  const [hunter, reacher, registry] = await json<Record<string, unknown>[]>('vendors');
  t.like(hunter, {
    ...{
      source: 'hunter',
      role: 'vendor',
      asked: 20,
      open: 1,
      found: 10,
      returned: 4,
      missed: 5,
      skipped: 1,
      hit_rate: 0.211,
    },
    ...{
      credits: 15,
      credits_per_returned: 3.75,
      credits_today: 4.5,
      p50_ms: 10_000,
      p95_ms: 19_000,
    },
    ...{
      errors: { 'retry: rate_limit': 3, 'fatal: auth': 1 },
      breaker: 'open',
      last_error: 'upstream',
    },
  });
  const [health] = await ownDb.drizzle.execute<{ open_until: string }>(
    sql`select to_json(open_until) as open_until from source_health where source = 'hunter'`,
  );
  t.is(Date.parse(String(hunter?.open_until)), Date.parse(health?.open_until ?? ''));
  t.like(reacher, {
    ...{
      source: 'reacher',
      role: 'verifier',
      asked: 5,
      found: 2,
      missed: 1,
      hit_rate: null,
      p50_ms: 300,
    },
    p95_waited_ms: 5000,
    ...{
      credits: 7,
      credits_per_returned: null,
      credits_today: 5,
      errors: { 'unknown: timeout': 1 },
    },
    ...{ breaker: 'half_open', paused_until: null },
  });
  // This verifier has no recent calls, but its role is known from the catalogue.
  await ownDb.drizzle.execute(
    sql`insert into source_health (source, state, last_error) values ('zerobounce', 'open', 'auth')`,
  );
  const silent = (await json<Record<string, unknown>[]>('vendors')).at(-1);
  t.like(silent, {
    source: 'zerobounce',
    role: 'verifier',
    asked: 0,
    last_error: 'auth',
  });
  t.like(registry, {
    source: 'registry',
    role: 'other',
    asked: 0,
    hit_rate: null,
    breaker: 'closed',
  });
  t.truthy(registry?.paused_until);

  const shown = await text('vendors', '--since', '60d');
  t.regex(shown, /^hunter +vendor +28\.6 % +- +22 +1 +12 +6 /m);
  t.regex(shown, /^hunter +retry: rate_limit +3$/m);
  t.regex(shown, /^hunter +open +upstream +\d{4}-/m);
  for (const since of ['soon', '2026-02-30T00:00Z']) {
    t.is((await operatorOn(own.url).operator('vendors', '--since', since)).code, 2);
  }
});
