import test from 'ava';
import axe from 'axe-core';
import type { BrowserContext } from 'playwright-core';
import { openBrowser } from '../../support/browser.ts';
import { fresh } from '../../support/database.ts';
import { eventually } from '../../support/organization.ts';
import { SITE_SETTINGS } from '../../support/site.ts';
import { startStack } from '../../support/stack.ts';

// The console in a real browser, on a phone and on a desk, light and dark.

const browser = await openBrowser();
const inBrowser = browser ? test : test.skip;
test.after.always(() => browser?.close());
// A browser sends a secure cookie only to https, so this site has an http address.
const publicUrl = SITE_SETTINGS.PUBLIC_URL.replace('https:', 'http:');
const stack = fresh(test, () => startStack({ publicUrl }));

/** Signs in by the form, as a person does. */
async function signIn(context: BrowserContext, apiKey: string) {
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
      for (const { apiKey } of [client, empty]) {
        const options = { viewport: { width, height: 800 }, colorScheme };
        await using context = await browser?.newContext(options);
        if (!context) return;
        const { page, trouble } = await signIn(context, apiKey);
        const paths = ['/console', '/console/submit', '/console/batches'];
        if (apiKey === client.apiKey) paths.push(`/console/batches/${json.batch_id}`);
        for (const path of paths) {
          await page.goto(`${stack.baseUrl}${path}`);
          t.true(
            await page.evaluate('document.documentElement.scrollWidth <= innerWidth'),
            `${path} is too wide`,
          );
          await page.evaluate(axe.source);
          const { violations } = (await page.evaluate('axe.run()')) as axe.AxeResults;
          const found = violations.map(({ help, nodes: [node] }) => [help, node?.html]);
          t.deepEqual(found, [], path);
        }
        t.deepEqual(trouble, []);
      }
    },
  );
}

inBrowser('a person pastes NPIs into the console and sees their emails', async (t) => {
  const client = await stack.organization(500);
  await using context = await browser?.newContext();
  if (!context) return;
  const { page } = await signIn(context, client.apiKey);
  await page.getByRole('link', { name: 'Find emails' }).first().click();
  await page.getByLabel('NPIs, up to 60').fill('2000000010\n2000000044');
  await page.getByRole('button', { name: 'Find emails' }).click();
  await eventually(async () => {
    await page.reload();
    const text = await page.locator('main').innerText();
    return text.includes('2 of 2') ? true : null;
  });
  t.regex(await page.locator('main').innerText(), /2000000010\s+completed\s+\S+@\S+/);
});
