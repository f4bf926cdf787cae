import { once } from 'node:events';
import type { RequestListener, Server } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { gunzipSync, inflateSync } from 'node:zlib';
import { register } from '@prometheus-io/client';
import test, { type ExecutionContext } from 'ava';
import {
  allowTime,
  createListener,
  rejectBrokenRequests,
} from '../../../api/http/connection.ts';
import { createSample } from '../../../api/http/overload.ts';
import { fresh } from '../../support/database.ts';
import { eventually, exchange } from '../../support/organization.ts';
import { quiet } from '../../support/runtime.ts';
import { startApi } from '../../support/stack.ts';

// Tests the limits on one IP address: its connections, the memory for responses that it does not
// read, and the pages that need no key.

const LARGE = Buffer.alloc(64 * 1024 * 1024);
const HEALTH = 'GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n';

const api = fresh(test, () =>
  startApi({
    apiConnectionsPerAddress: 3,
    trustedProxies: ['127.0.0.9/32'],
    rateWindowMs: 3_600_000,
  }),
);

async function listen(
  t: ExecutionContext,
  listener: Server,
  serve: RequestListener,
): Promise<number> {
  listener.on('request', serve);
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  t.teardown(() => {
    listener.closeAllConnections();
    listener.close();
  });
  return (listener.address() as AddressInfo).port;
}

/** Connects from a loopback address. */
function connectFrom(localAddress: string, port: number): Socket {
  const socket = connect({ port, host: '127.0.0.1', localAddress });
  return socket.on('error', () => {});
}

/** Returns true if a connection gets a response, or false if it is closed instead. */
async function isServed(socket: Socket): Promise<boolean> {
  socket.write(HEALTH);
  const outcome = await Promise.race([once(socket, 'data'), once(socket, 'close')]);
  return Buffer.isBuffer(outcome[0]);
}

test('the connection of a client that does not read its response is closed', async (t) => {
  const ended = Promise.withResolvers<void>();
  const port = await listen(t, createListener(75_000, 500), (_request, response) => {
    response.once('close', ended.resolve);
    response.end(LARGE);
  });
  const socket = connectFrom('127.0.0.1', port).pause();
  socket.write(HEALTH);
  await t.notThrowsAsync(ended.promise);
  socket.destroy();
});

test('a request that was given more time gets a 408 at the end of it', async (t) => {
  const listener = createListener(75_000);
  const port = await listen(t, listener, (request) => allowTime(request, 11_000));
  rejectBrokenRequests(listener, quiet, createSample(), () => '');
  const slow = 'POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n';
  t.regex(await exchange(port, slow), /^HTTP\/1\.1 408 /);
});

test('a silent connection stays open for longer than the longest poll waits', (t) => {
  const { timeout } = createListener(75_000);
  t.true(timeout > 55_000 && timeout < 120_000);
});

test('one IP address can open only a limited number of connections', async (t) => {
  const refusedSoFar = async () => {
    const found = /^npe_connections_refused_total (\d+)$/m.exec(await register.metrics());
    return Number(found?.[1] ?? 0);
  };
  const before = await refusedSoFar();
  const first = [1, 2, 3].map(() => connectFrom('127.0.0.2', api.port));
  for (const socket of first) t.true(await isServed(socket));
  t.false(await isServed(connectFrom('127.0.0.2', api.port)));
  t.is(await refusedSoFar(), before + 1);
  const other = connectFrom('127.0.0.3', api.port);
  t.true(await isServed(other));
  first[0]?.destroy();
  const next = await eventually(async () => {
    const socket = connectFrom('127.0.0.2', api.port);
    return (await isServed(socket)) ? socket : null;
  });
  for (const socket of [...first, other, next]) socket.destroy();
});

test('the number of connections of a trusted proxy is not limited', async (t) => {
  const sockets = Array.from({ length: 10 }, () => connectFrom('127.0.0.9', api.port));
  for (const socket of sockets) t.true(await isServed(socket));
  for (const socket of sockets) socket.destroy();
});

/** Requests a public document, and returns its head and its body unchanged. */
async function ask(localAddress: string, path: string, encoding: string) {
  const socket = connectFrom(localAddress, api.port);
  const chunks: Buffer[] = [];
  socket.on('data', (chunk) => chunks.push(chunk));
  socket.write(
    `GET ${path} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: ${encoding}\r\nConnection: close\r\n\r\n`,
  );
  await once(socket, 'close');
  const reply = Buffer.concat(chunks);
  const end = reply.indexOf('\r\n\r\n');
  return {
    head: reply.subarray(0, end).toString().toLowerCase(),
    body: reply.subarray(end + 4),
  };
}

test('the documentation pages are compressed in advance', async (t) => {
  for (const path of [
    '/openapi.json',
    '/docs',
    '/docs/errors.md',
    '/docs/style.css',
    '/llms.txt',
  ]) {
    const plain = await ask('127.0.0.4', path, 'identity');
    for (const [encoding, unpack] of [
      ['gzip', gunzipSync],
      ['deflate', inflateSync],
    ] as const) {
      const { head, body } = await ask('127.0.0.4', path, encoding);
      t.true(head.includes(`\r\ncontent-encoding: ${encoding}`), path);
      // A response that is compressed on the fly has no length.
      t.true(head.includes(`\r\ncontent-length: ${body.length}`), path);
      t.true(head.includes('\r\nvary: accept-encoding'), path);
      t.deepEqual(unpack(body), plain.body, path);
    }
    t.false(plain.head.includes('content-encoding'), path);
  }
});

test('an IP address may request the documentation 100 times per rate-limit window', async (t) => {
  const statuses: string[] = [];
  for (let i = 0; i < 51; i += 1) {
    for (const path of ['/openapi.json', '/docs']) {
      statuses.push((await ask('127.0.0.5', path, 'gzip')).head.slice(9, 12));
    }
  }
  t.deepEqual(statuses, [...Array(100).fill('200'), '429', '429']);
  t.true((await ask('127.0.0.6', '/docs', 'gzip')).head.startsWith('http/1.1 200'));
});
