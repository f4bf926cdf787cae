import { Agent, createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import { buffer } from 'node:stream/consumers';
import { setTimeout } from 'node:timers/promises';
import { LOOPBACK, listenOn } from '../../deploy/local/processes.ts';

const LOOK_MS = 100;

/**
 * A load balancer in front of several APIs, as common ones are, but one that forgives nothing: connections to an API are
 * used again; each request goes to the next API whose `/readyz` answered 200 when it was looked at last, every 100 ms. Whatever
 * goes wrong on the way to it is a 502, a refused connection too.
 */
export async function startBalancer(urls: readonly string[]) {
  const agent = new Agent({ keepAlive: true });
  const inRotation = new Set<string>();
  const answers = new Map<string, number>();
  let turn = 0;
  const count = (what: string) => answers.set(what, (answers.get(what) ?? 0) + 1);
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
      // Of one connection, not of both.
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
  const server = createServer(async (incoming, outgoing) => pass(incoming, outgoing, await buffer(incoming)));
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
    /** Whether an API gets new requests. */
    hasInRotation: (url: string) => inRotation.has(url),
    /** How often each status was answered; of a 502 what went wrong. */
    answers: () => Object.fromEntries(answers),
    async stop() {
      ending.abort();
      await looking;
      await close();
      agent.destroy();
    },
  };
}
