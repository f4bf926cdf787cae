import { readFile } from 'node:fs/promises';
import test from 'ava';
import MAGIC from '../../activities/magic-npis.json' with { type: 'json' };
import written from '../../api/openapi/operations.json' with { type: 'json' };
import { ROUTES } from '../../api/routes.ts';
import { suspendOrganization } from '../../db/accounts/organizations.ts';
import { newId } from '../../db/connection/ids.ts';
import { TEST_OUTCOMES } from '../../db/words.ts';
import { fresh } from '../support/database.ts';
import { type ApiClient, startApi } from '../support/stack.ts';

// Tests a test key and a live key of the same customer, with the API and without workers.

const api = fresh(test, startApi);
const live = fresh(test, () => api.organization());
const sandbox = fresh(test, () => api.sandboxOf(live));

const BY = { actor: 'test', reason: 'test' };
const NPI = '2000000010';

/** Submits with a webhook, and returns the ids for paths. */
async function submitted(client: Pick<ApiClient, 'single' | 'get'>) {
  const body = { npi: NPI, webhook: { url: 'https://receiver.example/hook' } };
  const { batch_id, requests } = (await client.single(body)).json;
  const path = `/api/v1/batch/${batch_id}/deliveries`;
  const { deliveries } = (await client.get<{ deliveries: { id: string }[] }>(path)).json;
  return {
    batch_id,
    request_id: requests[0]?.request_id ?? '',
    delivery_id: deliveries[0]?.id ?? '',
  };
}

