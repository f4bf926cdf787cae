import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Request, ResponseObject, ResponseToolkit, Server } from '@hapi/hapi';
import * as Vision from '@hapi/vision';
import Handlebars from 'handlebars';
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
}

/** Our own style sheet, forms to our own pages, and nothing else. */
const POLICY =
  "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/** Registers the routes of the console under `/console`. */
export async function registerConsole(server: Server, deps: ConsoleDeps): Promise<void> {
  const { site, consoleKey } = deps;
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
  server.ext('onPreResponse', (request, h) => {
    if (!isConsole(request)) return h.continue;
    const { response } = request;
    const answer =
      response instanceof Error ? problemPage(request, h, response) : response;
    answer.header('content-security-policy', POLICY);
    answer.header('referrer-policy', 'same-origin');
    return response instanceof Error ? answer : h.continue;
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

/** Returns the page that says what is wrong. Without a valid key, the visitor signs in again. */
function problemPage(
  request: Request,
  h: ResponseToolkit,
  error: Error & { readonly output?: { readonly statusCode: number } },
): ResponseObject {
  const status = error instanceof CallFailed ? error.status : error.output?.statusCode;
  if (error instanceof CallFailed && (status === 401 || status === 403)) {
    request.cookieAuth.clear();
    return h.redirect(SIGN_IN);
  }
  let detail = 'Something went wrong on our side. Try again.';
  if (error instanceof CallFailed) detail = error.text();
  else if (status === 403)
    detail = 'This form is too old. Go back, reload the page, and try again.';
  const title = status === 404 ? 'Not found' : 'That did not work';
  return h.view('problem', { title, detail, session: {} }).code(status ?? 500);
}
