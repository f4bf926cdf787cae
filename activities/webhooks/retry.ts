import type { Answer } from './post.ts';

const JITTER = 0.2;

/**
 * How long to wait before an attempt (DECISIONS.md, Webhooks, schedule).
 * @param attempt the coming attempt, counted from 1
 * @param schedule milliseconds after the previous attempt; index 0 belongs to the first
 * @param retryAfterMs what the receiver asked for, null if it did not: taken as it is between 1×
 * and 2× of the step
 * @param random from 0 to 1, spreads the wait over ±20 % if the receiver asked for nothing
 * @returns whole milliseconds; null when the schedule is exhausted
 */
export function delayBefore(
  attempt: number,
  schedule: readonly number[],
  retryAfterMs: number | null,
  random: number,
): number | null {
  const step = schedule[attempt - 1];
  if (step === undefined) return null;
  if (retryAfterMs !== null) return Math.min(Math.max(retryAfterMs, step), 2 * step);
  return Math.round(step * (1 - JITTER + 2 * JITTER * random));
}

/**
 * True for the statuses by which a receiver takes a delivery over (api/docs/webhooks.md, Webhooks).
 * A redirect is none.
 */
export function isDelivered(status: number): boolean {
  return status >= 200 && status <= 299;
}

/**
 * Returns true when no further attempt is made, whatever the schedule has left: after a 2xx or for
 * a blocked target.
 */
export function isFinal(answer: Answer): boolean {
  if (answer.kind === 'failed') return /^blocked_/.test(answer.reason);
  return isDelivered(answer.status);
}
