import test from 'ava';
import { sql } from 'drizzle-orm';
import { newId } from '../../../db/connection/ids.ts';
import { fresh } from '../../support/database.ts';
import { type ApiClient, startApi } from '../../support/stack.ts';

// Tests the list of an organization's webhook deliveries, and the resend of all failed ones
// (api/docs/webhooks.md, Deliveries and resends).

interface PageView {
  readonly deliveries: readonly {
    readonly id: string;
    readonly batch_id: string;
    readonly npi: string | null;
    readonly status: string;
    readonly created_at: string;
  }[];
  readonly next_cursor: string | null;
}

const NPIS = ['1000000010', '1000000011', '1000000012'];
const WEBHOOK = { url: 'https://receiver.example/hook' };
const LONG_AGO = '2020-01-01T00:00:00Z';

/** An API without workers: deliveries stay as the submit left them. */
const api = fresh(test, startApi);

const listOf = async (client: ApiClient, query = '') =>
  (await client.get<PageView>(`/api/v1/deliveries${query}`)).json;
const resend = (client: ApiClient, since: string) =>
  client.call<{ resent: number; more: boolean }>(
    'POST',
    '/api/v1/deliveries/resend',
    JSON.stringify({ failed_since: since }),
  );

/** Marks deliveries as failed at a time. */
async function fail(ids: readonly string[], at: string): Promise<void> {
  await api.db.drizzle.execute(sql`
    update webhook_deliveries set state = 'failed', decided_at = ${at}::timestamptz, due_at = null
     where id = any(${sql.param(ids)}::text[])`);
}

test('the list has the deliveries of all batches once, newest submit first', async (t) => {
  const client = await api.organization();
  const batches: string[] = [];
  for (const npi of NPIS) {
    const { json } = await client.bulk({ npis: [npi, npi], webhook: WEBHOOK });
    batches.push(json.batch_id);
  }
  const { deliveries, next_cursor } = await listOf(client);
  t.is(next_cursor, null);
  t.deepEqual(
    deliveries.map(({ batch_id, npi }) => [batch_id, npi]),
    [2, 2, 1, 1, 0, 0].map((n) => [batches[n], NPIS[n]]),
  );
  const [newest] = deliveries;
  const path = `/api/v1/batch/${newest?.batch_id}/deliveries/${newest?.id}`;
  t.deepEqual((await client.get(path)).json, newest);
  const seen: string[] = [];
  let query = '?limit=4';
  for (;;) {
    const page = await listOf(client, query);
    seen.push(...page.deliveries.map(({ id }) => id));
    await client.single({ npi: '1000000013', webhook: WEBHOOK });
    if (page.next_cursor === null) break;
    query = `?limit=4&cursor=${page.next_cursor}`;
  }
  t.deepEqual(
    seen,
    deliveries.map(({ id }) => id),
  );
});

test('the list of all deliveries can be filtered by status and time of the submit', async (t) => {
  const client = await api.organization();
  const { json } = await client.bulk({ npis: NPIS, webhook: WEBHOOK });
  const [failed, ...others] = (await listOf(client)).deliveries;
  await fail([failed?.id ?? ''], LONG_AGO);
  const idsOf = async (query: string) =>
    (await listOf(client, query)).deliveries.map(({ id }) => id);
  t.deepEqual(await idsOf('?status=failed'), [failed?.id]);
  t.deepEqual(
    await idsOf('?status=pending'),
    others.map(({ id }) => id),
  );
  t.deepEqual(await idsOf('?status=delivered'), []);
  const at = failed?.created_at ?? '';
  t.is((await idsOf(`?since=${at}`)).length, 3);
  t.deepEqual(await idsOf(`?until=${at}`), []);
  t.true(json.batch_id.startsWith('bat_'));
});

test('a resend of all failed deliveries leaves out earlier failures and pending ones', async (t) => {
  const client = await api.organization();
  await client.bulk({ npis: NPIS, webhook: WEBHOOK });
  const [early = '', late = '', pending] = (await listOf(client)).deliveries.map(
    ({ id }) => id,
  );
  await fail([early], '2026-01-05T09:59:59.999Z');
  await fail([late], '2026-01-05T10:00:00Z');
  const since = '2026-01-05T11:00:00+01:00';
  const response = await resend(client, since);
  t.deepEqual([response.status, response.json], [202, { resent: 1, more: false }]);
  t.deepEqual((await resend(client, since)).json, { resent: 0, more: false });
  const states = new Map(
    (await listOf(client)).deliveries.map((one) => [one.id, one.status]),
  );
  t.deepEqual(
    [early, late, pending ?? ''].map((id) => states.get(id)),
    ['failed', 'pending', 'pending'],
  );
});

test('a resend of all failed deliveries counts toward the hourly limit of each', async (t) => {
  const client = await api.organization();
  await client.bulk({ npis: NPIS.slice(0, 2), webhook: WEBHOOK });
  const [one = '', other = ''] = (await listOf(client)).deliveries.map(({ id }) => id);
  for (let n = 0; n < 10; n += 1) {
    await fail([one], LONG_AGO);
    t.is((await resend(client, LONG_AGO)).json.resent, 1);
  }
  await fail([one, other], LONG_AGO);
  t.deepEqual((await resend(client, LONG_AGO)).json, { resent: 1, more: false });
  const { deliveries } = await listOf(client, '?status=failed');
  t.deepEqual(
    deliveries.map(({ id }) => id),
    [one],
  );
});

test('a resend of all failed deliveries says when there are more than 500', async (t) => {
  const client = await api.organization();
  const npis = Array.from({ length: 60 }, () => NPIS[0]);
  for (let n = 0; n < 9; n += 1) await client.bulk({ npis, webhook: WEBHOOK });
  await api.db.drizzle.execute(sql`
    update webhook_deliveries set state = 'failed', decided_at = created_at
     where organization_id = ${client.organizationId}`);
  t.deepEqual((await resend(client, LONG_AGO)).json, { resent: 500, more: true });
  t.deepEqual((await resend(client, LONG_AGO)).json, { resent: 40, more: false });
});

test("another organization's deliveries are neither listed nor resent", async (t) => {
  const owner = await api.organization();
  const stranger = await api.organization();
  const sandbox = await api.sandboxOf(owner);
  await owner.bulk({ npis: NPIS, webhook: WEBHOOK });
  const { deliveries } = await listOf(owner);
  await fail(
    deliveries.map(({ id }) => id),
    LONG_AGO,
  );
  const cursor = deliveries[0]?.id.slice('msg_'.length);
  const unknown = newId('msg').slice('msg_'.length);
  for (const client of [stranger, sandbox]) {
    const empty = { deliveries: [], next_cursor: null };
    t.deepEqual(await listOf(client), empty);
    for (const query of [`?cursor=${cursor}`, `?cursor=${unknown}`, '?status=failed'])
      t.deepEqual(await listOf(client, query), empty);
    t.deepEqual((await resend(client, LONG_AGO)).json, { resent: 0, more: false });
  }
  t.is((await listOf(owner, '?status=failed')).deliveries.length, 3);
});
