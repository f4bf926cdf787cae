import { finished } from 'node:stream/promises';
import type { Request, ResponseObject, ResponseToolkit, Server } from '@hapi/hapi';
import type { Logger } from 'pino';
import { DatabaseError } from '../../db/errors.ts';
import { ApiError, problem } from '../problems.ts';

/** On every answer, unless it says itself who may keep it: taken for nothing else than it says it is, and kept by nobody. */
export const PRIVATE = { 'x-content-type-options': 'nosniff', 'cache-control': 'no-store' } as const;

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
  const { requestId: http_request_id } = request.app;
  if (error instanceof DatabaseError && error.unavailable) {
    log.warn({ code: error.code, http_request_id }, 'database unavailable');
    return problem('service_unavailable', { headers: { 'retry-after': '5' } });
  }
  if ('output' in error && (error.output as { statusCode: number }).statusCode === 400)
    return problem('bad_request');
  log.error({ err: error, http_request_id, route: request.route.path }, 'request failed');
  return problem('internal_error');
}

function write(h: ResponseToolkit, error: ApiError): ResponseObject {
  const type = error.status === 422 ? 'application/json; charset=utf-8' : 'application/problem+json';
  const response = h.response(JSON.stringify(error.body)).code(error.status).type(type);
  response.charset(error.status === 422 ? 'utf-8' : '');
  for (const [name, value] of Object.entries(error.headers)) response.header(name, value);
  return response;
}
