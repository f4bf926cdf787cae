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
import { count } from '../../db/metrics.ts';
import { type ApiError, PRIVATE, type ProblemCode, problem } from '../problems.ts';
import type { Sample } from './overload.ts';
import { MAX_WAIT_S } from './prefer.ts';

/**
 * A connection may move no byte for this long while a response is due or being sent. It is longer than any response
 * takes: the longest wait that a client may ask for, and the time in line and in PostgreSQL.
 */
const STALL_MS = MAX_WAIT_S * 1000 + 20_000;

/**
 * The HTTP listener below hapi. A request that has not arrived whole after 10 s ends with its socket; the time between
 * two requests does not count. A client that does not read its response ends with its socket as well.
 * @param keepAliveMs how long a connection may be idle between two requests
 */
export function createListener(keepAliveMs: number, stallMs = STALL_MS): Server {
  const listener = createServer({
    keepAliveTimeout: keepAliveMs,
    requestTimeout: 10_000,
    headersTimeout: 8000,
    connectionsCheckingInterval: 1000,
    // Its answer would be Node's own; `requireHost` gives ours.
    requireHostHeader: false,
  });
  // An idle one costs some 10 KB.
  listener.maxConnections = 10_000;
  listener.timeout = stallMs;
  return listener;
}

/**
 * Closes new connections of an address that has enough of them, so that one address can't take those of all others.
 * @param listener one that hapi has taken
 * @param peerOf the address that a connection counts for; null for a proxy of ours, which is not bounded
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
 * Answers what never becomes a request (broken HTTP, headers over 16 KiB, a client that is too slow) as any other
 * error, and closes the socket. hapi's own handler says 400 to all of it and waits for the client to close.
 * @param listener one that hapi has taken
 */
export function answerBrokenRequests(listener: Server, log: Logger, sample: Sample): void {
  const answers = new WeakMap<Duplex, ServerResponse>();
  const remember: RequestListener = (request, response) => answers.set(request.socket, response);
  listener.prependListener('request', remember);
  listener.prependListener('checkContinue', remember);
  // An expectation that nobody knows isn't a reason to refuse (RFC 9110, 10.1.1).
  listener.on('checkExpectation', (request, response) => listener.emit('request', request, response));
  listener.removeAllListeners('clientError');
  listener.on('clientError', (cause: NodeJS.ErrnoException, socket) => {
    const earlier = answers.get(socket);
    const halfSent = earlier?.headersSent && !earlier.writableFinished;
    if (!socket.writable || halfSent) {
      socket.destroy();
      return;
    }
    const error = problem(BROKEN[cause.code ?? ''] ?? 'bad_request');
    const requestId = randomUUID();
    const { status } = error;
    const suppressed = sample(status);
    if (suppressed !== null)
      log.info({ http_request_id: requestId, status, code: cause.code, suppressed }, 'http refused');
    socket.end(toHttp(error, requestId), () => socket.destroy());
  });
}

/** Requests that one connection may have sent ahead of their answers. */
const MAX_PIPELINED = 32;

/**
 * Lets hapi see the requests of one connection one after the other: a client that pipelines is answered in order
 * anyway, and takes no more of the process than any other. What sends too far ahead is told so after the answer that is
 * under way, read no further, and closed a second later: closed at once, it would be back at once.
 * @param listener one that hapi has taken
 */
export function boundPipelines(listener: Server): void {
  // What waits for the answer before it; nothing is under way on a connection that has no line.
  const lines = new WeakMap<Duplex, (() => void)[]>();
  const refused = new WeakSet<Duplex>();
  const refuse = (socket: Duplex) => {
    // The request before has made it read on.
    socket.pause();
    socket.write(toHttp(problem('too_many_at_once', { wait: 1 }), randomUUID()));
    setTimeout(() => socket.destroy(), 1000);
  };
  const next = (socket: Duplex) => {
    // After an answer that closes the connection nobody would hear what becomes of the next request.
    const isOver = socket.destroyed || socket.writableEnded;
    const begin = isOver ? undefined : lines.get(socket)?.shift();
    if (begin) begin();
    else lines.delete(socket);
  };
  for (const event of ['request', 'checkContinue'] as const) {
    const [dispatch] = listener.listeners(event) as [RequestListener];
    listener.removeAllListeners(event);
    listener.on(event, (request, response) => {
      const { socket } = request;
      if (refused.has(socket)) return;
      const line = lines.get(socket);
      const begin = () => {
        response.once('close', () => next(socket));
        dispatch(request, response);
      };
      if (!line) {
        lines.set(socket, []);
        begin();
      } else if (line.length < MAX_PIPELINED) {
        line.push(begin);
      } else {
        refused.add(socket);
        socket.pause();
        // Undocumented: at a 2, as at an upgrade, Node's parser stops. Or else all that has arrived, a thousand requests in
        // 64 KB, is parsed in this turn. For a real upgrade Node would close the socket, and lose the answer under way.
        const onIncoming = (next: IncomingMessage) => Object.assign(next, { upgrade: false }) && 2;
        Object.assign(Object(Reflect.get(socket, 'parser')), { onIncoming });
        line.splice(0, line.length, () => refuse(socket));
      }
    });
  }
}

/** @throws {ApiError} 400 for HTTP/1.1 without Host (RFC 9112, section 3.2) */
export function requireHost({ httpVersion, headers }: IncomingMessage): void {
  if (httpVersion === '1.1' && headers.host === undefined) throw problem('bad_request');
}

/** Node's codes that aren't simply broken HTTP. */
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
