import type { Simulator } from './simulator.ts';

/**
 * Every simulated vendor, one verifier and the registry, configured as an operator would configure the real ones. No
 * real source is asked about people who do not exist, whatever keys the environment has.
 */
export function sourceSettings(urls: Simulator['urls'], key: string) {
  return {
    ...{ ROCKETREACH_URL: urls.rocketreach, ROCKETREACH_API_KEY: key },
    ...{ FULLENRICH_URL: urls.fullenrich, FULLENRICH_API_KEY: key },
    ...{ PROSPEO_URL: urls.prospeo, PROSPEO_API_KEY: key },
    ...{ HUNTER_URL: urls.hunter, HUNTER_API_KEY: key },
    ...{ REACHER_URL: urls.reacher, REACHER_API_KEY: key },
    ...{ NPPES_API: 'fallback', NPPES_API_URL: urls.registry },
    ...{ VENDORS: '', VENDOR_FILE: '', VERIFIERS: 'reacher' },
  };
}
