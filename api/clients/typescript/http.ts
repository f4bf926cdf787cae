import https from 'node:https';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  type Connection,
  checkConnection,
  usableApiKey,
  usableBaseUrl,
} from './connection.ts';
import { EnrichmentError, type ErrorCode } from './errors.ts';
import type { AnyProblem, FaultType, Invalid } from './types.ts';

export interface ApiResponse<T> {
  readonly response: Response;
  readonly body: T;
}

export interface CallOptions {
  /** The default is `GET`. */
  readonly method?: 'POST';
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: object;
}

/** Calls the API. */
export type Call = <T>(path: string, options?: CallOptions) => Promise<ApiResponse<T>>;

/**
 * Statuses after which a retry may succeed. A retried GET changes nothing, and a retried submit has
 * the same Idempotency-Key. A retried resend may send a webhook twice, which receivers must expect.
 */
const WORTH_REPEATING = [408, 409, 429, 500, 502, 503, 504];
/** Rejections of a resend that a retry does not change soon. */
const REJECTED_RESENDS: readonly ErrorCode[] = [
  'delivery_pending',
  'resend_limited',
  'webhooks_suspended',
];
/**
 * Time limit of one attempt. It is longer than the 55 seconds for which the service may hold a
 * poll.
 */
const ATTEMPT_MS = 90_000;
const LONGEST_PAUSE_MS = 30_000;
/**
 * The time for which calls are retried if the service has never responded. It is short, because
 * then the address is most likely wrong.
 */
const FIRST_PATIENCE_MS = 15_000;
export const PATIENCE_MS = 30 * 60_000;

/**
 * Returns a function that calls the API with one key. The function stays within the key's rate
 * limit. It retries if the error may be temporary, and never earlier than `Retry-After` says.
 * @throws {EnrichmentError} `api_key_unusable`, `base_url_unusable`, `option_invalid`; from a call:
 * the last error
 */
export function createCaller(connection: Connection): Call {
  checkConnection(connection);
  const { patienceMs = PATIENCE_MS, signal = new AbortController().signal } = connection;
  const baseUrl = usableBaseUrl(connection.baseUrl);
  const authorization = `Bearer ${usableApiKey(connection.apiKey)}`;
  const pace = new Pace();
  let hasResponded = false;
  return async (path, options = {}) => {
    const init = initOf(options, authorization);
    let begun = Date.now();
    for (let tries = 0; ; tries += 1) {
      const sentAt = await pace.turn(signal);
      const limited = AbortSignal.any([signal, AbortSignal.timeout(ATTEMPT_MS)]);
      const result = await exchange(`${baseUrl}${path}`, { ...init, signal: limited });
      signal.throwIfAborted();
      hasResponded ||= result.response !== null;
      pace.heed(result.response?.headers, sentAt);
      if (!(result instanceof EnrichmentError)) {
        return result;
      }
      const pauseMs = pauseAfter(result, tries);
      // An attempt cannot take this long, so this machine was asleep. The time limit for retries
      // starts again.
      if (Date.now() > sentAt + 2 * ATTEMPT_MS) begun = Date.now();
      const patience = hasResponded
        ? patienceMs
        : Math.min(patienceMs, FIRST_PATIENCE_MS);
      if (Date.now() + pauseMs > begun + patience) {
        throw result;
      }
      await sleep(pauseMs, undefined, { signal });
    }
  };
}

function initOf(options: CallOptions, authorization: string): RequestInit {
  const { method = 'GET', body } = options;
  const headers: Record<string, string> = { authorization, ...options.headers };
  // A redirect must not send the key to another server.
  const init: RequestInit = { method, headers, redirect: 'manual' };
  if (body) {
    headers['content-type'] = 'application/json';
    init.body = JSON.stringify(body);
  }
  return init;
}

/**
 * Returns the milliseconds to wait before a retry, or infinity if a retry would get the same
 * response. A random time is added so that clients don't all retry at the same moment.
 */
function pauseAfter({ code, response }: EnrichmentError, tries: number): number {
  if (response && !WORTH_REPEATING.includes(response.status)) {
    return Number.POSITIVE_INFINITY;
  }
  if (REJECTED_RESENDS.includes(code)) {
    return Number.POSITIVE_INFINITY;
  }
  const usualMs = Math.min(LONGEST_PAUSE_MS, 500 * 2 ** tries);
  const retryAfterMs = 1000 * Number(response?.headers.get('retry-after') ?? Number.NaN);
  const pauseMs = Number.isNaN(retryAfterMs) ? usualMs : retryAfterMs;
  return pauseMs * (1 + Math.random() / 4);
}

