import test from 'ava';
import { eq, sql } from 'drizzle-orm';
import { issueKey, revokeKey } from '../../../db/accounts/keys.ts';
import { takePlaces } from '../../../db/accounts/limits.ts';
import { query } from '../../../db/connection/client.ts';
import { settle } from '../../../db/requests/settle.ts';
import { uploads } from '../../../db/schema.ts';
import { cutPart } from '../../../db/uploads/parts.ts';
import {
  continueUpload,
  listUploadBatches,
  listUploads,
  startUpload as startDraft,
  stopUpload,
} from '../../../db/uploads/uploads.ts';
import { startUpload } from '../../../workflows/starts.ts';
import { fresh, openTestDatabase, travel } from '../../support/database.ts';
import { startMailServer } from '../../support/mail-server.ts';
import {
  BY,
  eventually,
  grant,
  type Organization,
  RULES,
  WORKER_RULES,
} from '../../support/organization.ts';
import { providersIn } from '../../support/providers.ts';
import { SITE_SETTINGS } from '../../support/site.ts';
import { type ApiClient, startApi, startStack } from '../../support/stack.ts';
import { storeEmail } from '../../support/stored.ts';
import { startedUpload, uploadActivities, uploadInParts } from '../../support/uploads.ts';
import { ordinaryNpis } from '../../support/vendors.ts';
import { type Seen, Visitor } from '../../support/visitor.ts';
import { workbookOf } from '../../support/workbook.ts';

// Tests uploads of the console by HTTP, as a browser without scripts sends them.

const RATE_WINDOW_MS = 3_600_000;
const BUY = 'https://shop.example/credits';
const mails = fresh(test, startMailServer);
const FROM = 'uploads@service.example';
const stack = fresh(test, () => {
  const mail = { smtpUrl: mails.url, smtpFrom: FROM, siteUrl: SITE_SETTINGS.PUBLIC_URL };
  return startStack({ rateWindowMs: RATE_WINDOW_MS, buyCreditsUrl: BUY, ...mail });
});
const UPLOADS = '/console/uploads';
const FOUND = '2000000010';
const NOT_FOUND = '2000000044';
const FAILED = '2000000234';
const MINUTE = 60_000;
const TWO_PARTS = { parts: 2, size: 1 };

async function signedIn({ apiKey }: Pick<ApiClient, 'apiKey'>): Promise<Visitor> {
  const visitor = new Visitor(stack.baseUrl);
  await visitor.signIn(apiKey);
  return visitor;
}

/** Uploads a file, and returns the page of its draft. */
async function upload(visitor: Visitor, content: BlobPart, name = 'contacts.csv') {
  const { token } = await visitor.get(UPLOADS);
  return await visitor.upload(UPLOADS, token, new File([content], name));
}

/** Returns the lines about the rows of a draft, and checks that they add up. */
function summaryIn({ text }: Seen): Record<string, number> {
  const lines = text.matchAll(/<th scope="row">([^<]+)<\/th><td class="n">([^<]+)</g);
  const counts = [...lines].map(
    ([, label = '', count]) => [label, Number(count)] as const,
  );
  const sum = counts.slice(0, -1).reduce((total, [, count]) => total + count, 0);
  if (sum !== counts.at(-1)?.[1]) throw new Error(`the lines do not add up: ${counts}`);
  return Object.fromEntries(counts);
}

/** Starts a draft with the sheet and the column that were guessed or chosen. */
async function start(
  visitor: Visitor,
  draft: Seen,
  given: Readonly<Record<string, string>> = {},
): Promise<Seen> {
  const column = /name="column" value="(\d+)"/.exec(draft.text)?.[1] ?? '';
  const sheet = /name="sheet" value="(\w+)"/.exec(draft.text)?.[1] ?? '';
  const fields = { form_token: draft.token, column, sheet, type: 'any', ...given };
  return await visitor.post(`${draft.path.split('?')[0]}/start`, fields);
}

/** Waits until the page of an upload has this status. */
async function until(visitor: Visitor, path: string, status: string): Promise<Seen> {
  return await eventually(async () => {
    const seen = await visitor.get(path);
    return seen.text.includes(`<span class="badge ${status}">`) ? seen : null;
  });
}

/**
 * Starts an upload, by default of two parts, with a key that has one request left in this hour. Returns when the
 * first part is submitted.
 */
