import { Resolver } from 'node:dns/promises';
import { readFileSync } from 'node:fs';
import Joi from 'joi';
import type { ActivityDeps, VendorSource } from '../../activities/deps.ts';
import { createRegistry, REGISTRY_URL } from '../../activities/person/registry.ts';
import { VENDOR_IDS, VENDORS, type VendorId } from '../../activities/vendors/catalogue.ts';
import { parseSources, SourcesError } from '../../activities/vendors/file/config.ts';
import { createHttpJson } from '../../activities/vendors/file/vendor.ts';
import { FULLENRICH_POLL_MS } from '../../activities/vendors/fullenrich.ts';
import { ROCKETREACH_APIS, type RocketReachApi } from '../../activities/vendors/rocketreach.ts';
import { createCheck } from '../../activities/verification/check.ts';
import { createAsk } from '../../activities/verification/consult.ts';
import {
  CATCH_ALL_POLICIES,
  type CatchAllPolicy,
  POLICIES,
  type Policy,
} from '../../activities/verification/policy.ts';
import {
  VERIFIER_IDS,
  VERIFIERS,
  type VerifierId,
} from '../../activities/verification/verifiers/catalogue.ts';
import type { Database } from '../../db/client.ts';
import type { Rate, SourceLimits } from '../../db/lookups/sources.ts';
import { EMAIL_TYPES, type EmailType } from '../../db/words.ts';
import { anyUrl, ConfigError, confidentialUrl, duration, list, parseDuration } from './values.ts';

// What is bought from whom, under which limits, and the sources made of it. Each vendor and verifier has the same set of
// variables, whose defaults are the facts in its own file: a new one is a line in its catalogue.

/** One vendor that is configured: it has a key. */
export interface VendorConfig {
  readonly id: VendorId;
  readonly url: string;
  readonly apiKey: string;
  readonly types: readonly EmailType[];
  readonly capMs: number;
  readonly callMs: number;
  readonly limits: SourceLimits;
  readonly mayStore: boolean;
}

/** One verifier that is configured: it has a key or, if it is one's own server, a URL. */
export interface VerifierConfig {
  readonly id: VerifierId;
  readonly url: string;
  readonly apiKey: string | null;
  readonly limits: SourceLimits;
}

export interface SourcesConfig {
  /** The order in which all are asked: ids of vendors here and in the vendor file; empty for the usual one. */
  readonly vendorOrder: readonly string[];
  readonly vendors: readonly VendorConfig[];
  /** A file of further vendors. */
  readonly vendorFile: string | null;
  readonly rocketReachApi: RocketReachApi;
  readonly fullEnrichPollMs: number;
  readonly verifiers: readonly VerifierConfig[];
  readonly policy: Policy;
  readonly catchAll: CatchAllPolicy;
  /** Where the NPI Registry is; null if it is not asked. */
  readonly registryUrl: string | null;
  readonly greylistMs: number;
  readonly reverifyIntervalMs: number;
}

const secret = Joi.string().empty('').default(null);
const rates = list(parseRate, 'rates such as 10/1s or 500/1m');
const credits = Joi.number().min(0).default(null);
const ids = (known: readonly string[]) =>
  list((text) => (known.includes(text) ? text : null), `some of ${known.join(', ')}`).default(known);

const vendorVariables = Object.values(VENDORS).flatMap((facts) => {
  const name = facts.id.toUpperCase();
  return [
    [`${name}_API_KEY`, secret],
    [`${name}_URL`, confidentialUrl().default(facts.url)],
    [`${name}_TYPES`, ids(EMAIL_TYPES)],
    [`${name}_TIMEOUT`, duration(1000, 900_000).default(facts.capMs)],
    [`${name}_RATES`, rates.default(facts.rates)],
    [`${name}_DAILY_CREDITS`, credits],
    [`${name}_MAY_STORE`, Joi.boolean().default(facts.mayStore)],
  ];
});
const verifierVariables = Object.values(VERIFIERS).flatMap((facts) => {
  const name = facts.id.toUpperCase();
  return [
    [`${name}_API_KEY`, secret],
    // A server of one's own may be in a network of one's own.
    [`${name}_URL`, (facts.url === null ? anyUrl() : confidentialUrl()).default(facts.url)],
    [`${name}_RATES`, rates.default(facts.rates)],
    [`${name}_DAILY_CREDITS`, credits],
  ];
});

