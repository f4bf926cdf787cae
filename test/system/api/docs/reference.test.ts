import test from 'ava';
import { openBrowser, visit } from '../../../support/browser.ts';
import { fresh } from '../../../support/database.ts';
import { startApi } from '../../../support/stack.ts';

// Tests the reference page, which Scalar renders in the browser.

// Opened first, because AVA starts right after the first test is declared.
const browser = await openBrowser();
const inBrowser = browser ? test : test.skip;
test.after.always(() => browser?.close());

const api = fresh(test, () => startApi());
const url = (hash = '') => new URL(`/docs/reference${hash}`, api.baseUrl);

test('the reference loads scripts and data only from our host', async (t) => {
  const { status, headers } = await fetch(url());
  t.is(status, 200);
  const policy = headers.get('content-security-policy') ?? '';
  t.regex(policy, /default-src 'none'; script-src 'self';.*connect-src 'self';/);
  t.notRegex(policy, /unsafe-eval|https?:/);
});

test('the script of the reference is compressed, and has an ETag', async (t) => {
  const { status, headers } = await fetch(new URL('/docs/scalar.js', api.baseUrl));
  t.is(status, 200);
  t.is(headers.get('content-encoding'), 'gzip');
  const etag = headers.get('etag') ?? '';
  const init = { headers: { 'if-none-match': etag } };
  t.is((await fetch(new URL('/docs/scalar.js', api.baseUrl), init)).status, 304);
});

test('without JavaScript, the reference leads to openapi.json', async (t) => {
  const text = await (await fetch(url())).text();
  t.regex(text, /<noscript>.*href="\/openapi\.json".*<\/noscript>/);
});

inBrowser(
  'the reference shows examples, required fields, limits, defaults',
  async (t) => {
    const options = { viewport: { width: 1280, height: 800 } };
    const hash = '#tag/submit/POST/api/v1/email/bulk';
    const trouble = await visit(browser, url(hash), options, async (page) => {
      const operation = page
        .locator('section', { hasText: 'Submit 1 to 60 NPIs' })
        .last();
      await operation.getByText('required').first().waitFor();
      const text = await operation.innerText();
      for (const shown of [/\b60\b/, /default/i, /bat_01/, /202/]) t.regex(text, shown);
    });
    t.deepEqual(trouble, []);
  },
);

inBrowser('the reference sends a request with the key of the reader', async (t) => {
  const { apiKey } = await api.organization(77);
  const options = { viewport: { width: 1280, height: 800 } };
  const hash = '#tag/credits/GET/api/v1/credits';
  const trouble = await visit(browser, url(hash), options, async (page) => {
    await page.getByPlaceholder('Token').first().fill(apiKey);
    const credits = page.locator('section', { hasText: "The organization's credits" });
    await credits.last().getByRole('button', { name: 'Test Request' }).click();
    await page.getByRole('button', { name: /^Send get/ }).click();
    await page.getByText('200 OK').waitFor();
  });
  t.deepEqual(trouble, []);
});
