import test, { type ExecutionContext } from 'ava';
import { sql } from 'drizzle-orm';
import { issueKey } from '../../../db/accounts/keys.ts';
import { settle } from '../../../db/requests/settle.ts';
import { cutPart } from '../../../db/uploads/parts.ts';
import { PUBLIC_REASONS, REASONS, type Reason } from '../../../db/words.ts';
import { fresh } from '../../support/database.ts';
import { BY, joinLookups, RULES } from '../../support/organization.ts';
import { providersIn } from '../../support/providers.ts';
import { type ApiClient, startApi } from '../../support/stack.ts';
import { storeEmail } from '../../support/stored.ts';
import { startedUpload, uploadActivities } from '../../support/uploads.ts';
import { ordinaryNpis } from '../../support/vendors.ts';
import { type Seen, Visitor } from '../../support/visitor.ts';

// Tests why a row has no email, and the button that looks up again what failed. No worker runs, so
// the tests settle the requests.

const BUY = 'https://shop.example/credits';
const api = fresh(test, () => startApi({ buyCreditsUrl: BUY }));

/** The NPIs that no test has taken, so that no test stores an email for those of another. */
const untaken = ordinaryNpis('found', 300);
function take(count: number): string[] {
  return untaken.splice(0, count);
}

async function signedIn({ apiKey }: Pick<ApiClient, 'apiKey'>): Promise<Visitor> {
  const visitor = new Visitor(api.baseUrl);
  await visitor.signIn(apiKey);
  return visitor;
}

interface Row {
  readonly npi: string;
  /** The reason for operators, or null for an email. */
  readonly reason: string | null;
  readonly end?: 'finished' | 'failed';
}

/** Submits a batch whose requests end like this. */
async function endedBatch(client: ApiClient, rows: readonly Row[], body: object = {}) {
  const npis = rows.map(({ npi }) => npi);
  const { json } = await client.bulk({ npis, ...body });
  for (const [n, { reason, end = 'finished' }] of rows.entries()) {
    const id = json.requests[n]?.request_id ?? '';
    await settle(api.db, id, end, reason, RULES);
  }
  return json.batch_id;
}

/** Returns what a page and a file of a batch say about the email of each NPI. */
async function saidOf(t: ExecutionContext, visitor: Visitor, batchId: string) {
  const path = `/console/batches/${batchId}`;
  const { text } = await visitor.get(path);
  const shown = [
    ...text.matchAll(/data-label="NPI">(\d+)<.*?<td data-label="Email">(.*?)<\/td>/gs),
  ];
  const page = new Map(
    shown.map(([, npi = '', cell = '']) => [npi, cell.replaceAll(/<[^>]+>/g, '')]),
  );
  const [head = '', ...lines] = (await visitor.file(`${path}/results.csv`)).text
    .trim()
    .split('\r\n');
  const column = head.split(',').indexOf('reason');
  for (const line of lines) {
    const cells = line.split(',');
    const said = page.get(cells[0] ?? '') ?? '';
    t.is(cells[column], said.includes('@') ? '' : said, cells[0]);
  }
  return { page, text, lines };
}

const WORDS = {
  check_digit: 'not an NPI (wrong check digit)',
  organization_npi: 'NPI of an organization',
  deactivated: 'deactivated NPI',
} as const satisfies Record<(typeof PUBLIC_REASONS)[number], string>;

test('only the public reasons change why a row has no email', async (t) => {
  const client = await api.organization(500);
  const reasons = [...Object.keys(REASONS), 'missing phone', 'deadline (rate_limit)'];
  const npis = take(reasons.length);
  const rows = reasons.map((reason, n) => ({ npi: npis[n] ?? '', reason }));
  const visitor = await signedIn(client);
  const missed = await saidOf(t, visitor, await endedBatch(client, rows));
  const failures = rows.map((row) => ({ ...row, end: 'failed' }) as const);
  const failed = await saidOf(t, visitor, await endedBatch(client, failures));
  for (const { npi, reason } of rows) {
    const word = WORDS[reason as keyof typeof WORDS] ?? 'no email found';
    t.is(missed.page.get(npi), word, reason);
    t.is(
      failed.page.get(npi),
      'not finished in time and not charged: look it up again',
      reason,
    );
  }
  const secrets = Object.keys(REASONS).filter(
    (reason) => reason.includes('_') && !PUBLIC_REASONS.some((one) => one === reason),
  ) as Reason[];
  for (const { text, lines } of [missed, failed])
    for (const secret of secrets)
      t.false(`${text}${lines}`.replaceAll('not_found', '').includes(secret), secret);
});

test('a deactivated NPI has the date of an NPPES file, but not of the registry', async (t) => {
  const client = await api.organization(10);
  const [filed = '', asked = ''] = take(2);
  const { insert } = providersIn(api.db);
  const row = { entityType: 1, deactivatedOn: '2024-02-29' } as const;
  await insert({ ...row, npi: filed }, null);
  await insert({ ...row, npi: asked, origin: 'registry' }, null);
  const ended = [filed, asked].map((npi) => ({ npi, reason: 'deactivated' }));
  const { page } = await saidOf(
    t,
    await signedIn(client),
    await endedBatch(client, ended),
  );
  t.is(page.get(filed), 'NPI deactivated on 2024-02-29');
  t.is(page.get(asked), 'deactivated NPI');
});

