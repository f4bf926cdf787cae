import test, { type ExecutionContext } from 'ava';
import { sql } from 'drizzle-orm';
import { adjustCredits } from '../../../db/accounts/credits.ts';
import { settle } from '../../../db/requests/settle.ts';
import type { RequestedType } from '../../../db/words.ts';
import { fresh } from '../../support/database.ts';
import { BY, RULES } from '../../support/organization.ts';
import { type ApiClient, startApi } from '../../support/stack.ts';
import { storeEmail } from '../../support/stored.ts';
import { Visitor } from '../../support/visitor.ts';

// Tests the page of usage, its bill, and its files. No worker runs, so the tests settle the requests.

const BUY = 'https://shop.example/credits';
const PROFESSIONAL = '2000000301';
const PERSONAL = '2000000319';
const UNKNOWN = ['2000000327', '2000000335', '2000000343'] as const;

const api = fresh(test, () => startApi({ buyCreditsUrl: BUY }));

test.before(async () => {
  await storeEmail(api.db, { npi: PROFESSIONAL, email: 'a@clinic.example' });
  const personal = { npi: PERSONAL, email: 'b@home.example' } as const;
  await storeEmail(api.db, { ...personal, emailType: 'personal' });
});

async function signedIn({ apiKey }: Pick<ApiClient, 'apiKey'>): Promise<Visitor> {
  const visitor = new Visitor(api.baseUrl);
  await visitor.signIn(apiKey);
  return visitor;
}

async function ask(client: ApiClient, npis: readonly string[], type: RequestedType) {
  const { json } = await client.bulk({ npis, enrichment_email_type: type });
  return json.requests.map(({ request_id }) => request_id);
}

/** Records a grant or an adjustment in the past. */
async function fundAt(client: ApiClient, kind: string, amount: number, time: string) {
  const reference = kind === 'grant' ? 'INV-7' : null;
  await api.db.drizzle.execute(sql`
    insert into ledger_entries (organization_id, kind, amount, reference, created_at)
    values (${client.organizationId}, ${kind}, ${amount}, ${reference}, ${time})`);
}

/** Settles a request in the past, with an email or without. */
async function settleAt(id: string, status: 'completed' | 'not_found', time: string) {
  const isFound = status === 'completed';
  await api.db.drizzle.execute(sql`
    update requests
       set status = ${status}, settled_at = ${time},
           email = ${isFound ? 'c@home.example' : null},
           email_type = ${isFound ? 'personal' : null},
           email_last_validated_at = ${isFound ? time : null}
     where id = ${id}`);
}

/** Returns the texts of the cells of a table's rows, by the id of its heading. */
function tableOf(text: string, id: string): string[][] {
  const [, section = ''] = text.split(`<h2 id="${id}">`);
  const [table = ''] = section.split('</section>');
  return [...table.matchAll(/<tr>(.*?)<\/tr>/gs)].map(([, row = '']) =>
    [...row.matchAll(/<t[hd][^>]*>([^<]*)</g)].map(([, cell = '']) => cell),
  );
}

/** Returns the rows of a table of usage as a CSV file has them: without the total. */
function linesOf(text: string, id: string): string[] {
  return tableOf(text, id)
    .slice(1, -1)
    .map((cells) => cells.join(','));
}

/** Returns the name of a file and its lines without the header. */
async function fileOf(visitor: Visitor, path: string): Promise<string[]> {
  const { text, headers } = await visitor.file(path);
  const name = /filename="([^"]+)"/.exec(headers.get('content-disposition') ?? '')?.[1];
  return [name ?? '', ...text.trim().split('\r\n').slice(1)];
}

/** Asserts that a page of usage and its files have the same numbers. */
async function sameInFiles(t: ExecutionContext, visitor: Visitor, given: string) {
  const { text } = await visitor.get(`/console/usage?month=${given}`);
  const path = (file: string) => `/console/usage/${file}.csv?month=${given}`;
  const month = given || new Date().toISOString().slice(0, 7);
  t.deepEqual(await fileOf(visitor, path('days')), [
    `usage-${month}-by-day.csv`,
    ...linesOf(text, 'days'),
  ]);
  t.deepEqual(await fileOf(visitor, path('types')), [
    `usage-${month}-by-type.csv`,
    ...linesOf(text, 'types'),
  ]);
  const [name, ...entries] = await fileOf(visitor, path('ledger'));
  t.is(name, `ledger-${month}.csv`);
  t.true(entries.every((entry) => entry.startsWith(month)));
  const sumOf = (kind: string) =>
    entries
      .map((entry) => entry.split(','))
      .filter(([, reason]) => reason === kind)
      .reduce((sum, [, , amount]) => sum + Number(amount), 0);
  return { text, grants: sumOf('grant'), charges: sumOf('charge') };
}

