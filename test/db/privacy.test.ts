import test from 'ava';
import { type SQL, sql } from 'drizzle-orm';
import { balanceOf } from '../../db/accounts/credits.ts';
import { type Database, openDatabase } from '../../db/connection/client.ts';
import { newId } from '../../db/connection/ids.ts';
import { diagnose } from '../../db/doctor/doctor.ts';
import {
  nextCandidate,
  recordUndecided,
  recordVerdict,
} from '../../db/lookups/candidate-checks.ts';
import { copyKnown } from '../../db/lookups/candidates.ts';
import { recordRecheck } from '../../db/lookups/checks.ts';
import { storeOwnEmails } from '../../db/lookups/imports.ts';
import { joinLookup } from '../../db/lookups/lookups.ts';
import { recordRefused, recordVendorResponse } from '../../db/lookups/vendor-attempts.ts';
import { beginVendorStep } from '../../db/lookups/vendor-steps.ts';
import { eraseSubject, exportSubject } from '../../db/privacy/privacy.ts';
import { storeRegistryResponse } from '../../db/providers/providers.ts';
import { envelopeText, findEnvelope } from '../../db/requests/envelope.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { withCheckDigit } from '../../deploy/local/sim/people.ts';
import { freshDatabase, openTestDatabase } from '../support/database.ts';
import { operatorOn, WHY } from '../support/operator.ts';
import {
  ASKED,
  acceptedIds,
  eventually,
  openOrganization,
  RULES,
  submitAccepted,
  submitCommand,
} from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';

// Tests the rights of a person to see their stored data, and to have it erased.

const BY = { ...ASKED, reason: 'request 17' };

const database = freshDatabase(test);
const { db } = database;

const run = (statement: SQL) => db.drizzle.execute(statement);

/** Lists the tables that contain a text in any column, once per row. */
async function rowsWith(text: string): Promise<string[]> {
  const tables = await run(
    sql`select relname from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace`,
  );
  const found: string[] = [];
  for (const { relname } of tables) {
    const rows = await run(sql`
      select 1 from ${sql.identifier(String(relname))} t
       where lower(t::text) like ${`%${text}%`} or lower(t::text) like ${`%${Buffer.from(text).toString('hex')}%`}`);
    if (rows.length > 0) found.push(String(relname));
  }
  return found.sort();
}

/** Returns true if at least `atLeast` transactions wait for a lock on a table. */
async function waitsFor(table: string, atLeast = 1): Promise<true | null> {
  const waiting = await run(sql`
    select 1 from pg_locks where not granted and relation = ${table}::regclass
       and database = (select oid from pg_database where datname = current_database())`);
  return waiting.length >= atLeast ? true : null;
}

/**
 * Stores a person everywhere we can: as stored email, in evidence, in NPPES, in a response, and in
 * a delivery.
 */
async function person(npi: string, name: string) {
  const email = `${name}@clinic.example`;
  await storeEmail(db, { npi, email });
  const lookupId = newId('lkp');
  const closed = sql`now(), now()`;
  await run(sql`insert into lookups values (${lookupId}, ${npi}, 'any', ${closed})`);
  const check = (address: string, kind: string) =>
    run(sql`
    insert into email_checks (npi, email, lookup_id, kind, source, verdict)
    values (${npi}, ${address}, ${lookupId}, ${kind}, 'test', 'valid')`);
  await check(email, 'named');
  await check(email, 'verdict');
  await check(`${name}@stranger.example`, 'named');
  await check(`${name}@stranger.example`, 'identity');
  await run(sql`insert into provider_endpoints (npi, kind, endpoint)
    values (${npi}, 'DIRECT', ${email.toUpperCase()}), (${npi}, 'FHIR', 'https://fhir.example/')`);

  await run(sql`
    insert into candidates (lookup_id, npi, email, source, claimed_verdict, repeats_input, may_store)
    values (${lookupId}, ${npi}, ${email}, 'test', 'unknown', false, true)`);
  await run(sql`
    insert into vendor_profiles (npi, vendor, given_names) values (${npi}, 'test', ${name})`);

  const organization = await openOrganization(db, 10);
  const { organizationId } = organization;
  const webhook = { url: 'https://hooks.example/', mode: 'batch' } as const;
  const { batchId, requestIds } = await submitAccepted(db, organization, {
    npis: [npi, npi],
    webhook,
    customData: '{"ours":1}',
  });
  await run(sql`
    with d as (update webhook_deliveries set attempts = 1, state = 'delivered', decided_at = now()
                where batch_id = ${batchId} returning id)
    insert into webhook_attempts (delivery_id, n, started_at, duration_ms, status_code, response_excerpt)
    select id, 1, now(), 5, 200, convert_to(${`got ${email}`}, 'UTF8') from d`);
  const envelope = async () => {
    const found = await findEnvelope(db, { organizationId, batchId });
    return found ? JSON.parse(envelopeText(found, 'poll')) : null;
  };
  return { npi, email, lookupId, organization, batchId, requestIds, envelope };
}

