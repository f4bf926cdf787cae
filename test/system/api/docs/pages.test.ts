import test from 'ava';
import axe from 'axe-core';
import { readPages } from '../../../../api/docs/pages.ts';
import { PROBLEMS } from '../../../../api/problems.ts';
import type { Site } from '../../../../api/site.ts';
import { suspendOrganization } from '../../../../db/accounts/organizations.ts';
import { openBrowser, visit } from '../../../support/browser.ts';
import { fresh } from '../../../support/database.ts';
import { SITE } from '../../../support/site.ts';
import { startApi } from '../../../support/stack.ts';

// Tests the pages at /docs, as HTML for browsers and as Markdown for language models.

// Opened first, because AVA starts right after the first test is declared.
const browser = await openBrowser();
const inBrowser = browser ? test : test.skip;
test.after.always(() => browser?.close());

// A short window, because this test is faster than any reader and the flood guard would refuse it.
const api = fresh(test, () => startApi({ rateWindowMs: 100 }));
const get = (path: string, init?: RequestInit) =>
  fetch(new URL(path, api.baseUrl), { redirect: 'manual', ...init });

/** Returns the HTML paths of the pages in /llms.txt. */
async function pagePaths(): Promise<string[]> {
  const text = await (await get('/llms.txt')).text();
  const names = [...text.matchAll(/\]\(\/docs\/([\w-]+)\.md\)/g)].map(
    ([, name = '']) => name,
  );
  return names.map((name) => (name === 'index' ? '/docs' : `/docs/${name}`));
}

test('the path / redirects to the documentation', async (t) => {
  const { status, headers } = await get('/');
  t.is(status, 302);
  t.is(headers.get('location'), '/docs');
});

test('the page about data has the facts of the operator, or says that there are none', (t) => {
  const textOf = (site: Site) =>
    readPages(site).find(({ name }) => name === 'data')?.markdown ?? '';
  const facts = {
    privacyUrl: 'https://example.com/privacy',
    subprocessors: 'Hunter, $& Cloud',
    statusUrl: 'https://status.example.com',
  };
  const filled = textOf({ ...SITE, ...facts });
  for (const fact of Object.values(facts)) t.true(filled.includes(fact), fact);
  const empty = textOf(SITE);
  t.regex(empty, /We have published no privacy policy\. To object, write to support@/);
  t.regex(empty, /We have published no list\. Ask support@/);
  t.regex(empty, /We have no status page\. Ask support@/);
  for (const text of [filled, empty]) t.notRegex(text, /\{\w+\}/);
});

