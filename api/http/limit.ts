import type { AuthCredentials, Request } from '@hapi/hapi';
import { type Places, STEPS, takePlaces } from '../../db/accounts/limits.ts';
import type { Database } from '../../db/client.ts';
import { type ApiError, problem } from '../problems.ts';
import { keepLast } from './overload.ts';

/**
 * Beyond this many windows, the oldest ones are dropped, and the places they had left count as
 * used.
 */
const MAX_WINDOWS = 10_000;

/**
 * Counts authenticated requests. 401, 403 and 429 are not counted; 304, 404 and 422 are
 * (DECISIONS.md, Keys and rate).
 * @returns a function to call for each request, which returns the 429 if the key has no place left,
 * or null
 */
export function createLimit(db: Database, windowMs: number) {
  const windows = new Map<string, ReturnType<typeof openWindow>>();
  return async (request: Request, key: AuthCredentials): Promise<ApiError | null> => {
    const { keyId, requestsPerMinute } = key;
    const window = windows.get(keyId) ?? openWindow(db, windowMs);
    keepLast(windows, keyId, window, MAX_WINDOWS);
    const verdict = await window(key);
    const headers = rateHeaders(verdict, requestsPerMinute, windowMs);
    if (verdict.admitted) {
      request.app.rateHeaders = headers;
      return null;
    }
    const wait = Math.max(1, seconds(verdict.retryAfterMs));
    const values = { who: 'This key', quota: requestsPerMinute, window: seconds(windowMs), wait };
    return problem('rate_limited', values, headers);
  };
}

/**
 * Creates the window of one key in this process. Concurrent requests take their places with one
 * statement. At a high limit, one statement takes the places of a whole step. A rejection is
 * repeated without a statement until a place is free.
 */
function openWindow(db: Database, windowMs: number) {
  let places: Places = { taken: 0, used: 0, takenAt: null, freeInMs: 0, emptyInMs: 0, atMs: 0 };
  let [answeredAt, left, leftUntil, fullAtLimit, waiting] = [0, 0, 0, 0, 0];
  let asking: Promise<void> | null = null;
  const ask = async (key: AuthCredentials) => {
    const { requestsPerMinute: limit } = key;
    const inAdvance = limit > STEPS ? Math.ceil(limit / STEPS) : 0;
    const back = { count: left, takenAt: places.takenAt };
    left = 0;
    const begun = performance.now();
    places = await takePlaces(db, key, windowMs, Math.max(waiting, inAdvance), back);
    answeredAt = performance.now();
    left = places.taken;
    // Without a step, all places are for waiting requests.
    leftUntil = inAdvance > 0 ? begun + windowMs / STEPS : Number.POSITIVE_INFINITY;
    fullAtLimit = places.taken === 0 ? limit : 0;
  };
  const verdict = (admitted: boolean, limit: number) => {
    const age = performance.now() - answeredAt;
    return {
      admitted,
      /** Requests that would still be admitted now. */
      remaining: Math.max(0, limit - places.used + left),
      /** Milliseconds until the next place becomes free, if the window is full. */
      retryAfterMs: places.freeInMs - age,
      /** Milliseconds until the whole window is empty again. */
      resetMs: Math.max(0, places.emptyInMs - age),
      /** The current time by PostgreSQL's clock, in milliseconds since the epoch. */
      nowMs: places.atMs + age,
    };
  };
  return async (key: AuthCredentials) => {
    const { requestsPerMinute: limit } = key;
    waiting += 1;
    try {
      for (;;) {
        const now = performance.now();
        if (fullAtLimit === limit && now < answeredAt + places.freeInMs)
          return verdict(false, limit);
        if (left > 0 && now < leftUntil) {
          left -= 1;
          return verdict(true, limit);
        }
        asking ??= ask(key).finally(() => {
          asking = null;
        });
        await asking;
      }
    } finally {
      waiting -= 1;
    }
  };
}

type Verdict = Awaited<ReturnType<ReturnType<typeof openWindow>>>;

/**
 * Returns both families of headers: `RateLimit` of the IETF draft, and the common `X-RateLimit-*`
 * (Reset in epoch seconds). Reset means the whole quota. The next place may become free earlier,
 * which `Retry-After` of a 429 says.
 */
function rateHeaders({ remaining, resetMs, nowMs }: Verdict, limit: number, windowMs: number) {
  const reset = seconds(resetMs);
  return {
    'ratelimit-policy': `"default";q=${limit};w=${seconds(windowMs)}`,
    ratelimit: `"default";r=${remaining};t=${reset}`,
    'x-ratelimit-limit': String(limit),
    'x-ratelimit-remaining': String(remaining),
    'x-ratelimit-reset': String(seconds(nowMs) + reset),
  };
}

function seconds(ms: number): number {
  return Math.ceil(ms / 1000);
}