test('erasing an NPI removes all its addresses and leaves all payments unchanged', async (t) => {
  const { npi, email, organization, envelope } = await person('2000010010', 'jane');
  t.deepEqual(await rowsWith(email), [
    'candidates',
    'email_checks',
    'provider_endpoints',
    'requests',
    'stored_emails',
    'webhook_attempts',
  ]);
  const [balance, before] = [
    await balanceOf(db, organization.organizationId),
    await envelope(),
  ];

  t.deepEqual(await eraseSubject(db, BY, { npi }), {
    ...{
      suppressions: 2,
      candidates: 1,
      storedEmails: 1,
      emailChecks: 4,
      results: 2,
      vendorProfiles: 1,
      receiverExcerpts: 1,
      endpoints: 1,
    },
  });

  t.deepEqual(await rowsWith(email), []);
  t.deepEqual(await rowsWith('jane@stranger.example'), []);
  t.deepEqual(await balanceOf(db, organization.organizationId), balance);
  const after = await envelope();
  t.like(after.data[0], { status: 'completed', email: null, email_status: null });
  t.deepEqual(after.custom_data, { ours: 1 });
  t.deepEqual(after.usage, before.usage);
  t.is(after.batch.completed_count, 2);
  t.not(after.batch.updated_at, before.batch.updated_at);
  const checks = await diagnose(db, { ...RULES, webhookScheduleMs: [0] });
  t.deepEqual(
    checks.filter(({ findings, code }) => findings > 0 && code !== 'batch_not_started'),
    [],
  );
});

test('an erasure is recorded without the address, and repeating it changes nothing', async (t) => {
  const { npi, email } = await person('2000020019', 'rita');
  await eraseSubject(db, BY, { email });
  const again = await eraseSubject(db, BY, { email });
  t.true(Object.values(again).every((count) => count === 0));
  const [{ text } = { text: '' }] = await run(
    sql`select string_agg(a::text, ' ') as text from audit_log a`,
  );
  t.false(String(text).includes(email));
  const [audited] = await run(sql`select count(*)::int as records from audit_log
    where action = 'privacy.erase' and subject = encode(sha256(${email}), 'hex')`);
  t.is(audited?.records, 2, 'somebody asked twice');
  t.deepEqual(
    (await rowsWith(npi)).includes('requests'),
    true,
    'the results themselves stay',
  );
});

test('the append-only privacy register lists erasures, exports, and objections', async (t) => {
  await using database = await openTestDatabase();
  const { json, operator } = operatorOn(database.url);
  const received = '2026-01-05T10:00:00.000Z';
  await json(
    'privacy',
    'export',
    '2000000010',
    '--received',
    received,
    '--asked-by',
    'agent',
    ...WHY,
  );
  await json('privacy', 'erase', '2000000010', '--yes', '--received', received, ...WHY);
  await json('suppress', 'add', '2000000028', ...WHY);
  await json('org', 'create', 'Acme', ...WHY);
  const register = await json<unknown>('privacy', 'list');
  const common = { actor: 'tester', reason: 'a test' };
  const asked = { ...common, subject: '2000000010', received_at: received };
  t.like(register, [
    {
      ...common,
      kind: 'objection',
      subject: '2000000028',
      asked_by: null,
      received_at: null,
    },
    { ...asked, kind: 'erasure', asked_by: 'person' },
    { ...asked, kind: 'export', asked_by: 'agent' },
  ]);
  t.is(
    (await operator('privacy', 'export', '2000000010', '--asked-by', 'nobody', ...WHY))
      .code,
    2,
  );
  await t.throwsAsync(database.sql`delete from audit_log`, { message: /append-only/ });
});

