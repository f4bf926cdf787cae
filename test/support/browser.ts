import chromium from '@sparticuz/chromium';
import { type Browser, type Page, chromium as playwright } from 'playwright-core';
import { HANG_MS } from './organization.ts';

// A browser for tests of the pages for customers.

/**
 * Opens a browser. Returns null and prints a line if the Chromium of the npm package does not run
 * here.
 */
export async function openBrowser(): Promise<Browser | null> {
  try {
    return await playwright.launch({
      executablePath: await chromium.executablePath(),
      args: ['--no-sandbox'],
    });
  } catch (error) {
    console.log(
      `no Chromium runs here: what needs a browser is skipped (${String(error).split('\n')[0]})`,
    );
    return null;
  }
}

/**
 * Visits a page, and returns its requests to other hosts, its failed requests, its errors, and its
 * console messages, except information.
 */
export async function visit(
  browser: Browser | null,
  url: URL,
  options: Parameters<Browser['newPage']>[0],
  use: (page: Page) => Promise<void>,
): Promise<readonly string[]> {
  const page = await browser?.newPage(options);
  if (!page) throw new Error('no browser');
  page.setDefaultTimeout(HANG_MS);
  const trouble: string[] = [];
  page.on('console', (message) => {
    if (message.type() !== 'info') trouble.push(message.text());
  });
  page.on('pageerror', ({ message }) => trouble.push(message));
  page.on('requestfailed', (request) => trouble.push(request.url()));
  page.on('request', (request) => {
    const { origin, protocol } = new URL(request.url());
    if (origin !== url.origin && protocol !== 'data:') trouble.push(request.url());
  });
  await page.goto(url.href);
  await use(page);
  await page.close();
  return trouble;
}
