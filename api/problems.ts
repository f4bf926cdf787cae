import { finished } from 'node:stream/promises';
import type { Request, Server } from '@hapi/hapi';
import type { Logger } from 'pino';
import { DatabaseError } from '../db/errors.ts';
import table from './problems.json' with { type: 'json' };
import type { OperationId } from './routes.ts';

/** One way in which requests fail: a row of problems.json. */
export interface ProblemKind {
  readonly status: number;
  readonly title: string;
  /** Which operations answer so; `unexpected`: none is meant to. */
  readonly at: 'all' | 'keyed' | 'unexpected' | readonly OperationId[];
  /** For the OpenAPI document. */
  readonly description: string;
  /** Headers beside what every answer has. */
  readonly headers?: readonly ('Allow' | 'Retry-After' | 'WWW-Authenticate')[];
  /**
   * Whether such answers carry the headers of the rate limit. `sometimes`: a path that no route takes is nobody's
   * request, and without a valid key there is no quota.
   */
  readonly counted?: 'always' | 'sometimes';
  /** Each stable code with what it says to people; `{name}` is a value given to `problem`, `{name credit}` so many of them. */
  readonly codes: Readonly<Record<string, string>>;
  /** Such values, for the OpenAPI document. */
  readonly example?: Values;
  /** The values are also members of the body. */
  readonly hasMembers?: true;
}

type Values = Readonly<Record<string, string | number>>;

type Name = keyof typeof table;
export type ProblemCode = { [N in Name]: keyof (typeof table)[N]['codes'] }[Name];

/** Every error but the 422: thrown by its code, described in the OpenAPI document, listed in api/docs/errors.md, Errors. */
export const PROBLEMS = table as Readonly<Record<Name, ProblemKind>>;

/** An answer that isn't a success. Thrown by handlers and extensions, written by `registerErrors`. */
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

/** The header that leads to where a code, or a type of a 422, is explained (RFC 8288). */
function helpLink(code: string, title: string | null = null) {
  return { link: `</docs/errors#${code}>; rel="help"${title === null ? '' : `; title="${title}"`}` };
}

/**
 * The answer of one code: application/problem+json (RFC 9457).
 * @param values what its text names; `wait` is also the `Retry-After`
 */
export function problem(
  code: ProblemCode,
  values: Values = {},
  headers: Readonly<Record<string, string>> = {},
): ApiError {
  const kind =
    Object.values(PROBLEMS).find(({ codes }) => Object.hasOwn(codes, code)) ?? PROBLEMS.InternalError;
  const wait = values.wait === undefined ? {} : { 'retry-after': String(values.wait) };
  return new ApiError(kind.status, problemBody(kind, code, values), {
    ...helpLink(code),
    ...wait,
    ...headers,
  });
}

/** The body of one code. */
export function problemBody(kind: ProblemKind, code: string, values: Values = {}) {
  const { status, title, codes, hasMembers } = kind;
  const detail = (codes[code] ?? '').replaceAll(
    /\{(\w+)( \w+)?\}/g,
    (_, name: string, noun = '') => `${values[name]}${noun}${noun === '' || values[name] === 1 ? '' : 's'}`,
  );
  return { type: 'about:blank', title, status, code, detail, ...(hasMembers ? values : {}) };
}

/** One entry of a 422 (api/docs/errors.md, Errors), worded as FastAPI and pydantic 2 word it. */
export interface Problem {
  readonly loc: readonly (string | number)[];
  readonly msg: string;
  readonly type: string;
}

/**
 * 422: exactly `{detail: […]}`, every problem at once.
 * @param hint what its words leave unsaid, in plain ASCII without quotes: the title of the link for help
 */
export function invalid(detail: readonly Problem[], hint: string | null = null): ApiError {
  return new ApiError(422, { detail }, helpLink(detail[0]?.type ?? '', hint));
}

/** On every answer, unless it says itself who may keep it: taken for nothing else than it says it is, and kept by nobody. */
export const PRIVATE = { 'x-content-type-options': 'nosniff', 'cache-control': 'no-store' } as const;

/** Turns whatever was thrown, by us or by hapi, into the one shape; says nothing of a cause it does not know. */
export function registerErrors(server: Server, log: Logger): void {
  server.ext('onPreResponse', async (request, h) => {
    const { response } = request;
    if (!(response instanceof Error)) return h.continue;
    const { status, body, headers } = toApiError(response, request, log);
    await discardBody(request);
    const isInvalid = status === 422;
    const answer = h.response(JSON.stringify(body)).code(status);
    answer
      .type(isInvalid ? 'application/json' : 'application/problem+json')
      .charset(isInvalid ? 'utf-8' : '');
    for (const [name, value] of Object.entries(headers)) answer.header(name, value);
    return answer;
  });
}

/**
 * Reads away what is left of a body: an answer that is followed by a close while the client still sends is lost to a
 * reset. The listener's time-out bounds this.
 */
async function discardBody(request: Request): Promise<void> {
  const body = request.raw.req;
  // A client that waits to be told to continue sends nothing; hapi tells it when it gets to the payload.
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
