import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type {
  Lifecycle,
  Request,
  ResponseObject,
  ResponseToolkit,
  RouteOptions,
  Server,
} from '@hapi/hapi';
import * as Vision from '@hapi/vision';
import Handlebars from 'handlebars';
import type { Logger } from 'pino';
import type { Database } from '../../db/connection/client.ts';
import { MAX_UPLOAD_BYTES } from '../../db/uploads/uploads.ts';
import { CallFailed } from '../http/call-api.ts';
import { allowTime } from '../http/connection.ts';
import { PRIVATE, toApiError } from '../problems.ts';
import type { CheckDeps } from '../routes/check.ts';
import { published } from '../routes/service.ts';
import { type Site, supportLink } from '../site.ts';
import { deliveryHandlers } from './deliveries.ts';
import { draftHandlers } from './drafts.ts';
import { FilePool } from './file-pool.ts';
import { KEY, KEYS, keyHandlers } from './keys.ts';
import { shownSession, timeElement } from './page.ts';
import { pageHandlers } from './pages.ts';
import {
  AUTHORIZED_ROUTE,
  authorize,
  CONSOLE_ROUTE,
  FORM,
  isConsole,
  limitSignIns,
  registerSessions,
  SESSION_COOKIE,
  SIGN_IN,
  sessionHandlers,
  signInPath,
} from './session.ts';
import { type SigningDeps, signingHandlers } from './signing.ts';
import { UPLOAD, UPLOADS, uploadHandlers } from './uploads.ts';
import { usageHandlers } from './usage.ts';

// The console: pages on which people see credits, batches, and webhooks without a program
// (api/docs/console.md). It is rendered on the server and works without scripts.

export interface ConsoleDeps {
  readonly site: Site;
  readonly log: Logger;
  readonly check: CheckDeps;
  readonly forbids: SigningDeps['forbids'];
  /** The page of a test event responds within this time, `TEST_EVENT_MS` by default. */
  readonly testEventMs?: number | undefined;
  /** True if workers can send emails. */
  readonly sendsMail: boolean;
}

/**
 * An attempt takes up to 15 seconds. A process that stops has 20 seconds for its requests.
 */
const TEST_EVENT_MS = 19_000;

/** Our own style sheet and script, forms to our own pages, and nothing else. */
const POLICY =
  "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/** Registers the routes of the console under `/console`. */
export async function registerConsole(server: Server, deps: ConsoleDeps): Promise<void> {
  const { site, check, log, forbids, testEventMs = TEST_EVENT_MS } = deps;
  const { db } = check;
  await server.register(Vision);
  const templates = Handlebars.create();
  templates.registerHelper('number', shownNumber);
  templates.registerHelper('quantity', shownQuantity);
  templates.registerHelper('time', timeElement);
  templates.registerHelper('signed', shownChange);
  const views = fileURLToPath(new URL('views', import.meta.url));
  server.views({
    engines: { hbs: templates },
    path: views,
    partialsPath: `${views}/partials`,
    layout: true,
    isCached: true,
    context: {
      support: site.support,
      supportLink: supportLink(site),
      buyCredits: site.buyCreditsUrl,
    },
  });
  await registerSessions(server, {
    db,
    isSecure: site.publicUrl.startsWith('https:'),
  });
  registerConsoleRoutes(server, db);
  const { starter } = server.app;
  registerSigning(server, { db, log, forbids, starter, testEventMs });
  registerKeyRoutes(server, db);
  registerUploadRoutes(server, deps);
  server.ext('onPreAuth', rejectForeignForms);
  server.ext('onPreResponse', (request, h) => {
    if (!isConsole(request)) return h.continue;
    const { response } = request;
    const isError = response instanceof Error;
    const page = isError ? problemPage(request, h, response, log) : response;
    page.header('content-security-policy', POLICY);
    page.header('referrer-policy', 'same-origin');
    return isError ? page : h.continue;
  });
}

function shownNumber(n: number): string {
  return n.toLocaleString('en-US');
}

/** Returns a change with its sign, like `+1,200` or `−3`. */
function shownChange(n: number): string {
  return n < 0 ? `−${shownNumber(-n)}` : `+${shownNumber(n)}`;
}

/** Returns a number with its noun, like `1 credit` or `1,200 credits`. */
function shownQuantity(n: number, noun: string): string {
  const singular = `${shownNumber(n)} ${noun}`;
  return n === 1 ? singular : `${singular}s`;
}

const BATCH = '/console/batches/{batch_id}';

