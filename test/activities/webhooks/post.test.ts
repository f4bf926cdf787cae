import type { LookupAddress } from 'node:dns';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { createServer as createTlsServer, TLSSocket } from 'node:tls';
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import { createNames } from '../../../activities/http/names.ts';
import { createAddressPolicy } from '../../../activities/webhooks/ip-policy.ts';
import {
  type AttemptResult,
  createPost,
  type PostSettings,
} from '../../../activities/webhooks/post.ts';
import { ensureCertificate } from '../../../deploy/local/receiver.ts';
import {
  bodyDrip,
  flood,
  gzipBomb,
  hangUp,
  headerDrip,
  reset,
  silence,
} from '../../support/behaviors.ts';
import {
  type Behavior,
  type Receiver,
  startReceiver,
  status,
} from '../../support/receiver.ts';
import { closedPort } from '../../support/vendors.ts';

const test = anyTest as TestFn<{ dir: string; ca: string; receiver: Receiver }>;
type Context = ExecutionContext<{ dir: string; ca: string; receiver: Receiver }>;

const policy = createAddressPolicy({ openCidrs: ['127.0.0.1/32'] });
const SHORT = { totalMs: 2000 };
const LOOPBACK: readonly LookupAddress[] = [{ address: '127.0.0.1', family: 4 }];

// Serial, because slow receivers have short time limits here, and the work of other tests would
// count against them.

test.before(async (t) => {
  const dir = await mkdtemp(join(tmpdir(), 'post-'));
  const receiver = await startReceiver(dir);
  t.context = { dir, receiver, ca: await readFile(receiver.caFile, 'utf8') };
});

test.after.always(async (t) => {
  await t.context.receiver?.close();
  if (t.context.dir) await rm(t.context.dir, { recursive: true });
});

test.serial(
  'a webhook arrives once, with its body and headers and the host name of its URL',
  async (t) => {
    const { receiver } = t.context;
    const names: (string | false | null)[] = [];
    receiver.setBehavior('/ok', (response) => {
      if (response.socket instanceof TLSSocket) names.push(servernameOf(response.socket));
      status(200)(response);
    });
    const url = `${receiver.url.replace('127.0.0.1', 'localhost')}/ok`;
    const headers = {
      'webhook-id': 'msg_whole',
      'webhook-timestamp': '1700000000',
      'webhook-signature': 'v1,x',
      'content-type': 'application/json',
    };
    const body = '{"text":"Zoë 医師 🩺"}';
    const reply = await postTo(t, { lookup: async () => LOOPBACK })({
      url,
      headers,
      body,
      blocked: [],
    });

    t.deepEqual(reply, {
      kind: 'responded',
      status: 200,
      address: '127.0.0.1',
      retryAfterMs: null,
      excerpt: Buffer.from('200\n'),
      body: null,
    });
    const arrived = receiver.deliveries().filter(({ path }) => path === '/ok');
    t.is(arrived.length, 1);
    t.is(arrived[0]?.body, body);
    t.deepEqual(names, ['localhost']);
    t.like(arrived[0]?.headers, {
      ...headers,
      host: new URL(url).host,
      'content-length': String(Buffer.byteLength(body)),
      'user-agent': 'enrichment-test/1',
      'accept-encoding': 'identity',
    });
  },
);

test.serial('a 204 without a body is returned as a complete response', async (t) => {
  t.deepEqual(await sendTo(t, '/status/204'), responded(204, ''));
});

test.serial('the status and body of a 500 are returned', async (t) => {
  t.deepEqual(await sendTo(t, '/status/500'), responded(500, '500\n'));
});

test.serial('the Retry-After header of a 429 or 503 is returned', async (t) => {
  t.context.receiver.setBehavior('/429', status(429, { 'retry-after': '7' }));
  t.context.receiver.setBehavior('/503', status(503, { 'retry-after': '120' }));
  t.deepEqual(await sendTo(t, '/429'), {
    ...responded(429, '429\n'),
    retryAfterMs: 7_000,
  });
  t.deepEqual(await sendTo(t, '/503'), {
    ...responded(503, '503\n'),
    retryAfterMs: 120_000,
  });
});

