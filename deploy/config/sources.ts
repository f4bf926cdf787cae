import { readFileSync } from 'node:fs';
import type { Logger } from 'pino';
import type { VendorSource } from '../../activities/deps.ts';
import { findHostsBy } from '../../activities/http/client.ts';
import type { Names } from '../../activities/http/names.ts';
import { REGISTRY } from '../../activities/lookup.ts';
import { createRegistry } from '../../activities/person/registry.ts';
import { createSpending } from '../../activities/spending.ts';
import { VENDOR_IDS, VENDORS } from '../../activities/vendors/catalogue.ts';
import { createHttpJson } from '../../activities/vendors/file.ts';
import { halfOf, isPricedByType } from '../../activities/vendors/halves.ts';
import { PATTERN } from '../../activities/vendors/pattern.ts';
import type { Vendor } from '../../activities/vendors/vendor.ts';
import { createCheck } from '../../activities/verification/check.ts';
import {
  createRequiredVerifiers,
  limited,
} from '../../activities/verification/consult.ts';
import {
  CONTROL_DOMAINS,
  createDnsControl,
  DNS,
} from '../../activities/verification/dns-control.ts';
import type { Policy } from '../../activities/verification/policy.ts';
import {
  VERIFIER_IDS,
  VERIFIERS,
} from '../../activities/verification/verifiers/catalogue.ts';
import { createVerifier } from '../../activities/verification/verifiers/verifier.ts';
import type { Database } from '../../db/connection/client.ts';
import type { SourceLimits } from '../../db/lookups/sources.ts';
import type { ConfiguredSource } from '../../db/operations/stats.ts';
import { accountOf, EMAIL_TYPES, type EmailType } from '../../db/words.ts';
import type { Config } from './config.ts';
import {
  type LimitSettings,
  parseSourcesFile,
  type SourcesFile,
  type VendorSettings,
} from './sources-file.ts';
import { ConfigError, problemsIn } from './values.ts';

/**
 * Creates the sources that the environment and the sources file configure: the vendors and
 * verifiers in the order of their calls, the NPI Registry, and the check of addresses. Also sets
 * `names` as the DNS resolver for calls to sources in this process.
 * @throws {ConfigError} that lists all problems of the sources file, or says that the policy needs
 * a verifier and none is configured
 */
export function createSources(config: Config, db: Database, names: Names, log: Logger) {
  const file = readSourcesFile(config);
  const verifiers = inOrder(createVerifiers(config, file, db, log), file.verifiers.order);
  const vendors = inOrder(
    createVendors(config, file),
    file.order === 'auto' ? null : file.order,
  );
  // Only a verifier can confirm an address that we wrote ourselves. `order` lists vendors, so it does
  // not decide about this source: it is free, and each address that it finds saves a paid call.
  if (verifiers.length > 0 && file.pattern === 'first') {
    vendors.unshift(PATTERN_SETTINGS);
  }
  requirePrices(file, vendors);
  const policy = policyOf(config, verifiers.length);
  const { catchAll, freshnessMs, registryUrl } = config;

  // Without a verifier, an address becomes valid only in two cases: a vendor says when it last
  // validated the address, or, with CATCH_ALL=two-sources, two sources name the same address
  // (POLICY_TABLE). A vendor that can't contribute to either case is not called.
  const isAnyUseful =
    verifiers.length > 0 || (catchAll === 'two-sources' && accountsOf(vendors).size > 1);
  const useful = vendors.filter(({ vendor }) => isAnyUseful || vendor.isDated);
  const useless = vendors.filter((source) => !useful.includes(source));
  const registry =
    file.registry === 'fallback' ? createRegistry({ baseUrl: registryUrl }) : null;

  findHostsBy(names.find);
  const domains = [...CONTROL_DOMAINS];
  if (config.dnsControlDomain !== null) {
    domains.unshift(config.dnsControlDomain);
  }
  const dnsControl = createDnsControl({ db, log, resolver: names, domains });

  /** All sources that are called, each with its role, its id, and its limit of daily credits. */
  const asked: ConfiguredSource[] = [];
  const accounts = new Map(
    useful.map(({ vendor, limits }) => [accountOf(vendor.id), limits.dailyCredits]),
  );
  for (const [id, dailyCredits] of accounts) {
    asked.push(['vendor', id, dailyCredits]);
  }
  for (const { id, dailyCredits } of verifiers) {
    asked.push(['verifier', id, dailyCredits]);
  }
  if (registry !== null) asked.push(['registry', REGISTRY, null]);
  asked.push(['dns', DNS, null]);

  return {
    vendors: useful,
    /**
     * Ids of the vendors that are not called, because none of their addresses could become valid.
     */
    useless: [...accountsOf(useless)],
    verifiers,
    registry,
    asked,
    check: createCheck({
      resolver: names,
      dnsControl,
      policy,
      catchAll,
      freshnessMs,
      verifiers,
    }),
    requiredVerifiers: createRequiredVerifiers(policy, verifiers),
    /** Dollars per credit of each source with a price. */
    prices: pricesOf(file),
    spending: createSpending(db, {
      isAuto: file.order === 'auto',
      maxPricePerLookup: file.max_price_per_lookup,
    }),
    greylistMs: file.greylist_wait,
    reverifyMs: file.reverify_interval,
  };
}

