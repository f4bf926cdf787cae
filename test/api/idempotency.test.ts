import test from 'ava';
import { issueKey } from '../../db/accounts/keys.ts';
import { fresh, freshDatabase } from '../support/database.ts';
import {
  BY,
  createCaller,
  eventually,
  grant,
  type SubmitResponse,
} from '../support/organization.ts';
import { type ApiClient, startApi } from '../support/stack.ts';

// Tests Idempotency-Keys as a client uses them (DECISIONS.md, Idempotency-Key).

const NPI = '1234567893';
const SINGLE = '/api/v1/email';
const { sql, url: databaseUrl } = freshDatabase(test);
const api = fresh(test, () => startApi({ databaseUrl }));

const send = (
  { call }: Pick<ApiClient, 'call'>,
  body: string,
  key: string,
  path = SINGLE,
) => call<SubmitResponse>('POST', path, body, { 'idempotency-key': key });

async function batchesOf({ organizationId }: ApiClient): Promise<number> {
  const [row] =
    await sql`select count(*)::int as n from batches where organization_id = ${organizationId}`;
  return row?.n;
}

const mismatch = JSON.stringify({
  detail: [
    {
      loc: ['header', 'Idempotency-Key'],
      msg: 'Idempotency-Key was already used with a different body. Use a new key for each submit',
      type: 'idempotency_key_mismatch',
    },
  ],
});

test('a repeated submit gets the same 202, byte for byte, and is charged once', async (t) => {
  const client = await api.organization(10);
  const body = `{"npi":"${NPI}","custom_data":{"a":1}}`;
  const first = await send(client, body, 'k');
  t.is(first.status, 202);
  t.false(first.headers.has('idempotent-replayed'));
  for (let i = 0; i < 3; i += 1) {
    const again = await send(client, body, 'k');
    t.is(again.status, 202);
    t.is(again.text, first.text);
    t.is(again.headers.get('idempotent-replayed'), 'true');
    t.is(again.headers.get('content-type'), first.headers.get('content-type'));
  }
  t.is(await batchesOf(client), 1);
  t.deepEqual(await client.credits(), { balance: 9, total: 10, used: 0 });
});

test('a submit can be repeated with the same JSON in another notation', async (t) => {
  const client = await api.organization(10);
  const url = 'https://example.com/';
  const data =
    '{"n":150,"big":12345678901234567890,"s":"é/","nil":null,"list":[1,{"b":2,"a":1}]}';
  const first = await send(
    client,
    `{"npi":"${NPI}","webhook":{"url":"${url}"},"custom_data":${data}}`,
    'k',
  );
  t.is(first.status, 202);
  const spellings = [
    `\ufeff { "npi" : "\\u0031234567893" , "webhook":{"url":"https:\\/\\/example.com\\/"}, "custom_data":${data} }`,
    `{"custom_data":${data},"webhook":{"mode":"real-time","url":"${url}"},"enrichment_email_type":"any","npi":"${NPI}"}`,
    `{"npi":"${NPI}","enrichment_email_type":null,"unknown":1,"webhook":{"url":"${url}","mode":null},"custom_data":${data}}`,
    `{"npi":"${NPI}","webhook":{"url":"${url}"},"custom_data":
      {"list":[1e0,{"a":1,"b":2.0}],"nil":null,"s":"\\u00e9\\/","big":1234567890123456789e1,"n":1.5e2}}`,
    `{"npi":"x","npi":"${NPI}","webhook":{"url":"${url}"},"custom_data":${data}}`,
  ];
  for (const spelling of spellings) {
    const again = await send(client, spelling, 'k');
    t.is(again.text, first.text, spelling);
    t.is(again.headers.get('idempotent-replayed'), 'true');
  }
});

test('an Idempotency-Key with another body is rejected, however small the difference', async (t) => {
  const client = await api.organization(10);
  const withData = (data: string) => `{"npi":"${NPI}","custom_data":${data}}`;
  const data = '{"n":12345678901234567890,"f":0.1,"e":1e400,"z":0,"a":[1,2],"s":"é"}';
  t.is((await send(client, withData(data), 'k')).status, 202);
  const others = [
    `{"npi":"${NPI}"}`,
    `{"npi":"${NPI}","custom_data":null}`,
    '{"npi":"1234567894"}',
    withData('{}'),
    withData(data.replace('12345678901234567890', '12345678901234567891')),
    withData(data.replace('0.1,', '0.10000000000000000001,')),
    withData(data.replace('1e400', '1e401')),
    withData(data.replace('"z":0', '"z":-0')),
    withData(data.replace('[1,2]', '[2,1]')),
    withData(data.replace('é', 'e\u0301')),
    withData(data.replace('{', '{"__proto__":{},')),
    `${withData(data).slice(0, -1)},"enrichment_email_type":"personal"}`,
    `${withData(data).slice(0, -1)},"webhook":{"url":"https://example.com"}}`,
  ];
  for (const other of others) {
    const response = await send(client, other, 'k');
    t.is(response.status, 422, other);
    t.is(response.text, mismatch);
  }
  t.is(await batchesOf(client), 1);
  const bulk = await api.organization(10);
  t.is(
    (await send(bulk, `{"npis":["${NPI}","1234567894"]}`, 'k', `${SINGLE}/bulk`)).status,
    202,
  );
  t.is(
    (await send(bulk, `{"npis":["1234567894","${NPI}"]}`, 'k', `${SINGLE}/bulk`)).text,
    mismatch,
  );
});