/** Every variable about sources, for the one schema of `config.ts`. */
export const SOURCE_VARIABLES: Joi.PartialSchemaMap = {
  ...Object.fromEntries([...vendorVariables, ...verifierVariables]),
  VENDORS: list((text) => (/^[a-z][a-z0-9_-]*$/.test(text) ? text : null), 'ids of vendors').default([]),
  VENDOR_FILE: Joi.string().empty('').default(null),
  ROCKETREACH_API: Joi.string()
    .valid(...ROCKETREACH_APIS)
    .default('legacy'),
  FULLENRICH_POLL: duration(100, 300_000).default(FULLENRICH_POLL_MS),
  VERIFIERS: ids(VERIFIER_IDS),
  VERIFY_POLICY: Joi.string()
    .valid(...POLICIES)
    .default('vendor-or-verifier'),
  CATCH_ALL: Joi.string()
    .valid(...CATCH_ALL_POLICIES)
    .default('reject'),
  NPPES_API: Joi.string().valid('off', 'fallback').default('off'),
  NPPES_API_URL: confidentialUrl().default(REGISTRY_URL),
  VENDOR_CALL_TIMEOUT: duration(500, 300_000).default(null),
  GREYLIST_WAIT: duration(1000, 840_000).default(300_000),
  REVERIFY_INTERVAL: duration(1000, 86_400_000).default(600_000),
};

/** @param env what the one schema made of the environment */
export function sourcesOf(env: Joi.ValidationResult['value']): SourcesConfig {
  const limitsOf = (name: string): SourceLimits => ({
    rates: env[`${name}_RATES`],
    dailyCredits: env[`${name}_DAILY_CREDITS`],
  });
  const vendors = VENDOR_IDS.map((id) => ({ id, name: id.toUpperCase() }))
    .filter(({ name }) => env[`${name}_API_KEY`] !== null)
    .map(
      ({ id, name }): VendorConfig => ({
        id,
        url: env[`${name}_URL`],
        apiKey: env[`${name}_API_KEY`],
        types: env[`${name}_TYPES`],
        capMs: env[`${name}_TIMEOUT`],
        callMs: env.VENDOR_CALL_TIMEOUT ?? VENDORS[id].callMs,
        limits: limitsOf(name),
        mayStore: env[`${name}_MAY_STORE`],
      }),
    );
  const chosen: readonly VerifierId[] = env.VERIFIERS;
  const verifiers = chosen
    .map((id) => ({ id, name: id.toUpperCase() }))
    // A server of one's own needs a URL and may do without a key; the others have a URL and need a key.
    .filter(({ id, name }) => env[VERIFIERS[id].url === null ? `${name}_URL` : `${name}_API_KEY`] !== null)
    .map(
      ({ id, name }): VerifierConfig => ({
        id,
        url: env[`${name}_URL`],
        apiKey: env[`${name}_API_KEY`],
        limits: limitsOf(name),
      }),
    );
  return Object.freeze({
    vendorOrder: env.VENDORS,
    vendors,
    vendorFile: env.VENDOR_FILE,
    rocketReachApi: env.ROCKETREACH_API,
    fullEnrichPollMs: env.FULLENRICH_POLL,
    verifiers,
    policy: env.VERIFY_POLICY,
    catchAll: env.CATCH_ALL,
    registryUrl: env.NPPES_API === 'fallback' ? env.NPPES_API_URL : null,
    greylistMs: env.GREYLIST_WAIT,
    reverifyIntervalMs: env.REVERIFY_INTERVAL,
  });
}

export type Sources = Pick<ActivityDeps, 'vendors' | 'verifiers' | 'registry' | 'check'>;

interface SourcesContext {
  readonly db: Database;
  /** `address:port`; empty for the system's. */
  readonly dnsServers: readonly string[];
}