async function startWaiting(client: Organization, given?: string): Promise<string> {
  const { organizationId, keyId } = client;
  const uploadId = given ?? (await uploadInParts(stack.db, client, TWO_PARTS));
  const key = { keyId, requestsPerMinute: 100_000 };
  const { used } = await takePlaces(stack.db, key, RATE_WINDOW_MS, 0);
  await takePlaces(stack.db, key, RATE_WINDOW_MS, key.requestsPerMinute - used - 1);
  await startUpload(stack.client, stack.taskQueue, { organizationId, uploadId });
  await eventually(async () => {
    const batches = await listUploadBatches(stack.db, uploadId);
    return batches.length > 0 ? true : null;
  });
  return uploadId;
}

/** Signs in with another key than the one that an upload uses up. */
async function signedInAgain({ organizationId }: Organization): Promise<Visitor> {
  return await signedIn(await issueKey(stack.db, BY, organizationId, 'second'));
}

test.serial(
  'a visitor uploads a file, checks its draft, and downloads the results',
  async (t) => {
    const client = await stack.organization(500);
    const visitor = await signedIn(client);
    const file = `\ufeffName;NPI\r\n"Ana; MD";${FOUND}\r\nBo;2000000044.0\r\nCy;${FOUND}\r\nDi;12\r\n`;
    const draft = await upload(visitor, file);
    t.regex(draft.path, /^\/console\/uploads\/upl_\w+$/);
    t.regex(draft.text, /<option value="1" selected>NPI<\/option>/);
    t.deepEqual(summaryIn(draft), {
      'To look up': 2,
      'Repeated NPI, looked up once': 1,
      'Mistyped or not an NPI, not looked up': 1,
      'All rows': 4,
    });
    t.regex(draft.text, /Line 5: 12 has 2 instead of 10 digits/);
    t.regex(draft.text, />Personal: at most 6 credits</);
    t.is((await client.credits()).used, 0);

    await start(visitor, draft);
    const done = await until(visitor, draft.path, 'completed');
    t.regex(done.text, /<dt>Done<\/dt><dd>2 of 2<\/dd>/);
    t.regex(done.text, /<dt>New emails<\/dt><dd>1<\/dd>/);
    t.regex(done.text, /A row without an email has its status/);
    const { text: list } = await visitor.get(UPLOADS);
    t.regex(list, /"Done">2 of 2<.+?"Emails">1<.+?"Credits">1</);
    t.regex(list, /"Kept until"><time datetime="20\S+Z">20\S+ \d\d:\d\d UTC<\/time>/);
    t.is((await client.credits()).used, 1);
    const results = await visitor.file(`${draft.path}/results.csv`);
    const lines = results.text.trim().split('\r\n');
    t.is(results.headers.get('content-type'), 'text/csv; charset=utf-8');
    t.is(lines[0]?.slice(0, 17), 'Name;NPI;enriched');
    t.regex(
      lines[1] ?? '',
      /^"Ana; MD";2000000010;;;;;;\S+@\S+;professional;20\S+Z;completed;$/,
    );
    t.is(lines[2], 'Bo;2000000044.0;;;;;;;;;not_found;no email found');
    t.is(lines[4], 'Di;12;;;;;;;;;not_asked;has 2 instead of 10 digits');
  },
);

test.serial(
  'a draft shows which NPIs are free, and the most that the others cost',
  async (t) => {
    const client = await stack.organization(500);
    const { insert } = providersIn(stack.db);
    const [group = '', retired = ''] = ordinaryNpis('found', 2, 7000);
    await insert({ npi: group, entityType: 2, organizationName: 'A CLINIC' }, null);
    await insert({ npi: retired, deactivatedOn: '2020-01-01' }, null);
    await client.completed((await client.single({ npi: FOUND })).json.batch_id);
    const visitor = await signedIn(client);
    const rows = [group, retired, FOUND, FOUND, NOT_FOUND, '2000000011', 'x'];
    const lines = [...rows.map((npi) => `${npi},,`), ',,Ana', `${FOUND},completed,Bo`];
    const header = 'npi,enriched_status,note';
    const draft = await upload(visitor, [header, ...lines].join('\n'));
    const summary = summaryIn(draft);
    t.deepEqual(summary, {
      'To look up': 1,
      'Free repeat': 1,
      'NPI of an organization, not looked up': 1,
      'Deactivated NPI, not looked up': 1,
      'Repeated NPI, looked up once': 1,
      'Keeps an earlier email': 1,
      'Mistyped or not an NPI, not looked up': 2,
      'Without an NPI, not looked up': 1,
      'All rows': lines.length,
    });
    t.regex(draft.text, /Line 7: 2000000011 has a wrong check digit, so it is mistyped/);
    t.regex(draft.text, />Any, professional first: at most 1 credit</);
    t.regex(draft.text, />Personal: at most 6 credits</);
    const free = await upload(visitor, `npi\n${FOUND}\n${retired}\n`);
    t.regex(free.text, />Professional: free</);
    t.regex(free.text, />Personal: at most 3 credits</);
    const refused = await upload(visitor, `npi\n${retired}\n`);
    t.regex(refused.text, /This costs nothing, whichever type you choose\./);
  },
);

