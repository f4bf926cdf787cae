import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { copyFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type RequestListener } from 'node:http';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import test, { type ExecutionContext } from 'ava';
import { createNames } from '../../../activities/http/names.ts';
import { createAddressPolicy } from '../../../activities/webhooks/ip-policy.ts';
import { createPost } from '../../../activities/webhooks/post.ts';
import { sign } from '../../../activities/webhooks/signature.ts';
import { showWebhookSecret } from '../../../db/accounts/webhook-secrets.ts';
import { fresh, SECRET_KEYS, temporaryFolder } from '../../support/database.ts';
import { endWithThisProcess } from '../../support/programs.ts';
import { startStack } from '../../support/stack.ts';
import { ordinaryNpis } from '../../support/vendors.ts';

// Uses `npm run listen` next to a running stack, as the author of a receiver does.

const MAIN = fileURLToPath(new URL('../../../deploy/local/listen.ts', import.meta.url));
const newSecret = () => `whsec_${randomBytes(24).toString('base64')}`;
const KNOWN = newSecret();

const stack = fresh(test, () => startStack());
const client = fresh(test, () => stack.organization());
const sandbox = fresh(test, () => stack.sandboxOf(client));
const dir = temporaryFolder(test.after.always);

test.before(async () => {
  await mkdir(join(dir, 'receiver'));
  for (const name of ['cert.pem', 'key.pem']) {
    await copyFile(join(dirname(stack.receiver.caFile), name), join(dir, 'receiver', name));
  }
  await writeFile(
    join(dir, 'stack.json'),
    JSON.stringify({
      base_url: stack.baseUrl,
      webhook_secrets: [...(await Promise.all([client, sandbox].map(secretOf))), KNOWN],
    }),
  );
});

async function secretOf({ organizationId }: { readonly organizationId: string }): Promise<string> {
  return (await showWebhookSecret({ ...stack.db, secretKeys: SECRET_KEYS }, organizationId))
    .webhookSecret;
}

test('a delivery is verified and forwarded unchanged, and the response returned', async (t) => {
  const target = await startTarget(t, (_request, response) => response.writeHead(200).end());
  const { url, line } = await listening(t, ['--forward-to', `${target.url}/hook?a=1`]);
  const npis = ordinaryNpis('found', 2);
  const { json } = await client.bulk({
    npis,
    webhook: { url, mode: 'batch' },
    custom_data: { ë: 1.5 },
  });
  const printed = await line();
  t.regex(printed, /^\d{4}-\S+Z msg_\S+ {2}2 NPIs {2}→ 200 in \d+ ms {2}verified$/);
  const [arrived] = target.arrived;
  t.is(arrived?.url, '/hook?a=1');
  t.is(arrived?.headers['content-type'], 'application/json');
  t.is(arrived?.headers['user-agent'], 'npi-email-enrichment/1');
  t.regex(String(arrived?.headers['webhook-signature']), /^v1,/);
  t.true(printed.includes(String(arrived?.headers['webhook-id'])));
  t.true(arrived?.body.includes('"custom_data":{"ë":1.5},"usage"'), arrived?.body);
  const envelope = await client.completed(json.batch_id);
  t.is(envelope.batch.total, 2);
});

test("a delivery of the sandbox is verified by the sandbox's own secret", async (t) => {
  const target = await startTarget(t, (_request, response) => response.writeHead(200).end());
  const { url, line } = await listening(t, ['--forward-to', target.url]);
  await sandbox.single({ npi: '2000000010', webhook: { url } });
  t.regex(await line(), /→ 200 in \d+ ms {2}verified$/);
});

test('status, Retry-After and body of the target are returned, redirects too', async (t) => {
  const answers: [number, Record<string, string>][] = [
    [503, { 'retry-after': '7' }],
    [410, {}],
    [302, { location: 'http://127.0.0.1:1/' }],
    [204, {}],
  ];
  const target = await startTarget(t, (_request, response) => {
    const [status, headers] = answers[target.arrived.length - 1] ?? [500, {}];
    response.writeHead(status, headers).end(status === 204 ? undefined : 'said so');
  });
  const { url, line, send } = await listening(t, ['--forward-to', target.url]);
  for (const [status, headers] of answers) {
    const answer = await send(url);
    if (answer.kind !== 'answered') return t.fail(answer.kind);
    t.is(answer.status, status);
    t.is(answer.retryAfterMs, headers['retry-after'] ? 7000 : null);
    t.is(answer.excerpt.toString(), status === 204 ? '' : 'said so');
    t.true((await line()).includes(`→ ${status} in`));
  }
});

test('deliveries with wrong signatures are forwarded, and the line says why', async (t) => {
  const target = await startTarget(t, (_request, response) => response.writeHead(400).end());
  const secret = KNOWN;
  const { url, line, send } = await listening(t, ['--forward-to', target.url]);
  await send(url, { secret });
  t.regex(await line(), /→ 400 in \d+ ms {2}verified$/);
  await send(url, { secret: newSecret() });
  t.regex(await line(), /NOT VERIFIED: no signature matches/);
  await send(url, { secret, ageSeconds: 3600 });
  t.regex(await line(), /NOT VERIFIED: the signature matches, but its timestamp is 60 minutes old/);
  await send(url, { secret, sent: '{"data":[]}' });
  t.regex(await line(), / 0 NPIs .* NOT VERIFIED: no signature matches/);
  t.is(target.arrived.length, 4);
});

