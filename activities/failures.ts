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
import { DatabaseError, Refusal } from '../db/errors.ts';
import { isId } from '../db/ids.ts';
import type { BreakerChange, CallOutcome } from '../db/lookups/sources.ts';
import { spanIdOf, spans, traced } from '../db/traces.ts';
import { wordOf } from './http/client.ts';
import type { RegistryStep } from './person/registry.ts';
import type { Step } from './vendors/vendor.ts';
import type { VerifierStep } from './verification/verifiers/verifier.ts';

/** An activity that is running, for the log of a worker that is killed. */
export interface RunningActivity {
  readonly queue: string;
  readonly activity: string;
  readonly workflow_id: string | undefined;
}

/**
 * Returns the interceptor that turns errors into Temporal failures. Histories store failures as
 * plain text and the UI shows them. An error that we did not write ourselves is therefore reduced
 * to its name, and its stack goes to the log.
 * @param atWork the activities that are running; the interceptor adds and removes its own
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
          throw toFailure(error, log);
        } finally {
          atWork.delete(running);
        }
      }),
  };
}

/**
 * Returns the trace span of an activity attempt. Its parent is the request or the batch that the
 * activity works for, if any.
 */
function spanOf({ workflowExecution, workflowType, activityType, attempt }: Info, input: unknown) {
  const { workflowId = '', runId } = workflowExecution ?? {};
  const { batchId = workflowId, requestId = batchId } = Object(input);
  const name = `${workflowType}: ${activityType}`;
  if (!spans.hasSubscribers || !isId('bat', batchId)) return { name };
  const attributes = { workflow_id: workflowId, run_id: runId, attempt };
  return { name, batchId, parentId: spanIdOf(requestId), attributes };
}

function toFailure(error: unknown, log: Logger): unknown {
  if (error instanceof TemporalFailure || error instanceof CompleteAsyncError) return error;
  if (error instanceof Error && error.name === 'AbortError') {
    return new CancelledFailure('cancelled');
  }
  if (error instanceof DatabaseError) {
    const { message, code, isPermanent: nonRetryable } = error;
    if (nonRetryable) log.error({ err: error }, 'activity failed: PostgreSQL rejected a statement');
    return ApplicationFailure.create({ message, type: `Database.${code}`, nonRetryable });
  }
  if (error instanceof Refusal) {
    // A retry would be refused again.
    return ApplicationFailure.nonRetryable(error.message, `Refusal.${error.code}`);
  }
  const name = error instanceof Error ? error.name : 'unknown';
  log.error({ err: error }, 'activity failed unexpectedly');
  return ApplicationFailure.create({ message: `${name}: see the worker's log`, type: 'Internal' });
}

/** Prevents a tight loop when a source keeps answering "retry now". */
const MIN_WAIT_MS = 100;

/**
 * Returns the failure that an activity throws to be retried later. Waiting for a source is not an
 * error, so the failure is BENIGN: that keeps it out of error logs and metrics.
 * @param afterMs null for the backoff of the activity's options
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
 * @param delayMs null for the backoff of the activity's options
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
 * @param again true if the source was sent the same request before
 */
export function outcomeOf(step: Step | VerifierStep | RegistryStep, again = false): CallOutcome {
  if (step.kind === 'fatal') {
    // A single unreadable record says little about the source. Many in a row open the breaker.
    const kind = step.why === 'protocol' ? 'failed' : 'refused';
    return { kind, why: wordOf(step) };
  }
  if (step.kind !== 'retry') return { kind: 'answered' };
  if (step.why === 'rate_limit') return { kind: 'rate_limit', afterMs: step.afterMs };
  const kind = again ? 'failed_again' : 'failed';
  return { kind, why: wordOf(step) };
}

/**
 * Logs that a breaker opened or closed. PostgreSQL reports the change only to the call that made
 * it.
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
