import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { readBuilt } from './built.ts';

// The packages of the clients. Customers install them from the API itself, so we need no accounts at
// npm and PyPI. The name of a package contains its version, because a customer's lockfile has the
// hash of the file, and because pip requires it.

/** A package that `npm run build` makes. */
export interface ClientPackage {
  /** The name under which it is served. */
  readonly name: string;
  /** Where the build writes it, from the root of the repository. */
  readonly file: string;
}

const { version } = JSON.parse(read('typescript/package.json').toString());
const [, pythonVersion] =
  /^Version: (.+)$/m.exec(read('python/METADATA').toString()) ?? [];

export const NPM_PACKAGE: ClientPackage = {
  name: `npi-email-enrichment-${version}.tgz`,
  file: 'api/clients/typescript/npi-email-enrichment.tgz',
};
export const PYTHON_PACKAGE: ClientPackage = {
  name: `npi_email_enrichment-${pythonVersion}-py3-none-any.whl`,
  file: 'api/clients/python/npi_email_enrichment.whl',
};

/** The folder with the packages of all released versions. They never change. */
const RELEASED = 'released';

/** Returns a released package, or null if its version is not released. */
export function readReleased(name: string): Buffer | null {
  const path = `${RELEASED}/${name}`;
  return existsSync(urlOf(path)) ? read(path) : null;
}

/**
 * Returns each package by its name: the released ones, and those of newer versions that were built
 * from this code.
 * @throws {OperatorProblem} if they have not been built
 */
export function readPackages(
  built: readonly ClientPackage[] = [NPM_PACKAGE, PYTHON_PACKAGE],
): ReadonlyMap<string, Buffer> {
  const packages = new Map<string, Buffer>();
  for (const name of readdirSync(urlOf(RELEASED))) {
    packages.set(name, read(`${RELEASED}/${name}`));
  }
  for (const { name, file } of built) {
    // The bytes of a released version never change, because lockfiles have their hashes.
    if (!packages.has(name)) packages.set(name, readBuilt(file));
  }
  return packages;
}

function urlOf(path: string): URL {
  return new URL(`../clients/${path}`, import.meta.url);
}

function read(path: string): Buffer {
  return readFileSync(urlOf(path));
}