test('control characters in webhook-id are printed escaped', async (t) => {
  const target = await startTarget(t, (_request, response) => response.writeHead(200).end());
  const { url, line, send } = await listening(t, ['--forward-to', target.url]);
  await send(url, { id: 'msg_\u009b2J\u00ad' });
  t.regex(await line(), / msg_[^ ]*\\u009b2J[^ ]*\\u00ad /);
});

test('a target that is down causes a 502, and the next delivery still arrives', async (t) => {
  const target = await startTarget(t, (request) => request.socket.destroy());
  const { url, line, send } = await listening(t, ['--forward-to', target.url]);
  for (let n = 0; n < 2; n += 1) {
    const answer = await send(url);
    t.is(answer.kind === 'answered' ? answer.status : 0, 502);
    t.true((await line()).includes('→ 502 (no answer from your receiver)'));
  }
  t.is(target.arrived.length, 2);
});

test('Ctrl-C ends it with exit code 0', async (t) => {
  const { child } = await listening(t, ['--forward-to', 'http://127.0.0.1:1/']);
  child.kill('SIGINT');
  t.is((await once(child, 'close'))[0], 0);
});

test('a missing stack, a stopped stack and a taken port are one sentence each', async (t) => {
  const empty = temporaryFolder(t.teardown);
  const down = temporaryFolder(t.teardown);
  await writeFile(join(down, 'stack.json'), JSON.stringify({ base_url: 'http://127.0.0.1:1' }));
  const { url } = await listening(t, ['--forward-to', 'http://127.0.0.1:1/']);
  const { port } = new URL(url);
  for (const [args, said] of [
    [['--dir', empty], /There is no .*stack\.json: start the local stack with npm start/],
    [['--dir', down], /does not answer at http:\/\/127\.0\.0\.1:1: start it with npm start/],
    [['--dir', dir, '--port', port], new RegExp(`Port ${port} .* is taken: .*--port`)],
  ] as const) {
    const { code, stderr } = await ended(['--forward-to', 'http://127.0.0.1:1/', ...args]);
    t.is(code, 1, stderr);
    t.regex(stderr, said);
    t.is(stderr.trim().split('\n').length, 1, stderr);
  }
});

test('wrong usage is one sentence and exit code 2, and repeats no secret', async (t) => {
  const secret = newSecret();
  for (const [args, said] of [
    [[], /--forward-to/],
    [['--forward-to', 'localhost:3000'], /--forward-to/],
    [['--forward-to', 'http://a/', '--port', '70000'], /--port/],
    [['--forward-to', 'http://a/', secret.slice(6)], /too many arguments/],
  ] as const) {
    const { code, stderr } = await ended(args);
    t.is(code, 2, stderr);
    t.regex(stderr, said);
    t.false(stderr.includes(secret.slice(6, 20)), stderr);
  }
  const help = await ended(['--help']);
  t.is(help.code, 0);
  t.regex(help.stdout, /^Usage: npm run listen /);
});

/**
 * Starts a listener. Returns its address, its next line, and a function that sends a delivery as
 * the stack would.
 */
async function listening(t: ExecutionContext, args: readonly string[]) {
  const child = run(t, ['--dir', dir, '--port', '0', ...args]);
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const line = async () => String((await lines.next()).value);
  const [, url = ''] = /^(https:\S+) → /.exec(await line()) ?? [];
  await line();
  const post = createPost({
    policy: createAddressPolicy({ openCidrs: ['127.0.0.1/32'] }),
    ca: await readFile(stack.receiver.caFile, 'utf8'),
    userAgent: 'test',
    lookup: createNames([]).find,
  });
  const send = async (
    to: string,
    {
      secret = newSecret(),
      ageSeconds = 0,
      id = 'msg_1',
      sent = '{"batch":{"id":"bat_1"},"data":[]}',
    } = {},
  ) => {
    const timestamp = Math.floor(Date.now() / 1000) - ageSeconds;
    const body = '{"batch":{"id":"bat_1"},"data":[]}';
    const headers = {
      'webhook-id': id,
      'webhook-timestamp': String(timestamp),
      'webhook-signature': sign({ id, timestamp, body, secrets: [secret] }),
    };
    return await post({ url: to, headers, body: sent, blocked: [] });
  };
  return { child, url, line, send };
}

interface Arrived extends Pick<IncomingMessage, 'url' | 'headers'> {
  readonly body: string;
}

/** Starts a receiver under development: plain HTTP on loopback. */
async function startTarget(t: ExecutionContext, answer: RequestListener) {
  const arrived: Arrived[] = [];
  const server = createServer(async (request, response) => {
    arrived.push({ url: request.url, headers: request.headers, body: await text(request) });
    answer(request, response);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => server.close());
  const address = server.address();
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  return { url: `http://127.0.0.1:${port}`, arrived };
}

async function ended(args: readonly string[]) {
  const child = spawn(process.execPath, [MAIN, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
  endWithThisProcess(child);
  const [stdout, stderr, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'close'),
  ]);
  return { code: Number(code), stdout, stderr };
}

function run(t: ExecutionContext, args: readonly string[]) {
  const child = spawn(process.execPath, [MAIN, ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
  endWithThisProcess(child);
  t.teardown(() => stop(child));
  return child;
}

function stop(child: ChildProcess): void {
  if (child.exitCode === null) child.kill('SIGKILL');
}
