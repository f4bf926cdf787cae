import type { Context } from '@temporalio/activity';

/**
 * Runs `work` with heartbeats three times per heartbeat time-out, so that Temporal notices a dead worker soon, and
 * with a signal that aborts when Temporal cancels the activity: its deadline passed, an operator cancelled, or the
 * worker shuts down.
 */
export async function withHeartbeat<T>(
  context: Context,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const every = (context.info.heartbeatTimeoutMs ?? 30_000) / 3;
  const timer = setInterval(() => context.heartbeat(), every);
  try {
    return await work(context.cancellationSignal);
  } finally {
    clearInterval(timer);
  }
}
