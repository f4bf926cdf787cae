import test from 'ava';
import { adjustCredits } from '../../db/accounts/credits.ts';
import { newId } from '../../db/connection/ids.ts';
import { settle } from '../../db/requests/settle.ts';
import { fresh } from '../support/database.ts';
import { BY, grant, RULES } from '../support/organization.ts';
import { type ApiClient, startApi } from '../support/stack.ts';
import { storeEmail } from '../support/stored.ts';

// Tests the lists of batches and of credit movements, in which customers find everything without
// ids.

interface LedgerView {
  readonly entries: readonly {
    readonly created_at: string;
    readonly reason: string;
    readonly amount: number;
    readonly request_id: string | null;
    readonly balance_after: number;
  }[];
  readonly next_cursor: string | null;
}

interface BatchesView {
  readonly batches: readonly {
    readonly id: string;
    readonly status: string;
    readonly created_at: string;
  }[];
  readonly next_cursor: string | null;
}

const STORED = '2000000051';
const LEDGER = '/api/v1/credits/ledger';
const BATCHES = '/api/v1/batches';

const api = fresh(test, startApi);

test.before(() =>
  storeEmail(api.db, {
    npi: STORED,
    email: 'avery@example.com',
  }),
);

const ledgerOf = async (client: ApiClient, query = '') =>
  (await client.get<LedgerView>(LEDGER + query)).json;
const batchesOf = async (client: ApiClient, query = '') =>
  (await client.get<BatchesView>(BATCHES + query)).json;

/** Reads all pages of a list, and runs `between` after each. */
async function pagesOf<T extends { readonly next_cursor: string | null }>(
  page: (query: string) => Promise<T>,
  query: string,
  between: () => Promise<unknown>,
): Promise<T[]> {
  const pages = [await page(query)];
  for (let next = pages[0]?.next_cursor; next; next = pages.at(-1)?.next_cursor) {
    await between();
    pages.push(await page(`${query}&cursor=${next}`));
  }
  return pages;
}

