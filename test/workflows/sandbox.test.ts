import test from 'ava';
import { sql } from 'drizzle-orm';
import { Webhook } from 'standardwebhooks';
import MAGIC from '../../activities/magic-npis.json' with { type: 'json' };
import { showWebhookSecret } from '../../db/accounts/webhook-secrets.ts';
import { TEST_OUTCOMES, type TestOutcome } from '../../db/words.ts';
import { withCheckDigit } from '../../deploy/local/sim/people.ts';
import { leftOver } from '../support/all-ended.ts';
import { fresh } from '../support/database.ts';
import { type EnvelopeResponse, eventually } from '../support/organization.ts';
import { startStack } from '../support/stack.ts';
import { createScriptedVendor, foundStep } from '../support/vendors.ts';

// Tests the sandbox from a submit to its webhook: each outcome, and the isolation from vendors and
// live data.

const vendor = createScriptedVendor();
const registered: string[] = [];
const registry = {
  find: async (npi: string) => {
    registered.push(npi);
    return { kind: 'inactive_or_unknown' } as const;
  },
};
const stack = fresh(test, () => startStack({ providers: [vendor], registry }));
const live = fresh(test, () => stack.organization());
const sandbox = fresh(test, () => stack.sandboxOf(live));

const MAGIC_NPIS = MAGIC.map(({ npi }) => npi);
/** One NPI of each kind: personal, not found, professional, and a wrong check digit. */
const ORDINARY = [
  ...[100_000_011, 100_000_010, 100_000_013].map(withCheckDigit),
  '1234567890',
];
/**
 * Tables whose rows belong to one organization or to the service itself. All other tables serve
 * every organization.
 */
const OWN =
  `api_keys audit_log batches credit_balances daily_usage entitlements idempotency_keys ledger_entries organizations
  rate_windows requests sweeps used_credits webhook_attempts webhook_deliveries webhook_hosts workers`.split(
    /\s+/,
  );

let nextStem = 100_300_000;
const newNpi = () => withCheckDigit(nextStem++);

/** Returns the contents of every table that serves more than one organization. */
async function sharedRows(): Promise<Record<string, string>> {
  const tables = await stack.db.drizzle.execute<{ name: string }>(sql`
    select relname as name from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r' order by 1`);
  const shared = tables.filter(({ name }) => !OWN.includes(name));
  const held = shared.map(async ({ name }) => {
    const [row] = await stack.db.drizzle.execute<{ text: string }>(
      sql`select coalesce(string_agg(t::text, chr(10) order by t::text), '') as text from ${sql.identifier(name)} t`,
    );
    return [name, row?.text ?? ''] as const;
  });
  return Object.fromEntries(await Promise.all(held));
}

/** Submits one NPI with a forced outcome and waits for its end. */
async function forced(outcome: TestOutcome, npi = newNpi(), type = 'any') {
  const body = { npi, enrichment_email_type: type };
  const { json, status } = await sandbox.single(body, { 'test-outcome': outcome });
  if (status !== 202) throw new Error(`${status}`);
  const { data, usage } = await sandbox.completed(json.batch_id);
  return {
    submitted: json.status,
    batchId: json.batch_id,
    credits: usage.credits_used,
    ...data[0],
  };
}

async function row(batchId: string) {
  const [found] = await stack.db.drizzle.execute<{
    reason: string;
    deadline: number;
    lookup: string | null;
  }>(sql`
    select reason, extract(epoch from deadline_at - accepted_at)::int as deadline, lookup_id as lookup
      from requests where batch_id = ${batchId}`);
  return found;
}

const PROFESSIONAL = {
  status: 'completed',
  email_type: 'professional',
  email_status: 'valid',
};
const PERSONAL = { ...PROFESSIONAL, email_type: 'personal' };
const NOTHING = {
  email: null,
  email_type: null,
  email_last_validated: null,
  email_status: null,
};

