import type { AuthCredentials, Request } from '@hapi/hapi';
import { admit, type RateVerdict } from '../../db/accounts/limits.ts';
import type { Database } from '../../db/client.ts';
import { type ApiError, problem } from '../problems.ts';

declare module '@hapi/hapi' {
  interface RequestApplicationState {
    /** Set once the request was counted: on every such answer, errors included. */
    rateHeaders?: Readonly<Record<string, string>>;
  }
}

/**
 * Counts one authenticated request. 401, 403 and 429 are not counted; 304, 404 and 422 are (DECISIONS.md, Keys and
 * rate).
 * @returns the 429 if the key has no place left
 */
export async function countRequest(
  request: Request,
  db: Database,
  { keyId, requestsPerMinute }: AuthCredentials,
  windowMs: number,
): Promise<ApiError | null> {
  const verdict = await admit(db, keyId, requestsPerMinute, windowMs);
  const headers = rateHeaders(verdict, requestsPerMinute, windowMs);
  if (verdict.admitted) {
    request.app.rateHeaders = headers;
    return null;
  }
  const wait = Math.max(1, seconds(verdict.retryAfterMs));
  return problem('rate_limited', {
    values: { who: 'This key', quota: requestsPerMinute, window: seconds(windowMs), wait },
    headers: { ...headers, 'retry-after': String(wait) },
  });
}

/**
 * Both families: `RateLimit` of the IETF draft, and `X-RateLimit-*` as it is most common (Reset in epoch seconds).
 * Reset means the whole quota; the next place may come free earlier, which `Retry-After` of a 429 says.
 */
function rateHeaders(verdict: RateVerdict, limit: number, windowMs: number): Record<string, string> {
  const reset = seconds(verdict.resetMs);
  return {
    'ratelimit-policy': `"default";q=${limit};w=${seconds(windowMs)}`,
    ratelimit: `"default";r=${verdict.remaining};t=${reset}`,
    'x-ratelimit-limit': String(limit),
    'x-ratelimit-remaining': String(verdict.remaining),
    'x-ratelimit-reset': String(Math.ceil(Date.now() / 1000) + reset),
  };
}

function seconds(ms: number): number {
  return Math.ceil(ms / 1000);
}