test('the credit ledger lists every change, newest first, with reason and balance', async (t) => {
  const client = await api.organization(10);
  const found = (await client.bulk({ npis: [STORED, '1234567893'] })).json.requests;
  const [first = '', second = ''] = found.map(({ request_id }) => request_id);
  await settle(api.db, second, 'failed', 'test', RULES);
  await adjustCredits(api.db, BY, client.organizationId, -4);
  const { entries, next_cursor } = await ledgerOf(client);
  t.is(next_cursor, null);
  t.deepEqual(
    entries.map((entry) => [
      entry.reason,
      entry.amount,
      entry.request_id,
      entry.balance_after,
    ]),
    [
      ['adjustment', -4, null, 5],
      ['release', 1, second, 9],
      ['charge', 1, first, 8],
      ['hold', 1, second, 8],
      ['hold', 1, first, 9],
      ['grant', 10, null, 10],
    ],
  );
  t.deepEqual(await client.credits(), { balance: 5, total: 6, used: 1 });
  for (const { created_at } of entries)
    t.regex(created_at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
});

test("the credit ledger's pages list each entry once, even if new ones are added", async (t) => {
  const client = await api.organization(100);
  await client.bulk({ npis: [STORED, STORED, '1234567893', '1234567894'] });
  const all = (await ledgerOf(client)).entries;
  const pages = await pagesOf(
    (query) => ledgerOf(client, query),
    '?limit=2',
    () => grant(api.db, client.organizationId, 7),
  );
  t.deepEqual(
    pages.flatMap(({ entries }) => entries),
    all,
  );
  t.deepEqual(
    pages.map(({ entries }) => entries.length),
    [2, 2, 1],
  );
  // The grants from above are now in the list, so pages end with grants too.
  const more = (await ledgerOf(client)).entries;
  const singly = await pagesOf(
    (query) => ledgerOf(client, query),
    '?limit=1',
    () => client.bulk({ npis: ['1234567893'] }),
  );
  t.deepEqual(
    singly.flatMap(({ entries }) => entries),
    more,
  );
  const exactly = await ledgerOf(await api.organization(1), '?limit=1');
  t.deepEqual([exactly.entries.length, exactly.next_cursor], [1, null]);
});

test('a cursor of the credit ledger reveals nothing about other organizations', async (t) => {
  const cursors: unknown[] = [];
  for (let n = 0; n < 2; n += 1) {
    const client = await api.organization(10);
    await (await api.organization(10)).bulk({ npis: ['1234567893', '1234567894'] });
    await grant(api.db, client.organizationId, 7);
    cursors.push((await ledgerOf(client, '?limit=1')).next_cursor);
  }
  t.deepEqual(cursors, ['10-f2', '10-f2']);
});

test('the list of batches shows each batch once, newest first, with the data of a poll', async (t) => {
  const client = await api.organization();
  const submitted: string[] = [];
  for (let n = 0; n < 5; n += 1)
    submitted.push((await client.single({ npi: STORED })).json.batch_id);
  const running = (await client.bulk({ npis: ['1234567893', STORED] })).json.batch_id;
  const all = (await batchesOf(client)).batches;
  t.deepEqual(
    all.map(({ id }) => id),
    [running, ...submitted.toReversed()],
  );
  for (const batch of all) t.deepEqual(batch, (await client.batch(batch.id)).batch);
  const pages = await pagesOf(
    (query) => batchesOf(client, query),
    '?limit=2',
    () => client.single({ npi: STORED }),
  );
  t.deepEqual(
    pages.map(({ batches }) => batches),
    [all.slice(0, 2), all.slice(2, 4), all.slice(4)],
  );
  t.is((await batchesOf(client, '?limit=100')).batches.length, 8);
});

test('the list of batches can be filtered by status, time, and NPI', async (t) => {
  const client = await api.organization();
  const submit = async (...npis: string[]) => (await client.bulk({ npis })).json.batch_id;
  const [a, b, c, d] = [
    await submit(STORED),
    await submit('1234567893', STORED, STORED),
    await submit('1234567893'),
    await submit(STORED),
  ];
  const idsOf = async (query: string) => {
    const pages = await pagesOf(
      (text) => batchesOf(client, text),
      `?limit=1${query}`,
      async () => {},
    );
    return pages.flatMap(({ batches }) => batches.map(({ id }) => id));
  };
  t.deepEqual(await idsOf('&status=in-progress'), [c, b]);
  t.deepEqual(await idsOf('&status=completed'), [d, a]);
  t.deepEqual(
    await idsOf(`&npi=${STORED}`),
    [d, b, a],
    'once, however often it asks for it',
  );
  t.deepEqual(await idsOf('&npi=1234567894'), []);
  t.deepEqual(await idsOf(`&npi=${STORED}&status=in-progress`), [b]);
  const times = new Map(
    (await batchesOf(client)).batches.map(({ id, created_at }) => [id, created_at]),
  );
  const laterThan = [b, c, d]
    .filter((id) => (times.get(id) ?? '') >= (times.get(b) ?? ''))
    .toReversed();
  t.deepEqual(await idsOf(`&since=${times.get(b)}`), laterThan, 'then or later');
  const [before] = [a, b, c].filter((id) => (times.get(id) ?? '') < (times.get(b) ?? ''));
  t.deepEqual(
    await idsOf(`&until=${times.get(b)}`),
    before ? [before] : [],
    'before then',
  );
  const zoned = new Date(Date.parse(times.get(c) ?? '') + 3_600_000)
    .toISOString()
    .replace('Z', '%2B01:00');
  t.deepEqual(await idsOf(`&since=${zoned}`), await idsOf(`&since=${times.get(c)}`));
  t.deepEqual(
    await idsOf(`&since=${zoned.replace('%2B', '+')}`),
    await idsOf(`&since=${zoned}`),
  );
  t.deepEqual(
    await idsOf('&since=0000-01-01T00:00:00%2B23:59&until=9999-12-31T23:59:59-23:59'),
    [d, c, b, a],
  );
});

test('all wrong parameters of the batch list or credit ledger are reported together', async (t) => {
  const client = await api.organization();
  const problemsOf = async (path: string) => {
    const response = await client.get<{
      detail: { loc: string[]; msg: string; type: string }[];
    }>(path);
    t.is(response.status, 422, path);
    for (const problem of response.json.detail)
      t.deepEqual(Object.keys(problem), ['loc', 'msg', 'type']);
    return response.json.detail.map(({ loc, type }) => [...loc, type]);
  };
  t.deepEqual(
    await problemsOf(`${BATCHES}?cursor=x&limit=0&npi=x&until=x&since=x&status=x`),
    [
      ['query', 'status', 'literal_error'],
      ['query', 'since', 'datetime_parsing'],
      ['query', 'until', 'datetime_parsing'],
      ['query', 'npi', 'string_pattern_mismatch'],
      ['query', 'limit', 'greater_than_equal'],
      ['query', 'cursor', 'string_pattern_mismatch'],
    ],
  );
  for (const wrong of ['', 'accepted', 'In-Progress', 'completed&status=completed']) {
    t.deepEqual(await problemsOf(`${BATCHES}?status=${wrong}`), [
      ['query', 'status', 'literal_error'],
    ]);
  }
  const backward = 'since=2026-01-07T00:00:00Z&until=2026-01-05T00:00:00Z';
  for (const path of [
    `${BATCHES}?${backward}`,
    `/api/v1/deliveries?${backward}`,
    `${LEDGER}?${backward}`,
    `${LEDGER}?${backward}&format=csv`,
    `/api/v1/usage?${backward}`,
    `/api/v1/usage?${backward}&format=csv`,
  ])
    t.deepEqual(await problemsOf(path), [['query', 'until', 'period_backward']], path);
  const future = '/api/v1/usage?since=2100-01-01T00:00:00Z';
  t.is((await client.get(future)).status, 200, 'a period that has not begun is empty');
  for (const wrong of [
    '',
    'yesterday',
    '1767607200',
    '2026-01-05',
    '2026-01-05T10:00:00',
    '2026-02-30T10:00:00Z',
    '2026-01-05T10:00:61Z',
    '2026-01-05T10:00:00Z&since=2026-01-05T10:00:00Z',
  ]) {
    t.deepEqual(
      await problemsOf(`${BATCHES}?since=${wrong}`),
      [['query', 'since', 'datetime_parsing']],
      wrong,
    );
  }
  for (const wrong of [
    '',
    '123456789',
    '12345678933',
    '%201234567893',
    '１２３４５６７８９３',
    `${STORED}&npi=${STORED}`,
  ]) {
    const found = await problemsOf(
      `${BATCHES}?npi=${encodeURI(wrong).replaceAll('%25', '%')}`,
    );
    t.deepEqual(found, [['query', 'npi', 'string_pattern_mismatch']], wrong);
  }
  const digits = newId('bat').slice('bat_'.length);
  for (const [path, cursors, wrongs] of [
    [
      BATCHES,
      [digits, '0'.repeat(26), `7${'z'.repeat(25)}`],
      [`bat_${digits}`, `${digits}0`, `8${digits.slice(1)}`, '5021-98'],
    ],
    [
      LEDGER,
      [`98-h${digits}`, `0-s${digits}`, '98-f1', `${'9'.repeat(15)}-f${'9'.repeat(9)}`],
      [
        '5021',
        '98-',
        '98-f',
        '98-f0',
        `98-x${digits}`,
        `98-h${digits}0`,
        '-98-f1',
        '98-f1%0A',
        digits,
      ],
    ],
  ] as const) {
    for (const wrong of ['', ...wrongs, `${cursors[0]}&cursor=${cursors[0]}`]) {
      const found = await problemsOf(`${path}?cursor=${wrong}`);
      t.deepEqual(found, [['query', 'cursor', 'string_pattern_mismatch']], wrong);
    }
    // Well-formed cursors that were never issued return some page.
    for (const odd of cursors)
      t.is((await client.get(`${path}?cursor=${odd}`)).status, 200, odd);
  }
});

test('an unknown parameter of a list is rejected, and the error names the known ones', async (t) => {
  const client = await api.organization();
  const query = `limit=0&${Array.from({ length: 2000 }, (_, i) => `x${i}`).join('&')}`;
  for (const [path, names] of [
    [BATCHES, "'status', 'since', 'until', 'npi', 'limit' or 'cursor'"],
    [LEDGER, "'since', 'until', 'limit', 'cursor' or 'format'"],
  ]) {
    const { status, json } = await client.get<{ detail: unknown }>(`${path}?${query}`);
    t.is(status, 422);
    const msg = `Extra inputs are not permitted. Use only ${names}`;
    t.like(json.detail, { 0: { loc: ['query', 'limit'] }, length: 2 });
    t.like(json.detail, { 1: { loc: ['query', 'x0'], msg, type: 'extra_forbidden' } });
  }
  for (const name of ['__proto__', 'toString', '', 'Limit'])
    t.is((await client.get(`${LEDGER}?${name}=1`)).status, 422, name);
  // Operations without query parameters ignore a query.
  t.is((await client.get('/api/v1/credits?x=1')).status, 200);
});
