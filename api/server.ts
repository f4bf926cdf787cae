import { randomUUID } from 'node:crypto';
import {
  server as hapiServer,
  type Lifecycle,
  type Request,
  type RouteOptions,
  type Server,
} from '@hapi/hapi';
import { time } from '../db/metrics.ts';
import { parseTraceparent, publishSpan, spanIdOf } from '../db/traces.ts';
import { registerDocs } from './docs/docs.ts';
import { type AuthDeps, registerAuth } from './http/auth.ts';
import {
  answerBrokenRequests,
  boundConnections,
  boundPipelines,
  createListener,
  requireHost,
} from './http/connection.ts';
import { UNREAD_BODY } from './http/json-body.ts';
import {
  createAddressOf,
  createFloodGuard,
  createPeerOf,
  createSample,
  type Sample,
} from './http/overload.ts';
import { createQueues, type Place } from './http/turn-queue.ts';
import { idsIn } from './http/validation.ts';
import { type ApiError, PRIVATE, problem, registerErrors } from './problems.ts';
import { historyHandlers } from './routes/history.ts';
import { pollHandlers } from './routes/poll.ts';
import { Readiness, serviceHandlers } from './routes/service.ts';
import { type SubmitDeps, submitHandlers } from './routes/submit.ts';
import { type OperationId, ROUTES } from './routes.ts';
import { Starter, type TemporalDeps } from './temporal.ts';

declare module '@hapi/hapi' {
  interface ServerApplicationState {
    /** True if the server still serves but is about to end. */
    isDraining?: boolean;
    /** `ready`, or the reason why it can't serve. */
    readiness: () => Promise<string>;
    queues: ReturnType<typeof createQueues>;
    /**
     * Counts a request for a public document. Returns the 429 if its address has used up its share.
     */
    countReader: (request: Request) => ApiError | null;
  }
  interface RequestApplicationState {
    /** Shown as `X-Request-Id` and in every log line of this request. */
    requestId?: string;
    /**
     * The place in the queue of submits. Every POST with a key gets one before it is counted.
     */
    place: Place;
    /**
     * The rate limit headers, set once the request was counted. Every response to it has them,
     * errors included.
     */
    rateHeaders?: Readonly<Record<string, string>>;
    /** Milliseconds that the request was held because the client preferred to wait. */
    waitedMs?: number;
    /** The batch that a submit created. */
    batchId?: string;
    /** Unknown members of the body, listed in a header of every response. */
    ignoredFields?: string;
  }
}

export interface ApiDeps extends Omit<SubmitDeps, 'starter'>, TemporalDeps, AuthDeps {
  readonly host: string;
  /** 0 picks a free port. */
  readonly port: number;
  /** Milliseconds that a connection may be idle between two requests. */
  readonly keepAliveMs: number;
  /** Connections that one address may have at once. */
  readonly connectionsPerAddress: number;
  /** Size of the pool of connections to PostgreSQL. */
  readonly poolSize: number;
}

/**
 * Creates the HTTP API, not yet listening. Each concern registers itself, in the order of
 * DECISIONS.md, Order of checks.
 */
export function createServer(deps: ApiDeps): Server {
  const listener = createListener(deps.keepAliveMs);
  const sample = createSample();
  const server = hapiServer({
    host: deps.host,
    port: deps.port,
    listener,
    routes: {
      // hapi's own payload time-out waits for the slow client that it should end. The listener's
      // time-out closes the socket.
      payload: { timeout: false },
      // Headers without a meaning here must not change the response. hapi would respond 400 to odd
      // cookies and 206 to a range.
      state: { parse: false },
      response: { ranges: false },
    },
    // A trailing slash changes nothing.
    router: { stripTrailingSlash: true },
    debug: false,
  });
  boundPipelines(listener);
  boundConnections(listener, deps.connectionsPerAddress, createPeerOf(deps.trustedProxies));
  server.app.queues = createQueues(deps.poolSize);
  const readiness = new Readiness(deps);
  server.app.readiness = async () => {
    if (server.app.isDraining) return 'draining';
    return await readiness.check();
  };
  const addressOf = createAddressOf(deps.trustedProxies);
  const readers = createFloodGuard(deps.rateWindowMs);
  server.app.countReader = (request) => readers.countFailure(addressOf(request.raw.req));
  answerBrokenRequests(listener, deps.log, sample);
  // This runs first, so that a response carries the id even if its request never reached a route.
  server.ext('onRequest', (request, h) => {
    request.app.requestId = clientRequestId(request) ?? randomUUID();
    requireHost(request.raw.req);
    requirePath(request);
    return h.continue;
  });
  registerErrors(server, deps.log);
  registerAuth(server, deps);
  registerHeaders(server);
  registerRoutes(server, deps);
  registerDocs(server);
  registerLog(server, deps, sample);
  // Requests that wait for a change get their responses before the server stops.
  server.ext('onPreStop', () => deps.changes.close());
  return server;
}

