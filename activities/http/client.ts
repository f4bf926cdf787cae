import { subscribe } from 'node:diagnostics_channel';
import {
  Agent,
  fetch,
  type Headers,
  type RequestInit,
  type Response,
  setGlobalDispatcher,
} from 'undici';
import { bodyOf, type Field, FieldError } from './fields.ts';
import { lookupBy, type Names } from './names.ts';

// This file calls JSON APIs over HTTP and reads the responses that mean the same everywhere.

/** The parts of an HTTP response that adapters read. */
export interface HttpAnswer {
  readonly status: number;
  readonly headers: Headers;
  /** The body's text, or null if it was larger than `MAX_BODY`. */
  readonly text: string | null;
}

/** Makes all calls of this process resolve host names with `find`. */
export function findHostsBy(find: Names['find']): void {
  setGlobalDispatcher(new Agent({ autoSelectFamily: true, connect: { lookup: lookupBy(find) } }));
}

export type HttpHeaders = Readonly<Record<string, string>>;

/** The most bytes that are read of a body. A response about one person has a few kilobytes. */
const MAX_BODY = 1024 * 1024;
const MAX_RETRY_AFTER_MS = 86_400_000;

/**
 * Errors of connections that failed before they could carry a request. fetch's own errors do not
 * show this: a reset during the TLS handshake and a reset after the request have the same code.
 * undici publishes the same error object that becomes the cause of fetch's error (its
 * docs/api/DiagnosticsChannel, `undici:client:connectError`).
 */
const connectErrors = new WeakSet<Error>();
subscribe('undici:client:connectError', (message) => {
  if (typeof message !== 'object' || message === null || !('error' in message)) return;
  if (message.error instanceof Error) connectErrors.add(message.error);
});

/** A request: a GET, or a POST of `json` if it is given. */
export interface Question {
  readonly path: string;
  readonly json?: unknown;
}

/**
 * Returns a function that sends one request to a JSON API and reads the whole response with `read`.
 * If no response arrives, it returns a `retry`. Redirects are not followed, because fetch would
 * send a vendor's own key header to the new host. The function throws the reason with which
 * `signal` was aborted.
 * @param baseUrl the URL that paths are appended to, with or without a slash at its end; empty if
 * each path is a whole URL
 * @param headers sent with every request, such as the API key
 * @param callMs for a whole call, from the first byte sent to the last one read
 */
export function jsonApi(baseUrl: string, headers: HttpHeaders, callMs: number) {
  const base = baseUrl.replace(/\/+$/, '');
  return async <Step>(
    question: Question,
    signal: AbortSignal,
    read: (answer: HttpAnswer) => Step,
  ): Promise<Step | Trouble> => {
    const request = requestOf(question, headers);
    const either = AbortSignal.any([signal, AbortSignal.timeout(callMs)]);
    let answer: HttpAnswer;
    try {
      answer = await send(base + question.path, { ...request, signal: either });
    } catch (error) {
      // Our own timeout counts as a missing response. An abort by the caller is thrown again.
      signal.throwIfAborted();
      return troubleOf(error);
    }
    return read(answer);
  };
}

function requestOf({ json }: Question, headers: HttpHeaders): RequestInit {
  const common = { accept: 'application/json', ...headers };
  if (json === undefined) return { headers: common };
  return {
    method: 'POST',
    headers: { ...common, 'content-type': 'application/json' },
    body: JSON.stringify(json),
  };
}

async function send(url: string, request: RequestInit): Promise<HttpAnswer> {
  const response = await fetch(url, { ...request, redirect: 'manual' });
  const text = await readText(response);
  return { status: response.status, headers: response.headers, text };
}

function troubleOf(error: unknown): Trouble {
  const cause = connectCause(error);
  if (cause === null) return { kind: 'retry', why: 'unanswered', afterMs: null };
  return { kind: 'retry', why: 'unsent', cause, afterMs: null };
}

