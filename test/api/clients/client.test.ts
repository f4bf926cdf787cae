import test from 'ava';
import {
  EnrichmentClient,
  EnrichmentError,
  type ErrorCode,
} from '../../../api/clients/typescript/index.ts';
import { ROUTES } from '../../../api/routes.ts';
import { npisFrom, startGateway } from '../../support/customer.ts';
import { fresh } from '../../support/database.ts';
import { eventually } from '../../support/organization.ts';
import { startStack } from '../../support/stack.ts';

// Tests the operations of the client with the whole service.

const stack = fresh(test, () => startStack({ webhookScheduleMs: [0, 100] }));
const NPIS = npisFrom(0, 60);

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

async function sandboxClient(): Promise<EnrichmentClient> {
  const { apiKey } = await stack.sandboxOf(await stack.organization());
  return new EnrichmentClient({ apiKey, baseUrl: stack.baseUrl });
}

async function clientOf(baseUrl = stack.baseUrl) {
  const { apiKey } = await stack.organization(1000);
  return new EnrichmentClient({ apiKey, baseUrl });
}

test('the client has a method for each operation that needs an API key', (t) => {
  const keyed = ROUTES.filter(({ scope }) => scope === 'keyed').map(({ id }) => id);
  const methods = Object.getOwnPropertyNames(EnrichmentClient.prototype);
  t.deepEqual(methods.filter((name) => name !== 'constructor').sort(), keyed.sort());
});

test('the client submits, polls, and lists batches, credits, and the whole ledger', async (t) => {
  const client = await sandboxClient();
  const credits = await client.getCredits();
  const [npi = ''] = NPIS;
  const since = new Date(Date.now() - 60_000);
  const options = { idempotencyKey: 'bulk-1', testOutcome: 'not_found' } as const;
  const bulk = await client.submitBulk({ npis: NPIS }, options);
  t.deepEqual(await client.submitBulk({ npis: NPIS }, options), bulk);
  const submit = { npi, custom_data: { order: 17 } };
  const single = await client.submitSingle(submit, { testOutcome: 'not_found' });
  await eventually(async () => {
    const { batch } = await client.getBatch(bulk.batch_id, { waitSeconds: 55 });
    return batch.status === 'completed' || null;
  });
  const [request] = single.requests;
  const { data, custom_data } = await client.getRequest(request?.request_id ?? '', {
    waitSeconds: 55,
  });
  t.like(data[0], { npi, status: 'not_found' });
  t.deepEqual(custom_data, { order: 17 });
  t.deepEqual(await client.getCredits(), credits);

  const batches = await all(client.getBatches());
  t.deepEqual(
    batches.map(({ id }) => id),
    [single.batch_id, bulk.batch_id],
  );
  const none = client.getBatches({ status: 'completed', since, until: since, npi });
  t.deepEqual(await all(none), []);
  // Each request has a hold and a release, so the ledger has two pages.
  const ledger = await all(client.getLedger());
  t.is(ledger.filter(({ reason }) => reason === 'hold').length, 61);
  t.is(ledger.filter(({ reason }) => reason === 'release').length, 61);
  t.deepEqual(await all(client.getLedger({ since, until: since })), []);
  const { usage, total } = await client.getUsage({ since, by: 'type' });
  t.like(usage, [{ requested_type: 'any', not_found: 61 }]);
  t.is(total.not_found, 61);
});

test('the client lists and resends webhook deliveries', async (t) => {
  const client = await clientOf();
  const url = `${stack.receiver.url}/client`;
  const submit = { npis: NPIS.slice(0, 2), webhook: { url, mode: 'batch' as const } };
  const { batch_id: batchId } = await client.submitBulk(submit);
  const deliveries = () => all(client.getDeliveries(batchId));
  const delivered = () =>
    eventually(async () => {
      const [one] = await deliveries();
      return one?.status === 'delivered' ? one : null;
    });
  const { id } = await delivered();
  t.is((await client.resendDelivery(batchId, id)).status, 'pending');
  await delivered();
  const { attempts } = await client.getDelivery(batchId, id);
  t.deepEqual(
    attempts.map(({ n, status_code }) => [n, status_code]),
    [
      [1, 200],
      [2, 200],
    ],
  );
  t.deepEqual((await client.getDelivery(batchId, id, 2)).attempts, attempts.slice(0, 1));
});

test('the client does not retry a rejected resend', async (t) => {
  const rejection = {
    status: 409,
    headers: { 'content-type': 'application/problem+json' },
    body: JSON.stringify({ code: 'delivery_pending', detail: 'It is being sent.' }),
  };
  const { url, passed } = await startGateway(t, stack.baseUrl, () => rejection);
  const client = await clientOf(url);
  const error = await t.throwsAsync(client.resendDelivery('bat_1', 'msg_1'), {
    instanceOf: EnrichmentError,
  });
  t.is(error?.code, 'delivery_pending');
  t.is(passed.length, 1);
});

test('an error of the client has one of the documented codes', async (t) => {
  const client = await clientOf();
  const error = await t.throwsAsync(client.submitSingle({ npi: '123' }), {
    instanceOf: EnrichmentError,
  });
  const expected: ErrorCode = 'request_invalid';
  t.is(error?.code, expected);
  t.regex(error?.message ?? '', /^body\.npi: /);
  // @ts-expect-error The compiler finds a wrong code.
  t.false(error?.code === 'request_unvalid');
});

const ADDRESSES: readonly (readonly [string | undefined, RegExp])[] = [
  [undefined, /is missing\. Pass it as baseUrl\.$/],
  ['', /is missing/],
  ['api.example.com', /is not a URL\. Use one that begins with https:\/\/\.$/],
  ['localhost:8080', /is not a URL/],
  ['ftp://127.0.0.1', /is not a URL/],
  ['https://', /is not a URL/],
  ['http://api.example.com', /would send your API key unencrypted/],
  ['HTTP://10.0.0.1:8080', /unencrypted/],
  ['http://127.0.0.1.example.com', /unencrypted/],
  ['http://127.0.0.1@api.example.com', /unencrypted/],
  ['http://localhost.example.com', /unencrypted/],
  ['https://api.example.com/api/v1', /contains \/api\. Leave out that part/],
  ['https://api.example.com/docs/', /contains \/docs\. Leave out that part/],
  ['https://user:secret@api.example.com', /contains a \?, a #, or an @/],
  ['https://api.example.com?x=1', /Leave out that part/],
];
for (const [baseUrl, problem] of ADDRESSES) {
  test(`the client rejects the base URL ${baseUrl ?? 'undefined'} at once`, (t) => {
    const make = () => new EnrichmentClient({ apiKey: 'npe_key', baseUrl });
    const error = t.throws(make, { instanceOf: EnrichmentError });
    t.is(error?.code, 'base_url_unusable');
    t.regex(error?.message ?? '', problem);
  });
}

test('the client rejects a missing API key at once', (t) => {
  const make = () => new EnrichmentClient({ apiKey: undefined, baseUrl: stack.baseUrl });
  const error = t.throws(make, { instanceOf: EnrichmentError });
  t.is(error?.code, 'api_key_unusable');
  t.is(error?.message, 'The API key is missing. Pass it as apiKey.');
});
