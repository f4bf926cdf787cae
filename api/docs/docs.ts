import { readFileSync } from 'node:fs';
import type { Lifecycle, Server } from '@hapi/hapi';
import { Marked } from 'marked';
import { published } from '../routes/service.ts';
import { type Site, supportLink } from '../site.ts';
import { clientPackage } from './client-package.ts';
import { pythonPackage } from './python-package.ts';
import { reference } from './reference.ts';

// The documentation for users of the API. Its pages are the Markdown files in this folder, and the
// reference, which is generated from the OpenAPI document. All pages are rendered once when the
// process starts, and are served from memory. Reading them requires no API key.

/** The pages in the order of the menu, by file name. */
const NAMES = [
  'index',
  'lifecycle',
  'webhooks',
  'errors',
  'limits',
  'sandbox',
  'no-code',
  'clients',
  'python',
  'reference',
  'changelog',
];

/**
 * Pages whose Markdown file is in another folder. The page about the client is also the README of
 * its npm package.
 */
const FILES: Readonly<Record<string, string>> = { clients: '../client/README.md' };

/**
 * The Content-Security-Policy of the pages. It allows our own style sheet and images, but no
 * scripts, nothing from other hosts, and no frame around a page.
 */
const POLICY =
  "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/**
 * Registers the routes of the documentation: each page as HTML and as Markdown, the style sheet,
 * the packages of the clients, `/llms.txt` (llmstxt.org), and redirects from `/` and `/docs/index` to
 * `/docs`.
 */
export function registerDocs(server: Server, site: Site): void {
  const pages = NAMES.map((name) => readPage(name, site));
  const serve = (path: string, type: string, text: string) => {
    const answer = published(type, text);
    server.route({
      method: 'GET',
      path,
      options: { auth: false },
      handler: (request, h) =>
        answer(request, h).header('content-security-policy', POLICY),
    });
  };
  for (const page of pages) {
    serve(page.path, 'text/html', html(page, pages, site));
    serve(`/docs/${page.name}.md`, 'text/markdown', page.markdown);
  }
  serve('/docs/style.css', 'text/css', read('style.css'));
  serve('/llms.txt', 'text/plain', llms(pages, site));
  server.route([clientPackage(), pythonPackage()]);
  for (const path of ['/', '/docs/index']) {
    const handler: Lifecycle.Method = (_request, h) => h.redirect('/docs');
    server.route({ method: 'GET', path, options: { auth: false }, handler });
  }
}

function read(file: string): string {
  return readFileSync(new URL(file, import.meta.url), 'utf8');
}

/** Returns the URL path at which a page is served as HTML. */
function pathOf(name: string): string {
  return name === 'index' ? '/docs' : `/docs/${name}`;
}

type Page = ReturnType<typeof readPage>;

/** Stands for the URL of the service in the Markdown files. */
const EXAMPLE_URL = 'https://api.example.com';

function readPage(name: string, site: Site) {
  const written = name === 'reference' ? reference() : read(FILES[name] ?? `${name}.md`);
  const markdown = written.replaceAll(EXAMPLE_URL, site.publicUrl);
  const [title = '', summary = ''] = markdown.split('\n\n');
  return {
    name,
    path: pathOf(name),
    title: title.replace('# ', ''),
    /** The first paragraph as plain text. */
    summary: summary.replaceAll('\n', ' ').replaceAll(/\[([^\]]*)\]\([^)]*\)/g, '$1'),
    markdown,
  };
}

const marked = new Marked({
  renderer: {
    heading({ tokens, depth, text }) {
      const words = this.parser.parseInline(tokens);
      const id = anchorOf(text);
      return `<h${depth} id="${id}">${words} <a class="anchor" href="#${id}" aria-label="Link to here">#</a></h${depth}>\n`;
    },
    link({ href, tokens }) {
      // In the Markdown files, links name files, so that they also work on GitHub. Here they become
      // URL paths.
      const to = href.replace(/^([\w-]+)\.md(?=#|$)/, (_, name: string) => pathOf(name));
      return `<a href="${to}">${this.parser.parseInline(tokens)}</a>`;
    },
  },
});

/** Returns the same anchor for a heading as GitHub does. */
function anchorOf(heading: string): string {
  return heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\s_-]/gu, '')
    .replaceAll(' ', '-');
}

function html(
  { name, title, summary, markdown }: Page,
  pages: readonly Page[],
  site: Site,
): string {
  const menu = pages.map((page) => {
    const current = page.name === name ? ' aria-current="page"' : '';
    return `<li><a href="${page.path}"${current}>${page.title}</a></li>`;
  });
  // Wide blocks scroll on a narrow screen. `tabindex` makes them scrollable by keyboard too.
  const body = marked
    .parse(markdown, { async: false })
    .replaceAll(/<(pre|table)>/g, '<$1 tabindex="0">');
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="description" content="${summary.replaceAll('"', '&quot;')}">
<title>${title} · NPI email enrichment</title>
<link rel="stylesheet" href="/docs/style.css">
<link rel="alternate" type="text/markdown" href="/docs/${name}.md">
</head>
<body>
<nav aria-label="Pages">
<p><a href="/docs">NPI email enrichment</a></p>
<ul>
${menu.join('\n')}
</ul>
<p><a href="/openapi.json">openapi.json</a> · <a href="/llms.txt">llms.txt</a> · <a href="/docs/${name}.md">this page as Markdown</a></p>
</nav>
<main>
${body}</main>
<footer>
<p>Questions? Ask <a href="${supportLink(site)}">${site.support}</a>.</p>
</footer>
</body>
</html>
`;
}

function llms(pages: readonly Page[], { publicUrl, support }: Site): string {
  const [first] = pages;
  const list = pages.map(
    ({ name, title, summary }) => `- [${title}](/docs/${name}.md): ${summary}`,
  );
  return [
    '# NPI email enrichment',
    `> ${first?.summary}`,
    `The API is at ${publicUrl}. Support: ${support}`,
    '## Docs',
    [...list, '- [OpenAPI](/openapi.json): OpenAPI 3.1, for machines'].join('\n'),
    '',
  ].join('\n\n');
}