/** Loopback hosts, in the form to which the URL standard normalizes them. */
const LOOPBACK = /^(?:localhost|127\.[0-9]+\.[0-9]+\.[0-9]+|\[::1\])$/;

/**
 * Returns true if nothing that is sent to a URL can be read on the way. We send keys, names, and
 * addresses.
 */
export function isConfidential({ protocol, hostname }: URL): boolean {
  return protocol === 'https:' || (protocol === 'http:' && LOOPBACK.test(hostname));
}

/** The reported codes of failed connections. They are metric labels, so the set is bounded. */
const CONNECT_CODES: ReadonlySet<string> = new Set([
  // Name servers.
  'EAI_AGAIN',
  'EBADNAME',
  'EBADRESP',
  'ECANCELLED',
  'EFORMERR',
  'ENODATA',
  'ENOTFOUND',
  'ENOTIMP',
  'EREFUSED',
  'ESERVFAIL',
  'ETIMEOUT',
  // The network.
  'EACCES',
  'EADDRNOTAVAIL',
  'ECONNABORTED',
  'ECONNREFUSED',
  'ECONNRESET',
  'EHOSTDOWN',
  'EHOSTUNREACH',
  'EMFILE',
  'ENETDOWN',
  'ENETUNREACH',
  'EPERM',
  'EPIPE',
  'EPROTO',
  'ETIMEDOUT',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_SOCKET',
  // Certificates.
  'CERT_CHAIN_TOO_LONG',
  'CERT_HAS_EXPIRED',
  'CERT_NOT_YET_VALID',
  'CERT_REJECTED',
  'CERT_REVOKED',
  'CERT_SIGNATURE_FAILURE',
  'CERT_UNTRUSTED',
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'ERR_TLS_CERT_ALTNAME_INVALID',
  'HOSTNAME_MISMATCH',
  'INVALID_CA',
  'INVALID_PURPOSE',
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_GET_ISSUER_CERT',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
]);

/**
 * Returns why no connection was made, or null if a connection may have existed. An `unsent` request
 * is sent again, so a request that was sent after all would be paid twice. All errors of OpenSSL
 * are reported as `ERR_SSL`, and codes outside the list as `other`.
 */
function connectCause(error: unknown): string | null {
  const cause = error instanceof Error ? error.cause : null;
  if (!(cause instanceof Error && connectErrors.has(cause))) return null;
  const code = 'code' in cause ? String(cause.code) : '';
  if (code.startsWith('ERR_SSL_')) return 'ERR_SSL';
  return CONNECT_CODES.has(code) ? code : 'other';
}

async function readText(response: Response): Promise<string | null> {
  const decoder = new TextDecoder();
  let size = 0;
  let text = '';
  // Leaving the loop early cancels the stream and closes the connection.
  for await (const chunk of response.body ?? []) {
    size += chunk.byteLength;
    if (size > MAX_BODY) return null;
    text += decoder.decode(chunk, { stream: true });
  }
  return text + decoder.decode();
}

/**
 * Returns `Retry-After` in milliseconds from now, at most a day. Returns null if the header is
 * absent or unreadable.
 */
export function retryAfterMs(headers: Headers, header = 'retry-after'): number | null {
  const ms = parseRetryAfter(headers.get(header));
  return ms === null ? null : Math.min(ms, MAX_RETRY_AFTER_MS);
}

/**
 * Parses `Retry-After` (RFC 9110, 10.2.3), which is a number of seconds or a GMT date. Returns
 * milliseconds from now, or 0 for a date in the past.
 */
export function parseRetryAfter(header: string | null | undefined): number | null {
  const text = header?.trim() ?? '';
  if (/^[0-9]+$/.test(text)) return Number(text) * 1000;
  // Date.parse accepts `-5` and `1.5` as years.
  if (!/^[A-Z].* GMT$/.test(text)) return null;
  const at = Date.parse(text);
  return Number.isNaN(at) ? null : Math.max(0, at - Date.now());
}

