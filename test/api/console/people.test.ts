import test from 'ava';
import { sql } from 'drizzle-orm';
import { query } from '../../../db/connection/client.ts';
import { addSuppression } from '../../../db/privacy/suppressions.ts';
import { readReceipts } from '../../../db/requests/receipts.ts';
import { fresh } from '../../support/database.ts';
import { openWorldAt, personRow, writeMember } from '../../support/nppes.ts';
import { BY, eventually, type Organization } from '../../support/organization.ts';
import { providersIn } from '../../support/providers.ts';
import { type ApiClient, startStack } from '../../support/stack.ts';
import { storeEmail } from '../../support/stored.ts';
import { ordinaryNpis } from '../../support/vendors.ts';
import { type Seen, Visitor } from '../../support/visitor.ts';

// Tests whose email it is: the public facts next to an NPI in the pages and files of the console,
// and the receipts of emails.

const stack = fresh(test, () => startStack());
const UPLOADS = '/console/uploads';
/** NPIs that each test takes its own from. */
const NPIS = ordinaryNpis('found', 60, 8_000_000);
const MISSED = ordinaryNpis('not_found', 9, 8_000_000);
const FORMULA = "=HYPERLINK('http://x.example','y')";
const LONG = 'A'.repeat(70);

async function signedIn({ apiKey }: Pick<Organization, 'apiKey'>): Promise<Visitor> {
  const visitor = new Visitor(stack.baseUrl);
  await visitor.signIn(apiKey);
  return visitor;
}

/** Returns a row of NPPES, with names by their short words. */
function named(npi: string, first: string, last: string, credential = 'MD') {
  return personRow(npi, {
    'Provider First Name': first,
    'Provider Last Name (Legal Name)': last,
    'Provider Credential Text': credential,
  });
}

/** Uploads a file, starts it, and returns the lines of its results. */
async function enriched(visitor: Visitor, content: string): Promise<string[]> {
  const { token } = await visitor.get(UPLOADS);
  const draft = await visitor.upload(UPLOADS, token, new File([content], 'a.csv'));
  const column = /name="column" value="(\d+)"/.exec(draft.text)?.[1] ?? '';
  const form = { form_token: draft.token, column, type: 'any' };
  await visitor.post(`${draft.path}/start`, form);
  return await eventually(async () => {
    const { text } = await visitor.get(draft.path);
    if (!text.includes('badge completed')) return null;
    const results = await visitor.file(`${draft.path}/results.csv`);
    return results.text.trim().split('\n');
  });
}

/** Stores emails for NPIs, submits them as one batch, and returns the id of the batch. */
async function storedBatch(client: ApiClient, npis: readonly string[]): Promise<string> {
  for (const npi of npis) await storeEmail(stack.db, { npi, email: `${npi}@x.example` });
  const { json } = await client.bulk({ npis });
  await client.completed(json.batch_id);
  return json.batch_id;
}

/** Returns the lines of the receipts of a page, without their times. */
function receiptsIn({ text }: Seen): string[][] {
  const receipts = text.match(/<summary>Receipt<.*?<\/details>/gs) ?? [];
  return receipts.map((receipt) =>
    [...receipt.matchAll(/<li>(.*?)<\/li>/g)].map(([, line = '']) =>
      line.replace(/ <time.*?<\/time>/, '').replaceAll('&#x27;', "'"),
    ),
  );
}

/** Stores evidence about the stored email of an NPI. Each line is a kind and its other values. */
async function storeEvidence(
  npi: string,
  lines: readonly (readonly [kind: string, source: string, verdict: string])[],
  more: { readonly reason?: string; readonly at?: string } = {},
): Promise<void> {
  const { reason = null, at = '-1 minute' } = more;
  for (const [kind, source, verdict] of lines) {
    await query(stack.db, (tx) =>
      tx.execute(sql`
        insert into email_checks (npi, email, kind, source, verdict, reason, at)
        values (${npi}, ${`${npi}@x.example`}, ${kind}, ${source}, ${verdict}, ${reason},
                date_trunc('second', now()) + ${at}::interval)`),
    );
  }
}

