import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import test, { type ExecutionContext } from 'ava';
import { sign } from '../../../activities/webhooks/signature.ts';
import { createSigningKeys, publicKey } from '../../../activities/webhooks/signing-keys.ts';
import { deliveryExamples } from '../../../api/openapi/examples.ts';

// `npm run verify` as the author of a receiver uses it: exit code 0 right, 1 not right, 2 wrong usage.

const MAIN = fileURLToPath(new URL('../../../deploy/local/verify.ts', import.meta.url));
const ID = 'msg_01jd9x6k2wf3r8t0z5q7w4m1hd';
const BODY = JSON.stringify(deliveryExamples['real-time']?.value).replace(
  '"order":17',
  '"name":"Zoë","n":1.5',
);
const AT = 1767607207;
const ARRIVED = ['--at', '2026-01-05T10:00:08Z'];
const SECRET = newSecret();
const [KEY = fail()] = createSigningKeys([Buffer.alloc(32, 7)])('org_01h2xcejqtf2nbrexx3vqjhp41');
const PUBLIC = publicKey(KEY).whpk;

function newSecret(): string {
  return `whsec_${randomBytes(32).toString('base64')}`;
}

function fail(): never {
  throw new Error('no key');
}

const signatureBy = (secrets: readonly string[], keys = [KEY]) =>
  sign({ id: ID, timestamp: AT, body: BODY, secrets, keys });

interface Request {
  readonly secret?: string | null;
  readonly signature?: string;
  readonly timestamp?: string;
  readonly body?: string | Buffer;
  readonly more?: readonly string[];
}

/** Runs the command on a request that is right but for what is given. */
async function verify(t: ExecutionContext, request: Request = {}) {
  const { secret = SECRET, signature = signatureBy([SECRET]), timestamp = String(AT) } = request;
  const body = join(await folder(t), 'body.json');
  await writeFile(body, request.body ?? BODY);
  return await run([
    ...(secret === null ? [] : ['--secret', secret]),
    ...['--id', ID, '--timestamp', timestamp, '--signature', signature, '--body', body],
    ...(request.more ?? ARRIVED),
  ]);
}

async function run(args: readonly string[], stdin = '') {
  const child = spawn(process.execPath, [MAIN, ...args], { stdio: 'pipe' });
  child.stdin.end(stdin);
  const [stdout, stderr, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'close'),
  ]);
  return { code: Number(code), stdout, stderr };
}

async function folder(t: ExecutionContext): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'verify-'));
  t.teardown(() => rm(dir, { recursive: true }));
  return dir;
}

test('a right signature is right, with one secret, during a rotation, and with a public key alone', async (t) => {
  const ways: Request[] = [
    {},
    { signature: signatureBy([newSecret(), SECRET]) },
    { signature: signatureBy([SECRET], []) },
    { secret: null, more: [...ARRIVED, '--public-key', PUBLIC] },
  ];
  for (const way of ways) {
    const { code, stdout, stderr } = await verify(t, way);
    t.is(code, 0, stdout + stderr);
    t.regex(stdout, /^right: the signature is right \(v1a?\)\.\n$/);
  }
});

test('another secret is named as what is wrong', async (t) => {
  const alone = await verify(t, { secret: newSecret() });
  t.is(alone.code, 1);
  t.regex(alone.stdout, /^not right: .*most likely the secret/);
  // The public key proves that the body is as it was sent.
  const proven = await verify(t, { secret: newSecret(), more: [...ARRIVED, '--public-key', PUBLIC] });
  t.is(proven.code, 1);
  t.regex(
    proven.stdout,
    /^not right: the secret is not the one that it was signed with; the body is as it was sent/,
  );
});

test('a body that was altered is told, and by what', async (t) => {
  const cases: readonly (readonly [string | Buffer, RegExp])[] = [
    [`${BODY}\n`, /a line break or a space at an end/],
    [`\u{feff}${BODY}`, /byte order mark/],
    [JSON.stringify(JSON.parse(BODY), null, 2), /parsed and written again/],
    // As Python's json.dumps writes it.
    [
      BODY.replaceAll('":', '": ').replace('ë', '\\u00eb').replace('https": ', 'https":'),
      /parsed and written again/,
    ],
    [JSON.stringify(BODY), /as a JSON string/],
    [Buffer.from(BODY).toString('latin1'), /Latin-1/],
    [Buffer.from(BODY).toString('base64'), /base64/],
    [BODY.slice(0, -10), /not JSON: it was cut off/],
    ['', /is empty/],
    [Buffer.from(BODY, 'latin1'), /not UTF-8/],
    ['{"data":[]}', /does not begin as deliveries do/],
  ];
  for (const [body, reason] of cases) {
    const { code, stdout } = await verify(t, { body });
    t.is(code, 1);
    t.regex(stdout, /^not right: the body is not the one that was signed: it /);
    t.regex(stdout, reason);
  }
});

test('one changed character is laid to the secret or the body, and to the body where a public key tells', async (t) => {
  const body = BODY.replace('"credits_used":1', '"credits_used":2');
  const alone = await verify(t, { body });
  t.is(alone.code, 1);
  t.regex(alone.stdout, /If the secret is right, then a value in the body/);
  const proven = await verify(t, { body, more: [...ARRIVED, '--public-key', PUBLIC] });
  t.is(proven.code, 1);
  t.regex(
    proven.stdout,
    /the body is not the one that was signed: it fits neither the secret nor the public key/,
  );
});

