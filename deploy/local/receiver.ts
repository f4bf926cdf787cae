import { X509Certificate } from 'node:crypto';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import { Socket } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { generate } from 'selfsigned';
import { Webhook } from 'standardwebhooks';
import { LOOPBACK, listenOn } from './processes.ts';

/** One webhook delivery as it arrived. */
export interface ReceivedDelivery {
  /** RFC 3339. */
  readonly at: string;
  /** The `webhook-id` header, empty if there was none. */
  readonly id: string;
  readonly path: string;
  /** Whether the public Standard Webhooks library accepts the signature by one of the secrets it is checked with. */
  readonly verified: boolean;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly body: string;
}

export type Receiver = Awaited<ReturnType<typeof startReceiver>>;

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
  readonly secrets?: readonly string[];
  readonly dir: string;
}) {
  const { cert, key, certFile } = await ensureCertificate(settings.dir);
  const received: ReceivedDelivery[] = [];
  const behaviors = new Map<string, Behavior>();
  const failures = new Map<string, number>();
  /** By the port of their other end. */
  const connections = new Map<number, Socket>();
  let webhooks = (settings.secrets ?? []).map((secret) => new Webhook(secret));

  const server = createServer({ cert, key }, (request, response) => {
    if (request.method === 'GET') list(response);
    else if (request.method === 'POST') void receive(request, response).catch(() => response.destroy());
    else response.writeHead(405, { allow: 'GET, POST' }).end();
  });
  server.on('connection', (tcp) => {
    if (!(tcp instanceof Socket)) return;
    const { remotePort = 0 } = tcp;
    connections.set(remotePort, tcp);
    tcp.once('close', () => connections.delete(remotePort));
  });
  const { port, close } = await listenOn(server, settings.port, 'the webhook receiver');

  function list(response: ServerResponse): void {
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(received, null, 2));
  }

  async function receive(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const body = await text(request);
    const path = request.url ?? '/';
    const id = String(request.headers['webhook-id'] ?? '');
    received.push({
      at: new Date().toISOString(),
      id,
      path,
      verified: webhooks.some((webhook) => verifies(webhook, body, request.headers)),
      headers: request.headers,
      body,
    });
    if (received.length > KEPT) received.shift();
    const behave = behaviors.get(path) ?? ownBehavior(path, id);
    behave(response, connections.get(request.socket.remotePort ?? 0) ?? new Socket());
  }

  function ownBehavior(path: string, id: string): Behavior {
    const code = /^\/status\/([2-5][0-9]{2})(?:\/|$)/.exec(path)?.[1];
    if (code !== undefined) return status(Number(code));
    const wanted = Number(/^\/fail\/([0-9]{1,4})(?:\/|$)/.exec(path)?.[1] ?? 0);
    const failed = failures.get(id) ?? 0;
    if (failed >= wanted) return status(200);
    failures.set(id, failed + 1);
    return status(500);
  }

  return {
    /** `https://127.0.0.1:PORT`: deliveries are taken at every path below. */
    url: `https://${LOOPBACK}:${port}`,
    /** The certificate to trust, PEM. */
    caFile: certFile,
    /** What arrived, newest last. */
    deliveries: (): readonly ReceivedDelivery[] => received,
    /** Signatures are checked with this `whsec_` secret alone from now on. */
    setSecret(secret: string) {
      webhooks = [new Webhook(secret)];
    },
    /** From now on deliveries to that path are answered so; null gives the path its own answer back. */
    setBehavior(path: string, behavior: Behavior | null) {
      if (behavior === null) behaviors.delete(path);
      else behaviors.set(path, behavior);
    },
    close,
  };
}

function verifies(webhook: Webhook, body: string, headers: IncomingMessage['headers']): boolean {
  try {
    webhook.verify(body, headers as Record<string, string>, { jsonParse: false });
    return true;
  } catch {
    return false;
  }
}

/**
 * Answers a delivery whose body has been read; the receiver then neither answers nor closes by itself.
 * @param tcp the connection below TLS
 */
export type Behavior = (response: ServerResponse, tcp: Socket) => void;

/** A status with headers and a short body. */
export function status(code: number, headers: Readonly<Record<string, string>> = {}) {
  return (response: ServerResponse) =>
    response.writeHead(code, headers).end(code === 204 ? undefined : `${code}\n`);
}

const DAY_MS = 86_400_000;

/**
 * A self-made certificate for `localhost`, 127.0.0.1 and ::1, kept as `cert.pem` and `key.pem` in a folder, so that
 * who trusts it need not be told again at each start. It is made anew when missing, unreadable or about to expire.
 * @returns it and its key, PEM, and the file that holds it: whoever connects has to trust it
 */
export async function ensureCertificate(dir: string) {
  const certFile = join(dir, 'cert.pem');
  const keyFile = join(dir, 'key.pem');
  const kept = await Promise.all([readFile(certFile, 'utf8'), readFile(keyFile, 'utf8')]).catch(() => null);
  if (kept !== null && isUsable(kept[0])) return { cert: kept[0], key: kept[1], certFile };

  const made = await generate([{ name: 'commonName', value: 'localhost' }], {
    keyType: 'ec',
    algorithm: 'sha256',
    notAfterDate: new Date(Date.now() + 365 * DAY_MS),
    extensions: [
      { name: 'basicConstraints', cA: true, critical: true },
      { name: 'keyUsage', digitalSignature: true, keyCertSign: true, critical: true },
      { name: 'extKeyUsage', serverAuth: true },
      {
        name: 'subjectAltName',
        altNames: [
          { type: 2, value: 'localhost' },
          { type: 7, ip: '127.0.0.1' },
          { type: 7, ip: '::1' },
        ],
      },
    ],
  });
  await mkdir(dir, { recursive: true });
  await writeFile(keyFile, made.private, { mode: 0o600 });
  await writeFile(certFile, made.cert);
  return { cert: made.cert, key: made.private, certFile };
}

function isUsable(cert: string): boolean {
  try {
    return Date.parse(new X509Certificate(cert).validTo) > Date.now() + DAY_MS;
  } catch {
    return false;
  }
}