/** Replaces ids and times, which differ between any two rows. */
function withoutIds(text: string, npi: string): string {
  return text
    .replaceAll(npi, 'NPI')
    .replaceAll(/(?:bat|req|msg)_\w+/g, 'ID')
    .replaceAll(/20\d\d-\d\d-\d\d[T ][\d:.]+(?:Z| UTC)/g, 'TIME')
    .replaceAll(/value="[\w-]{43}"/g, 'TOKEN');
}

test('a suppressed person reads like a remembered miss, byte by byte', async (t) => {
  const client = await api.organization(10);
  const visitor = await signedIn(client);
  const [suppressed = '', missed = ''] = take(2);
  await api.db.drizzle.execute(sql`
    insert into suppressions (kind, value, origin) values ('npi', ${suppressed}, 'operator')`);
  const pages: string[] = [];
  for (const [npi, reason] of [
    [suppressed, 'suppressed'],
    [missed, 'known_miss'],
  ] as const) {
    const batchId = await endedBatch(client, [{ npi, reason }]);
    const { text, lines } = await saidOf(t, visitor, batchId);
    t.true(text.includes('no email found'));
    pages.push(withoutIds(`${text}${lines}`, npi));
  }
  t.is(pages[0], pages[1]);
});

test('an email that was suppressed later reads like one that was deleted after its time', async (t) => {
  const client = await api.organization(10);
  const visitor = await signedIn(client);
  const pages: string[] = [];
  for (const [n, npi] of take(2).entries()) {
    const email = `later${n}@clinic.example`;
    await storeEmail(api.db, { npi, email });
    const { json } = await client.bulk({ npis: [npi] });
    t.true((await saidOf(t, visitor, json.batch_id)).text.includes(email));
    const withdraw =
      n === 0
        ? sql`insert into suppressions (kind, value, origin) values ('npi', ${npi}, 'operator')`
        : sql`update requests
                 set email = null, email_type = null, email_last_validated_at = null,
                     erased_at = clock_timestamp()
               where npi = ${npi}`;
    await api.db.drizzle.execute(withdraw);
    const { text, lines } = await saidOf(t, visitor, json.batch_id);
    t.true(text.includes('no longer available'));
    t.false(text.includes(email));
    pages.push(withoutIds(`${text}${lines}`, npi));
  }
  t.is(pages[0], pages[1]);
});

const FAILED = { reason: 'deadline', end: 'failed' } as const;
const MISSED = { reason: 'no_source' } as const;

test('what failed in a batch is looked up again once, with its type and name', async (t) => {
  const client = await api.organization(100);
  const visitor = await signedIn(client);
  const [missed = '', ...failed] = take(3);
  const rows = [missed, ...failed].map((npi) =>
    npi === missed ? { npi, ...MISSED } : { npi, ...FAILED },
  );
  const body = {
    enrichment_email_type: 'personal',
    custom_data: { name: 'Cardiologists', secret_order: 17 },
  };
  const batchId = await endedBatch(client, rows, body);
  const path = `/console/batches/${batchId}`;
  const { text, token } = await visitor.get(path);
  t.regex(text, />Look up 2 NPIs again: at most 6 credits<\/button>/);
  const press = () => visitor.post(`${path}/again`, { form_token: token });
  const [first, second] = await Promise.all([press(), press()]);
  t.regex(first.path, /^\/console\/batches\/bat_/);
  t.not(first.path, path);
  t.is(second.path, first.path);
  const list = await client.get<{ readonly batches: unknown[] }>('/api/v1/batches');
  t.is(list.json.batches.length, 2);
  t.regex(first.text, /<h1>Cardiologists/);
  t.true(
    first.text.includes(`This batch looks up again what failed in <a href="${path}">`),
  );
  t.notRegex(first.text, /Custom data|secret_order|Look up/);
  const again = (await client.batch(first.path.split('/').at(-1) ?? '')) as {
    readonly data: readonly { readonly npi: string }[];
  };
  t.deepEqual(
    again.data.map(({ npi }) => npi),
    failed,
  );
  t.is((await client.credits()).balance, 100 - 6);
  const old = await visitor.get(path);
  t.true(old.text.includes(`looked up again in <a href="${first.path}">`));
  t.notRegex(old.text, /<button>Look up/);
});