test("an Idempotency-Key applies to one organization and path, and quotes don't matter", async (t) => {
  const [one, two] = [await api.organization(10), await api.organization(10)];
  const body = `{"npi":"${NPI}","npis":["${NPI}"]}`;
  const { apiKey } = await issueKey(api.db, BY, one.organizationId, 'second');
  const responses = [
    await send(one, body, 'k'),
    await send(two, body, 'k'),
    await send(one, body, 'k', `${SINGLE}/bulk`),
    await send(one, body, 'K'),
    await send(one, body, 'k2'),
  ];
  t.deepEqual(
    responses.map(({ status, headers }) => [status, headers.get('idempotent-replayed')]),
    Array(5).fill([202, null]),
  );
  t.is(new Set(responses.map(({ json }) => json.batch_id)).size, 5);
  const first = responses[0]?.text ?? '';
  t.is(
    (await send(createCaller(api.baseUrl, apiKey), body, 'k')).text,
    first,
    'any key of it',
  );
  t.is((await send(one, body, '"k"')).text, first);
  t.is(
    (await send(one, body, 'k', `${SINGLE}?x=1`)).text,
    first,
    'a query is no part of the path',
  );
  const longest = 'x'.repeat(255);
  t.is(
    (await send(one, body, longest)).text,
    (await send(one, body, `"${longest}"`)).text,
  );
});

test('two equal submits without an Idempotency-Key both create a batch', async (t) => {
  const client = await api.organization(10);
  const ids = [await client.single({ npi: NPI }), await client.single({ npi: NPI })].map(
    ({ json }) => json.batch_id,
  );
  t.is(new Set(ids).size, 2);
});

test('if different submits share an Idempotency-Key at the same time, one is accepted', async (t) => {
  const client = await api.organization(1000);
  const bodies = Array.from({ length: 10 }, (_, i) => `{"npi":"123456789${i}"}`);
  const responses = await Promise.all(bodies.map((body) => send(client, body, 'k')));
  t.is(responses.filter(({ status }) => status === 202).length, 1);
  t.is(responses.filter(({ text }) => text === mismatch).length, 9);
  t.is(await batchesOf(client), 1);
});

// Serial, because this test waits until statements wait for a lock, and other tests cause such
// waits too.
test.serial(
  'a repeated submit waits up to 5 s for the first one, then gets a 409',
  async (t) => {
    const client = await api.organization(10);
    const body = `{"npi":"${NPI}"}`;
    // Holds every submit of this organization inside its transaction.
    const release = await holdBalance(client);
    try {
      const first = send(client, body, 'k');
      await lockWaits(1);
      const second = await send(client, body, 'k');
      t.is(second.status, 409);
      t.is((second.json as unknown as { code: string }).code, 'idempotency_in_progress');
      t.regex(second.headers.get('retry-after') ?? '', /^[1-9]$/);
      const third = send(client, body, 'k');
      await lockWaits(2);
      await release();
      t.is((await first).status, 202);
      t.is((await third).text, (await first).text);
      t.is((await third).headers.get('idempotent-replayed'), 'true');
      t.is(await batchesOf(client), 1);
    } finally {
      await release();
    }
  },
);

async function holdBalance({ organizationId }: ApiClient): Promise<() => Promise<void>> {
  const release = Promise.withResolvers<void>();
  const held = Promise.withResolvers<void>();
  const transaction = sql.begin(async (tx) => {
    await tx`select 1 from credit_balances where organization_id = ${organizationId} for update`;
    held.resolve();
    await release.promise;
  });
  await held.promise;
  return async () => {
    release.resolve();
    await transaction;
  };
}

/** Waits until at least `n` statements wait for a lock. */
async function lockWaits(n: number): Promise<void> {
  await eventually(async () => {
    const [row] = await sql`select count(*)::int as n from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock'`;
    return row?.n >= n ? true : null;
  });
}

test('an expired Idempotency-Key can be used for a new submit', async (t) => {
  const client = await api.organization(10);
  const body = `{"npi":"${NPI}"}`;
  const first = await send(client, body, 'k');
  const [kept] =
    await sql`select extract(epoch from expires_at - created_at) as s from idempotency_keys
    where organization_id = ${client.organizationId}`;
  t.is(Number(kept?.s), 86_400);
  const age = (
    by: string,
  ) => sql`update idempotency_keys set expires_at = clock_timestamp() + ${by}::interval
    where organization_id = ${client.organizationId}`;
  await age('5 seconds');
  t.is((await send(client, body, 'k')).text, first.text);
  await age('-1 millisecond');
  const other = await send(client, '{"npi":"1234567894"}', 'k');
  t.is(other.status, 202);
  t.false(other.headers.has('idempotent-replayed'));
  t.is((await send(client, body, 'k')).text, mismatch);
  t.is(await batchesOf(client), 2);
});

test('an Idempotency-Key is stored only if its submit is accepted', async (t) => {
  const client = await api.organization(0);
  t.is((await send(client, '{"npi":5}', 'k')).status, 422);
  t.is((await send(client, '{', 'k')).status, 422);
  t.is((await send(client, `{"npi":"${NPI}"}`, 'k')).status, 402);
  await grant(api.db, client.organizationId, 1);
  const accepted = await send(client, '{"npi":"1234567894"}', 'k');
  t.is(accepted.status, 202);
  t.false(accepted.headers.has('idempotent-replayed'));
});
