import { hash } from 'node:crypto';
import { buffer } from 'node:stream/consumers';
import test from 'ava';
import { fromBufferPromise } from 'yauzl';
import { fresh } from '../../../support/database.ts';
import { examples } from '../../../support/documented/examples.ts';
import { startApi } from '../../../support/stack.ts';

// Tests the Python package that the API serves. `npm run clients` installs it with pip.

const api = fresh(test, () => startApi());
const addresses = examples().flatMap(({ text }) => text.match(/\/docs\/\S+\.whl/g) ?? []);
const [path = ''] = addresses;

test('the API serves the Python package that the pages name, with an ETag', async (t) => {
  t.is(new Set(addresses).size, 1);
  const url = `${api.baseUrl}${path}`;
  const response = await fetch(url);
  t.is(response.status, 200);
  t.is(response.headers.get('content-type'), 'application/zip');
  t.is(response.headers.get('content-encoding'), null);
  const etag = response.headers.get('etag') ?? '';
  t.is((await fetch(url, { headers: { 'if-none-match': etag } })).status, 304);
});

test('the Python package records each of its files with its hash and size', async (t) => {
  const bytes = Buffer.from(await (await fetch(`${api.baseUrl}${path}`)).bytes());
  const files = new Map<string, Buffer>();
  const archive = await fromBufferPromise(bytes);
  for await (const entry of archive.eachEntry()) {
    const stream = await archive.openReadStreamPromise(entry);
    files.set(entry.fileName, await buffer(stream));
  }
  const [, release] = /^\/docs\/(.+?)-py3/.exec(path) ?? [];
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
