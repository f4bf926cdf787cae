import Cookie from '@hapi/cookie';
import Crumb from '@hapi/crumb';
import type { Lifecycle, Request, RouteOptions, Server } from '@hapi/hapi';
import * as Iron from '@hapi/iron';
import { CONSOLE } from '../problems.ts';

// Sessions of the console. A visitor signs in with an API key. The key is stored only in a cookie
// that is encrypted and that scripts cannot read. Each page calls the API with this key, so all
// rules of the API also apply to the console.

declare module '@hapi/hapi' {
  interface Request {
    /** Starts and ends the session (@hapi/cookie). */
    readonly cookieAuth: { set(session: Session): void; clear(): void };
  }
}

interface Session {
  readonly apiKey: string;
}

export interface SessionDeps {
  /** Encrypts the cookie, at least 32 characters. All API processes need the same one. */
  readonly password: string;
  /** True if browsers reach the console by https. */
  readonly isSecure: boolean;
}

export const SIGN_IN = '/console/sign-in';
/** A visitor who is not active for this time must sign in again. */
const SESSION_MS = 8 * 3_600_000;

/** Registers the authentication strategy `console` and the tokens that protect forms. */
export async function registerSessions(server: Server, deps: SessionDeps): Promise<void> {
  const { password, isSecure } = deps;
  const cookie = { isSecure, isSameSite: 'Strict', isHttpOnly: true, path: '/console' };
  // Without its own end, a stolen copy of the cookie would be valid as long as the key.
  const iron = { ...Iron.defaults, ttl: SESSION_MS };
  await server.register(Cookie);
  server.auth.strategy('console', 'cookie', {
    cookie: { ...cookie, name: 'npe_console', password, ttl: SESSION_MS, iron },
    keepAlive: true,
    redirectTo: signInPath,
  });
  await server.register({
    plugin: Crumb,
    options: {
      key: 'form_token',
      cookieOptions: { ...cookie, encoding: 'none' },
      autoGenerate: false,
      skip: (request: Request) => !isConsole(request),
    },
  });
}

/** Returns the path of the sign-in page that leads to the requested page afterwards. */
export function signInPath({ method, url }: Request): string {
  // A form is not sent again.
  if (method !== 'get') return SIGN_IN;
  const next = url.pathname + url.search;
  return `${SIGN_IN}?${new URLSearchParams({ next })}`;
}

/**
 * Returns the page to show after the sign-in. Only a page of the console is accepted, because links
 * on other sites could name any page.
 */
function nextPage(next: unknown): string {
  const page = String(next);
  return /^\/console([/?][!-~]*)?$/.test(page) ? page : '/console';
}

/** Returns the API key of the session. */
export function keyOf(request: Request): string {
  return String(request.auth.artifacts?.apiKey);
}

/** Returns true if a request is for a page of the console. */
export function isConsole({ route }: Request): boolean {
  return route.settings.tags?.includes(CONSOLE) ?? false;
}

/** The options of all routes of the console. */
export const CONSOLE_ROUTE = {
  tags: [CONSOLE],
  auth: 'console',
  // The API ignores cookies, and the console reads them. A cookie that cannot be decrypted counts as
  // missing.
  state: { parse: true, failAction: 'ignore' },
  plugins: { crumb: {} },
} as const satisfies RouteOptions;

/**
 * Checks the key of the session as the API does, for pages that do not call the API. Counts the
 * request toward the rate limit of the key.
 * @throws {ApiError} if the API would reject the request
 */
export const authorize: Lifecycle.Method = async (request, h) => {
  request.headers.authorization = `Bearer ${keyOf(request)}`;
  const { credentials } = await request.server.auth.test('api-key', request);
  request.app.caller = credentials;
  return h.continue;
};

/** The options of routes that do not call the API, which would check the key. */
export const AUTHORIZED_ROUTE = {
  ...CONSOLE_ROUTE,
  ext: { onCredentials: { method: authorize } },
} as const satisfies RouteOptions;

