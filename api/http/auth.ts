import { setTimeout as delay } from 'node:timers/promises';
import type { Request, ResponseToolkit, Server } from '@hapi/hapi';
import {
  type Authentication,
  authenticate,
  parseApiKey,
} from '../../db/accounts/keys.ts';
import type { Database } from '../../db/connection/client.ts';
import { KEY_ROLES, type KeyRole } from '../../db/words.ts';
import { type ApiError, problem } from '../problems.ts';
import { createLimit } from './limit.ts';
import { createAddressOf, createFloodGuard, keepLast, whenOver } from './overload.ts';
import type { TurnQueue } from './turn-queue.ts';

declare module '@hapi/hapi' {
  interface RequestApplicationState {
    /**
     * The hash of the API key of a console session. Pages of the console and their calls of the API
     * have it instead of a key in the headers.
     */
    keyHash?: Buffer | undefined;
    /** True for a call of the API (`callApi`) that an earlier request has paid for. */
    isCounted?: boolean;
  }
  interface RouteOptionsApp {
    /** The least role that a key needs for this route. */
    role?: KeyRole;
  }
  interface AuthCredentials {
    /** The organization that the key belongs to. */
    readonly organizationId: string;
    /** The same for the live keys and the test keys of a customer. */
    readonly customerId: string;
    readonly keyId: string;
    readonly keyName: string;
    readonly role: KeyRole;
    readonly requestsPerMinute: number;
    /**
     * The time when the key ends, because it was rotated. Null for a key that does not end. Missing
     * on pages of the console.
     */
    readonly keyExpiresAt?: Date | null;
  }
}

export interface AuthDeps {
  readonly db: Database;
  readonly rateWindowMs: number;
  /** Proxies whose `X-Forwarded-For` is trusted, as CIDR ranges. */
  readonly trustedProxies: readonly string[];
}

/**
 * Registers the authentication scheme `api-key` for all routes except those with `auth: false`
 * (api/docs/lifecycle.md, Keys).
 */
export function registerAuth(server: Server, deps: AuthDeps): void {
  const authenticator = new Authenticator(server, deps);
  server.auth.scheme('api-key', () => ({
    authenticate: (request, h) => authenticator.authenticate(request, h),
  }));
  server.auth.strategy('api-key', 'api-key');
  server.auth.default('api-key');
  server.ext('onCredentials', async (request, h) => {
    await requireRole(request);
    return h.continue;
  });
}

/**
 * Rejects a request whose key has a role that is too low for the route. All routes of the API, of
 * the MCP server, and of the console run this check. A route that states no role needs `full`. The
 * request counts toward the rate limit of its key, but not as a guess of a key.
 * @throws {ApiError} `role_insufficient`, or the error of a key that is not valid
 */
async function requireRole(request: Request): Promise<void> {
  const { auth, route, server } = request;
  if (!auth.credentials) return;
  const { role } = auth.credentials;
  const needed = route.settings.app?.role ?? 'full';
  if (hasRole(role, needed)) return;
  // A page of the console has only found the session so far. This checks and counts its key.
  if (auth.strategy !== 'api-key') {
    await server.auth.test('api-key', request);
  }
  throw problem('role_insufficient', { needed, role });
}

/** Returns whether a role may do what another role may do. */
export function hasRole(role: KeyRole, needed: KeyRole): boolean {
  return KEY_ROLES.indexOf(role) >= KEY_ROLES.indexOf(needed);
}

/** Finds the owner of a request's API key, and limits the requests of keys and of strangers. */
class Authenticator {
  readonly #reads: TurnQueue;
  readonly #addressOf: ReturnType<typeof createAddressOf>;
  /** Counts requests without a key, or with a text that cannot be a key. */
  readonly #strays: ReturnType<typeof createFloodGuard>;
  /** Counts requests with a key that is not valid. */
  readonly #guesses: ReturnType<typeof createFloodGuard>;
  readonly #keyring: ReturnType<typeof createKeyring>;
  readonly #countRequest: ReturnType<typeof createLimit>;

