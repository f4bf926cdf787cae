import { randomUUID } from 'node:crypto';
import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
} from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Logger } from 'pino';
import { count } from '../../db/operations/metrics.ts';
import { type ApiError, PRIVATE, type ProblemCode, problem } from '../problems.ts';
import type { NetworkOf, Sample } from './overload.ts';
import { MAX_WAIT_S } from './prefer.ts';

/**
 * A connection is closed if no data moves on it for this long while the client waits for a response
 * or receives one. This must be longer than the slowest response: the longest wait that a client
 * may request, plus the time in a queue and in PostgreSQL.
 */
const STALL_MS = MAX_WAIT_S * 1000 + 20_000;

/** The time in which a request must arrive. */
const ARRIVAL_MS = 10_000;

/** The requests with more time, with what they have after `ARRIVAL_MS`. */
const extensions = new WeakMap<IncomingMessage, number>();

/** Gives a request more time to arrive than the 10 seconds that others have. */
export function allowTime(request: IncomingMessage, ms: number): void {
  extensions.set(request, ms - ARRIVAL_MS);
}

/**
 * Creates the HTTP server that hapi uses. It closes the socket of a request that has not arrived
 * completely within 10 seconds, and the socket of a client that does not read its response. The
 * pause between two requests on a connection does not count toward the 10 seconds.
 * @param keepAliveMs how long a connection may be idle between two requests
 */
export function createListener(keepAliveMs: number, stallMs = STALL_MS): Server {
  const listener = createServer({
    keepAliveTimeout: keepAliveMs,
    requestTimeout: ARRIVAL_MS,
    headersTimeout: 8000,
    connectionsCheckingInterval: 1000,
    // For a missing Host header, Node would send its own response. `requireHost` sends ours.
    requireHostHeader: false,
  });
  // An idle connection costs about 10 KB.
  listener.maxConnections = 10_000;
  listener.timeout = stallMs;
  return listener;
}

/**
 * Limits the number of open connections per address, so that one address can't use up all
 * connections. A new connection beyond the limit is closed.
 * @param listener a listener that hapi already uses
 * @param peerOf returns the address of a connection's client, or null if the connection comes from
 * one of our proxies, which have no limit
 */
export function boundConnections(
  listener: Server,
  perAddress: number,
  peerOf: (socket: Socket) => string | null,
): void {
  const open = new Map<string, number>();
  listener.prependListener('connection', (socket: Socket) => {
    const peer = peerOf(socket);
    if (peer === null) return;
    const others = open.get(peer) ?? 0;
    if (others >= perAddress) {
      count('npe_connections_refused_total', {});
      socket.destroy();
      return;
    }
    open.set(peer, others + 1);
    socket.once('close', () => {
      const left = (open.get(peer) ?? 1) - 1;
      if (left > 0) open.set(peer, left);
      else open.delete(peer);
    });
  });
}

/**
 * Sends an error response in our usual form for input that never becomes a request: broken HTTP,
 * headers over 16 KiB, or a client that is too slow. Then closes the socket. hapi's own handler
 * would respond 400 to all of these and wait until the client closes the socket.
 * @param listener a listener that hapi already uses
 */
export function rejectBrokenRequests(
  listener: Server,
  log: Logger,
  sample: Sample,
  networkOf: NetworkOf,
): void {
  const responses = new WeakMap<Duplex, ServerResponse>();
  const remember: RequestListener = (request, response) =>
    responses.set(request.socket, response);
  listener.prependListener('request', remember);
  listener.prependListener('checkContinue', remember);
  // Handles a request with an unknown `Expect` header like any other (RFC 9110, section 10.1.1). By
  // default, Node would respond 417.
  listener.on('checkExpectation', (request, response) =>
    listener.emit('request', request, response),
  );
  listener.removeAllListeners('clientError');
  const refuse = (cause: NodeJS.ErrnoException, socket: Duplex): void => {
    const earlier = responses.get(socket);
    const isSlow = cause.code === 'ERR_HTTP_REQUEST_TIMEOUT';
    if (isSlow && earlier && extend(earlier.req, () => refuse(cause, socket))) {
      return;
    }
    const halfSent = earlier?.headersSent && !earlier.writableFinished;
    if (!socket.writable || halfSent) {
      socket.destroy();
      return;
    }
    const refusal = BROKEN[cause.code ?? ''] ?? 'bad_request';
    const error = problem(refusal);
    const requestId = randomUUID();
    const { status } = error;
    count('npe_http_refusals_total', { reason: refusal });
    const suppressed = sample(status);
    if (suppressed !== null) {
      const client_network = networkOf({ socket: socket as Socket, headers: {} });
      const why = { status, refusal, code: cause.code, suppressed };
      log.info({ http_request_id: requestId, ...why, client_network }, 'http refused');
    }
    socket.end(toHttp(error, requestId), () => socket.destroy());
  };
  listener.on('clientError', refuse);
}

