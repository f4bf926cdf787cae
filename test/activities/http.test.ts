import { once } from 'node:events';
import { createServer as createTlsServer } from 'node:https';
import {
  type AddressInfo,
  createServer as createTcpServer,
  type Server,
  type Socket,
} from 'node:net';
import type { ExecutionContext } from 'ava';
import test from 'ava';
import { type HttpResponse, jsonApi } from '../../activities/http/client.ts';
import { ensureCertificate } from '../../deploy/local/receiver.ts';
import { temporaryFolder } from '../support/database.ts';
import { serveVendor } from '../support/vendors.ts';

// Tests calls without a complete response. The result says whether the vendor may have received the
// request and charged us.

const NEVER = new AbortController().signal;
const unsent = (cause: string) => ({
  kind: 'retry',
  why: 'unsent',
  cause,
  afterMs: null,
});
const UNANSWERED = { kind: 'retry', why: 'unanswered', afterMs: null };

/** Sends one request, and returns its response unchanged. */
function get(url: string, callMs = 30_000) {
  return jsonApi(url, {}, callMs)({ path: '' }, NEVER, asItCame);
}

function post(url: string, callMs = 30_000) {
  return jsonApi(url, {}, callMs)({ path: '', json: {} }, NEVER, asItCame);
}

function asItCame(response: HttpResponse) {
  return { kind: 'response', ...response } as const;
}

/** Starts a server that listens until the test ends, and returns its port. */
async function portOf(t: ExecutionContext, server: Server): Promise<number> {
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => server.close());
  return (server.address() as AddressInfo).port;
}

test('a vendor call that times out counts as possibly charged', async (t) => {
  const silent = await serveVendor(t, () => undefined);
  const slow = await serveVendor(
    t,
    (_request, response) => void response.writeHead(200).write('{'),
  );
  t.deepEqual(await get(silent, 50), UNANSWERED);
  t.deepEqual(await get(slow, 50), UNANSWERED);
  t.deepEqual(await post(silent, 50), UNANSWERED);
});

test("a vendor call counts as not sent if the vendor's certificate is not trusted", async (t) => {
  const { cert, key } = await ensureCertificate(temporaryFolder(t.teardown));
  let asked = 0;
  const server = createTlsServer({ cert, key }, () => {
    asked += 1;
  });
  t.deepEqual(
    await post(`https://127.0.0.1:${await portOf(t, server)}`),
    unsent('DEPTH_ZERO_SELF_SIGNED_CERT'),
  );
  t.is(asked, 0);
});

for (const [about, cause, handle] of [
  [
    'does not speak TLS',
    'ERR_SSL',
    (socket) => socket.end('HTTP/1.1 400 Bad Request\r\n\r\n'),
  ],
  [
    'closes the connection during the TLS handshake',
    'ECONNRESET',
    (socket) => socket.end(),
  ],
  // The code is the same as for a reset after the request. The only difference is that there was no
  // connection yet.
  [
    'resets the connection during the TLS handshake',
    'ECONNRESET',
    (socket) => socket.resetAndDestroy(),
  ],
] as const satisfies readonly (readonly [string, string, (socket: Socket) => void])[]) {
  test(`a vendor call counts as not sent if the vendor ${about}`, async (t) => {
    const server = createTcpServer((socket) =>
      socket.on('error', () => {}).once('data', () => handle(socket)),
    );
    t.deepEqual(
      await post(`https://127.0.0.1:${await portOf(t, server)}`),
      unsent(cause),
    );
  });
}

test("a vendor call counts as not sent if the vendor's host name is unknown", async (t) => {
  t.deepEqual(await get('http://vendor.invalid'), unsent('ENOTFOUND'));
});

test('a vendor call counts as possibly charged if its reused connection is reset', async (t) => {
  const served = new WeakSet<Socket>();
  const url = await serveVendor(t, ({ socket }, response) => {
    if (served.has(socket)) socket.resetAndDestroy();
    else response.end('{}');
    served.add(socket);
  });
  let reply = await get(url);
  // fetch opens a second connection if the first one is not idle yet.
  for (let n = 0; n < 50 && reply.kind === 'response'; n += 1) reply = await get(url);
  t.deepEqual(reply, UNANSWERED);
});

test('reading an endless response from a vendor stops at a size limit', async (t) => {
  const url = await serveVendor(t, (_request, response) => {
    const chunk = ' '.repeat(65_536);
    const pour = () => {
      while (!response.destroyed && response.write(chunk));
      if (!response.destroyed) response.once('drain', pour);
    };
    pour();
  });
  t.like(await get(url), { status: 200, text: null });
});
