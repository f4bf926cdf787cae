import { readFileSync } from 'node:fs';
import type { Logger } from 'pino';
import type { VendorSource } from '../../activities/deps.ts';
import { findHostsBy } from '../../activities/http/client.ts';
import type { Names } from '../../activities/http/names.ts';
import { REGISTRY } from '../../activities/lookup.ts';
import { createRegistry } from '../../activities/person/registry.ts';
import { VENDOR_IDS, VENDORS } from '../../activities/vendors/catalogue.ts';
import { createHttpJson } from '../../activities/vendors/file.ts';
import type { Vendor } from '../../activities/vendors/vendor.ts';
import { createCheck } from '../../activities/verification/check.ts';
import { createRequiredVerifiers, limited } from '../../activities/verification/consult.ts';
import {
  CONTROL_DOMAINS,
  createDnsControl,
  DNS,
} from '../../activities/verification/dns-control.ts';
import { VERIFIER_IDS, VERIFIERS } from '../../activities/verification/verifiers/catalogue.ts';
import { createVerifier } from '../../activities/verification/verifiers/verifier.ts';
import type { Database } from '../../db/client.ts';
import type { SourceLimits } from '../../db/lookups/sources.ts';
import type { EmailType } from '../../db/words.ts';
import type { Config } from './config.ts';
import { type LimitSettings, parseSourcesFile, type VendorSettings } from './sources-file.ts';
import { ConfigError } from './values.ts';

/**
 * Creates the sources that the environment and the sources file configure: vendors and verifiers in
 * their order, the registry, and the check that calls verifiers. From now on this process resolves
 * their hosts with `names`.
 * @throws {ConfigError} naming every problem of the file, or a policy that lacks the verifier it
 * needs
 */
export function createSources(config: Config, db: Database, names: Names, log: Logger) {
  const { access, registryUrl, catchAll, freshnessMs } = config;
  const text = config.sourcesFile === null ? '{}' : readFileSync(config.sourcesFile, 'utf8');
  const file = parseSourcesFile(text, config);
  const own = { api: file.vendors.rocketreach.api, pollMs: file.vendors.fullenrich.poll };

  const vendors = new Map<string, VendorSource>();
  for (const id of VENDOR_IDS) {
    const { types, ...settings } = file.vendors[id];
    if (access[id] === null) continue;
    const vendor = VENDORS[id].create({ ...access[id], ...own, callMs: settings.call });
    vendors.set(id, sourceOf(vendor, types, settings));
  }
  for (const one of file.http) vendors.set(one.id, sourceOf(createHttpJson(one), one.gives, one));

  const verifiers = new Map<string, ReturnType<typeof limited>>();
  for (const id of VERIFIER_IDS) {
    if (access[id] === null) continue;
    const verifier = createVerifier(VERIFIERS[id], access[id]);
    verifiers.set(id, limited(db, log, verifier, limitsOf(file.verifiers[id])));
  }
  const asked = inOrder(verifiers, file.verifiers.order);
  const policy =
    config.verifyPolicy ?? (asked.length === 0 ? 'vendor-or-verifier' : 'verify-always');
  if (policy !== 'vendor-or-verifier' && asked.length === 0) {
    throw new ConfigError(`VERIFY_POLICY is ${policy}, but no verifier has a key or a URL`);
  }

  const found = inOrder(vendors, file.order);
  // Without a verifier, only a dated claim or two agreeing sources can make an address valid
  // (POLICY_TABLE).
  const isEnough = asked.length > 0 || (catchAll === 'two-sources' && found.length > 1);
  const isOfUse = ({ vendor }: VendorSource) => isEnough || vendor.isDated;

  const useful = found.filter(isOfUse);
  const registry = file.registry === 'fallback' ? createRegistry({ baseUrl: registryUrl }) : null;

  findHostsBy(names.find);
  const controls = config.dnsControlDomain === null ? [] : [config.dnsControlDomain];
  const domains = [...controls, ...CONTROL_DOMAINS];
  const dnsControl = createDnsControl({ db, log, resolver: names, domains });
  return {
    vendors: useful,
    /** Ids of the vendors that are not called, because no address they name could become valid. */
    useless: found.filter((source) => !isOfUse(source)).map(({ vendor }) => vendor.id),
    verifiers: asked,
    registry,
    /** The sources that are called, with the daily credits of each. */
    asked: [
      ...useful.map(({ vendor, limits }) => ['vendor', vendor.id, limits.dailyCredits] as const),
      ...asked.map(({ id, dailyCredits }) => ['verifier', id, dailyCredits] as const),
      ...(registry ? [['registry', REGISTRY, null] as const] : []),
      ['dns', DNS, null] as const,
    ],
    check: createCheck({
      resolver: names,
      dnsControl,
      policy,
      catchAll,
      freshnessMs,
      verifiers: asked,
    }),
    requiredVerifiers: createRequiredVerifiers(policy, asked),
    greylistMs: file.greylist_wait,
    reverifyMs: file.reverify_interval,
  };
}

function sourceOf(
  vendor: Vendor,
  types: readonly EmailType[],
  settings: VendorSettings,
): VendorSource {
  const { wait: capMs, may_store: mayStore } = settings;
  return { vendor, types, capMs, mayStore, limits: limitsOf(settings) };
}

function limitsOf({ rates, daily_credits: dailyCredits }: LimitSettings): SourceLimits {
  return { rates, dailyCredits };
}

/**
 * Returns the values in the given order, or in the default order if it is null. The ids in an order
 * exist, because the file was checked.
 */
function inOrder<T>(all: ReadonlyMap<string, T>, order: readonly string[] | null): T[] {
  return (order ?? [...all.keys()]).flatMap((id) => all.get(id) ?? []);
}
