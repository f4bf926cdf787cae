import { Context } from '@temporalio/activity';
import test from 'ava';
import { sql } from 'drizzle-orm';
import type { Step } from '../../../activities/vendors/vendor.ts';
import { OUTCOME } from '../../../workflows/messages.ts';
import { fresh } from '../../support/database.ts';
import { eventually } from '../../support/organization.ts';
import { startStack } from '../../support/stack.ts';
import {
  aborted,
  createScriptedVendor,
  foundStep,
  ordinaryNpis,
} from '../../support/vendors.ts';

// Tests that `Outcome`, by which operators find requests without an email, matches PostgreSQL
// (deploy/operations.md, In the Temporal UI).

const TOTAL = 200;
const vendor = createScriptedVendor();
const stack = fresh(test, () =>
  startStack({ lookupTimeoutMs: 60_000, providers: [vendor] }),
);
const client = fresh(test, () => stack.organization(1000));

const ENDINGS: readonly ((npi: string) => Step | Promise<Step>)[] = [
  foundStep,
  () => ({ kind: 'miss', reason: 'nobody' }),
  () => ({ kind: 'fatal', why: 'protocol', field: 'emails' }),
  () => ({ kind: 'pending', jobRef: 'job', pollAfterMs: 60_000 }),
  () => ({ kind: 'retry', why: 'rate_limit', afterMs: 60_000 }),
  () => aborted(Context.current().cancellationSignal),
];

/**
 * Returns NPIs for every kind of vendor response, and NPIs that are rejected before a vendor is
 * called.
 */
function mixedNpis(): string[] {
  const npis = ordinaryNpis('found', TOTAL, 700_000);
  for (const [index, npi] of npis.entries()) {
    const ending = ENDINGS[index % ENDINGS.length];
    if (ending) vendor.script(npi, () => ending(npi));
  }
  const wrongDigits = npis
    .slice(0, 10)
    .map((npi) => `${npi.slice(0, 9)}${(Number(npi[9]) + 1) % 10}`);
  return [...npis.slice(10), ...wrongDigits];
}

/** Returns the outcome of each lookup in Temporal's visibility store, by request ID. */
async function outcomesInTemporal(query: string): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  const filter = `OrganizationId = '${client.organizationId}' and WorkflowType = 'lookUpEmail' and ${query}`;
  for await (const { workflowId, typedSearchAttributes } of stack.client.workflow.list({
    query: filter,
  })) {
    found.set(workflowId, typedSearchAttributes.get(OUTCOME) ?? '');
  }
  return found;
}

test('views in the Temporal UI list every request without an email, with its reason', async (t) => {
  const npis = mixedNpis();
  await stack.db.drizzle.execute(
    sql`insert into suppressions (kind, value, origin) values ('npi', ${npis[1]}, 'operator')`,
  );
  const batches = [];
  for (let at = 0; at < TOTAL; at += 50) {
    const { json } = await client.bulk({ npis: npis.slice(at, at + 50) });
    batches.push(json);
  }
  const requests = batches.flatMap((batch) => batch.requests);
  const hanging = await eventually(
    async () => requests.find(({ npi }) => vendor.asked(npi, 'submit') > 0) ?? null,
  );
  await eventually(async () => {
    const handle = stack.client.workflow.getHandle(hanging.request_id);
    return await handle.cancel().then(
      () => true,
      () => null,
    );
  });
  for (const { batch_id } of batches) await client.completed(batch_id);

  const recorded = await stack.db.drizzle.execute<{ id: string; outcome: string }>(sql`
    select id, status || ': ' || reason as outcome from requests
     where organization_id = ${client.organizationId} and status <> 'completed'`);
  const expected = new Map(recorded.map(({ id, outcome }) => [id, outcome]));
  const views = `(Outcome STARTS_WITH 'failed' or Outcome STARTS_WITH 'not_found')`;
  const found = await eventually(async () => {
    const outcomes = await outcomesInTemporal(views);
    return outcomes.size >= expected.size ? outcomes : null;
  });
  t.deepEqual(
    Object.fromEntries([...found].sort()),
    Object.fromEntries([...expected].sort()),
  );
  const deadlines = await outcomesInTemporal(`Outcome STARTS_WITH 'failed: deadline'`);
  t.is(
    deadlines.size,
    [...expected.values()].filter((one) => one.startsWith('failed: deadline')).length,
  );
  const kinds = new Set(expected.values());
  for (const kind of [
    'not_found: check_digit',
    'not_found: suppressed',
    'failed: cancelled',
  ])
    t.true(kinds.has(kind), kind);
  t.true(deadlines.size > 0);
});