/** @throws {ConfigError} that lists all problems of the file */
function readSourcesFile(config: Config): SourcesFile {
  if (config.sourcesFile === null) {
    return parseSourcesFile('{}', config);
  }
  return parseSourcesFile(readFileSync(config.sourcesFile, 'utf8'), config);
}

/**
 * Creates the built-in vendors that have a key, and the vendors in `http` of the sources file.
 * Returns a map from id to vendor, in the default order.
 */
function createVendors({ access }: Config, file: SourcesFile): Map<string, VendorSource> {
  const vendors = new Map<string, VendorSource>();
  const api = file.vendors.rocketreach.api;
  const pollMs = file.vendors.fullenrich.poll;
  for (const id of VENDOR_IDS) {
    const given = access[id];
    if (given === null) continue;
    const { types, ...settings } = file.vendors[id];
    const vendor = VENDORS[id].create({ ...given, api, pollMs, callMs: settings.call });
    if (isPricedByType(vendor)) {
      for (const type of EMAIL_TYPES.filter((one) => types.includes(one))) {
        const half = halfOf(vendor, type);
        vendors.set(half.id, sourceOf(half, [type], settings));
      }
    } else {
      vendors.set(id, sourceOf(vendor, types, settings));
    }
  }
  for (const one of file.http) {
    vendors.set(one.id, sourceOf(createHttpJson(one), one.gives, one));
  }
  return vendors;
}

const PATTERN_SETTINGS: VendorSource = {
  vendor: PATTERN,
  types: PATTERN.gives,
  capMs: 60_000,
  mayStore: true,
  limits: { rates: [], dailyCredits: null },
  dollarsPerCredit: 0,
};

/**
 * Creates the verifiers that have a key or a URL. Returns a map from id to verifier, in the default
 * order.
 */
function createVerifiers(
  { access }: Config,
  file: SourcesFile,
  db: Database,
  log: Logger,
) {
  const verifiers = new Map<string, ReturnType<typeof limited>>();
  for (const id of VERIFIER_IDS) {
    const given = access[id];
    if (given === null) continue;
    const verifier = createVerifier(VERIFIERS[id], given);
    verifiers.set(
      id,
      limited({ db, log, verifier, limits: limitsOf(file.verifiers[id]) }),
    );
  }
  return verifiers;
}

/**
 * Returns the policy in use.
 * @param verifiers the number of verifiers with a key or a URL
 * @throws {ConfigError} if the policy needs a verifier and there isn't one
 */
export function policyOf(
  { verifyPolicy }: Pick<Config, 'verifyPolicy'>,
  verifiers: number,
): Policy {
  if (verifiers > 0) return verifyPolicy ?? 'verify-always';
  const policy = verifyPolicy ?? 'vendor-or-verifier';
  if (policy === 'vendor-or-verifier') return policy;
  throw new ConfigError(
    `VERIFY_POLICY is ${policy}, but no verifier has a key or a URL; configure one, or unset VERIFY_POLICY`,
  );
}

/**
 * Checks that every vendor has a price if the settings need it. The order and the limit of a lookup
 * would otherwise treat a vendor as free.
 * @throws {ConfigError} that names the vendors without a price
 */
function requirePrices(file: SourcesFile, vendors: readonly VendorSource[]): void {
  if (file.order !== 'auto' && file.max_price_per_lookup === null) {
    return;
  }
  const unpriced = vendors.filter(({ dollarsPerCredit }) => dollarsPerCredit === null);
  if (unpriced.length === 0) return;
  const problems = [...accountsOf(unpriced)].map(
    (id) => `price_per_credit of ${id} is missing: its dollars per credit`,
  );
  throw problemsIn('SOURCES_FILE', problems);
}

/** Returns the ids of vendors, each once, although some are called as two halves. */
function accountsOf(vendors: readonly VendorSource[]): ReadonlySet<string> {
  return new Set(vendors.map(({ vendor }) => accountOf(vendor.id)));
}

/** Returns the dollars per credit of each source whose price is set. */
function pricesOf({
  vendors,
  verifiers,
  http,
}: SourcesFile): ReadonlyMap<string, number> {
  const settings: [string, LimitSettings][] = [
    ...VENDOR_IDS.map((id) => [id, vendors[id]] as [string, LimitSettings]),
    ...VERIFIER_IDS.map((id) => [id, verifiers[id]] as [string, LimitSettings]),
    ...http.map((one) => [one.id, one] as [string, LimitSettings]),
  ];
  const prices = new Map<string, number>();
  for (const [id, { price_per_credit: dollars }] of settings) {
    if (dollars !== null) prices.set(id, dollars);
  }
  return prices;
}

function sourceOf(
  vendor: Vendor,
  types: readonly EmailType[],
  settings: VendorSettings,
): VendorSource {
  const { wait: capMs, may_store: mayStore } = settings;
  return {
    vendor,
    types,
    capMs,
    mayStore,
    limits: limitsOf(settings),
    dollarsPerCredit: settings.price_per_credit,
  };
}

function limitsOf({ rates, daily_credits: dailyCredits }: LimitSettings): SourceLimits {
  return { rates, dailyCredits };
}

/**
 * Returns the values with the given ids, in the order of the ids. If `order` is null, returns all
 * values in the default order.
 */
function inOrder<T>(all: ReadonlyMap<string, T>, order: readonly string[] | null): T[] {
  if (order === null) return [...all.values()];
  const sources = [...all];
  return order.flatMap((listed) =>
    sources.filter(([id]) => accountOf(id) === listed).map(([, source]) => source),
  );
}
