import { CompleteAsyncError } from '@temporalio/activity';
import { ApplicationFailure, CancelledFailure, TemporalFailure } from '@temporalio/common';
import type { ActivityExecuteInput, ActivityInboundCallsInterceptor, Next } from '@temporalio/worker';
import type { Logger } from 'pino';
import { DatabaseError } from '../db/errors.ts';

/**
 * The one place where errors become Temporal failures. Failures are stored in histories as plain text and shown in
 * the UI, so an error we did not write ourselves is reduced to its name; the log has its stack.
 */
export function failureInterceptor(log: Logger): ActivityInboundCallsInterceptor {
  return {
    async execute(input: ActivityExecuteInput, next: Next<ActivityInboundCallsInterceptor, 'execute'>) {
      try {
        return await next(input);
      } catch (error) {
        throw toFailure(error, log);
      }
    },
  };
}

function toFailure(error: unknown, log: Logger): unknown {
  if (error instanceof TemporalFailure || error instanceof CompleteAsyncError) return error;
  if (error instanceof Error && error.name === 'AbortError') return new CancelledFailure('cancelled');
  if (error instanceof DatabaseError) {
    return ApplicationFailure.create({ message: error.message, type: `Database.${error.code}` });
  }
  const name = error instanceof Error ? error.name : 'unknown';
  log.error({ err: error }, 'activity failed unexpectedly');
  return ApplicationFailure.create({ message: `${name}: see the worker's log`, type: 'Internal' });
}