test('erasing an address removes it from all NPIs but keeps their other addresses', async (t) => {
  const { npi, email } = await person('2000030018', 'nora');
  const [neighbor, other] = ['2000030026', 'other@clinic.example'];
  await storeEmail(db, { npi: neighbor, email });
  await storeEmail(db, { npi, email: other });
  t.like(await eraseSubject(db, BY, { email }), {
    suppressions: 1,
    storedEmails: 2,
    results: 2,
  });
  t.deepEqual(await rowsWith(email), []);
  const asked = await openOrganization(db, 10);
  const { batchId } = await submitAccepted(db, asked, { npis: [npi, neighbor] });
  const envelope = await findEnvelope(db, {
    organizationId: asked.organizationId,
    batchId,
  });
  t.deepEqual(
    envelope?.items.map(({ email }) => email),
    [other, null],
  );
});

test('erasing an NPI does not suppress an address that belongs to another person', async (t) => {
  const { npi } = await person('2000040017', 'mona');
  await eraseSubject(db, BY, { npi });
  const [row] =
    await run(sql`select is_suppressed('2000040025', 'mona@stranger.example') as stranger,
                                     is_suppressed('2000040025', 'mona@clinic.example') as own`);
  t.deepEqual(row, { stranger: false, own: true });
});

test('an erased address is not stored again by checks, vendors, or the NPI Registry', async (t) => {
  const { npi, email } = await person('2000050032', 'vida');
  await eraseSubject(db, BY, { email });
  const colleague = '2000050040';
  await storeEmail(db, { npi: colleague, email });
  const address = (endpoint: string) =>
    ({ kind: 'OTHERS', endpoint, affiliationName: null }) as const;
  for (const one of [npi, colleague]) {
    await storeRegistryResponse(db, one, {
      ...{
        npi: one,
        entityType: 1,
        lastName: 'ROE',
        firstName: null,
        middleName: null,
        nameSuffix: null,
      },
      ...{
        credential: null,
        otherLastName: null,
        otherFirstName: null,
        organizationName: null,
        parentName: null,
      },
      ...{ practice: null, otherNames: [], locations: [] },
      endpoints: [address(`mailto:${email.toUpperCase()}`), address(`not.${email}`)],
    });
  }
  t.deepEqual(await rowsWith(`not.${email}`), ['provider_endpoints']);
  await eraseSubject(db, BY, { email: `not.${email}` });
  t.deepEqual(await rowsWith(email), []);
});

const givenNamesOf = (npi: string) => `given-names-${npi}`;

/** Begins a lookup, and returns its statements in order. The vendor names one address. */
async function statementsOf(npi: string, email: string, mismatch: string | null) {
  const organization = await openOrganization(db, 10);
  const command = submitCommand(organization, { npis: [npi] });
  const [requestId = ''] = acceptedIds(await submit(db, command, RULES)).requestIds;
  const joined = await joinLookup(db, requestId);
  const lookupId = joined?.lookupId ?? '';
  const { freshnessMs } = RULES;
  const call = {
    requestId,
    vendor: 'test',
    mayRepeat: true,
    callMs: 60_000,
    freshnessMs,
  };
  const limits = { rates: [], dailyCredits: null };
  const step = await beginVendorStep(db, {
    ...call,
    limits,
    patienceMs: 0,
    cost: () => 1,
  });
  if (step.kind !== 'ask') throw new Error(step.kind);
  const id = { lookupId, email };
  const known = { npi, lookupId, listed: [email], freshnessMs, canVerify: true };
  const verdict = {
    verdict: 'valid',
    reason: 'mailbox_ok',
    emailType: 'professional',
    validatedAt: new Date(),
  } as const;
  const response = {
    state: 'found',
    reason: null,
    credits: 1,
    outcome: { kind: 'responded' },
    freshnessMs,
    named: {
      npi,
      mismatch,
      mayStore: true,
      repeatsInput: false,
      profile: { givenNames: givenNamesOf(npi), surname: null, employerDomain: null },
      candidates: [
        {
          email,
          verdict: 'unknown',
          vendorType: null,
          validatedAt: null,
          isCurrent: false,
          confidence: null,
        },
      ],
    },
  } as const;
  const search = {
    employerDomains: [],
    except: [],
    isDeadline: false,
    greylistMs: 1000,
    turnMs: 60_000,
    requestedType: 'any',
    freshnessMs,
  } as const;
  const statements: Readonly<Record<string, () => Promise<unknown>>> = {
    begin: async () => {},
    name: () => recordVendorResponse(db, step.key, response),
    next: () => nextCandidate(db, step.turn, search),
    undecided: () => recordUndecided(db, id, [], null),
    verdict: () => recordVerdict(db, id, [], verdict),
    recheck: () => recordRecheck(db, { npi, email }, [], verdict),
    copy: () => copyKnown(db, known),
    refused: () => recordRefused(db, lookupId, []),
  };
  return { requestId, statements };
}

