import { execFile } from 'node:child_process';
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { WorkflowBundleOption } from '@temporalio/worker';
import test from 'ava';
import { bundleWorkflows } from '../../../deploy/temporal/workers.ts';
import { WORKFLOWS } from '../../../workflows/messages.ts';
import { fresh, testSetting } from '../../support/database.ts';
import {
  divergent,
  parseHistory,
  readHistories,
  type SavedHistory,
  typeOf,
} from '../../support/histories.ts';
import { onceServed } from '../../support/organization.ts';
import { startStack } from '../../support/stack.ts';
import { ordinaryNpis } from '../../support/vendors.ts';

// Tests that replaying the saved histories, or downloaded ones, detects a change of the workflows
// that must not be deployed without a patch. test/workflows/replay.test.ts replays them with the
// current code.

const stack = fresh(test, () => startStack());
let histories: SavedHistory[];

test.before(async () => {
  histories = await readHistories();
});

test('a downloaded history replays with the current workflows, but not with changed ones', async (t) => {
  const client = await stack.organization();
  // A found email is settled by its vendor's activity, without a local step.
  const { json } = await client.bulk({ npis: ordinaryNpis('not_found', 2) });
  await (await stack.startedWorkflow(json.batch_id)).result();
  const ids = [json.batch_id, ...json.requests.map(({ request_id }) => request_id)];
  const cli = testSetting('TEST_TEMPORAL_CLI');
  const address = testSetting('TEST_TEMPORAL_ADDRESS');
  const downloads = await Promise.all(
    ids.map(async (id) => {
      await stack.client.workflow.getHandle(id).result();
      const args = [
        'workflow',
        'show',
        '--workflow-id',
        id,
        '--output',
        'json',
        '--address',
        address,
      ];
      const { stdout } = await onceServed(() =>
        promisify(execFile)(cli, args, { maxBuffer: 64 * 1024 * 1024 }),
      );
      return parseHistory(id, stdout);
    }),
  );
  t.deepEqual(
    await divergent({ codePath: testSetting('TEST_WORKFLOW_BUNDLE') }, downloads),
    [],
  );
  const remote = MUTANTS.find(({ file }) => file === 'options.ts');
  if (!remote) throw new Error('no mutant');
  t.is((await divergent(await mutate(remote), downloads)).length, ids.length);
});

/**
 * A change that must not be deployed without a patch. It replaces one text in one file of the
 * workflows.
 */
interface Mutant {
  readonly title: string;
  readonly file: string;
  readonly from: string;
  readonly to: string;
  /** Returns true for the histories that have to catch the change. */
  readonly caughtBy: (one: SavedHistory) => boolean;
}

const has = (event: string) => (one: SavedHistory) =>
  one.history.events.some(({ eventType }) => eventType === `EVENT_TYPE_${event}`);
const of = (type: string) => (one: SavedHistory) => typeOf(one) === type;
/** Returns false for workflows that never ran. Their histories can't catch anything. */
const hasRun = has('WORKFLOW_TASK_COMPLETED');

/**
 * Returns the IDs of the activities that call a vendor, a verifier, or the registry, such as
 * `rocketreach`, `rocketreach-again`, and `known-first`.
 */
function asked({ history }: SavedHistory): string[] {
  return history.events.flatMap(({ activityTaskScheduledEventAttributes: scheduled }) => {
    const { activityId = '' } = (scheduled ?? {}) as { activityId?: string };
    return /^[a-z]/.test(activityId) ? [activityId] : [];
  });
}

function startedLookups({ history }: SavedHistory): boolean {
  return history.events.some(
    ({ startChildWorkflowExecutionInitiatedEventAttributes: started }) => {
      const { workflowType } = (started ?? {}) as { workflowType?: { name: string } };
      return workflowType?.name === WORKFLOWS.lookup;
    },
  );
}