test.serial(
  'a draft says how many credits are missing for each type of email',
  async (t) => {
    const visitor = await signedIn(await stack.organization(3));
    const npis = ordinaryNpis('found', 2, 7100);
    const { text } = await upload(visitor, ['npi', ...npis].join('\n'));
    t.regex(text, />Professional: at most 2 credits</);
    t.regex(text, />Personal: at most 6 credits, 3 more than you have</);
    t.regex(text, /You have 3 credits\..+ If your credits run out, the upload stops/);
  },
);

test.serial(
  'a visitor uploads a workbook, chooses a sheet, and downloads the results as CSV',
  async (t) => {
    const visitor = await signedIn(await stack.organization(10));
    const workbook = await workbookOf([
      { name: 'First', rows: [['npi'], [Number(NOT_FOUND)]] },
      {
        name: 'Second',
        rows: [['Q3 list'], ['NPI', 'Who'], [Number(FOUND), 'Jos\u00e9'], [12]],
      },
    ]);
    const content = new Uint8Array(workbook);
    const draft = await upload(visitor, content, 'contacts.xlsx');
    t.regex(draft.text, /<option selected>First<\/option><option>Second<\/option>/);
    t.regex(draft.text, /Only the sheet &quot;First&quot; is read/);
    const chosen = await visitor.get(`${draft.path}?sheet=Second`);
    t.regex(
      chosen.text,
      /Above the table, and not looked up: Row 1: &quot;Q3 list&quot;/,
    );
    t.regex(chosen.text, /Row 4: 12 has 2 instead of 10 digits/);
    await start(visitor, chosen);
    await until(visitor, draft.path, 'completed');
    const { text, headers } = await visitor.file(`${draft.path}/results.csv`);
    const lines = text.split('\r\n');
    t.regex(headers.get('content-disposition') ?? '', /contacts-enriched\.csv$/);
    t.is(lines[0], 'Q3 list,,,,,,,,,,,');
    t.is(lines[1]?.slice(0, 17), 'NPI,Who,enriched_');
    t.regex(
      lines[2] ?? '',
      /^2000000010,Jos\u00e9,,,,,,\S+@\S+,professional,20\S+Z,completed,$/,
    );
    t.is(lines[3], '12,,,,,,,,,,not_asked,has 2 instead of 10 digits');
  },
);

test.serial('batches name the upload that they were submitted from', async (t) => {
  const visitor = await signedIn(await stack.organization(10));
  const file = await upload(visitor, `npi\n${FOUND}\n`);
  await start(visitor, file, { name: ' Q3 \u202elist v1.2 ' });
  const { text: done } = await until(visitor, file.path, 'completed');
  t.regex(done, /<h1>Q3 list v1\.2<\/h1>/);
  const results = await visitor.file(`${file.path}/results.csv`);
  const disposition = results.headers.get('content-disposition') ?? '';
  t.regex(disposition, /Q3%20list%20v1\.2-enriched\.csv$/);
  const link = `<a href="${file.path}">Q3 list v1.2</a>`;
  for (const path of ['/console', '/console/batches']) {
    const { text } = await visitor.get(path);
    t.true(text.includes(`From ${link}`), path);
    const [batch = ''] = /\/console\/batches\/bat_\w+/.exec(text) ?? [];
    t.true((await visitor.get(batch)).text.includes(`Submitted from the file ${link}`));
  }
});

