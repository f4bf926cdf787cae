import { once } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import { buffer } from 'node:stream/consumers';
import type { Certificate } from './certificate.ts';
import { signatureProblem } from './check-signature.ts';
import { LOOPBACK, portTaken } from './ports.ts';

/** One delivery that was received, checked and sent on. */
export interface Forwarded {
  readonly at: Date;
  /** The `webhook-id` header, empty where there was none. */
  readonly id: string;
  /** How many NPIs it tells of; null where the body is no envelope. */
  readonly npis: number | null;
  /** What is wrong with its signature; null if it is right. */
  readonly problem: string | null;
  /** What the target answered, which is what the sender got; null where there was no answer, and the sender got 502. */
  readonly status: number | null;
  readonly ms: number;
}

export interface Forwarder {
  /** `https://127.0.0.1:PORT/` */
  readonly url: string;
  /** Ends open connections too. */
  close(): Promise<void>;
}

/** The sender gives up after 15 s, connecting included (DECISIONS.md, Webhooks, transport). */
const TARGET_TIMEOUT_MS = 15_000;
/** Of one connection, not of the message (RFC 9110, 7.6.1), or set anew by the request that is made. */
const OWN_HEADERS: ReadonlySet<string> = new Set([
  'connection',
  'content-length',
  'expect',
  'host',
  'keep-alive',
  'transfer-encoding',
]);

/**
 * Receives deliveries over HTTPS on loopback, checks each, and sends it on as it came, right or not: body to the byte,
 * headers, and the target's status, `Retry-After` and body back, so that retries can be tried.
 * @param settings.port 0 for any that is free
 * @param settings.target where every delivery is sent, whatever path it came to
 * @param settings.onDelivery told of each after it was answered
 * @throws {LocalProblem} `port_taken`
 */
export async function startForwarder(settings: {
  readonly port: number;
  readonly certificate: Pick<Certificate, 'cert' | 'key'>;
  readonly secret: string;
  readonly target: URL;
  readonly onDelivery: (forwarded: Forwarded) => void;
}): Promise<Forwarder> {
  const { port, certificate, secret, target, onDelivery } = settings;
  const { cert, key } = certificate;
  const server = createServer({ cert, key }, (request, response) => {
    void receive(request, response).catch(() => response.destroy());
  });
  server.listen(port, LOOPBACK);
  await once(server, 'listening').catch(() => {
    throw portTaken(port, 'npm run listen', '--port');
  });
  const address = server.address();
  const bound = typeof address === 'object' && address !== null ? address.port : port;

  async function receive(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (request.method !== 'POST') {
      response.writeHead(405, { allow: 'POST' }).end();
      return;
    }
    const at = new Date();
    const body = await buffer(request);
    const headers = textHeaders(request);
    const problem = signatureProblem(headers, body, secret, at);
    const begun = performance.now();
    const status = await sendOn(target, headers, body, response);
    const ms = Math.round(performance.now() - begun);
    onDelivery({ at, id: headers['webhook-id'] ?? '', npis: npisOf(body), problem, status, ms });
  }

  return {
    url: `https://${LOOPBACK}:${bound}/`,
    async close() {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}

/** @returns the target's status; null, with 502 as the answer, where it gave none */
async function sendOn(
  target: URL,
  headers: Readonly<Record<string, string>>,
  body: Buffer,
  response: ServerResponse,
): Promise<number | null> {
  try {
    const answer = await fetch(target, {
      method: 'POST',
      headers: Object.fromEntries(Object.entries(headers).filter(([name]) => !OWN_HEADERS.has(name))),
      body: new Uint8Array(body),
      redirect: 'manual',
      signal: AbortSignal.timeout(TARGET_TIMEOUT_MS),
    });
    const text = Buffer.from(await answer.arrayBuffer());
    const retryAfter = answer.headers.get('retry-after');
    response.writeHead(answer.status, retryAfter === null ? {} : { 'retry-after': retryAfter }).end(text);
    return answer.status;
  } catch {
    response.writeHead(502).end(`no answer from ${target.host}\n`);
    return null;
  }
}

function textHeaders({ headers }: IncomingMessage): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, String(value)]));
}

function npisOf(body: Buffer): number | null {
  try {
    const { data } = JSON.parse(body.toString('utf8')) as { data?: unknown };
    return Array.isArray(data) ? data.length : null;
  } catch {
    return null;
  }
}