/** Registers the headers of every response. */
function registerHeaders(server: Server): void {
  server.ext('onPreResponse', ({ app, response }, h) => {
    if (response instanceof Error) return h.continue;
    // The client's next request then uses a new connection, which leads to another process.
    if (server.app.isDraining) response.header('connection', 'close');
    response.header('x-request-id', app.requestId ?? randomUUID());
    for (const [name, value] of Object.entries(PRIVATE))
      response.header(name, value, { override: false });
    for (const [name, value] of Object.entries(app.rateHeaders ?? {})) response.header(name, value);
    if (app.ignoredFields) response.header('ignored-fields', app.ignoredFields);
    return h.continue;
  });
}

/**
 * Registers every route. For other methods at its path hapi would respond 404, but the contract
 * says 405.
 */
function registerRoutes(server: Server, deps: ApiDeps): void {
  const starter = new Starter(deps, deps.log);
  server.ext('onPostStop', () => starter.ended());
  const handlers: Readonly<Record<OperationId, Lifecycle.Method>> = {
    ...submitHandlers({ ...deps, starter }),
    ...pollHandlers(deps.db, deps.changes),
    ...historyHandlers({ ...deps, starter }),
    ...serviceHandlers(deps),
  };
  const open = { auth: false, payload: UNREAD_BODY } as const;
  const refuse = (allow: string) => () => {
    throw problem('method_not_allowed', { allow }, { allow });
  };
  for (const { id, method, path, scope } of ROUTES) {
    const options: RouteOptions = {};
    if (scope === 'open') options.auth = false;
    if (method === 'POST') options.payload = UNREAD_BODY;
    server.route({ method, path, options, handler: handlers[id] });
    // A path has only one method.
    const allowed = method === 'GET' ? 'GET, HEAD' : method;
    server.route({ method: '*', path, options: open, handler: refuse(allowed) });
  }
  // Otherwise, `{request_id}` would match this path.
  server.route({
    method: 'GET',
    path: '/api/v1/email/bulk',
    options: { auth: false },
    handler: refuse('POST'),
  });
  server.route({
    method: '*',
    path: '/{any*}',
    options: open,
    handler: () => {
      throw problem('not_found');
    },
  });
}

/**
 * Matches a path with a `.` or `..` segment, as hapi's router and the WHATWG URL recognize them.
 * Both would resolve it to another route.
 */
const DOT_SEGMENT = /^[^?#]*[/\\](?:\.|%2e){1,2}(?:[/\\?#]|$)/i;

/**
 * Rejects paths that no route should see. Escapes a path that cannot be decoded, so that it becomes
 * a wrong path or a malformed id (404, 422) instead of a 400 before the key is checked.
 * @throws {ApiError} 400 for a target without a path (`a://b`), on which hapi's router would end
 * the process; 404 for a path that leads to a different route than it shows
 */
function requirePath(request: Request): void {
  if (!request.path.startsWith('/')) throw problem('bad_request');
  if (DOT_SEGMENT.test(request.raw.req.url ?? '')) throw problem('not_found');
  try {
    decodeURIComponent(request.path);
  } catch {
    request.setUrl(new URL(`http://localhost${request.path.replaceAll('%', '%25')}`));
  }
}

/** Returns the request id that the client sent if it is harmless to log, or null. */
function clientRequestId(request: Request): string | null {
  const header: unknown = request.headers['x-request-id'];
  return typeof header === 'string' && /^[\w.:-]{1,128}$/.test(header) ? header : null;
}

/**
 * Logs one line per request with a valid key, and a sample of all others. An accepted submit is the
 * root of its trace.
 */
function registerLog(server: Server, { log }: ApiDeps, sample: Sample): void {
  server.events.on('response', (request) => {
    const { app, auth, info, response } = request;
    const status = response instanceof Error ? response.output.statusCode : response?.statusCode;
    // The template is logged instead of the path, because a client can put anything there.
    const { method, path: route } = request.route;
    const ms = Date.now() - info.received;
    // The two clocks may differ by a millisecond.
    const workedMs = Math.max(0, ms - (app.waitedMs ?? 0));
    const labels = { route, method, status: status ?? 'none' };
    time('npe_http_request_duration_seconds', labels, workedMs / 1000);
    const ids = { organization_id: auth.credentials?.organizationId, batch_id: app.batchId };
    if (app.batchId) {
      publishSpan({
        batchId: app.batchId,
        spanId: spanIdOf(app.batchId),
        parentId: null,
        name: `POST ${route}`,
        kind: 'server',
        durationMs: ms,
        attributes: { 'http.route': route, 'http.response.status_code': status, ...ids },
        link: parseTraceparent(request.headers.traceparent),
      });
    }
    const suppressed = auth.credentials ? undefined : sample(status);
    if (suppressed === null) return;
    const http_request_id = app.requestId;
    const line = { http_request_id, method, route, status, suppressed, ms };
    log.info({ ...line, ...ids, ...idsIn(request) }, 'http');
  });
}
