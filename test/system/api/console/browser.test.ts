import { readdir, readFile } from 'node:fs/promises';
import test, { type ExecutionContext } from 'ava';
import axe from 'axe-core';
import type { BrowserContext, Page } from 'playwright-core';
import { issueKey } from '../../../../db/accounts/keys.ts';
import { stopUpload } from '../../../../db/uploads/uploads.ts';
import { openBrowser } from '../../../support/browser.ts';
import { fresh } from '../../../support/database.ts';
import { BY, eventually, HANG_MS } from '../../../support/organization.ts';
import { SITE_SETTINGS } from '../../../support/site.ts';
import { type ApiClient, startStack } from '../../../support/stack.ts';
import { startedUpload } from '../../../support/uploads.ts';
import { ordinaryNpis } from '../../../support/vendors.ts';
import { Visitor } from '../../../support/visitor.ts';

// Tests the console in a real browser, on small and large screens, light and dark.

const browser = await openBrowser();
const inBrowser = browser ? test : test.skip;
test.after.always(() => browser?.close());
// A browser sends a secure cookie only to https, so this site has an http address.
const publicUrl = SITE_SETTINGS.PUBLIC_URL.replace('https:', 'http:');
const stack = fresh(test, () => startStack({ publicUrl }));

/** Signs in by the form, as a person does. */
async function signIn(context: BrowserContext, apiKey: string) {
  context.setDefaultTimeout(HANG_MS);
  const page = await context.newPage();
  const trouble: string[] = [];
  page.on('console', (message) => trouble.push(message.text()));
  page.on('pageerror', ({ message }) => trouble.push(message));
  await page.goto(`${stack.baseUrl}/console`);
  await page.getByLabel('API key').fill(apiKey);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  return { page, trouble };
}

/** Checks that a page is not too wide and that axe finds nothing. */
async function checkPage(t: ExecutionContext, page: Page): Promise<void> {
  const path = page.url();
  t.true(
    await page.evaluate('document.documentElement.scrollWidth <= innerWidth'),
    `${path} is too wide`,
  );
  await page.evaluate(`if (!window.axe) { ${axe.source} }`);
  const { violations } = (await page.evaluate('axe.run()')) as axe.AxeResults;
  const found = violations.map(({ help, nodes: [node] }) => [help, node?.html]);
  t.deepEqual(found, [], path);
}

/** Each size and each color once: contrast does not depend on the size. */
const LOOKS = [
  { width: 390, colorScheme: 'light' },
  { width: 1440, colorScheme: 'dark' },
] as const;

async function checkLooks(t: ExecutionContext, page: Page): Promise<void> {
  for (const { width, colorScheme } of LOOKS) {
    await page.setViewportSize({ width, height: 800 });
    await page.emulateMedia({ colorScheme });
    await checkPage(t, page);
  }
}

/** Checks that the keyboard starts at what is wrong with a form, or with the page. */
async function checkFocus(t: ExecutionContext, page: Page): Promise<void> {
  const focused = 'document.activeElement.matches("[aria-invalid], [role=alert]")';
  t.true(await page.evaluate(focused), `${page.url()} has its focus elsewhere`);
}

/** Submits a batch with a name and a receiver that fails, and waits until it is completed. */
async function mixedBatch(client: ApiClient): Promise<string> {
  const webhook = { url: `${stack.receiver.url}/status/500`, mode: 'real-time' };
  const custom_data = { name: 'Cardiologists of the Pacific Northwest', id: 7 };
  const npis = ['2000000010', '2000000044', '2000000028'];
  const { json } = await client.bulk({ npis, webhook, custom_data });
  await eventually(async () => {
    const { batch } = await client.batch(json.batch_id);
    return batch.status === 'completed' ? true : null;
  });
  return json.batch_id;
}

/** Opens everything that opens on a page. */
async function openAll(page: Page): Promise<void> {
  for (const summary of await page.locator('main summary').all()) await summary.click();
}

