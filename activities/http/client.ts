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

// This file calls JSON APIs over HTTP. It also interprets the status codes that mean the same for
// all vendors.

/** The parts of an HTTP response that adapters read. */
export interface HttpResponse {
  readonly status: number;
  readonly headers: Headers;
  /** The body's text, or null if it was larger than `MAX_BODY`. */
  readonly text: string | null;
}

/** Makes all HTTP calls of this process resolve host names with `find`. */
export function findHostsBy(find: Names['find']): void {
  setGlobalDispatcher(
    new Agent({ autoSelectFamily: true, connect: { lookup: lookupBy(find) } }),
  );
}

export type HttpHeaders = Readonly<Record<string, string>>;

/**
 * The most bytes that are read from a response body. A normal response about one person has a few
 * kilobytes.
 */
const MAX_BODY = 1024 * 1024;
const MAX_RETRY_AFTER_MS = 86_400_000;

/**
 * The errors of connections that failed before a request was sent. Error codes do not distinguish
 * them from later errors. For example, a reset during the TLS handshake and a reset after the
 * request have the same code. undici publishes each connection error on a diagnostics channel
 * (`undici:client:connectError`, see its docs/api/DiagnosticsChannel). The same object later
 * becomes the cause of fetch's error.
 */
const connectErrors = new WeakSet<Error>();
subscribe('undici:client:connectError', (message) => {
  if (typeof message !== 'object' || message === null || !('error' in message)) {
    return;
  }
  if (message.error instanceof Error) connectErrors.add(message.error);
});

/** A request to a JSON API. It is a POST if `json` is given, and otherwise a GET. */
export interface SourceRequest {
  readonly path: string;
  readonly json?: unknown;
}

/**
 * Returns a function that sends one request to a JSON API and reads the whole response with `read`.
 * If no response arrives, it returns a `retry`. If `signal` is aborted, it throws the reason of the
 * abort. Redirects are not followed, because fetch would send the header with the vendor's API key
 * to the new host.
 * @param baseUrl the URL that paths are appended to, with or without a slash at its end; empty if
 * each path is a whole URL
 * @param headers sent with every request, such as the API key
 * @param callMs time limit of a whole call, including the connection and the body
 */
export function jsonApi(baseUrl: string, headers: HttpHeaders, callMs: number) {
  const base = baseUrl.replace(/\/+$/, '');
  return async <Step>(
    request: SourceRequest,
    signal: AbortSignal,
    read: (response: HttpResponse) => Step,
  ): Promise<Step | Trouble> => {
    const init = initOf(request, headers);
    const either = AbortSignal.any([signal, AbortSignal.timeout(callMs)]);
    let response: HttpResponse;
    try {
      response = await send(base + request.path, { ...init, signal: either });
    } catch (error) {
      // If the caller aborted the request, this throws. Our own timeout counts as a missing
      // response.
      signal.throwIfAborted();
      return troubleOf(error);
    }
    return read(response);
  };
}

function initOf({ json }: SourceRequest, headers: HttpHeaders): RequestInit {
  const common = { accept: 'application/json', ...headers };
  if (json === undefined) return { headers: common };
  return {
    method: 'POST',
    headers: { ...common, 'content-type': 'application/json' },
    body: JSON.stringify(json),
  };
}

async function send(url: string, init: RequestInit): Promise<HttpResponse> {
  const response = await fetch(url, { ...init, redirect: 'manual' });
  const text = await readText(response);
  return { status: response.status, headers: response.headers, text };
}

function troubleOf(error: unknown): Trouble {
  const cause = connectCause(error);
  if (cause === null) {
    return { kind: 'retry', why: 'unanswered', afterMs: null };
  }
  return { kind: 'retry', why: 'unsent', cause, afterMs: null };
}

/** Matches loopback hosts, as a URL object normalizes them. */
export const LOOPBACK = /^(?:localhost|127\.[0-9]+\.[0-9]+\.[0-9]+|\[::1\])$/;

/**
 * Returns true if a request to this URL is encrypted or stays on this machine. Requests contain API
 * keys, names, and addresses.
 */
export function isConfidential({ protocol, hostname }: URL): boolean {
  return protocol === 'https:' || (protocol === 'http:' && LOOPBACK.test(hostname));
}

/**
 * The error codes of failed connections that we report unchanged. They become metric labels, so
 * their number must be limited.
 */
