import { finished } from 'node:stream/promises';
import type { Request, Server } from '@hapi/hapi';
import type { Logger } from 'pino';
import { DatabaseError } from '../db/errors.ts';
import table from './problems.json' with { type: 'json' };
import type { OperationId } from './routes.ts';

/** A kind of problem: one row of problems.json. */
export interface ProblemKind {
  readonly status: number;
  readonly title: string;
  /** Operations that can fail this way. `unexpected`: no operation should. */
  readonly at: 'all' | 'keyed' | 'unexpected' | readonly OperationId[];
  /** Description in the OpenAPI document. */
  readonly description: string;
  /** Headers in addition to those of every response. */
  readonly headers?: readonly ('Allow' | 'Retry-After' | 'WWW-Authenticate')[];
  /**
   * Presence of the rate limit headers in these responses. `sometimes`: an unknown path is not
   * counted, and a request without a valid key has no quota.
   */
  readonly counted?: 'always' | 'sometimes';
  /**
   * The text for people, by stable code. `{name}` stands for a value passed to `problem`, `{name
   * credit}` for a number of credits.
   */
  readonly codes: Readonly<Record<string, string>>;
  /** Example values for the OpenAPI document. */
  readonly example?: Values;
  /** True if the values are also members of the body. */
  readonly hasMembers?: true;
}

type Values = Readonly<Record<string, string | number>>;

type Name = keyof typeof table;
export type ProblemCode = { [N in Name]: keyof (typeof table)[N]['codes'] }[Name];

/**
 * The errors except the 422. They are thrown by code, described in the OpenAPI document, and listed
 * in api/docs/errors.md, Errors.
 */
export const PROBLEMS = table as Readonly<Record<Name, ProblemKind>>;

/**
 * A response that isn't a success. Thrown by handlers and extensions, written by `registerErrors`.
 */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  readonly status: number;
  readonly body: object;
  readonly headers: Readonly<Record<string, string>>;

  constructor(status: number, body: object, headers: Readonly<Record<string, string>> = {}) {
    super(`HTTP ${status}`);
    this.status = status;
    this.body = body;
    this.headers = headers;
  }
}

/** Returns the header that links to the explanation of a code or of a type of a 422 (RFC 8288). */
function helpLink(code: string, title: string | null = null): { link: string } {
  const link = `</docs/errors#${code}>; rel="help"`;
  if (title === null) return { link };
  return { link: `${link}; title="${title}"` };
}

/**
 * Returns the response for one code: application/problem+json (RFC 9457).
 * @param values values for its text; `wait` is also the `Retry-After`
 */
export function problem(
  code: ProblemCode,
  values: Values = {},
  headers: Readonly<Record<string, string>> = {},
): ApiError {
  const kinds = Object.values(PROBLEMS);
  const kind = kinds.find(({ codes }) => Object.hasOwn(codes, code)) ?? PROBLEMS.InternalError;
  const all: Record<string, string> = { ...helpLink(code), ...headers };
  if (values.wait !== undefined) all['retry-after'] = String(values.wait);
  return new ApiError(kind.status, problemBody(kind, code, values), all);
}

/** Returns the body for one code. */
export function problemBody(kind: ProblemKind, code: string, values: Values = {}) {
  const { status, title, codes, hasMembers } = kind;
  const detail = filledIn(codes[code] ?? '', values);
  const body = { type: 'about:blank', title, status, code, detail };
  return hasMembers ? { ...body, ...values } : body;
}

/** Replaces `{name}` by a value and `{name noun}` by a number with its noun. */
function filledIn(text: string, values: Values): string {
  return text.replaceAll(/\{(\w+)( \w+)?\}/g, (_, name: string, noun?: string) => {
    const value = values[name];
    if (noun === undefined) return String(value);
    return value === 1 ? `1${noun}` : `${value}${noun}s`;
  });
}

/** An entry of a 422 (api/docs/errors.md, Errors), worded like FastAPI and pydantic 2. */
export interface Problem {
  readonly loc: readonly (string | number)[];
  readonly msg: string;
  readonly type: string;
}

/**
 * Returns a 422. Its body is exactly `{detail: […]}`, with every problem at once.
 * @param hint help that the problems' texts don't give, in plain ASCII without quotes: the title of
 * the help link
 */
export function invalid(detail: readonly Problem[], hint: string | null = null): ApiError {
  return new ApiError(422, { detail }, helpLink(detail[0]?.type ?? '', hint));
}

/**
 * Headers of every response. Browsers must not guess another type, and caches must not store a
 * response unless its own `Cache-Control` allows it.
 */
export const PRIVATE = {
  'x-content-type-options': 'nosniff',
  'cache-control': 'no-store',
} as const;

/**
 * Converts every thrown error, ours or hapi's, to an error response. The response reveals nothing
 * about an unknown cause.
 */
export function registerErrors(server: Server, log: Logger): void {
  server.ext('onPreResponse', async (request, h) => {
    const { response } = request;
    if (!(response instanceof Error)) return h.continue;
    const { status, body, headers } = toApiError(response, request, log);
    await discardBody(request);
    const answer = h.response(JSON.stringify(body)).code(status);
    if (status === 422) answer.type('application/json').charset('utf-8');
    else answer.type('application/problem+json').charset('');
    for (const [name, value] of Object.entries(headers)) answer.header(name, value);
    return answer;
  });
}

/**
 * Reads and discards the rest of a body. If a connection is closed after the response while the
 * client still sends, a reset destroys the response. The listener's time-out limits this.
 */
async function discardBody(request: Request): Promise<void> {
  const body = request.raw.req;
  // A client that waits for `100 Continue` sends nothing. hapi sends it when it reaches the
  // payload.
  const isAsking = body.headers.expect !== undefined && request.payload === undefined;
  if (body.readableEnded || body.destroyed || isAsking) return;
  body.resume();
  await finished(body, { writable: false }).catch(() => {});
}

function toApiError(error: Error, request: Request, log: Logger): ApiError {
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
