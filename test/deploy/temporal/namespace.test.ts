import test from 'ava';
import { pino } from 'pino';
import { keepNamespace, reverifyScheduleId } from '../../../deploy/temporal/namespace.ts';
import { WORKFLOWS } from '../../../workflows/messages.ts';
import { fresh } from '../../support/database.ts';
import { startStack } from '../../support/stack.ts';

// What every worker does every five minutes.

const log = pino({ level: 'silent' });
const stack = fresh(test, () => startStack());

const keep = () => keepNamespace(stack.client, stack.taskQueue, 3_600_000, log);
const schedule = () => stack.client.schedule.getHandle(reverifyScheduleId(stack.taskQueue));

test.serial('a Schedule that was deleted comes back', async (t) => {
  await schedule().delete();
  await t.throwsAsync(schedule().describe());
  await keep();
  t.is((await schedule().describe()).action.workflowType, WORKFLOWS.reverify);
});

test.serial('a Schedule that an operator has paused stays paused', async (t) => {
  await schedule().pause('a test');
  await keep();
  t.like((await schedule().describe()).state, { paused: true, note: 'a test' });
});
