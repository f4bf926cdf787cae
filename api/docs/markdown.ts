import hljs from 'highlight.js/lib/core';
import bash from 'highlight.js/lib/languages/bash';
import javascript from 'highlight.js/lib/languages/javascript';
import json from 'highlight.js/lib/languages/json';
import python from 'highlight.js/lib/languages/python';
import typescript from 'highlight.js/lib/languages/typescript';
import { lexer, Parser, Renderer, type Tokens } from 'marked';
import { pathOf, plainText } from './pages.ts';

// Renders the Markdown of a page. Code gets its colors here and not in the browser, as classes, so
// that the pages need no inline styles.

/** A heading of a page, and the text until the next one. */
export interface Section {
  readonly id: string;
  readonly depth: number;
  readonly title: string;
  /** Without code blocks. */
  readonly text: string;
}

/** The name of each language for readers. Its code is colored by the definition next to it. */
const LANGUAGES = {
  sh: { label: 'Shell', definition: bash },
  console: { label: 'Shell', definition: bash },
  json: { label: 'JSON', definition: json },
  js: { label: 'JavaScript', definition: javascript },
  ts: { label: 'TypeScript', definition: typescript },
  python: { label: 'Python', definition: python },
};
for (const [name, { definition }] of Object.entries(LANGUAGES)) {
  hljs.registerLanguage(name, definition);
}

/** Renders Markdown to HTML, and lists its sections. */
export function render(markdown: string): { html: string; sections: readonly Section[] } {
  const tokens = lexer(markdown);
  const renderer = new PageRenderer();
  const html = new Parser({ renderer }).parse(tokens);
  const ids = [...renderer.ids];
  const sections: Section[] = [];
  let raw = '';
  for (const token of tokens.toReversed()) {
    if (token.type === 'heading') {
      const { depth, text } = token as Tokens.Heading;
      const id = ids.pop() ?? '';
      sections.unshift({ id, depth, title: plainText(text), text: plainText(raw) });
      raw = '';
    } else {
      raw = token.raw + raw;
    }
  }
  return { html, sections };
}

class PageRenderer extends Renderer {
  /** The anchors of the headings, in their order. */
  readonly ids = new Set<string>();

  override heading({ tokens, depth, text }: Tokens.Heading): string {
    const words = this.parser.parseInline(tokens);
    const id = this.#unused(anchorOf(text));
    this.ids.add(id);
    return `<h${depth} id="${id}">${words} <a class="anchor" href="#${id}" aria-label="Link to here">#</a></h${depth}>\n`;
  }

  /** Returns the anchor, with a number at its end if an earlier heading has the same. */
  #unused(anchor: string): string {
    let id = anchor;
    for (let n = 1; this.ids.has(id); n += 1) id = `${anchor}-${n}`;
    return id;
  }

  override link({ href, tokens }: Tokens.Link): string {
    // In the Markdown files, links name files, so that they also work on GitHub. Here they become
    // URL paths. The page about the client is in another folder than the others.
    const file = /^(?:\.\.\/\.\.\/docs\/)?([\w-]+)\.md(?=#|$)/;
    const to = href.replace(file, (_, name: string) => pathOf(name));
    return `<a href="${to}">${this.parser.parseInline(tokens)}</a>`;
  }

  override code({ text, lang = '' }: Tokens.Code): string {
    const { label } = LANGUAGES[lang as keyof typeof LANGUAGES];
    const code = hljs.highlight(text, { language: lang }).value;
    return `<figure class="code"><figcaption>${label}</figcaption><pre><code>${code}\n</code></pre></figure>\n`;
  }

  /** On a narrow screen, each row becomes a block. Its cells then show their column's title. */
  override table({ header, rows }: Tokens.Table): string {
    const head = header.map((cell) => `<th scope="col">${this.#inline(cell)}</th>`);
    const body = rows.map((row) => this.#row(row, header));
    return `<table>\n<thead><tr>${head.join('')}</tr></thead>\n<tbody>\n${body.join('')}</tbody>\n</table>\n`;
  }

  #row(cells: readonly Tokens.TableCell[], header: readonly Tokens.TableCell[]): string {
    const all = cells.map((cell, index) => {
      const label = plainText(header[index]?.text ?? '');
      return `<td data-label="${label}"><div>${this.#inline(cell)}</div></td>`;
    });
    return `<tr>${all.join('')}</tr>\n`;
  }

  #inline({ tokens }: Tokens.TableCell): string {
    return this.parser.parseInline(tokens);
  }
}

/** Returns the same anchor for a heading as GitHub does. */
function anchorOf(heading: string): string {
  return heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\s_-]/gu, '')
    .replaceAll(' ', '-');
}
