import { setTimeout } from 'node:timers/promises';
import test from 'ava';
import { countActions } from '../../support/histories.ts';
import { eventually, type SubmitResponse } from '../../support/organization.ts';
import { type Stack, startStack } from '../../support/stack.ts';
import {
  createScriptedVendor,
  foundStep,
  ordinaryNpis,
  person,
} from '../../support/vendors.ts';

// Measures the cost of a submit for Temporal: history events, which limit the load of a cluster,
// and the actions that Temporal Cloud counts. Both include the shares of the batch and of its
// deliveries.

const NPIS = 60;
const first = createScriptedVendor();
const second = createScriptedVendor('second');
const npis = ordinaryNpis('found', 10 * NPIS);
const lines: string[] = [];
const stacks: Stack[] = [];

/**
 * Returns NPIs that this vendor finds. Its responses are spread over two seconds, as in production,
 * so that few coincide.
 */
function foundBy(vendor: typeof first, count = NPIS): string[] {
  const taken = npis.splice(0, count);
  for (const [n, npi] of taken.entries()) {
    vendor.script(npi, async () => {
      await setTimeout(100 + (n % 20) * 100);
      return foundStep(npi);
    });
  }
  return taken;
}

test.before(async () => {
  const vendors = { providers: [first, second], webhookScheduleMs: [0, 500, 500] };
  stacks.push(await startStack(vendors));
  stacks.push(
    await startStack({ ...vendors, registry: { find: async (npi) => person(npi) } }),
  );
});

test.after.always(async () => {
  console.log(['events per NPI'.padEnd(54), '  found', '  bound', 'actions'].join('  '));
  for (const line of lines) console.log(line);
  for (const stack of stacks) await stack.stop();
});

interface Case {
  /** Maximum of events per NPI, including the share of the batch. */
  readonly most: number;
  /** Number of lookups that the submit starts. */
  readonly lookups: number;
  readonly isUnknown?: boolean;
  readonly npis: () => readonly string[];
  /**
   * True if the NPIs were submitted before, so that all results are known when the cost is
   * measured.
   */
  readonly isKnown?: boolean;
  readonly webhook?: { readonly path: string; readonly mode: 'real-time' | 'batch' };
}

const CASES: Readonly<Record<string, Case>> = {
  'found by the first vendor': { most: 22, lookups: NPIS, npis: () => foundBy(first) },
  'found by the first vendor, identified by the registry': {
    most: 29,
    lookups: NPIS,
    isUnknown: true,
    npis: () => foundBy(first),
  },
  'found by the second vendor': { most: 28, lookups: NPIS, npis: () => foundBy(second) },
  'found nowhere': { most: 30, lookups: NPIS, npis: () => npis.splice(0, NPIS) },
  'found, each reported in real time': {
    most: 24,
    lookups: NPIS,
    npis: () => foundBy(first),
    webhook: { path: '/each', mode: 'real-time' },
  },
  'found, reported as a batch': {
    most: 22,
    lookups: NPIS,
    npis: () => foundBy(first),
    webhook: { path: '/batch', mode: 'batch' },
  },
  'found, reported to a receiver that fails twice': {
    most: 23,
    lookups: NPIS,
    npis: () => foundBy(first),
    webhook: { path: '/fail/2/batch', mode: 'batch' },
  },
  'a single NPI, found': { most: 34, lookups: 1, npis: () => foundBy(first, 1) },
  'a single NPI, found and reported': {
    most: 42,
    lookups: 1,
    npis: () => foundBy(first, 1),
    webhook: { path: '/one', mode: 'real-time' },
  },
  'final at submit': {
    most: 8 / NPIS,
    lookups: 0,
    isKnown: true,
    npis: () => foundBy(first),
  },
  'final at submit, each reported in real time': {
    most: 16 / NPIS,
    lookups: 0,
    isKnown: true,
    npis: () => foundBy(first),
    webhook: { path: '/known', mode: 'real-time' },
  },
};

for (const [title, one] of Object.entries(CASES)) {
  test.serial(`the number of Temporal events per NPI is limited: ${title}`, async (t) => {
    const stack = one.isUnknown ? stacks[1] : stacks[0];
    if (!stack) throw new Error('no stack');
    const asked = one.npis();
    const client = await stack.organization();
    if (one.isKnown)
      await client.completed((await client.bulk({ npis: asked })).json.batch_id);
    const { path = '', mode } = one.webhook ?? {};
    const webhook = mode
      ? { webhook: { url: `${stack.receiver.url}${path}`, mode } }
      : {};
    const submitted: SubmitResponse = (await client.bulk({ npis: asked, ...webhook }))
      .json;
    await (await stack.startedWorkflow(submitted.batch_id)).result();
    const { webhook: reported } = await eventually(async () => {
      const envelope = await client.completed(submitted.batch_id);
      return envelope.webhook?.status === 'pending' ? null : envelope;
    });
    if (mode) t.is(reported?.status, 'delivered');

    const ids = await workflowsOf(stack, submitted.batch_id);
    const histories = await Promise.all(
      ids.map((id) => stack.client.workflow.getHandle(id).fetchHistory()),
    );
    const actions =
      histories.reduce((total, history) => total + countActions(history), 0) /
      asked.length;
    const events = histories.reduce(
      (total, history) => total + (history.events?.length ?? 0),
      0,
    );
    const all = events / asked.length;
    const columns = [all.toFixed(2), one.most.toFixed(2), actions.toFixed(2)].map((n) =>
      n.padStart(7),
    );
    lines.push([title.padEnd(54), ...columns].join('  '));
    t.is(ids.filter((id) => id.startsWith('req_')).length, one.lookups);
    t.true(all <= one.most, `${all} events`);
  });
}

/** Returns the workflow ID of the batch, followed by those of its lookups and deliveries. */
async function workflowsOf(stack: Stack, batchId: string): Promise<string[]> {
  const events =
    (await stack.client.workflow.getHandle(batchId).fetchHistory()).events ?? [];
  const children = events.flatMap(
    ({ childWorkflowExecutionStartedEventAttributes: started }) =>
      started?.workflowExecution?.workflowId ?? [],
  );
  for (const id of children) await stack.client.workflow.getHandle(id).result();
  return [batchId, ...children];
}