test('the length that was sent tells a shorter body', async (t) => {
  const dir = await folder(t);
  const [headers, body] = [join(dir, 'headers'), join(dir, 'body')];
  const sent = `content-length: ${Buffer.byteLength(BODY)}`;
  await writeFile(headers, `${headerLines()}\n${sent}`);
  await writeFile(body, BODY.replace('"credits_used":1', '"credits_used":10'));
  const { code, stdout } = await run(['--secret', SECRET, '--headers', headers, '--body', body, ...ARRIVED]);
  t.is(code, 1);
  t.regex(stdout, /the body is not the one that was signed: it has \d+ bytes, and content-length says/);
});

test('a stale timestamp is told with its age, however right the signature is', async (t) => {
  for (const [at, age] of [
    ['2026-01-05T10:05:08Z', '5 minutes old'],
    ['2026-01-05T13:00:07Z', '3 hours old'],
    ['2026-01-15T11:00:07+01:00', '10 days old'],
    ['2026-01-05T09:00:07Z', '60 minutes in the future'],
  ] as const) {
    const { code, stdout } = await verify(t, { more: ['--at', at] });
    t.is(code, 1);
    t.true(stdout.includes(`the signature matches, but its timestamp is ${age}`), stdout);
  }
  t.is((await verify(t, { more: ['--at', '2026-01-05T10:05:07Z'] })).code, 0);
  t.regex((await verify(t, { more: [] })).stdout, /days old/);
});

test('a header that is missing or malformed is named', async (t) => {
  const cases: readonly (readonly [Request, RegExp])[] = [
    [{ signature: '' }, /the header webhook-signature is missing/],
    [{ timestamp: '2026-01-05T10:00:07Z' }, /webhook-timestamp is malformed: it should be whole seconds/],
    [{ signature: 'sha256=abc' }, /webhook-signature is malformed/],
    [{ signature: signatureBy([SECRET], []).slice(0, -3) }, /webhook-signature is malformed/],
    [{ signature: signatureBy([]) }, /there is no v1 signature, only v1a/],
    [
      { secret: null, signature: signatureBy([SECRET], []), more: ['--public-key', PUBLIC] },
      /there is no v1a signature, only v1/,
    ],
  ];
  for (const [request, reason] of cases) {
    const { code, stdout } = await verify(t, request);
    t.is(code, 1);
    t.regex(stdout, reason);
  }
});

test('headers come as lines, with a request line or not, or as JSON; the body from stdin too', async (t) => {
  const file = join(await folder(t), 'headers');
  const asJson = JSON.stringify({
    'Webhook-Id': ID,
    'webhook-timestamp': AT,
    'webhook-signature': signatureBy([SECRET]),
  });
  const lines = headerLines();
  const capture = `POST /hook HTTP/1.1\r\nHost: example.com\r\n${lines.replaceAll('\n', '\r\n')}\r\n\r\nwebhook-id: of the body`;
  for (const headers of [lines, capture, asJson]) {
    await writeFile(file, headers);
    const { code, stdout, stderr } = await run(
      ['--secret', SECRET, '--headers', file, '--body', '-', ...ARRIVED],
      BODY,
    );
    t.is(code, 0, stdout + stderr);
  }
});

test('wrong usage is one sentence and exit code 2, and no secret is repeated', async (t) => {
  const secret = newSecret();
  const bare = secret.slice('whsec_'.length);
  const rest = ['--id', ID, '--timestamp', '1', '--signature', 'v1,x', '--body', '/nowhere'];
  for (const [args, said] of [
    [[], /--secret/],
    [[secret, ...rest], /argument without an option/],
    [[bare, ...rest], /argument without an option/],
    [['--secret', bare, ...rest], /--secret must be whsec_/],
    [['--secret', `"${secret}"`, ...rest], /--secret must be whsec_/],
    [['--secret', secret.slice(0, 20), ...rest], /--secret must be whsec_/],
    [[`--${secret}`, ...rest], /Unknown option/],
    [['--public-key', 'whpk_abc', ...rest], /--public-key must be whpk_/],
    [['--secret', secret, '--body', '/nowhere'], /--headers/],
    [['--secret', secret, ...rest], /--body cannot be read/],
    [['--secret', secret, '--headers', '/nowhere', '--body', '-'], /--headers cannot be read/],
    [['--secret', secret, ...rest, '--at', 'yesterday'], /--at must be a time/],
  ] as const) {
    const { code, stdout, stderr } = await run(args);
    t.is(code, 2, stderr);
    t.regex(stderr, said);
    t.false(`${stdout}${stderr}`.includes(bare.slice(0, 12)), stderr);
  }
  const help = await run(['--help']);
  t.is(help.code, 0);
  t.regex(help.stdout, /^npm run --silent verify/);
});

function headerLines(): string {
  return [
    `Webhook-Id: ${ID}`,
    `Webhook-Timestamp: ${AT}`,
    `Webhook-Signature: ${signatureBy([SECRET])}`,
  ].join('\n');
}