interface Erasure {
  /** The statement after which the erasure runs. */
  readonly statement: string;
  readonly subject: 'npi' | 'email';
  /** The reason why the vendor's response is about another person. */
  readonly mismatch: string | null;
}

const ERASURES: Erasure[] = [
  'begin',
  'name',
  'next',
  'undecided',
  'verdict',
  'recheck',
  'copy',
  'refused',
].flatMap((statement) => [
  { statement, subject: 'npi', mismatch: null },
  { statement, subject: 'email', mismatch: null },
]);
ERASURES.push({ statement: 'begin', subject: 'npi', mismatch: 'identity_mismatch' });
ERASURES.push({ statement: 'begin', subject: 'email', mismatch: 'identity_mismatch' });

test('an erasure between any two statements of a lookup leaves nothing to return', async (t) => {
  for (const [n, { statement: erased, subject, mismatch }] of ERASURES.entries()) {
    const npi = withCheckDigit(110_000_000 + n);
    const email = `gone${n}.@clinic.example`;
    const { requestId, statements } = await statementsOf(npi, email, mismatch);
    for (const [statement, work] of Object.entries(statements)) {
      await work();
      if (statement === erased) {
        await eraseSubject(db, BY, subject === 'npi' ? { npi } : { email });
      }
    }
    const title = `${subject} erased after ${erased} (${mismatch})`;
    t.deepEqual(await rowsWith(email), [], title);
    if (subject === 'npi') t.deepEqual(await rowsWith(givenNamesOf(npi)), [], title);
    const settled = await settle(db, requestId, 'finished', null, RULES);
    t.is(`${settled.status} ${settled.reason}`, 'not_found suppressed', title);
  }
});

test('an import does not store addresses that were erased by address or by NPI', async (t) => {
  const { npi, email } = await person('2000050016', 'vera');
  await eraseSubject(db, BY, { email });
  const row = {
    emailType: 'professional',
    validatedAt: new Date(),
    source: 'import',
    checked: false,
  } as const;
  t.deepEqual(
    await storeOwnEmails(db, [
      { ...row, npi, email },
      { ...row, npi: '2000050024', email },
      { ...row, npi, email: 'vera2@clinic.example' },
    ]),
    ['suppressed', 'suppressed', 'stored'],
  );
  await eraseSubject(db, BY, { npi });
  t.deepEqual(
    await storeOwnEmails(db, [{ ...row, npi, email: 'vera3@clinic.example' }]),
    ['suppressed'],
  );
});

// Fails without the lock on credit_balances in `eraseSubject`.
test.serial(
  'an erasure also removes a result that is being written at the same time',
  async (t) => {
    const npi = '2000060015';
    const email = 'late@clinic.example';
    const organization = await openOrganization(db, 10);
    const { requestIds } = await submitAccepted(db, organization, { npis: [npi] });
    const [requestId = ''] = requestIds;
    const { organizationId } = organization;
    const { erasing } = await db.drizzle.transaction(async (tx) => {
      // The order of a settlement: the balance first, the result last.
      await tx.execute(
        sql`select from credit_balances where organization_id = ${organizationId} for update`,
      );
      const erasing = eraseSubject(db, BY, { npi });
      await eventually(() => waitsFor('credit_balances'));
      await tx.execute(sql`update requests set status = 'completed', email = ${email}, email_type = 'professional',
      email_last_validated_at = now(), settled_at = clock_timestamp() where id = ${requestId}`);
      await tx.execute(sql`insert into entitlements (organization_id, npi, email_type, request_id, charged_at)
      select organization_id, npi, email_type, id, settled_at from requests where id = ${requestId}`);
      return { erasing };
    });
    t.like(await erasing, { results: 1 });
    t.deepEqual(await rowsWith(email), []);
  },
);

