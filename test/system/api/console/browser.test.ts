import { readFile } from 'node:fs/promises';
import test, { type ExecutionContext } from 'ava';
import axe from 'axe-core';
import type { BrowserContext, Page } from 'playwright-core';
import { openBrowser } from '../../../support/browser.ts';
import { fresh } from '../../../support/database.ts';
import { eventually, HANG_MS } from '../../../support/organization.ts';
import { SITE_SETTINGS } from '../../../support/site.ts';
import { startStack } from '../../../support/stack.ts';
import { ordinaryNpis } from '../../../support/vendors.ts';

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
  await page.evaluate(axe.source);
  const { violations } = (await page.evaluate('axe.run()')) as axe.AxeResults;
  const found = violations.map(({ help, nodes: [node] }) => [help, node?.html]);
  t.deepEqual(found, [], path);
}

for (const [width, colorScheme] of [
  [390, 'dark'],
  [1440, 'light'],
] as const) {
  inBrowser(
    `each page of the console fits and is accessible at ${width} px, ${colorScheme}`,
    async (t) => {
      const client = await stack.organization(500);
      const webhook = { url: stack.receiver.url };
      const { json } = await client.bulk({ npis: ['2000000010', '2000000044'], webhook });
      await eventually(async () => {
        const { batch } = await client.batch(json.batch_id);
        return batch.status === 'completed' ? true : null;
      });
      const empty = await stack.organization(0);
      for (const { apiKey, keyId } of [client, empty]) {
        const options = { viewport: { width, height: 800 }, colorScheme };
        await using context = await browser?.newContext(options);
        if (!context) return;
        const { page, trouble } = await signIn(context, apiKey);
        const paths = [
          '/console',
          '/console/submit',
          '/console/batches',
          '/console/usage',
          '/console/keys',
          `/console/keys/${keyId}`,
        ];
        paths.push(
          '/console/uploads',
          '/console/deliveries',
          '/console/deliveries?status=failed',
        );
        if (apiKey === client.apiKey) paths.push(`/console/batches/${json.batch_id}`);
        for (const path of paths) {
          await page.goto(`${stack.baseUrl}${path}`);
          await checkPage(t, page);
        }
        await page.goto(`${stack.baseUrl}/console/deliveries`);
        for (const name of ['Show the secret', 'Rotate the secret']) {
          await page.getByRole('button', { name }).click();
          await page.getByRole('button', { name: 'Copy' }).waitFor();
          await checkPage(t, page);
        }
        t.deepEqual(trouble, []);
      }
    },
  );
}

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
      await page.getByRole('link', { name: 'Upload a file' }).first().click();
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
      await page.getByRole('button', { name: `Submit ${count} NPIs` }).click();
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
      t.is(lines[count + 1], 'Nobody,12,,,,not_asked,has 2 instead of 10 digits');
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
