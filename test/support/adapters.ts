import { parseSources } from '../../activities/vendors/file/config.ts';
import { createHttpJson } from '../../activities/vendors/file/vendor.ts';
import { createFullEnrich, FULLENRICH_POLL_MS } from '../../activities/vendors/fullenrich.ts';
import { createHunter } from '../../activities/vendors/hunter.ts';
import { createProspeo } from '../../activities/vendors/prospeo.ts';
import { createRocketReach } from '../../activities/vendors/rocketreach.ts';
import type { Provider } from '../../activities/vendors/vendor.ts';

export interface AdapterOptions {
  readonly baseUrl: string;
  readonly apiKey: string;
}

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

/** Every adapter there is, made for one server. */
export const ADAPTERS: Readonly<Record<string, (options: AdapterOptions) => Provider>> = {
  rocketreach: (options) => createRocketReach({ ...options, api: 'legacy' }),
  fullenrich: (options) => createFullEnrich({ ...options, pollMs: FULLENRICH_POLL_MS }),
  prospeo: createProspeo,
  hunter: createHunter,
  listed({ baseUrl, apiKey }) {
    const [source] = parseSources(sourceText(baseUrl), () => apiKey);
    if (!source) throw new Error('the file describes no vendor');
    return createHttpJson(source);
  },
};