/** Uploads a file that is not a list. */
async function sendPicture(page: Page): Promise<void> {
  const buffer = Buffer.from('89504e470d0a1a0a', 'hex');
  const file = { name: 'a.png', mimeType: 'image/png', buffer };
  await page.getByLabel('CSV or Excel file').setInputFiles(file);
  await page.getByRole('button', { name: 'Upload' }).click();
  await page.locator('[role=alert]').waitFor();
}

/** A page in one of its states. */
interface State {
  readonly by: BrowserContext;
  readonly path: string;
  /** Brings the page into its state. */
  readonly act?: (page: Page) => Promise<void>;
  /** True if the page says that something is wrong. */
  readonly isWrong?: boolean;
}

/** Returns a function that fills a field of a form, and sends the form. */
const send = (label: string, text: string, button: string) => async (page: Page) => {
  await page.getByLabel(label, { exact: true }).fill(text);
  await page.getByRole('button', { name: button }).click();
  await page.locator('[role=alert], [role=status], .secret').first().waitFor();
};

/** Uploads a file with a long name, and returns the path of its draft. */
async function draftOf(client: ApiClient, rows: readonly string[]): Promise<string> {
  const visitor = new Visitor(stack.baseUrl);
  await visitor.signIn(client.apiKey);
  const { token } = await visitor.get('/console/uploads');
  const file = new File([rows.join('\n')], `${'a long name '.repeat(9)}.csv`);
  return (await visitor.upload('/console/uploads', token, file)).path;
}