test('a month adds up: by day, by type, in the bill, and in its files', async (t) => {
  const client = await api.organization(0);
  await fundAt(client, 'grant', 1200, '2026-01-31T23:59:59.9Z');
  const [first = '', second = ''] = await ask(client, UNKNOWN, 'personal');
  await settleAt(first, 'completed', '2026-01-31T23:59:59.999Z');
  await settleAt(second, 'not_found', '2026-02-01T00:00:00Z');
  const [third = ''] = await ask(client, UNKNOWN.slice(1), 'any');
  await fundAt(client, 'adjustment', -7, '2026-02-02T08:00:00Z');
  await settleAt(third, 'completed', '2026-02-02T09:00:00Z');
  await fundAt(client, 'adjustment', 2, '2026-02-28T23:59:59.9Z');
  const visitor = await signedIn(client);

  const january = await sameInFiles(t, visitor, '2026-01');
  t.deepEqual(tableOf(january.text, 'credits').slice(1), [
    ['', 'Opening balance', '', '0'],
    ['2026-01-31', 'Grant, INV-7', '+1,200', '1,200'],
    ['2026-01-31', 'Charge for 1 email', '−3', '1,197'],
    ['', 'Closing balance', '', '1,197'],
  ]);
  t.deepEqual([january.grants, january.charges], [1200, 3]);

  const february = await sameInFiles(t, visitor, '2026-02');
  t.deepEqual(tableOf(february.text, 'days'), [
    ['Day', 'Found', 'Free repeats', 'Not found', 'Failed', 'Credits'],
    ['2026-02-01', '0', '0', '1', '0', '0'],
    ['2026-02-02', '1', '0', '0', '0', '1'],
    ['Total', '1', '0', '1', '0', '1'],
  ]);
  t.deepEqual(tableOf(february.text, 'types').slice(1), [
    ['any', '1', '0', '0', '0', '1'],
    ['personal', '0', '0', '1', '0', '0'],
    ['Total', '1', '0', '1', '0', '1'],
  ]);
  t.deepEqual(tableOf(february.text, 'credits').slice(1), [
    ['', 'Opening balance', '', '1,197'],
    ['2026-02-02', 'Adjustment by support', '−7', '1,190'],
    ['2026-02-02', 'Charge for 1 email', '−1', '1,189'],
    ['2026-02-28', 'Adjustment by support', '+2', '1,191'],
    ['', 'Closing balance', '', '1,191'],
  ]);
  const sum = '1,197 at the beginning + 0 granted −5 adjusted − 1 charged = 1,191.';
  t.true(february.text.includes(`<p>${sum}</p>`));
  t.deepEqual([february.grants, february.charges], [0, 1]);
});

test('the current month ends with the balance, of which open requests hold a part', async (t) => {
  const client = await api.organization(100);
  await ask(client, [PROFESSIONAL], 'any');
  await ask(client, [PROFESSIONAL], 'any');
  await ask(client, [PERSONAL], 'personal');
  const [missed = '', failed = ''] = await ask(client, UNKNOWN, 'any');
  await settle(api.db, missed, 'finished', 'no_source', RULES);
  await settle(api.db, failed, 'failed', 'deadline', RULES);
  await adjustCredits(api.db, BY, client.organizationId, -7);
  const { text, grants, charges } = await sameInFiles(t, await signedIn(client), '');
  t.deepEqual(tableOf(text, 'days').at(-1), ['Total', '2', '1', '1', '1', '4']);
  t.deepEqual(tableOf(text, 'credits').at(-1), ['', 'Balance now', '', '89']);
  t.regex(text, /The balance includes 1 credit held for running requests\./);
  t.deepEqual([grants, charges], [100, 4]);
  t.is((await client.credits()).balance, 88);
});

test('an empty month says so, and each month links to its neighbors', async (t) => {
  const visitor = await signedIn(await api.organization(10));
  const { text } = await sameInFiles(t, visitor, '2026-01');
  t.regex(text, /<title>Usage in January 2026/);
  t.regex(text, /class="empty">Nothing was looked up in this month\./);
  t.regex(text, /0 at the beginning \+ 0 granted − 0 charged = 0\./);
  t.regex(text, /\?month=2025-12"/);
  t.regex(text, /\?month=2026-02"/);
  t.deepEqual(tableOf(text, 'credits').slice(1), [
    ['', 'Opening balance', '', '0'],
    ['', 'Closing balance', '', '0'],
  ]);
  const format = { month: 'long', timeZone: 'UTC' } as const;
  const heading = `<h1>Usage in ${new Date().toLocaleString('en-US', format)}`;
  for (const wrong of ['', '0000-01', '2026-13', "2026-01'", '2026-1', '202600-01']) {
    const { text } = await visitor.get(`/console/usage?month=${wrong}`);
    t.true(text.includes(heading), wrong);
  }
});

test('usage, bill, and files show nothing of another organization', async (t) => {
  const owner = await api.organization(100);
  await ask(owner, [PROFESSIONAL], 'any');
  await fundAt(owner, 'grant', 50, new Date().toISOString());
  const stranger = await signedIn(await api.organization(5));
  const { text, grants, charges } = await sameInFiles(t, stranger, '');
  t.regex(text, /Nothing was looked up/);
  t.false(text.includes('INV-7'));
  t.deepEqual(tableOf(text, 'credits').at(-1), ['', 'Balance now', '', '5']);
  t.deepEqual([grants, charges], [5, 0]);
  const without = new Visitor(api.baseUrl);
  for (const file of ['', '/days.csv', '/types.csv', '/ledger.csv'])
    t.regex((await without.get(`/console/usage${file}`)).path, /^\/console\/sign-in/);
});

test('the link to buy credits is where credits are short, without data', async (t) => {
  const live = await api.organization(1);
  const visitor = await signedIn(live);
  const link = `<a href="${BUY}">Buy credits</a>`;
  for (const path of ['/console', '/console/usage'])
    t.is((await visitor.get(path)).text.split(link).length, 2, path);
  const form = await visitor.get('/console/submit');
  t.false(form.text.includes(link));
  const fields = { form_token: form.token, idempotency_key: 'a', type: 'personal' };
  const short = await visitor.post('/console/submit', { ...fields, npis: '2000000010' });
  t.is(short.status, 402);
  t.true(short.text.includes(link));
  t.is(short.headers.get('referrer-policy'), 'same-origin');
  const sandbox = await signedIn(await api.sandboxOf(live));
  for (const path of ['/console', '/console/usage']) {
    const { text } = await sandbox.get(path);
    t.false(text.includes(BUY), path);
  }
  const { text } = await sandbox.get('/console/usage');
  t.regex(text, /A sandbox has no bill, because its credits are play money\./);
});
