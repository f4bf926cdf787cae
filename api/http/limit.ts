import type { AuthCredentials, Request } from '@hapi/hapi';
import { type Places, takePlaces } from '../../db/accounts/limits.ts';
import type { Database } from '../../db/connection/client.ts';
import { type ApiError, problem } from '../problems.ts';
import { keepLast } from './overload.ts';

/**
 * The maximum number of keys whose windows are kept in memory. Beyond it, the windows that were
 * unused for the longest time are dropped. Nothing is lost, because PostgreSQL stores the counts.
 */
const MAX_WINDOWS = 10_000;

/**
 * Counts authenticated requests toward the rate limit of their key. Requests that end with 401,
 * 403, or 429 are not counted. Those that end with 304, 404, or 422 are counted
 * (api/docs/limits.md, Rate limit).
 * @returns a function to call for each request. It returns the 429 if the key has reached its
 * limit, otherwise null
 */
export function createLimit(db: Database, windowMs: number) {
  const windows = new Map<string, KeyWindow>();
  return async (request: Request, key: AuthCredentials): Promise<ApiError | null> => {
    const { keyId, requestsPerMinute } = key;
    const window = windows.get(keyId) ?? new KeyWindow(db, windowMs);
    keepLast(windows, keyId, window, MAX_WINDOWS);
    const verdict = await window.admit(key);
    const headers = rateHeaders(verdict, requestsPerMinute, windowMs);
    if (verdict.admitted) {
      request.app.rateHeaders = headers;
      return null;
    }
    const wait = Math.max(1, seconds(verdict.retryAfterMs));
    const values = {
      who: 'This key',
      quota: requestsPerMinute,
      window: seconds(windowMs),
      wait,
    };
    return problem('rate_limited', values, headers);
  };
}

interface Verdict {
  readonly admitted: boolean;
  /** Number of further requests that would be admitted now. */
  readonly remaining: number;
  /** Milliseconds until the next request is admitted, if the window is full. */
  readonly retryAfterMs: number;
  /** Milliseconds until the window is empty, if no further request arrives. */
  readonly resetMs: number;
  /** The current time by PostgreSQL's clock, in milliseconds since the epoch. */
  readonly nowMs: number;
}

/**
 * The rate limit window of one key in this process. Requests that arrive together are counted by
 * one SQL statement. While the window is known to be full, requests are rejected without asking
 * PostgreSQL.
 */
class KeyWindow {
  readonly #db: Database;
  readonly #windowMs: number;
  #places: Places = { taken: 0, used: 0, freeInMs: 0, emptyInMs: 0, atMs: 0 };
  #takenAt = 0;
  /** Number of requests that PostgreSQL has counted and `admit` has not admitted yet. */
  #left = 0;
  #waiting = 0;
  /** The key's limit when PostgreSQL reported that the window is full, or 0 if it is not full. */
  #fullAtLimit = 0;
  #taking: Promise<void> | null = null;

  constructor(db: Database, windowMs: number) {
    this.#db = db;
    this.#windowMs = windowMs;
  }

  async admit(key: AuthCredentials): Promise<Verdict> {
    this.#waiting += 1;
    try {
      while (!this.#isFull(key.requestsPerMinute)) {
        if (this.#left > 0) {
          this.#left -= 1;
          return this.#verdict(true, key.requestsPerMinute);
        }
        this.#taking ??= this.#take(key);
        await this.#taking;
      }
      return this.#verdict(false, key.requestsPerMinute);
    } finally {
      this.#waiting -= 1;
    }
  }

  /** Counts all waiting requests in PostgreSQL, as far as the limit allows. */
  async #take(key: AuthCredentials): Promise<void> {
    try {
      this.#places = await takePlaces(this.#db, key, this.#windowMs, this.#waiting);
      this.#takenAt = performance.now();
      this.#left = this.#places.taken;
      this.#fullAtLimit = this.#left === 0 ? key.requestsPerMinute : 0;
    } finally {
      this.#taking = null;
    }
  }

  #isFull(limit: number): boolean {
    return this.#fullAtLimit === limit && this.#age() < this.#places.freeInMs;
  }

  #age(): number {
    return performance.now() - this.#takenAt;
  }

  #verdict(admitted: boolean, limit: number): Verdict {
    const { used, freeInMs, emptyInMs, atMs } = this.#places;
    const age = this.#age();
    return {
      admitted,
      remaining: Math.max(0, limit - used + this.#left),
      retryAfterMs: freeInMs - age,
      resetMs: Math.max(0, emptyInMs - age),
      nowMs: atMs + age,
    };
  }
}

/**
 * Returns the rate limit headers in both common forms: `RateLimit` and `RateLimit-Policy` of the
 * IETF draft, and `X-RateLimit-*` with the reset as epoch seconds. The reset is the time at which
 * the whole quota is available again. After a 429, the next request may be possible earlier, as
 * `Retry-After` says.
 */
function rateHeaders(
  { remaining, resetMs, nowMs }: Verdict,
  limit: number,
  windowMs: number,
) {
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