/**
 * A failed call. A `retry` may be repeated after `afterMs` (null: our own backoff).
 * - `rate_limit`: too many requests; nothing was done
 * - `upstream`: the source reported that it failed or gave up (500, 503, an error in a body, a job
 *   that has failed, been canceled, or is no longer known)
 * - `unsent`: no connection was made (no name, refused, unreachable, TLS or its certificate), so
 *   the source did nothing and charges nothing; `cause` is the code of the failed connection, one
 *   of a known set, such as `ECONNREFUSED`
 * - `unanswered`: the request was or may have been sent, and the response was lost: too slow,
 *   reset, cut off, at a gateway (502, 504, 520 to 530), or an unknown error; the source may have
 *   done the work, and may have charged
 *
 * A `fatal` needs an operator, or the response is not as documented (`protocol`). `field` is the
 * place, such as `emails[0].type`, `status`, or `body`, and never contains a value.
 */
export type Trouble =
  | {
      readonly kind: 'retry';
      readonly why: 'rate_limit' | 'upstream' | 'unanswered';
      readonly afterMs: number | null;
    }
  | {
      readonly kind: 'retry';
      readonly why: 'unsent';
      readonly cause: string;
      readonly afterMs: number | null;
    }
  | { readonly kind: 'fatal'; readonly why: 'auth' | 'credits' | 'plan' }
  | { readonly kind: 'fatal'; readonly why: 'protocol'; readonly field: string };

/** Returns a short text, such as `unsent: CERT_HAS_EXPIRED`. */
export function wordOf(trouble: Trouble): string {
  switch (trouble.why) {
    case 'protocol':
      return `protocol: ${trouble.field}`;
    case 'unsent':
      return `unsent: ${trouble.cause}`;
    default:
      return trouble.why;
  }
}

/** Returns the failure of a response that is not as documented at this place. */
export function protocol(field: string): Trouble {
  return { kind: 'fatal', why: 'protocol', field };
}

/**
 * Returns a reader of JSON bodies. An unreadable response is not requested again: the next one
 * would have the same form, and may cost again.
 */
export function inBody<Step>(read: (body: Field, answer: HttpAnswer) => Step) {
  return (answer: HttpAnswer): Step | Trouble => {
    try {
      return read(bodyOf(answer.text), answer);
    } catch (error) {
      if (error instanceof FieldError) return protocol(error.message);
      throw error;
    }
  };
}

/** The step for each status, or a function that reads it from the response. */
export type Meanings<Step> = Readonly<Record<number, Step | ((answer: HttpAnswer) => Step)>>;

/**
 * Reads a response by its status. A status without a meaning here has its HTTP meaning. The bodies
 * of those are never read, because they may come from a failing server or a gateway and not from
 * the source itself.
 */
export function byStatus<Step extends object>(meanings: Meanings<Step>) {
  return (answer: HttpAnswer): Step | Trouble => {
    const meaning = meanings[answer.status] ?? stepOfStatus(answer);
    return typeof meaning === 'function' ? meaning(answer) : meaning;
  };
}

const REFUSALS = new Map<number, 'auth' | 'credits' | 'plan'>([
  [401, 'auth'],
  [402, 'credits'],
  [403, 'plan'],
]);

const RETRIES = new Map<number, 'rate_limit' | 'upstream'>([
  [429, 'rate_limit'],
  // Requests with these statuses may succeed later, although some are in the 4xx class.
  [408, 'upstream'],
  [425, 'upstream'],
  [500, 'upstream'],
  [501, 'upstream'],
  [503, 'upstream'],
]);

export function stepOfStatus({ status, headers }: HttpAnswer): Trouble {
  const refused = REFUSALS.get(status);
  if (refused) return { kind: 'fatal', why: refused };
  const afterMs = retryAfterMs(headers);
  const why = RETRIES.get(status);
  if (why) return { kind: 'retry', why, afterMs };
  // Other 5xx codes mean that a gateway lost a response. The source behind it may have done the
  // work.
  if (status >= 500) return { kind: 'retry', why: 'unanswered', afterMs };
  return protocol('status');
}
