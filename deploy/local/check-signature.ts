import { readFile } from 'node:fs/promises';
import { buffer } from 'node:stream/consumers';
import { sign } from '../../activities/webhooks/signature.ts';
import { parseOptions, runCommand, secretOf, usage } from './command-line.ts';

// `npm run check-signature`: whether the signature of a captured delivery is right and, if not, why.

const HELP = `npm run --silent check-signature -- OPTIONS

Says whether the signature of a delivery that you captured is right and, if not, why.

  --secret whsec_…|-    the organization's webhook secret; - reads it from stdin
  --body FILE|-         the body exactly as it arrived; - reads it from stdin
  --headers FILE        the headers as "name: value" lines, or as one JSON object
  --id, --timestamp, --signature
                        the webhook-… headers one by one, in place of --headers or over it
  --at TIME             when it arrived, RFC 3339 (default: now)
  --help                this text

Exit codes: 0 right, 1 not right, 2 wrong usage. (--silent: without it npm prints the command with its secret.)

Example:
  npm run --silent check-signature -- --secret whsec_… --headers headers.txt --body body.json --at 2026-01-05T10:00:08Z
`;

/** By lower-case name. */
type Headers = Readonly<Record<string, string | undefined>>;

/** Standard Webhooks leaves it to receivers; its libraries accept five minutes to either side. */
const TOLERANCE_SECONDS = 300;
const NAMES = ['webhook-id', 'webhook-timestamp', 'webhook-signature'] as const;

/**
 * What is wrong with a delivery's signature, for whoever writes the receiver; null if it is right. Another secret and
 * an altered body look the same: both make another signature.
 * @param secret `whsec_…`
 * @param at when the delivery arrived
 */
export function signatureProblem(headers: Headers, body: Buffer, secret: string, at: Date): string | null {
  for (const name of NAMES) {
    if (headers[name]) continue;
    return `the header ${name} is missing: a proxy may have dropped it, or the request is not a delivery`;
  }
  const [id = '', timestamp = '', signature = ''] = NAMES.map((name) => headers[name]);
  if (!/^[0-9]{1,12}$/.test(timestamp)) {
    return 'the header webhook-timestamp is malformed: it should be whole seconds since 1970 in digits';
  }
  const signatures = signature.split(' ').filter((one) => /^v1,[A-Za-z0-9+/]{43}=$/.test(one));
  if (signatures.length === 0) {
    return 'the header webhook-signature is malformed: it should be "v1," and 44 characters of base64, or several such with spaces between';
  }
  const signable = { id, timestamp: Number(timestamp), body: body.toString('utf8') };
  if (!signatures.includes(sign({ ...signable, secrets: [secret] }))) {
    return 'no signature matches. Either the secret is not the one that it was signed with (it is that of another organization, or was rotated more than 24 h ago), or the body was altered: verify the bytes that arrived, before any parser; or the id or the timestamp was changed';
  }
  const age = Math.floor(at.getTime() / 1000) - Number(timestamp);
  if (Math.abs(age) <= TOLERANCE_SECONDS) return null;
  const minutes = `${Math.round(Math.abs(age) / 60)} minutes ${age < 0 ? 'in the future' : 'old'}`;
  return `the signature matches, but its timestamp is ${minutes}; receivers accept ${TOLERANCE_SECONDS / 60} minutes to either side, so that a captured request cannot be sent again. For one that was captured earlier say when it arrived; otherwise check the clock`;
}

async function main(): Promise<void> {
  const options = parse();
  if (options.help) {
    console.log(HELP);
    return;
  }
  if (options.secret === '-' && options.body === '-') {
    throw usage('Only one of --secret and --body can be read from stdin.');
  }
  const secret = secretOf(options.secret);
  if (secret === undefined) {
    throw usage('Give --secret whsec_… (the operator command "webhook-secret show" prints it).');
  }
  const at = options.at === undefined ? new Date() : timeOf(options.at);
  const problem = signatureProblem(await headersOf(options), await bodyOf(options.body), secret, at);
  console.log(problem === null ? 'right: the signature is right.' : `not right: ${problem}.`);
  process.exitCode = problem === null ? 0 : 1;
}

type Options = ReturnType<typeof parse>;

function parse() {
  return parseOptions({
    secret: { type: 'string' },
    body: { type: 'string' },
    headers: { type: 'string' },
    id: { type: 'string' },
    timestamp: { type: 'string' },
    signature: { type: 'string' },
    at: { type: 'string' },
    help: { type: 'boolean', default: false },
  });
}

function timeOf(text: string): Date {
  const at = new Date(text);
  if (/^[0-9]{4}-[0-9]{2}-[0-9]{2}T.*(Z|[+-][0-9]{2}:[0-9]{2})$/.test(text) && !Number.isNaN(at.getTime()))
    return at;
  throw usage('--at must be a time such as 2026-01-05T10:00:08Z.');
}

/** Those of the file, and over them those given one by one. */
async function headersOf({ headers, id, timestamp, signature }: Options): Promise<Headers> {
  if (headers === undefined && id === undefined && timestamp === undefined && signature === undefined) {
    throw usage('Give --headers FILE, or --id, --timestamp and --signature.');
  }
  const filed: Headers =
    headers === undefined ? {} : parseHeaders((await fileOf('--headers', headers)).toString('utf8'));
  return {
    'webhook-id': id ?? filed['webhook-id'],
    'webhook-timestamp': timestamp ?? filed['webhook-timestamp'],
    'webhook-signature': signature ?? filed['webhook-signature'],
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
    throw usage('The file of --headers begins as a JSON object and is not one.');
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

// Last, when every constant above is set. The other importer, `npm run listen`, only checks.
if (import.meta.main) await runCommand(main);
