import { X509Certificate } from 'node:crypto';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { generate } from 'selfsigned';
import { Webhook } from 'standardwebhooks';
import { LOOPBACK, listenOn } from './processes.ts';

/** One webhook delivery as it arrived. */
export type ReceivedDelivery = Awaited<ReturnType<typeof readDelivery>>;

/** The oldest are dropped: a local stack may stay up for days. */
const KEPT = 10_000;

/**
 * A webhook receiver for development: HTTPS on loopback with a self-made certificate. `POST` is answered as
 * `statusByPath` says, anything else with what arrived as JSON, newest last.
 * @param port 0 for any that is free
 * @param dir where the certificate is kept
 * @param secrets `whsec_…`, with which signatures are checked
 * @throws {OperatorProblem} if the port is taken
 */
export async function startReceiver(port: number, dir: string, secrets: readonly string[]) {
  const { cert, key, certFile } = await ensureCertificate(dir);
  const received: ReceivedDelivery[] = [];
  const statusOf = statusByPath();
  const receive = async (request: IncomingMessage, response: ServerResponse) => {
    const delivery = await readDelivery(request, secrets);
    received.push(delivery);
    if (received.length > KEPT) received.shift();
    const code = statusOf(delivery);
    response.writeHead(code).end(code === 204 ? undefined : `${code}\n`);
  };
  const server = createServer({ cert, key }, (request, response) => {
    if (request.method === 'POST') void receive(request, response).catch(() => response.destroy());
    else response.setHeader('content-type', 'application/json').end(JSON.stringify(received, null, 2));
  });
  const listening = await listenOn(server, port, 'the webhook receiver');
  return {
    /** `https://127.0.0.1:PORT`: deliveries are taken at every path below. */
    url: `https://${LOOPBACK}:${listening.port}`,
    /** The certificate to trust, PEM. */
    caFile: certFile,
    close: listening.close,
  };
}

/** Reads a delivery whole, and checks it. */
export async function readDelivery(request: IncomingMessage, secrets: readonly string[]) {
  const body = await text(request);
  const { url: path = '/', headers } = request;
  const verifies = (secret: string) => {
    try {
      new Webhook(secret).verify(body, headers as Record<string, string>, { jsonParse: false });
      return true;
    } catch {
      return false;
    }
  };
  return {
    at: new Date().toISOString(),
    /** The `webhook-id` header, empty if there was none. */
    id: String(headers['webhook-id'] ?? ''),
    path,
    /** Whether the public Standard Webhooks library accepts the signature by one of the secrets. */
    verified: secrets.some(verifies),
    headers,
    body,
  };
}

/**
 * How deliveries are answered by their path: `/status/CODE` with that status, `/fail/N/…` with 500 the first N times for
 * each `webhook-id`, any other with 200.
 */
export function statusByPath() {
  const failures = new Map<string, number>();
  return ({ path, id }: Pick<ReceivedDelivery, 'path' | 'id'>): number => {
    const [, code, times] = /^\/(?:status\/([2-5][0-9]{2})|fail\/([0-9]{1,4}))(?:\/|$)/.exec(path) ?? [];
    if (code) return Number(code);
    const failed = failures.get(id) ?? 0;
    if (failed >= Number(times ?? 0)) return 200;
    failures.set(id, failed + 1);
    return 500;
  };
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
  try {
    const [cert, key] = [await readFile(certFile, 'utf8'), await readFile(keyFile, 'utf8')];
    if (Date.parse(new X509Certificate(cert).validTo) > Date.now() + DAY_MS) return { cert, key, certFile };
  } catch {
    // Missing or unreadable.
  }

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
