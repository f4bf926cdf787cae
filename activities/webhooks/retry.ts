import type { AttemptResult } from './post.ts';

const JITTER = 0.2;

/**
 * Returns the wait before an attempt (DECISIONS.md, Webhooks, schedule).
 * @param attempt the number of the next attempt, counted from 1
 * @param schedule for each attempt, the milliseconds after the previous one; index 0 is the first
 * attempt
 * @param retryAfterMs the wait that the receiver asked for, or null. The result is at least the
 * scheduled wait and at most twice as long
 * @param random a random number from 0 to 1. It changes the wait by up to ±20 %, unless the
 * receiver asked for a wait
 * @returns whole milliseconds; null when the schedule is used up
 */
export function delayBefore(
  attempt: number,
  schedule: readonly number[],
  retryAfterMs: number | null,
  random: number,
): number | null {
  const step = schedule[attempt - 1];
  if (step === undefined) return null;
  if (retryAfterMs !== null) {
    return Math.min(Math.max(retryAfterMs, step), 2 * step);
  }
  return Math.round(step * (1 - JITTER + 2 * JITTER * random));
}

/**
 * Returns true if the status means that the receiver accepted the delivery (api/docs/webhooks.md,
 * Webhooks). A redirect does not count.
 */
export function isDelivered(status: number): boolean {
  return status >= 200 && status <= 299;
}

/**
 * Returns true if no further attempt may be made, even if the schedule has one: after a 2xx or for
 * a blocked target.
 */
export function isFinal(result: AttemptResult): boolean {
  if (result.kind === 'failed') return /^blocked_/.test(result.reason);
  return isDelivered(result.status);
}
