import { once } from 'node:events';
import { createServer } from 'node:http2';
import {
  type AddressInfo,
  createServer as createSocketServer,
  type Server,
} from 'node:net';
import type { ExecutionContext } from 'ava';
import { LOOPBACK } from '../../deploy/ports.ts';

/** An empty protobuf message in a gRPC frame: a flag and the length, which are 0. */
const EMPTY_MESSAGE = Buffer.alloc(5);

/** A gRPC response: its code and details. If the code is 0, the response is an empty message. */
export type GrpcStatus = readonly [code: number, details?: string];

/**
 * Starts a server that responds to every call of Temporal's API with a gRPC status.
 * @param statusOf gets the name of the called method
 */
export async function startGrpc(
  t: ExecutionContext,
  statusOf: (method: string) => GrpcStatus,
): Promise<string> {
  const server = createServer().on('stream', (stream, { ':path': path = '' }) => {
    const [code, details = ''] = statusOf(path.split('/').at(-1) ?? '');
    const headers = { ':status': 200, 'content-type': 'application/grpc' };
    const trailers = {
      'grpc-status': String(code),
      'grpc-message': encodeURIComponent(details),
    };
    stream.on('wantTrailers', () => stream.sendTrailers(trailers));
    stream.respond(headers, { waitForTrailers: true });
    stream.end(code === 0 ? EMPTY_MESSAGE : undefined);
  });
  return await listening(t, server);
}

/**
 * Starts a server that rejects every call with one gRPC code. Temporal Cloud does this for a wrong
 * key or role, but a dev server does not.
 */
export function startRefusing(
  t: ExecutionContext,
  code: number,
  details = '',
): Promise<string> {
  return startGrpc(t, () => [code, details]);
}

/** Starts a server that accepts connections and never responds, as a stopped process does. */
export async function startSilent(t: ExecutionContext): Promise<string> {
  const server = createSocketServer((socket) => socket.on('error', () => {}));
  return await listening(t, server);
}

async function listening(t: ExecutionContext, server: Server): Promise<string> {
  server.listen(0, LOOPBACK);
  await once(server, 'listening');
  t.teardown(() => server.close());
  return `${LOOPBACK}:${(server.address() as AddressInfo).port}`;
}
