import { fileURLToPath } from 'node:url';
import {
  bundleWorkflowCode,
  DefaultLogger,
  Runtime,
  Worker,
  type WorkflowBundleOption,
} from '@temporalio/worker';
import test from 'ava';
import { WORKFLOWS } from '../../workflows/messages.ts';
import { testSetting } from '../support/database.ts';
import { readHistories, type SavedHistory } from '../support/histories.ts';

// Workflows that are running when a new version is deployed are replayed by it: it must decide as the old one did.
// The histories are recorded by test/support/record-histories.ts, which says when to record anew.

const silent = new DefaultLogger('ERROR', () => {});
let histories: SavedHistory[];

test.before(async () => {
  Runtime.install({
    logger: silent,
    telemetryOptions: { logging: { filter: { core: 'ERROR', other: 'ERROR' }, forward: {} } },
  });
  histories = await readHistories();
});

/** The names of the histories that these workflows would not go through in the same way. */
async function divergent(workflowBundle: WorkflowBundleOption): Promise<string[]> {
  const found: string[] = [];
  const names = histories.map(({ name }) => name);
  let index = 0;
  for await (const { error } of Worker.runReplayHistories({ workflowBundle }, histories)) {
    if (error) found.push(`${names[index]}: ${error.name}`);
    index += 1;
  }
  if (index !== histories.length) throw new Error(`${index} of ${histories.length} histories were replayed`);
  return found;
}

function typeOf({ history }: SavedHistory): string {
  const { workflowExecutionStartedEventAttributes: started } = history.events[0] ?? {};
  return (started as { workflowType?: { name?: string } } | undefined)?.workflowType?.name ?? '';
}

test('there are histories of every workflow and outcome', (t) => {
  t.true(histories.length >= 20);
  t.deepEqual([...new Set(histories.map(typeOf))].sort(), Object.values(WORKFLOWS).sort());
  const ends = histories.map((one) => `${typeOf(one)} ${String(one.history.events.at(-1)?.eventType)}`);
  t.deepEqual([...new Set(ends)].map((end) => end.replace('EVENT_TYPE_WORKFLOW_EXECUTION_', '')).sort(), [
    'deliverAgain COMPLETED',
    'enrichBatch CANCELED',
    'enrichBatch COMPLETED',
    'enrichBatch TERMINATED',
    'lookUpEmail CANCELED',
    'lookUpEmail COMPLETED',
    'lookUpEmail TERMINATED',
    'reverify COMPLETED',
    'sweep COMPLETED',
  ]);
});

test('every saved history replays', async (t) => {
  t.deepEqual(await divergent({ codePath: testSetting('TEST_WORKFLOW_BUNDLE') }), []);
});

test('a workflow that was changed without a patch is caught by every history', async (t) => {
  const workflowsPath = fileURLToPath(new URL('../support/broken-workflows.ts', import.meta.url));
  const broken = await bundleWorkflowCode({ workflowsPath, logger: silent });
  t.deepEqual(
    await divergent(broken),
    histories.map(({ name }) => `${name}: DeterminismViolationError`),
  );
});

test('a lookup under another workflow id is caught by every history of a batch that started one', async (t) => {
  const workflowsPath = fileURLToPath(new URL('../../workflows/index.ts', import.meta.url));
  const interceptors = fileURLToPath(new URL('../support/broken-interceptors.ts', import.meta.url));
  const broken = await bundleWorkflowCode({
    workflowsPath,
    workflowInterceptorModules: [interceptors],
    logger: silent,
  });
  const started = histories.filter(({ history }) =>
    history.events.some(
      ({ eventType }) => eventType === 'EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED',
    ),
  );
  t.true(started.length >= 5);
  t.deepEqual(
    await divergent(broken),
    started.map(({ name }) => `${name}: DeterminismViolationError`),
  );
});
