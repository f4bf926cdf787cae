import type { ServerRoute } from '@hapi/hapi';
import { publishedFile } from '../routes/service.ts';
import { readBuilt } from './built.ts';
import { type Entry, layout } from './layout.ts';

// The reference page. Scalar renders it in the browser from /openapi.json. Its script is served
// from our host. Its settings (reference-settings.js) turn off all requests to other hosts.

/** The reference in the menu. */
export const REFERENCE: Entry = {
  path: '/docs/reference',
  title: 'Reference',
  summary:
    'Every operation with its parameters, fields, limits, and examples. Try it with your key.',
};

/**
 * The Content-Security-Policy of the reference. Scalar adds style elements, and its images are in
 * its script. It needs no inline script, no `eval`, and no other host. Swagger UI also works without
 * inline styles, but shows fewer examples and limits. RapiDoc, OpenAPI Explorer, and Elements need
 * inline styles too.
 */
export const REFERENCE_POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const SCALAR = 'api/docs/assets/scalar.js.gz';

/** Returns the HTML of the reference. */
export function referencePage(entries: readonly Entry[]): string {
  const head = `<script src="/docs/scalar.js" defer></script>
<script src="/docs/reference-settings.js" defer></script>`;
  const content = `<main id="content" class="reference">
<noscript><p>This page needs JavaScript. <a href="/openapi.json">openapi.json</a> describes the same operations.</p></noscript>
<div id="reference"></div>
</main>`;
  return layout(REFERENCE, { entries, head, content });
}

/**
 * Returns the route that serves Scalar. It has only the gzip form, because only browsers read the
 * script, and all of them accept gzip.
 */
export function scalarScript(): ServerRoute {
  const file = publishedFile('text/javascript', readBuilt(SCALAR));
  return {
    method: 'GET',
    path: '/docs/scalar.js',
    options: { auth: false },
    handler: (request, h) => file(request, h).compressed('gzip'),
  };
}