const CONNECT_CODES: ReadonlySet<string> = new Set([
  // Codes of failed DNS lookups.
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
  // Codes of network errors.
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
  // Codes of invalid TLS certificates.
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
 * Returns the error code of a failed connection, or null if a connection may have been made. In
 * case of doubt it must be null. We repeat a request whose connection failed, and a vendor that had
 * received this request would charge twice. All errors of OpenSSL are reported as `ERR_SSL`, and
 * codes outside `CONNECT_CODES` as `other`.
 */
function connectCause(error: unknown): string | null {
  const cause = error instanceof Error ? error.cause : null;
  if (!(cause instanceof Error && connectErrors.has(cause))) {
    return null;
  }
  const code = 'code' in cause ? String(cause.code) : '';
  if (code.startsWith('ERR_SSL_')) return 'ERR_SSL';
  return CONNECT_CODES.has(code) ? code : 'other';
}

async function readText(response: Response): Promise<string | null> {
  const decoder = new TextDecoder();
  let size = 0;
  let text = '';
  // Returning from inside the loop cancels the stream and closes the connection.
  for await (const chunk of response.body ?? []) {
    size += chunk.byteLength;
    if (size > MAX_BODY) return null;
    text += decoder.decode(chunk, { stream: true });
  }
  return text + decoder.decode();
}

/**
 * Returns the delay that the header `Retry-After` demands, in milliseconds and at most a day.
 * Returns null if the header is absent or unreadable.
 */
export function retryAfterMs(headers: Headers, header = 'retry-after'): number | null {
  const ms = parseRetryAfter(headers.get(header));
  return ms === null ? null : Math.min(ms, MAX_RETRY_AFTER_MS);
}

/**
 * Parses `Retry-After` (RFC 9110, 10.2.3), which is a number of seconds or a GMT date. Returns
 * milliseconds from now, 0 for a date in the past, or null if the text is neither.
 */
export function parseRetryAfter(header: string | null | undefined): number | null {
  const text = header?.trim() ?? '';
  if (/^[0-9]+$/.test(text)) return Number(text) * 1000;
  // Date.parse would accept `-5` and `1.5` as dates, so we require the form of a GMT date.
  if (!/^[A-Z].* GMT$/.test(text)) return null;
  const at = Date.parse(text);
  return Number.isNaN(at) ? null : Math.max(0, at - Date.now());
}

/**
 * A failed call. A call that ended as `retry` may be repeated after `afterMs`. If `afterMs` is
 * null, the retry policy of the activity sets the delay. The reasons for a `retry`:
 * - `rate_limit`: the source rejected the call because we sent too many requests.
 * - `upstream`: the source reported an error of its own, such as a status of 500 or 503, an error
 *   in the body, or a job that failed, was canceled, or is unknown.
 * - `unsent`: no connection was made, so the source did nothing and charges nothing. Examples are
 *   an unknown host, a refused connection, and an invalid certificate. `cause` is the error code,
 *   such as `ECONNREFUSED`. Only known codes are reported.
 * - `unanswered`: the request may have reached the source, but we got no complete response.
 *   Examples are a timeout, a reset connection, and an error of a gateway (502, 504, 520 to 530).
 *   The source may have done the work and may have charged for it.
 *
 * A call that ended as `fatal` is not repeated. With `auth`, `credits`, or `plan`, an operator must
 * act. With `protocol`, the response is not as documented. `field` is the place of the deviation,
 * such as `emails[0].type`, `status`, or `body`, and never contains a value.
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

/** Returns a short text for a failed call, such as `unsent: CERT_HAS_EXPIRED`. */
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

/**
 * Returns the failure for a response that is not as documented.
 * @param field the place of the deviation
 */
export function protocol(field: string): Trouble {
  return { kind: 'fatal', why: 'protocol', field };
}

/**
 * Returns a function that parses a JSON body and passes it to `read`. A response that is not as
 * documented becomes a `fatal`, because a second response would have the same form and might cost
 * again.
 */
export function inBody<Step>(read: (body: Field, response: HttpResponse) => Step) {
  return (response: HttpResponse): Step | Trouble => {
    try {
      return read(bodyOf(response.text), response);
    } catch (error) {
      if (error instanceof FieldError) return protocol(error.message);
      throw error;
    }
  };
}

/** The step for each HTTP status, or a function that reads the step from the response. */
export type Meanings<Step> = Readonly<
  Record<number, Step | ((response: HttpResponse) => Step)>
>;

/**
 * Returns a function that reads a response by its HTTP status. A status that is not in `meanings`
 * has its general meaning (`stepOfStatus`). In that case the body is not read, because it may come
 * from a gateway and not from the source.
 */
export function byStatus<Step extends object>(meanings: Meanings<Step>) {
  return (response: HttpResponse): Step | Trouble => {
    const meaning = meanings[response.status] ?? stepOfStatus(response);
    return typeof meaning === 'function' ? meaning(response) : meaning;
  };
}

const REFUSALS = new Map<number, 'auth' | 'credits' | 'plan'>([
  [401, 'auth'],
  [402, 'credits'],
  [403, 'plan'],
]);

const RETRIES = new Map<number, 'rate_limit' | 'upstream'>([
  [429, 'rate_limit'],
  // Requests that got one of the following statuses may succeed later, although 408 and 425 are
  // client errors.
  [408, 'upstream'],
  [425, 'upstream'],
  [500, 'upstream'],
  [501, 'upstream'],
  [503, 'upstream'],
]);

export function stepOfStatus({ status, headers }: HttpResponse): Trouble {
  const refused = REFUSALS.get(status);
  if (refused) return { kind: 'fatal', why: refused };
  const afterMs = retryAfterMs(headers);
  const why = RETRIES.get(status);
  if (why) return { kind: 'retry', why, afterMs };
  // Any other 5xx status comes from a gateway that got no response from the source. The source may
  // have done the work.
  if (status >= 500) {
    return { kind: 'retry', why: 'unanswered', afterMs };
  }
  return protocol('status');
}
