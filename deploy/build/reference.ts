import { readFile, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { constants, gzip } from 'node:zlib';

// `npm run build` writes the script of the reference page, which the API serves compressed. We need
// only this script of its package. The package depends on 270 others, so production doesn't install
// it.

const PACKAGE = '@scalar/api-reference';
const SCRIPT = new URL('../../api/docs/assets/scalar.js.gz', import.meta.url);

/** Returns the path of a file in `node_modules`. */
function pathOf(file: string): string {
  return fileURLToPath(new URL(`../../node_modules/${file}`, import.meta.url));
}

const code = await readFile(pathOf(`${PACKAGE}/dist/browser/standalone.js`));
// The package has no file with its license, but others by the same authors do.
const license = await readFile(pathOf('@scalar/types/LICENSE'), 'utf8');
const file = Buffer.concat([Buffer.from(`/*!\n${PACKAGE}\n\n${license}*/\n`), code]);
const level = constants.Z_BEST_COMPRESSION;
await writeFile(SCRIPT, await promisify(gzip)(file, { level }));
