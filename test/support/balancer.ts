import {
  Agent,
  createServer,
  type IncomingMessage,
  request,
  type ServerResponse,
} from 'node:http';
import { buffer } from 'node:stream/consumers';
import { setTimeout } from 'node:timers/promises';
import { LOOPBACK, listenOn } from '../../deploy/ports.ts';

const LOOK_MS = 100;

/**
 * Starts a load balancer in front of several APIs. It works like common ones, but hides no error.
 * It reuses connections to the APIs. Each request goes to the next API whose `/readyz` returned 200
 * at the last check, which runs every 100 ms. Every error on the way to an API becomes a 502,
 * including a refused connection.
 */
export async function startBalancer(urls: readonly string[]) {
  const agent = new Agent({ keepAlive: true });
  const inRotation = new Set<string>();
  const replies = new Map<string, number>();
  let turn = 0;
  const count = (what: string) => replies.set(what, (replies.get(what) ?? 0) + 1);
  const fail = (outgoing: ServerResponse, what: string) => {
    count(what);
    outgoing.writeHead(502).end();
  };
  const pass = (incoming: IncomingMessage, outgoing: ServerResponse, body: Buffer) => {
    const { method, url: path, headers } = incoming;
    const candidates = urls.filter((url) => inRotation.has(url));
    turn += 1;
    const url = candidates[turn % candidates.length];
    if (url === undefined) return fail(outgoing, 'nobody is ready');
    const onward = request(`${url}${path}`, { agent, method, headers });
    onward.once('response', (got) => {
      // These headers belong to one connection, not to both.
      const { connection: _connection, 'keep-alive': _keepAlive, ...rest } = got.headers;
      count(String(got.statusCode));
      outgoing.writeHead(got.statusCode ?? 502, rest);
      got.once('error', () => outgoing.destroy());
      got.pipe(outgoing);
    });
    onward.once('error', (error: NodeJS.ErrnoException) => {
      fail(outgoing, `${method} ${path}: ${error.code}`);
    });
    onward.end(body);
  };
  const server = createServer(async (incoming, outgoing) =>
    pass(incoming, outgoing, await buffer(incoming)),
  );
  const ending = new AbortController();
  const look = async (url: string) => {
    const isReady = await fetch(`${url}/readyz`).then(
      ({ ok }) => ok,
      () => false,
    );
    if (isReady) inRotation.add(url);
    else inRotation.delete(url);
  };
  const looking = (async () => {
    while (!ending.signal.aborted) {
      await Promise.all(urls.map(look));
      await setTimeout(LOOK_MS);
    }
  })();
  const { port, close } = await listenOn(server, 0, 'the balancer');
  return {
    url: `http://${LOOPBACK}:${port}`,
    /** Returns true if the API gets new requests. */
    hasInRotation: (url: string) => inRotation.has(url),
    /** Returns how often each status was returned, and the errors behind the 502s. */
    replies: () => Object.fromEntries(replies),
    async stop() {
      ending.abort();
      await looking;
      await close();
      agent.destroy();
    },
  };
}
