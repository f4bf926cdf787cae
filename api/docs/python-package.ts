import { hash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { buffer } from 'node:stream/consumers';
import type { ServerRoute } from '@hapi/hapi';
import { ZipFile } from 'yazl';
import { publishedFile } from '../routes/service.ts';
import { readBuilt } from './built.ts';

// Packs api/clients/python/ as a wheel, the format of built Python packages. A wheel is a zip file
// with the modules, and a folder that describes them. pip installs it without building anything. It
// is packed when the process starts, because that needs no Python and only milliseconds.
// https://packaging.python.org/en/latest/specifications/binary-distribution-format/

const MODULES = 'npi_email_enrichment';
const TAGS = 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n';
/**
 * With these options, equal files become equal bytes on every machine. Compression would make the
 * bytes depend on the version of zlib, and a local time would make them depend on the time zone.
 */
const OPTIONS = {
  mtime: new Date(2026, 0, 1),
  forceDosTimestamp: true,
  compress: false,
};

const metadata = read('clients/python/METADATA');
const [, version] = /^Version: (.+)$/m.exec(metadata.toString()) ?? [];
const release = `${MODULES}-${version}`;

/**
 * Returns the route that serves the Python package. pip needs its version in the file name.
 * @throws {OperatorProblem} if the package has not been built
 */
export function pythonPackage(): ServerRoute {
  const wheel = zip(contents());
  return {
    method: 'GET',
    path: `/docs/${release}-py3-none-any.whl`,
    options: { auth: false },
    handler: async (request, h) =>
      publishedFile('application/zip', await wheel)(request, h),
  };
}

function read(path: string): Buffer {
  return readFileSync(new URL(`../${path}`, import.meta.url));
}

/** Returns the content of each file in the wheel, by its path. */
function contents(): ReadonlyMap<string, Buffer> {
  const about = `${release}.dist-info`;
  const files = new Map<string, Buffer>();
  // The build writes this file and the synchronous modules.
  readBuilt(`api/clients/python/${MODULES}/types.py`);
  const folder = new URL(`../clients/python/${MODULES}/`, import.meta.url);
  for (const name of readdirSync(folder).toSorted()) {
    const path = `${MODULES}/${name}`;
    if (/\.(?:py|typed|json)$/.test(name)) {
      files.set(path, read(`clients/python/${path}`));
    }
  }
  files.set(`${about}/licenses/LICENSE`, read('../LICENSE'));
  files.set(`${about}/METADATA`, metadata);
  files.set(`${about}/WHEEL`, Buffer.from(TAGS));
  const record = `${about}/RECORD`;
  const lines = [...files].map(recordOf);
  lines.push(`${record},,`);
  files.set(record, Buffer.from(`${lines.join('\n')}\n`));
  return files;
}

/** Returns the line about a file in RECORD: its path, hash, and size. */
function recordOf([path, content]: [string, Buffer]): string {
  const digest = hash('sha256', content, 'base64url');
  return `${path},sha256=${digest},${content.length}`;
}

async function zip(files: ReadonlyMap<string, Buffer>): Promise<Buffer> {
  const archive = new ZipFile();
  for (const [path, content] of files) {
    archive.addBuffer(content, path, OPTIONS);
  }
  archive.end();
  return await buffer(archive.outputStream);
}
