import { execFile } from 'node:child_process';
import { hash } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import test from 'ava';
import { fresh } from '../../../support/database.ts';
import { startApi } from '../../../support/stack.ts';

const api = fresh(test, () => startApi());
const get = (init?: RequestInit) =>
  fetch(`${api.baseUrl}/docs/npi-email-enrichment.tgz`, init);

test('the API serves the client package as a file, with an ETag', async (t) => {
  const { status, headers } = await get({ headers: { 'accept-encoding': 'gzip' } });
  t.is(status, 200);
  t.is(headers.get('content-type'), 'application/gzip');
  t.is(headers.get('content-encoding'), null);
  const etag = headers.get('etag') ?? '';
  t.is((await get({ headers: { 'if-none-match': etag } })).status, 304);
  t.is((await get({ method: 'HEAD' })).headers.get('etag'), etag);
});

test('another build of the same sources gives the same bytes', async (t) => {
  const build = fileURLToPath(
    new URL('../../../../deploy/build/client.ts', import.meta.url),
  );
  await promisify(execFile)(process.execPath, [build]);
  const again = await startApi();
  t.teardown(again.stop);
  const response = await fetch(`${again.baseUrl}/docs/npi-email-enrichment.tgz`);
  const digests = [await get(), response].map(async (one) =>
    hash('sha256', await one.bytes()),
  );
  const [first, second] = await Promise.all(digests);
  t.is(first, second);
});
