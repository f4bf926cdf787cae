import assert from 'node:assert/strict';
import createClient from 'openapi-fetch';
import type { components, paths } from './generated/openapi-typescript.js';
import { baseUrl, FOUND, keys, NOT_FOUND, UNKNOWN, webhookUrl } from './settings.js';

// openapi-typescript with openapi-fetch: errors are returned next to data, and distinguished by
// `status`.

type Envelope = components['schemas']['Envelope'];

const clientOf = (apiKey: string) =>
  createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${apiKey}` } });
const client = clientOf(keys.usual);

async function completed(batch_id: string): Promise<Envelope> {
  for (;;) {
    const { data } = await client.GET('/api/v1/batch/{batch_id}', {
      params: { path: { batch_id }, header: { Prefer: 'wait=55' } },
    });
    assert(data);
    if (data.batch.status === 'completed') return data;
  }
}

const single = await client.POST('/api/v1/email', { body: { npi: FOUND } });
assert(single.data);
const alone = await completed(single.data.batch_id);
assert.equal(alone.webhook, null);
assert.equal(alone.custom_data, null);

const custom_data = { order: 17, lines: [{ sku: 'a' }] };
const bulk = await client.POST('/api/v1/email/bulk', {
  params: { header: { 'Idempotency-Key': crypto.randomUUID() } },
  body: {
    npis: [FOUND, NOT_FOUND],
    enrichment_email_type: 'professional',
    webhook: { url: webhookUrl, mode: 'batch' },
    custom_data,
  },
});
assert(bulk.data);
const { batch_id, requests } = bulk.data;
const both = await completed(batch_id);
assert.deepEqual(both.custom_data, custom_data);
assert.deepEqual(
  both.data.map(({ status, email_type }) => [status, email_type]),
  [
    ['completed', 'professional'],
    ['not_found', null],
  ],
);

const request_id = requests[0]?.request_id ?? '';
const one = await client.GET('/api/v1/email/{request_id}', {
  params: { path: { request_id } },
});
assert.equal(one.data?.data[0]?.email_status, 'valid');
const known = one.response.headers.get('etag') ?? '';
const unchanged = await client.GET('/api/v1/email/{request_id}', {
  params: { path: { request_id }, header: { 'If-None-Match': known } },
});
assert.equal(unchanged.response.status, 304);

const nulls = {
  enrichment_email_type: null,
  webhook: { url: webhookUrl, mode: null },
  custom_data: null,
};
const spelledOut = await client.POST('/api/v1/email', { body: { npi: FOUND, ...nulls } });
assert(spelledOut.data);
assert.equal((await completed(spelledOut.data.batch_id)).webhook?.mode, 'real-time');

const credits = await client.GET('/api/v1/credits');
assert.equal(credits.data?.used, 1);

const deliveries = await client.GET('/api/v1/batch/{batch_id}/deliveries', {
  params: { path: { batch_id }, query: { limit: 1 } },
});
assert.equal(deliveries.data?.deliveries[0]?.request_id, null);

const poor = await clientOf(keys.poor).POST('/api/v1/email', { body: { npi: FOUND } });
assert(poor.error && 'status' in poor.error && poor.error.status === 402);
assert.equal(poor.error.shortfall, 1);

const unknown = await client.GET('/api/v1/batch/{batch_id}', {
  params: { path: { batch_id: UNKNOWN } },
});
assert(unknown.error && 'status' in unknown.error && unknown.error.status === 404);
assert.equal(unknown.error.code, 'batch_not_found');

const invalid = await client.POST('/api/v1/email/bulk', { body: { npis: [] } });
assert(invalid.error && !('status' in invalid.error));
assert.deepEqual(invalid.error.detail[0]?.loc, ['body', 'npis']);

const busy = await clientOf(keys.busy).GET('/api/v1/credits');
assert(busy.error && busy.error.status === 429);
assert.equal(busy.error.code, 'rate_limited');
assert(Number(busy.response.headers.get('retry-after')) > 0);
