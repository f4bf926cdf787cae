import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import test, { type ExecutionContext } from 'ava';
import { sign } from '../../../activities/webhooks/signature.ts';
import examples from '../../../api/openapi/examples.json' with { type: 'json' };
import { temporaryFolder } from '../../support/database.ts';

// Uses `npm run check-signature` as the author of a receiver: exit code 0 right, 1 not right, 2
// wrong usage.

const MAIN = fileURLToPath(new URL('../../../deploy/local/check-signature.ts', import.meta.url));
const ID = 'msg_01jd9x6k2wf3r8t0z5q7w4m1hd';
const BODY = JSON.stringify(examples.delivery['real-time'].value).replace(
  '"order":17',
  '"name":"Zoë","n":1.5',
);
const AT = 1767607207;
const ARRIVED = ['--at', '2026-01-05T10:00:08Z'];
const SECRET = newSecret();

function newSecret(): string {
  return `whsec_${randomBytes(32).toString('base64')}`;
}

const signatureBy = (...secrets: readonly string[]) =>
  sign({ id: ID, timestamp: AT, body: BODY, secrets });

interface Request {
  readonly secret?: string;
  readonly signature?: string;
  readonly timestamp?: string;
  readonly body?: string | Buffer;
  readonly more?: readonly string[];
}