test.serial(
  'Retry-After may be a date, even in the past, and invalid values are ignored',
  async (t) => {
    const { receiver } = t.context;
    const inAnHour = new Date(Date.now() + 3_600_000).toUTCString();
    receiver.setBehavior('/date', status(503, { 'retry-after': inAnHour }));
    const reply = await sendTo(t, '/date');
    t.true(reply.kind === 'responded' && reply.retryAfterMs !== null);
    if (reply.kind === 'responded')
      t.true(Math.abs((reply.retryAfterMs ?? 0) - 3_600_000) < 60_000);

    receiver.setBehavior(
      '/past',
      status(503, { 'retry-after': 'Sun, 06 Nov 1994 08:49:37 GMT' }),
    );
    t.like(await sendTo(t, '/past'), { retryAfterMs: 0 });
    for (const [index, value] of ['', 'soon', '-1', '1.5', '1e3', 'Xyz GMT'].entries()) {
      receiver.setBehavior(`/unread/${index}`, status(503, { 'retry-after': value }));
      t.like(
        await sendTo(t, `/unread/${index}`),
        { status: 503, retryAfterMs: null },
        value,
      );
    }
  },
);

test.serial('the status of a 410 is returned', async (t) => {
  t.deepEqual(await sendTo(t, '/status/410'), responded(410, '410\n'));
});

test.serial('a redirect is returned as a response and not followed', async (t) => {
  const { receiver } = t.context;
  for (const code of [301, 302, 303, 307, 308]) {
    receiver.setBehavior(
      `/redirect/${code}`,
      status(code, { location: `${receiver.url}/elsewhere` }),
    );
    t.deepEqual(await sendTo(t, `/redirect/${code}`), responded(code, `${code}\n`));
  }
  t.deepEqual(
    receiver.deliveries().filter(({ path }) => path === '/elsewhere'),
    [],
  );
});

test.serial('a redirect to an internal IP address causes no connection', async (t) => {
  let connections = 0;
  const port = await listen(t, () => {
    connections += 1;
  });
  for (const host of [
    '127.0.0.1',
    'localhost',
    '2130706433',
    '[::ffff:127.0.0.1]',
    '0.0.0.0',
  ]) {
    const location = `https://${host}:${port}/`;
    const reply = await sendTo(t, '/redirect', status(307, { location }));
    t.like(reply, { kind: 'responded', status: 307 });
  }
  t.is(connections, 0);
});

test.serial(
  'a receiver that never responds is cut off by the total time-out',
  async (t) => {
    t.deepEqual(await sendTo(t, '/silence', silence, SHORT), {
      kind: 'failed',
      reason: 'timeout_total',
    });
  },
);

test.serial(
  'a receiver that sends headers slowly forever is cut off by the total time-out',
  async (t) => {
    t.deepEqual(await sendTo(t, '/header-drip', headerDrip, SHORT), {
      kind: 'failed',
      reason: 'timeout_total',
    });
  },
);

test.serial(
  'a receiver that sends its body slowly forever is cut off, and its status counts',
  async (t) => {
    const reply = await sendTo(t, '/body-drip', bodyDrip, { totalMs: 10_000 });
    t.like(reply, { kind: 'responded', status: 200, body: 'body_timeout' });
    t.regex(reply.kind === 'responded' ? reply.excerpt.toString() : '', /^\.+$/);
  },
);

test.serial('the status of a response counts even if its body breaks off', async (t) => {
  const reply = await sendTo(t, '/broken', (response) => {
    response.writeHead(200, { 'content-length': 100 });
    response.write('half', () => response.destroy());
  });
  t.deepEqual(reply, responded(200, 'half', 'body_broken'));
});

