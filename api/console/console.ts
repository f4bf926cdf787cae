import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type {
  Lifecycle,
  Request,
  ResponseObject,
  ResponseToolkit,
  Server,
} from '@hapi/hapi';
import * as Vision from '@hapi/vision';
import Handlebars from 'handlebars';
import type { Logger } from 'pino';
import { PRIVATE } from '../problems.ts';
import { published } from '../routes/service.ts';
import { type Site, supportLink } from '../site.ts';
import { pageHandlers } from './pages.ts';
import {
  CallFailed,
  CONSOLE_ROUTE,
  FORM,
  isConsole,
  registerSessions,
  SIGN_IN,
  sessionHandlers,
} from './session.ts';

// The console: pages on which people see credits, batches, and webhooks without a program
// (api/docs/console.md). It is rendered on the server and works without scripts.

export interface ConsoleDeps {
  readonly site: Site;
  /** Encrypts the cookie of a session. */
  readonly consoleKey: string;
  readonly log: Logger;
}

/** Our own style sheet, forms to our own pages, and nothing else. */
const POLICY =
  "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/** Registers the routes of the console under `/console`. */
export async function registerConsole(server: Server, deps: ConsoleDeps): Promise<void> {
  const { site, consoleKey, log } = deps;
  await server.register(Vision);
  const views = fileURLToPath(new URL('views', import.meta.url));
  server.views({
    engines: { hbs: Handlebars },
    path: views,
    partialsPath: `${views}/partials`,
    layout: true,
    isCached: true,
    context: { support: site.support, supportLink: supportLink(site) },
  });
  await registerSessions(server, {
    password: consoleKey,
    isSecure: site.publicUrl.startsWith('https:'),
  });
  registerConsoleRoutes(server);
  server.ext('onPreAuth', rejectForeignForms);
  server.ext('onPreResponse', (request, h) => {
    if (!isConsole(request)) return h.continue;
    const { response } = request;
    const isError = response instanceof Error;
    const answer = isError ? problemPage(request, h, response, log) : response;
    answer.header('content-security-policy', POLICY);
    answer.header('referrer-policy', 'same-origin');
    return isError ? answer : h.continue;
  });
}

function registerConsoleRoutes(server: Server): void {
  const style = readFileSync(new URL('style.css', import.meta.url), 'utf8');
  const open = { ...CONSOLE_ROUTE, auth: { strategy: 'console', mode: 'try' } } as const;
  const form = { ...CONSOLE_ROUTE, payload: FORM };
  server.route([
    {
      method: 'GET',
      path: '/console/style.css',
      options: { auth: false },
      handler: published('text/css', style),
    },
    { method: 'GET', path: SIGN_IN, options: open, handler: sessionHandlers.showSignIn },
    {
      method: 'POST',
      path: SIGN_IN,
      options: { ...open, payload: FORM },
      handler: sessionHandlers.signIn,
    },
    {
      method: 'POST',
      path: '/console/sign-out',
      options: form,
      handler: sessionHandlers.signOut,
    },
    {
      method: 'GET',
      path: '/console',
      options: CONSOLE_ROUTE,
      handler: pageHandlers.overview,
    },
    {
      method: 'GET',
      path: '/console/submit',
      options: CONSOLE_ROUTE,
      handler: pageHandlers.showSubmit,
    },
    {
      method: 'POST',
      path: '/console/submit',
      options: form,
      handler: pageHandlers.submit,
    },
    {
      method: 'GET',
      path: '/console/batches',
      options: CONSOLE_ROUTE,
      handler: pageHandlers.batches,
    },
    {
      method: 'GET',
      path: '/console/batches/{batch_id}',
      options: CONSOLE_ROUTE,
      handler: pageHandlers.batch,
    },
    {
      method: 'GET',
      path: '/console/batches/{batch_id}/results.csv',
      options: CONSOLE_ROUTE,
      handler: pageHandlers.results,
    },
    {
      method: 'POST',
      path: '/console/batches/{batch_id}/deliveries/{delivery_id}/resend',
      options: form,
      handler: pageHandlers.resend,
    },
  ]);
}

/** Texts for errors that do not come from the API. */
const PROBLEMS = {
  403: {
    title: 'This form is too old',
    detail: 'Go back, reload the page, and send the form again.',
  },
  413: {
    title: 'Too much text',
    detail: 'Submit at most 60 NPIs at once. For more, use the command for CSV files.',
  },
  500: {
    title: 'Something went wrong on our side',
    detail: 'Try again. If it happens again, tell support the id below.',
  },
} as const;

/**
 * Rejects forms that another site sends, also one with a host name next to ours. Such a site could
 * set the cookie that the token of a form is compared with. Browsers send this header.
 */
const rejectForeignForms: Lifecycle.Method = (request, h) => {
  const from: unknown = request.headers['sec-fetch-site'];
  const isForeign = from !== undefined && from !== 'same-origin';
  if (!isConsole(request) || request.method !== 'post' || !isForeign) return h.continue;
  return problemView(h, PROBLEMS[403], 403, request.app.requestId).takeover();
};

/** Returns the page that says what is wrong. Without a valid key, the visitor signs in again. */
function problemPage(
  request: Request,
  h: ResponseToolkit,
  error: Error & { readonly output?: { readonly statusCode: number } },
  log: Logger,
): ResponseObject {
  const { requestId } = request.app;
  if (error instanceof CallFailed) {
    const { status } = error;
    if (status === 401 || status === 403) {
      request.cookieAuth.clear();
      return h.redirect(SIGN_IN);
    }
    const title = status === 404 ? 'Not found' : 'That did not work';
    return problemView(h, { title, detail: error.text() }, status, requestId);
  }
  const status = error.output?.statusCode;
  if (status === 403 || status === 413)
    return problemView(h, PROBLEMS[status], status, requestId);
  log.error({ err: error, http_request_id: requestId }, 'request failed');
  return problemView(h, PROBLEMS[500], 500, requestId);
}

function problemView(
  h: ResponseToolkit,
  problem: { readonly title: string; readonly detail: string },
  status: number,
  requestId = '',
): ResponseObject {
  const page = h.view('problem', { ...problem, requestId }).code(status);
  for (const [name, value] of Object.entries(PRIVATE)) page.header(name, value);
  return page.header('x-request-id', requestId);
}
