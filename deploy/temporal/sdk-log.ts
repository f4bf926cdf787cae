import type { LogEntry } from '@temporalio/worker';
import type { Logger } from 'pino';
import { keepLast } from '../../api/http/overload.ts';

const LEVELS = {
  TRACE: 'trace',
  DEBUG: 'trace',
  INFO: 'debug',
  WARN: 'warn',
  ERROR: 'error',
} as const;
/** The worker of the lookups queue runs activities only. The SDK warns of that at each start. */
const EXPECTED = 'No workflows registered, not polling for workflow tasks';
/** The number of runs that a worker keeps in memory. */
const RUNS_AT_MOST = 2000;

/**
 * Returns a function that logs the lines of Temporal's SDK in our format: ids, types and codes,
 * never the text of an error. The SDK's native part logs only the id of a run, so the rest is
 * remembered from earlier lines.
 */
export function sdkLog(log: Logger): (entry: LogEntry) => void {
  const runs = new Map<string, { readonly ids: object; readonly failed?: string | undefined }>();
  return ({ level, message, meta = {} }) => {
    if (message === EXPECTED) return;
    const {
      error,
      failure,
      workflowId,
      workflowType,
      activityType: activity,
      taskQueue: queue,
    } = meta;
    const runId = meta.runId ?? meta.workflowRunId;
    const before = runs.get(String(runId));
    const ids = workflowId
      ? { workflow_id: workflowId, workflow_type: workflowType }
      : (before?.ids ?? {});
    const failed = error instanceof Error && !activity ? error.name : before?.failed;
    if (runId) keepLast(runs, String(runId), { ids, failed }, RUNS_AT_MOST);
    const err = error instanceof Error ? { err: error } : {};
    const failure_type = failure ? (typeOf(String(failure)) ?? failed) : undefined;
    const grpc_code = typeof error === 'string' ? codeIn(error) : undefined;
    log[LEVELS[level]](
      { ...err, ...ids, run_id: runId, activity, queue, failure_type, grpc_code },
      message,
    );
  };
}

/** Returns why a task failed, or else the type of the error, from a failure as Rust prints it. */
function typeOf(failure: string): string | undefined {
  return (
    /force_cause: (?!Unspecified)(\w+)/.exec(failure)?.[1] ??
    /r#type: "([\w.]+)"/.exec(failure)?.[1]
  );
}

/**
 * Returns the gRPC code in an error of the native part: `code: Unavailable`, `code: 'The service is
 * currently unavailable'`.
 */
function codeIn(text: string): string | undefined {
  return /\b(?:status|code): '?([A-Z][A-Za-z ]+)/.exec(text)?.[1];
}