/**
 * Calls `end` later, if the request has more time and has not arrived by then. Node reports a slow
 * request only once.
 * @returns false if the request has no more time
 */
function extend(request: IncomingMessage, end: () => void): boolean {
  const ms = extensions.get(request);
  // If this request is complete, the slow one is the next request on the connection.
  if (ms === undefined || request.complete) return false;
  extensions.delete(request);
  setTimeout(() => {
    if (!request.complete) end();
  }, ms).unref();
  return true;
}

/**
 * Maximum number of further requests that a client may send on a connection before it has received
 * the response to the current one.
 */
const MAX_PIPELINED = 32;

/**
 * Passes the requests of one connection to hapi one at a time, so that a client that pipelines
 * requests gets no advantage. Closes a connection on which too many requests are waiting.
 * @param listener a listener that hapi already uses
 */
export function boundPipelines(listener: Server): void {
  // The requests of each connection that wait for an earlier response. A connection without an
  // entry is idle.
  const waiting = new WeakMap<Duplex, (() => void)[]>();
  for (const event of ['request', 'checkContinue'] as const) {
    const [dispatch] = listener.listeners(event) as [RequestListener];
    listener.removeAllListeners(event);
    listener.on(event, (request, response) => {
      const { socket } = request;
      const begin = () => {
        response.once('close', () => beginNext(waiting, socket));
        dispatch(request, response);
      };
      const ahead = waiting.get(socket);
      // After the socket is destroyed, Node still emits requests that arrived in the same packet.
      // They are ignored.
      if (socket.destroyed) return;
      if (!ahead) {
        waiting.set(socket, []);
        begin();
      } else if (ahead.length < MAX_PIPELINED) {
        ahead.push(begin);
      } else {
        socket.destroy();
      }
    });
  }
}

function beginNext(waiting: WeakMap<Duplex, (() => void)[]>, socket: Duplex): void {
  // If this response closes the connection, the waiting requests are dropped.
  const isOver = socket.destroyed || socket.writableEnded;
  const begin = isOver ? undefined : waiting.get(socket)?.shift();
  if (begin) begin();
  else waiting.delete(socket);
}

/** @throws {ApiError} 400 for HTTP/1.1 without Host (RFC 9112, section 3.2) */
export function requireHost({ httpVersion, headers }: IncomingMessage): void {
  if (httpVersion === '1.1' && headers.host === undefined) {
    throw problem('bad_request');
  }
}

/** Errors of Node that get a more specific response than `bad_request`. */
const BROKEN: Readonly<Record<string, ProblemCode>> = {
  ERR_HTTP_REQUEST_TIMEOUT: 'request_timeout',
  HPE_HEADER_OVERFLOW: 'headers_too_large',
};

function toHttp({ status, body, headers }: ApiError, requestId: string): string {
  const text = JSON.stringify(body);
  const title = 'title' in body ? body.title : 'Error';
  return [
    `HTTP/1.1 ${status} ${title}`,
    'connection: close',
    'content-type: application/problem+json',
    `content-length: ${Buffer.byteLength(text)}`,
    `x-request-id: ${requestId}`,
    ...Object.entries({ ...PRIVATE, ...headers }).map((header) => header.join(': ')),
    '',
    text,
  ].join('\r\n');
}
