import test from 'ava';
import { sql } from 'drizzle-orm';
import { showWebhookSecret } from '../../db/accounts/webhook-secrets.ts';
import { queuesOf } from '../../workflows/messages.ts';
import { fresh } from '../support/database.ts';
import { readableText } from '../support/histories.ts';
import { eventually, type SubmitResponse } from '../support/organization.ts';
import { startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests which data operators see in the Temporal UI, and which data never appears there.

const MAGIC_NPIS =
  `2000000010 2000000028 2000000036 2000000044 2000000101 2000000119 2000000127 2000000135
  2000000143 2000000150 2000000168 2000000176 1234567890`.split(/\s+/);
/** The vendor doesn't respond for this NPI until the deadline. */
const UNANSWERED_NPI = '2000000101';
const CANARY = {
  url: 'canary-in-url',
  custom: 'canary-in-custom-data',
  agent: 'canary-in-idempotency-key',
};

const stack = fresh(test, () =>
  startStack({ lookupTimeoutMs: 30_000, sweepIntervalMs: 1000 }),
);
const client = fresh(test, () => stack.organization());
let submitted: SubmitResponse;

test.before(async () => {
  const url = `${stack.receiver.url}/status/500/${CANARY.url}`;
  const body = {
    npis: MAGIC_NPIS,
    webhook: { url },
    custom_data: { [CANARY.custom]: CANARY.custom },
  };
  submitted = (await client.bulk(body, { 'idempotency-key': CANARY.agent })).json;
});

function workflow(id = '') {
  return stack.client.workflow.getHandle(id);
}

/**
 * Returns the IDs that a visibility query finds. Visibility is eventually consistent, so the query
 * runs until it finds enough.
 */
async function find(query: string, atLeast: number): Promise<string[]> {
  return await eventually(async () => {
    const ids: string[] = [];
    for await (const { workflowId } of stack.client.workflow.list({ query }))
      ids.push(workflowId);
    return ids.length >= atLeast ? ids.sort() : null;
  });
}

async function currentDetails(id: string): Promise<string> {
  const metadata = await workflow(id).query<{ currentDetails?: string }>(
    '__temporal_workflow_metadata',
  );
  return metadata.currentDetails ?? '';
}

test('Temporal finds batches by organization and NPI, and lookups also by outcome', async (t) => {
  const { organizationId } = client;
  const own = `OrganizationId = '${organizationId}'`;
  // Submitted here, because the first batch may be completed before this test starts.
  const other = await stack.organization();
  const { batch_id } = (await other.bulk({ npis: [UNANSWERED_NPI] })).json;
  t.deepEqual(
    await find(
      `OrganizationId = '${other.organizationId}' and WorkflowType = 'enrichBatch' and ExecutionStatus = 'Running'`,
      1,
    ),
    [batch_id],
  );
  t.deepEqual(
    await find(`${own} and Npi = '2000000036' and WorkflowType = 'enrichBatch'`, 1),
    [submitted.batch_id],
  );
  t.deepEqual(
    await find(`${own} and Npi = '2000000036' and WorkflowType = 'lookUpEmail'`, 1),
    submitted.requests
      .filter(({ npi }) => npi === '2000000036')
      .map(({ request_id }) => request_id),
  );
  t.is(
    (await find(`${own} and WorkflowType = 'lookUpEmail'`, MAGIC_NPIS.length)).length,
    MAGIC_NPIS.length,
  );
  await client.completed(submitted.batch_id);
  t.deepEqual(
    await find(
      `${own} and WorkflowType = 'enrichBatch' and ExecutionStatus = 'Completed'`,
      1,
    ),
    [submitted.batch_id],
  );
  const ofNpi = (npi: string) =>
    submitted.requests
      .filter((one) => one.npi === npi)
      .map(({ request_id }) => request_id);
  t.deepEqual(
    await find(`${own} and Outcome = 'not_found: no_profile' and Npi = '2000000044'`, 1),
    ofNpi('2000000044'),
  );
  t.deepEqual(
    await find(
      `${own} and Outcome STARTS_WITH 'failed' and Npi = '${UNANSWERED_NPI}'`,
      1,
    ),
    ofNpi(UNANSWERED_NPI),
  );
  t.deepEqual(await find(`OrganizationId = 'org_nobody'`, 0), []);
});

test('a batch workflow in Temporal shows its organization, size, and progress', async (t) => {
  const other = await stack.organization();
  const npis = [...ordinaryNpis('found', 2), UNANSWERED_NPI];
  const { json } = await other.bulk({ npis });
  const description = await (await stack.startedWorkflow(json.batch_id)).describe();
  t.deepEqual(description.memo, {
    organization_id: other.organizationId,
    submitted_as: 'bulk',
    requested_type: 'any',
    total: 3,
  });
  t.is(await description.staticSummary(), '3 NPIs');
  t.is(
    await description.staticDetails(),
    `bulk submit of ${other.organizationId}, requested type any`,
  );
  const progress = await eventually(async () => {
    const details = await currentDetails(json.batch_id);
    return details.includes('2 of 3') ? details : null;
  });
  t.is(progress, '**2 of 3** final');
});

test('a lookup workflow in Temporal shows its NPI, its vendors, and their results', async (t) => {
  await client.completed(submitted.batch_id);
  const details = async (npi: string) => {
    const request = submitted.requests.find((one) => one.npi === npi);
    return await currentDetails(request?.request_id ?? '');
  };
  t.is(await details('2000000010'), '- **rocketreach**: found');
  t.is(await details('2000000044'), '- **rocketreach**: miss (no_profile)');
  t.is(await details('2000000135'), '- **rocketreach**: unusable (none_valid)');
  t.is(await details('2000000176'), '- **rocketreach**: miss (no_profile)');
  // The vendor had not responded, so it was called again with the remaining time.
  t.regex(
    await details(UNANSWERED_NPI),
    /^(- \*\*rocketreach\*\*: unresolved( \(\w+\))?\n?)+$/,
  );

  const request = submitted.requests.find(({ npi }) => npi === '2000000010');
  t.is(
    await (await workflow(request?.request_id).describe()).staticSummary(),
    'NPI 2000000010',
  );
  t.deepEqual(await summaries(request?.request_id), ['rocketreach for NPI 2000000010']);
  t.true(
    (await summaries(submitted.batch_id)).some((summary) =>
      /^(webhook of NPI \d{10}|\d+ webhooks)$/.test(summary),
    ),
  );
});

/** Returns the summaries of a workflow's activities, from its history. */
async function summaries(id = ''): Promise<string[]> {
  const { events } = await workflow(id).fetchHistory();
  return (events ?? [])
    .filter((event) => event.activityTaskScheduledEventAttributes)
    .map((event) =>
      JSON.parse(Buffer.from(event.userMetadata?.summary?.data ?? []).toString('utf8')),
    );
}

test('Temporal stores no email addresses, URLs, keys, secrets, or custom_data', async (t) => {
  await client.completed(submitted.batch_id);
  await workflow(submitted.batch_id).result();
  const emails = await stack.db.drizzle.execute<{ email: string }>(
    sql`select email from stored_emails`,
  );
  t.true(emails.length >= 6);
  const { webhookSecret } = await showWebhookSecret(stack.db, client.organizationId);
  const { DATABASE_URL, ...settings } = stack.workerEnvironment;
  const forbidden = [
    ...emails.flatMap(({ email }) => [email, email.split('@')[0] ?? email]),
    ...[
      webhookSecret,
      webhookSecret.slice('whsec_'.length),
      client.apiKey,
      settings.ROCKETREACH_API_KEY,
      DATABASE_URL,
    ],
    ...[stack.receiver.url, stack.simulator.urls.rocketreach, ...Object.values(CANARY)],
  ];

  const seen: string[] = [];
  let workflows = 0;
  const { enrichment, webhooks } = queuesOf(stack.taskQueue);
  const query = `TaskQueue in ('${enrichment}', '${webhooks}')`;
  for await (const execution of stack.client.workflow.list({ query })) {
    const handle = stack.client.workflow.getHandle(execution.workflowId, execution.runId);
    const { raw } = await handle.describe();
    seen.push(
      readableText(execution.raw),
      readableText(raw),
      readableText(await handle.fetchHistory()),
    );
    workflows += 1;
  }
  const text = seen.join('\n').toLowerCase();
  t.true(workflows >= MAGIC_NPIS.length);
  // These harmless texts show that payloads, memos, and summaries were read.
  for (const harmless of [
    submitted.batch_id,
    'rocketreach for npi 2000000010',
    'webhook.not_delivered',
    'requested_type',
  ]) {
    t.true(text.includes(harmless), harmless);
  }
  for (const secret of forbidden) t.false(text.includes(secret.toLowerCase()), secret);
});
