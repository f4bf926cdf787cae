import { once } from 'node:events';
import { createServer } from 'node:http2';
import type { AddressInfo } from 'node:net';
import type { ExecutionContext } from 'ava';
import { LOOPBACK } from '../../deploy/local/processes.ts';

/**
 * Starts a server that rejects every call with one gRPC code. Temporal Cloud does this for a wrong
 * key or role, but a dev server does not.
 */
export async function startRefusing(t: ExecutionContext, code: number): Promise<string> {
  const server = createServer().on('stream', (stream) => {
    const headers = {
      ':status': 200,
      'content-type': 'application/grpc',
      'grpc-status': String(code),
    };
    stream.respond(headers, { endStream: true });
  });
  server.listen(0, LOOPBACK);
  await once(server, 'listening');
  t.teardown(() => server.close());
  return `${LOOPBACK}:${(server.address() as AddressInfo).port}`;
}
