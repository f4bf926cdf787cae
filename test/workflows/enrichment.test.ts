import test from 'ava';
import { fresh } from '../support/database.ts';
import { startStack } from '../support/stack.ts';

// Tests the main job end to end, as a client sees it over HTTP, for every kind of outcome.

const stack = fresh(test, () =>
  startStack({ lookupTimeoutMs: 20_000, simulatorSpeed: 20 }),
);

test('each request of a bulk submit ends with an email or a refund', async (t) => {
  const client = await stack.organization(100);
  const expected: Record<string, string> = {
    '2000000010': 'completed professional',
    '2000000028': 'completed personal',
    '2000000036': 'completed professional',
    '2000000044': 'not_found null',
    '2000000127': 'completed professional',
    '2000000135': 'not_found null',
    // The vendor did not verify this address, and no verifier is configured here.
    '2000000143': 'not_found null',
    '2000000150': 'not_found null',
    '2000000168': 'not_found null',
    '2000000176': 'not_found null',
    '1234567890': 'not_found null',
    '2000000101': 'failed null',
  };
  const npis = Object.keys(expected);
  const submitted = await client.bulk({ npis, custom_data: { a: 1 } });
  t.is(submitted.status, 202);
  t.is(submitted.json.status, 'in-progress');
  t.deepEqual(
    submitted.json.requests.map((request) => request.npi),
    npis,
  );

  const held = await client.credits();
  t.is(held.total, 100);
  t.true(held.balance <= 100);

  const envelope = await client.completed(submitted.json.batch_id);
  const found = Object.fromEntries(
    envelope.data.map((item) => [item.npi, `${item.status} ${item.email_type}`]),
  );
  t.deepEqual(found, expected);
  t.is(envelope.batch.total, npis.length);
  t.is(envelope.batch.completed_count, npis.length);
  t.is(envelope.webhook, null);
  t.deepEqual(envelope.custom_data, { a: 1 });
  t.deepEqual(envelope.usage, { credits_used: 4, balance: 96 });
  t.deepEqual(await client.credits(), { balance: 96, total: 100, used: 4 });
  for (const item of envelope.data) {
    t.is(item.email_status, item.status === 'completed' ? 'valid' : null);
    t.is(item.email === null, item.status !== 'completed');
    t.is(item.email_last_validated === null, item.status !== 'completed');
    t.false(item.replayed);
  }
});