test('only a completed batch with failures has the button, for a key that may use it', async (t) => {
  const client = await api.organization(1);
  const { organizationId } = client;
  const [one = '', two = ''] = take(2);
  const without = await endedBatch(client, [{ npi: one, ...MISSED }]);
  const open = (await client.bulk({ npis: [one] })).json;
  const visitor = await signedIn(client);
  for (const id of [without, open.batch_id]) {
    const { text, token } = await visitor.get(`/console/batches/${id}`);
    t.notRegex(text, /Look up/);
    const form = { form_token: token };
    const { path } = await visitor.post(`/console/batches/${id}/again`, form);
    t.is(path, `/console/batches/${id}`);
  }
  await settle(api.db, open.requests[0]?.request_id ?? '', 'failed', 'deadline', RULES);
  const { apiKey } = await issueKey(api.db, BY, organizationId, 'r', { role: 'read' });
  const reader = await (await signedIn({ apiKey })).get(
    `/console/batches/${open.batch_id}`,
  );
  t.true(reader.text.includes('look it up again'));
  t.notRegex(reader.text, /<button>Look up/);

  // Another request holds the last credit.
  await client.bulk({ npis: [two] });
  const { token } = await visitor.get(`/console/batches/${open.batch_id}`);
  const path = `/console/batches/${open.batch_id}/again`;
  const short = await visitor.post(path, { form_token: token });
  t.is(short.status, 402);
  t.true(short.text.includes(`<a href="${BUY}">Buy credits</a>`));

  const stranger = await signedIn(await api.organization(5));
  const own = await stranger.get('/console');
  t.is((await stranger.post(path, { form_token: own.token })).status, 404);
});

const UPLOADS = '/console/uploads';

/** Submits all parts of an upload that are left, as its workflow does. */
async function submitAll(uploadId: string): Promise<void> {
  const { submitNextPart } = uploadActivities(api.db);
  while ((await submitNextPart({ uploadId })).kind === 'submitted');
}

/** Settles the open requests of an organization, these NPIs as failed. */
async function settleAll(client: ApiClient, failed: readonly string[]): Promise<void> {
  const ids = await api.openRequests(client.organizationId);
  await joinLookups(api.db, ids);
  for (const id of ids) {
    const [row] = await api.db.drizzle.execute<{ npi: string }>(
      sql`select npi from requests where id = ${id}`,
    );
    const end = failed.includes(row?.npi ?? '') ? 'failed' : 'finished';
    await settle(api.db, id, end, end === 'failed' ? 'deadline' : 'no_source', RULES);
  }
}

/** Returns the numbers at the top of a page. */
function numbersOf({ text }: Seen): Readonly<Record<string, string>> {
  const all = [...text.matchAll(/<dt>([^<]+)<\/dt><dd>(.*?)<\/dd>/g)];
  return Object.fromEntries(
    all.map(([, name = '', value = '']) => [name, value.replaceAll(/<[^>]+>/g, '')]),
  );
}

test('what failed in an upload is looked up again in the same upload', async (t) => {
  const client = await api.organization(200);
  const npis = take(150);
  const failed = npis.slice(0, 75);
  const uploadId = await startedUpload(api.db, client, npis);
  const visitor = await signedIn(client);
  const path = `${UPLOADS}/${uploadId}`;
  const post = async (token: string) =>
    visitor.post(`${path}/again`, { form_token: token });
  const running = await visitor.get(path);
  t.notRegex(running.text, /Look up/);
  await post(running.token);
  await submitAll(uploadId);
  const [first = ''] = await api.openRequests(client.organizationId);
  await settle(api.db, first, 'failed', 'deadline', RULES);
  await post(running.token);
  t.like(numbersOf(await visitor.get(path)), { Done: '1 of 150', Failed: '1' });
  await settleAll(client, failed);

  const done = await visitor.get(path);
  t.regex(done.text, />Look up 75 NPIs again: at most 75 credits<\/button>/);
  t.like(numbersOf(done), { Done: '150 of 150', 'Not found': '75', Failed: '75' });
  const stranger = await signedIn(await api.organization(5));
  const own = await stranger.get('/console');
  const foreign = await stranger.post(`${path}/again`, { form_token: own.token });
  t.is(foreign.status, 404);

  await Promise.all([post(done.token), post(done.token)]);
  const parts = await api.db.drizzle.execute<{ size: number }>(sql`
    select cardinality(npis) as size from upload_parts
     where upload_id = ${uploadId} order by position`);
  t.deepEqual(
    parts.map(({ size }) => size),
    [60, 60, 30, 60, 15],
  );
  await cutPart(api.db, { uploadId, position: 3 }, 10);
  const again = await visitor.get(path);
  t.notRegex(again.text, /Look up/);
  t.like(numbersOf(again), { Done: '75 of 150', 'Not found': '75', Failed: '0' });
  t.true(again.text.includes('value="50"'));

  for (const npi of failed.slice(0, 70))
    await storeEmail(api.db, { npi, email: `p${npi}@clinic.example` });
  await submitAll(uploadId);
  await settleAll(client, failed);
  const end = await visitor.get(path);
  const numbers = { Done: '150 of 150', 'New emails': '70', 'Not found': '75' };
  t.like(numbersOf(end), { ...numbers, Failed: '5', 'Credits used': '70' });
  t.regex(end.text, />Look up 5 NPIs again: at most 5 credits<\/button>/);
  const { text } = await visitor.file(`${path}/results.csv`);
  const count = (word: string) => text.split(word).length - 1;
  t.deepEqual(
    [count('@clinic.example'), count(',failed,'), count(',not_found,')],
    [70, 5, 75],
  );
  t.is(count('not finished in time and not charged: look it up again'), 5);
  t.is(count('no email found'), 75);
});
