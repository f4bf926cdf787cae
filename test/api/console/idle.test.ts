import test from 'ava';
import { sql } from 'drizzle-orm';
import { FilePool } from '../../../api/console/file-pool.ts';
import { CallFailed } from '../../../api/http/call-api.ts';
import { closeOrganization } from '../../../db/accounts/closing.ts';
import { revokeKey } from '../../../db/accounts/keys.ts';
import { run, transaction } from '../../../db/connection/client.ts';
import { createUpload, deleteUpload, MAX_UPLOADS } from '../../../db/uploads/uploads.ts';
import { fresh } from '../../support/database.ts';
import {
  BY,
  eventually,
  exchange,
  type Organization,
} from '../../support/organization.ts';
import { type ApiClient, startApi } from '../../support/stack.ts';
import { startedUpload, uploadActivities } from '../../support/uploads.ts';
import { Visitor } from '../../support/visitor.ts';

// Tests the console while no worker runs, so that batches and uploads stay as they are.

const api = fresh(test, () =>
  startApi({ trustedProxies: ['127.0.0.0/8'], rateWindowMs: 3_600_000 }),
);
const SIGN_IN = '/console/sign-in';
const UPLOADS = '/console/uploads';
const NPI = '2000000010';
const FILE = `npi\n${NPI}\n`;
/** A complete key that does not exist. */
const GUESS = 'npe_00000000000000000000000000000044v2zE';

async function signedIn(
  { apiKey }: Pick<ApiClient, 'apiKey'>,
  { baseUrl } = api,
): Promise<Visitor> {
  const visitor = new Visitor(baseUrl);
  await visitor.signIn(apiKey);
  return visitor;
}

/** Sends the first half of a file. Returns a function that sends the rest. */
async function sendHalf(visitor: Visitor) {
  const { token } = await visitor.get(UPLOADS);
  const header = 'content-disposition: form-data; name="file"; filename="a.csv"';
  const first = `--x\r\n${header}\r\n\r\n`;
  const rest = `${FILE}\r\n--x--\r\n`;
  const body = new TransformStream<string, string>();
  const writer = body.writable.getWriter();
  const form = {
    method: 'POST',
    headers: {
      'content-type': 'multipart/form-data; boundary=x',
      'content-length': String(first.length + rest.length),
    },
    body: body.readable.pipeThrough(new TextEncoderStream()),
    duplex: 'half',
  };
  const sending = visitor.send(`${UPLOADS}?form_token=${token}`, form);
  sending.catch(() => {});
  await writer.write(first);
  await eventually(async () => {
    const { status } = await visitor.upload(UPLOADS, token, new File([FILE], 'b.csv'));
    return status === 429 ? true : null;
  });
  return async () => {
    await writer.write(rest);
    await writer.close();
    return await sending;
  };
}

/** Starts an upload of one NPI and submits its only part. */
async function submittedUpload(organization: Organization): Promise<string> {
  const uploadId = await startedUpload(api.db, organization, [NPI]);
  await uploadActivities(api.db).submitNextPart({ uploadId });
  return uploadId;
}

test('every page of the console needs a valid key', async (t) => {
  const client = await api.organization(1);
  const open = [SIGN_IN, '/console/style.css', '/console/script.js'];
  const paths = api
    .routes()
    .filter(({ method, path }) => method === 'GET' && path.startsWith('/console'))
    .map(({ path }) => path.replaceAll(/[{}]/g, ''))
    .filter((path) => !open.includes(path));
  t.true(paths.length > 8);
  const visitor = await signedIn(client);
  const visitors = paths.map(() => visitor.copy());
  await revokeKey(api.db, BY, client.keyId);
  await eventually(async () => {
    const { status } = await client.get('/api/v1/credits');
    return status === 403 ? true : null;
  });
  for (const [at, path] of paths.entries()) {
    for (const visitor of [new Visitor(api.baseUrl), visitors[at]]) {
      const seen = await visitor?.get(path);
      t.is(seen?.path.split('?')[0], SIGN_IN, path);
    }
  }
});

test('the sign-in is limited by the address of the visitor', async (t) => {
  const visitor = new Visitor(api.baseUrl);
  const { token } = await visitor.get(SIGN_IN);
  const { apiKey } = await api.organization();
  const guess = async (address: string, api_key = GUESS) => {
    const form = { form_token: token, api_key };
    return await visitor.post(SIGN_IN, form, { 'x-forwarded-for': address });
  };
  for (let n = 0; n < 100; n += 1) t.is((await guess('203.0.113.7')).status, 401);
  const limited = await guess('203.0.113.7');
  t.is(limited.status, 429);
  t.regex(limited.text, /role="alert">An address without a valid API key may send/);
  t.is((await guess('203.0.113.7', apiKey)).status, 429);
  const page = await visitor.get(SIGN_IN, { 'x-forwarded-for': '203.0.113.7' });
  t.is(page.status, 429);
  t.is((await guess('203.0.113.8')).status, 401);
});

