import { ApplicationFailure } from '@temporalio/common';
import type { LogEntry } from '@temporalio/worker';
import type { Logger } from 'pino';

const LEVELS = {
  TRACE: 'trace',
  DEBUG: 'trace',
  INFO: 'debug',
  WARN: 'warn',
  ERROR: 'error',
} as const;
/**
 * A warning that the SDK logs when a worker without workflows starts. We do not log it, because the
 * worker of the lookups queue has no workflows and only runs activities.
 */
const EXPECTED = 'No workflows registered, not polling for workflow tasks';
/** The number of workflow runs whose facts are kept in memory. */
const MAX_RUNS = 2000;

/** Facts about a workflow run from earlier log lines. */
interface KnownRun {
  readonly ids: object;
  /** The name of the error that failed the run's last workflow task. */
  readonly failed: string | undefined;
}

/**
 * Returns a function that converts log entries of Temporal's SDK to our format. It logs ids, types,
 * and codes, but never the text of an error, which may contain personal data. The native part of
 * the SDK only logs the id of a run. The workflow id and type come from earlier entries about the
 * same run.
 */
export function sdkLog(log: Logger): (entry: LogEntry) => void {
  const runs = new Map<string, KnownRun>();
  return ({ level, message, meta = {} }) => {
    if (message === EXPECTED) return;
    const runId = meta.runId ?? meta.workflowRunId;
    const run = knownRun(meta, runs.get(String(runId)));
    if (runId) {
      const id = String(runId);
      runs.delete(id);
      runs.set(id, run);
      if (runs.size > MAX_RUNS) runs.delete(runs.keys().next().value ?? '');
    }
    const fields: Record<string, unknown> = {
      ...run.ids,
      run_id: runId,
      activity: meta.activityType,
      queue: meta.taskQueue,
    };
    if (meta.error instanceof Error) fields.err = meta.error;
    if (meta.error instanceof ApplicationFailure) {
      fields.failure_type = meta.error.type;
    }
    if (typeof meta.error === 'string') {
      fields.grpc_code = codeIn(meta.error);
    }
    if (meta.failure) {
      fields.failure_type = typeOf(String(meta.failure)) ?? run.failed;
    }
    log[LEVELS[level]](fields, message);
  };
}

/** Combines the facts in a log entry with the facts from earlier entries about the same run. */
function knownRun(
  meta: NonNullable<LogEntry['meta']>,
  before: KnownRun | undefined,
): KnownRun {
  const { error, workflowId, workflowType, activityType } = meta;
  let ids = before?.ids ?? {};
  let failed = before?.failed;
  if (workflowId) {
    ids = { workflow_id: workflowId, workflow_type: workflowType };
  }
  if (error instanceof Error && !activityType) failed = error.name;
  return { ids, failed };
}

/**
 * Extracts the cause of a failed task from a failure in Rust's debug format. If there is no cause,
 * returns the type of the error.
 */
function typeOf(failure: string): string | undefined {
  const cause = /force_cause: (?!Unspecified)(\w+)/.exec(failure);
  const type = /r#type: "([\w.]+)"/.exec(failure);
  return cause?.[1] ?? type?.[1];
}

/**
 * Extracts the gRPC code from an error of the SDK's native part. Its text contains, for example,
 * `code: Unavailable` or `code: 'The service is currently unavailable'`.
 */
function codeIn(text: string): string | undefined {
  return /\b(?:status|code): '?([A-Z][A-Za-z ]+)/.exec(text)?.[1];
}
