import { setTimeout as sleep } from 'node:timers/promises';
import type { AnyProblem, Invalid } from './types.ts';

/** How the API is reached. */
export interface Connection {
  /** From the operator: your organization's, or a test key. */
  readonly apiKey: string;
  /** Where the service is, without `/api/v1`: `https:`, or plain `http:` on this machine. */
  readonly baseUrl: string;
  /** How long one request is repeated, and a batch without news waited for: half an hour if not given. */
  readonly patienceMs?: number;
}

/** What went wrong. `code` is stable: one of the API's, or one of ours, which README.md lists. */
export class EnrichmentError extends Error {
  override readonly name = 'EnrichmentError';
  readonly code: string;
  /** Its `X-Request-Id` is what support asks for. Null if there was no answer. */
  readonly response: Response | null;
  /** Its body, if that is the API's. */
  readonly problem: AnyProblem | Invalid | null;

  constructor(code: string, message: string, more: Partial<EnrichmentError> = {}) {
    super(message, { cause: more.cause });
    this.code = code;
    this.response = more.response ?? null;
    this.problem = more.problem ?? null;
  }
}

export interface Answer<T> {
  readonly response: Response;
  readonly body: T;
}

/** A GET, or a POST of a body. */
export type Call = <T>(path: string, headers?: Record<string, string>, body?: object) => Promise<Answer<T>>;

/** The same again may succeed, and does nothing twice: a submit has its Idempotency-Key. */
const WORTH_REPEATING = [408, 409, 429, 500, 502, 503, 504];
/** Longer than the longest wait of a poll. */
const ATTEMPT_MS = 90_000;
const LONGEST_PAUSE_MS = 30_000;
/** For an address that has never answered, and is most likely wrong. */
const FIRST_PATIENCE_MS = 15_000;
export const PATIENCE_MS = 30 * 60_000;

/**
 * The API as one key sees it: within the key's rate limit, and again where that may help, not before `Retry-After`.
 * @param signal ends every call
 * @throws {EnrichmentError} `api_key_unusable`, `base_url_unusable`; from a call: the last refusal
 */
