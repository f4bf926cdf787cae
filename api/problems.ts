import { finished } from 'node:stream/promises';
import type { Request, Server } from '@hapi/hapi';
import type { Logger } from 'pino';
import { DatabaseError } from '../db/connection/errors.ts';
import table from './problems.json' with { type: 'json' };
import type { OperationId } from './routes.ts';
import { type Site, SUPPORT } from './site.ts';

/** A kind of error response, as defined in problems.json. */
export interface ProblemKind {
  readonly status: number;
  readonly title: string;
  /**
   * The operations that can fail this way. `all` stands for all operations, and `keyed` for all
   * that need a key. `unexpected` marks an error that should never happen.
   */
  readonly at: 'all' | 'keyed' | 'unexpected' | readonly (OperationId | 'keyed')[];
  /** The description of the response in the OpenAPI document. */
  readonly description: string;
  /** Headers in addition to those of every response. */
  readonly headers?: readonly ('Allow' | 'Retry-After' | 'WWW-Authenticate')[];
  /**
   * Says how often these responses have the rate limit headers; never if it is missing. `sometimes`
   * is for errors that also occur on an unknown path or without a valid key. Such requests are not
   * counted toward a rate limit, so their responses lack the headers.
   */
  readonly counted?: 'always' | 'sometimes';
  /**
   * The text of each code, for people. In a text, `{name}` is replaced by a value that is passed to
   * `problem`. `{name credit}` is replaced by the value with the noun, such as `3 credits`.
   * `{support}` stays until the error is sent, because only the server knows the address.
   */
  readonly codes: Readonly<Record<string, string>>;
  /** Values for the example in the OpenAPI document. */
  readonly example?: Values;
  /** True if the values are members of the body in addition to being part of the text. */
  readonly hasMembers?: true;
}

type Values = Readonly<Record<string, string | number>>;

type Name = keyof typeof table;
export type ProblemCode = { [N in Name]: keyof (typeof table)[N]['codes'] }[Name];

/**
 * All error responses except the 422. `problem` creates one of them from its code. The OpenAPI
 * document and api/docs/errors.md describe them.
 */
export const PROBLEMS = table as Readonly<Record<Name, ProblemKind>>;

/** A body of an error. `detail` is a text for people, or the list of problems of a 422. */
interface ErrorBody {
  readonly detail: string | readonly Problem[];
}

/** An error response. Handlers and extensions throw it, and `registerErrors` sends it. */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  readonly status: number;
  readonly body: ErrorBody;
  readonly headers: Readonly<Record<string, string>>;

  constructor(
    status: number,
    body: ErrorBody,
    headers: Readonly<Record<string, string>> = {},
  ) {
    super(`HTTP ${status}`);
    this.status = status;
    this.body = body;
    this.headers = headers;
  }
}

/**
 * Returns the `Link` header (RFC 8288) to the documentation of an error. `code` is the code of a
 * problem, or the type of an entry in a 422.
 */
function helpLink(code: string): { link: string } {
  return { link: `</docs/errors#${code}>; rel="help"` };
}

/**
 * Returns the error response for a code, as application/problem+json (RFC 9457).
 * @param values the values of the text's placeholders. `wait` (in seconds) is also sent as
 * `Retry-After`
 */
export function problem(
  code: ProblemCode,
  values: Values = {},
  headers: Readonly<Record<string, string>> = {},
): ApiError {
  const kinds = Object.values(PROBLEMS);
  const kind =
    kinds.find(({ codes }) => Object.hasOwn(codes, code)) ?? PROBLEMS.InternalError;
  const all: Record<string, string> = { ...helpLink(code), ...headers };
  if (values.wait !== undefined) {
    all['retry-after'] = String(values.wait);
  }
  return new ApiError(kind.status, problemBody(kind, code, values), all);
}

/** Returns the body of the error response for a code. */
export function problemBody(kind: ProblemKind, code: string, values: Values = {}) {
  const { status, title, codes, hasMembers } = kind;
  const detail = filledIn(codes[code] ?? '', values);
  const body = { type: 'about:blank', title, status, code, detail };
  return hasMembers ? { ...body, ...values } : body;
}