test('live and test keys never see data of each other, and 404s say which key to use', async (t) => {
  const live = await api.organization();
  const sandbox = await api.sandboxOf(live);
  const stranger = await api.organization();
  const clients = [live, sandbox] as const;
  const [ofLive, ofSandbox] = [await submitted(live), await submitted(sandbox)];
  const unknown = {
    batch_id: newId('bat'),
    request_id: newId('req'),
    delivery_id: newId('msg'),
  };
  const withIds = ROUTES.filter(({ path }) => path.includes('{'));
  t.is(withIds.length, 5);
  for (const { method, path } of withIds) {
    const at = (ids: Record<string, string>) =>
      path.replace(/\{(\w+)\}/g, (_, name: string) => ids[name] ?? '');
    for (const [client, foreign, hint] of [
      [live, ofSandbox, 'It is in your sandbox. Use a key that begins with npe_test_.'],
      [sandbox, ofLive, 'Use a live key, which does not begin with npe_test_.'],
    ] as const) {
      const [asked, nobodys] = [
        await client.call(method, at(foreign)),
        await client.call(method, at(unknown)),
      ];
      const text = nobodys.text.replace(/Check the id[^"]*/, hint);
      t.not(text, nobodys.text);
      t.deepEqual([asked.status, asked.text], [404, text], `${method} ${path}`);
    }
    const nobodys = await stranger.call(method, at(unknown));
    for (const foreign of [ofLive, ofSandbox])
      t.is((await stranger.call(method, at(foreign))).text, nobodys.text, path);
  }
  for (const [client, own, foreign] of [
    [live, ofLive, ofSandbox],
    [sandbox, ofSandbox, ofLive],
  ] as const) {
    t.is((await client.get(`/api/v1/email/${own.request_id}`)).status, 200);
    for (const { id, path, role, method } of ROUTES) {
      if (role === null || method === 'POST' || path.includes('{')) continue;
      const { status, text } = await client.call(method, path);
      t.is(status, 200, id);
      for (const one of Object.values(foreign)) t.false(text.includes(one), id);
    }
  }
  t.deepEqual(await Promise.all(clients.map((client) => client.credits())), [
    { total: 1000, balance: 999, used: 0 },
    { total: 10_000, balance: 9999, used: 0 },
  ]);
});

test('test keys and live keys share neither stored results nor Idempotency-Keys', async (t) => {
  const key = { 'idempotency-key': 'both' };
  const npi = '2000000051';
  const first = await sandbox.single({ npi }, key);
  t.is(first.json.status, 'completed');
  const other = await live.single({ npi }, key);
  t.deepEqual([other.status, other.json.status], [202, 'in-progress']);
  t.is(other.headers.get('idempotent-replayed'), null);
  const [again] = (await sandbox.batch((await sandbox.single({ npi })).json.batch_id))
    .data;
  t.is(again?.replayed, true);
});

test('an unknown Test-Outcome header gets a 422 that lists the known outcomes', async (t) => {
  const { status, text } = await sandbox.single(
    {},
    { 'test-outcome': 'Stored', 'idempotency-key': 'ü' },
  );
  t.is(status, 422);
  const { detail } = JSON.parse(text);
  t.deepEqual(
    detail.map(({ loc }: { loc: string[] }) => loc.join(' ')),
    ['body npi', 'header Idempotency-Key', 'header Test-Outcome'],
  );
  t.is(detail[2].type, 'literal_error');
  for (const outcome of TEST_OUTCOMES) t.true(detail[2].msg.includes(`'${outcome}'`));
});

// Runs alone, because other tests spend the same credits.
test.serial(
  'a Test-Outcome header with a live key gets a 422 and starts no lookup',
  async (t) => {
    const before = await live.credits();
    const { status, text } = await live.single(
      { npi: NPI },
      { 'test-outcome': 'stored' },
    );
    t.is(status, 422);
    const [{ loc, type, msg }] = JSON.parse(text).detail;
    t.deepEqual([loc, type], [['header', 'Test-Outcome'], 'test_outcome_needs_test_key']);
    t.regex(msg, /Remove the header, or use a key that begins with npe_test_/);
    t.deepEqual(await live.credits(), before);
  },
);

test('an outcome that was asked for is not replaced by a replay at submit', async (t) => {
  const npi = '2000000259';
  const stored = { 'test-outcome': 'stored' };
  t.is((await sandbox.single({ npi }, stored)).json.status, 'completed');
  const slow = { 'test-outcome': 'slow' };
  t.is((await sandbox.single({ npi }, slow)).json.status, 'in-progress');
  t.is((await sandbox.single({ npi }, stored)).json.status, 'completed');
});

test('with a test key, a repeated submit must have the same Test-Outcome header', async (t) => {
  const key = { 'idempotency-key': 'test' };
  const [stored, failed] = [{ 'test-outcome': 'stored' }, { 'test-outcome': 'failed' }];
  const first = await sandbox.single({ npi: '2000000044' }, { ...key, ...stored });
  t.is(first.json.status, 'completed');
  const again = await sandbox.single({ npi: '2000000044' }, { ...key, ...stored });
  t.deepEqual(
    [again.text, again.headers.get('idempotent-replayed')],
    [first.text, 'true'],
  );
  for (const headers of [key, { ...key, ...failed }]) {
    t.is((await sandbox.single({ npi: '2000000044' }, headers)).status, 422);
  }
});

test('the test keys of a suspended organization are rejected too', async (t) => {
  const other = await api.organization();
  const its = await api.sandboxOf(other);
  await suspendOrganization(api.db, BY, other.organizationId, true);
  t.is((await its.call('GET', '/api/v1/credits')).status, 403);
  await suspendOrganization(api.db, BY, other.organizationId, false);
  await t.notThrowsAsync(its.credits());
});

test('the documentation lists every magic NPI and every test outcome', async (t) => {
  const page = await readFile(
    new URL('../../api/docs/sandbox.md', import.meta.url),
    'utf8',
  );
  const rows = [...page.matchAll(/^\| `(\w+)` \| [^|]+ \| ([0-9, ]+) \|$/gm)];
  const shown = rows.flatMap(([, outcome, npis = '']) =>
    npis.split(', ').map((npi) => ({ npi, outcome })),
  );
  const byNpi = (a: { npi: string }, b: { npi: string }) => a.npi.localeCompare(b.npi);
  t.deepEqual(
    shown.toSorted(byNpi),
    MAGIC.map(({ npi, outcome }) => ({ npi, outcome })).toSorted(byNpi),
  );
  t.deepEqual(
    rows.map(([, outcome]) => outcome),
    [...TEST_OUTCOMES],
  );
  const { description } = written.parameters['Test-Outcome'];
  for (const outcome of TEST_OUTCOMES)
    t.true(description.includes(`\`${outcome}\``), outcome);
});
