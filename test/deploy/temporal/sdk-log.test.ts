import { ApplicationFailure } from '@temporalio/common';
import type { LogEntry } from '@temporalio/worker';
import test from 'ava';
import { createLog } from '../../../deploy/log.ts';
import { sdkLog } from '../../../deploy/temporal/sdk-log.ts';

// Uses lines of Temporal's SDK 1.24 about a batch whose workflow has a bug. Our log must not
// contain the text of its error.

const RUN = { runId: '01a204e2-a2f0-70e2-8fdd-cdbb4074a619' };
const CANARY = 'canary@example.com';
const BEGUN = {
  ...{ sdkComponent: 'worker', taskQueue: 'enrichment', namespace: 'default', ...RUN },
  ...{ workflowId: 'bat_01m82e58fje00are10fgh1efg4', workflowType: 'enrichBatch' },
};
const CORE = { sdkComponent: 'core', target: 'temporalio_sdk_core::worker::workflow' };
const failed = (more: string, cause = 'Unspecified') =>
  `Failure { failure: Some(Failure { message: "${CANARY}", source: "TypeScriptSDK", stack_trace: "", encoded_attributes: None, cause: None, failure_info: ${more} }), force_cause: ${cause} }`;

function written(...entries: readonly (readonly [LogEntry['level'], string, object])[]) {
  const lines: string[] = [];
  const write = sdkLog(createLog('test', 'trace', { write: (line) => lines.push(line) }));
  for (const [level, message, meta] of entries)
    write({ level, message, meta: { ...meta }, timestampNanos: 0n });
  return {
    last: JSON.parse(lines.at(-1) ?? '') as Record<string, unknown>,
    text: lines.join(''),
  };
}

const IDS = {
  workflow_id: BEGUN.workflowId,
  workflow_type: 'enrichBatch',
  run_id: RUN.runId,
};
const TASK = 'Failing workflow task';

test('a failed workflow task is logged with workflow, run, and type of the failure', (t) => {
  const error = new TypeError(CANARY);
  const { last, text } = written(
    ['DEBUG', 'Workflow started', BEGUN],
    ['WARN', 'Workflow failed', { ...BEGUN, error }],
    ['WARN', TASK, { ...CORE, ...RUN, failure: failed('None') }],
  );
  t.like(last, { ...IDS, level: 40, msg: TASK, failure_type: 'TypeError' });
  t.false(text.includes(CANARY));
});

test('a failed workflow task is logged with the failure type that Temporal reports', (t) => {
  const info =
    'Some(ApplicationFailureInfo(ApplicationFailureInfo { r#type: "Refusal.batch_missing" }))';
  const begun = ['DEBUG', 'Workflow started', BEGUN] as const;
  const ofType = (failure: string) =>
    written(begun, ['WARN', TASK, { ...CORE, ...RUN, failure }]).last.failure_type;
  t.is(ofType(failed(info)), 'Refusal.batch_missing');
  t.is(ofType(failed('None', 'NonDeterministicError')), 'NonDeterministicError');
});

test('a failed activity is logged with the type of its failure', (t) => {
  const error = ApplicationFailure.create({ message: CANARY, type: 'Database.53300' });
  const about = { ...BEGUN, activityType: 'askVendor', error };
  const { last, text } = written(['WARN', 'Activity failed', about]);
  t.like(last, { activity: 'askVendor', failure_type: 'Database.53300' });
  t.false(text.includes(CANARY));
});

test('a connection error of the Temporal SDK is logged with its gRPC code', (t) => {
  const about = { ...CORE, ...RUN };
  const of = (error: string) =>
    written(['WARN', 'Error while completing workflow activation', { ...about, error }])
      .last.grpc_code;
  t.is(
    of(`code: 'The service is currently unavailable', message: "${CANARY}"`),
    'The service is currently unavailable',
  );
  t.is(
    of(`Status { code: ResourceExhausted, message: "${CANARY}" }`),
    'ResourceExhausted',
  );
});

test('a log line about an activity contains the ids of its workflow', (t) => {
  const { workflowId, workflowType } = BEGUN;
  const meta = {
    workflowId,
    workflowType,
    workflowRunId: RUN.runId,
    activityType: 'askVendor',
    error: new Error(CANARY),
  };
  const { last, text } = written(['WARN', 'Activity failed', meta]);
  t.like(last, { ...IDS, activity: 'askVendor', err: { type: 'Error' } });
  t.false(text.includes(CANARY));
});

test("the SDK's warning that the lookups queue has no workflows is not logged", (t) => {
  const { text } = written(
    [
      'WARN',
      'No workflows registered, not polling for workflow tasks',
      { taskQueue: 'lookups' },
    ],
    ['WARN', TASK, CORE],
  );
  t.notRegex(text, /No workflows registered/);
});
