import { CompleteAsyncError, type Info } from '@temporalio/activity';
import {
  ApplicationFailure,
  ApplicationFailureCategory,
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

/** What a worker that is ended by force leaves behind. */
export interface RunningActivity {
  readonly queue: string;
  readonly activity: string;
  readonly workflow_id: string | undefined;
}

/**
 * The one place where errors become Temporal failures. Failures are stored in histories as plain
 * text and shown in the UI, so an error we did not write ourselves is reduced to its name; the log
 * has its stack.
 * @param atWork what runs is in it
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
 * An attempt of an activity, below the request or else the batch that it works for, if it works for
 * one.
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
  if (error instanceof Error && error.name === 'AbortError')
    return new CancelledFailure('cancelled');
  if (error instanceof DatabaseError) {
    const { message, code, isPermanent: nonRetryable } = error;
    if (nonRetryable) log.error({ err: error }, 'activity failed: PostgreSQL refused it');
    return ApplicationFailure.create({ message, type: `Database.${code}`, nonRetryable });
  }
  if (error instanceof Refusal) {
    // Asked again it would be refused again.
    return ApplicationFailure.nonRetryable(error.message, `Refusal.${error.code}`);
  }
  const name = error instanceof Error ? error.name : 'unknown';
  log.error({ err: error }, 'activity failed unexpectedly');
  return ApplicationFailure.create({ message: `${name}: see the worker's log`, type: 'Internal' });
}

/** A source that says "at once" again and again is not asked in a loop. */
const MIN_WAIT_MS = 100;

/**
 * What an activity throws to be tried again: waiting for a source is no fault, and BENIGN keeps it
 * out of error logs and metrics.
 * @param afterMs null for the backoff of the activity's options
 */
export function retryLater(
  source: string,
  why: string,
  afterMs: number | null,
): ApplicationFailure {
  return ApplicationFailure.create({
    message: `${source}: ${why}`,
    type: `Source.${why}`,
    category: ApplicationFailureCategory.BENIGN,
    ...(afterMs === null ? {} : { nextRetryDelay: Math.max(afterMs, MIN_WAIT_MS) }),
  });
}

/**
 * What a step says about a source, be it a vendor, a verifier or the registry.
 * @param again whether the source has had the same question before
 */
export function outcomeOf(step: Step | VerifierStep | RegistryStep, again = false): CallOutcome {
  if (step.kind === 'fatal') {
    // One record that cannot be read says little about the source; many in a row open the breaker.
    return { kind: step.why === 'protocol' ? 'failed' : 'refused', why: wordOf(step) };
  }
  if (step.kind !== 'retry') return { kind: 'answered' };
  if (step.why === 'rate_limit') return { kind: 'rate_limit', afterMs: step.afterMs };
  return { kind: again ? 'failed_again' : 'failed', why: wordOf(step) };
}

/**
 * Logs that a breaker opened or closed. PostgreSQL reports the change to the one call that made it.
 */
export function logBreaker(
  log: Logger,
  source: string,
  change: BreakerChange | null,
  outcome: CallOutcome,
): void {
  if (change === 'closed')
    log.info({ source, breaker: 'closed' }, 'breaker closed: the source answers');
  if (change === 'opened') {
    const why = 'why' in outcome ? outcome.why : null;
    log.warn(
      { source, breaker: 'open', why },
      'breaker opened: the source is only called for trials',
    );
  }
}
