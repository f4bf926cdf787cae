import { setTimeout } from 'node:timers/promises';
import test from 'ava';
import { countActions, countEvents } from '../support/histories.ts';
import { eventually, type SubmitAnswer } from '../support/organization.ts';
import { type Stack, startStack } from '../support/stack.ts';
import { createScriptedVendor, foundStep, ordinaryNpis, person } from '../support/vendors.ts';

// What a submit costs Temporal, in history events (the figure that limits how much one cluster carries), and what
// Temporal Cloud counts of it, in actions. The share of
// the batch is included, and the workflows of deliveries. How many signals share one workflow task of the batch depends
// on how busy the machine is: on a quiet one these tasks are 1 to 2 events per NPI, on the busiest 6. So what is bounded
// is the rest; the whole is printed beside its target on a quiet machine.

const NPIS = 60;
const first = createScriptedVendor();
const second = createScriptedVendor('second');
const npis = ordinaryNpis('found', 10 * NPIS);
const lines: string[] = [];
const stacks: Stack[] = [];

/** NPIs that one of the vendors finds. Its answers are spread over two seconds, as real ones are: few meet. */
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
  stacks.push(await startStack({ ...vendors, registry: { find: async (npi) => person(npi) } }));
});

test.after.always(async () => {
  console.log(
    ['events per NPI'.padEnd(44), 'target', 'found', 'without tasks', 'bound', 'actions'].join('  '),
  );
  for (const line of lines) console.log(line);
  for (const stack of stacks) await stack.stop();
});

interface Case {
  /** Events per NPI on a quiet machine. */
  readonly target: number;
  /** The same without the batch's workflow tasks. */
  readonly bound: number;
  /** With them, however busy the machine is: the registry's pace lets few ends of lookups meet. */
  readonly most?: number;
  /** Lookups that have a workflow of their own. */
  readonly children: number;
  readonly isUnknown?: boolean;
  readonly npis: () => readonly string[];
  /** Submitted before, so that everything is known when it is measured. */
  readonly known?: boolean;
  readonly webhook?: { readonly path: string; readonly mode: 'real-time' | 'batch' };
}

const CASES: Readonly<Record<string, Case>> = {
  'found by the first vendor': { target: 19, bound: 15.2, children: NPIS, npis: () => foundBy(first) },
  'found by the first vendor, the registry says who': {
    ...{ target: 22, bound: 15.6, most: 22, children: NPIS },
    isUnknown: true,
    npis: () => foundBy(first),
  },
  'found by the second vendor': { target: 25, bound: 21.2, children: NPIS, npis: () => foundBy(second) },
  'found nowhere': { target: 27, bound: 23.2, children: NPIS, npis: () => npis.splice(0, NPIS) },
  'found, each reported in real time': {
    ...{ target: 25, bound: 19.2, children: NPIS },
    npis: () => foundBy(first),
    webhook: { path: '/each', mode: 'real-time' },
  },
  'found, reported as a batch': {
    ...{ target: 19, bound: 15.3, children: NPIS },
    npis: () => foundBy(first),
    webhook: { path: '/batch', mode: 'batch' },
  },
  'found, reported to a receiver that fails twice': {
    ...{ target: 20, bound: 15.7, children: NPIS },
    npis: () => foundBy(first),
    webhook: { path: '/fail/2/batch', mode: 'batch' },
  },
  'one alone, found': { target: 25, bound: 9, children: 0, npis: () => foundBy(first, 1) },
  'one alone, found, the registry says who': {
    ...{ target: 26, bound: 12, children: 0 },
    isUnknown: true,
    npis: () => foundBy(first, 1),
  },
  'one alone, found, reported': {
    ...{ target: 26, bound: 12, children: 0 },
    npis: () => foundBy(first, 1),
    webhook: { path: '/one', mode: 'real-time' },
  },
  'final at submit, each reported in real time': {
    ...{ target: 0.3, bound: 0.2, children: 0, known: true },
    npis: () => foundBy(first),
    webhook: { path: '/known', mode: 'real-time' },
  },
};

for (const [title, one] of Object.entries(CASES)) {
  test.serial(`what a lookup costs in events: ${title}`, async (t) => {
    const stack = one.isUnknown ? stacks[1] : stacks[0];
    if (!stack) throw new Error('no stack');
    const asked = one.npis();
    const client = await stack.organization();
    if (one.known) await client.completed((await client.bulk({ npis: asked })).json.batch_id);
    const { path = '', mode } = one.webhook ?? {};
    const webhook = mode ? { webhook: { url: `${stack.receiver.url}${path}`, mode } } : {};
    const submitted: SubmitAnswer = (await client.bulk({ npis: asked, ...webhook })).json;
    await stack.client.workflow.getHandle(submitted.batch_id).result();
    const { webhook: reported } = await eventually(async () => {
      const envelope = await client.completed(submitted.batch_id);
      return envelope.webhook?.status === 'pending' ? null : envelope;
    });
    if (mode) t.is(reported?.status, 'delivered');

    const ids = await workflowsOf(stack, submitted.batch_id);
    const histories = await Promise.all(ids.map((id) => stack.client.workflow.getHandle(id).fetchHistory()));
    const counts = histories.map(countEvents);
    const actions = histories.reduce((total, history) => total + countActions(history), 0) / asked.length;
    const isTask = (event: string) => event.startsWith('WorkflowTask');
    const sum = (count: Readonly<Record<string, number>> = {}, keep = (_event: string) => true) =>
      Object.entries(count).reduce((total, [event, n]) => (keep(event) ? total + n : total), 0);
    const all = counts.reduce((total, count) => total + sum(count), 0) / asked.length;
    const bounded = all - sum(counts[0], isTask) / asked.length;
    const columns = [one.target, all.toFixed(1), bounded.toFixed(2), one.bound, actions.toFixed(2)].map((n) =>
      String(n).padStart(6),
    );
    lines.push([title.padEnd(50), ...columns].join('  '));
    t.is(ids.filter((id) => id.startsWith('req_')).length, one.children);
    t.true(all <= (one.most ?? all), `${all} events`);
    t.true(bounded <= one.bound, `${bounded} events without the batch's workflow tasks`);
  });
}

test.serial('what is final at submit and has no webhook costs nothing: it has no workflow', async (t) => {
  const [stack] = stacks;
  if (!stack) throw new Error('no stack');
  const client = await stack.organization();
  const asked = foundBy(first, 1);
  await client.completed((await client.bulk({ npis: asked })).json.batch_id);
  const { batch_id, status }: SubmitAnswer = (await client.bulk({ npis: asked })).json;
  t.is(status, 'completed');
  await t.throwsAsync(stack.client.workflow.getHandle(batch_id).describe(), {
    name: 'WorkflowNotFoundError',
  });
});

/** The batch first, then its lookups and deliveries. */
async function workflowsOf(stack: Stack, batchId: string): Promise<string[]> {
  const events = (await stack.client.workflow.getHandle(batchId).fetchHistory()).events ?? [];
  const children = events.flatMap(
    ({ childWorkflowExecutionStartedEventAttributes: started }) =>
      started?.workflowExecution?.workflowId ?? [],
  );
  for (const id of children) await stack.client.workflow.getHandle(id).result();
  return [batchId, ...children];
}