  constructor(server: Server, { db, rateWindowMs, trustedProxies }: AuthDeps) {
    this.#reads = server.app.queues.reads;
    this.#addressOf = createAddressOf(trustedProxies);
    this.#strays = createFloodGuard(rateWindowMs);
    this.#guesses = createFloodGuard(rateWindowMs);
    this.#keyring = createKeyring(db);
    this.#countRequest = createLimit(db, rateWindowMs);
  }

  /** @throws {ApiError} if the request has no valid key */
  async authenticate(request: Request, h: ResponseToolkit) {
    const hash = request.app.keyHash ?? parseApiKey(presentedKey(request) ?? '');
    if (!hash) throw await this.#refuseStray(request);
    const found = await this.#find(request, hash);
    switch (found.kind) {
      case 'active':
        request.app.knownKey = found;
        return await this.#admit(request, h, found);
      case 'revoked':
      case 'inactive':
        request.app.knownKey = found;
        throw this.#refuseGuess(request, problem(`api_key_${found.kind}`));
      case 'unknown':
        throw this.#refuseGuess(request, unauthorized(request));
      default:
        return found satisfies never;
    }
  }

  async #refuseStray(request: Request): Promise<ApiError> {
    const flooded = this.#strays.countFailure(this.#addressOf(request.raw.req));
    if (flooded === null) return unauthorized(request);
    // With this delay, a client that retries without pause sends at most ten requests a second per
    // connection.
    await delay(100);
    return flooded;
  }

  #refuseGuess(request: Request, refusal: ApiError): ApiError {
    return this.#guesses.countFailure(this.#addressOf(request.raw.req)) ?? refusal;
  }

  /**
   * Finds the owner of a key. A key that was valid before is looked up again if its last lookup is
   * more than a second old.
   */
  async #find(request: Request, hash: Buffer): Promise<Authentication> {
    const known = this.#keyring.find(hash);
    if (known === null) return await this.#meet(request, hash);
    const { organizationId } = known.owner;
    enterQueue(request, organizationId);
    if (known.isTrusted) return known.owner;
    return await this.#reads.inTurn(organizationId, () => this.#keyring.lookUp(hash));
  }

  /**
   * Looks up a key that this process does not know. The client's organization is not known yet, so
   * limits apply to its IP address.
   */
  async #meet(request: Request, hash: Buffer): Promise<Authentication> {
    const address = this.#addressOf(request.raw.req);
    // After too many failures of this address, reject the request without a query. Such a
    // rejection is not counted as another failure.
    const flooded = this.#guesses.refusal(address);
    if (flooded) throw flooded;
    const found = await this.#reads.inTurn(address, () => this.#keyring.lookUp(hash));
    if (found.kind === 'active') {
      enterQueue(request, found.organizationId);
    }
    return found;
  }

  /**
   * Counts a request with a valid key. hapi reads the body after this, so a request over the rate
   * limit is rejected before its body is read. Counting does not go through a queue, because a single
   * statement counts all waiting requests of the same key.
   */
  async #admit(request: Request, h: ResponseToolkit, { kind: _, ...credentials }: Owner) {
    if (request.app.isCounted) return h.authenticated({ credentials });
    const exhausted = await this.#countRequest(request, credentials);
    if (exhausted) return h.unauthenticated(exhausted, { credentials });
    return h.authenticated({ credentials });
  }
}

/**
 * Reserves a place in the queue of writes if the request is a POST.
 * @throws {ApiError} the errors of `TurnQueue.enter`
 */
function enterQueue(request: Request, organizationId: string): void {
  if (request.method !== 'post') return;
  const place = request.server.app.queues.writes.enter(organizationId);
  request.app.place = place;
  whenOver(request, () => place.leave());
}

/**
 * Returns the error to send to a request that is being held, or null while its key is valid. The
 * key may have been revoked, or its organization suspended, since the request arrived.
 */
export async function keyRefusal(
  request: Request,
  db: Database,
): Promise<ApiError | null> {
  const hash = parseApiKey(presentedKey(request) ?? '');
  if (!hash) return problem('api_key_inactive');
  const { kind } = await authenticate(db, hash);
  if (kind === 'active') return null;
  return problem(kind === 'revoked' ? 'api_key_revoked' : 'api_key_inactive');
}

/**
 * Returns the API key from the headers, or null if the request has neither `Authorization` nor
 * `X-API-Key`. If it has both, `Authorization` is used (api/docs/lifecycle.md, Keys). Some tools send
 * `X-API-Key` twice, and Node joins the two by a comma. Two equal keys are one.
 */
