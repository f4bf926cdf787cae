import assert from 'node:assert/strict';
import * as generated from './generated/openapi-generator/index.js';
import { baseUrl, FOUND, keys, NOT_FOUND, UNKNOWN, webhookUrl } from './settings.js';

// openapi-generator, `typescript-fetch`: one class per tag. Errors are thrown with the response.

const accessOf = (accessToken: string) =>
  new generated.Configuration({ basePath: baseUrl, accessToken });
const access = accessOf(keys.usual);
const submits = new generated.SubmitApi(access);
const results = new generated.ResultsApi(access);

async function completed(batchId: string): Promise<generated.Envelope> {
  for (;;) {
    const envelope = await results.getBatch({ batchId, prefer: 'wait=55' });
    if (envelope.batch.status === 'completed') return envelope;
  }
}

async function refusal(
  reply: Promise<unknown>,
): Promise<{ status: number; body: unknown }> {
  const error = await reply.then(
    () => null,
    (thrown: unknown) => thrown,
  );
  assert(error instanceof generated.ResponseError);
  return { status: error.response.status, body: await error.response.json() };
}

const single = await submits.submitSingle({ singleSubmit: { npi: FOUND } });
const alone = await completed(single.batchId);
assert.equal(alone.webhook, null);
assert.equal(alone.customData, null);

const customData = { order: 17, lines: [{ sku: 'a' }] };
const { batchId, requests } = await submits.submitBulk({
  idempotencyKey: crypto.randomUUID(),
  bulkSubmit: {
    npis: [FOUND, NOT_FOUND],
    enrichmentEmailType: 'professional',
    webhook: { url: webhookUrl, mode: 'batch' },
    customData,
  },
});
const both = await completed(batchId);
assert.deepEqual(both.customData, customData);
assert(both.batch.createdAt instanceof Date);
assert.deepEqual(
  both.data.map(({ status, emailType }) => [status, emailType]),
  [
    ['completed', 'professional'],
    ['not_found', null],
  ],
);

const one = await results.getRequest({ requestId: requests[0]?.requestId ?? '' });
assert.equal(one.data[0]?.emailStatus, 'valid');

const nulls = {
  enrichmentEmailType: null,
  webhook: { url: webhookUrl, mode: null },
  customData: null,
};
const spelledOut = await submits.submitSingle({ singleSubmit: { npi: FOUND, ...nulls } });
assert.equal((await completed(spelledOut.batchId)).webhook?.mode, 'real-time');

assert.equal((await new generated.CreditsApi(access).getCredits()).used, 1);

const page = await new generated.DeliveriesApi(access).getDeliveries({
  batchId,
  limit: 1,
});
assert.equal(page.deliveries[0]?.requestId, null);

const ofThePoor = new generated.SubmitApi(accessOf(keys.poor));
const poor = await refusal(ofThePoor.submitSingle({ singleSubmit: { npi: FOUND } }));
assert.equal(poor.status, 402);
assert.equal(generated.InsufficientCreditsProblemFromJSON(poor.body).shortfall, 1);

const unknown = await refusal(results.getBatch({ batchId: UNKNOWN }));
assert.equal(unknown.status, 404);
assert.equal(generated.NotFoundProblemFromJSON(unknown.body).code, 'batch_not_found');

const invalid = await refusal(submits.submitBulk({ bulkSubmit: { npis: [] } }));
assert.equal(invalid.status, 422);
assert.deepEqual(generated.InvalidFromJSON(invalid.body).detail[0]?.loc, [
  'body',
  'npis',
]);

const busy = await refusal(new generated.CreditsApi(accessOf(keys.busy)).getCredits());
assert.equal(busy.status, 429);
assert.equal(generated.RateLimitedProblemFromJSON(busy.body).code, 'rate_limited');