test.serial(
  'sandbox requests neither read nor change data that organizations share',
  async (t) => {
    // Each of these rows would change a result if the sandbox read it.
    const stored = [...MAGIC_NPIS, ...ORDINARY];
    const refused = [100_400_003, 100_400_004, 100_400_005].map(withCheckDigit);
    const npis = [...stored, ...refused];
    await stack.db.drizzle.execute(sql`
    insert into stored_emails (npi, email, email_type, verdict, last_validated_at, source)
    select npi, 'real@clinic.test', 'professional', 'valid', now(), 'test' from unnest(${sql.param(stored)}::text[]) npi`);
    await stack.db.drizzle.execute(sql`
    insert into suppressions (kind, value, origin)
    select 'npi', npi, 'operator' from unnest(${sql.param(refused)}::text[]) npi
    union all select 'domain', 'example.com', 'operator'`);
    await stack.db.drizzle.execute(sql`
    insert into providers (npi, deactivated_on, origin, row_hash)
    select npi, '2020-01-01', 'nppes', 1 from unnest(${sql.param(refused)}::text[]) npi`);
    for (const npi of npis) vendor.script(npi, () => foundStep(npi));
    const before = await sharedRows();
    t.true(Object.keys(before).length > 12);

    const webhook = { url: `${stack.receiver.url}/everything` };
    const all = [await sandbox.bulk({ npis, webhook })];
    // All ordinary and refused NPIs, and every third magic one.
    const some = npis.filter(
      (npi, index) => index % 3 === 0 || !MAGIC_NPIS.includes(npi),
    );
    for (const type of ['professional', 'personal']) {
      all.push(
        await sandbox.bulk({
          npis: some,
          enrichment_email_type: type,
          webhook: { ...webhook, mode: 'batch' },
        }),
      );
    }
    for (const outcome of TEST_OUTCOMES) {
      all.push(
        await sandbox.bulk(
          { npis: [newNpi(), newNpi()], webhook },
          { 'test-outcome': outcome },
        ),
      );
    }
    const responses: EnvelopeResponse[] = [];
    for (const { json } of all) responses.push(await sandbox.completed(json.batch_id));

    t.deepEqual(await leftOver(stack), []);
    t.deepEqual(await sharedRows(), before);
    t.deepEqual(
      [...npis, ...registered].filter((npi) => vendor.asked(npi, 'submit') > 0),
      [],
    );
    t.deepEqual(registered, []);
    const emails = responses.flatMap(({ data }) =>
      data.flatMap(({ email }) => email ?? []),
    );
    t.true(emails.length > 40);
    const unrefused = responses[0]?.data.filter(
      ({ npi, email }) => refused.includes(npi) && email,
    );
    t.is(unrefused?.length, 3);
    t.deepEqual(
      emails.filter((email) => !/^npi[0-9]{10}@(clinic|home)\.example\.com$/.test(email)),
      [],
    );
  },
);

test('the digits of an NPI decide which type of address the sandbox returns, if any', async (t) => {
  const npis = [3, 4, 5, 6, 7, 8, 9, 1, 2, 0].map((digit) =>
    withCheckDigit(100_200_000 + digit),
  );
  const { json } = await sandbox.bulk({ npis: [...npis, '1234567890'] });
  const { data } = await sandbox.completed(json.batch_id);
  t.deepEqual(
    data.map(({ email_type }) => email_type),
    [...Array(7).fill('professional'), ...Array(2).fill('personal'), null, null],
  );
  t.is(data.at(-1)?.status, 'not_found');
});

test('the test outcomes "professional" and "personal" need a matching requested type', async (t) => {
  t.like(await forced('professional'), {
    ...PROFESSIONAL,
    submitted: 'in-progress',
    credits: 1,
    replayed: false,
  });
  t.like(await forced('personal'), { ...PERSONAL, credits: 1 });
  t.like(await forced('personal', newNpi(), 'personal'), { ...PERSONAL, credits: 3 });
  t.like(await forced('professional', newNpi(), 'personal'), {
    ...NOTHING,
    status: 'not_found',
    credits: 0,
  });
});

test('the test outcome "found" returns an address of the requested type', async (t) => {
  const npi = newNpi();
  t.like(await forced('found', npi, 'personal'), {
    ...PERSONAL,
    email: `npi${npi}@home.example.com`,
  });
  t.like(await forced('found', newNpi(), 'professional'), PROFESSIONAL);
  t.like(await forced('found'), PROFESSIONAL);
});

test('the test outcomes "not_found" and "failed" refund the credits', async (t) => {
  const [notFound, failed] = [await forced('not_found'), await forced('failed')];
  t.like(notFound, { ...NOTHING, status: 'not_found', credits: 0 });
  t.like(failed, { ...NOTHING, status: 'failed', credits: 0 });
  t.is((await row(notFound.batchId))?.reason, 'no_source');
  t.is((await row(failed.batchId))?.reason, 'test_outcome');
});