interface Settings {
  readonly sources: SourcesConfig;
  /** What a `${VENDOR_NAME}` in the vendor file stands for. */
  readonly secretOf: (name: string) => string | undefined;
  readonly freshnessMs: number;
}

/**
 * Makes what the configuration names: vendors in their order, verifiers, the registry, and the check that asks them.
 * @throws {ConfigError} for a vendor file that cannot be read or has problems, and for unknown ids in VENDORS
 */
export function createSources(settings: Settings, { db, dnsServers }: SourcesContext): Sources {
  const { sources: config, freshnessMs } = settings;
  const { policy, catchAll, registryUrl } = config;
  const verifiers = config.verifiers.map(({ id, url: baseUrl, apiKey }) =>
    VERIFIERS[id].create({ baseUrl, apiKey: apiKey ?? '' }),
  );
  if (policy === 'verifier-required' && verifiers.length === 0) {
    throw new ConfigError('VERIFY_POLICY is verifier-required, but no verifier has a key or a URL');
  }
  const limits = new Map<string, SourceLimits>(config.verifiers.map((one) => [one.id, one.limits]));
  const resolver = new Resolver({ timeout: 2000, tries: 2 });
  if (dnsServers.length > 0) resolver.setServers(dnsServers);
  return {
    vendors: inOrder(config, [
      ...config.vendors.map((one) => vendorOf(one, config)),
      ...readVendorFile(settings),
    ]),
    verifiers,
    registry: registryUrl === null ? null : createRegistry({ baseUrl: registryUrl }),
    check: createCheck({ resolver, policy, catchAll, freshnessMs, verifiers, ask: createAsk(db, limits) }),
  };
}

function vendorOf(one: VendorConfig, config: SourcesConfig): VendorSource {
  const { id, url: baseUrl, apiKey, types, callMs, capMs, limits, mayStore } = one;
  const vendor = VENDORS[id].create({
    baseUrl,
    apiKey,
    callMs,
    api: config.rocketReachApi,
    pollMs: config.fullEnrichPollMs,
  });
  return { vendor, capMs, limits, mayStore, types: vendor.gives.filter((type) => types.includes(type)) };
}

function readVendorFile({ sources: { vendorFile }, secretOf }: Settings): VendorSource[] {
  if (vendorFile === null) return [];
  try {
    return parseSources(readFileSync(vendorFile, 'utf8'), secretOf).map((source) => {
      const { gives: types, may_store: mayStore, wait_ms: capMs, limits } = source;
      const paces = [
        { calls: limits.per_second, perMs: 1000 },
        { calls: limits.per_minute, perMs: 60_000 },
      ].filter((rate): rate is Rate => rate.calls !== null);
      const vendor = createHttpJson(source);
      return { vendor, types, mayStore, capMs, limits: { rates: paces, dailyCredits: limits.daily_credits } };
    });
  } catch (error) {
    if (error instanceof SourcesError) throw new ConfigError(`VENDOR_FILE: ${error.message}`);
    throw new ConfigError(`VENDOR_FILE cannot be read: ${(error as NodeJS.ErrnoException).code}`);
  }
}

/** Those that VENDORS names, in its order; all of them, in the usual one, if it names none. */
function inOrder({ vendorOrder }: SourcesConfig, all: readonly VendorSource[]): VendorSource[] {
  if (vendorOrder.length === 0) return [...all];
  return vendorOrder.map((id) => {
    const source = all.find(({ vendor }) => vendor.id === id);
    if (source) return source;
    throw new ConfigError(
      `VENDORS names ${id}, which has no key and is not in VENDOR_FILE; set its key or leave it out`,
    );
  });
}

/** `500/1m` → at most 500 calls in any minute; null if the text is no rate. */
export function parseRate(text: string): Rate | null {
  const match = /^([1-9][0-9]{0,5})\/([0-9]+[a-z]+)$/.exec(text);
  const perMs = parseDuration(match?.[2] ?? '');
  return match && perMs ? { calls: Number(match[1]), perMs } : null;
}
