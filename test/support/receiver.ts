import type { ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import { Socket } from 'node:net';
import {
  ensureCertificate,
  type ReceivedDelivery,
  readDelivery,
  statusByPath,
} from '../../deploy/local/receiver.ts';
import { LOOPBACK, listenOn } from '../../deploy/ports.ts';

export type Receiver = Awaited<ReturnType<typeof startReceiver>>;

/**
 * Responds to a delivery whose body has been read. The receiver then neither responds nor closes by
 * itself.
 * @param tcp the connection below TLS
 */
export type Behavior = (response: ServerResponse, tcp: Socket) => void;

/** Returns a behavior that sends a status, headers, and a short body. */
export function status(code: number, headers: Readonly<Record<string, string>> = {}) {
  return (response: ServerResponse) =>
    response.writeHead(code, headers).end(code === 204 ? undefined : `${code}\n`);
}

/**
 * Starts the local stack's receiver for tests. They can read its deliveries and set the behavior of
 * paths.
 * @param dir the folder of the certificate
 */
export async function startReceiver(dir: string) {
  const { cert, key, certFile } = await ensureCertificate(dir);
  const received: ReceivedDelivery[] = [];
  const behaviors = new Map<string, Behavior>();
  const statusOf = statusByPath();
  /** Connections by the port of their other end. */
  const connections = new Map<number, Socket>();
  const server = createServer({ cert, key }, async (request, response) => {
    const tcp = connections.get(request.socket.remotePort ?? 0) ?? new Socket();
    const delivery = await readDelivery(request, []).catch(() => null);
    if (delivery === null) return void response.destroy();
    received.push(delivery);
    const behave = behaviors.get(delivery.path) ?? status(statusOf(delivery));
    behave(response, tcp);
  });
  server.on('connection', (tcp) => {
    if (!(tcp instanceof Socket)) return;
    const { remotePort = 0 } = tcp;
    connections.set(remotePort, tcp);
    tcp.once('close', () => connections.delete(remotePort));
  });
  const { port, close } = await listenOn(server, 0, 'the webhook receiver');
  return {
    /** `https://127.0.0.1:PORT`. Deliveries are accepted at every path below it. */
    url: `https://${LOOPBACK}:${port}`,
    /** Path of the certificate to trust, in PEM format. */
    caFile: certFile,
    /** Returns the received deliveries, newest last. */
    deliveries: (): readonly ReceivedDelivery[] => received,
    /** Sets the response to all further deliveries to a path. Null restores the path's default. */
    setBehavior(path: string, behavior: Behavior | null) {
      if (behavior === null) behaviors.delete(path);
      else behaviors.set(path, behavior);
    },
    close,
  };
}