export function createCaller(
  { apiKey, baseUrl, patienceMs = PATIENCE_MS }: Connection,
  signal: AbortSignal,
): Call {
  // Not left to `fetch`, whose message would hold the key.
  if (!/^[\x21-\x7e]+$/.test(apiKey)) {
    throw new EnrichmentError('api_key_unusable', 'The API key is empty, or holds what no key holds.');
  }
  checkBaseUrl(baseUrl);
  const pace = createPace();
  let hasAnswered = false;
  return async (path, headers = {}, body) => {
    const init: RequestInit = {
      method: body ? 'POST' : 'GET',
      headers: { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json', ...headers },
      ...(body ? { body: JSON.stringify(body) } : {}),
      // The key is for nobody else.
      redirect: 'manual',
    };
    let begun = Date.now();
    for (let tries = 0; ; tries += 1) {
      const sentAt = await pace.turn(signal);
      const limited = AbortSignal.any([signal, AbortSignal.timeout(ATTEMPT_MS)]);
      const answer = await exchange(`${baseUrl}${path}`, { ...init, signal: limited });
      signal.throwIfAborted();
      hasAnswered ||= answer.response !== null;
      pace.heed(answer.response?.headers, sentAt);
      if (!(answer instanceof EnrichmentError)) return answer;
      const pauseMs = pauseAfter(answer, tries);
      // This machine slept meanwhile, and the service did not fail.
      if (Date.now() > sentAt + 2 * ATTEMPT_MS) begun = Date.now();
      const patience = hasAnswered ? patienceMs : Math.min(patienceMs, FIRST_PATIENCE_MS);
      if (Date.now() + pauseMs > begun + patience) throw answer;
      await sleep(pauseMs, undefined, { signal });
    }
  };
}

/** The hosts of this machine, as a parsed URL has them. */
const LOOPBACK = /^(?:localhost|127(?:\.[0-9]+){3}|\[::1\])$/;

/** @throws {EnrichmentError} `base_url_unusable` for what is not a URL, or would send the key unencrypted over a network */
function checkBaseUrl(baseUrl: string): void {
  const url = URL.parse(baseUrl);
  if (url?.protocol === 'https:') return;
  if (url?.protocol === 'http:' && LOOPBACK.test(url.hostname)) return;
  const problem = url?.protocol === 'http:' ? 'would send your API key unencrypted' : 'is not a web address';
  throw new EnrichmentError(
    'base_url_unusable',
    `The address of the service ${problem}. Use one that begins with https://.`,
  );
}

/** Never, if the same again would be answered the same. Not early, and not all at once. */
function pauseAfter({ response }: EnrichmentError, tries: number): number {
  if (response && !WORTH_REPEATING.includes(response.status)) return Number.POSITIVE_INFINITY;
  const toldMs = 1000 * Number(response?.headers.get('retry-after') ?? Number.NaN);
  const usualMs = Math.min(LONGEST_PAUSE_MS, 500 * 2 ** tries);
  return (Number.isNaN(toldMs) ? usualMs : toldMs) * (1 + Math.random() / 4);
}

async function exchange(url: string, init: RequestInit): Promise<Answer<never> | EnrichmentError> {
  try {
    const response = await fetch(url, init);
    const body = await response.json().catch((error) => {
      if (!(error instanceof SyntaxError)) throw error;
    });
    return response.ok && body ? { response, body: body as never } : refusal(response, body);
  } catch (cause) {
    const { code, message } = ((cause as Error).cause ?? cause) as NodeJS.ErrnoException;
    const text = `No answer from ${URL.parse(url)?.origin ?? url}: ${code ?? message}.`;
    return new EnrichmentError('unreachable', text, { cause });
  }
}

function refusal(response: Response, body: unknown): EnrichmentError {
  const { code, detail } = Object(body) as { code?: string; detail?: string | Invalid['detail'] };
  if (code && typeof detail === 'string') {
    return new EnrichmentError(code, detail, { response, problem: body as AnyProblem });
  }
  if (Array.isArray(detail) && detail[0]) {
    const text = detail.map(({ loc, msg }) => `${loc.join('.')}: ${msg}`).join('; ');
    return new EnrichmentError(detail[0].type, text, { response, problem: body as Invalid });
  }
  const { ok, status, url } = response;
  const text = `${new URL(url).origin} answered ${status}, but not as the API does.`;
  return new EnrichmentError(ok ? 'not_the_api' : `http_${status}`, text, { response });
}

/** Between the moments at which we send a request and the service counts it. */
const LEEWAY_MS = 1000;

/**
 * The service's sliding window as it looks from here: what we sent, and what its headers say of others with the same key,
 * this program before it was killed included.
 */
function createPace() {
  let [quota, windowMs] = [100, 60_000];
  let sent: number[] = [];
  return {
    /** Waits for a place. @returns when the request is sent */
    async turn(signal: AbortSignal): Promise<number> {
      for (;;) {
        const now = Date.now();
        sent = sent.filter((at) => at > now - windowMs - LEEWAY_MS);
        if (sent.length < quota) {
          sent.push(now);
          return now;
        }
        await sleep((sent[0] ?? now) + windowMs + LEEWAY_MS - now, undefined, { signal });
      }
    },
    /** The headers are of the moment at which the request came, however long the answer took. */
    heed(headers: Headers | undefined, sentAt: number): void {
      const [, q, w] = /;q=(\d+);w=(\d+)/.exec(headers?.get('ratelimit-policy') ?? '') ?? [];
      const [, left] = /;r=(\d+)/.exec(headers?.get('ratelimit') ?? '') ?? [];
      if (!q || !w || !left) return;
      [quota, windowMs] = [Number(q), Number(w) * 1000];
      const others = quota - Number(left) - sent.filter((at) => at <= sentAt).length;
      sent = [...sent, ...Array<number>(Math.max(0, others)).fill(sentAt)].sort((a, b) => a - b);
    },
  };
}
