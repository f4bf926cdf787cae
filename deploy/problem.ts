import { DatabaseError, OperatorProblem, Refusal } from '../db/connection/errors.ts';
import { type IdPrefix, isId } from '../db/connection/ids.ts';
import { ConfigError } from './config/values.ts';
import SENTENCES from './sentences.json' with { type: 'json' };

/**
 * Error codes of a connection that was lost during a query. After such an error, we don't know
 * whether PostgreSQL has committed the change.
 */
const BROKEN: ReadonlySet<string> = new Set([
  'client_deadline',
  'CONNECTION_CLOSED',
  'CONNECTION_DESTROYED',
  'ECONNRESET',
  'EPIPE',
  '57P01',
  '57P02',
]);

/** Node.js's codes for a certificate that it does not trust. */
const UNTRUSTED = /CERT|LEAF_SIGNATURE/;

/**
 * Returns a message for the user of a program, with the problem and what to do.
 * @param given the arguments of the command line. The message repeats only ids from it, and no
 * other text, because people paste API keys by mistake
 * @param work whether the program was reading, or making a change that is in the audit log
 */
export function explain(
  error: unknown,
  given: readonly string[] = [],
  databaseUrl: string | null = null,
  work: 'reading' | 'changing' = 'reading',
): string {
  if (error instanceof OperatorProblem) return error.message;
  if (error instanceof Refusal) return refusal(error, given);
  if (error instanceof DatabaseError) {
    return databaseTrouble(error, databaseUrl, work);
  }
  if (!(error instanceof Error)) {
    return `stopped by a bug: threw a ${typeof error}`;
  }
  return systemTrouble(error) ?? `stopped by a bug: ${error.stack ?? error.message}`;
}

/** Returns a code for an error, for programs that read the output of a command. */
export function codeOf(error: unknown): string {
  if (error instanceof Refusal) return error.code;
  if (error instanceof DatabaseError) {
    return `database_${kindOf(error)}`;
  }
  if (error instanceof ConfigError) return 'configuration';
  if (error instanceof OperatorProblem) return 'failed';
  const isOfSystem = error instanceof Error && systemTrouble(error) !== null;
  return isOfSystem ? 'failed' : 'bug';
}

/** Returns the message for an error of the operating system, or null for any other error. */
function systemTrouble(error: NodeJS.ErrnoException): string | null {
  const { code, path } = error;
  if (typeof code !== 'string') return null;
  if (code === 'EADDRINUSE') {
    return 'the port is in use; choose another with API_PORT or METRICS_PORT';
  }
  if (typeof path !== 'string') return null;
  return `cannot use the file ${path} (${code}); check its name and its permissions`;
}

function databaseTrouble(
  error: DatabaseError,
  databaseUrl: string | null,
  work: 'reading' | 'changing',
): string {
  const { code, constraint } = error;
  const server =
    databaseUrl === null ? 'PostgreSQL' : `PostgreSQL at ${serverOf(databaseUrl)}`;
  const known: Readonly<Record<string, string>> = SENTENCES.database;
  const sentence = known[code] ?? SENTENCES.database[kindOf(error)];
  const { unchanged, unsure } = SENTENCES[work];
  return filled(sentence, { server, code, constraint, unchanged, unsure });
}

function kindOf({ code, constraint, unavailable }: DatabaseError) {
  if (BROKEN.has(code)) return 'broken';
  if (unavailable) return 'unavailable';
  if (UNTRUSTED.test(code)) return 'untrusted';
  if (constraint === null) return 'other';
  return 'refused';
}

function refusal({ code, until, granted }: Refusal, given: readonly string[]): string {
  const ids = ['org', 'key', 'bat', 'req', 'msg'] as const;
  const hints = Object.fromEntries(
    ids.map((prefix) => [prefix, idOrHint(prefix, given)]),
  );
  const values = {
    ...hints,
    until: until?.toISOString(),
    amount: granted?.amount.toLocaleString('en-US'),
    at: granted?.at.toISOString(),
  };
  return filled(SENTENCES.refusals[code], values);
}

function filled(
  sentence: string,
  values: Readonly<Record<string, string | null | undefined>>,
): string {
  return sentence.replace(/\{(\w+)\}/g, (_, name: string) => values[name] ?? '');
}

function idOrHint(prefix: IdPrefix, given: readonly string[]): string {
  const id = given.flatMap((text) => text.split('=')).find((text) => isId(prefix, text));
  return id ?? `(an id looks like ${prefix}_01h2xcejqtf2nbrexx3vqjhp41)`;
}

/** Returns the host and port of a database URL, without its user and password. */
function serverOf(databaseUrl: string): string {
  const url = URL.parse(databaseUrl);
  if (!url?.hostname) return 'the server that DATABASE_URL names';
  return `${url.hostname}:${url.port || 5432}`;
}