test.serial(
  'the error about a file that cannot be read is shown next to its field',
  async (t) => {
    const visitor = await signedIn(await stack.organization(1));
    const workbook = await upload(visitor, 'PK\u0003\u0004', 'contacts.xlsx');
    t.is(workbook.status, 422);
    t.regex(
      workbook.text,
      /role="alert">contacts\.xlsx is not an Excel workbook that can/,
    );
    const rows = Array.from({ length: 10_001 }, () => FOUND);
    const long = await upload(visitor, ['npi', ...rows].join('\n'));
    t.regex(long.text, /contacts\.csv has more than 10000 rows\. Split it/);
    const wide = await upload(visitor, `npi\n${FOUND}${','.repeat(200)}x\n`);
    t.regex(wide.text, /contacts\.csv has 201 columns/);
    const large = await upload(visitor, `npi\n${FOUND},${'x'.repeat(5_000_000)}\n`);
    t.is(large.status, 422);
    t.regex(large.text, /contacts\.csv is larger than 5 MB/);
    t.is((await upload(visitor, 'x'.repeat(5_200_000))).status, 413);
  },
);

test.serial('a file name is cut and loses its invisible characters', async (t) => {
  const visitor = await signedIn(await stack.organization(1));
  const content = `npi\n${FOUND}\n`;
  const draft = await upload(visitor, content, `"<b>\u202e${'𝒳'.repeat(150)}.csv`);
  t.regex(draft.text, /<h1>&quot;&lt;b&gt;𝒳{97}<\/h1>/u);
  await start(visitor, draft);
  const { headers } = await visitor.file(`${draft.path}/results.csv`);
  t.regex(
    headers.get('content-disposition') ?? '',
    /^attachment; filename\*=UTF-8''%22%3Cb%3E(%F0%9D%92%B3){97}-enriched\.csv$/,
  );
  t.is((await upload(visitor, content, '\u202e')).status, 422);
});

test.serial('a malformed form gets an error page at once', async (t) => {
  const visitor = await signedIn(await stack.organization(1));
  const { token } = await visitor.get(UPLOADS);
  const send = (type: string, body: string) =>
    visitor.send(`${UPLOADS}?form_token=${token}`, {
      method: 'POST',
      headers: { 'content-type': type },
      body,
    });
  const multipart = 'multipart/form-data; boundary=x';
  const part = (header: string) =>
    `--x\r\ncontent-disposition: form-data; ${header}\r\n\r\ny\r\n`;
  const named = (name: string) => part(`name="${name}"; filename="a.csv"`);
  const forms = [
    'x',
    part('a'.repeat(1_000_000)),
    `${named('hasOwnProperty')}${named('__proto__')}--x--\r\n`,
    `${part('name="file"')}--x--\r\n`,
  ];
  for (const form of forms) {
    const { status, text } = await send(multipart, form);
    t.is(status, 422, form.slice(0, 60));
    t.regex(text, /Choose a CSV or Excel file/);
  }
  t.is((await send('multipart/form-data', 'x')).status, 400);
  t.is((await send('application/json', '{}')).status, 415);
  const chunked = {
    method: 'POST',
    headers: { 'content-type': multipart },
    body: new Blob(['x']).stream(),
    duplex: 'half',
  };
  const path = `${UPLOADS}?form_token=${token}`;
  t.is((await visitor.send(path, chunked)).status, 411);
  t.is(
    (await visitor.send(UPLOADS, { method: 'POST', body: new FormData() })).status,
    403,
  );
});

test.serial('a visitor chooses the column if it cannot be guessed', async (t) => {
  const visitor = await signedIn(await stack.organization(1));
  const draft = await upload(visitor, `a,b\n${FOUND},${NOT_FOUND}\n`);
  t.regex(draft.text, /It is not clear which column has the NPIs/);
  t.regex(draft.text, /<option value="">Choose a column<\/option>/);
  const chosen = await visitor.get(`${draft.path}?column=1`);
  t.regex(chosen.text, /<option value="1" selected>b<\/option>/);
  t.deepEqual(summaryIn(chosen), { 'To look up': 1, 'All rows': 1 });
});

test.serial(
  'an upload spends the last credits, says why it stopped, and continues',
  async (t) => {
    const client = await stack.organization(3);
    const visitor = await signedIn(client);
    const npis = ordinaryNpis('found', 5);
    for (const npi of npis) {
      await storeEmail(stack.db, { npi, email: `p${npi}@clinic.example` });
    }
    const draft = await upload(visitor, ['npi', ...npis].join('\n'));
    await start(visitor, draft);
    const stopped = await until(visitor, draft.path, 'stopped');
    t.regex(stopped.text, /Your credits are used up/);
    for (const { text } of [draft, stopped])
      t.true(text.includes(`<a href="${BUY}">Buy credits</a>`));
    const { balance, used } = await client.credits();
    t.deepEqual({ balance, used }, { balance: 0, used: 3 });
    const { text } = await visitor.file(`${draft.path}/results.csv`);
    t.is(text.match(/,not_asked,not enough credits/g)?.length, 2);
    await grant(stack.db, client.organizationId, 10);
    const [before] = await listUploads(stack.db, client.organizationId);
    await visitor.post(`${draft.path}/continue`, { form_token: stopped.token });
    const [after] = await listUploads(stack.db, client.organizationId);
    t.true(Number(after?.expiresAt) > Number(before?.expiresAt));
    const done = await until(visitor, draft.path, 'completed');
    t.regex(done.text, /<dt>Done<\/dt><dd>5 of 5<\/dd>/);
    t.is((await client.credits()).used, 5);
  },
);

