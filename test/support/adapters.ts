import { createFullEnrich, FULLENRICH_POLL_MS } from '../../activities/providers/fullenrich.ts';
import { createHttpJson } from '../../activities/providers/http-json.ts';
import { parseSources } from '../../activities/providers/http-json-config.ts';
import { createHunter } from '../../activities/providers/hunter.ts';
import type { Provider } from '../../activities/providers/port.ts';
import { createProspeo } from '../../activities/providers/prospeo.ts';
import { createRocketReach } from '../../activities/providers/rocketreach.ts';

export interface AdapterOptions {
  readonly baseUrl: string;
  readonly apiKey: string;
}

/** One vendor that a file describes, in the least words. */
export function sourceText(baseUrl: string, rest: object = {}): string {
  const source = {
    id: 'listed',
    url: `${baseUrl}/people/{npi}?last={last}`,
    headers: { 'x-key': `\${LISTED_KEY}` },
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