// Fails without the lock on provider_endpoints in `eraseSubject`.
test.serial(
  'an erasure also removes an address that a running import is about to commit',
  async (t) => {
    const npi = '2000060023';
    const { erasing } = await db.drizzle.transaction(async (tx) => {
      await tx.execute(sql`insert into provider_endpoints (npi, kind, endpoint)
      values (${npi}, 'DIRECT', 'soon@clinic.example')`);
      const erasing = eraseSubject(db, BY, { email: 'soon@clinic.example' });
      await eventually(() => waitsFor('provider_endpoints'));
      return { erasing };
    });
    t.like(await erasing, { endpoints: 1 });
  },
);

// Fails if `recordVerdict` writes to its tables in another order.
test.serial(
  'an erasure does not deadlock with a check that is stored at the same time',
  async (t) => {
    const { npi, email, lookupId } = await person('2000060064', 'ilse');
    const writer = openDatabase({
      url: database.url,
      poolSize: 1,
      applicationName: 'test',
    });
    t.teardown(() => writer.close());
    const invalid = {
      verdict: 'invalid',
      reason: 'mailbox_missing',
      emailType: null,
      validatedAt: null,
    } as const;
    const write = () => recordVerdict(writer, { lookupId, email }, [], invalid);
    // Executes the statement once, so that it is prepared.
    await write();
    const { both } = await db.drizzle.transaction(async (tx) => {
      // The erasure waits for this lock, and the writer waits for the erasure.
      await tx.execute(sql`lock table candidates in row exclusive mode`);
      const erasing = eraseSubject(db, BY, { npi });
      await eventually(() => waitsFor('candidates'));
      const writing = write();
      await eventually(() => waitsFor('candidates', 2));
      return { both: Promise.all([erasing, writing]) };
    });
    t.like((await both)[0], { storedEmails: 1 });
    t.deepEqual(await rowsWith(email), []);
  },
);

test.serial(
  'an erasure that waits for locks blocks no submits, and succeeds after the wait',
  async (t) => {
    const { npi, organization } = await person('2000060031', 'ines');
    const other = await openOrganization(db, 1);
    const { erasing } = await db.drizzle.transaction(async (tx) => {
      const { organizationId } = organization;
      await tx.execute(
        sql`select from credit_balances where organization_id = ${organizationId} for update`,
      );
      const erasing = eraseSubject(db, BY, { npi });
      await eventually(() => waitsFor('credit_balances'));
      // The submit queues for the lock after the erasure, and still succeeds before it.
      t.is(
        (await submit(db, submitCommand(other, { npis: ['2000060049'] }), RULES)).kind,
        'accepted',
      );
      return { erasing };
    });
    t.like(await erasing, { results: 2 });
  },
);

test.serial(
  'an erasure that cannot get its locks fails with a message and erases nothing',
  async (t) => {
    const { operator } = operatorOn(database.url);
    const { npi, email, organization } = await person('2000060056', 'ida');
    const refused = await db.drizzle.transaction(async (tx) => {
      const { organizationId } = organization;
      await tx.execute(
        sql`select from credit_balances where organization_id = ${organizationId} for update`,
      );
      // Otherwise PostgreSQL ends the transaction of this test.
      await tx.execute(sql`set local idle_in_transaction_session_timeout = 0`);
      return await operator('privacy', 'erase', npi, '--yes', ...WHY);
    });
    t.is(refused.code, 1);
    t.regex(refused.stderr, /this step changed nothing\. Run the same command again/);
    t.is((await rowsWith(email)).length, 6);
  },
);

// Fails without the predicates of the partial indexes. An erasure must be fast, because all other
// writers wait for it.
test.serial('an erasure uses indexes on all large tables', async (t) => {
  await using large = await openTestDatabase();
  // PostgreSQL counts what a session has read when the session ends, so this one ends before the
  // counts are compared.
  const world = openDatabase({ url: large.url, poolSize: 1, applicationName: 'world' });
  const [npi, email] = ['2000060064', 'iris@clinic.example'];
  const organization = await openOrganization(world, 10);
  await storeEmail(world, {
    npi,
    email,
  });
  const webhook = { url: 'https://hooks.example/', mode: 'batch' } as const;
  const { batchId } = await submitAccepted(world, organization, { npis: [npi], webhook });
  await fill(world, batchId);
  await world.close();

  for (const subject of [{ npi }, { email }]) {
    const before = await wholeReads(large.db);
    t.is(before.length, 7);
    const erasing = openDatabase({
      url: large.url,
      poolSize: 1,
      applicationName: 'erasing',
    });
    const erasure = await eraseSubject(erasing, BY, subject);
    await erasing.close();
    t.is(erasure.results, 'npi' in subject ? 1 : 0);
    t.deepEqual(await wholeReads(large.db), before);
  }
});

