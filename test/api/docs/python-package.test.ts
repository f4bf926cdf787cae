import { hash } from 'node:crypto';
import { buffer } from 'node:stream/consumers';
import test from 'ava';
import { fromBufferPromise } from 'yauzl';
import { fresh } from '../../support/database.ts';
import { startApi } from '../../support/stack.ts';

// The Python package as the API serves it. `npm run clients` installs it with pip.

const api = fresh(test, () => startApi());
const PATH = '/docs/npi_email_enrichment-0.1.0-py3-none-any.whl';

test('the API serves the Python package without a key, and with an ETag', async (t) => {
  const url = `${api.baseUrl}${PATH}`;
  const response = await fetch(url);
  t.is(response.status, 200);
  t.is(response.headers.get('content-type'), 'application/zip');
  t.is(response.headers.get('content-encoding'), null);
  const etag = response.headers.get('etag') ?? '';
  t.is((await fetch(url, { headers: { 'if-none-match': etag } })).status, 304);
});

test('the Python package records each of its files with its hash and size', async (t) => {
  const bytes = Buffer.from(await (await fetch(`${api.baseUrl}${PATH}`)).bytes());
  const files = new Map<string, Buffer>();
  const archive = await fromBufferPromise(bytes);
  for await (const entry of archive.eachEntry()) {
    const stream = await archive.openReadStreamPromise(entry);
    files.set(entry.fileName, await buffer(stream));
  }
  const about = 'npi_email_enrichment-0.1.0.dist-info';
  const lines = [...files]
    .filter(([name]) => name !== `${about}/RECORD`)
    .map(
      ([name, content]) =>
        `${name},sha256=${hash('sha256', content, 'base64url')},${content.length}`,
    );
  const record = files.get(`${about}/RECORD`)?.toString();
  t.is(record, [...lines, `${about}/RECORD,,`, ''].join('\n'));
  t.true(files.has('npi_email_enrichment/__init__.py'));
  t.true(files.has('npi_email_enrichment/py.typed'));
  t.regex(files.get(`${about}/METADATA`)?.toString() ?? '', /^Version: 0\.1\.0$/m);
});
