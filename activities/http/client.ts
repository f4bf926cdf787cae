import { subscribe } from 'node:diagnostics_channel';
import { Agent, fetch, type Headers, type Response, setGlobalDispatcher } from 'undici';
import { bodyOf, type Field, FieldError } from './fields.ts';
import { lookupBy, type Names } from './names.ts';

// One call of somebody's JSON API, and what an answer means that is the same everywhere.

/** An answer, as far as every adapter reads one. */
export interface HttpAnswer {
  readonly status: number;
  readonly headers: Headers;
  /** The body's text; null if it was larger than is read. */
  readonly text: string | null;
}

/** From now on all calls of this process find their hosts so. */
export function findHostsBy(find: Names['find']): void {
  setGlobalDispatcher(new Agent({ autoSelectFamily: true, connect: { lookup: lookupBy(find) } }));
}

export type HttpHeaders = Readonly<Record<string, string>>;

/** Answers about one person are a few kilobytes; more than this is not an answer. */
const MAX_BODY = 1024 * 1024;
const MAX_RETRY_AFTER_MS = 86_400_000;

/**
 * What connections failed with before they could carry a question. fetch's own errors do not tell:
 * a reset during the handshake of TLS and one after the question have the same code. undici
 * publishes the very error that becomes the cause of fetch's (its docs/api/DiagnosticsChannel,
 * `undici:client:connectError`).
 */
const connectErrors = new WeakSet<Error>();
subscribe('undici:client:connectError', (message) => {
  if (typeof message !== 'object' || message === null || !('error' in message)) return;
  if (message.error instanceof Error) connectErrors.add(message.error);
});

/** What is asked: a GET, or with `json` a POST of it. */
export interface Question {
  readonly path: string;
  readonly json?: unknown;
}

/**
 * Somebody's JSON API: the function it gives puts one question, and `read` makes of a whole answer
 * what it means; if none comes back, the question is to be put again. Redirects are not followed:
 * fetch would carry a vendor's own key header to wherever they point. The function throws whatever
 * `signal` was aborted with.
 * @param baseUrl what paths are added to, with or without a slash at its end; empty if each path is
 * a whole URL
 * @param headers of every question, such as its key
 * @param callMs for a whole call, from the first byte sent to the last one read
 */
export function jsonApi(baseUrl: string, headers: HttpHeaders, callMs: number) {
  const base = baseUrl.replace(/\/+$/, '');
  return async <Step>(
    { path, json }: Question,
    signal: AbortSignal,
    read: (answer: HttpAnswer) => Step,
  ): Promise<Step | Trouble> => {
    const common = { accept: 'application/json', ...headers };
    const posted = json !== undefined && {
      method: 'POST',
      headers: { ...common, 'content-type': 'application/json' },
      body: JSON.stringify(json),
    };
    const either = AbortSignal.any([signal, AbortSignal.timeout(callMs)]);
    let answer: HttpAnswer;
    try {
      const init = { headers: common, ...posted, signal: either, redirect: 'manual' } as const;
      const response = await fetch(base + path, init);
      answer = {
        status: response.status,
        headers: response.headers,
        text: await readText(response),
      };
    } catch (error) {
      // Our own timeout is an answer that did not come; the caller's end is the caller's.
      signal.throwIfAborted();
      const cause = connectCause(error);
      if (cause === null) return { kind: 'retry', why: 'unanswered', afterMs: null };
      return { kind: 'retry', why: 'unsent', cause, afterMs: null };
    }
    return read(answer);
  };
}

/**
 * Whether what is sent to a URL can be read by nobody on the way: keys, names and addresses are.
 */
export function isConfidential({ protocol, hostname }: URL): boolean {
  return protocol === 'https:' || (protocol === 'http:' && LOOPBACK.test(hostname));
}

/** As the URL standard writes every spelling of these. */
const LOOPBACK = /^(?:localhost|127\.[0-9]+\.[0-9]+\.[0-9]+|\[::1\])$/;

