import { readFileSync } from 'node:fs';
import { InvalidArgumentError } from 'commander';
import { sign } from '../../activities/webhooks/signature.ts';
import { main } from '../main.ts';
import { orStdin, pastMoment } from '../operator/arguments.ts';

// `npm run check-signature` checks the signature of a captured delivery, and explains why it is
// wrong.

const HELP = `
It checks a delivery that you captured: its body, and of its headers the three webhook-… ones.
Exit codes: 0 right, 1 not right, 2 wrong usage. (--silent: without it npm prints the command with its secret.)

Example:
  npm run --silent check-signature -- --secret whsec_… --headers headers.txt --body body.json --at 2026-01-05T10:00:08Z`;

interface Options {
  readonly secret: string;
  readonly body: Buffer;
  readonly headers: Headers;
  readonly at?: Date;
}

/** By lowercase name. */
type Headers = Readonly<Record<string, string | undefined>>;

/** The tolerance of Standard Webhooks' libraries. The specification leaves it to receivers. */
const TOLERANCE_SECONDS = 300;
const NAMES = ['webhook-id', 'webhook-timestamp', 'webhook-signature'] as const;

/**
 * Returns what is wrong with a delivery's signature, for the developer of a receiver, or null if it
 * is right. A wrong secret and a changed body can't be distinguished, because both change the
 * signature.
 * @param secrets `whsec_…`, one of which has to match
 * @param at when the delivery arrived
 */
export function signatureProblem(
  headers: Headers,
  body: Buffer,
  secrets: readonly string[],
  at: Date,
): string | null {
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
  if (!secrets.some((secret) => signatures.includes(sign({ ...signable, secrets: [secret] })))) {
    return 'no signature matches. Either the secret is not the one that it was signed with (it is that of another organization, or was rotated more than 24 h ago), or the body was altered: verify the bytes that arrived, before any parser; or the id or the timestamp was changed';
  }
  const age = Math.floor(at.getTime() / 1000) - Number(timestamp);
  if (Math.abs(age) <= TOLERANCE_SECONDS) return null;
  const minutes = `${Math.round(Math.abs(age) / 60)} minutes ${age < 0 ? 'in the future' : 'old'}`;
  return `the signature matches, but its timestamp is ${minutes}; receivers accept ${TOLERANCE_SECONDS / 60} minutes to either side, so that a captured request cannot be sent again. For one that was captured earlier say when it arrived; otherwise check the clock`;
}

/** The argument of `--secret`. */
const parseSecret = orStdin((given) => {
  const text = given.trim();
  const size = Buffer.from(/^whsec_([A-Za-z0-9+/]+={0,2})$/.exec(text)?.[1] ?? '', 'base64').length;
  if (size >= 24 && size <= 64) return text;
  throw new InvalidArgumentError(
    'Write whsec_ and base64 of 24 to 64 bytes: "webhook-secret show" of the operator prints it.',
  );
});

async function check(_stopped: Promise<void>, options: Options): Promise<void> {
  const { secret, body, headers, at = new Date() } = options;
  const problem = signatureProblem(headers, body, [secret], at);
  console.log(problem === null ? 'right: the signature is right.' : `not right: ${problem}.`);
  process.exitCode = problem === null ? 0 : 1;
}

/** Returns the bytes of a file, or of stdin. */
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

/**
 * Reads the relevant headers from `name: value` lines before the first empty line, or from the
 * members of a JSON object.
 */
function parseHeaders(path: string): Headers {
  const [head = ''] = contents(path)
    .toString('utf8')
    .trimStart()
    .split(/\r?\n\r?\n/);
  const found = NAMES.map((name) => {
    const [, value = ''] = new RegExp(`\\b${name}"?\\s*:\\s*"?([^"\\r\\n]*)`, 'i').exec(head) ?? [];
    return [name, value.replace(/[\s,}]+$/, '')];
  });
  return Object.fromEntries(found);
}

// Comes last, after every constant above is set. listen.ts imports this file only for
// `signatureProblem`.
if (import.meta.main) {
  const program = {
    name: 'check-signature',
    call: 'npm run --silent check-signature --',
    description: 'Says whether a signature is right and, if not, why.',
    help: HELP,
  };
  await main(program, check, (command) =>
    command
      .requiredOption(
        '--secret <SECRET>',
        "the organization's webhook secret: whsec_…, or - to read it from stdin",
        parseSecret,
      )
      .requiredOption(
        '--body <FILE>',
        'the body exactly as it arrived; - reads it from stdin',
        contents,
      )
      .requiredOption(
        '--headers <FILE>',
        'the headers as "name: value" lines, or as one JSON object',
        parseHeaders,
      )
      .option(
        '--at <TIME>',
        'when it arrived, such as 2026-01-05T10:00:08Z, or how long ago (default: now)',
        pastMoment,
      )
      // Messages never repeat the input, because it may be a secret without its `whsec_`, or
      // without `--secret` in front.
      .configureOutput({
        outputError(text, write) {
          write(
            text
              .replace(/(?<=argument) '.*'(?= is invalid)/s, '')
              .replace(/whs[a-z]*_[^\s']+/gi, 'whsec_…'),
          );
        },
      }),
  );
}
