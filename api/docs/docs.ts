import { readFileSync } from 'node:fs';
import type { Lifecycle, Server } from '@hapi/hapi';
import { unknownPath } from '../http/unknown-path.ts';
import { published, publishedFile } from '../routes/service.ts';
import type { Site } from '../site.ts';
import { article, type Entry, missingPage } from './layout.ts';
import { readPackages } from './packages.ts';
import { llms, llmsFull, readPages } from './pages.ts';
import { REFERENCE, REFERENCE_POLICY, referencePage, scalarScript } from './reference.ts';
import { searchIndex } from './search.ts';

// The documentation for users of the API. Its pages are the Markdown files in this folder, and the
// reference. All pages are rendered once when the process starts, and are served from memory.
// Reading them requires no API key.

/**
 * The Content-Security-Policy of the pages. It allows our own script, style sheet, and images, but
 * nothing inline, nothing from other hosts, and no frame around a page.
 */
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/** The files in `assets/` that are served as they are, with their types. */
const ASSETS: Readonly<Record<string, string>> = {
  'style.css': 'text/css',
  'favicon.svg': 'image/svg+xml',
  'script.js': 'text/javascript',
  'reference-settings.js': 'text/javascript',
};

/** The pictures of the pages, which are served below `/docs/assets`. */
const PICTURES = ['console.png', 'webhooks.png'];

/**
 * Registers the routes of the documentation: each page as HTML and as Markdown, the reference, the
 * assets, the packages of the clients, `/llms.txt`, `/llms-full.txt`, and redirects from `/` and
 * `/docs/index` to `/docs`.
 */
export function registerDocs(server: Server, site: Site): void {
  const pages = readPages(site);
  const entries: Entry[] = [...pages];
  entries.splice(-1, 0, REFERENCE);
  for (const page of pages) {
    serve(server, page.path, 'text/html', article(page, entries, site));
    serve(server, `/docs/${page.name}.md`, 'text/markdown', page.markdown);
  }
  serve(server, REFERENCE.path, 'text/html', referencePage(entries), REFERENCE_POLICY);
  serveMissing(server, entries);
  server.route(scalarScript());
  servePackages(server);
  for (const [name, type] of Object.entries(ASSETS)) {
    const file = new URL(`assets/${name}`, import.meta.url);
    serve(server, `/docs/${name}`, type, readFileSync(file, 'utf8'));
  }
  for (const name of PICTURES) {
    const file = new URL(`assets/${name}`, import.meta.url);
    serve(server, `/docs/assets/${name}`, 'image/png', readFileSync(file));
  }
  serve(server, '/docs/search.json', 'application/json', searchIndex(pages, site));
  serve(server, '/llms.txt', 'text/plain', llms(pages, site));
  serve(server, '/llms-full.txt', 'text/plain', llmsFull(pages));
  for (const path of ['/', '/docs/index']) {
    const handler: Lifecycle.Method = (_request, h) => h.redirect('/docs');
    server.route({ method: 'GET', path, options: { auth: false }, handler });
  }
}

/** Registers a route that serves a file to everyone. */
function serve(
  server: Server,
  path: string,
  type: string,
  content: string | Buffer,
  policy = POLICY,
): void {
  const file = published(type, content);
  server.route({
    method: 'GET',
    path,
    options: { auth: false },
    handler: (request, h) => file(request, h).header('content-security-policy', policy),
  });
}

/** Registers a route for each package of a client. */
function servePackages(server: Server): void {
  for (const [name, content] of readPackages()) {
    const type = name.endsWith('.whl') ? 'application/zip' : 'application/gzip';
    server.route({
      method: 'GET',
      path: `/docs/${name}`,
      options: { auth: false },
      handler: publishedFile(type, content),
    });
  }
}

/** Registers the 404 below `/docs`: a page for browsers, and the usual problem for programs. */
function serveMissing(server: Server, entries: readonly Entry[]): void {
  const file = published('text/html', missingPage(entries));
  server.route({
    method: 'GET',
    path: '/docs/{any*}',
    options: { auth: false },
    handler: (request, h) => {
      const accepted = String(request.headers.accept);
      if (!accepted.includes('text/html')) throw unknownPath(request.path);
      // A cached copy could go to a program that expects JSON, or hide a page that a later release
      // adds.
      const page = file(request, h).code(404).header('cache-control', 'no-store');
      return page.header('content-security-policy', POLICY);
    },
  });
}