/**
 * Replaces `{name}` by a value. Replaces `{name noun}` by a number and the noun in singular or
 * plural.
 */
function filledIn(text: string, values: Values): string {
  return text.replaceAll(/\{(\w+)( \w+)?\}/g, (_, name: string, noun?: string) => {
    if (name === 'support') return SUPPORT;
    const value = values[name];
    if (noun === undefined) return String(value);
    return value === 1 ? `1${noun}` : `${value}${noun}s`;
  });
}

/**
 * An entry of a 422 (api/docs/errors.md, 422). `msg` begins with the words of FastAPI and pydantic
 * 2, and then says what to do.
 */
export interface Problem {
  readonly loc: readonly (string | number)[];
  readonly msg: string;
  readonly type: string;
}

/** Returns a 422 response. Its body is `{detail: […]}` with all problems. */
export function invalid(detail: readonly Problem[]): ApiError {
  return new ApiError(422, { detail }, helpLink(detail[0]?.type ?? ''));
}

/**
 * Headers of every response. Browsers must not guess another content type, and caches must not
 * store a response unless its own `Cache-Control` allows it.
 */
export const PRIVATE = {
  'x-content-type-options': 'nosniff',
  'cache-control': 'no-store',
} as const;

/** The tag of the routes of the console, which shows errors as pages. */
export const CONSOLE = 'console';

/**
 * Converts every thrown error, ours or hapi's, to an error response. If the error is unknown, the
 * response does not reveal its cause.
 */
export function registerErrors(server: Server, site: Site, log: Logger): void {
  server.ext('onPreResponse', async (request, h) => {
    const { response, route } = request;
    if (!(response instanceof Error)) return h.continue;
    await discardBody(request);
    if (route.settings.tags?.includes(CONSOLE)) return h.continue;
    const { status, body, headers } = toApiError(response, request, log);
    request.app.refusal = 'code' in body ? String(body.code) : 'invalid';
    const shown = h.response(errorText(body, site)).code(status);
    if (status === 422) shown.type('application/json').charset('utf-8');
    else shown.type('application/problem+json').charset('');
    for (const [name, value] of Object.entries(headers)) {
      shown.header(name, value);
    }
    return shown;
  });
}

/** Returns an error body as JSON, with the address of support in its text. */
function errorText(body: ErrorBody, { support }: Site): string {
  if (typeof body.detail !== 'string') return JSON.stringify(body);
  return JSON.stringify({ ...body, detail: body.detail.replace(SUPPORT, support) });
}

/**
 * Reads and discards the rest of the body before an error response is sent. Otherwise the
 * connection could be closed while the client still sends. The client would then get a TCP reset
 * and might never see the response. The request time-out of the listener limits how long this
 * takes.
 */
async function discardBody(request: Request): Promise<void> {
  const body = request.raw.req;
  // A client that waits for `100 Continue` has not sent its body yet. hapi sends `100 Continue`
  // only when it reads the payload.
  const isAsking = body.headers.expect !== undefined && request.payload === undefined;
  if (body.readableEnded || body.destroyed || isAsking) return;
  body.resume();
  await finished(body, { writable: false }).catch(() => {});
}

/** Returns the error response for any thrown error. Logs an unexpected error. */
export function toApiError(error: Error, request: Request, log: Logger): ApiError {
  if (error instanceof ApiError) return error;
  const { requestId: http_request_id } = request.app;
  if (error instanceof DatabaseError && error.unavailable) {
    log.warn({ code: error.code, http_request_id }, 'database unavailable');
    return problem('service_unavailable', { wait: 5 });
  }
  if ('output' in error && (error.output as { statusCode: number }).statusCode === 400)
    return problem('bad_request');
  log.error({ err: error, http_request_id, route: request.route.path }, 'request failed');
  return problem('internal_error');
}