test.serial(
  'an upload stops when its key is revoked, and can continue with another',
  async (t) => {
    const client = await stack.sandboxOf(await stack.organization(0));
    const uploadId = await startWaiting(client);
    await revokeKey(stack.db, BY, client.keyId);
    await stack.client.workflow.getHandle(uploadId).result();
    const visitor = await signedInAgain(client);
    const stopped = await visitor.get(`${UPLOADS}/${uploadId}`);
    t.regex(stopped.text, /The API key that started this upload is no longer valid/);
    const form = { form_token: stopped.token };
    await visitor.post(`${stopped.path}/continue`, form);
    const done = await until(visitor, stopped.path, 'completed');
    t.regex(done.text, /<dt>Done<\/dt><dd>2 of 2<\/dd>/);
  },
);

test.serial(
  'the page of an upload says that it waits because its lookups fail',
  async (t) => {
    const client = await stack.sandboxOf(await stack.organization(0));
    const stored = await startedUpload(stack.db, client, [FAILED, FOUND]);
    await cutPart(stack.db, { uploadId: stored, position: 0 }, 1);
    const uploadId = await startWaiting(client, stored);
    const visitor = await signedInAgain(client);
    const { text } = await eventually(async () => {
      const seen = await visitor.get(`${UPLOADS}/${uploadId}`);
      return seen.text.includes('<dt>Failed</dt><dd>1</dd>') ? seen : null;
    });
    t.regex(text, /role="alert">Most of the last lookups failed, so this upload waits\./);
  },
);

test.serial('the remaining time follows the pace of the last minutes', async (t) => {
  await using database = await openTestDatabase();
  const clock = await travel(database.url);
  t.teardown(() => clock.stop());
  await clock.freeze();
  const options = { databaseUrl: database.url, lookupTimeoutMs: 20 * MINUTE };
  const api = await startApi(options);
  t.teardown(api.stop);
  const { db } = api;
  const rules = { ...WORKER_RULES, lookupTimeoutMs: 20 * MINUTE };
  const { submitNextPart } = uploadActivities(db, rules);
  const client = await api.organization(1000);
  const { organizationId } = client;
  const npis = ordinaryNpis('found', 300);
  const uploadId = await startedUpload(db, client, npis);
  const visitor = new Visitor(api.baseUrl);
  await visitor.signIn(client.apiKey);
  const remaining = async (path = `${UPLOADS}/${uploadId}`) => {
    const { text } = await visitor.get(path);
    return /(?:About|More) [^<.]+ left\./.exec(text)?.[0] ?? null;
  };
  const end = async (count: number) => {
    const open = await api.openRequests(organizationId);
    for (const id of open.slice(0, count))
      await settle(db, id, 'finished', 'nobody', RULES);
  };

  for (let part = 0; part < 3; part += 1) await submitNextPart({ uploadId });
  t.is(await remaining(), null, 'nothing is known yet');
  await clock.advance(2 * MINUTE);
  await end(60);
  t.is(await remaining(), 'About 8 minutes left.', '240 are left, and 30 end per minute');
  await clock.advance(15 * MINUTE);
  t.is(await remaining(), null, 'nothing has ended for ten minutes');
  await end(20);
  t.is(await remaining(), 'About 2 hours left.', '220 are left, and 2 end per minute');

  await end(100);
  await stopUpload(db, { organizationId, uploadId });
  t.is(await remaining(), null, 'it is stopped');
  await clock.advance(6 * 60 * MINUTE);
  await continueUpload(db, { organizationId, uploadId }, client.keyId);
  t.is(await remaining(), null, 'it has just continued');
  await submitNextPart({ uploadId });
  await submitNextPart({ uploadId });
  await clock.advance(3 * MINUTE);
  await end(60);
  t.is(await remaining(), 'About 3 minutes left.', 'the pause does not count');
  await clock.advance(6 * MINUTE);
  await end(20);
  t.is(await remaining(), 'About 5 minutes left.');
  await clock.advance(10 * MINUTE - 1000);
  t.is(await remaining(), 'About a minute left.', 'the deadline of the last batch');

  await end(40);
  t.is(await remaining(), null);
  const { json } = await client.bulk({ npis: npis.slice(0, 20) });
  await clock.advance(4 * MINUTE);
  await end(10);
  const page = `/console/batches/${json.batch_id}`;
  t.is(await remaining(page), 'About 4 minutes left.');
  await end(10);
  t.is(await remaining(page), null);
});

