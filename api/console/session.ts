import Crumb from '@hapi/crumb';
import type { Lifecycle, Request, RouteOptions, Server } from '@hapi/hapi';
import {
  endSession,
  openSession,
  SESSION_MS,
  useSession,
} from '../../db/accounts/sessions.ts';
import type { Database } from '../../db/connection/client.ts';
import { CallFailed, callApi } from '../http/call-api.ts';
import { CONSOLE } from '../problems.ts';

// Sessions of the console. A visitor signs in with an API key. Each page calls the API with this
// key, so all rules of the API also apply to the console.

declare module '@hapi/hapi' {
  interface PluginsStates {
    /** The token for the forms of a page. */
    readonly crumb?: string;
  }
}

export interface SessionDeps {
  readonly db: Database;
  /** True if browsers reach the console by https. */
  readonly isSecure: boolean;
}

export const SIGN_IN = '/console/sign-in';
/** The cookie with the id of the session. */
export const SESSION_COOKIE = 'npe_console';

/** Registers the authentication strategy `console` and the tokens that protect forms. */
export async function registerSessions(server: Server, deps: SessionDeps): Promise<void> {
  const { db, isSecure } = deps;
  const cookie = {
    isSecure,
    isSameSite: 'Strict',
    isHttpOnly: true,
    path: '/console',
    encoding: 'none',
  } as const;
  server.state(SESSION_COOKIE, { ...cookie, ttl: SESSION_MS });
  server.auth.scheme('session', () => ({
    async authenticate(request, h) {
      const id = sessionOf(request);
      const { reads } = server.app.queues;
      // The visitor's organization is not known yet, so visitors take turns by their addresses.
      const session =
        id &&
        (await reads.inTurn(server.app.addressOf(request), () => useSession(db, id)));
      if (!session) throw new CallFailed(401, { detail: 'Sign in first.' });
      const { keyHash, ...credentials } = session;
      request.app.keyHash = keyHash;
      request.app.knownKey = credentials;
      return h.authenticated({ credentials });
    },
  }));
  server.auth.strategy('console', 'session');
  await server.register({
    plugin: Crumb,
    options: {
      key: 'form_token',
      cookieOptions: cookie,
      autoGenerate: false,
      skip: (request: Request) => !isConsole(request),
    },
  });
}

/** Returns the id in the cookie of a request, or an empty text. */
export function sessionOf({ state }: Request): string {
  const id: unknown = state[SESSION_COOKIE];
  return typeof id === 'string' ? id : '';
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

/** Returns true if a request is for a page of the console. */
export function isConsole({ route }: Request): boolean {
  return route.settings.tags?.includes(CONSOLE) ?? false;
}

/** The options of all routes of the console. */
export const CONSOLE_ROUTE = {
  tags: [CONSOLE],
  auth: 'console',
  // The API ignores cookies, and the console reads them. A malformed cookie counts as missing.
  state: { parse: true, failAction: 'ignore' },
  plugins: { crumb: {} },
} as const satisfies RouteOptions;

/**
 * Checks the key of the session as the API does, for pages that do not call the API. Counts the
 * request toward the rate limit of the key.
 * @throws {ApiError} if the API would reject the request
 */
export const authorize: Lifecycle.Method = async (request, h) => {
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

/** Returns the fields of a form. A field that was sent twice is a list. */
export function fieldsOf({ payload }: Request) {
  return payload as Readonly<Record<string, unknown>>;
}

/**
 * Counts a request for the sign-in page as one for a public page, so that one address cannot keep
 * this process busy with it.
 */
export const limitSignIns: Lifecycle.Method = (request, h) => {
  const flooded = request.server.app.countReader(request);
  if (flooded) throw flooded;
  return h.continue;
};

/** Returns the handlers that start and end sessions. */
export function sessionHandlers(db: Database) {
  return {
    showSignIn: (request, h) => {
      const next = nextPage(request.query.next);
      if (request.auth.isAuthenticated) return h.redirect(next);
      return h.view('sign-in', { title: 'Sign in', next });
    },
    signIn: async (request, h) => {
      const form = fieldsOf(request);
      const apiKey = String(form.api_key ?? '').trim();
      const next = nextPage(form.next);
      try {
        const headers = { authorization: `Bearer ${apiKey}` };
        const { caller } = await callApi(request, '/api/v1/credits', { headers });
        const id = await openSession(db, caller.keyId);
        request.app.knownKey = caller;
        return h.redirect(next).code(303).state(SESSION_COOKIE, id);
      } catch (error) {
        if (!(error instanceof CallFailed)) throw error;
        const context = { title: 'Sign in', next, problem: error.text() };
        return h.view('sign-in', context).code(error.status);
      }
    },
    signOut: async (request, h) => {
      await endSession(db, sessionOf(request));
      return h.redirect(SIGN_IN).code(303).unstate(SESSION_COOKIE);
    },
  } satisfies Record<string, Lifecycle.Method>;
}