/** Runs the command on a request that is right except for the given parts. */
async function check(t: ExecutionContext, request: Request = {}) {
  const { secret = SECRET, signature = signatureBy(SECRET), timestamp = String(AT) } = request;
  const dir = temporaryFolder(t.teardown);
  const [body, headers] = [join(dir, 'body.json'), join(dir, 'headers')];
  await writeFile(body, request.body ?? BODY);
  await writeFile(headers, headerLines(timestamp, signature));
  return await run([
    ...['--secret', secret, '--headers', headers, '--body', body],
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

test('a right signature is accepted, during a rotation and next to versions too', async (t) => {
  const ways: Request[] = [
    {},
    { signature: signatureBy(newSecret(), SECRET) },
    { signature: `v2,AA== ${signatureBy(SECRET)}` },
  ];
  for (const way of ways) {
    const { code, stdout, stderr } = await check(t, way);
    t.is(code, 0, stdout + stderr);
    t.regex(stdout, /^right: the signature is right\.\n$/);
  }
});

test('a wrong secret and a changed body are reported as such', async (t) => {
  const requests: Request[] = [
    { secret: newSecret() },
    { body: `${BODY}\n` },
    { body: JSON.stringify(JSON.parse(BODY), null, 2) },
    { body: BODY.replace('"credits_used":1', '"credits_used":2') },
    { body: Buffer.from(BODY, 'latin1') },
    { body: '' },
    { timestamp: String(AT + 1) },
  ];
  for (const request of requests) {
    const { code, stdout } = await check(t, request);
    t.is(code, 1);
    t.regex(
      stdout,
      /^not right: no signature matches\. Either the secret .* or the body was altered/,
    );
  }
});

test('the secret is also read from stdin, but not together with the body', async (t) => {
  const dir = temporaryFolder(t.teardown);
  const body = join(dir, 'body');
  await writeFile(body, BODY);
  const headers = join(dir, 'headers');
  await writeFile(headers, headerLines());
  const given = ['--secret', '-', '--headers', headers, ...ARRIVED];
  t.is(
    (await run([...given, '--body', body], `${SECRET}\n`)).stdout,
    'right: the signature is right.\n',
  );
  t.is((await run([...given, '--body', body], newSecret())).code, 1);
  const both = await run([...given, '--body', '-'], SECRET);
  t.deepEqual([both.code, both.stdout], [2, '']);
  t.regex(both.stderr, /only one of --secret and --body/);
});

test('a stale timestamp is reported with its age, even if the signature is right', async (t) => {
  for (const [at, age] of [
    ['2026-01-05T10:05:08Z', '5 minutes old'],
    ['2026-01-05T14:00:07+01:00', '180 minutes old'],
    ['2026-01-05T09:00:07Z', '60 minutes in the future'],
  ] as const) {
    const { code, stdout } = await check(t, { more: ['--at', at] });
    t.is(code, 1);
    t.true(stdout.includes(`the signature matches, but its timestamp is ${age}`), stdout);
  }
  t.is((await check(t, { more: ['--at', '2026-01-05T10:05:07Z'] })).code, 0);
  t.regex((await check(t, { more: [] })).stdout, /minutes old/);
});

test('a missing or malformed header is named', async (t) => {
  const cases: readonly (readonly [Request, RegExp])[] = [
    [{ signature: '' }, /the header webhook-signature is missing/],
    [
      { timestamp: '2026-01-05T10:00:07Z' },
      /webhook-timestamp is malformed: it should be whole seconds/,
    ],
    [{ signature: 'sha256=abc' }, /webhook-signature is malformed/],
    [{ signature: signatureBy(SECRET).slice(0, -3) }, /webhook-signature is malformed/],
  ];
  for (const [request, reason] of cases) {
    const { code, stdout } = await check(t, request);
    t.is(code, 1);
    t.regex(stdout, reason);
  }
});

test('headers are lines or JSON, and the body can come from stdin', async (t) => {
  const file = join(temporaryFolder(t.teardown), 'headers');
  const asJson = JSON.stringify({
    'Webhook-Id': ID,
    'webhook-timestamp': AT,
    'webhook-signature': signatureBy(SECRET),
  });
  const lines = headerLines();
  const capture = `POST /hook HTTP/1.1\r\nHost: example.com\r\n${lines.replaceAll('\n', '\r\n')}\r\n\r\nwebhook-id: of the body`;
  for (const headers of [lines, capture, asJson, JSON.stringify(JSON.parse(asJson), null, 2)]) {
    await writeFile(file, headers);
    const { code, stdout, stderr } = await run(
      ['--secret', SECRET, '--headers', file, '--body', '-', ...ARRIVED],
      BODY,
    );
    t.is(code, 0, stdout + stderr);
  }
});

test('wrong usage is one sentence and exit code 2, and repeats no secret', async (t) => {
  const secret = newSecret();
  const bare = secret.slice('whsec_'.length);
  const rest = ['--headers', '/nowhere', '--body', '/nowhere'];
  const files = ['--headers', import.meta.filename, '--body', import.meta.filename];
  for (const [args, said] of [
    [[], /--secret/],
    [files, /--secret/],
    [['--secret', secret, '--body', '-', secret], /--body <FILE>.*only one of --secret and --body/],
    [[secret, ...rest], /cannot be read/],
    [['--secret', SECRET, secret, ...files], /too many arguments/],
    [['--secret', SECRET, bare, ...files], /too many arguments/],
    [['--secret', bare, ...rest], /--secret <SECRET>' argument is invalid\. Write whsec_/],
    [['--secret', `"${secret}"`, ...rest], /Write whsec_/],
    [['--secret', `${bare}'${bare}`, ...rest], /Write whsec_/],
    [['--secret', secret.slice(0, 20), ...rest], /Write whsec_/],
    [['--secret', SECRET, `--${secret}`, ...files], /unknown option/],
    [['--secret', secret, '--body', import.meta.filename], /--headers/],
    [['--secret', secret, ...rest], /--headers <FILE>.*cannot be read/],
    [
      ['--secret', secret, '--headers', '/nowhere', '--body', '-'],
      /--headers <FILE>.*cannot be read/,
    ],
    [['--secret', secret, '--at', 'yesterday', ...rest], /--at <TIME>.*a past moment/],
    [['--secret', secret, '--at', secret, ...rest], /--at <TIME>.*a past moment/],
  ] as const) {
    const { code, stdout, stderr } = await run(args);
    t.is(code, 2, stderr);
    t.regex(stderr, said);
    t.false(`${stdout}${stderr}`.includes(bare.slice(0, 12)), stderr);
  }
  const help = await run(['--help']);
  t.is(help.code, 0);
  t.regex(help.stdout, /^Usage: npm run --silent check-signature /);
});

function headerLines(timestamp = String(AT), signature = signatureBy(SECRET)): string {
  return [
    `Webhook-Id: ${ID}`,
    `Webhook-Timestamp: ${timestamp}`,
    `Webhook-Signature: ${signature}`,
  ].join('\n');
}