/** Returns the emails to an address, when it has got this many. */
async function mailsTo(address: string, count: number): Promise<string[]> {
  return await eventually(async () => {
    const all = mails.to(address);
    return all.length >= count ? all.map(({ content }) => content) : null;
  });
}

/** Returns the organization of an upload. */
async function organizationOf(uploadId: string): Promise<string> {
  const [row] = await query(stack.db, (tx) =>
    tx
      .select({ id: uploads.organizationId })
      .from(uploads)
      .where(eq(uploads.id, uploadId)),
  );
  return row?.id ?? '';
}

test.serial('an email without results is sent when an upload ends', async (t) => {
  const visitor = await signedIn(await stack.organization(500));
  const draft = await upload(visitor, `npi\n${FOUND}\n${NOT_FOUND}\n`);
  t.regex(draft.text, /<input id="notify" name="notify" type="email"/);
  const notify = 'ana+list@clinic.example';
  await start(visitor, draft, { notify, name: 'Secret list' });
  const [content = ''] = await mailsTo(notify, 1);
  t.is(mails.to(notify)[0]?.from, FROM);
  t.regex(content, /^Subject: NPI email enrichment: your upload is done\r$/m);
  t.regex(content, /^2 of 2 NPIs are done\. You can download the results\.\r$/m);
  t.true(content.includes(`${SITE_SETTINGS.PUBLIC_URL}${draft.path}\r\n`));
  for (const secret of [FOUND, 'Secret', '@cedar']) t.false(content.includes(secret));

  const uploadId = draft.path.split('/').at(-1) ?? '';
  const workflow = stack.client.workflow.getHandle(uploadId);
  await workflow.result();
  const history = JSON.stringify(await workflow.fetchHistory());
  t.false(history.includes('clinic.example'), 'only the database has the address');
  // A second run finds that the email was sent.
  const organizationId = await organizationOf(uploadId);
  await startUpload(stack.client, stack.taskQueue, { organizationId, uploadId });
  await stack.client.workflow.getHandle(uploadId).result();
  t.is(mails.to(notify).length, 1);
});

test.serial(
  'an email says that an upload has stopped, and another that it is done',
  async (t) => {
    const client = await stack.organization(1);
    const visitor = await signedIn(client);
    const npis = ordinaryNpis('found', 2, 7300);
    for (const npi of npis)
      await storeEmail(stack.db, { npi, email: `p${npi}@clinic.example` });
    const draft = await upload(visitor, ['npi', ...npis].join('\n'));
    const notify = 'bo@clinic.example';
    await start(visitor, draft, { notify });
    const [first = ''] = await mailsTo(notify, 1);
    t.regex(first, /^Subject: NPI email enrichment: your upload has stopped\r$/m);
    t.regex(first, /^1 of 2 NPIs are done\. Your credits are used up\./m);
    const resume = async () => {
      const { token } = await visitor.get(draft.path);
      await visitor.post(`${draft.path}/continue`, { form_token: token });
    };
    await resume();
    await eventually(async () => {
      const { text } = await visitor.get(draft.path);
      return /Your credits are used up/.test(text) ? true : null;
    });
    t.is(mails.to(notify).length, 1, 'nothing was submitted since then');
    await grant(stack.db, client.organizationId, 10);
    await resume();
    const [, second = ''] = await mailsTo(notify, 2);
    t.regex(second, /^Subject: NPI email enrichment: your upload is done\r$/m);
    const idOf = (mail: string) => /^Message-ID: (.+)\r$/im.exec(mail)?.[1];
    t.truthy(idOf(first));
    t.not(idOf(first), idOf(second));
  },
);

