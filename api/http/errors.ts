import { finished } from 'node:stream/promises';
import type { Request, ResponseObject, ResponseToolkit, Server } from '@hapi/hapi';
import type { Logger } from 'pino';
import { DatabaseError } from '../../db/errors.ts';

/** One entry of a 422 (api/README.md, Errors), worded as FastAPI and pydantic 2 word it. */
export interface Problem {
  readonly loc: readonly (string | number)[];
  readonly msg: string;
  readonly type: string;
}

/** An answer that is not a success. Thrown by handlers and extensions, written by the one `onPreResponse` below. */
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

/** 422: exactly `{detail: […]}`, every problem at once. */
export function invalid(detail: readonly Problem[]): ApiError {
  return new ApiError(422, { detail });
}

export const TITLES: Readonly<Record<number, string>> = {
  400: 'Bad Request',
  401: 'Unauthorized',
  402: 'Payment Required',
  403: 'Forbidden',
  404: 'Not Found',
  405: 'Method Not Allowed',
  408: 'Request Timeout',
  409: 'Conflict',
  413: 'Content Too Large',
  415: 'Unsupported Media Type',
  429: 'Too Many Requests',
  431: 'Request Header Fields Too Large',
  500: 'Internal Server Error',
  503: 'Service Unavailable',
};

/** Every other error: application/problem+json (RFC 9457) with a stable `code`. */
export function problem(
  status: number,
  code: string,
  detail: string,
  extra: { readonly headers?: Record<string, string>; readonly members?: Record<string, number> } = {},
): ApiError {
  const body = {
    type: 'about:blank',
    title: TITLES[status] ?? 'Error',
    status,
    code,
    detail,
    ...extra.members,
  };
  return new ApiError(status, body, extra.headers);
}

/** On every answer, unless it says itself who may keep it: taken for nothing else than it says it is, and kept by nobody. */
export const PRIVATE = { 'x-content-type-options': 'nosniff', 'cache-control': 'no-store' } as const;

/** Nothing was done, but for an acknowledgement of the database that was lost: that is what the key settles. */
export const AWAY =
  'The service cannot reach its database right now. Try again shortly; repeat a submit with the same Idempotency-Key.';

/** Turns whatever was thrown, by us or by hapi, into the one shape; says nothing of a cause it does not know. */
export function registerErrors(server: Server, log: Logger): void {
  server.ext('onPreResponse', async (request: Request, h: ResponseToolkit) => {
    const { response } = request;
    if (!(response instanceof Error)) return h.continue;
    const error = toApiError(response, request, log);
    await discardBody(request);
    return write(h, error);
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
  if (error instanceof DatabaseError && error.unavailable) {
    log.warn({ code: error.code, http_request_id: request.app.requestId }, 'database unavailable');
    return problem(503, 'service_unavailable', AWAY, { headers: { 'retry-after': '5' } });
  }
  const status = 'output' in error ? (error.output as { statusCode: number }).statusCode : 500;
  switch (status) {
    case 400:
      return badRequest();
    default:
      log.error(
        { err: error, http_request_id: request.app.requestId, route: request.route.path },
        'request failed',
      );
      return problem(
        500,
        'internal_error',
        'Something went wrong on our side. Quote the X-Request-Id to support.',
      );
  }
}

export function badRequest(): ApiError {
  return problem(400, 'bad_request', 'The request is not well-formed HTTP.');
}

export function notFound(): ApiError {
  return problem(404, 'not_found', 'There is nothing at this path. The API lives under /api/v1.');
}

export function unknownBatch(): ApiError {
  return problem(404, 'batch_not_found', 'No batch with this id belongs to your organization.');
}

function write(h: ResponseToolkit, error: ApiError): ResponseObject {
  const type = error.status === 422 ? 'application/json; charset=utf-8' : 'application/problem+json';
  const response = h.response(JSON.stringify(error.body)).code(error.status).type(type);
  response.charset(error.status === 422 ? 'utf-8' : '');
  for (const [name, value] of Object.entries(error.headers)) response.header(name, value);
  return response;
}
