import type { Context } from '@temporalio/activity';

const HEARTBEAT_MS = 30_000;

/**
 * Milliseconds since the epoch by Temporal's clock, which made the deadlines that activities get:
 * when this attempt was due, and what has passed here since. A worker's own clock may be minutes
 * off.
 */
export type Clock = () => number;

/**
 * Runs `work` with heartbeats, so that Temporal notices a dead worker, but not more than that
 * takes: as many calls may be held at a time, one that ends within two thirds of the time-out has
 * none. And with a signal that aborts when an operator cancels or the worker shuts down. Work whose
 * deadline has passed goes on for one more heartbeat time-out: what it finds settles nothing any
 * more, but is there for the next request (DECISIONS.md, Requests and batches).
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
    // `notFound` is how Temporal answers the heartbeat of an activity that has timed out.
    const { timedOut, notFound, paused, reset } = context.cancellationDetails ?? {};
    // An operator who pauses or resets an activity means its next attempt: a call that is cut off
    // is paid for.
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
