import { hash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { buffer } from 'node:stream/consumers';
import { ZipFile } from 'yazl';
import { PYTHON_PACKAGE } from '../../api/docs/packages.ts';
import { writePackage } from './package-file.ts';

// Packs api/clients/python/ as a wheel, the format of built Python packages, which the API serves. A
// wheel is a zip file with the modules, and a folder that describes them. pip installs it without
// building anything, and packing it needs no Python.
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

const wheel = await zip(contents());
writePackage(PYTHON_PACKAGE, wheel);

function read(path: string): Buffer {
  return readFileSync(new URL(`../../${path}`, import.meta.url));
}

/** Returns the content of each file in the wheel, by its path. */
function contents(): ReadonlyMap<string, Buffer> {
  const [release] = PYTHON_PACKAGE.name.split('-py3');
  const about = `${release}.dist-info`;
  const files = new Map<string, Buffer>();
  const folder = new URL(`../../api/clients/python/${MODULES}/`, import.meta.url);
  for (const name of readdirSync(folder).toSorted()) {
    const path = `${MODULES}/${name}`;
    if (/\.(?:py|typed|json)$/.test(name)) {
      files.set(path, read(`api/clients/python/${path}`));
    }
  }
  files.set(`${about}/licenses/LICENSE`, read('LICENSE'));
  files.set(`${about}/METADATA`, read('api/clients/python/METADATA'));
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