const MUTANTS: readonly Mutant[] = [
  {
    title: 'an additional step at the beginning',
    file: 'batch.ts',
    from: '  const inbox: News[] = [];',
    to: '  await condition(() => false, 1);\n  const inbox: News[] = [];',
    caughtBy: (one) => hasRun(one) && of(WORKFLOWS.batch)(one),
  },
  {
    title: 'a lookup with another workflow ID',
    file: 'batch.ts',
    from: 'workflowId: requestId,',
    to: "workflowId: 'lookup-' + requestId,",
    caughtBy: startedLookups,
  },
  {
    title: 'local activities that became normal activities',
    file: 'options.ts',
    from: 'export const local = proxyLocalActivities<Activities>({',
    to: 'export const local = proxyActivities<Activities>({',
    caughtBy: has('MARKER_RECORDED'),
  },
  {
    title: 'a missing update of the search attributes',
    file: 'lookup.ts',
    from: "if (status !== 'completed') {",
    to: 'if (status === null) {',
    caughtBy: has('UPSERT_WORKFLOW_SEARCH_ATTRIBUTES'),
  },
  {
    title: 'a refund moved before the vendor calls',
    file: 'lookup.ts',
    from: '  return await settle(request, plan, await callSources(request, plan));',
    to: "  await refundCredits({ ...request, reason: 'x' });\n  return await settle(request, plan, await callSources(request, plan));",
    caughtBy: (one) =>
      of(WORKFLOWS.lookup)(one) &&
      has('ACTIVITY_TASK_COMPLETED')(one) &&
      has('MARKER_RECORDED')(one),
  },
  {
    title: 'vendors in another order',
    file: 'lookup.ts',
    from: 'for (const source of plan.sources) {',
    to: 'for (const source of [...plan.sources].reverse()) {',
    caughtBy: (one) =>
      new Set(asked(one).filter((id) => !/-|registry/.test(id))).size > 1,
  },
  {
    title: 'a missing pause for a greylisted address',
    file: 'lookup.ts',
    from: "  if (result.kind !== 'later' || pauseMs <= 0) return result;",
    to: '  if (pauseMs > 0) return result;',
    caughtBy: (one) => asked(one).some((id) => /-(over|early)$/.test(id)),
  },
  {
    title: 'an upload that never continues as a new run',
    file: 'upload.ts',
    from: 'workflowInfo().continueAsNewSuggested',
    to: 'false',
    caughtBy: has('WORKFLOW_EXECUTION_CONTINUED_AS_NEW'),
  },
  {
    title: 'a source that timed out and counts as one without a result',
    file: 'lookup.ts',
    from: "return { kind: 'unresolved', reason: type.slice(SOURCE.length) };",
    to: "return { kind: 'miss', reason: type.slice(SOURCE.length) };",
    caughtBy: ({ name }) => name === 'lookup-source-timed-out',
  },
  {
    title: 'a lost response that counts as one without a result',
    file: 'messages.ts',
    from: "lost: 'open',",
    to: "lost: 'definitive',",
    caughtBy: ({ name }) => name === 'lookup-response-lost',
  },
];

for (const { title, caughtBy, ...mutant } of MUTANTS) {
  test.serial(`replaying saved histories detects ${title}`, async (t) => {
    const expected = histories.filter(caughtBy).map(({ name }) => name);
    t.true(expected.length > 0, 'there is a history that shows it');
    const caught = new Set(
      (await divergent(await mutate(mutant), histories)).map(
        (line) => line.split(':')[0],
      ),
    );
    t.deepEqual(
      expected.filter((name) => !caught.has(name)),
      [],
    );
  });
}

/**
 * Changes that Temporal doesn't compare: the input of an activity or a child workflow, and its
 * timeouts.
 */
const UNSEEN: readonly Omit<Mutant, 'caughtBy'>[] = [
  {
    title: 'a changed lookup timeout',
    file: 'batch.ts',
    from: 'workflowExecutionTimeout: Math.max(deadline - Date.now(), 0) + GRACE_MS,',
    to: 'workflowExecutionTimeout: 1000,',
  },
];

for (const { title, ...mutant } of UNSEEN) {
  test.serial(`replaying saved histories does not detect ${title}`, async (t) => {
    t.deepEqual(await divergent(await mutate(mutant), histories), []);
  });
}

/**
 * Bundles the workflows with one change. The changed copy stays in the project, where its imports
 * resolve.
 */
async function mutate({
  file,
  from,
  to,
}: Pick<Mutant, 'file' | 'from' | 'to'>): Promise<WorkflowBundleOption> {
  const parent = fileURLToPath(new URL('../../../.local/', import.meta.url));
  await mkdir(parent, { recursive: true });
  const folder = await mkdtemp(join(parent, 'mutant-'));
  try {
    await cp(fileURLToPath(new URL('../../../workflows/', import.meta.url)), folder, {
      recursive: true,
    });
    const path = join(folder, file);
    const text = await readFile(path, 'utf8');
    if (text.split(from).length !== 2) throw new Error(`${file} has no single ${from}`);
    await writeFile(
      path,
      text.replace(from, () => to),
    );
    return await bundleWorkflows(join(folder, 'index.ts'));
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