test('a customer can send one file at a time, with all its keys together', async (t) => {
  const client = await api.organization(1);
  const finish = await sendHalf(await signedIn(client));
  const sandbox = await signedIn(await api.sandboxOf(client));
  const { token } = await sandbox.get(UPLOADS);
  const send = () => sandbox.upload(UPLOADS, token, new File([FILE], 'a.csv'));
  const refused = await eventually(async () => {
    const seen = await send();
    return seen.status === 429 ? seen : null;
  });
  t.regex(refused.text, /Another file of yours is in progress/);
  await finish();
  t.regex((await send()).text, /This submits 1 NPI\./);
});

test('slow senders do not delay others, and if there are many, the oldest is disconnected', async (t) => {
  const itself = await startApi();
  t.teardown(itself.stop);
  const sending = [];
  for (let n = 0; n < 9; n += 1)
    sending.push(await sendHalf(await signedIn(await itself.organization(1), itself)));
  const [oldest, ...others] = sending;
  await t.throwsAsync(async () => await oldest?.());
  for (const finish of others.toReversed())
    t.regex((await finish()).text, /This submits 1 NPI\./);
});

test('a file may take longer to arrive than other requests', async (t) => {
  const visitor = await signedIn(await api.organization(1));
  const finish = await sendHalf(visitor);
  const other = `POST ${SIGN_IN} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n`;
  t.regex(await exchange(api.port, other), /^HTTP\/1\.1 408 /);
  t.regex((await finish()).text, /This submits 1 NPI\./);
});

test('a file is rejected if there are too many, or its organization was closed', async (t) => {
  const client = await api.organization(1);
  const { organizationId, keyId: apiKeyId } = client;
  const visitor = await signedIn(client);
  const finish = await sendHalf(visitor);
  const file = { fileName: 'a.csv', content: Buffer.from(FILE) };
  for (let n = 0; n < MAX_UPLOADS; n += 1)
    await createUpload(api.db, { organizationId, apiKeyId }, file);
  const full = await finish();
  t.is(full.status, 422);
  t.regex(full.text, /role="alert">You have 20 uploads\. Delete one of them first\./);
  const finishClosed = await sendHalf(visitor);
  await closeOrganization(api.db, BY, organizationId);
  t.is((await finishClosed()).path, SIGN_IN);
});

test('a form that takes too long to read is rejected with a sentence', async (t) => {
  const files = new FilePool(1);
  t.teardown(() => files.close());
  const part =
    '--x\r\ncontent-disposition: form-data; name="a"; filename="b"\r\n\r\n\r\n';
  const form = {
    body: new TextEncoder().encode(`${part.repeat(70_000)}--x--\r\n`),
    contentType: 'multipart/form-data; boundary=x',
  };
  const error = await t.throwsAsync(files.receive(form), { instanceOf: CallFailed });
  t.regex(String(error?.text()), /^The file took too long to read\. Split it/);
});

test('an upload whose NPIs are all submitted cannot be stopped', async (t) => {
  const client = await api.organization(1);
  const path = `${UPLOADS}/${await submittedUpload(client)}`;
  const { text } = await (await signedIn(client)).get(path);
  t.regex(text, /All NPIs are submitted/);
  t.regex(text, /<span class="badge in-progress">/);
  t.false(text.includes(`${path}/stop`));
});

test('an upload with parts left cannot be deleted', async (t) => {
  const client = await api.organization(1);
  const path = `${UPLOADS}/${await startedUpload(api.db, client, [NPI])}`;
  const visitor = await signedIn(client);
  const { token } = await visitor.get(path);
  const kept = await visitor.post(`${path}/delete`, { form_token: token });
  t.is(kept.status, 409);
  t.regex(kept.text, /Stop it first/);
});

test('an upload that is deleted while its results are read is an unknown one', async (t) => {
  const client = await api.organization(1);
  const { organizationId } = client;
  const uploadId = await submittedUpload(client);
  const visitor = await signedIn(client);
  const reading = await transaction(api.db, async (tx) => {
    // The page reads the results before the file, so it waits here.
    await tx.execute(sql`lock table requests in access exclusive mode`);
    const reading = visitor.get(`${UPLOADS}/${uploadId}/results.csv`);
    await eventually(async () => {
      const waiting = await run(api.db)`
        select from pg_locks where relation = 'requests'::regclass and not granted`;
      return waiting.length > 0 ? true : null;
    });
    t.true(await deleteUpload(api.db, { organizationId, uploadId }));
    return { reading };
  });
  t.is((await reading.reading).status, 404);
});
