import { randomUUID } from 'node:crypto';
import {
  server as hapiServer,
  type Lifecycle,
  type Request,
  type RouteOptions,
  type Server,
} from '@hapi/hapi';
import { parseTraceparent, publishSpan, spanIdOf } from '../db/connection/traces.ts';
import { count, time } from '../db/operations/metrics.ts';
import { registerDocs } from './docs/docs.ts';
import { type AuthDeps, registerAuth } from './http/auth.ts';
import {
  boundConnections,
  boundPipelines,
  createListener,
  rejectBrokenRequests,
  requireHost,
} from './http/connection.ts';
import { UNREAD_BODY } from './http/json-body.ts';
import {
  createAddressOf,
  createFloodGuard,
  createNetworkOf,
  createPeerOf,
  createSample,
  type NetworkOf,
  type Sample,
} from './http/overload.ts';
import { createQueues, type Place } from './http/turn-queue.ts';
import { unknownPath } from './http/unknown-path.ts';
import { idsIn } from './http/validation.ts';
import { registerMcp } from './mcp/mcp.ts';
import { type ApiError, PRIVATE, problem, registerErrors } from './problems.ts';
import { checkHandlers } from './routes/check.ts';
import { creditsHandlers } from './routes/credits.ts';
import { historyHandlers } from './routes/history.ts';
import { pollHandlers } from './routes/poll.ts';
import { Readiness, serviceHandlers } from './routes/service.ts';
import { type SubmitDeps, submitHandlers } from './routes/submit.ts';
import { type OperationId, ROUTES } from './routes.ts';
import type { Site } from './site.ts';
import { Starter, type TemporalDeps } from './temporal.ts';

declare module '@hapi/hapi' {
  interface ServerApplicationState {
    /** True if the process is shutting down. The server still handles requests for a while. */
    isDraining?: boolean;
    /** The number of responses with status 500 since the start. */
    errors: number;
    /** Returns `ready`, or the reason why the server can't handle requests. */
    readiness: () => Promise<string>;
    queues: ReturnType<typeof createQueues>;
    starter: Starter;
    /** Returns the address of the client, to count its requests. */
    addressOf: (request: Request) => string;
    /**
     * Counts a request for a public document. Returns the 429 if its IP address has sent too many
     * requests, otherwise null.
     */
    countReader: (request: Request) => ApiError | null;
  }
  interface RequestApplicationState {
    /** The id in the `X-Request-Id` header and in every log line of this request. */
    requestId?: string;
    /**
     * The place in the queue of writes. A POST with a valid key gets it before it is counted toward
     * the rate limit.
     */
    place: Place;
    /**
     * The rate limit headers. They are set when the request has been counted, and are sent even if
     * the response is an error.
     */
    rateHeaders?: Readonly<Record<string, string>>;
    /**
     * Milliseconds for which the request was held because of its `Prefer: wait` header, or waited for
     * calls of the API.
     */
    waitedMs?: number;
    /** The key of the request, even if it was rejected, unless it is unknown. */
    knownKey?: { readonly keyId: string; readonly organizationId: string };
    /** The code of the error response. */
    refusal?: string;
    /** The batch that a submit created. */
    batchId?: string;
    /** The value of the `Ignored-Fields` header: the unknown members of the body. */
    ignoredFields?: string;
  }
}

