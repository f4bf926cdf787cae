import type { Context } from '@temporalio/activity';

const HEARTBEAT_MS = 30_000;

/**
 * Returns the time in milliseconds since the epoch by Temporal's clock, because the deadlines of
 * activities are made with that clock. It is the time at which this attempt was scheduled plus the
 * time that has passed in this process. A worker's own clock may be off by minutes.
 */
export type Clock = () => number;

/**
 * Runs `work` with heartbeats, so that Temporal notices a dead worker. A heartbeat is sent every
 * two thirds of the timeout, so shorter calls send none. That keeps the number of heartbeats low
 * when many calls are open.
 *
 * `signal` aborts when an operator cancels the activity or the worker shuts down. If only the
 * deadline has passed, the work continues for one more heartbeat timeout. Its result no longer
 * settles the request, but is stored for the next one (DECISIONS.md, Requests and batches).
 */
export async function withHeartbeat<T>(
  context: Context,
  work: (signal: AbortSignal, now: Clock) => Promise<T>,
): Promise<T> {
  const timeoutMs = context.info.heartbeatTimeoutMs ?? HEARTBEAT_MS;
  const begun = performance.now();
  const now = () => context.info.currentAttemptScheduledTimestampMs + performance.now() - begun;
  const timer = setInterval(() => context.heartbeat(), (timeoutMs * 2) / 3);
  const ending = new AbortController();
  let lateness: NodeJS.Timeout | undefined;
  context.cancellationSignal.addEventListener('abort', () => {
    const end = () => ending.abort(context.cancellationSignal.reason);
    // Temporal sends `notFound` in reply to the heartbeat of an activity that has timed out.
    const { timedOut, notFound, paused, reset } = context.cancellationDetails ?? {};
    // Pausing or resetting an activity is meant for its next attempt. A call that we cut off now is
    // still charged.
    if (paused || reset) return;
    if (timedOut || notFound) lateness = setTimeout(end, timeoutMs);
    else end();
  });
  try {
    return await work(ending.signal, now);
  } finally {
    clearInterval(timer);
    clearTimeout(lateness);
  }
}