/**
 * The codes of failed connections that are reported. They are labels of a metric, so the set is
 * bounded.
 */
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
 * Returns why no connection was made, or null unless it is certain that none was: an `unsent`
 * question is put again, and one that was sent after all is paid for twice. All of OpenSSL's errors
 * are `ERR_SSL`; a code that is not in the list is `other`.
 */
function connectCause(error: unknown): string | null {
  if (!(error instanceof Error && error.cause instanceof Error && connectErrors.has(error.cause))) {
    return null;
  }
  const code = 'code' in error.cause ? String(error.cause.code) : '';
  if (code.startsWith('ERR_SSL_')) return 'ERR_SSL';
  return CONNECT_CODES.has(code) ? code : 'other';
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
 * `Retry-After` in milliseconds from now, at most a day; null if it is absent or cannot be read.
 */
export function retryAfterMs(headers: Headers, header = 'retry-after'): number | null {
  const ms = parseRetryAfter(headers.get(header));
  return ms === null ? null : Math.min(ms, MAX_RETRY_AFTER_MS);
}

/**
 * RFC 9110, 10.2.3: seconds, or a date in GMT; milliseconds from now, 0 for a date that has passed.
 */
export function parseRetryAfter(header: string | null | undefined): number | null {
  const text = header?.trim() ?? '';
  if (/^[0-9]+$/.test(text)) return Number(text) * 1000;
  // Date.parse alone takes `-5` and `1.5` for years.
  const at = /^[A-Z].* GMT$/.test(text) ? Date.parse(text) : Number.NaN;
  return Number.isNaN(at) ? null : Math.max(0, at - Date.now());
}

/**
 * No answer. `retry`: the same question may be asked again after `afterMs` (null: our own backoff).
 * - `rate_limit`: too many questions; nothing was done
 * - `upstream`: the source's own word that it failed or gave up (500, 503, an error in a body, a
 *   job that has failed, been canceled or is no longer known)
 * - `unsent`: no connection was made (no name, refused, unreachable, TLS or its certificate), so
 *   nobody was asked and nothing is charged; `cause` is the code of the failed connection, one of a
 *   known set, such as `ECONNREFUSED`
 * - `unanswered`: the question was sent, or may have been, and the answer was lost: too slow,
 *   reset, cut off, at a gateway (502, 504, 520 to 530), or as nobody can classify; the source may
 *   have done the work, and may have charged
 *
 * `fatal`: it will not serve us until an operator acts, or it is not as documented (`protocol`):
 * `field` is where, such as `emails[0].type`, `status` or `body`; never a value.
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

/** In a word or two, such as `unsent: CERT_HAS_EXPIRED`. */
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

/** The answer is not as documented at this place. */
export function protocol(field: string): Trouble {
  return { kind: 'fatal', why: 'protocol', field };
}

/**
 * What `read` makes of a JSON body. An answer that cannot be read is not asked for again: the next
 * one would have the same form, and may cost again.
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

/** What an answer of each of these statuses means, or what reads it. */
export type Meanings<Step> = Readonly<Record<number, Step | ((answer: HttpAnswer) => Step)>>;

/**
 * Reads an answer by its status; one without a meaning of the source's own means what HTTP means by
 * it. The bodies of those are never read: what a failing server or a gateway before it writes is
 * not the source's word.
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
  // Not this time, whatever their class says.
  [408, 'upstream'],
  [425, 'upstream'],
  [500, 'upstream'],
  [501, 'upstream'],
  [503, 'upstream'],
]);

export function stepOfStatus({ status, headers }: HttpAnswer): Trouble {
  const refused = REFUSALS.get(status);
  if (refused) return { kind: 'fatal', why: refused };
  // The others are a gateway's word that it lost an answer, not that the source behind it has done
  // nothing.
  const why = RETRIES.get(status) ?? (status >= 500 ? 'unanswered' : null);
  return why ? { kind: 'retry', why, afterMs: retryAfterMs(headers) } : protocol('status');
}