export interface ApiDeps extends Omit<SubmitDeps, 'starter'>, TemporalDeps, AuthDeps {
  readonly site: Site;
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

/** Browsers then use only https for a year. */
const HSTS = 'max-age=31536000';

/**
 * Creates the HTTP server of the API, which does not listen yet. The order of the calls below
 * matters: it is the order in which a request is checked (DECISIONS.md, Order of checks).
 */
export function createServer(deps: ApiDeps): Server {
  const listener = createListener(deps.keepAliveMs);
  const sample = createSample();
  const isSecure = deps.site.publicUrl.startsWith('https:');
  const server = hapiServer({
    host: deps.host,
    port: deps.port,
    listener,
    routes: {
      // hapi's payload time-out does not close the socket of a slow client. The time-out of the
      // listener does.
      payload: { timeout: false },
      // The API uses neither cookies nor ranges, so these headers must not change a response. By
      // default, hapi responds 400 to an invalid cookie and 206 to a range.
      state: { parse: false },
      response: { ranges: false },
    },
    // A path with a trailing slash is the same route.
    router: { stripTrailingSlash: true },
    debug: false,
  });
  boundPipelines(listener);
  boundConnections(
    listener,
    deps.connectionsPerAddress,
    createPeerOf(deps.trustedProxies),
  );
  server.app.queues = createQueues(deps.poolSize);
  const readiness = new Readiness(deps);
  server.app.readiness = async () => {
    if (server.app.isDraining) return 'draining';
    return await readiness.check();
  };
  const addressOf = createAddressOf(deps.trustedProxies);
  server.app.addressOf = (request) => addressOf(request.raw.req);
  const readers = createFloodGuard(deps.rateWindowMs);
  server.app.countReader = (request) =>
    readers.countFailure(server.app.addressOf(request));
  const clientNetworkOf = createNetworkOf(deps.trustedProxies);
  rejectBrokenRequests(listener, deps.log, sample, clientNetworkOf);
  // This extension runs first, so that every response has a request id, even if the request is
  // rejected before it reaches a route.
  server.ext('onRequest', (request, h) => {
    request.app.requestId = clientRequestId(request) ?? randomUUID();
    if (isSecure) {
      request.raw.res.setHeader('strict-transport-security', HSTS);
    }
    requireHost(request.raw.req);
    requirePath(request);
    return h.continue;
  });
  registerErrors(server, deps.site, deps.log);
  registerAuth(server, deps);
  registerHeaders(server);
  registerRoutes(server, deps);
  registerMcp(server, deps);
  registerDocs(server, deps.site);
  registerLog(server, deps, sample, clientNetworkOf);
  // Ends all waits, so that held requests get their responses before the server stops.
  server.ext('onPreStop', () => deps.changes.close());
  return server;
}

/** Registers the headers of every response. */
function registerHeaders(server: Server): void {
  server.ext('onPreResponse', ({ app, response }, h) => {
    if (response instanceof Error) return h.continue;
    // The client then opens a new connection for its next request, and so reaches another process.
    if (server.app.isDraining) response.header('connection', 'close');
    response.header('x-request-id', app.requestId ?? randomUUID());
    for (const [name, value] of Object.entries(PRIVATE))
      response.header(name, value, { override: false });
    for (const [name, value] of Object.entries(app.rateHeaders ?? {}))
      response.header(name, value);
    if (app.ignoredFields) {
      response.header('ignored-fields', app.ignoredFields);
    }
    return h.continue;
  });
}

/**
 * Registers all routes. Also registers a 405 response for other methods at the same paths, to which
 * hapi would respond 404.
 */
function registerRoutes(server: Server, deps: ApiDeps): void {
  const starter = new Starter(deps, deps.log);
  server.app.starter = starter;
  server.ext('onPostStop', () => starter.ended());
  const handlers: Readonly<Record<OperationId, Lifecycle.Method>> = {
    ...submitHandlers({ ...deps, starter }),
    ...checkHandlers(deps),
    ...pollHandlers(deps.db, deps.changes),
    ...historyHandlers({ ...deps, starter }),
    ...creditsHandlers(deps.db),
    ...serviceHandlers(deps),
  };
  const open = { auth: false, payload: UNREAD_BODY } as const;
  const refuse = (allow: string) => () => {
    throw problem('method_not_allowed', { allow }, { allow });
  };
  for (const { id, method, path, role } of ROUTES) {
    const options: RouteOptions = {};
    if (role === null) options.auth = false;
    else options.app = { role };
    if (method === 'POST') options.payload = UNREAD_BODY;
    server.route({ method, path, options, handler: handlers[id] });
    // Each path in `ROUTES` occurs with only one method.
    const allowed = method === 'GET' ? 'GET, HEAD' : method;
    server.route({ method: '*', path, options: open, handler: refuse(allowed) });
  }
  // Without this route, this path would match `/api/v1/email/{request_id}`, with `bulk` as the id.
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
    handler: ({ path }) => {
      throw unknownPath(path);
    },
  });
}

/**
 * Matches a path with a `.` or `..` segment, also if a dot is percent-encoded. hapi resolves such
 * segments, so the request would reach a different route than its path shows.
 */
const DOT_SEGMENT = /^[^?#]*[/\\](?:\.|%2e){1,2}(?:[/\\?#]|$)/i;

/**
 * Rejects paths that must not reach a route. If a path has invalid percent-encoding, hapi would
 * respond 400 before the key is checked. Such a path is escaped, so that it gets the usual 404 for
 * an unknown path or 422 for a malformed id.
 * @throws {ApiError} 400 for a request target without a path (`a://b`), which would crash hapi's
 * router and the process; 404 for a path with a `.` or `..` segment
 */
function requirePath(request: Request): void {
  if (!request.path.startsWith('/')) throw problem('bad_request');
  if (DOT_SEGMENT.test(request.raw.req.url ?? '')) {
    throw unknownPath(request.path);
  }
  try {
    decodeURIComponent(request.path);
  } catch {
    request.setUrl(new URL(`http://localhost${request.path.replaceAll('%', '%25')}`));
  }
}

/**
 * Returns the `X-Request-Id` that the client sent, or null if there isn't one or it is not safe to
 * log.
 */
function clientRequestId(request: Request): string | null {
  const header: unknown = request.headers['x-request-id'];
  return typeof header === 'string' && /^[\w.:-]{1,128}$/.test(header) ? header : null;
}

/**
 * Logs one line for each request with a key that exists, and a sample of the other requests.
 * Records the duration of every request as a metric, and counts error responses. Publishes the root
 * span of a trace for each accepted submit.
 */
function registerLog(
  server: Server,
  { log }: ApiDeps,
  sample: Sample,
  networkOf: NetworkOf,
): void {
  server.app.errors = 0;
  server.events.on('response', (request) => {
    const { app, auth, info, response } = request;
    const status =
      response instanceof Error ? response.output.statusCode : response?.statusCode;
    if (status === 500) server.app.errors += 1;
    // Logs the path template of the route instead of the path, because the path may contain
    // anything.
    const { method, path: route } = request.route;
    const ms = Date.now() - info.received;
    // `ms` and `waitedMs` come from different clocks, so the difference may be slightly negative.
    const workedMs = Math.max(0, ms - (app.waitedMs ?? 0));
    const labels = { route, method, status: status ?? 'none' };
    time('npe_http_request_duration_seconds', labels, workedMs / 1000);
    if (app.refusal) {
      count('npe_http_refusals_total', { reason: app.refusal });
    }
    const { keyId: key_id, organizationId: organization_id } = app.knownKey ?? {};
    const ids = { organization_id, batch_id: app.batchId };
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
    const suppressed = key_id || auth.credentials ? undefined : sample(status);
    if (suppressed === null) return;
    const { requestId: http_request_id, refusal } = app;
    const client_network = networkOf(request.raw.req);
    const client = { key_id, client_network };
    const line = { http_request_id, method, route, status, refusal, suppressed, ms };
    log.info({ ...line, ...client, ...ids, ...idsIn(request) }, 'http');
  });
}
