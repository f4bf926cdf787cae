import { openapiDocument } from '../openapi/document.ts';
import { ROUTES } from '../routes.ts';
import type { Site } from '../site.ts';
import { render } from './markdown.ts';
import type { Page } from './pages.ts';
import { REFERENCE } from './reference.ts';

/** A section that the search can find. The search runs in the browser (assets/script.js). */
interface Found {
  readonly page: string;
  readonly title: string;
  readonly path: string;
  readonly text: string;
}

/** Returns the index of the search as JSON: the sections of all pages, and the operations. */
export function searchIndex(pages: readonly Page[], site: Site): string {
  const paths = openapiDocument(site).paths as Operations;
  const operations = ROUTES.map(({ method, path }): Found => {
    const operation = paths[path]?.[method.toLowerCase()];
    const tag = operation?.tags[0]?.toLowerCase();
    return {
      page: REFERENCE.title,
      title: operation?.summary ?? '',
      // Scalar gives each operation this anchor.
      path: `${REFERENCE.path}#tag/${tag}/${method}${path}`,
      text: `${method} ${path}`,
    };
  });
  return JSON.stringify([...pages.flatMap(sectionsOf), ...operations]);
}

/** The part of the OpenAPI document that the index shows: the operations by path and method. */
type Operations = Readonly<
  Record<
    string,
    Readonly<Record<string, { readonly summary: string; readonly tags: string[] }>>
  >
>;

function sectionsOf({ title: page, path, markdown }: Page): readonly Found[] {
  const { sections } = render(markdown);
  return sections.map(({ id, title, text }) => {
    return { page, title, path: `${path}#${id}`, text };
  });
}
