import assert from 'node:assert/strict';
import { createClient, createConfig } from './generated/hey-api/client/index.js';
import * as sdk from './generated/hey-api/index.js';
import { baseUrl, FOUND, keys, NOT_FOUND, UNKNOWN, webhookUrl } from './settings.js';

// @hey-api/openapi-ts: one function per operation. Errors are returned next to data, and
// distinguished by `status`.

const clientOf = (auth: string) => createClient(createConfig({ baseUrl, auth }));
const client = clientOf(keys.usual);

async function completed(batch_id: string): Promise<sdk.Envelope> {
  for (;;) {
    const { data } = await sdk.getBatch({
      client,
      path: { batch_id },
      headers: { Prefer: 'wait=55' },
    });
    assert(data);
    if (data.batch.status === 'completed') return data;
  }
}

/** Returns the 202 of a submit, or fails. */
function accepted(submitted: sdk.SubmitSingleResponse | undefined): sdk.Accepted {
  assert(submitted && 'batch_id' in submitted);
  return submitted;
}

/** Returns the results of a submit: at once if the response is a 200, and by polls after a 202. */
async function resultsOf(submitted: sdk.SubmitSingleResponse): Promise<sdk.Envelope> {
  return 'data' in submitted ? submitted : await completed(submitted.batch_id);
}

const single = await sdk.submitSingle({ client, body: { npi: FOUND } });
const alone = await resultsOf(accepted(single.data));
assert.equal(alone.webhook, null);
assert.equal(alone.custom_data, null);

const Prefer = 'wait=55, return=representation';
const oneCall = await sdk.submitSingle({
  client,
  headers: { Prefer },
  body: { npi: FOUND },
});
assert(oneCall.data && 'data' in oneCall.data);
assert.equal((await resultsOf(oneCall.data)).data[0]?.replayed, true);
const bulkCall = await sdk.submitBulk({
  client,
  headers: { Prefer },
  body: { npis: [FOUND] },
});
assert(bulkCall.data && 'data' in bulkCall.data);
assert.equal(bulkCall.data.data[0]?.email_status, 'valid');

const custom_data = { order: 17, lines: [{ sku: 'a' }] };
const bulk = await sdk.submitBulk({
  client,
  headers: { 'Idempotency-Key': crypto.randomUUID() },
  body: {
    npis: [FOUND, NOT_FOUND],
    enrichment_email_type: 'professional',
    webhook: { url: webhookUrl, mode: 'batch' },
    custom_data,
  },
});
const { batch_id, requests } = accepted(bulk.data);
const both = await completed(batch_id);
assert.deepEqual(both.custom_data, custom_data);
assert.deepEqual(
  both.data.map(({ status, email_type }) => [status, email_type]),
  [
    ['completed', 'professional'],
    ['not_found', null],
  ],
);

const one = await sdk.getRequest({
  client,
  path: { request_id: requests[0]?.request_id ?? '' },
});
assert.equal(one.data?.data[0]?.email_status, 'valid');

const nulls = {
  enrichment_email_type: null,
  webhook: { url: webhookUrl, mode: null },
  custom_data: null,
};
const spelledOut = await sdk.submitSingle({ client, body: { npi: FOUND, ...nulls } });
const withMode = await resultsOf(accepted(spelledOut.data));
assert.equal(withMode.webhook?.mode, 'real-time');

const credits = await sdk.getCredits({ client });
assert.equal(credits.data?.used, 1);

const deliveries = await sdk.getDeliveries({
  client,
  path: { batch_id },
  query: { limit: 1 },
});
assert.equal(deliveries.data?.deliveries[0]?.request_id, null);

const poor = await sdk.submitSingle({
  client: clientOf(keys.poor),
  body: { npi: FOUND },
});
assert(poor.error && 'status' in poor.error && poor.error.status === 402);
assert.equal(poor.error.shortfall, 1);

const unknown = await sdk.getBatch({ client, path: { batch_id: UNKNOWN } });
assert(unknown.error && 'status' in unknown.error && unknown.error.status === 404);
assert.equal(unknown.error.code, 'batch_not_found');

const invalid = await sdk.submitBulk({ client, body: { npis: [] } });
assert(invalid.error && !('status' in invalid.error));
assert.deepEqual(invalid.error.detail[0]?.loc, ['body', 'npis']);

const busy = await sdk.getCredits({ client: clientOf(keys.busy) });
assert(busy.error && busy.error.status === 429);
assert.equal(busy.error.code, 'rate_limited');
assert(Number(busy.response?.headers.get('retry-after')) > 0);
