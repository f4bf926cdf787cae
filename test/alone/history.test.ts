import test from 'ava';
import { fresh } from '../support/database.ts';
import { countEvents } from '../support/histories.ts';
import { startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// What a submit costs Temporal: the figure that limits how much one cluster carries.

const NPIS = 60;
/**
 * Without the batch's workflow tasks: how many signals share one depends on how busy the machine is. On a quiet one they
 * are 1 to 2 more events per NPI, on the busiest 6, if each signal and each child's end have a task of their own.
 */
const EVENTS_AT_MOST = 17.2;

// Speed 1: with look-ups of 0.2 to 2.2 s, as spread as real ones, few of their signals meet in one workflow task.
const stack = fresh(test, () => startStack({ simulatorSpeed: 1 }));

test("a found NPI costs 17 history events, and its share of the batch's workflow tasks", async (t) => {
  const client = await stack.organization(NPIS);
  const { json } = await client.bulk({ npis: ordinaryNpis('found', NPIS) });
  const envelope = await client.completed(json.batch_id);
  t.is(envelope.data.filter(({ status }) => status === 'completed').length, NPIS);

  const batch = stack.client.workflow.getHandle(json.batch_id);
  await batch.result();
  const lookups = json.requests.map(({ request_id }) => stack.client.workflow.getHandle(request_id));
  await Promise.all(lookups.map((lookup) => lookup.result()));

  const descriptions = await Promise.all([batch, ...lookups].map((handle) => handle.describe()));
  const [ofBatch = 0, ...ofLookups] = descriptions.map(({ historyLength }) => historyLength);
  const sum = (numbers: readonly number[]) => numbers.reduce((total, number) => total + number, 0);
  const transitions = sum(
    descriptions.map(({ raw }) => Number(raw.workflowExecutionInfo?.stateTransitionCount ?? 0)),
  );
  const perNpi = (sum(ofLookups) + ofBatch) / NPIS;
  t.log(
    `per found NPI: ${perNpi.toFixed(1)} events (look-up ${(sum(ofLookups) / NPIS).toFixed(1)}, ` +
      `batch ${(ofBatch / NPIS).toFixed(1)}), ${(transitions / NPIS).toFixed(1)} state transitions`,
  );
  const events = countEvents(await batch.fetchHistory());
  t.log('batch:', events);
  t.true((events.WorkflowExecutionSignaled ?? 0) > 0, 'look-ups signal their progress');
  const tasks = sum(
    Object.entries(events).map(([type, count]) => (type.startsWith('WorkflowTask') ? count : 0)),
  );
  t.true(perNpi - tasks / NPIS <= EVENTS_AT_MOST);
});
