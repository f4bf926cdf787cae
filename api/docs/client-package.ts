import type { ServerRoute } from '@hapi/hapi';
import { publishedFile } from '../routes/service.ts';
import { readBuilt } from './built.ts';

const FILE = 'api/clients/typescript/npi-email-enrichment.tgz';

/**
 * Returns the route that serves the npm package of the client. Customers install it from the API
 * itself, so it always fits the API, and we need no account at npm.
 * @throws {OperatorProblem} if the package has not been built
 */
export function clientPackage(): ServerRoute {
  return {
    method: 'GET',
    path: '/docs/npi-email-enrichment.tgz',
    options: { auth: false },
    handler: publishedFile('application/gzip', readBuilt(FILE)),
  };
}
