import { X509Certificate } from 'node:crypto';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { generate } from 'selfsigned';
import { Webhook } from 'standardwebhooks';
import { LOOPBACK, listenOn } from '../ports.ts';

/** A webhook delivery that the receiver got. */
export type ReceivedDelivery = Awaited<ReturnType<typeof readDelivery>>;

/**
 * The number of newest deliveries that are kept. A local stack may run for days, so older ones are
 * dropped.
 */
const KEPT = 10_000;

/**
 * Starts a webhook receiver for development. It is an HTTPS server on loopback with a self-signed
 * certificate. `statusByPath` decides how it responds to a `POST`. To a request with another method
 * it returns the received deliveries as JSON, newest last.
 * @param port 0 for any free port
 * @param dir the folder of the certificate
 * @param secrets the webhook secrets (`whsec_…`) for checking signatures
 * @throws {OperatorProblem} if the port is taken
 */
export async function startReceiver(
  port: number,
  dir: string,
  secrets: readonly string[],
) {
  const { cert, key, certFile } = await ensureCertificate(dir);
  const received: ReceivedDelivery[] = [];
  const statusOf = statusByPath();
  const receive = async (request: IncomingMessage, response: ServerResponse) => {
    const delivery = await readDelivery(request, secrets);
    received.push(delivery);
    if (received.length > KEPT) received.shift();
    const code = statusOf(delivery);
    const body = code === 204 ? undefined : `${code}\n`;
    response.writeHead(code).end(body);
  };
  const server = createServer({ cert, key }, (request, response) => {
    if (request.method === 'POST') {
      void receive(request, response).catch(() => response.destroy());
    } else {
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify(received, null, 2));
    }
  });
  const listening = await listenOn(server, port, 'the webhook receiver');
  return {
    /**
     * The URL of the receiver, such as `https://127.0.0.1:8443`. All paths below it accept
     * deliveries.
     */
    url: `https://${LOOPBACK}:${listening.port}`,
    /** The file with the certificate (PEM) that clients must trust. */
    caFile: certFile,
    close: listening.close,
  };
}

/** Reads a whole delivery and checks its signature. */
export async function readDelivery(request: IncomingMessage, secrets: readonly string[]) {
  const body = await text(request);
  const { url: path = '/', headers } = request;
  const verified = secrets.some((secret) => verifies(secret, body, headers));
  return {
    at: new Date().toISOString(),
    /** The header `webhook-id`, or empty text if it is missing. */
    id: String(headers['webhook-id'] ?? ''),
    path,
    /**
     * True if the public Standard Webhooks library accepts the signature with one of the secrets.
     */
    verified,
    headers,
    body,
  };
}

function verifies(secret: string, body: string, headers: IncomingHttpHeaders): boolean {
  try {
    new Webhook(secret).verify(body, headers as Record<string, string>, {
      jsonParse: false,
    });
    return true;
  } catch {
    return false;
  }
}

/**
 * Returns a function that chooses the status of a response by the path of the request.
 * - `/status/CODE`: responds with the status CODE.
 * - `/fail/N/…`: responds with 500 to the first N attempts of each `webhook-id`, and then with 200.
 * - any other path: responds with 200.
 */
export function statusByPath() {
  const failures = new Map<string, number>();
  return ({ path, id }: Pick<ReceivedDelivery, 'path' | 'id'>): number => {
    const code = /^\/status\/([2-5][0-9]{2})(?:\/|$)/.exec(path)?.[1];
    if (code) return Number(code);
    const times = /^\/fail\/([0-9]{1,4})(?:\/|$)/.exec(path)?.[1];
    if (!times) return 200;
    const failed = failures.get(id) ?? 0;
    if (failed >= Number(times)) return 200;
    failures.set(id, failed + 1);
    return 500;
  };
}

const DAY_MS = 86_400_000;

/**
 * Returns a self-signed certificate for `localhost`, 127.0.0.1, and ::1. It is stored as `cert.pem`
 * and `key.pem` in a folder, so that clients can trust the same certificate after a restart.
 * Creates a new certificate if it is missing, unreadable, or about to expire.
 * @returns the certificate and the key as PEM, and the file of the certificate
 */
export async function ensureCertificate(dir: string) {
  const certFile = join(dir, 'cert.pem');
  const keyFile = join(dir, 'key.pem');
  try {
    const cert = await readFile(certFile, 'utf8');
    const key = await readFile(keyFile, 'utf8');
    const { validTo } = new X509Certificate(cert);
    if (Date.parse(validTo) > Date.now() + DAY_MS) {
      return { cert, key, certFile };
    }
  } catch {
    // The certificate is missing or unreadable, so a new one is created.
  }
  const { cert, private: key } = await generateCertificate();
  await mkdir(dir, { recursive: true });
  await writeFile(keyFile, key, { mode: 0o600 });
  await writeFile(certFile, cert);
  return { cert, key, certFile };
}

async function generateCertificate() {
  return await generate([{ name: 'commonName', value: 'localhost' }], {
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
}