async function exchange(
  url: string,
  init: RequestInit,
): Promise<ApiResponse<never> | EnrichmentError> {
  try {
    const response = await fetch(url, init);
    const body = await response.json().catch((error) => {
      if (!(error instanceof SyntaxError)) throw error;
    });
    return response.ok && body
      ? { response, body: body as never }
      : refusal(response, body);
  } catch (cause) {
    const { origin, protocol } = new URL(url);
    const reason = reasonOf(cause as Error);
    let text = `No response from ${origin}: ${reason}.`;
    if (protocol === 'https:') {
      text += proxyAdvice();
    }
    return new EnrichmentError('unreachable', text, { cause });
  }
}

/**
 * Returns why a request got no response: the system's code, such as `ENOTFOUND`, or a sentence. The
 * innermost cause has the most exact reason, for example the status of a proxy.
 */
function reasonOf(error: Error): string {
  let cause: NodeJS.ErrnoException = error;
  while (cause.cause instanceof Error) {
    cause = cause.cause;
  }
  const { code, message } = cause;
  const isSystem = typeof code === 'string' && !code.startsWith('UND_ERR_');
  return isSystem ? code : message;
}

const PROXY_ADVICE = [
  ' To use the proxy of HTTPS_PROXY, set NODE_USE_ENV_PROXY=1,',
  'with Node.js 22.21 or later.',
].join(' ');

/** Returns how to use the proxy of the environment, if there is one that Node.js does not use. */
function proxyAdvice(): string {
  const { env } = process;
  const isUsed = https.globalAgent.options.proxyEnv;
  if (isUsed || !(env.https_proxy || env.HTTPS_PROXY)) {
    return '';
  }
  return PROXY_ADVICE;
}

function refusal(response: Response, body: unknown): EnrichmentError {
  const { code, detail } = Object(body) as {
    code?: ErrorCode;
    detail?: string | Invalid['detail'];
  };
  if (code && typeof detail === 'string') {
    return new EnrichmentError(code, detail, { response, problem: body as AnyProblem });
  }
  if (Array.isArray(detail) && detail[0]) {
    const text = detail.map(({ loc, msg }) => `${loc.join('.')}: ${msg}`).join('; ');
    const { type } = detail[0];
    return new EnrichmentError(type as FaultType, text, {
      response,
      problem: body as Invalid,
    });
  }
  const { ok, status, url } = response;
  const text = `${new URL(url).origin} returned ${status}, but not a response of the API.`;
  return new EnrichmentError(ok ? 'not_the_api' : `http_${status}`, text, { response });
}

/**
 * The longest time in milliseconds from sending a request until the service counts it. Our window
 * is longer than the service's window by this time.
 */
const LEEWAY_MS = 1000;

/**
 * Keeps this client within the service's rate limit, which is a sliding window. The window contains
 * the requests of this client. It also contains the requests of other programs with the same key,
 * for example of an earlier run. The response headers show how many these are.
 */
class Pace {
  #quota = 100;
  #windowMs = 60_000;
  #sent: number[] = [];

  /**
   * Waits until the rate limit allows another request.
   * @returns the time at which the request is sent, in milliseconds since the epoch
   */
  async turn(signal: AbortSignal): Promise<number> {
    for (;;) {
      const now = Date.now();
      const windowMs = this.#windowMs + LEEWAY_MS;
      this.#sent = this.#sent.filter((at) => at > now - windowMs);
      if (this.#sent.length < this.#quota) {
        this.#sent.push(now);
        return now;
      }
      const [oldest = now] = this.#sent;
      await sleep(oldest + windowMs - now, undefined, { signal });
    }
  }

  /**
   * Updates the window from the rate limit headers of a response. The service computes these
   * headers when the request arrives, so they are older than the response if the service held the
   * request.
   */
  heed(headers: Headers | undefined, sentAt: number): void {
    const policy = headers?.get('ratelimit-policy') ?? '';
    const limit = /;q=(?<quota>\d+);w=(?<seconds>\d+)/.exec(policy)?.groups;
    const state = /;r=(?<left>\d+)/.exec(headers?.get('ratelimit') ?? '')?.groups;
    if (!limit || !state) return;
    this.#quota = Number(limit.quota);
    this.#windowMs = Number(limit.seconds) * 1000;
    const ours = this.#sent.filter((at) => at <= sentAt).length;
    const others = this.#quota - Number(state.left) - ours;
    for (let n = 0; n < others; n += 1) this.#sent.push(sentAt);
    this.#sent.sort((a, b) => a - b);
  }
}
