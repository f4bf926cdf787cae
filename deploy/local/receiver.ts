import { once } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import { Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { Webhook } from 'standardwebhooks';
import { ensureCertificate } from './certificate.ts';
import { LOOPBACK, portTaken } from './ports.ts';
import { type Behaviour, status } from './receiver-behaviours.ts';

/** One webhook delivery as it arrived. */
export interface ReceivedDelivery {
  /** RFC 3339. */
  readonly at: string;
  /** The `webhook-id` header, empty where there was none. */
  readonly id: string;
  readonly path: string;
  /** Whether the public Standard Webhooks library accepts the signature; never without a secret to check it with. */
  readonly verified: boolean;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly body: string;
}

export interface Receiver {
  /** `https://127.0.0.1:PORT`: deliveries are taken at every path below. */
  readonly url: string;
  /** The certificate to trust, PEM. */
  readonly caFile: string;
  /** What arrived, newest last. */
  deliveries(): readonly ReceivedDelivery[];
  /**
   * The first delivery, past or coming, that the predicate holds for.
   * @throws {Error} when none arrived for `ms` milliseconds
   */
  waitFor(predicate: (delivery: ReceivedDelivery) => boolean, ms: number): Promise<ReceivedDelivery>;
  /** Signatures are checked with this `whsec_` secret from now on. */
  setSecret(secret: string): void;
  /** From now on deliveries to that path are answered so; null gives the path its own answer back. */
  setBehaviour(path: string, behaviour: Behaviour | null): void;
  /** Ends open connections too. */
  close(): Promise<void>;
}

/** The oldest are dropped: a local stack may stay up for days. */
const KEPT = 10_000;

/**
 * A webhook receiver for development and tests: HTTPS on loopback with a self-made certificate.
 * `POST /status/CODE` is always answered with that status, `POST /fail/N/…` with 500 the first N times for each
 * `webhook-id` and 200 then, any other path with 200. `GET /` lists what arrived as JSON, newest last.
 * @param port 0 for any that is free
 * @param dir where the certificate is kept
 * @throws {LocalProblem} `port_taken`
 */
export async function startReceiver(settings: {
  readonly port: number;
  readonly secret?: string | undefined;
  readonly dir: string;
  readonly onDelivery?: (delivery: ReceivedDelivery) => void;
}): Promise<Receiver> {
  const { cert, key, certFile } = await ensureCertificate(settings.dir);
  const received: ReceivedDelivery[] = [];
  const waiting = new Set<(delivery: ReceivedDelivery) => void>();
  const behaviours = new Map<string, Behaviour>();
  const failures = new Map<string, number>();
  /** By the port of their other end. */
  const connections = new Map<number, Socket>();
  let webhook = settings.secret === undefined ? null : new Webhook(settings.secret);

  const server = createServer({ cert, key }, (request, response) => {
    if (request.method === 'GET') list(response);
    else if (request.method === 'POST') void receive(request, response).catch(() => response.destroy());
    else status(405, { allow: 'GET, POST' })(response);
  });
  server.on('connection', (tcp) => {
    if (!(tcp instanceof Socket)) return;
    const { remotePort = 0 } = tcp;
    connections.set(remotePort, tcp);
    tcp.once('close', () => connections.delete(remotePort));
  });
  server.listen(settings.port, LOOPBACK);
  await once(server, 'listening').catch(() => {
    throw portTaken(settings.port, 'the webhook receiver');
  });
  const address = server.address();
  const port = typeof address === 'object' && address !== null ? address.port : settings.port;

  function list(response: ServerResponse): void {
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(received, null, 2));
  }

  async function receive(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const body = await text(request);
    const path = request.url ?? '/';
    const id = String(request.headers['webhook-id'] ?? '');
    const delivery: ReceivedDelivery = {
      at: new Date().toISOString(),
      id,
      path,
      verified: webhook !== null && verifies(webhook, body, request.headers),
      headers: request.headers,
      body,
    };
    received.push(delivery);
    if (received.length > KEPT) received.shift();
    const behave = behaviours.get(path) ?? ownBehaviour(path, id);
    behave(response, connections.get(request.socket.remotePort ?? 0) ?? new Socket());
    settings.onDelivery?.(delivery);
    for (const offer of waiting) offer(delivery);
  }

  function ownBehaviour(path: string, id: string): Behaviour {
    const code = /^\/status\/([2-5][0-9]{2})(?:\/|$)/.exec(path)?.[1];
    if (code !== undefined) return status(Number(code));
    const wanted = Number(/^\/fail\/([0-9]{1,4})(?:\/|$)/.exec(path)?.[1] ?? 0);
    const failed = failures.get(id) ?? 0;
    if (failed >= wanted) return status(200);
    failures.set(id, failed + 1);
    return status(500);
  }

  return {
    url: `https://${LOOPBACK}:${port}`,
    caFile: certFile,
    deliveries: () => received,
    waitFor(predicate, ms) {
      const past = received.find(predicate);
      if (past !== undefined) return Promise.resolve(past);
      return new Promise((resolve, reject) => {
        const timer = setTimeout(() => {
          waiting.delete(offer);
          reject(
            new Error(`no such delivery reached the receiver within ${ms} ms, ${received.length} others did`),
          );
        }, ms);
        const offer = (delivery: ReceivedDelivery) => {
          if (!predicate(delivery)) return;
          clearTimeout(timer);
          waiting.delete(offer);
          resolve(delivery);
        };
        waiting.add(offer);
      });
    },
    setSecret: (secret) => {
      webhook = new Webhook(secret);
    },
    setBehaviour: (path, behaviour) => {
      if (behaviour === null) behaviours.delete(path);
      else behaviours.set(path, behaviour);
    },
    async close() {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}

function verifies(webhook: Webhook, body: string, headers: IncomingMessage['headers']): boolean {
  const header = (name: string) => String(headers[name] ?? '');
  try {
    webhook.verify(
      body,
      {
        'webhook-id': header('webhook-id'),
        'webhook-timestamp': header('webhook-timestamp'),
        'webhook-signature': header('webhook-signature'),
      },
      { jsonParse: false },
    );
    return true;
  } catch {
    return false;
  }
}
