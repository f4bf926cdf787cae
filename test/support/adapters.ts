import { VENDORS } from '../../activities/vendors/catalogue.ts';
import { parseSources } from '../../activities/vendors/file/config.ts';
import { createHttpJson } from '../../activities/vendors/file/vendor.ts';
import { FULLENRICH_POLL_MS } from '../../activities/vendors/fullenrich.ts';
import type { Vendor, VendorOptions } from '../../activities/vendors/vendor.ts';

/** One vendor that a file describes, in the least words. */
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
  return JSON.stringify([source]);
}

/** Every vendor there is, made for one server. */
export const ADAPTERS: Readonly<Record<string, (options: VendorOptions) => Vendor>> = {
  ...Object.fromEntries(
    Object.values(VENDORS).map(({ id, create }) => [
      id,
      (options: VendorOptions) => create({ ...options, api: 'legacy', pollMs: FULLENRICH_POLL_MS }),
    ]),
  ),
  listed({ baseUrl, apiKey, callMs = 30_000 }) {
    const [source] = parseSources(sourceText(baseUrl), () => apiKey);
    if (!source) throw new Error('the file describes no vendor');
    return createHttpJson({ ...source, timeout_ms: callMs });
  },
};