test.serial('an upload ends even if its email is rejected', async (t) => {
  const visitor = await signedIn(await stack.organization(500));
  const draft = await upload(visitor, `npi\n${FOUND}\n`);
  mails.state.status = 550;
  t.teardown(() => {
    mails.state.status = null;
  });
  await start(visitor, draft, { notify: 'gone@clinic.example' });
  const workflow = await stack.startedWorkflow(draft.path.split('/').at(-1) ?? '');
  await workflow.result();
  const history = JSON.stringify(await workflow.fetchHistory());
  t.true(history.includes('SMTP failed: EENVELOPE 550'));
  t.false(history.includes('gone@'));
  await until(visitor, draft.path, 'completed');
});

test.serial('an email goes to one address, without another header', async (t) => {
  const visitor = await signedIn(await stack.organization(500));
  const draft = await upload(visitor, `npi\n${FOUND}\n`);
  const uploadId = draft.path.split('/').at(-1) ?? '';
  const organizationId = await organizationOf(uploadId);
  const wrong = [
    'a@b.example, c@d.example',
    'a@b.example\r\nBcc: c@d.example',
    'Ana <a@b.example>',
    'a@b.example@c.example',
    `${'a'.repeat(250)}@b.example`,
    'a',
  ];
  for (const notifyEmail of wrong) {
    const { status, text } = await start(visitor, draft, { notify: notifyEmail });
    t.is(status, 422, notifyEmail);
    t.regex(text, /This is not one email address\./);
    const storing = startDraft(
      stack.db,
      { organizationId, uploadId },
      {
        npiColumn: 0,
        requestedType: 'any',
        fileName: 'a',
        outline: Buffer.from(''),
        npis: [FOUND],
        notifyEmail,
      },
    );
    const message = /uploads_notify_email_check/;
    await t.throwsAsync(storing, { message }, notifyEmail);
  }
  t.regex((await visitor.get(draft.path)).text, /This submits 1 NPI\./);
});

test.serial('without a mail server, a draft asks for no address', async (t) => {
  const api = await startApi();
  t.teardown(api.stop);
  const { apiKey, organizationId } = await api.organization(9);
  const visitor = new Visitor(api.baseUrl);
  await visitor.signIn(apiKey);
  const draft = await upload(visitor, `npi\n${FOUND}\n`);
  t.notRegex(draft.text, /notify/);
  await start(visitor, draft, { notify: 'ana@clinic.example' });
  const [stored] = await listUploads(api.db, organizationId);
  t.is(stored?.notifyEmail, null);
  t.truthy(stored?.startedAt);
});

test.serial('the sweep starts an upload whose workflow is missing', async (t) => {
  const sandbox = await stack.sandboxOf(await stack.organization(0));
  const uploadId = await uploadInParts(stack.db, sandbox, TWO_PARTS);
  const workflow = stack.client.workflow.getHandle(uploadId);
  await eventually(async () => {
    await stack.reconcile();
    return await workflow.describe().catch(() => null);
  });
  const visitor = await signedIn(sandbox);
  const { text } = await until(visitor, `${UPLOADS}/${uploadId}`, 'completed');
  t.regex(text, /<dt>Done<\/dt><dd>2 of 2<\/dd>/);
});

test.serial('the workflow of an upload runs again for what failed', async (t) => {
  const client = await stack.sandboxOf(await stack.organization(0));
  const visitor = await signedIn(client);
  const draft = await upload(visitor, ['npi', FOUND, NOT_FOUND, FAILED].join('\n'));
  await start(visitor, draft);
  const done = await until(visitor, draft.path, 'completed');
  t.regex(done.text, />Look up 1 NPI again: at most 1 credit<\/button>/);
  const form = { form_token: done.token };
  await visitor.post(`${draft.path}/again`, form);
  const uploadId = draft.path.split('/').at(-1) ?? '';
  await eventually(async () => {
    const batches = await listUploadBatches(stack.db, uploadId);
    return batches.length === 2 ? true : null;
  });
  // The sandbox fails it again.
  const { text } = await until(visitor, draft.path, 'completed');
  t.regex(text, /<dt>Done<\/dt><dd>3 of 3<\/dd>/);
  t.regex(text, /<dt>Failed<\/dt><dd>1<\/dd>/);
  await stack.client.workflow.getHandle(uploadId).result();
});

