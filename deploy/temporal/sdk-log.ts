import type { LogEntry } from '@temporalio/worker';
import type { Logger } from 'pino';
import { keepLast } from '../../api/http/overload.ts';

const LEVELS = { TRACE: 'trace', DEBUG: 'trace', INFO: 'debug', WARN: 'warn', ERROR: 'error' } as const;
/** As many as a worker has in memory. */
const RUNS_AT_MOST = 2000;

/** What is known of a run by the lines about it. */
type Run = {
  readonly workflow_id?: unknown;
  readonly workflow_type?: unknown;
  readonly failure_type?: unknown;
};

/**
 * Makes lines of ours from what Temporal's SDK logs: ids, types and codes, never the text of an error. Its native part
 * says of a run nothing but its id: the rest is remembered from the lines before.
 */
export function sdkLog(log: Logger): (entry: LogEntry) => void {
  const runs = new Map<string, Run>();
  return ({ level, message, meta = {} }) => {
    const { error, failure, workflowType, activityType: activity, taskQueue: queue } = meta;
    const run = {
      ...(typeof meta.workflowId === 'string' && { workflow_id: meta.workflowId }),
      ...(workflowType && { workflow_type: workflowType }),
      ...(error instanceof Error && !activity && { failure_type: error.name }),
    };
    const [runId] = [meta.runId, meta.workflowRunId].filter((id) => typeof id === 'string');
    const known = { ...(runId && runs.get(runId)), ...run };
    if (runId) keepLast(runs, runId, known, RUNS_AT_MOST);
    const { failure_type: last, ...ids } = known;
    log[LEVELS[level]](
      {
        ...(error instanceof Error && { err: error }),
        ...ids,
        run_id: runId,
        activity,
        queue,
        ...(failure !== undefined && { failure_type: typeOf(String(failure)) ?? last }),
        grpc_code: codeIn(String(error ?? failure ?? '')),
      },
      message,
    );
  };
}

/** Of a failure as Rust prints it: why the task failed, else the type of the error. */
function typeOf(failure: string): string | undefined {
  const cause = /force_cause: (\w+)/.exec(failure)?.[1];
  return cause && cause !== 'Unspecified' ? cause : /r#type: "([\w.]+)"/.exec(failure)?.[1];
}

/** The code of gRPC in an error of the native part: `status: Unavailable`, `code: 'The service is currently unavailable'`. */
function codeIn(text: string): string | undefined {
  return /\b(?:status|code): '?([A-Z][A-Za-z ]+)/.exec(text)?.[1];
}
