import type { Context } from '@temporalio/activity';

const HEARTBEAT_MS = 30_000;

/**
 * Returns the current time by the clock of the Temporal server, in milliseconds since the epoch.
 * Deadlines of activities were computed with that clock, and a worker's own clock may be off by
 * minutes. The time is the moment at which the server scheduled this attempt, plus the time that
 * has passed in this process since then.
 */
export type Clock = () => number;

/**
 * Runs `work` with heartbeats, so that Temporal notices when the worker has died. The first
 * heartbeat is sent after two thirds of the heartbeat timeout. Work that ends earlier sends none,
 * which keeps the number of heartbeats low.
 *
 * `signal` aborts when an operator cancels the activity or the worker shuts down. If the activity
 * has only passed its deadline, the work may continue for the length of one heartbeat timeout. Its
 * result is too late for this request, but it is stored for later requests (DECISIONS.md, Requests
 * and batches).
 */
export async function withHeartbeat<T>(
  context: Context,
  work: (signal: AbortSignal, now: Clock) => Promise<T>,
): Promise<T> {
  const timeoutMs = context.info.heartbeatTimeoutMs ?? HEARTBEAT_MS;
  const begun = performance.now();
  const now = () =>
    context.info.currentAttemptScheduledTimestampMs + performance.now() - begun;
  const timer = setInterval(() => context.heartbeat(), (timeoutMs * 2) / 3);
  const ending = new AbortController();
  let lateness: NodeJS.Timeout | undefined;
  context.cancellationSignal.addEventListener('abort', () => {
    const end = () => ending.abort(context.cancellationSignal.reason);
    // If an activity has timed out, Temporal replies `notFound` to its next heartbeat.
    const { timedOut, notFound, paused, reset } = context.cancellationDetails ?? {};
    // An operator who pauses or resets an activity affects its next attempt. This attempt
    // continues, because a vendor would charge for the call even if we aborted it.
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