test('every documentation page exists as HTML and as Markdown, with an ETag', async (t) => {
  const paths = await pagePaths();
  t.true(paths.length > 7);
  for (const path of ['/docs/style.css', '/docs/script.js', ...paths]) {
    const page = await get(path);
    t.is(page.status, 200, path);
    const etag = page.headers.get('etag') ?? '';
    t.is((await get(path, { headers: { 'if-none-match': etag } })).status, 304, path);
    t.is((await get(path, { method: 'HEAD' })).headers.get('etag'), etag);
    const policy = page.headers.get('content-security-policy') ?? '';
    t.regex(policy, /default-src 'none'/);
    t.notRegex(policy, /unsafe|https?:/);
  }
  for (const path of paths) {
    const markdown = await get(`/docs/${path.split('/')[2] ?? 'index'}.md`);
    t.is(markdown.headers.get('content-type'), 'text/markdown; charset=utf-8');
    t.regex(await markdown.text(), /^# /);
  }
});

test('/llms-full.txt has the text of every page', async (t) => {
  const all = await (await get('/llms-full.txt')).text();
  for (const path of await pagePaths()) {
    const page = await get(`/docs/${path.split('/')[2] ?? 'index'}.md`);
    t.true(all.includes(await page.text()), path);
  }
});

test('a wrong path returns a page to browsers and problem JSON to programs', async (t) => {
  const page = await get('/docs/nothing', { headers: { accept: 'text/html,*/*' } });
  t.is(page.status, 404);
  t.regex(page.headers.get('content-type') ?? '', /^text\/html/);
  t.regex(await page.text(), /href="\/docs"/);
  const response = await get('/docs/nothing');
  t.is(response.status, 404);
  t.is(response.headers.get('content-type'), 'application/problem+json');
});

test('pages, llms.txt, OpenAPI, and errors name the service and its support', async (t) => {
  const { publicUrl, support } = SITE;
  for (const path of ['/docs', '/docs/limits', '/docs/errors'])
    t.true((await (await get(path)).text()).includes(`href="mailto:${support}"`), path);
  t.true((await (await get('/docs')).text()).includes(`NPI_EMAIL_URL=${publicUrl}`));
  t.true((await (await get('/llms.txt')).text()).includes(`Support: ${support}`));
  const document = await (await get('/openapi.json')).text();
  t.notRegex(document, /\{support\}/);
  const { servers, info } = JSON.parse(document);
  t.deepEqual([servers, info.contact.email], [[{ url: publicUrl }], support]);

  const { apiKey, organizationId } = await api.organization();
  const by = { actor: 'test', reason: 'test' };
  await suspendOrganization(api.db, by, organizationId, true);
  const refused = await fetch(`${api.baseUrl}/api/v1/credits`, {
    headers: { authorization: `Bearer ${apiKey}` },
  });
  t.is(refused.status, 403);
  const { detail } = (await refused.json()) as { detail: string };
  t.true(detail.endsWith(`ask ${support}.`), detail);
});

test('the documentation covers every error code', async (t) => {
  const errors = await (await get('/docs/errors')).text();
  const codes = Object.values(PROBLEMS).flatMap(({ codes }) => Object.keys(codes));
  t.deepEqual(
    codes.filter((code) => !errors.includes(`<h2 id="${code}">`)),
    [],
  );
});

for (const [width, colorScheme] of [
  [1280, 'light'],
  [375, 'dark'],
] as const) {
  inBrowser(
    `each page fits and is accessible at a width of ${width}, ${colorScheme}`,
    async (t) => {
      for (const path of await pagePaths()) {
        const options = { viewport: { width, height: 800 }, colorScheme };
        const trouble = await visit(
          browser,
          new URL(path, api.baseUrl),
          options,
          async (page) => {
            t.true(
              await page.evaluate('document.documentElement.scrollWidth <= innerWidth'),
              `${path} is too wide`,
            );
            await page.evaluate(axe.source);
            const { violations } = (await page.evaluate('axe.run()')) as axe.AxeResults;
            t.deepEqual(
              violations.map(
                ({ help, nodes: [node] }) => `${path}: ${help}: ${node?.html}`,
              ),
              [],
            );
          },
        );
        t.deepEqual(trouble, [], path);
      }
    },
  );
}

inBrowser('every link of a page leads to an existing page and heading', async (t) => {
  const ids = new Map<string, string[]>();
  const links: { readonly from: string; readonly href: string }[] = [];
  for (const path of await pagePaths()) {
    await visit(browser, new URL(path, api.baseUrl), {}, async (page) => {
      ids.set(
        path,
        await page.$$eval('[id]', (elements) => elements.map(({ id }) => id)),
      );
      const hrefs = await page.$$eval('a', (elements) =>
        elements.map(({ href }) => href),
      );
      links.push(...hrefs.map((href) => ({ from: path, href })));
      const wrong = await page.evaluate(
        '[...document.images].filter((one) => one.naturalWidth === 0).map(({ src }) => src)',
      );
      t.deepEqual(wrong, []);
    });
  }
  const broken: string[] = [];
  for (const { from, href } of links) {
    const { origin, pathname, hash } = new URL(href);
    if (origin !== new URL(api.baseUrl).origin) continue;
    const known = ids.get(pathname);
    const isThere = known
      ? hash === '' || known.includes(hash.slice(1))
      : (await get(pathname)).ok;
    if (!isThere) broken.push(`${from}: ${href}`);
  }
  t.true(links.length > 100);
  t.deepEqual(broken, []);
});

inBrowser('the search finds sections and operations', async (t) => {
  const url = new URL('/docs/errors', api.baseUrl);
  const trouble = await visit(browser, url, {}, async (page) => {
    for (const [words, path] of [
      ['reuse of keys idempotency', null],
      ['idempotency-key', '/docs/lifecycle#idempotency-key'],
      ['send a delivery again', '/docs/reference#tag/deliveries/POST'],
    ] as const) {
      await page.keyboard.press('/');
      await page.getByRole('searchbox').fill(words);
      const dialog = page.getByRole('dialog', { name: 'Search' });
      if (path === null) await dialog.getByText('Nothing found.').waitFor();
      else await dialog.locator(`a[href^="${path}"]`).first().waitFor();
      await page.keyboard.press('Escape');
    }
    await page.keyboard.press('/');
    await page.getByRole('searchbox').fill('idempotency-key');
    await page.getByRole('searchbox').press('Enter');
    await page.waitForURL('**/docs/lifecycle#idempotency-key');
  });
  t.deepEqual(trouble, []);
});

inBrowser('a code block has colors and a button that copies it', async (t) => {
  const options = { permissions: ['clipboard-read', 'clipboard-write'] };
  await visit(browser, new URL('/docs', api.baseUrl), options, async (page) => {
    t.true((await page.locator('.hljs-string').count()) > 5);
    const block = page.locator('.code').first();
    await block.getByRole('button', { name: 'Copy' }).click();
    await block.getByRole('button', { name: 'Copied' }).waitFor();
    const copied = await page.evaluate('navigator.clipboard.readText()');
    t.is(copied, await block.locator('code').textContent());
  });
});

for (const width of [390, 1440]) {
  inBrowser(`no code is cut off at the right of a page of ${width} pixels`, async (t) => {
    const options = { viewport: { width, height: 800 } };
    for (const path of ['/docs', '/docs/lifecycle', '/docs/webhooks', '/docs/no-code']) {
      await visit(browser, new URL(path, api.baseUrl), options, async (page) => {
        const cut = `[...document.querySelectorAll('pre')].filter((one) => one.scrollWidth > one.clientWidth)`;
        t.is(await page.evaluate(`${cut}.length`), 0, path);
      });
    }
  });
}

inBrowser('a narrow table shows the title of its column at each cell', async (t) => {
  const options = { viewport: { width: 390, height: 800 } };
  await visit(browser, new URL('/docs/sandbox', api.baseUrl), options, async (page) => {
    const cell = 'document.querySelectorAll("td")[2]';
    const label = await page.evaluate(`getComputedStyle(${cell}, "::before").content`);
    t.is(label, '"NPIs"');
  });
});
