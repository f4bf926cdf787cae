import { readFileSync } from 'node:fs';
import type { ServerRoute } from '@hapi/hapi';
import { OperatorProblem } from '../../db/errors.ts';
import { publishedFile } from '../routes/service.ts';

// Customers install the client from the API itself, so it always fits the API, and we need no
// account at npm.

const FILE = new URL('../client/npi-email-enrichment.tgz', import.meta.url);

/**
 * Returns the route that serves the npm package of the client.
 * @throws {OperatorProblem} if the package has not been built
 */
export function clientPackage(): ServerRoute {
  return {
    method: 'GET',
    path: '/docs/npi-email-enrichment.tgz',
    options: { auth: false },
    handler: publishedFile('application/gzip', readPackage()),
  };
}

function readPackage(): Buffer {
  try {
    return readFileSync(FILE);
  } catch (cause) {
    const text = 'the client package is not built; run "npm run client" after "npm ci"';
    throw new OperatorProblem(text, { cause });
  }
}