/** Returns the name, place, and other facts in the row of an NPI. */
function shownNextTo(npi: string, { text }: Seen): string | undefined {
  return new RegExp(`${npi}</th><td data-label="Name">(.*?)</td>`, 's').exec(text)?.[1];
}

test('names of an NPPES import stand next to NPIs, in pages and files', async (t) => {
  const [odd = '', html = '', quotes = '', long = ''] = NPIS.splice(0, 4);
  const world = await openWorldAt(t, stack.databaseUrl);
  const rows = [
    named(odd, FORMULA, 'PUBLIC', '@SUM(1)'),
    named(html, '<b>ANA</b>', "O'NEIL & SON"),
    named(long, LONG, LONG),
  ];
  const file = await writeMember(world.folder, 'npidata', '20260914', rows);
  await world.imported(file);
  const name = { firstName: 'JO "JOE", JR;', lastName: 'DOE', credential: 'MD' };
  const joe = { ...name, taxonomy: '207QA0505X' };
  const place = { practiceCity: 'CEDAR VALLEY', practiceState: 'CO' };
  await providersIn(stack.db).person(null, [], { npi: quotes, ...joe, ...place });
  const client = await stack.organization(500);
  const visitor = await signedIn(client);
  const npis = [odd, html, quotes, long];
  const path = `/console/batches/${await storedBatch(client, npis)}`;
  const page = await visitor.get(path);
  const shown = npis.map((npi) => shownNextTo(npi, page));
  const small = '<br><small>Family medicine<br>CEDAR VALLEY, CO</small></div>';
  t.deepEqual(shown, [
    `<div>&#x3D;HYPERLINK(&#x27;http://x.example&#x27;,&#x27;y&#x27;) PUBLIC, @SUM(1)${small}`,
    `<div>&lt;b&gt;ANA&lt;/b&gt; O&#x27;NEIL &amp; SON, MD${small}`,
    `<div>JO &quot;JOE&quot;, JR; DOE, MD${small}`,
    `<div>${LONG} ${LONG}, MD${small}`,
  ]);
  const csv = await visitor.file(`${path}/results.csv`);
  const cells = csv.text.split('\r\n').map((line) => line.split(',false,,')[1]);
  t.deepEqual(cells.slice(1, 5), [
    `"'=HYPERLINK('http://x.example','y') PUBLIC",'@SUM(1),CEDAR VALLEY,CO,Family medicine`,
    "<b>ANA</b> O'NEIL & SON,MD,CEDAR VALLEY,CO,Family medicine",
    '"JO ""JOE"", JR; DOE",MD,CEDAR VALLEY,CO,Family medicine',
    `${LONG} ${LONG},MD,CEDAR VALLEY,CO,Family medicine`,
  ]);

  const content = `npi;npi_name;enriched_npi_name;note\n${npis
    .map((npi) => `${npi};Own;Old;x`)
    .join('\n')}\n12;Own;Old;x\n`;
  const [header, ...lines] = await enriched(visitor, content);
  t.is(
    header,
    'npi;npi_name;note;enriched_npi_name;enriched_npi_credential;enriched_npi_city;' +
      'enriched_npi_state;enriched_npi_specialty;enriched_email;enriched_email_type;' +
      'enriched_email_last_validated;enriched_status;enriched_reason',
  );
  t.deepEqual(
    lines.map((line) => line.replace(/;[^;]*@x\.example.*/, '')),
    [
      `${odd};Own;x;'=HYPERLINK('http://x.example','y') PUBLIC;'@SUM(1);CEDAR VALLEY;CO;Family medicine`,
      `${html};Own;x;<b>ANA</b> O'NEIL & SON;MD;CEDAR VALLEY;CO;Family medicine`,
      `${quotes};Own;x;"JO ""JOE"", JR; DOE";MD;CEDAR VALLEY;CO;Family medicine`,
      `${long};Own;x;${LONG} ${LONG};MD;CEDAR VALLEY;CO;Family medicine`,
      '12;Own;x;;;;;;;;;not_asked;has 2 instead of 10 digits',
    ],
  );
});

