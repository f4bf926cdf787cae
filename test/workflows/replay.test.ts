import test from 'ava';
import { WORKFLOWS } from '../../workflows/messages.ts';
import { testSetting } from '../support/database.ts';
import {
  divergent,
  readHistories,
  type SavedHistory,
  typeOf,
} from '../support/histories.ts';

// Tests that the code can replay recorded workflows. A new version replays the workflows that are
// running when it is deployed, and must decide as the old version did.
// test/support/record-histories.ts records the histories and says when to record them again.
// test/system/workflows/divergence.test.ts tests that a replay detects changes.

let histories: SavedHistory[];

test.before(async () => {
  histories = await readHistories();
});

test('the saved histories cover every workflow and every way that it can end', (t) => {
  t.true(histories.length >= 20);
  t.deepEqual(
    [...new Set(histories.map(typeOf))].sort(),
    Object.values(WORKFLOWS).sort(),
  );
  const ends = histories.map(
    (one) => `${typeOf(one)} ${String(one.history.events.at(-1)?.eventType)}`,
  );
  t.deepEqual(
    [...new Set(ends)]
      .map((end) => end.replace('EVENT_TYPE_WORKFLOW_EXECUTION_', ''))
      .sort(),
    [
      'deliver COMPLETED',
      'enrichBatch CANCELED',
      'enrichBatch COMPLETED',
      'enrichBatch TERMINATED',
      'lookUpEmail CANCELED',
      'lookUpEmail COMPLETED',
      'lookUpEmail TERMINATED',
      'reverify COMPLETED',
      'sendTestEvent COMPLETED',
      'submitUpload CANCELED',
      'submitUpload COMPLETED',
      'submitUpload CONTINUED_AS_NEW',
    ],
  );
});

test('every saved history replays with the current workflow code', async (t) => {
  t.deepEqual(
    await divergent({ codePath: testSetting('TEST_WORKFLOW_BUNDLE') }, histories),
    [],
  );
});