function registerConsoleRoutes(server: Server, db: Database): void {
  const open = {
    ...CONSOLE_ROUTE,
    auth: { strategy: 'console', mode: 'try' },
    app: { role: 'read' },
    ext: { onPreAuth: { method: limitSignIns } },
  } as const;
  const { showSignIn, signIn, signOut } = sessionHandlers(db);
  addFile(server, 'style.css', 'text/css');
  addFile(server, 'script.js', 'text/javascript');
  addRoutes(server, open, { [SIGN_IN]: showSignIn }, { [SIGN_IN]: signIn });
  const handlers = pageHandlers(db);
  const pages = {
    '/console': handlers.overview,
    '/console/batches': handlers.batches,
    [BATCH]: handlers.batch,
    '/console/deliveries': deliveryHandlers.list,
  };
  const forms = {
    '/console/check': handlers.check,
    '/console/submit': handlers.submit,
    [`${BATCH}/again`]: handlers.again,
    [`${BATCH}/deliveries/{delivery_id}/resend`]: deliveryHandlers.resend,
    '/console/deliveries': deliveryHandlers.resendFailed,
  };
  addRoutes(server, CONSOLE_ROUTE, pages, forms);
  const leave = { ...CONSOLE_ROUTE, app: { role: 'read' } } as const;
  addRoutes(server, leave, {}, { '/console/sign-out': signOut });
  const submits = { ...AUTHORIZED_ROUTE, app: { role: 'member' } } as const;
  addRoutes(server, submits, { '/console/submit': handlers.showSubmit }, {});
  const usage = usageHandlers(db);
  const withoutCalls = {
    '/console/usage': usage.show,
    '/console/usage/days.csv': usage.days,
    '/console/usage/types.csv': usage.types,
    '/console/usage/ledger.csv': usage.ledger,
    [`${BATCH}/results.csv`]: handlers.results,
    '/console/{unknown*}': showUnknown,
  };
  addRoutes(server, AUTHORIZED_ROUTE, withoutCalls, {});
}

/** Registers the forms about the signing secret. */
function registerSigning(server: Server, deps: SigningDeps): void {
  const { show, rotate, test } = signingHandlers(deps);
  const options = { ...AUTHORIZED_ROUTE, app: { role: 'full' } } as const;
  const forms = {
    '/console/webhooks/secret': show,
    '/console/webhooks/rotate': rotate,
    '/console/webhooks/test': test,
  };
  addRoutes(server, options, {}, forms);
}

function registerKeyRoutes(server: Server, db: Database): void {
  const handlers = keyHandlers(db);
  const pages = { [KEYS]: handlers.list, [KEY]: handlers.show };
  const forms = {
    [KEYS]: handlers.create,
    [`${KEY}/rename`]: handlers.rename,
    [`${KEY}/rotate`]: handlers.rotate,
    [`${KEY}/revoke`]: handlers.revoke,
  };
  const full = { ...AUTHORIZED_ROUTE, app: { role: 'full' } } as const;
  addRoutes(server, full, pages, forms);
}

function showUnknown(): never {
  throw new CallFailed(404, { detail: 'There is no such page. Start at the overview.' });
}

function addFile(server: Server, name: string, type: string): void {
  const content = readFileSync(new URL(name, import.meta.url), 'utf8');
  const handler = published(type, content);
  server.route({
    method: 'GET',
    path: `/console/${name}`,
    options: { auth: false },
    handler,
  });
}

type Handlers = Readonly<Record<string, Lifecycle.Method>>;

/**
 * Registers pages, and forms without a file, by their paths. Unless the options have another role, a
 * page needs a key with the role `read`, and a form needs `member`.
 */
function addRoutes(
  server: Server,
  options: RouteOptions,
  pages: Handlers,
  forms: Handlers,
): void {
  const page = { app: { role: 'read' }, ...options } as const;
  for (const [path, handler] of Object.entries(pages))
    server.route({ method: 'GET', path, options: page, handler });
  const form = { app: { role: 'member' }, ...options, payload: FORM } as const;
  for (const [path, handler] of Object.entries(forms))
    server.route({ method: 'POST', path, options: form, handler });
}

/**
 * The options of a form with a file. Its other fields have less than 64 KiB. The handler reads the
 * body only after the key, the rate limit, and the token are checked, so the token is in the query.
 */
const FILE_FORM = {
  payload: {
    parse: false,
    output: 'stream',
    allow: 'multipart/form-data',
    maxBytes: MAX_UPLOAD_BYTES + 65_536,
  },
  plugins: { crumb: { source: 'query' } },
} as const;