test('a draft shows whose NPIs the first rows have', async (t) => {
  const [known = '', unknown = ''] = NPIS.splice(0, 2);
  await providersIn(stack.db).person(null, [], { npi: known, lastName: 'DRAFT' });
  const visitor = await signedIn(await stack.organization(0));
  const { token } = await visitor.get(UPLOADS);
  const file = new File([`npi\n${known}\n${unknown}\n12\n`], 'a.csv');
  const { text } = await visitor.upload(UPLOADS, token, file);
  t.regex(text, /<th scope="col">Whose NPI<\/th><th scope="col">npi<\/th>/);
  t.regex(text, new RegExp(`<tr><td><div>JANE DRAFT<br>.*?</td><td>${known}</td>`));
  t.true(text.includes(`<td></td><td>${unknown}</td>`));
  t.true(text.includes('<td></td><td>12</td>'));
});

test('a row that keeps an email gets a name, and a second upload the same file', async (t) => {
  const [kept = '', fresh = ''] = NPIS.splice(0, 2);
  for (const npi of [kept, fresh]) {
    await providersIn(stack.db).person(null, [], { npi, credential: 'DO' });
    await storeEmail(stack.db, { npi, email: `${npi}@x.example` });
  }
  const visitor = await signedIn(await stack.organization(500));
  const content = `npi,enriched_email,enriched_status\n${kept},k@x.example,completed\n${fresh},,\n`;
  const lines = await enriched(visitor, content);
  t.is(lines[1], `${kept},JANE PUBLIC,DO,,,,k@x.example,,,completed,`);
  t.regex(lines[2] ?? '', new RegExp(`^${fresh},JANE PUBLIC,DO,,,,${fresh}@x.example,`));
  const unfinished = `${lines.join('\n')}\n${NPIS.splice(0, 1)}\n`;
  const again = await enriched(visitor, unfinished);
  t.deepEqual(again.slice(0, 3), lines);
});

test('a row of the NPI Registry shows no name', async (t) => {
  const [npi = ''] = NPIS.splice(0, 1);
  await providersIn(stack.db).person(null, [], { npi, origin: 'registry' });
  const client = await stack.organization(500);
  const visitor = await signedIn(client);
  const path = `/console/batches/${await storedBatch(client, [npi])}`;
  t.is(shownNextTo(npi, await visitor.get(path)), '');
  t.regex((await visitor.file(`${path}/results.csv`)).text, /,false,,,,,,\r\n$/);
});

test('a sandbox shows no real person', async (t) => {
  const [npi = ''] = NPIS.splice(0, 1);
  await providersIn(stack.db).person(null, [], { npi, lastName: 'REAL' });
  const client = await stack.sandboxOf(await stack.organization(0));
  const visitor = await signedIn(client);
  const { json } = await client.bulk({ npis: [npi] });
  const path = `/console/batches/${json.batch_id}`;
  const file = await enriched(visitor, `npi\n${npi}\n`);
  const seen = [await visitor.get(path), await visitor.file(`${path}/results.csv`)];
  const texts = [...seen.map(({ text }) => text), ...file];
  for (const text of texts) t.false(text.includes('REAL'), text);
});

