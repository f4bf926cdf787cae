import test from 'ava';
import { newId } from '../../db/connection/ids.ts';
import { settle } from '../../db/requests/settle.ts';
import { fresh } from '../support/database.ts';
import { RULES } from '../support/organization.ts';
import { type ApiClient, startApi } from '../support/stack.ts';

// Tests that no response reveals the ids of another organization.

const api = fresh(test, startApi);
const ours = fresh(test, () => api.organization());
const theirs = fresh(test, () => api.organization());
let foreign: { readonly batch: string; readonly request: string };

test.before(async () => {
  const { json } = await theirs.bulk({
    npis: Array(60).fill('2000000010'),
    custom_data: { theirs: true },
  });
  foreign = { batch: json.batch_id, request: json.requests[0]?.request_id ?? '' };
});

/** Returns a response without its request id, the date and the counts of the rate limit. */
function shown({
  status,
  headers,
  text,
}: {
  status: number;
  headers: Headers;
  text: string;
}) {
  const varying =
    /^(?:x-request-id|date|ratelimit|x-ratelimit-remaining|x-ratelimit-reset)$/;
  return {
    status,
    text,
    headers: [...headers].filter(([name]) => !varying.test(name)).sort(),
  };
}

test("polls with another organization's ids get the same responses as unknown ids", async (t) => {
  for (const [path, id] of [
    ['batch', foreign.batch],
    ['email', foreign.request],
  ] as const) {
    const unknown = newId(path === 'batch' ? 'bat' : 'req');
    for (const headers of [{}, { prefer: 'wait=1' }, { 'if-none-match': '*' }] as Record<
      string,
      string
    >[]) {
      const asked = await ours.get(`/api/v1/${path}/${id}`, headers);
      t.is(asked.status, 404);
      t.deepEqual(
        shown(asked),
        shown(await ours.get(`/api/v1/${path}/${unknown}`, headers)),
      );
    }
    t.is((await theirs.get(`/api/v1/${path}/${id}`)).status, 200);
  }
});

test("another organization's deliveries get the same responses as unknown ones", async (t) => {
  const list = (batchId: string) => `/api/v1/batch/${batchId}/deliveries`;
  const webhook = { url: 'https://receiver.example/hook' };
  const submitted = async (client: ApiClient) => {
    const { batch_id } = (await client.single({ npi: '2000000010', webhook })).json;
    const { deliveries } = (
      await client.get<{ deliveries: { id: string }[] }>(list(batch_id))
    ).json;
    return { batchId: batch_id, deliveryId: deliveries[0]?.id ?? '' };
  };
  const [own, other] = [await submitted(ours), await submitted(theirs)];
  const unknown = await ours.get(list(newId('bat')));
  t.is(unknown.status, 404);
  t.deepEqual(shown(await ours.get(list(other.batchId))), shown(unknown));
  const resend = (batchId: string, id: string) =>
    ours.call('POST', `${list(batchId)}/${id}/resend`);
  const refused = await resend(newId('bat'), newId('msg'));
  t.is(refused.status, 404);
  t.like(refused.json, { code: 'delivery_not_found' });
  for (const batchId of [other.batchId, own.batchId]) {
    t.deepEqual(shown(await resend(batchId, other.deliveryId)), shown(refused));
    t.deepEqual(
      shown(await ours.get(`${list(batchId)}/${other.deliveryId}`)),
      shown(await ours.get(`${list(newId('bat'))}/${newId('msg')}`)),
    );
  }
});

test('lists never show data of other organizations, and treat their ids as unknown', async (t) => {
  const [own, other] = [await api.organization(7), await api.organization(11)];
  const mine = (await own.single({ npi: '2000000028' })).json.batch_id;
  const other1 = (await other.single({ npi: '2000000036' })).json.batch_id;
  const idsOf = async (client: ApiClient, query = '') => {
    const { json } = await client.get<{ batches: { id: string }[] }>(
      `/api/v1/batches${query}`,
    );
    return json.batches.map(({ id }) => id);
  };
  t.deepEqual([await idsOf(own), await idsOf(other)], [[mine], [other1]]);
  const after = (id: string) => `?cursor=${id.slice('bat_'.length)}`;
  for (const [theirs, unknown] of [
    ['?npi=2000000036', '?npi=2000000044'],
    [after(other1), after(newId('bat'))],
  ] as const) {
    const asked = await own.get(`/api/v1/batches${theirs}`);
    t.deepEqual(shown(asked), shown(await own.get(`/api/v1/batches${unknown}`)));
    t.deepEqual(await idsOf(own, theirs), []);
  }
  const ledger = await own.get<{
    entries: { amount: number; request_id: string }[];
    next_cursor: string;
  }>('/api/v1/credits/ledger?limit=1');
  const cursor = ledger.json.next_cursor;
  const amounts = async (client: ApiClient) => {
    const { json } = await client.get<typeof ledger.json>(
      `/api/v1/credits/ledger?cursor=${cursor}`,
    );
    return json.entries.map(({ amount }) => amount);
  };
  t.deepEqual(await amounts(own), [7]);
  t.false((await amounts(other)).includes(7), "a cursor opens nobody else's ledger");
  const file = await other.get('/api/v1/credits/ledger?format=csv');
  t.true(file.text.includes(other1));
  t.false(file.text.includes(mine));
});

test('usage counts only the requests of the own organization', async (t) => {
  const [own, other] = [await api.organization(7), await api.organization(11)];
  const { requests } = (await own.single({ npi: '2000000028' })).json;
  await settle(api.db, requests[0]?.request_id ?? '', 'failed', 'test', RULES);
  const failed = async (client: ApiClient) => {
    const { json } = await client.get<{ total: { failed: number } }>('/api/v1/usage');
    return json.total.failed;
  };
  t.deepEqual([await failed(own), await failed(other)], [1, 0]);
});
