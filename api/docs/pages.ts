import { readFileSync } from 'node:fs';
import { EXAMPLE_URL, operatorFacts, type Site, SUPPORT } from '../site.ts';
import { withParts } from './tables.ts';

/** A page of the documentation. */
export interface Page {
  readonly name: string;
  /** The URL path at which it is served as HTML. */
  readonly path: string;
  readonly title: string;
  /** The first paragraph as plain text. */
  readonly summary: string;
  readonly markdown: string;
}

/** The pages with Markdown, in the order of the menu, by file name. */
const NAMES = [
  'index',
  'lifecycle',
  'webhooks',
  'errors',
  'limits',
  'sandbox',
  'no-code',
  'assistants',
  'console',
  'clients',
  'python',
  'data',
  'changelog',
];

/**
 * Pages whose Markdown file is in another folder. The page about the client is also the README of
 * its npm package.
 */
const FILES: Readonly<Record<string, string>> = {
  clients: '../clients/typescript/README.md',
};

/** Reads all pages, and fills in the rendered parts, the URL of the service, and its support. */
export function readPages(site: Site): readonly Page[] {
  const { publicUrl, support } = site;
  return NAMES.map((name) => {
    const file = new URL(FILES[name] ?? `${name}.md`, import.meta.url);
    let markdown = withParts(readFileSync(file, 'utf8'));
    for (const [part, text] of Object.entries(operatorFacts(site))) {
      markdown = markdown.replace(part, () => text);
    }
    markdown = markdown.replaceAll(EXAMPLE_URL, publicUrl).replaceAll(SUPPORT, support);
    const [title = '', summary = ''] = markdown.split('\n\n');
    return {
      name,
      path: pathOf(name),
      title: title.replace('# ', ''),
      summary: plainText(summary),
      markdown,
    };
  });
}

/** Returns the URL path at which a page is served as HTML. */
export function pathOf(name: string): string {
  return name === 'index' ? '/docs' : `/docs/${name}`;
}

/** Returns Markdown as one line without links, code blocks, and marks. */
export function plainText(markdown: string): string {
  return markdown
    .replaceAll(/^```[\s\S]*?^```$/gm, '')
    .replaceAll(/!?\[([^\]]*)\]\([^)]*\)/g, '$1')
    .replaceAll(/^\|[ |-]+\|$|^#+ .*|\*\*|`|^- |^> /gm, '')
    .replaceAll(/[\s|]+/g, ' ')
    .trim();
}

/** Returns `/llms.txt` (llmstxt.org), which lists the pages for language models. */
export function llms(pages: readonly Page[], { publicUrl, support }: Site): string {
  const [first] = pages;
  const list = pages.map(
    ({ name, title, summary }) => `- [${title}](/docs/${name}.md): ${summary}`,
  );
  return [
    '# NPI email enrichment',
    `> ${first?.summary}`,
    `The API is at ${publicUrl}. Support: ${support}`,
    '## Docs',
    [
      ...list,
      '- [All pages](/llms-full.txt): these pages in one text',
      '- [OpenAPI](/openapi.json): OpenAPI 3.1, for machines',
    ].join('\n'),
    '',
  ].join('\n\n');
}

/** Returns `/llms-full.txt`, which has the text of all pages for language models. */
export function llmsFull(pages: readonly Page[]): string {
  return pages.map(({ markdown }) => markdown).join('\n');
}