test.serial(
  'only 1 KiB of a response of 100 MB is kept, and the rest is not read',
  async (t) => {
    const sent = Promise.withResolvers<number>();
    const reply = await sendTo(t, '/flood', (response) => {
      const { socket } = response;
      response.once('close', () => sent.resolve(socket?.bytesWritten ?? 0));
      flood(response);
    });
    t.deepEqual(reply, responded(200, '\0'.repeat(1024)));
    t.true((await sent.promise) < 50 * 1024 * 1024);
  },
);

test.serial(
  'a compressed response is not unpacked, so a gzip bomb does no harm',
  async (t) => {
    const reply = await sendTo(t, '/bomb', gzipBomb);
    t.like(reply, { kind: 'responded', status: 200 });
    const excerpt = reply.kind === 'responded' ? reply.excerpt : Buffer.alloc(0);
    t.is(excerpt.length, 1024);
    t.deepEqual([...excerpt.subarray(0, 2)], [0x1f, 0x8b]);
  },
);

test.serial(
  'an attempt fails if the connection is reset before a response',
  async (t) => {
    t.deepEqual(await sendTo(t, '/reset', reset), { kind: 'failed', reason: 'reset' });
  },
);

test.serial(
  'an attempt fails if the connection is closed before a response',
  async (t) => {
    t.deepEqual(await sendTo(t, '/hang-up', hangUp), {
      kind: 'failed',
      reason: 'closed',
    });
  },
);

test.serial('an attempt fails if the response is not HTTP', async (t) => {
  const reply = await sendTo(t, '/garbage', (response) =>
    response.socket?.end('hello\r\n\r\n'),
  );
  t.deepEqual(reply, { kind: 'failed', reason: 'not_http' });
});

test.serial('an attempt fails if the response has an invalid HTTP status', async (t) => {
  for (const code of ['000', '099', '600', '999']) {
    const reply = await sendTo(t, `/status-${code}`, (response) => {
      response.socket?.end(`HTTP/1.1 ${code} Odd\r\ncontent-length: 2\r\n\r\nok`);
    });
    t.deepEqual(reply, { kind: 'failed', reason: 'not_http' }, code);
  }
  t.like(await sendTo(t, '/status/599'), { kind: 'responded', status: 599 });
});

test.serial('an attempt fails if the response has endless headers', async (t) => {
  const reply = await sendTo(t, '/headers', (response) => {
    response.socket?.write(`HTTP/1.1 200 OK\r\nx: ${'x'.repeat(100_000)}`);
  });
  t.deepEqual(reply, { kind: 'failed', reason: 'headers_too_large' });
});

test.serial(
  "an attempt fails if the receiver's certificate is not trusted",
  async (t) => {
    const post = postTo(t, { ca: undefined });
    t.deepEqual(await post(messageTo(`${t.context.receiver.url}/tls`)), {
      kind: 'failed',
      reason: 'tls_certificate',
    });
    t.deepEqual(
      t.context.receiver.deliveries().filter(({ path }) => path === '/tls'),
      [],
    );
  },
);

test.serial(
  "an attempt fails if the receiver's trusted certificate is for another name",
  async (t) => {
    const post = postTo(t, { lookup: async () => LOOPBACK });
    const url = t.context.receiver.url.replace('127.0.0.1', 'hook.example');
    t.deepEqual(await post(messageTo(`${url}/name`)), {
      kind: 'failed',
      reason: 'tls_name',
    });
    t.deepEqual(
      t.context.receiver.deliveries().filter(({ path }) => path === '/name'),
      [],
    );
  },
);

test.serial('an attempt fails if the receiver does not speak TLS', async (t) => {
  const port = await listen(t, (socket) =>
    socket.on('data', () => socket.end('HTTP/1.1 400 Bad\r\n\r\n')),
  );
  const reply = await postTo(t)(messageTo(`https://127.0.0.1:${port}/`));
  t.deepEqual(reply, { kind: 'failed', reason: 'tls_handshake' });
});

