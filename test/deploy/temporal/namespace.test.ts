import test from 'ava';
import { pino } from 'pino';
import { keepNamespace, scheduleId } from '../../../deploy/temporal/namespace.ts';
import { WORKFLOWS } from '../../../workflows/messages.ts';
import { type Stack, startStack } from '../../support/stack.ts';

// What every worker does every five minutes.

const INTERVALS = { sweepMs: 60_000, reverifyMs: 3_600_000 };
const log = pino({ level: 'silent' });
let stack: Stack;

test.before(async () => {
  stack = await startStack();
});

test.after.always(async () => {
  await stack?.stop();
});

const keep = () => keepNamespace(stack.client, stack.taskQueue, INTERVALS, log);
const schedule = () => stack.client.schedule.getHandle(scheduleId(WORKFLOWS.reverify, stack.taskQueue));

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