function presentedKey(request: Request): string | null {
  const { authorization, 'x-api-key': apiKey } = request.headers;
  if (typeof authorization === 'string')
    return /^Bearer +([^ ]+) *$/i.exec(authorization)?.[1] ?? '';
  if (typeof apiKey !== 'string') return null;
  const [first = '', ...others] = apiKey.split(',').map((key) => key.trim());
  return others.every((other) => other === first) ? first : apiKey;
}

function unauthorized(request: Request): ApiError {
  const code = presentedKey(request) === null ? 'api_key_missing' : 'api_key_invalid';
  return problem(code, { hint: hintFor(request) }, { 'www-authenticate': 'Bearer' });
}

/** Returns a hint about the most likely mistake in the headers of a request without a valid key. */
function hintFor({ headers: { authorization, 'x-api-key': apiKey } }: Request): string {
  const sent = String(authorization ?? apiKey);
  const hasScheme = /^bearer\b/i.test(sent);
  if (/^basic\b/i.test(sent))
    return 'Basic authentication is not supported. Send "Authorization: Bearer <API_KEY>".';
  if (authorization === undefined && hasScheme)
    return 'Send only the key in X-API-Key, without "Bearer".';
  if (sent.includes('whsec_'))
    return 'This is a webhook secret. An API key begins with "npe_".';
  if (/^(bearer)?\s*$/i.test(sent))
    return 'It is empty. Check the variable that contains it.';
  const key = sent.replace(/^bearer\s+/i, '');
  const mistake = mistakeIn(key);
  if (mistake !== null) return mistake;
  if (authorization !== undefined && !hasScheme)
    return 'Write "Bearer" before it: "Authorization: Bearer <API_KEY>".';
  if (/\s/.test(key)) {
    return 'It contains spaces. Copy it again without them.';
  }
  if (!key.startsWith('npe_')) {
    return 'It does not begin with "npe_", as our keys do.';
  }
  if (parseApiKey(key) === null) {
    return 'Check it for missing characters.';
  }
  return 'It is complete, but we do not know it. Use another one.';
}

/** Returns a hint about a text that is sent in place of a key, or null. */
function mistakeIn(key: string): string | null {
  if (/^(?:undefined|null|none|nan|\[object object\])$/i.test(key))
    return 'The variable that should contain it is not set.';
  if (/^(?:\$|\{\{|%).*/.test(key))
    return 'It is the name of a variable, which your program did not replace.';
  if (/^[<[{(].*[>\]})]$/.test(key)) return 'Send it without brackets.';
  if (/^["'`“‘].*["'`”’]$/.test(key)) return 'Send it without quotes.';
  return null;
}

/**
 * A key that was valid is looked up again after this time. So a revoked key stops working within a
 * second in every process.
 */
const TRUST_MS = 1000;
/**
 * The maximum number of keys to remember. Beyond it, the keys that were looked up longest ago are
 * forgotten.
 */
const MAX_KEYS = 10_000;

type Owner = Extract<Authentication, { kind: 'active' }>;

/** The owner of a key, and whether the key was looked up recently enough to be trusted. */
interface Known {
  readonly owner: Owner;
  readonly isTrusted: boolean;
}

/**
 * Remembers the keys that were valid when this process last looked them up, with their
 * organizations. A key always belongs to the same organization.
 */
function createKeyring(db: Database) {
  const keys = new Map<string, { readonly owner: Owner; readonly until: number }>();
  return {
    /** Returns the remembered owner of a key, or null if this process does not know the key. */
    find(hash: Buffer): Known | null {
      const known = keys.get(hash.toString('base64'));
      if (!known) return null;
      return { owner: known.owner, isTrusted: performance.now() < known.until };
    },
    /** Looks the key up in the database. */
    async lookUp(hash: Buffer): Promise<Authentication> {
      const id = hash.toString('base64');
      const begun = performance.now();
      const owner = await authenticate(db, hash);
      if (owner.kind === 'active') {
        keepLast(keys, id, { owner, until: begun + TRUST_MS }, MAX_KEYS);
      } else {
        keys.delete(id);
      }
      return owner;
    },
  };
}