/** The options of a route that receives a form. */
export const FORM = {
  parse: true,
  allow: 'application/x-www-form-urlencoded',
  maxBytes: 16_384,
} as const;

/** A successful response of the API. */
interface ApiAnswer<T> {
  readonly headers: Readonly<Record<string, unknown>>;
  readonly body: T;
}

/** A call of the API that is not a GET with the key of the session. */
interface ApiCall {
  readonly method?: 'GET' | 'POST';
  readonly apiKey?: string;
  readonly body?: object;
  readonly idempotencyKey?: string;
}

/** An error of the API, as the console reads it. */
interface ErrorAnswer {
  /** The text for people, or the problems of a 422. */
  readonly detail: string | readonly InvalidField[];
}

interface InvalidField {
  readonly loc: readonly (string | number)[];
  readonly msg: string;
}

/** Thrown if the API responds with an error. */
export class CallFailed extends Error {
  readonly status: number;
  readonly #detail: ErrorAnswer['detail'];

  constructor(status: number, { detail }: ErrorAnswer) {
    super(`HTTP ${status}`);
    this.status = status;
    this.#detail = detail;
  }

  /** Returns the text of the error for people. */
  text(): string {
    if (typeof this.#detail === 'string') return this.#detail;
    return this.#detail.map(({ loc, msg }) => `${loc.at(-1)}: ${msg}.`).join(' ');
  }

  /** Returns the problem of each field of a 422, to show it next to the field. */
  fields(): Record<string, string> {
    if (typeof this.#detail === 'string') return {};
    return Object.fromEntries(
      this.#detail.map(({ loc, msg }) => [loc.at(-1), `${msg}.`]),
    );
  }
}

/**
 * Calls the API of this process with the key of the session, as if the visitor's program called it.
 * The call counts toward the rate limit of the key.
 * @throws {CallFailed} if the response is an error
 */
export async function callApi<T>(
  request: Request,
  path: string,
  { method = 'GET', apiKey = keyOf(request), body, idempotencyKey }: ApiCall = {},
): Promise<ApiAnswer<T>> {
  const headers: Record<string, string> = { authorization: `Bearer ${apiKey}` };
  if (body) headers['content-type'] = 'application/json';
  if (idempotencyKey) headers['idempotency-key'] = idempotencyKey;
  const forwarded: unknown = request.headers['x-forwarded-for'];
  // The API limits wrong keys by the address of the visitor.
  if (typeof forwarded === 'string') headers['x-forwarded-for'] = forwarded;
  const {
    statusCode: status,
    payload,
    headers: sent,
  } = await request.server.inject({
    method,
    url: path,
    headers,
    payload: body ? JSON.stringify(body) : '',
    remoteAddress: request.info.remoteAddress,
  });
  const answer = JSON.parse(payload);
  if (status >= 400) throw new CallFailed(status, answer);
  return { headers: sent, body: answer };
}

/** Returns the handlers that start and end sessions. */
export const sessionHandlers = {
  showSignIn: (request, h) => {
    const next = nextPage(request.query.next);
    if (request.auth.isAuthenticated) return h.redirect(next);
    return h.view('sign-in', { title: 'Sign in', next });
  },
  signIn: async (request, h) => {
    const form = request.payload as Readonly<Record<string, unknown>>;
    const apiKey = String(form.api_key ?? '').trim();
    const next = nextPage(form.next);
    try {
      await callApi(request, '/api/v1/credits', { apiKey });
    } catch (error) {
      if (!(error instanceof CallFailed)) throw error;
      const context = { title: 'Sign in', next, problem: error.text() };
      return h.view('sign-in', context).code(error.status);
    }
    request.cookieAuth.set({ apiKey });
    return h.redirect(next).code(303);
  },
  signOut: (request, h) => {
    request.cookieAuth.clear();
    return h.redirect(SIGN_IN).code(303);
  },
} satisfies Record<string, Lifecycle.Method>;
