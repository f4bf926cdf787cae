import { subscribe } from 'node:diagnostics_channel';

/** A vendor's answer, as far as every adapter reads one. */
export interface HttpAnswer {
  readonly status: number;
  readonly headers: Headers;
  /** The body's text; null where it was larger than is read. */
  readonly text: string | null;
}

/**
 * Why no whole answer came back.
 * - `unsent`: no connection was made, so nobody was asked: no name, refused, unreachable, TLS or its certificate
 * - `unanswered`: the question was sent, or may have been: too slow, reset, cut off, and whatever nobody can classify
 */
export type NoAnswer = 'unsent' | 'unanswered';

export type HttpHeaders = Readonly<Record<string, string>>;

/** Vendors' answers about one person are a few kilobytes; more than this is not an answer. */
const MAX_BODY = 1024 * 1024;
const MAX_RETRY_AFTER_MS = 86_400_000;
/** From the first byte sent to the last one read. Vendors that may rightly take longer are given more. */
const CALL_TIMEOUT_MS = 30_000;

/**
 * What connections failed with before they could carry a question. fetch's own errors do not tell: a reset during the
 * handshake of TLS and one after the question have the same code. undici, which is Node's fetch, publishes the very
 * error that becomes the cause of fetch's (its docs/api/DiagnosticsChannel, `undici:client:connectError`).
 */
const connectErrors = new WeakSet<Error>();
subscribe('undici:client:connectError', (message) => {
  if (typeof message !== 'object' || message === null || !('error' in message)) return;
  if (message.error instanceof Error) connectErrors.add(message.error);
});

/**
 * One GET. Redirects are not followed: fetch would carry a vendor's own key header to wherever they point.
 * @param timeoutMs for the whole call; 30 s where none is given
 * @returns a word where no whole answer came back
 * @throws whatever `signal` was aborted with
 */
export async function get(
  url: string,
  headers: HttpHeaders,
  signal: AbortSignal,
  timeoutMs = CALL_TIMEOUT_MS,
): Promise<HttpAnswer | NoAnswer> {
  return await send(url, { headers }, signal, timeoutMs);
}

/**
 * One POST of JSON; everything else as `get`.
 * @param json serialised here; the content type is set here
 */
export async function post(
  url: string,
  headers: HttpHeaders,
  json: unknown,
  signal: AbortSignal,
  timeoutMs = CALL_TIMEOUT_MS,
): Promise<HttpAnswer | NoAnswer> {
  const body = JSON.stringify(json);
  const withType = { ...headers, 'content-type': 'application/json' };
  return await send(url, { method: 'POST', headers: withType, body }, signal, timeoutMs);
}

async function send(
  url: string,
  init: RequestInit,
  signal: AbortSignal,
  timeoutMs: number,
): Promise<HttpAnswer | NoAnswer> {
  const either = AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]);
  try {
    const response = await fetch(url, { ...init, signal: either, redirect: 'manual' });
    return { status: response.status, headers: response.headers, text: await readText(response) };
  } catch (error) {
    // Our own time-out is an answer that did not come; the caller's end is the caller's.
    signal.throwIfAborted();
    return isUnsent(error) ? 'unsent' : 'unanswered';
  }
}

/** Whether what is sent to a URL can be read by nobody on the way: keys, names and addresses are. */
export function isConfidential({ protocol, hostname }: URL): boolean {
  return protocol === 'https:' || (protocol === 'http:' && LOOPBACK.test(hostname));
}

/** As the URL standard writes every spelling of these. */
const LOOPBACK = /^(?:localhost|127\.[0-9]+\.[0-9]+\.[0-9]+|\[::1\])$/;

/** Only where it is certain: an `unsent` question is put again, and one that was sent after all is paid for twice. */
function isUnsent(error: unknown): boolean {
  return error instanceof Error && error.cause instanceof Error && connectErrors.has(error.cause);
}

async function readText(response: Response): Promise<string | null> {
  const decoder = new TextDecoder();
  let size = 0;
  let text = '';
  // Leaving the loop early cancels the stream, and with it the connection.
  for await (const chunk of response.body ?? []) {
    size += chunk.byteLength;
    if (size > MAX_BODY) return null;
    text += decoder.decode(chunk, { stream: true });
  }
  return text + decoder.decode();
}

/**
 * `Retry-After` (RFC 9110 section 10.2.3) in milliseconds from now: seconds or an HTTP date, at most a day.
 * @returns null where it is absent or neither
 */
export function retryAfterMs(headers: Headers, now = Date.now()): number | null {
  const value = headers.get('retry-after')?.trim();
  if (!value) return null;
  const seconds = secondsMs(value);
  const ms = seconds ?? parseHttpDate(value) - now;
  return Number.isNaN(ms) ? null : Math.min(Math.max(ms, 0), MAX_RETRY_AFTER_MS);
}

/**
 * Whole seconds of a header such as `x-minute-reset-seconds` in milliseconds, at most a day.
 * @returns null where it is absent or something else
 */
export function secondsMs(value: string | null): number | null {
  const text = value?.trim() ?? '';
  return /^[0-9]+$/.test(text) ? Math.min(Number(text) * 1000, MAX_RETRY_AFTER_MS) : null;
}

/** Date.parse alone takes `-5` and `1.5` for years. */
function parseHttpDate(value: string): number {
  return / GMT$/.test(value) ? Date.parse(value) : Number.NaN;
}
