import { hash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { buffer } from 'node:stream/consumers';
import type { ServerRoute } from '@hapi/hapi';
import { ZipFile } from 'yazl';
import { publishedFile } from '../routes/service.ts';

// Packs api/python/ as a wheel, the format of built Python packages. A wheel is a zip file with the
// modules, and a folder that describes them. pip installs it without building anything. It is
// packed when the process starts, because that needs no Python and only milliseconds.
// https://packaging.python.org/en/latest/specifications/binary-distribution-format/

const FOLDER = new URL('../python/', import.meta.url);
const MODULES = 'npi_email_enrichment';

const wheel = await pack();

/** Returns the route that serves the Python package. pip needs its version in the file name. */
export function pythonPackage(): ServerRoute {
  return {
    method: 'GET',
    path: `/docs/${wheel.name}`,
    options: { auth: false },
    handler: publishedFile('application/zip', wheel.bytes),
  };
}

async function pack(): Promise<{ readonly name: string; readonly bytes: Buffer }> {
  const metadata = readFileSync(new URL('METADATA', FOLDER));
  const [, version = ''] = /^Version: (.+)$/m.exec(metadata.toString()) ?? [];
  const about = `${MODULES}-${version}.dist-info`;
  const files: [path: string, content: Buffer][] = [];
  for (const file of readdirSync(new URL(`${MODULES}/`, FOLDER)).toSorted()) {
    if (!/\.py$|^py\.typed$/.test(file)) continue;
    const path = `${MODULES}/${file}`;
    files.push([path, readFileSync(new URL(path, FOLDER))]);
  }
  const license = readFileSync(new URL('../../LICENSE', import.meta.url));
  files.push([`${about}/licenses/LICENSE`, license]);
  files.push([`${about}/METADATA`, metadata]);
  const tags = 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n';
  files.push([`${about}/WHEEL`, Buffer.from(tags)]);
  const record = [...files.map(entryOf), `${about}/RECORD,,`, ''].join('\n');
  files.push([`${about}/RECORD`, Buffer.from(record)]);
  return { name: `${MODULES}-${version}-py3-none-any.whl`, bytes: await zip(files) };
}

/** Returns the line about a file in RECORD: its path, hash, and size. */
function entryOf([path, content]: readonly [string, Buffer]): string {
  return `${path},sha256=${hash('sha256', content, 'base64url')},${content.length}`;
}

/** Zips files, so that equal files become equal bytes on every machine. */
async function zip(files: readonly (readonly [string, Buffer])[]): Promise<Buffer> {
  const archive = new ZipFile();
  // The time without a time zone, and no compression, which depends on the version of zlib.
  const options = {
    mtime: new Date(2026, 0, 1),
    forceDosTimestamp: true,
    compress: false,
  };
  for (const [path, content] of files) archive.addBuffer(content, path, options);
  archive.end();
  return await buffer(archive.outputStream);
}
