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
const MAX_RUNS = 2000;

/** Facts about a run from earlier log lines. */
interface KnownRun {
  readonly ids: object;
  /** The name of the error that failed its last workflow task. */
  readonly failed: string | undefined;
}

/**
 * Returns a function that logs the lines of Temporal's SDK in our format: ids, types and codes,
 * never the text of an error. The SDK's native part logs only the id of a run, so the rest is
 * remembered from earlier lines.
 */
export function sdkLog(log: Logger): (entry: LogEntry) => void {
  const runs = new Map<string, KnownRun>();
  return ({ level, message, meta = {} }) => {
    if (message === EXPECTED) return;
    const runId = meta.runId ?? meta.workflowRunId;
    const run = knownRun(meta, runs.get(String(runId)));
    if (runId) keepLast(runs, String(runId), run, MAX_RUNS);
    const fields: Record<string, unknown> = {
      ...run.ids,
      run_id: runId,
      activity: meta.activityType,
      queue: meta.taskQueue,
    };
    if (meta.error instanceof Error) fields.err = meta.error;
    if (typeof meta.error === 'string') fields.grpc_code = codeIn(meta.error);
    if (meta.failure) fields.failure_type = typeOf(String(meta.failure)) ?? run.failed;
    log[LEVELS[level]](fields, message);
  };
}

/** Adds the facts of a log line to those of earlier lines. */
function knownRun(meta: NonNullable<LogEntry['meta']>, before: KnownRun | undefined): KnownRun {
  const { error, workflowId, workflowType, activityType } = meta;
  let ids = before?.ids ?? {};
  let failed = before?.failed;
  if (workflowId) ids = { workflow_id: workflowId, workflow_type: workflowType };
  if (error instanceof Error && !activityType) failed = error.name;
  return { ids, failed };
}

/** Returns why a task failed, or else the type of the error, from a failure as Rust prints it. */
function typeOf(failure: string): string | undefined {
  const cause = /force_cause: (?!Unspecified)(\w+)/.exec(failure);
  const type = /r#type: "([\w.]+)"/.exec(failure);
  return cause?.[1] ?? type?.[1];
}

/**
 * Returns the gRPC code in an error of the native part: `code: Unavailable`, `code: 'The service is
 * currently unavailable'`.
 */
function codeIn(text: string): string | undefined {
  return /\b(?:status|code): '?([A-Z][A-Za-z ]+)/.exec(text)?.[1];
}
