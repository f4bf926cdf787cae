import { readFile } from 'node:fs/promises';
import { buffer } from 'node:stream/consumers';
import { parseOptions, runCommand, usage } from './command-line.ts';
import { type Captured, checkSignature, parsePublicKey, type Trusted } from './signature-check.ts';
import { wordsOf } from './signature-words.ts';

// `npm run verify`: whether the signature of a captured delivery is right and, if not, why.

const HELP = `npm run --silent verify -- OPTIONS

Says whether the signature of a delivery that you captured is right and, if not, why.

  --secret whsec_…      the organization's webhook secret
  --public-key whpk_…   with it, or in its place: a key of /.well-known/webhook-keys/ORG, for v1a signatures
  --body FILE|-         the body exactly as it arrived; - reads it from stdin
  --headers FILE        the headers as "name: value" lines, or as one JSON object
  --id, --timestamp, --signature
                        the webhook-… headers one by one, in place of --headers or over it
  --at TIME             when it arrived, RFC 3339 (default: now)
  --help                this text

Exit codes: 0 right, 1 not right, 2 wrong usage. (--silent: without it npm prints the command with its secret.)

Example:
  npm run --silent verify -- --secret whsec_… --headers headers.txt --body body.json --at 2026-01-05T10:00:08Z
`;

await runCommand(async () => {
  const options = parse();
  if (options.help) {
    console.log(HELP);
    return;
  }
  const trusted = trustedOf(options);
  const at = options.at === undefined ? new Date() : timeOf(options.at);
  const captured: Captured = { headers: await headersOf(options), body: await bodyOf(options.body) };
  const verdict = checkSignature(captured, trusted, at);
  const isRight = verdict.kind === 'right';
  console.log(`${isRight ? 'right' : 'not right'}: ${wordsOf(verdict)}.`);
  process.exitCode = isRight ? 0 : 1;
});

type Options = ReturnType<typeof parse>;

function parse() {
  return parseOptions({
    secret: { type: 'string' },
    'public-key': { type: 'string' },
    body: { type: 'string' },
    headers: { type: 'string' },
    id: { type: 'string' },
    timestamp: { type: 'string' },
    signature: { type: 'string' },
    at: { type: 'string' },
    help: { type: 'boolean', default: false },
  });
}

function trustedOf({ secret, 'public-key': publicKey }: Options): Trusted {
  if (secret === undefined && publicKey === undefined) {
    throw usage('Give --secret whsec_… (the operator command "webhook-secret show" prints it).');
  }
  const size = Buffer.from(/^whsec_([A-Za-z0-9+/]+={0,2})$/.exec(secret ?? '')?.[1] ?? '', 'base64').length;
  if (secret !== undefined && (size < 24 || size > 64)) {
    throw usage('--secret must be whsec_ and base64 of 24 to 64 bytes, whole and without quotes.');
  }
  const key = publicKey === undefined ? null : parsePublicKey(publicKey);
  if (publicKey !== undefined && key === null) {
    throw usage('--public-key must be whpk_ and 44 characters of base64.');
  }
  return { secret: secret ?? null, publicKey: key };
}

function timeOf(text: string): Date {
  const at = new Date(text);
  if (/^[0-9]{4}-[0-9]{2}-[0-9]{2}T.*(Z|[+-][0-9]{2}:[0-9]{2})$/.test(text) && !Number.isNaN(at.getTime()))
    return at;
  throw usage('--at must be a time such as 2026-01-05T10:00:08Z.');
}

/** Those of the file, and over them those given one by one. */
async function headersOf({ headers, id, timestamp, signature }: Options): Promise<Captured['headers']> {
  if (headers === undefined && id === undefined && timestamp === undefined && signature === undefined) {
    throw usage('Give --headers FILE, or --id, --timestamp and --signature.');
  }
  const filed =
    headers === undefined ? {} : parseHeaders((await fileOf('--headers', headers)).toString('utf8'));
  return {
    ...filed,
    ...(id === undefined ? {} : { 'webhook-id': id }),
    ...(timestamp === undefined ? {} : { 'webhook-timestamp': timestamp }),
    ...(signature === undefined ? {} : { 'webhook-signature': signature }),
  };
}

/** `name: value` lines up to the first empty one, a request line before them or not; or one JSON object. */
function parseHeaders(text: string): Record<string, string> {
  const pairs = text.trimStart().startsWith('{') ? jsonHeaders(text) : lineHeaders(text);
  return Object.fromEntries(pairs.map(([name, value]) => [name.toLowerCase(), value]));
}

function jsonHeaders(text: string): (readonly [string, string])[] {
  try {
    return Object.entries(JSON.parse(text) as object).map(([name, value]) => [name, String(value)]);
  } catch {
    throw usage('The file of --headers begins as a JSON object and is none.');
  }
}

function lineHeaders(text: string): (readonly [string, string])[] {
  const [head = ''] = text.trimStart().split(/\r?\n\r?\n/);
  return head.split(/\r?\n/).flatMap((line) => {
    const [, name = '', value = ''] = /^[<>]?\s*([A-Za-z0-9-]+):\s*(.*?)\s*$/.exec(line) ?? [];
    return name === '' ? [] : [[name, value] as const];
  });
}

async function bodyOf(place: string | undefined): Promise<Buffer> {
  if (place === undefined) throw usage('Give --body FILE, or --body - to read it from stdin.');
  return place === '-' ? await buffer(process.stdin) : await fileOf('--body', place);
}

async function fileOf(option: string, path: string): Promise<Buffer> {
  try {
    return await readFile(path);
  } catch {
    throw usage(`The file of ${option} cannot be read.`);
  }
}
