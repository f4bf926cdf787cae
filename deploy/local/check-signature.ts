import { readFileSync } from 'node:fs';
import { type Command, InvalidArgumentError, Option } from 'commander';
import { sign } from '../../activities/webhooks/signature.ts';
import { main } from '../main.ts';
import { orStdin, pastMoment } from '../operator/arguments.ts';

// `npm run check-signature`: whether the signature of a captured delivery is right and, if not, why.

const HELP = `
It checks a delivery that you captured. The three webhook-… headers come from --headers or one by one; what is given
by itself goes over the file.
Exit codes: 0 right, 1 not right, 2 wrong usage. (--silent: without it npm prints the command with its secret.)

Example:
  npm run --silent check-signature -- --secret whsec_… --headers headers.txt --body body.json --at 2026-01-05T10:00:08Z`;

interface Options {
  readonly secret: string;
  readonly body: Buffer;
  readonly headers?: Headers;
  readonly id?: string;
  readonly timestamp?: string;
  readonly signature?: string;
  readonly at?: Date;
}

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
  const missing = NAMES.find((name) => !headers[name]);
  if (missing) {
    return `the header ${missing} is missing: a proxy may have dropped it, or the request is not a delivery`;
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

/**
 * Adds `--secret`. No message repeats what was given: a secret may come without its `whsec_`, or without `--secret`
 * before it.
 */
export function addSecret(command: Command, description: string): Option {
  const parse = orStdin((given) => {
    const text = given.trim();
    const size = Buffer.from(/^whsec_([A-Za-z0-9+/]+={0,2})$/.exec(text)?.[1] ?? '', 'base64').length;
    if (size >= 24 && size <= 64) return text;
    return command.error(
      'error: --secret must be whsec_ and base64 of 24 to 64 bytes: "webhook-secret show" of the operator prints it',
    );
  });
  const option = new Option('--secret <SECRET>', `${description}: whsec_…, or - to read it from stdin`);
  command
    .addOption(option.argParser(parse))
    .configureOutput({ outputError: (text, write) => write(text.replace(/whs[a-z]*_[^\s']+/gi, 'whsec_…')) });
  return option;
}

async function check(_stopped: Promise<void>, options: Options, command: Command): Promise<void> {
  const { secret, body, headers, at = new Date(), id, timestamp, signature } = options;
  const single = [id, timestamp, signature];
  if (headers === undefined && single.every((one) => one === undefined)) {
    command.error('error: give --headers <FILE>, or --id, --timestamp and --signature');
  }
  const arrived = Object.fromEntries(NAMES.map((name, n) => [name, single[n] ?? headers?.[name]]));
  const problem = signatureProblem(arrived, body, secret, at);
  console.log(problem === null ? 'right: the signature is right.' : `not right: ${problem}.`);
  process.exitCode = problem === null ? 0 : 1;
}

/** The bytes of a file, or of stdin. */
function contents(path: string): Buffer {
  let bytes: Buffer;
  try {
    bytes = readFileSync(path === '-' ? 0 : path);
  } catch {
    throw new InvalidArgumentError('It cannot be read.');
  }
  if (path !== '-' || bytes.length > 0) return bytes;
  throw new InvalidArgumentError(
    'Nothing came on stdin: only one of --secret and --body can be read from it.',
  );
}

/** `name: value` lines up to the first empty one, a request line before them or not; or one JSON object. */
function parseHeaders(path: string): Headers {
  const text = contents(path).toString('utf8');
  const pairs = text.trimStart().startsWith('{') ? jsonHeaders(text) : lineHeaders(text);
  return Object.fromEntries(pairs.map(([name, value]) => [name.toLowerCase(), value]));
}

function jsonHeaders(text: string): (readonly [string, string])[] {
  try {
    return Object.entries(JSON.parse(text) as object).map(([name, value]) => [name, String(value)]);
  } catch {
    throw new InvalidArgumentError('It begins as a JSON object and is not one.');
  }
}

function lineHeaders(text: string): (readonly [string, string])[] {
  const [head = ''] = text.trimStart().split(/\r?\n\r?\n/);
  return head.split(/\r?\n/).flatMap((line) => {
    const [, name = '', value = ''] = /^[<>]?\s*([A-Za-z0-9-]+):\s*(.*?)\s*$/.exec(line) ?? [];
    return name === '' ? [] : [[name, value] as const];
  });
}

// Last, when every constant above is set. The other importers only check, or take the option.
if (import.meta.main) {
  const program = {
    name: 'check-signature',
    call: 'npm run --silent check-signature --',
    description: 'Says whether a signature is right and, if not, why.',
    help: HELP,
  };
  await main(program, check, (command) => {
    command
      .requiredOption('--body <FILE>', 'the body exactly as it arrived; - reads it from stdin', contents)
      .option('--headers <FILE>', 'the headers as "name: value" lines, or as one JSON object', parseHeaders)
      .option('--id <ID>', 'the header webhook-id')
      .option('--timestamp <SECONDS>', 'the header webhook-timestamp')
      .option('--signature <SIGNATURE>', 'the header webhook-signature')
      .option(
        '--at <TIME>',
        'when it arrived, such as 2026-01-05T10:00:08Z, or how long ago (default: now)',
        pastMoment,
      );
    addSecret(command, "the organization's webhook secret").makeOptionMandatory();
  });
}