test('a suppressed person looks like a remembered miss', async (t) => {
  const [miss = '', suppressed = ''] = [...MISSED.splice(0, 1), ...NPIS.splice(0, 1)];
  for (const npi of [miss, suppressed])
    await providersIn(stack.db).person(null, [], { npi });
  await storeEmail(stack.db, { npi: suppressed, email: `${suppressed}@x.example` });
  await addSuppression(stack.db, BY, { kind: 'npi', value: suppressed });
  const client = await stack.organization(500);
  const visitor = await signedIn(client);
  await client.completed((await client.single({ npi: miss })).json.batch_id);
  const texts: string[] = [];
  for (const npi of [miss, suppressed]) {
    const { json } = await client.single({ npi });
    await client.completed(json.batch_id);
    const path = `/console/batches/${json.batch_id}`;
    const page = await visitor.get(path);
    const csv = await visitor.file(`${path}/results.csv`);
    const results = await enriched(visitor, `npi\n${npi}\n`);
    const seen = [page.text, csv.text, ...results].join('\n');
    texts.push(
      seen
        .replaceAll(npi, 'NPI')
        .replaceAll(json.batch_id, 'BATCH')
        .replace(/form_token" value="[^"]+/g, '')
        .replace(/<time.*?<\/time>/g, ''),
    );
  }
  const [first, second] = texts;
  t.true(first?.includes('JANE PUBLIC'));
  t.is(first, second);
});

const NAMED_ONCE = 'Named by 1 independent source';
const FORGOTTEN = 'We have no record of its sources';

test('a lookup, its replay, and a shared lookup have a receipt without vendors', async (t) => {
  const [npi = ''] = NPIS.splice(0, 1);
  const clients = [await stack.organization(50), await stack.organization(50)] as const;
  const batchIds = await Promise.all(
    clients.map(async (client) => {
      const { json } = await client.single({ npi });
      await client.completed(json.batch_id);
      return json.batch_id;
    }),
  );
  const repeat = (await clients[0].single({ npi })).json.batch_id;
  const owners = [...clients, clients[0]] as const;
  const pages: Seen[] = [];
  for (const [at, batchId] of [...batchIds, repeat].entries()) {
    const visitor = await signedIn(owners[at] ?? clients[0]);
    pages.push(await visitor.get(`/console/batches/${batchId}`));
  }
  const [first = []] = receiptsIn(pages[0] as Seen);
  t.regex(first[0] ?? '', /^Last validated: a check of the mailbox succeeded$/);
  t.regex(first[1] ?? '', /^Named by \d+ independent sources?$/);
  for (const page of pages) t.deepEqual(receiptsIn(page), [first]);
  await query(stack.db, (tx) =>
    tx.execute(sql`
      insert into email_checks (npi, email, kind, source, verdict, at)
      select npi, email, 'named', 'omega-data', 'valid', clock_timestamp()
        from requests where batch_id = ${repeat}`),
  );
  const again = (await clients[0].single({ npi })).json.batch_id;
  const latest = await (await signedIn(clients[0])).get(`/console/batches/${again}`);
  t.deepEqual(receiptsIn(latest), [first], 'a free repeat shows what was charged');
  const [, , repeated] = pages;
  t.regex(repeated?.text ?? '', /free repeat/);
  const vendors = await query(stack.db, (tx) =>
    tx.execute<{ source: string }>(sql`
      select distinct source from email_checks where npi = ${npi} and source <> 'service'`),
  );
  t.true(vendors.length > 0);
  for (const { source } of vendors)
    for (const { text } of pages) t.false(text.includes(source), source);

  await query(stack.db, (tx) =>
    tx.execute(sql`delete from email_checks where npi = ${npi}`),
  );
  const visitor = await signedIn(clients[0]);
  const later = await visitor.get(`/console/batches/${repeat}`);
  t.deepEqual(receiptsIn(later), [['Last validated', FORGOTTEN]]);
});

test('a receipt counts independent sources before the end of the request', async (t) => {
  const [npi = '', other = ''] = NPIS.splice(0, 2);
  const client = await stack.organization(50);
  await storeEvidence(npi, [
    ['named', 'alpha', 'valid'],
    ['named', 'alpha-personal', 'unknown'],
    ['named', 'beta', 'catch_all'],
    ['named', 'pattern', 'unknown'],
    ['named', 'gamma', 'invalid'],
  ]);
  await storeEvidence(npi, [['verdict', 'service', 'valid']], { reason: 'two_sources' });
  await storeEvidence(npi, [['named', 'delta', 'valid']], { at: '1 hour' });
  // A source whose response was about another person.
  await query(stack.db, (tx) =>
    tx.execute(sql`
      with lookup as (
        insert into lookups (id, npi, requested_type, opened_at, closed_at)
        values (${`lkp_${npi}`}, ${npi}, 'any', now(), now())
        returning id
      )
      insert into email_checks (npi, email, lookup_id, kind, source, verdict, at)
      select ${npi}, ${`${npi}@x.example`}, id, kind, source, 'valid', now() - interval '1 minute'
        from lookup, (values ('named', 'epsilon'), ('identity', 'service')) line (kind, source)`),
  );
  const later = { reason: 'mailbox_ok', at: '1 hour' };
  await storeEvidence(npi, [['verdict', 'service', 'valid']], later);
  const batchId = await storedBatch(client, [npi, other]);
  await query(stack.db, (tx) =>
    tx.execute(sql`update stored_emails set reason = 'mailbox_ok' where npi = ${npi}`),
  );
  const visitor = await signedIn(client);
  const page = await visitor.get(`/console/batches/${batchId}`);
  t.deepEqual(receiptsIn(page), [
    [
      'Last validated: its mail server accepts every address, so only its sources count',
      'Named by 2 independent sources',
      "It has the form of other addresses at the employer's domain",
    ],
    ['Last validated', NAMED_ONCE],
  ]);
});

test('a receipt says what ties an email to the person', async (t) => {
  const { person, practice, newPlace } = providersIn(stack.db);
  const [named = '', listed = '', near = '', far = ''] = NPIS.splice(0, 4);
  const place = newPlace();
  const endpoint = (npi: string) => ({ endpoint: `MAILTO:${npi}@x.example` });
  const name = { firstName: 'MARY ANN', lastName: "O'HARA-LI" };
  await person(null, [], { npi: named, ...name });
  await person(null, [endpoint(listed)], { npi: listed });
  await person(place, [], { npi: near });
  await person(null, [endpoint(far)], { npi: far, origin: 'registry', lastName: 'HARA' });
  const clinic = await practice('CLINIC', place, [{ endpoint: 'front@x.example' }]);
  const client = await stack.organization(50);
  const visitor = await signedIn(client);
  const emails = { [named]: 'm.hara@x.example', [far]: 'hara@x.example' };
  for (const [npi, email] of Object.entries(emails))
    await storeEmail(stack.db, { npi, email });
  const others = [listed, near];
  for (const npi of others)
    await storeEmail(stack.db, { npi, email: `${npi}@x.example` });
  const npis = [named, listed, near, far];
  const shown = async () => {
    const { json } = await client.bulk({ npis });
    await client.completed(json.batch_id);
    const receipts = receiptsIn(await visitor.get(`/console/batches/${json.batch_id}`));
    return receipts.map((lines) => lines.slice(2));
  };
  const atPhone =
    'An organization with the same practice phone has addresses at its domain';
  const ties = [
    ["It contains the person's last name"],
    ['NPPES lists it for this NPI'],
    [atPhone],
    [],
  ];
  t.deepEqual(await shown(), ties);
  await query(stack.db, (tx) =>
    tx.execute(sql`insert into employer_domains (key, domain)
                   values (${`npi:${clinic}`}, 'x.example')`),
  );
  ties[2] = ["Its domain is that of the person's employer", atPhone];
  t.deepEqual(await shown(), ties);
});

test('an email that may no longer be shown has no receipt', async (t) => {
  const [npi = '', kept = ''] = NPIS.splice(0, 2);
  const client = await stack.organization(50);
  const path = `/console/batches/${await storedBatch(client, [npi, kept])}`;
  await addSuppression(stack.db, BY, { kind: 'npi', value: npi });
  const visitor = await signedIn(client);
  t.deepEqual(receiptsIn(await visitor.get(path)), [['Last validated', NAMED_ONCE]]);
  const { organizationId } = await stack.organization(0);
  const batchId = path.split('/').at(-1) ?? '';
  t.is((await readReceipts(stack.db, client.organizationId, batchId)).size, 1);
  t.is((await readReceipts(stack.db, organizationId, batchId)).size, 0);
});

test('a receipt of a sandbox says that the email is invented', async (t) => {
  const client = await stack.sandboxOf(await stack.organization(0));
  const visitor = await signedIn(client);
  const { json } = await client.single({ npi: '2000000010' });
  await client.completed(json.batch_id);
  const { text } = await visitor.get(`/console/batches/${json.batch_id}`);
  t.regex(text, /<summary>Receipt<\/summary><p>This email is invented/);
});

test('a batch of 60 has 60 receipts', async (t) => {
  const npis = ordinaryNpis('found', 60, 9_000_000);
  const client = await stack.organization(100);
  const path = `/console/batches/${await storedBatch(client, npis)}`;
  const receipts = receiptsIn(await (await signedIn(client)).get(path));
  t.deepEqual(receipts, Array(60).fill(['Last validated', NAMED_ONCE]));
});