inBrowser('each page fits and is accessible in each of its states', async (t) => {
  if (!browser) return;
  const client = await stack.organization(500);
  const { organizationId } = client;
  const batchId = await mixedBatch(client);
  const draft = await draftOf(client, ['Name,NPI', 'A,2000000010', 'B,12', 'C,']);
  const unclear = await draftOf(client, ['Name,NPI', 'A,12', 'B,13']);
  const [running, stopped] = [
    await startedUpload(stack.db, client, ordinaryNpis('found', 100)),
    await startedUpload(stack.db, client, ordinaryNpis('found', 70)),
  ];
  await stopUpload(stack.db, { organizationId, uploadId: stopped });
  const reader = await issueKey(stack.db, BY, organizationId, 'n'.repeat(200), {
    role: 'read',
  });
  const empty = await stack.organization(0);
  const sandbox = await stack.sandboxOf(client);
  const context = async ({ apiKey }: { readonly apiKey: string }) => {
    const opened = await browser.newContext();
    await signIn(opened, apiKey);
    return opened;
  };
  const full = await context(client);
  const none = await context(empty);
  const read = await context(reader);
  const test = await context(sandbox);
  const out = await browser.newContext();
  const contexts = [full, none, read, test, out];
  t.teardown(() => Promise.all(contexts.map((one) => one.close())));
  const wrong = { by: full, isWrong: true };
  // By the templates in api/console/views. A new page needs a line.
  const pages: Readonly<Record<string, readonly State[]>> = {
    batch: [{ by: full, path: `/console/batches/${batchId}`, act: openAll }],
    batches: [
      { by: full, path: '/console/batches' },
      { by: none, path: '/console/batches' },
      { ...wrong, path: '/console/batches?npi=12&since=2026-99-99' },
      { ...wrong, path: '/console/batches?since=2026-02-02&until=2026-01-01' },
    ],
    check: [
      {
        by: full,
        path: '/console/submit',
        act: async (page) => {
          await page.getByLabel('NPIs, up to 60').fill('2000000010 2000000044');
          await page.getByRole('button', { name: 'Check' }).click();
          await page.getByRole('heading', { name: 'Check the list' }).waitFor();
        },
      },
    ],
    deliveries: [
      { by: full, path: '/console/deliveries' },
      { by: read, path: '/console/deliveries' },
      { by: none, path: '/console/deliveries' },
      { by: full, path: '/console/deliveries?resent=2&more=1' },
      { ...wrong, path: '/console/deliveries?until=2026-99-99' },
    ],
    draft: [
      { by: full, path: draft, act: openAll },
      { ...wrong, path: unclear },
    ],
    key: [
      { by: full, path: `/console/keys/${reader.id}`, act: openAll },
      { by: full, path: `/console/keys/${client.keyId}` },
      {
        ...wrong,
        path: `/console/keys/${reader.id}`,
        act: send('Name', ' ', 'Rename'),
      },
    ],
    keys: [
      { by: full, path: '/console/keys', act: openAll },
      {
        ...wrong,
        path: '/console/keys',
        act: send('Name of the person or program', ' ', 'Make the key'),
      },
    ],
    'new-key': [
      {
        by: full,
        path: '/console/keys',
        act: send('Name of the person or program', 'Ana', 'Make the key'),
      },
    ],
    overview: [
      { by: full, path: '/console' },
      { by: read, path: '/console' },
      { by: none, path: '/console' },
      { by: test, path: '/console' },
    ],
    problem: [
      { ...wrong, path: '/console/nothing' },
      { ...wrong, by: read, path: '/console/submit' },
      { ...wrong, by: read, path: '/console/keys' },
    ],
    'sign-in': [
      { by: out, path: '/console/sign-in' },
      { ...wrong, by: out, path: '/console', act: send('API key', 'ana', 'Sign in') },
    ],
    signing: [
      {
        by: full,
        path: '/console/deliveries',
        act: async (page) => {
          for (const name of ['Show the secret', 'Rotate the secret']) {
            await page.getByRole('button', { name }).click();
            await page.getByRole('button', { name: 'Copy' }).waitFor();
          }
        },
      },
      {
        ...wrong,
        path: '/console/deliveries',
        act: send('Address of your receiver', 'https://a:b@c.example', 'Send a test'),
      },
    ],
    submit: [
      { by: full, path: '/console/submit' },
      { ...wrong, path: '/console/submit', act: send('NPIs, up to 60', '12', 'Check') },
    ],
    upload: [
      { by: full, path: `/console/uploads/${running}` },
      { by: full, path: `/console/uploads/${stopped}`, act: openAll },
    ],
    uploads: [
      { by: full, path: '/console/uploads' },
      { by: none, path: '/console/uploads' },
      { by: read, path: '/console/uploads' },
      { ...wrong, path: '/console/uploads', act: sendPicture },
    ],
    usage: [
      { by: full, path: '/console/usage' },
      { by: none, path: '/console/usage?month=2026-01' },
      { by: test, path: '/console/usage' },
    ],
  };
  const templates = await readdir(
    new URL('../../../../api/console/views', import.meta.url),
  );
  const named = templates.filter((name) => /^(?!layout).*\.hbs$/.test(name));
  t.deepEqual(named.map((name) => name.slice(0, -4)).sort(), Object.keys(pages).sort());
  const titles = new Set<string>();
  const trouble: string[] = [];
  for (const { by, path, act, isWrong } of Object.values(pages).flat()) {
    const page = await by.newPage();
    if (!isWrong) page.on('console', (message) => trouble.push(message.text()));
    page.on('pageerror', ({ message }) => trouble.push(message));
    await page.goto(stack.baseUrl + path);
    await act?.(page);
    if (isWrong) await checkFocus(t, page);
    await checkLooks(t, page);
    titles.add(await page.title());
    await page.close();
  }
  t.deepEqual(trouble, []);
  t.true(titles.size >= named.length, [...titles].join(', '));
});

