import test from 'ava';
import {
  EnrichmentClient,
  EnrichmentError,
  type ErrorCode,
  enrich,
  type Options,
} from '../../../api/clients/typescript/index.ts';
import { ROUTES } from '../../../api/routes.ts';
import { validNpisFrom } from '../../support/command.ts';
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
  const keyed = ROUTES.filter(({ role }) => role !== null).map(({ id }) => id);
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

test('checkNpis checks a list of any length, and each NPI once', async (t) => {
  const client = await clientOf();
  const npis = validNpisFrom(0, 1001);
  const [first = '', last = ''] = [npis[0], npis.at(-1)];
  const { data, totals, max_credits } = await client.checkNpis([...npis, first, '12']);
  t.deepEqual(
    data.map(({ npi }) => npi),
    [...npis, '12'],
  );
  t.like(data.at(-2), { npi: last, result: 'lookup' });
  t.like(totals, { lookup: 1001, not_an_npi: 1, organization: 0 });
  t.deepEqual(max_credits, { any: 1001, professional: 1001, personal: 3003 });
  const none = await t.throwsAsync(client.checkNpis([]), { instanceOf: EnrichmentError });
  t.is(none?.code, 'too_short');
  const text = client.checkNpis('2000000010' as never);
  t.like(await t.throwsAsync(text), { code: 'npi_invalid' });
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
  const expected: ErrorCode = 'string_pattern_mismatch';
  t.is(error?.code, expected);
  t.regex(error?.message ?? '', /^body\.npi: /);
  // @ts-expect-error The compiler finds a wrong code.
  t.false(error?.code === 'string_pattern_missmatch');
});

test('the code of a 422 is the type of its first fault', async (t) => {
  const client = await clientOf();
  const [npi = ''] = NPIS;
  const options = { idempotencyKey: 'first' };
  await client.submitSingle({ npi }, options);
  const codeOf = async (call: Promise<unknown>) => {
    const error = await t.throwsAsync(call, { instanceOf: EnrichmentError });
    t.is(error?.response?.status, 422);
    return error?.code;
  };
  t.is(await codeOf(client.submitBulk({ npis: [] })), 'too_short');
  const other = client.submitSingle({ npi, custom_data: { n: 2 } }, options);
  t.is(await codeOf(other), 'idempotency_key_mismatch');
  const since = new Date(Number.NaN);
  t.is(await codeOf(client.getUsage({ since })), 'datetime_parsing');
  t.is(await codeOf(client.resendFailedDeliveries('now' as never)), 'datetime_parsing');
});

const ARGUMENTS: readonly (readonly [unknown, unknown, ErrorCode, RegExp])[] = [
  ['2000000010', {}, 'npi_invalid', /^Pass the NPIs as an array of strings, such as /],
  [undefined, {}, 'npi_invalid', /^Pass the NPIs as an array/],
  [[2000000010], {}, 'npi_invalid', /^NPI 1 is not a string of 10 digits\.$/],
  [NPIS, undefined, 'option_invalid', /^Pass an object with apiKey and baseUrl\.$/],
  [NPIS, 'npe_key', 'option_invalid', /^Pass an object/],
  [NPIS, { patienceMs: '9' }, 'option_invalid', /^patienceMs must be a number/],
  [NPIS, { patienceMs: Number.NaN }, 'option_invalid', /^patienceMs must be/],
  [NPIS, { type: null, maxCredits: 1 }, 'option_invalid', /^type must be one of any, /],
  [NPIS, { signal: {} }, 'option_invalid', /^signal must be an AbortSignal\.$/],
  [NPIS, { maxCredits: '9' }, 'max_credits_invalid', /^maxCredits must be a number\.$/],
  [NPIS, { stateFile: 1 }, 'option_invalid', /^stateFile must be the path of a file\.$/],
  [NPIS, { onProgress: 1 }, 'option_invalid', /^onProgress must be a function\.$/],
];
for (const [npis, options, code, words] of ARGUMENTS) {
  const given = JSON.stringify([Array.isArray(npis) ? npis[0] : npis, options]);
  test(`enrich says what is wrong with ${given}`, async (t) => {
    const error = await t.throwsAsync(enrich(npis as string[], options as Options), {
      instanceOf: EnrichmentError,
    });
    t.is(error?.code, code);
    t.regex(error?.message ?? '', words);
  });
}

test('the client says what is wrong with its own arguments', async (t) => {
  const make = () => new EnrichmentClient(undefined as never);
  t.is(t.throws(make, { instanceOf: EnrichmentError })?.code, 'option_invalid');
  const client = await clientOf();
  for (const idempotencyKey of ['zoë', null as never]) {
    const submit = client.submitSingle({ npi: NPIS[0] ?? '' }, { idempotencyKey });
    const error = await t.throwsAsync(submit, { instanceOf: EnrichmentError });
    t.is(error?.code, 'option_invalid');
    t.is(error?.message, 'idempotencyKey must be ASCII text without spaces.');
  }
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