/** The time in which a file must arrive, so that 5 MB need 0.7 Mbit/s. */
const FILE_MS = 60_000;

function registerUploadRoutes(server: Server, deps: ConsoleDeps): void {
  const { check, sendsMail } = deps;
  const files = new FilePool();
  server.ext('onPostStop', () => files.close());
  const { starter } = server.app;
  const drafts = draftHandlers({ ...check, starter, files, sendsMail });
  const uploads = uploadHandlers({ db: check.db, starter });
  const allow: Lifecycle.Method = (request, h) => {
    // Browsers always announce the length, which hapi compares with its limit.
    if (request.headers['content-length'] === undefined)
      throw new CallFailed(411, { detail: 'Send the form with its Content-Length.' });
    allowTime(request.raw.req, FILE_MS);
    return h.continue;
  };
  const upload = { onCredentials: [{ method: authorize }, { method: allow }] };
  server.route({
    method: 'POST',
    path: UPLOADS,
    options: { ...CONSOLE_ROUTE, ...FILE_FORM, app: { role: 'member' }, ext: upload },
    handler: drafts.create,
  });
  const pages = {
    [UPLOADS]: uploads.list,
    [UPLOAD]: drafts.show,
    [`${UPLOAD}/results.csv`]: uploads.results,
  };
  const forms = {
    [`${UPLOAD}/start`]: drafts.start,
    [`${UPLOAD}/continue`]: uploads.continue,
    [`${UPLOAD}/again`]: uploads.again,
    [`${UPLOAD}/stop`]: uploads.stop,
    [`${UPLOAD}/delete`]: uploads.delete,
  };
  addRoutes(server, AUTHORIZED_ROUTE, pages, forms);
}

/** Texts for errors that do not come from the API. */
const PROBLEMS = {
  403: {
    title: 'This form is too old',
    detail: 'Go back, reload the page, and send the form again.',
  },
  413: {
    title: 'Too large',
    detail: 'Submit at most 60 NPIs at once, or a file of at most 5 MB.',
  },
  500: {
    title: 'Something went wrong on our side',
    detail: 'Try again. If it happens again, tell support the id below.',
  },
} as const;

/**
 * Rejects forms that another site sends, also one with a host name next to ours. Such a site could
 * set the cookie that the token of a form is compared with. Browsers send the header
 * `Sec-Fetch-Site`.
 */
const rejectForeignForms: Lifecycle.Method = (request, h) => {
  const from: unknown = request.headers['sec-fetch-site'];
  const isForeign = from !== undefined && from !== 'same-origin';
  if (!isConsole(request) || request.method !== 'post' || !isForeign) {
    return h.continue;
  }
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
  const form = error.output?.statusCode ?? 500;
  if (form === 413) {
    return problemView(h, PROBLEMS[413], 413, requestId);
  }
  if (form < 500) return problemView(h, PROBLEMS[403], form, requestId);
  const failed = failedCall(request, error, log);
  const { status } = failed;
  if (failed.problemCode === 'role_insufficient') {
    const title = 'Your key may not do this';
    return problemView(h, { title, detail: failed.text() }, status, requestId);
  }
  if (status === 401 || status === 403) {
    return h.redirect(signInPath(request)).unstate(SESSION_COOKIE);
  }
  if (status === 500) {
    return problemView(h, PROBLEMS[500], status, requestId);
  }
  const title = status === 404 ? 'Not found' : 'That did not work';
  const shown = { title, detail: failed.text(), needsCredits: status === 402 };
  return problemView(h, shown, status, requestId);
}

/** Returns an error as the API would respond. Logs an unexpected error. */
function failedCall(request: Request, error: Error, log: Logger): CallFailed {
  if (error instanceof CallFailed) return error;
  const { status, body } = toApiError(error, request, log);
  return new CallFailed(status, body);
}

function problemView(
  h: ResponseToolkit,
  problem: {
    readonly title: string;
    readonly detail: string;
    readonly needsCredits?: boolean;
  },
  status: number,
  requestId = '',
): ResponseObject {
  const { auth, plugins } = h.request;
  // The header has a form, so it needs the token that other pages get from the plugin.
  const form_token = plugins.crumb;
  const session = auth.isAuthenticated && form_token ? shownSession(h.request) : null;
  const context = { ...problem, requestId, session, form_token };
  const page = h.view('problem', context).code(status);
  for (const [name, value] of Object.entries(PRIVATE)) {
    page.header(name, value);
  }
  return page.header('x-request-id', requestId);
}