const FILLED = [
  'provider_endpoints',
  'stored_emails',
  'email_checks',
  'batches',
  'requests',
  'webhook_deliveries',
  'webhook_attempts',
];

/** Adds 20,000 rows to each table, enough for the planner to prefer indexes. */
async function fill(world: Database, batchId: string): Promise<void> {
  const [n, npi, email] = [
    sql`generate_series(1, 20000) n`,
    sql`'3' || lpad(n::text, 9, '0')`,
    sql`'p' || n || '@filler.example'`,
  ];
  await world.drizzle.transaction(async (tx) => {
    await tx.execute(sql`set local session_replication_role = replica`);
    for (const table of FILLED) {
      // Autovacuum would change the statistics while an erasure is planned.
      await tx.execute(
        sql`alter table ${sql.identifier(table)} set (autovacuum_enabled = false)`,
      );
    }
    for (const statement of [
      sql`insert into provider_endpoints (npi, kind, endpoint) select ${npi}, 'DIRECT', ${email} from ${n}`,
      sql`insert into stored_emails (npi, email, verdict, source) select ${npi}, ${email}, 'unknown', '' from ${n}`,
      sql`insert into email_checks (npi, email, kind, source, verdict)
          select ${npi}, ${email}, 'named', '', 'unknown' from ${n}`,
      sql`insert into batches (id, organization_id, submitted_as, requested_type, total, created_at, updated_at, deadline_at)
          select 'bat_' || n, organization_id, 'single', 'any', 1, now(), now(), now()
            from batches, ${n} where id = ${batchId}`,
      sql`insert into requests (id, batch_id, organization_id, position, npi, requested_type, cost, status, email, email_type,
                                email_last_validated_at, accepted_at, settled_at, deadline_at)
          select 'req_' || n, 'bat_' || n, organization_id, 0, ${npi}, 'any', 1, 'completed', ${email}, 'professional',
                 now(), now(), now(), now() from requests, ${n} where batch_id = ${batchId}`,
      sql`insert into webhook_deliveries (id, batch_id, organization_id, state, created_at, decided_at)
          select 'msg_' || n, id, organization_id, 'delivered', now(), now()
            from ${n} join batches on id = 'bat_' || n`,
      sql`insert into webhook_attempts (delivery_id, n, started_at, duration_ms)
          select 'msg_' || n, 1, now(), 5 from ${n}`,
    ]) {
      await tx.execute(statement);
    }
  });
  await world.drizzle.execute(sql`analyze`);
}

/** Counts the full scans of each large table by connections that have ended. */
async function wholeReads(world: Database) {
  // A connection reports its scans when it ends.
  await eventually(async () => {
    const open = await world.drizzle.execute(sql`
      select from pg_stat_activity where application_name in ('world', 'erasing') and datname = current_database()`);
    return open.length === 0 ? true : null;
  });
  return await world.drizzle.execute(sql`
    select relname, seq_scan from pg_stat_user_tables where n_live_tup >= 20000 order by relname`);
}

test('the database lets only an erasure change a final result', async (t) => {
  const { requestIds } = await person('2000070014', 'olga');
  const [id] = requestIds;
  const gone = sql`email = null, email_type = null, email_last_validated_at = null`;
  for (const change of [
    sql`email = 'someone@clinic.example'`,
    sql`${gone}`,
    sql`${gone}, erased_at = now(), status = 'not_found'`,
    sql`${gone}, erased_at = now(), replayed = not replayed`,
    sql`${gone}, erased_at = now(), settled_at = now()`,
    sql`erased_at = now()`,
  ]) {
    await t.throwsAsync(run(sql`update requests set ${change} where id = ${id}`));
  }
  await run(sql`update requests set ${gone}, erased_at = now() where id = ${id}`);
  await t.throwsAsync(run(sql`update requests set erased_at = null where id = ${id}`));
});

