import { DatabaseError, OperatorProblem, Refusal } from '../db/errors.ts';
import { type IdPrefix, isId } from '../db/ids.ts';

/** Codes of a connection that had begun: a change may or may not have been committed. */
const BROKEN: ReadonlySet<string> = new Set([
  'client_deadline',
  'CONNECTION_CLOSED',
  'CONNECTION_DESTROYED',
  'ECONNRESET',
  'EPIPE',
  '57P01',
  '57P02',
]);

/**
 * One sentence for who runs a program: what was wrong and what to do.
 * @param given the command line: an id of it is repeated, and nothing else, because people paste keys by mistake
 */
export function explain(
  error: unknown,
  given: readonly string[] = [],
  databaseUrl: string | null = null,
): string {
  if (error instanceof OperatorProblem) return error.message;
  if (error instanceof Refusal) return refusal(error, given);
  if (error instanceof DatabaseError) return databaseTrouble(error, databaseUrl);
  if (!(error instanceof Error)) return "stopped by something that isn't an error";
  const code = 'code' in error && typeof error.code === 'string' ? error.code : null;
  if (code === 'EADDRINUSE') return 'the port is taken; choose another with API_PORT, or METRICS_PORT';
  if (code !== null && 'path' in error && typeof error.path === 'string') {
    return `cannot use the file ${error.path} (${code}); check its name and its permissions`;
  }
  return `stopped by a fault of this program: ${error.stack ?? error.message}`;
}

function databaseTrouble(
  { code, constraint, unavailable }: DatabaseError,
  databaseUrl: string | null,
): string {
  const server = databaseUrl === null ? 'PostgreSQL' : `PostgreSQL at ${serverOf(databaseUrl)}`;
  switch (code) {
    case '55P03':
      return 'others were busy with what has to stand still for a moment; nothing was changed: run the same command again';
    case '28P01':
    case '28000':
      return `${server} refused the user or its password (${code}); check DATABASE_URL`;
    case '3D000':
      return `${server} has no database of that name; check DATABASE_URL`;
    case '42501':
      return `${server} refused (${code}); check the user in DATABASE_URL, and what it may do`;
    case '42P01':
    case '42703':
      return `the database of ${server} lacks tables of this version; run "npm run migrate" first`;
  }
  if (BROKEN.has(code)) {
    return `lost ${server} on the way (${code}); "audit list" shows whether the change was made`;
  }
  if (unavailable) {
    return `cannot reach ${server} (${code}); check that it runs and that DATABASE_URL names it`;
  }
  return `${server} refused (code ${code}${constraint === null ? '' : `, constraint ${constraint}`}); nothing was changed`;
}

function refusal({ code, until }: Refusal, given: readonly string[]): string {
  switch (code) {
    case 'organization_missing':
      return `unknown organization ${idOrHint('org', given)}; "org list" shows all of them`;
    case 'key_missing':
      return `unknown key ${idOrHint('key', given)}; "keys list ORG" shows the ids of an organization's keys`;
    case 'batch_missing':
      return `unknown batch ${idOrHint('bat', given)}; it is the batch_id that the submit answered`;
    case 'request_missing':
      return `unknown request ${idOrHint('req', given)}; it is a request_id that the submit answered`;
    case 'delivery_missing':
      return `unknown delivery ${idOrHint('msg', given)}; it is the webhook-id that the receiver saw`;
    case 'webhooks_suspended':
      return 'webhooks of this organization are suspended, so nothing is sent again; "webhooks resume ORG" first';
    case 'key_not_active':
      return 'the key is revoked or has expired, so there is nothing to rotate; issue a new one with "keys issue ORG"';
    case 'key_rotated':
      return 'the key was rotated already and its successor is issued; "keys list ORG" shows both: rotate the successor, or revoke one of them';
    case 'key_leaked':
      return 'the key was revoked because it leaked: issue a new one with "keys issue ORG", or add --yes to make this one valid again';
    case 'credits_below_zero':
      return 'the adjustment takes more credits than are available; "org show ORG" shows how many are';
    case 'rotation_too_soon':
      return `the secret was rotated less than 24 h ago, and its predecessor is valid until ${until?.toISOString()}; rotate after that, or with --force, which ends the predecessor at once`;
  }
}

function idOrHint(prefix: IdPrefix, given: readonly string[]): string {
  const id = given.flatMap((text) => text.split('=')).find((text) => isId(prefix, text));
  return id ?? `(an id looks like ${prefix}_01h2xcejqtf2nbrexx3vqjhp41)`;
}

/** Host and port, never the user or the password. */
function serverOf(databaseUrl: string): string {
  const url = URL.parse(databaseUrl);
  return url?.hostname ? `${url.hostname}:${url.port || 5432}` : 'the server that DATABASE_URL names';
}