test.serial(
  'an attempt fails if the receiver requires a client certificate',
  async (t) => {
    const { cert, key } = await ensureCertificate(t.context.dir);
    const server = createTlsServer({
      cert,
      key,
      ca: cert,
      requestCert: true,
      rejectUnauthorized: true,
    });
    const port = await portOf(server);
    t.teardown(() => server.close());
    const reply = await postTo(t)(messageTo(`https://127.0.0.1:${port}/`));
    t.deepEqual(reply, { kind: 'failed', reason: 'tls_handshake' });
  },
);

test.serial(
  'an attempt fails if the connection is reset before the TLS handshake',
  async (t) => {
    const port = await listen(t, (socket) =>
      socket.on('data', () => socket.resetAndDestroy()),
    );
    const reply = await postTo(t)(messageTo(`https://127.0.0.1:${port}/`));
    t.deepEqual(reply, { kind: 'failed', reason: 'reset' });
  },
);

test.serial(
  'an unfinished TLS handshake ends after the shorter connect time-out',
  async (t) => {
    const port = await listen(t, (socket) => socket.resume());
    const reply = await postTo(t, { connectMs: 100 })(
      messageTo(`https://127.0.0.1:${port}/`),
    );
    t.deepEqual(reply, { kind: 'failed', reason: 'timeout_connect' });
  },
);

test.serial('an attempt fails if the host name does not exist', async (t) => {
  const lookup = () =>
    Promise.reject(Object.assign(new Error('not found'), { code: 'ENOTFOUND' }));
  const reply = await postTo(t, { lookup })(messageTo('https://unknown.example/'));
  t.deepEqual(reply, { kind: 'failed', reason: 'dns_not_found' });
});

test.serial('an attempt fails if the host name has no IP address', async (t) => {
  const reply = await postTo(t, { lookup: async () => [] })(
    messageTo('https://empty.example/'),
  );
  t.deepEqual(reply, { kind: 'failed', reason: 'dns_not_found' });
});

test.serial(
  'a DNS lookup without a response ends after the shorter connect time-out',
  async (t) => {
    const lookup = () => new Promise<never>(() => {});
    const reply = await postTo(t, { lookup, connectMs: 50 })(
      messageTo('https://slow.example/'),
    );
    t.deepEqual(reply, { kind: 'failed', reason: 'timeout_connect' });
  },
);

test.serial(
  'if PostgreSQL is slow to count an attempt, that is not a failure of the receiver',
  async (t) => {
    const lookup = async () => [{ address: '93.184.215.14', family: 4 }];
    const post = postTo(t, { lookup, connectMs: 20 });
    // A timer that is due later cannot end before the limit.
    const late = () => setTimeout(40);
    const message = messageTo('https://hook.example/');
    const admits = async (addresses: readonly string[]) => {
      await late();
      return addresses;
    };
    const fails = async () => {
      await late();
      throw new Error('the connection to PostgreSQL ended');
    };
    for (const admit of [admits, fails]) {
      await t.throwsAsync(post({ ...message, admit }), { name: 'CountedTooLate' });
    }
  },
);

test.serial("an attempt fails if the receiver's port is closed", async (t) => {
  const port = await closedPort();
  const reply = await postTo(t)(messageTo(`https://127.0.0.1:${port}/`));
  t.deepEqual(reply, { kind: 'failed', reason: 'refused' });
});

test.serial(
  'the allowed IP addresses of a host name are tried until one responds',
  async (t) => {
    const { receiver } = t.context;
    const mixed = ['10.0.0.1', '127.0.0.3', '127.0.0.1', '169.254.169.254'];
    const lookup = async () => mixed.map((address) => ({ address, family: 4 }));
    const opened = createAddressPolicy({ openCidrs: ['127.0.0.0/8'] });
    const post = postTo(t, { policy: opened, lookup });
    const url = `${receiver.url.replace('127.0.0.1', 'localhost')}/mixed`;
    t.like(await post(messageTo(url)), { kind: 'responded', status: 200 });
  },
);