test('a privacy export contains everything we store about an NPI or an address', async (t) => {
  const { npi, email, lookupId, requestIds, organization } = await person(
    '2000080013',
    'petra',
  );
  await run(
    sql`insert into providers (npi, entity_type, last_name, origin, row_hash) values (${npi}, 1, 'ROE', 'nppes', 1)`,
  );
  await run(
    sql`insert into clinician_practices (npi, pac_id, phone_key, address_key, name) values (${npi}, '42', '', '', 'A GROUP')`,
  );
  const held = await exportSubject(db, { npi });
  t.like(held, {
    providers: [{ npi, last_name: 'ROE' }],
    locations: [],
    clinician_practices: [{ npi, name: 'A GROUP' }],
    candidates: [{ email, lookup_id: lookupId, source: 'test' }],
    stored_emails: [{ email, source: 'test' }],
    vendor_profiles: [{ vendor: 'test', given_names: 'petra' }],
    lookups: [{ id: lookupId }],
    deliveries: [{ state: 'delivered', attempts: 1 }],
  });
  t.deepEqual(
    held.requests.map((request) => [request.id, request.organization_id]),
    requestIds.map((id) => [id, organization.organizationId]),
  );
  t.deepEqual(
    [held.email_checks.length, held.endpoints.length, held.suppressions.length],
    [4, 2, 0],
  );

  const under = await exportSubject(db, { email });
  t.deepEqual(
    [
      under.stored_emails,
      under.email_checks,
      under.requests,
      under.deliveries,
      under.endpoints,
    ].map((rows) => rows.length),
    [1, 2, 2, 1, 1],
  );
  await eraseSubject(db, BY, { npi });
  const after = await exportSubject(db, { npi });
  t.like(after, {
    candidates: [],
    stored_emails: [],
    vendor_profiles: [],
    email_checks: [],
    suppressions: [{ kind: 'npi', origin: 'erasure' }],
  });
  t.true(
    after.requests.every(
      (request) => request.email === null && request.erased_at !== null,
    ),
  );
});

test('without --yes the erase command only counts, and it never prints an address', async (t) => {
  const { operator, json, text } = operatorOn(database.url);
  const { npi, email } = await person('2000090012', 'quinn');
  const exported = JSON.parse(
    await text('privacy', 'export', ` ${email.toUpperCase()} `, ...WHY),
  ) as {
    stored_emails: object[];
  };
  t.like(exported.stored_emails[0], { npi, email });

  const tried = await operator('privacy', 'erase', npi, '--dry-run', ...WHY);
  t.is(tried.code, 0);
  const asked = await operator('privacy', 'erase', npi, ...WHY);
  t.is(asked.code, 1);
  t.regex(asked.stdout, /^results +2$[\s\S]*Nothing was erased: add --yes/m);
  t.true((await rowsWith(email)).includes('stored_emails'));
  t.false(
    JSON.stringify(await json('privacy', 'list')).includes(npi),
    'nothing was asked for yet',
  );
  const foretold = (await operator('privacy', 'erase', npi, '--json', ...WHY)).stdout;

  const done = await operator('privacy', 'erase', npi, '--yes', ...WHY);
  t.deepEqual([done.code, done.stderr], [0, '']);
  t.regex(done.stdout, /^stored emails +1$[\s\S]*custom_data/m);
  const [register] =
    await database.sql`select details from audit_log where action = 'privacy.erase' and subject = ${npi}`;
  const { asked_by: _by, received_at: _at, ...removed } = register?.details ?? {};
  const { erased, ...counted } = JSON.parse(foretold);
  t.is(erased, false);
  t.deepEqual(Object.values(counted).toSorted(), Object.values(removed).toSorted());
  t.false(`${asked.stdout}${done.stdout}`.includes(email));
  t.like(await json('privacy', 'erase', npi, '--yes', ...WHY), {
    erased: true,
    results: 0,
    suppressions: 0,
  });

  const named = await operator(
    'privacy',
    'erase',
    npi,
    '--yes',
    '--reason',
    `asked by ${email}`,
  );
  t.is(named.code, 2);
  t.false(named.stderr.includes(email));
  t.is((await operator('privacy', 'erase', 'nobody', '--yes', ...WHY)).code, 2);
});
