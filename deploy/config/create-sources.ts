import { Resolver } from 'node:dns/promises';
import { readFileSync } from 'node:fs';
import type { ActivityDeps, VendorSource } from '../../activities/deps.ts';
import { createRegistry } from '../../activities/person/registry.ts';
import { type HttpJsonSource, parseSources, SourcesError } from '../../activities/vendors/file/config.ts';
import { createHttpJson } from '../../activities/vendors/file/vendor.ts';
import { createFullEnrich } from '../../activities/vendors/fullenrich.ts';
import { createHunter } from '../../activities/vendors/hunter.ts';
import { createProspeo } from '../../activities/vendors/prospeo.ts';
import { createRocketReach } from '../../activities/vendors/rocketreach.ts';
import type { Provider } from '../../activities/vendors/vendor.ts';
import { createCheck } from '../../activities/verification/check.ts';
import { createAsk } from '../../activities/verification/consult.ts';
import { createNeverBounce } from '../../activities/verification/verifiers/neverbounce.ts';
import { createReacher } from '../../activities/verification/verifiers/reacher.ts';
import type { Verifier } from '../../activities/verification/verifiers/verifier.ts';
import { createZeroBounce } from '../../activities/verification/verifiers/zerobounce.ts';
import type { Database } from '../../db/client.ts';
import type { Rate } from '../../db/lookups/sources.ts';
import { type Config, ConfigError } from './config.ts';
import type { SourcesConfig, VendorConfig, VerifierConfig } from './sources.ts';

export type Sources = Pick<ActivityDeps, 'vendors' | 'verifiers' | 'registry' | 'check'>;

/**
 * Makes what the configuration names: vendors in their order, verifiers, the registry, and the check that asks them.
 * @param dnsServers `address:port`; empty for the system's
 * @throws {ConfigError} for a vendor file that cannot be read or has problems, and for unknown ids in VENDORS
 */
export function createSources(
  { sources: config, secretOf, freshnessMs }: Pick<Config, 'sources' | 'secretOf' | 'freshnessMs'>,
  { db, dnsServers }: { readonly db: Database; readonly dnsServers: readonly string[] },
): Sources {
  const { policy, catchAll, registryUrl } = config;
  const verifiers = config.verifiers.map(verifierOf);
  if (policy === 'verifier-required' && verifiers.length === 0) {
    throw new ConfigError('VERIFY_POLICY is verifier-required, but no verifier has a key or a URL');
  }
  const limits = new Map(config.verifiers.map((one) => [one.id, one.limits]));
  const resolver = new Resolver({ timeout: 2000, tries: 2 });
  if (dnsServers.length > 0) resolver.setServers(dnsServers);
  return {
    vendors: inOrder(config, [
      ...config.vendors.map((one) => vendorOf(one, config)),
      ...readVendorFile(config.vendorFile, secretOf).map(sourceOf),
    ]),
    verifiers,
    registry: registryUrl === null ? null : createRegistry({ baseUrl: registryUrl }),
    check: createCheck({ resolver, policy, catchAll, freshnessMs, verifiers, ask: createAsk(db, limits) }),
  };
}

function vendorOf(one: VendorConfig, config: SourcesConfig): VendorSource {
  const { types, capMs, limits, mayStore } = one;
  const provider = providerOf(one, config);
  return { provider, capMs, limits, mayStore, types: provider.gives.filter((type) => types.includes(type)) };
}

function providerOf({ id, url: baseUrl, apiKey }: VendorConfig, config: SourcesConfig): Provider {
  switch (id) {
    case 'rocketreach':
      return createRocketReach({ baseUrl, apiKey, api: config.rocketReachApi });
    case 'fullenrich':
      return createFullEnrich({ baseUrl, apiKey, pollMs: config.fullEnrichPollMs });
    case 'prospeo':
      return createProspeo({ baseUrl, apiKey });
    case 'hunter':
      return createHunter({ baseUrl, apiKey });
    default:
      return id satisfies never;
  }
}

function verifierOf({ id, url: baseUrl, apiKey }: VerifierConfig): Verifier {
  switch (id) {
    case 'reacher':
      return createReacher({ baseUrl, secret: apiKey });
    case 'zerobounce':
      return createZeroBounce({ baseUrl, apiKey: apiKey ?? '' });
    case 'neverbounce':
      return createNeverBounce({ baseUrl, apiKey: apiKey ?? '' });
    default:
      return id satisfies never;
  }
}

function readVendorFile(
  file: string | null,
  secretOf: (name: string) => string | undefined,
): readonly HttpJsonSource[] {
  if (file === null) return [];
  try {
    return parseSources(readFileSync(file, 'utf8'), secretOf);
  } catch (error) {
    if (error instanceof SourcesError) throw new ConfigError(`VENDOR_FILE: ${error.message}`);
    throw new ConfigError(`VENDOR_FILE cannot be read: ${(error as NodeJS.ErrnoException).code}`);
  }
}

function sourceOf(source: HttpJsonSource): VendorSource {
  const { gives: types, may_store: mayStore, wait_ms: capMs, limits } = source;
  const rates = [
    { calls: limits.per_second, perMs: 1000 },
    { calls: limits.per_minute, perMs: 60_000 },
  ].filter((rate): rate is Rate => rate.calls !== null);
  const provider = createHttpJson(source);
  return { provider, types, mayStore, capMs, limits: { rates, dailyCredits: limits.daily_credits } };
}

/** Those that VENDORS names, in its order; all of them, in the usual one, where it names none. */
function inOrder({ vendorOrder }: SourcesConfig, all: readonly VendorSource[]): VendorSource[] {
  if (vendorOrder.length === 0) return [...all];
  return vendorOrder.map((id) => {
    const source = all.find(({ provider }) => provider.id === id);
    if (source) return source;
    throw new ConfigError(
      `VENDORS names ${id}, which has no key and is not in VENDOR_FILE; set its key or leave it out`,
    );
  });
}