inBrowser('a person pastes NPIs into the console and sees their emails', async (t) => {
  const client = await stack.organization(500);
  const timezoneId = 'America/New_York';
  await using context = await browser?.newContext({ timezoneId });
  if (!context) return;
  const { page } = await signIn(context, client.apiKey);
  await page.getByRole('link', { name: 'Find emails' }).first().click();
  await page.getByLabel('NPIs, up to 60').fill('2000000010\n2000000044');
  await page.getByRole('button', { name: 'Check' }).click();
  await page.getByText('To look up').first().waitFor();
  await checkPage(t, page);
  await page.getByRole('button', { name: 'Find emails' }).click();
  // The page shows the results without a reload.
  await page.getByText('2 of 2').waitFor();
  t.regex(await page.locator('main').innerText(), /2000000010\s+completed\s+\S+@\S+/);
  // Times are local, also in the part that the script has replaced.
  const time = page.locator('#progress time').first();
  t.regex(await time.innerText(), / [AP]M E[SD]T$/);
  t.regex((await time.getAttribute('title')) ?? '', /^20\d\d-.+ UTC$/);
  // An NPI that is copied from a table has spaces around it.
  await page.getByRole('link', { name: 'Batches' }).first().click();
  await page.getByLabel('NPI').fill(' 2000000044 ');
  await page.getByRole('button', { name: 'Filter' }).click();
  await page.waitForURL(/npi=/);
  await page.getByText('2 of 2').waitFor();
});

for (const [width, colorScheme, count] of [
  [390, 'light', 20],
  [1440, 'dark', 200],
] as const) {
  inBrowser(
    `a person uploads ${count} rows and downloads the results at ${width} px, ${colorScheme}`,
    async (t) => {
      const live = await stack.organization(0);
      const { apiKey } = await stack.sandboxOf(live);
      const options = { viewport: { width, height: 800 }, colorScheme };
      await using context = await browser?.newContext(options);
      if (!context) return;
      const { page, trouble } = await signIn(context, apiKey);
      await page.getByRole('link', { name: 'Uploads' }).first().click();
      const rows = ordinaryNpis('found', count).map((npi, at) => `Person ${at},${npi}`);
      const file = ['Name,NPI number', ...rows, 'Nobody,12', rows[0]].join('\n');
      const bytes = {
        name: 'people.csv',
        mimeType: 'text/csv',
        buffer: Buffer.from(file),
      };
      await page
        .getByLabel('CSV or Excel file with a column of NPIs')
        .setInputFiles(bytes);
      await page.getByRole('button', { name: 'Upload' }).click();
      await page.getByText('Delete this draft').click();
      await checkPage(t, page);
      await page.getByText(`This submits ${count} NPIs.`).waitFor();
      await page.getByRole('button', { name: 'Find emails' }).click();
      await page.getByText('Download the results').waitFor();
      await checkPage(t, page);
      // The page shows the progress without a reload.
      await page.locator('.badge.completed').waitFor();
      await checkPage(t, page);
      const downloading = page.waitForEvent('download');
      await page.getByRole('link', { name: 'Download the results' }).click();
      const download = await downloading;
      t.is(download.suggestedFilename(), 'people-enriched.csv');
      const lines = (await readFile(await download.path(), 'utf8')).trim().split('\n');
      t.is(lines.length, count + 3);
      t.true(lines.filter((line) => /@.+,completed,/.test(line)).length > count / 2);
      t.is(lines[count + 1], 'Nobody,12,,,,,,,,,not_asked,has 2 instead of 10 digits');
      await page.getByRole('link', { name: 'batches', exact: true }).click();
      await page.getByRole('heading', { name: 'Batches' }).waitFor();
      await checkPage(t, page);
      await page.getByRole('link', { name: 'people.csv' }).first().click();
      // Deletes the file by keyboard, after a confirmation.
      await page.getByText('Delete this file').waitFor();
      t.false(await page.getByRole('button', { name: 'Delete now' }).isVisible());
      await page.getByText('Delete this file').press('Enter');
      await checkPage(t, page);
      await page.getByRole('button', { name: 'Delete now' }).press('Enter');
      await page.getByText('There are no uploads yet').waitFor();
      t.deepEqual(trouble, []);
    },
  );
}
