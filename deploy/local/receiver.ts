import { X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import { Socket } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { generate } from 'selfsigned';
import { Webhook } from 'standardwebhooks';
import { commandLine } from '../main.ts';
import { integer } from '../operator/arguments.ts';
import { addSecret } from './check-signature.ts';
import { LOOPBACK, portTaken, runProgram } from './processes.ts';

/** One webhook delivery as it arrived. */
export interface ReceivedDelivery {
  /** RFC 3339. */
  readonly at: string;
  /** The `webhook-id` header, empty if there was none. */
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
  setBehavior(path: string, behavior: Behavior | null): void;
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
  const behaviors = new Map<string, Behavior>();
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
    const behave = behaviors.get(path) ?? ownBehavior(path, id);
    behave(response, connections.get(request.socket.remotePort ?? 0) ?? new Socket());
    settings.onDelivery?.(delivery);
    for (const offer of waiting) offer(delivery);
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
    setBehavior: (path, behavior) => {
      if (behavior === null) behaviors.delete(path);
      else behaviors.set(path, behavior);
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

/**
 * Answers a delivery whose body has been read; the receiver then neither answers nor closes by itself.
 * @param tcp the connection below TLS
 */
export type Behavior = (response: ServerResponse, tcp: Socket) => void;

/** One that needs the answer alone. */
type Answering = (response: ServerResponse) => void;

const DRIP_MS = 20;
const MIB = 1024 * 1024;
const FLOOD_MIB = 100;

/** A status with headers and a short body. */
export function status(code: number, headers: Readonly<Record<string, string>> = {}): Answering {
  return (response) => response.writeHead(code, headers).end(code === 204 ? undefined : `${code}\n`);
}

/** Never answers, never closes. */
export const silence: Answering = () => {};

/** Closes the connection without an answer, by a TCP reset. */
export const reset: Behavior = (_response, tcp) => {
  tcp.resetAndDestroy();
};

/** Closes the connection without an answer, in good order. */
export const hangUp: Answering = (response) => {
  response.socket?.end();
};

/** A header line every few milliseconds, without an end. */
export const headerDrip: Answering = (response) => {
  response.socket?.write('HTTP/1.1 200 OK\r\n');
  drip(response, () => response.socket?.write('x: 1\r\n'));
};

/** An answer whose body never ends and comes byte by byte. */
export const bodyDrip: Answering = (response) => {
  response.writeHead(200);
  drip(response, () => response.write('.'));
};

/** 100 MB, as fast as they are taken. */
export const flood: Answering = (response) => {
  response.writeHead(200, { 'content-length': FLOOD_MIB * MIB });
  const chunk = Buffer.alloc(MIB);
  let left = FLOOD_MIB;
  const send = () => {
    while (left > 0 && !response.destroyed) {
      left -= 1;
      if (!response.write(chunk)) {
        response.once('drain', send);
        return;
      }
    }
    response.end();
  };
  send();
};

/** 100 MB packed into 100 KB by gzip, unasked. */
export const gzipBomb: Answering = (response) => {
  response.writeHead(200, { 'content-encoding': 'gzip' }).end(gzipSync(Buffer.alloc(FLOOD_MIB * MIB)));
};

function drip(response: ServerResponse, send: () => void): void {
  const timer = setInterval(send, DRIP_MS);
  response.once('close', () => clearInterval(timer));
}

interface Certificate {
  /** PEM. */
  readonly cert: string;
  /** PEM. */
  readonly key: string;
  /** The file that holds `cert`: whoever connects has to trust it. */
  readonly certFile: string;
}

const DAY_MS = 86_400_000;

/**
 * A self-made certificate for `localhost`, 127.0.0.1 and ::1, kept as `cert.pem` and `key.pem` in a folder, so that
 * who trusts it need not be told again at each start. It is made anew when missing, unreadable or about to expire.
 */
export async function ensureCertificate(dir: string): Promise<Certificate> {
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

const CERTIFICATE_FOLDER = fileURLToPath(new URL('../../.local/receiver', import.meta.url));

const HELP = `
It listens on https://127.0.0.1:PORT, and prints each delivery as one line: time, whether its signature is right,
webhook-id, path, size.

POST /any/path        answered with 200
POST /status/CODE     answered with CODE
POST /fail/N/any      answered with 500 the first N times for each webhook-id, then with 200
GET  /                all that arrived, as JSON, newest last

Exit codes: 0 ended by a signal, 1 failed (one sentence on stderr), 2 wrong usage.`;

async function receive({ port, secret }: { readonly port: number; readonly secret?: string }): Promise<void> {
  const receiver = await startReceiver({
    port,
    secret,
    dir: CERTIFICATE_FOLDER,
    onDelivery: (delivery) => console.log(lineOf(delivery)),
  });
  console.log(`receiver on ${receiver.url}, certificate ${receiver.caFile}`);
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => void receiver.close());
}

function lineOf({ at, verified, id, path, body }: ReceivedDelivery): string {
  return `${at} ${verified ? 'verified  ' : 'unverified'} ${id || '-'} ${path} ${Buffer.byteLength(body)} bytes`;
}

// Last, when every constant above is set. Importers only start receivers.
if (import.meta.main) {
  const command = commandLine({
    name: 'receiver',
    description: 'A webhook receiver with a self-made certificate.',
    help: HELP,
  })
    .name('node deploy/local/receiver.ts')
    .option('--port <PORT>', 'where to listen, 0 for any free one', integer(0, 65_535), 8443)
    .action(receive);
  addSecret(command, 'to verify signatures with; none is verified without it');
  await runProgram(command);
}
