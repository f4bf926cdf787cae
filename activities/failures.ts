import { CompleteAsyncError, type Info } from '@temporalio/activity';
import {
  ApplicationFailure,
  ApplicationFailureCategory,
  type ApplicationFailureOptions,
  CancelledFailure,
  TemporalFailure,
} from '@temporalio/common';
import type { ActivityInboundCallsInterceptor } from '@temporalio/worker';
import type { Logger } from 'pino';
import { DatabaseError, Refusal, type RefusalCode } from '../db/connection/errors.ts';
import { isId } from '../db/connection/ids.ts';
import { spanIdOf, spans, traced } from '../db/connection/traces.ts';
import type { BreakerChange, CallOutcome } from '../db/lookups/sources.ts';
import { count } from '../db/operations/metrics.ts';
import { wordOf } from './http/client.ts';
import type { RegistryStep } from './person/registry.ts';
import type { Step } from './vendors/vendor.ts';
import type { VerifierStep } from './verification/verifiers/verifier.ts';

/**
 * A running activity. If a worker is killed during its shutdown, it logs these fields of each
 * activity that it interrupts.
 */
export interface RunningActivity {
  readonly queue: string;
  readonly activity: string;
  readonly workflow_id: string | undefined;
}

/**
 * Returns the interceptor that turns errors into Temporal failures. Temporal stores failures as
 * plain text, and its UI shows them. The message of an unexpected error may contain personal data,
 * so the failure only has the error's name. The log has the rest.
 * @param atWork the set of the worker's running activities. The interceptor adds its activity, and
 * removes it when the activity ends
 */
export function failureInterceptor(
  log: Logger,
  info: Info,
  atWork: Set<RunningActivity>,
): ActivityInboundCallsInterceptor {
  const { taskQueue, activityType, workflowExecution } = info;
  const running = {
    queue: taskQueue,
    activity: activityType,
    workflow_id: workflowExecution?.workflowId,
  };
  return {
    execute: (input, next) =>
      traced(spanOf(info, input.args[0]), async () => {
        atWork.add(running);
        try {
          return await next(input);
        } catch (error) {
          if (error instanceof Refusal) reportLoss(error.code, info, log);
          throw toFailure(error, log);
        } finally {
          atWork.delete(running);
        }
      }),
  };
}

/**
 * Returns the trace span of one attempt of an activity. If the activity works for a request or a
 * batch, the span of the request or batch is its parent.
 */
function spanOf(
  { workflowExecution, workflowType, activityType, attempt }: Info,
  input: unknown,
) {
  const { workflowId = '', runId } = workflowExecution ?? {};
  const { batchId = workflowId, requestId = batchId } = Object(input);
  const name = `${workflowType}: ${activityType}`;
  if (!spans.hasSubscribers || !isId('bat', batchId)) return { name };
  const attributes = { workflow_id: workflowId, run_id: runId, attempt };
  return { name, batchId, parentId: spanIdOf(requestId), attributes };
}

/**
 * Work that PostgreSQL does not know, although it was committed before its workflow started. So
 * PostgreSQL has lost changes.
 */
const LOST: Partial<Record<RefusalCode, string>> = {
  batch_missing: 'batch',
  request_missing: 'request',
  delivery_missing: 'delivery',
};

/** Counts and logs an activity whose batch, request, or delivery is lost. */
function reportLoss(code: RefusalCode, info: Info, log: Logger): void {
  const what = LOST[code];
  if (what === undefined) return;
  // Empty for an activity that runs inside the workflow task.
  const organization_id = info.priority?.fairnessKey || undefined;
  logLoss(log, { what, activity: info.activityType, organization_id });
}

/** Counts and logs work that PostgreSQL has lost. */
export function logLoss(
  log: Logger,
  lost: Readonly<Record<string, string | undefined>> & { readonly what: string },
): void {
  count('npe_lost_work_total', { what: lost.what });
  log.error(
    lost,
    'PostgreSQL has lost work that Temporal knows; see deploy/runbooks/postgresql-restored.md',
  );
}

function toFailure(error: unknown, log: Logger): unknown {
  if (error instanceof TemporalFailure || error instanceof CompleteAsyncError) {
    return error;
  }
  if (error instanceof Error && error.name === 'AbortError') {
    return new CancelledFailure('cancelled');
  }
  if (error instanceof DatabaseError) {
    const { message, code, isPermanent: nonRetryable } = error;
    if (nonRetryable) {
      log.error({ err: error }, 'activity failed: PostgreSQL rejected a statement');
    }
    return ApplicationFailure.create({ message, type: `Database.${code}`, nonRetryable });
  }
  if (error instanceof Refusal) {
    // A retry would be refused for the same reason.
    return ApplicationFailure.nonRetryable(error.message, `Refusal.${error.code}`);
  }
  const name = error instanceof Error ? error.name : 'unknown';
  log.error({ err: error }, 'activity failed unexpectedly');
  return ApplicationFailure.create({
    message: `${name}: see the worker's log`,
    type: 'Internal',
  });
}

/**
 * The shortest delay before a retry. It prevents a tight loop if a source keeps responding "retry
 * now".
 */
const MIN_WAIT_MS = 100;

/**
 * Returns the failure that an activity throws to be retried later. Waiting for a source is not an
 * error, so the failure has the category BENIGN, which keeps it out of error logs and metrics.
 * @param afterMs the delay before the retry, or null for the delay of the activity's retry policy
 */
export function retryLater(
  source: string,
  why: string,
  afterMs: number | null,
): ApplicationFailure {
  const delayMs = afterMs === null ? null : Math.max(afterMs, MIN_WAIT_MS);
  return benignFailure(`${source}: ${why}`, `Source.${why}`, delayMs);
}

/**
 * Returns a retryable failure that is not logged or counted as an error.
 * @param delayMs the delay before the retry, or null for the delay of the activity's retry policy
 */
export function benignFailure(
  message: string,
  type: string,
  delayMs: number | null,
): ApplicationFailure {
  const category = ApplicationFailureCategory.BENIGN;
  const options: ApplicationFailureOptions = { message, type, category };
  if (delayMs !== null) options.nextRetryDelay = delayMs;
  return ApplicationFailure.create(options);
}

/**
 * Returns the outcome of a call for the circuit breaker of a vendor, a verifier, or the registry.
 * @param again true if the same request was sent to the source before
 */
export function outcomeOf(
  step: Step | VerifierStep | RegistryStep,
  again = false,
): CallOutcome {
  if (step.kind === 'fatal') {
    // One unreadable response does not mean that the source is down, so it counts as an ordinary
    // failure. Many in a row open the breaker.
    const kind = step.why === 'protocol' ? 'failed' : 'refused';
    return { kind, why: wordOf(step) };
  }
  if (step.kind !== 'retry') return { kind: 'responded' };
  if (step.why === 'rate_limit') {
    return { kind: 'rate_limit', afterMs: step.afterMs };
  }
  const kind = again ? 'failed_again' : 'failed';
  return { kind, why: wordOf(step) };
}

/**
 * Logs that a breaker opened or closed. The state is in PostgreSQL, which reports a change only to
 * the call that caused it, so each change is logged once.
 */
export function logBreaker(
  log: Logger,
  source: string,
  change: BreakerChange | null,
  outcome: CallOutcome,
): void {
  if (change === 'closed') {
    log.info({ source, breaker: 'closed' }, 'breaker closed: the source responds');
  }
  if (change === 'opened') {
    const why = 'why' in outcome ? outcome.why : null;
    const fields = { source, breaker: 'open', why };
    log.warn(fields, 'breaker opened: the source is only called for trials');
  }
}