test.serial(
  'each webhook attempt opens a new connection instead of reusing the last one',
  async (t) => {
    const { cert, key } = await ensureCertificate(t.context.dir);
    let connections = 0;
    const server = createTlsServer({ cert, key }, (socket) => {
      socket.on('error', () => {});
      socket.on('data', () =>
        socket.write('HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n'),
      );
    });
    server.on('connection', () => {
      connections += 1;
    });
    const port = await portOf(server);
    t.teardown(() => server.close());
    const post = postTo(t);
    for (const attempt of [1, 2, 3]) {
      t.deepEqual(
        await post(messageTo(`https://127.0.0.1:${port}/`)),
        responded(200, ''),
      );
      t.is(connections, attempt);
    }
  },
);

test.serial(
  'a webhook is sent only to an https URL that contains no user name',
  async (t) => {
    const { host } = new URL(t.context.receiver.url);
    const post = postTo(t);
    const urls = [
      'http://',
      'ftp://',
      'https://user@',
      'https://user:pass@',
      'https://:pass@',
    ];
    for (const start of urls) {
      t.deepEqual(
        await post(messageTo(`${start}${host}/refused`)),
        { kind: 'failed', reason: 'blocked_address' },
        start,
      );
    }
    t.deepEqual(await post(messageTo('no url')), {
      kind: 'failed',
      reason: 'blocked_address',
    });
    t.deepEqual(
      t.context.receiver.deliveries().filter(({ path }) => path === '/refused'),
      [],
    );
  },
);

test.serial(
  'at most four IPv4 and four IPv6 addresses of a host name are tried',
  async (t) => {
    const lookup = async () =>
      Array.from({ length: 500 }, (_, n) => [
        { address: `198.41.${n % 250}.4`, family: 4 },
        { address: `2606:4700::${n + 1}`, family: 6 },
      ]).flat();
    let tried = 0;
    const admit = async (addresses: readonly string[]) => {
      tried = addresses.length;
      return [];
    };
    const message = { ...messageTo('https://many.example/'), admit };
    t.like(await postTo(t, { lookup })(message), { kind: 'failed' });
    t.is(tried, 8);
  },
);

/** @param settings differences from the usual limits */
async function sendTo(
  t: Context,
  path: string,
  behavior?: Behavior,
  settings: Partial<PostSettings> = {},
): Promise<AttemptResult> {
  if (behavior) t.context.receiver.setBehavior(path, behavior);
  return await postTo(t, settings)(messageTo(`${t.context.receiver.url}${path}`));
}

function postTo(t: Context, settings: Partial<PostSettings> = {}) {
  const common = {
    policy,
    ca: t.context.ca,
    userAgent: 'enrichment-test/1',
    lookup: createNames([]).find,
  };
  return createPost({ ...common, ...settings });
}

function messageTo(url: string) {
  return { url, headers: { 'webhook-id': 'msg_test' }, body: '{}', blocked: [] };
}

function responded(
  code: number,
  excerpt: string,
  body: 'body_timeout' | 'body_broken' | null = null,
): AttemptResult {
  return {
    kind: 'responded',
    status: code,
    address: '127.0.0.1',
    retryAfterMs: null,
    excerpt: Buffer.from(excerpt),
    body,
  };
}

/** Returns the server name in the client's TLS hello. @types/node lacks this property. */
function servernameOf(
  socket: TLSSocket & { readonly servername?: string | false | null },
) {
  return socket.servername ?? null;
}

/** Starts a plain TCP server, and returns its port. */
async function listen(
  t: Context,
  onConnection: (socket: Socket) => void,
): Promise<number> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket.on('error', () => {}));
    onConnection(socket);
  });
  const port = await portOf(server);
  t.teardown(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return port;
}

async function portOf(server: Server): Promise<number> {
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const address = server.address();
  if (typeof address !== 'object' || address === null)
    throw new Error('the server listens on no port');
  return address.port;
}
