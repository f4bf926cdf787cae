import { VENDORS } from '../../activities/vendors/catalogue.ts';
import { createHttpJson } from '../../activities/vendors/file.ts';
import { FULLENRICH_POLL_MS } from '../../activities/vendors/fullenrich.ts';
import type { Vendor, VendorOptions } from '../../activities/vendors/vendor.ts';
import { loadConfig } from '../../deploy/config/config.ts';
import { parseSourcesFile } from '../../deploy/config/sources-file.ts';
import { BUSY_MS } from './database.ts';

/** Parses a sources file like a worker with these environment variables. */
export function fileIn(text: string, environment: Readonly<Record<string, string>> = {}) {
  return parseSourcesFile(
    text,
    loadConfig({ DATABASE_URL: 'postgres://127.0.0.1/none', ...environment }),
  );
}

/** Returns a sources file that describes one vendor with only the required fields. */
export function sourceText(baseUrl: string, rest: object = {}): string {
  const source = {
    id: 'listed',
    url: `${baseUrl}/people/{npi}?last={last}`,
    headers: { 'x-key': `\${VENDOR_LISTED_KEY}` },
    needs: ['npi', 'name', 'organization'],
    gives: ['professional'],
    cost: 1,
    may_store: true,
    candidates: { list: '/results', email: '/address' },
    identity: { npi: '/npi' },
    ...rest,
  };
  return JSON.stringify({ http: [source] });
}

/** Every vendor, by ID, with a function that creates it for one server. */
export const ADAPTERS: Readonly<Record<string, (options: VendorOptions) => Vendor>> = {
  ...Object.fromEntries(
    Object.values(VENDORS).map(({ id, create }) => [
      id,
      (options: VendorOptions) =>
        create({
          callMs: BUSY_MS,
          ...options,
          api: 'legacy',
          pollMs: FULLENRICH_POLL_MS,
        }),
    ]),
  ),
  listed({ baseUrl, apiKey, callMs = BUSY_MS }) {
    const [source] = fileIn(sourceText(baseUrl), { VENDOR_LISTED_KEY: apiKey }).http;
    if (!source) throw new Error('the file describes no vendor');
    return createHttpJson({ ...source, call: callMs });
  },
};