test.serial('a stopped upload submits no further part', async (t) => {
  const client = await stack.sandboxOf(await stack.organization(0));
  const uploadId = await startWaiting(client);
  const visitor = await signedInAgain(client);
  const { path, text, token } = await visitor.get(`${UPLOADS}/${uploadId}`);
  t.regex(text, /up to 60 that are being submitted, are still looked up/);
  t.notRegex(text, /lookups failed/);
  const soFar = await visitor.file(`${path}/results.csv`);
  t.regex(soFar.text, /,not_asked,not submitted yet\n$/);
  const stopped = await visitor.post(`${path}/stop`, { form_token: token });
  t.regex(stopped.text, /You stopped this upload\. NPIs that were already submitted/);
  await stack.client.workflow.getHandle(uploadId).result();
  t.is((await listUploadBatches(stack.db, uploadId)).length, 1);
  // The page is updated until the results of submitted NPIs have arrived.
  await eventually(async () =>
    (await visitor.get(path)).text.includes('data-running') ? null : true,
  );
  const results = await visitor.file(`${path}/results.csv`);
  t.notRegex(results.text, /,(?:accepted|in-progress),/);
  t.regex(results.text, /,not_asked,stopped by you\n$/);
});

test.serial('another organization sees and changes no upload', async (t) => {
  const draft = await upload(
    await signedIn(await stack.organization(9)),
    `npi\n${FOUND}\n`,
  );
  const stranger = await signedIn(await stack.organization(9));
  const { text, token } = await stranger.get(UPLOADS);
  t.regex(text, /There are no uploads yet/);
  t.is((await stranger.get(draft.path)).status, 404);
  t.is((await stranger.get(`${draft.path}/results.csv`)).status, 404);
  for (const action of ['start', 'continue', 'stop', 'delete']) {
    const fields = { form_token: token, column: '0' };
    const { status } = await stranger.post(`${draft.path}/${action}`, fields);
    t.is(status, 404, action);
  }
  const workflow = stack.client.workflow.getHandle(draft.path.split('/').at(-1) ?? '');
  await t.throwsAsync(workflow.describe(), { name: 'WorkflowNotFoundError' });
});

test.serial('only a stopped upload can continue', async (t) => {
  const visitor = await signedIn(await stack.organization(9));
  const draft = await upload(visitor, `npi\n${FOUND}\n`);
  const id = draft.path.split('/').at(-1) ?? '';
  await visitor.post(`${draft.path}/continue`, { form_token: draft.token });
  await visitor.post(`${draft.path}/stop`, { form_token: draft.token });
  const workflow = stack.client.workflow.getHandle(id);
  await t.throwsAsync(workflow.describe(), { name: 'WorkflowNotFoundError' });
  t.regex((await visitor.get(draft.path)).text, /This submits 1 NPI\./);
});

test.serial('a visitor deletes a draft', async (t) => {
  const visitor = await signedIn(await stack.organization(9));
  const draft = await upload(visitor, `npi\n${FOUND}\n`);
  const left = await visitor.post(`${draft.path}/delete`, { form_token: draft.token });
  t.is(left.path, UPLOADS);
  t.regex(left.text, /There are no uploads yet/);
  t.is((await visitor.get(draft.path)).status, 404);
});

test.serial(
  'the reconciler deletes an expired upload with its file and parts',
  async (t) => {
    const client = await stack.organization(1);
    await uploadInParts(stack.db, client, TWO_PARTS);
    const { organizationId } = client;
    await query(stack.db, (tx) =>
      tx
        .update(uploads)
        .set({ expiresAt: sql`clock_timestamp()` })
        .where(eq(uploads.organizationId, organizationId)),
    );
    // A sweep skips a row that another sweep has locked.
    await eventually(async () => {
      await stack.reconcile();
      const left = await listUploads(stack.db, organizationId);
      return left.length === 0 ? true : null;
    });
    t.pass();
  },
);

test.serial('a malformed id of an upload is an unknown one', async (t) => {
  const visitor = await signedIn(await stack.organization(9));
  const { token } = await visitor.get(UPLOADS);
  for (const id of ['%00', '%ff', 'bat_1']) {
    t.is((await visitor.get(`${UPLOADS}/${id}`)).status, 404, id);
    const path = `${UPLOADS}/${id}/delete`;
    t.is((await visitor.post(path, { form_token: token })).status, 404, path);
  }
});

test.serial('a cell with line breaks stays one cell in the results', async (t) => {
  const visitor = await signedIn(await stack.organization(9));
  // Excel ends rows with CR LF, and lines within a cell with LF.
  const row = `${FOUND},"1 Main St\nApt 2"`;
  const draft = await upload(visitor, `npi,address\r\n${row}\r\n`);
  await start(visitor, draft);
  const { text } = await visitor.file(`${draft.path}/results.csv`);
  t.true(text.includes(`\r\n${row},`), text);
});
