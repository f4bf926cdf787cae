import type { Context } from '@temporalio/activity';

const HEARTBEAT_MS = 30_000;

/**
 * Runs `work` with heartbeats three times per heartbeat time-out, so that Temporal notices a dead worker soon, and
 * with a signal that aborts when an operator cancels or the worker shuts down. Work whose deadline has passed goes on
 * for one more heartbeat time-out: what it finds settles nothing any more, but is there for the next request
 * (DECISIONS.md, Requests and batches).
 */
export async function withHeartbeat<T>(
  context: Context,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const timeoutMs = context.info.heartbeatTimeoutMs ?? HEARTBEAT_MS;
  const timer = setInterval(() => context.heartbeat(), timeoutMs / 3);
  const ending = new AbortController();
  let lateness: NodeJS.Timeout | undefined;
  context.cancellationSignal.addEventListener('abort', () => {
    const end = () => ending.abort(context.cancellationSignal.reason);
    // `notFound` is how Temporal answers the heartbeat of an activity that has timed out.
    const { timedOut = false, notFound = false } = context.cancellationDetails ?? {};
    if (timedOut || notFound) lateness = setTimeout(end, timeoutMs);
    else end();
  });
  try {
    return await work(ending.signal);
  } finally {
    clearInterval(timer);
    clearTimeout(lateness);
  }
}
