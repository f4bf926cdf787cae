import { type Site, supportLink } from '../site.ts';
import { render, type Section } from './markdown.ts';
import type { Page } from './pages.ts';

// The HTML of the pages. It works without scripts: the menu of a narrow screen is a popover.

/** A page in the menu. */
export interface Entry {
  readonly path: string;
  readonly title: string;
  readonly summary: string;
}

/** The parts of a page that differ from page to page. */
interface Parts {
  /** All pages, in the order of the menu. */
  readonly entries: readonly Entry[];
  /** Elements for the head. */
  readonly head: string;
  /** The elements next to the menu. */
  readonly content: string;
}

const NAME = 'NPI email enrichment';

/** Returns the HTML of a page: the header, the menu, and its content. */
export function layout({ path, title, summary }: Entry, parts: Parts): string {
  const { entries, head, content } = parts;
  const menu = entries.map((entry) => {
    const current = entry.path === path ? ' aria-current="page"' : '';
    return `<li><a href="${entry.path}"${current}>${entry.title}</a></li>`;
  });
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="description" content="${escaped(summary)}">
<title>${title} · ${NAME}</title>
<link rel="icon" href="/docs/favicon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/docs/style.css">
<script src="/docs/script.js" defer></script>
${head}
</head>
<body>
<a class="skip" href="#content">Skip to content</a>
<header class="top">
<a class="brand" href="/docs"><img class="mark" src="/docs/favicon.svg" alt=""><span>${NAME}</span></a>
<button class="search" type="button" hidden>Search <kbd>/</kbd></button>
<button class="burger" type="button" popovertarget="menu" aria-label="Menu"></button>
</header>
<nav id="menu" popover aria-label="Pages">
<ul>
${menu.join('\n')}
</ul>
<p class="machines"><a href="/openapi.json">openapi.json</a> <a href="/llms.txt">llms.txt</a></p>
</nav>
${content}
<dialog id="search" aria-label="Search">
<input type="search" placeholder="Search the documentation" aria-label="Search the documentation" autocomplete="off" spellcheck="false">
<ol></ol>
<p hidden>Nothing found.</p>
</dialog>
</body>
</html>
`;
}

/** Returns the HTML of a page that is written in Markdown. */
export function article(page: Page, entries: readonly Entry[], site: Site): string {
  const { html, sections } = render(page.markdown);
  const source = `/docs/${page.name}.md`;
  const contents = contentsOf(sections);
  const content = `<main id="content" class="page">
<details class="toc"><summary>On this page</summary>
${contents}
</details>
<article>
${html}</article>
${neighbors(page.path, entries)}
<footer>
<p>Questions? Ask <a href="${supportLink(site)}">${site.support}</a>.</p>
<p><a href="${source}">This page as Markdown</a></p>
</footer>
</main>
<aside class="toc" aria-label="On this page">
<p>On this page</p>
${contents}
</aside>`;
  const head = `<link rel="alternate" type="text/markdown" href="${source}">`;
  return layout(page, { entries, head, content });
}

/** Returns links to the sections below the title. */
function contentsOf(sections: readonly Section[]): string {
  const links = sections
    .filter(({ depth }) => depth === 2 || depth === 3)
    .map(
      ({ id, depth, title }) =>
        `<li class="depth-${depth}"><a href="#${id}">${escaped(title)}</a></li>`,
    );
  return `<ul>\n${links.join('\n')}\n</ul>`;
}

/** Returns links to the previous and the next page of the menu. */
function neighbors(path: string, entries: readonly Entry[]): string {
  const at = entries.findIndex((entry) => entry.path === path);
  const links: string[] = [];
  const previous = entries[at - 1];
  if (previous) links.push(neighbor('prev', 'Previous', previous));
  const next = entries[at + 1];
  if (next) links.push(neighbor('next', 'Next', next));
  return `<nav class="neighbors" aria-label="Previous and next page">\n${links.join('\n')}\n</nav>`;
}

function neighbor(rel: string, label: string, { path, title }: Entry): string {
  return `<a rel="${rel}" href="${path}"><small>${label}</small>${title}</a>`;
}

/** Returns the HTML for a path at which there is no page. */
export function missingPage(entries: readonly Entry[]): string {
  const title = 'Page not found';
  const content = `<main id="content" class="page">
<h1>${title}</h1>
<p>There is nothing at this path. Start at <a href="/docs">Quick start</a>, or press <kbd>/</kbd> to search.</p>
</main>`;
  return layout({ path: '', title, summary: title }, { entries, head: '', content });
}

/** Returns a text with the characters escaped that HTML would interpret. */
function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;');
}