test('the test outcome "deadline" fails only its own request, and within seconds', async (t) => {
  // Its digits select a professional address.
  const other = withCheckDigit(100_500_003);
  const { json } = await sandbox.bulk({ npis: ['2000000101', other] });
  const { data, usage } = await sandbox.completed(json.batch_id);
  t.deepEqual(
    data.map(({ status }) => status),
    ['failed', 'completed'],
  );
  t.is(usage.credits_used, 1);
  // Submits again if the machine was too busy to call the sandbox within these seconds.
  const timeout = await eventually(async () => {
    const alone = await forced('deadline');
    t.like(alone, { ...NOTHING, status: 'failed', credits: 0 });
    t.like(await row(alone.batchId), { deadline: 5 });
    const handle = stack.client.workflow.getHandle(alone.request_id ?? '');
    const { events } = await handle.fetchHistory();
    const scheduled = (events ?? []).flatMap(
      (one) => one.activityTaskScheduledEventAttributes ?? [],
    );
    const asked = scheduled.find(
      ({ activityType }) => activityType?.name === 'askVendor',
    );
    const metadata = '__temporal_workflow_metadata';
    const { currentDetails = '' } = await handle.query<{ currentDetails?: string }>(
      metadata,
    );
    const isPending = currentDetails.includes(
      'the sandbox: deadline**: unresolved (pending)',
    );
    return isPending ? (asked?.scheduleToCloseTimeout ?? null) : null;
  });
  t.true(Number(timeout.seconds) <= 5);
});

test('the test outcomes "slow" and "greylisted" take the same steps as real delays', async (t) => {
  const [slow, greylisted] = await Promise.all([forced('slow'), forced('greylisted')]);
  for (const [response, steps] of [
    [slow, ['the sandbox: slow']],
    [greylisted, ['the sandbox: greylisted', 'the sandbox: greylisted-over']],
  ] as const) {
    t.like(response, { ...PROFESSIONAL, submitted: 'in-progress', credits: 1 });
    const { events } = await stack.client.workflow
      .getHandle(response.request_id ?? '')
      .fetchHistory();
    const asked = (events ?? []).flatMap(
      ({ activityTaskScheduledEventAttributes: one }) => one?.activityId ?? [],
    );
    t.deepEqual(asked.slice(0, 2), steps);
  }
});

test('the test outcomes "stored" and "replayed" are final at once', async (t) => {
  const npi = newNpi();
  t.like(await forced('replayed'), {
    ...PROFESSIONAL,
    submitted: 'completed',
    replayed: true,
    credits: 0,
  });
  t.like(await forced('stored', npi), {
    ...PROFESSIONAL,
    submitted: 'completed',
    replayed: false,
    credits: 1,
  });
  // If the client asks for another outcome, it is simulated, although a free result exists.
  t.like(await forced('slow', npi), {
    ...PROFESSIONAL,
    submitted: 'in-progress',
    replayed: true,
    credits: 0,
  });
  // Outcomes without a result apply even to an NPI that was paid for.
  t.like(await forced('not_found', npi), { status: 'not_found', credits: 0 });
  t.like(await forced('failed', npi), { status: 'failed', credits: 0 });
});

test("sandbox webhooks are signed with the sandbox's own secret", async (t) => {
  const path = `/hook/${newNpi()}`;
  const body = {
    npi: '2000000028',
    webhook: { url: `${stack.receiver.url}${path}` },
    custom_data: { a: 1 },
  };
  const { json } = await sandbox.single(body);
  const [delivery] = await eventually(async () => {
    const arrived = stack.receiver.deliveries().filter((one) => one.path === path);
    return arrived.length > 0 ? arrived : null;
  });
  const secretOf = async (id: string) =>
    (await showWebhookSecret(stack.db, id)).webhookSecret;
  const check = (secret: string) =>
    new Webhook(secret).verify(
      delivery?.body ?? '',
      delivery?.headers as Record<string, string>,
    );
  const envelope = check(await secretOf(sandbox.organizationId)) as EnvelopeResponse;
  t.like(envelope, { batch: { id: json.batch_id }, custom_data: { a: 1 } });
  const other = await secretOf(live.organizationId);
  t.throws(() => check(other));
});

test('searches in Temporal can distinguish sandboxes from live organizations', async (t) => {
  const { batchId } = await forced('found');
  const { json } = await live.single({ npi: newNpi() });
  await live.completed(json.batch_id);
  const idsOf = async (query: string) => {
    const ids: string[] = [];
    for await (const { workflowId } of stack.client.workflow.list({ query }))
      ids.push(workflowId);
    return ids;
  };
  const here = `TaskQueue = '${stack.taskQueue}' and WorkflowType = 'enrichBatch'`;
  await eventually(async () => {
    const [tests, others] = [
      await idsOf(`${here} and OrganizationId STARTS_WITH 'sbx_'`),
      await idsOf(`${here} and OrganizationId NOT STARTS_WITH 'sbx_'`),
    ];
    t.false(tests.includes(json.batch_id) || others.includes(batchId));
    return tests.includes(batchId) && others.includes(json.batch_id) ? true : null;
  });
});
