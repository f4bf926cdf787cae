import { Context } from '@temporalio/activity';
import test from 'ava';
import { sql } from 'drizzle-orm';
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

const TOTAL = 60;
const vendor = createScriptedVendor();
const stack = fresh(test, () =>
  startStack({ lookupTimeoutMs: 90_000, providers: [vendor] }),
);
const client = fresh(test, () => stack.organization(1000));

const NPIS = ordinaryNpis('found', TOTAL, 700_000);
const [broken = '', late = '', hanging = '', cancelled = '', ...others] = NPIS;
const [suppressed = '', mistyped = '', ...ordinary] = others;

/**
 * Scripts every kind of vendor response except those that pause the vendor or open its breaker,
 * which would decide how the other requests end.
 */
function scriptVendor(): void {
  const hang = () => aborted(Context.current().cancellationSignal);
  vendor.script(broken, () => ({ kind: 'fatal', why: 'protocol', field: 'emails' }));
  vendor.script(late, () => ({ kind: 'pending', jobRef: 'job', pollAfterMs: 90_000 }));
  vendor.script(hanging, hang);
  vendor.script(cancelled, hang);
  for (const npi of ordinary.slice(0, TOTAL / 2))
    vendor.script(npi, () => foundStep(npi));
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
  scriptVendor();
  await stack.db.drizzle.execute(
    sql`insert into suppressions (kind, value, origin) values ('npi', ${suppressed}, 'operator')`,
  );
  const wrongDigit = `${mistyped.slice(0, 9)}${(Number(mistyped[9]) + 1) % 10}`;
  const { json } = await client.bulk({
    npis: NPIS.map((npi) => (npi === mistyped ? wrongDigit : npi)),
  });
  await eventually(async () => vendor.asked(cancelled, 'submit') > 0 || null);
  const request = json.requests.find(({ npi }) => npi === cancelled);
  await stack.client.workflow.getHandle(request?.request_id ?? '').cancel();
  await client.completed(json.batch_id);

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
  t.deepEqual(
    [...deadlines.keys()],
    json.requests.filter(({ npi }) => npi === hanging).map((one) => one.request_id),
  );
  t.deepEqual([...new Set(expected.values())].sort(), [
    'failed: cancelled',
    'failed: deadline',
    'failed: pending',
    'failed: protocol: emails',
    'not_found: check_digit',
    'not_found: nobody',
    'not_found: suppressed',
  ]);
});
