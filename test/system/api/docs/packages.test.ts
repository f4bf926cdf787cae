import { execFile } from 'node:child_process';
import { hash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import test from 'ava';
import { fromBufferPromise } from 'yauzl';
import {
  NPM_PACKAGE,
  PYTHON_PACKAGE,
  readPackages,
} from '../../../../api/docs/packages.ts';
import { fresh } from '../../../support/database.ts';
import { startApi } from '../../../support/stack.ts';

// Tests the packages of the clients that the API serves. examples.test.ts installs them.

const ROOT = fileURLToPath(new URL('../../../..', import.meta.url));
const api = fresh(test, () => startApi());

test('the API serves each package as a file, with an ETag', async (t) => {
  const names = [...readPackages().keys()];
  t.true(names.includes(NPM_PACKAGE.name) && names.includes(PYTHON_PACKAGE.name));
  for (const name of names) {
    const url = `${api.baseUrl}/docs/${name}`;
    const { status, headers } = await fetch(url, {
      headers: { 'accept-encoding': 'gzip' },
    });
    t.is(status, 200, name);
    const type = name.endsWith('.whl') ? 'application/zip' : 'application/gzip';
    t.is(headers.get('content-type'), type);
    t.is(headers.get('content-encoding'), null);
    const etag = headers.get('etag') ?? '';
    t.is((await fetch(url, { headers: { 'if-none-match': etag } })).status, 304);
    t.is((await fetch(url, { method: 'HEAD' })).headers.get('etag'), etag);
  }
});

test('another build of the same sources gives the same bytes', async (t) => {
  const readBuilt = () => readFile(join(ROOT, NPM_PACKAGE.file));
  const first = await readBuilt();
  await promisify(execFile)(process.execPath, [join(ROOT, 'deploy/build/client.ts')]);
  t.deepEqual(await readBuilt(), first);
});

test('the Python package records each of its files with its hash and size', async (t) => {
  const files = new Map<string, Buffer>();
  const archive = await fromBufferPromise(
    await readFile(join(ROOT, PYTHON_PACKAGE.file)),
  );
  for await (const entry of archive.eachEntry()) {
    const stream = await archive.openReadStreamPromise(entry);
    files.set(entry.fileName, await buffer(stream));
  }
  const [release] = PYTHON_PACKAGE.name.split('-py3');
  const about = `${release}.dist-info`;
  const lines = [...files]
    .filter(([name]) => name !== `${about}/RECORD`)
    .map(
      ([name, content]) =>
        `${name},sha256=${hash('sha256', content, 'base64url')},${content.length}`,
    );
  const record = files.get(`${about}/RECORD`)?.toString();
  t.is(record, [...lines, `${about}/RECORD,,`, ''].join('\n'));
  t.true(files.has('npi_email_enrichment/__init__.py'));
  t.true(files.has('npi_email_enrichment/_sync_client.py'));
  t.true(files.has('npi_email_enrichment/py.typed'));
  t.true(files.has('npi_email_enrichment/types.py'));
  t.true(files.has(`${about}/METADATA`));
});
