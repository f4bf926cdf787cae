import Joi from 'joi';
import { REGISTRY_URL } from '../../activities/person/registry.ts';
import { FULLENRICH, FULLENRICH_POLL_MS } from '../../activities/vendors/fullenrich.ts';
import { HUNTER } from '../../activities/vendors/hunter.ts';
import { PROSPEO } from '../../activities/vendors/prospeo.ts';
import { ROCKETREACH, ROCKETREACH_APIS, type RocketReachApi } from '../../activities/vendors/rocketreach.ts';
import {
  CATCH_ALL_POLICIES,
  type CatchAllPolicy,
  POLICIES,
  type Policy,
} from '../../activities/verification/policy.ts';
import { NEVERBOUNCE } from '../../activities/verification/verifiers/neverbounce.ts';
import { REACHER } from '../../activities/verification/verifiers/reacher.ts';
import { ZEROBOUNCE } from '../../activities/verification/verifiers/zerobounce.ts';
import type { Rate, SourceLimits } from '../../db/lookups/sources.ts';
import { EMAIL_TYPES, type EmailType } from '../../db/words.ts';
import { anyUrl, confidentialUrl, duration, list, parseDuration } from './values.ts';

// What is bought from whom, under which limits. Each vendor and verifier has the same set of variables, whose defaults
// are the facts in its adapter's file, so that one word here is all that a new one needs.

/** One vendor that is configured: it has a key. */
export interface VendorConfig {
  readonly id: VendorId;
  readonly url: string;
  readonly apiKey: string;
  readonly types: readonly EmailType[];
  readonly capMs: number;
  readonly limits: SourceLimits;
  readonly mayStore: boolean;
}

/** One verifier that is configured: it has a key or, where it is one's own server, a URL. */
export interface VerifierConfig {
  readonly id: VerifierId;
  readonly url: string;
  readonly apiKey: string | null;
  readonly limits: SourceLimits;
}

export interface SourcesConfig {
  /** The order in which all are asked: ids of vendors here and of sources in the vendor file; empty for the usual one. */
  readonly vendorOrder: readonly string[];
  readonly vendors: readonly VendorConfig[];
  /** A file of further sources, for the generic adapter. */
  readonly vendorFile: string | null;
  readonly rocketReachApi: RocketReachApi;
  readonly fullEnrichPollMs: number;
  readonly verifiers: readonly VerifierConfig[];
  readonly policy: Policy;
  readonly catchAll: CatchAllPolicy;
  /** Where the NPI Registry is; null where it is not asked. */
  readonly registryUrl: string | null;
  readonly callTimeoutMs: number;
  readonly greylistMs: number;
  readonly reverifyIntervalMs: number;
}

const VENDORS = { rocketreach: ROCKETREACH, fullenrich: FULLENRICH, prospeo: PROSPEO, hunter: HUNTER };
export type VendorId = keyof typeof VENDORS;
const VENDOR_IDS = Object.keys(VENDORS) as VendorId[];

const VERIFIERS = { reacher: REACHER, zerobounce: ZEROBOUNCE, neverbounce: NEVERBOUNCE };
export type VerifierId = keyof typeof VERIFIERS;
const VERIFIER_IDS = Object.keys(VERIFIERS) as VerifierId[];

const secret = Joi.string().empty('').default(null);
const rates = list(parseRate, 'rates such as 10/1s or 500/1m');
const credits = Joi.number().min(0).default(null);
const ids = (known: readonly string[]) =>
  list((text) => (known.includes(text) ? text : null), `some of ${known.join(', ')}`).default(known);

const vendorVariables = VENDOR_IDS.flatMap((id) => {
  const { url: usual, capMs, rates: pace } = VENDORS[id];
  const name = id.toUpperCase();
  return [
    [`${name}_API_KEY`, secret],
    [`${name}_URL`, confidentialUrl().default(usual)],
    [`${name}_TYPES`, ids(EMAIL_TYPES)],
    [`${name}_TIMEOUT`, duration(1000, 900_000).default(capMs)],
    [`${name}_RATES`, rates.default(pace)],
    [`${name}_DAILY_CREDITS`, credits],
    [`${name}_MAY_STORE`, Joi.boolean().default(true)],
  ];
});
const verifierVariables = VERIFIER_IDS.flatMap((id) => {
  const { url: usual, rates: pace } = VERIFIERS[id];
  const name = id.toUpperCase();
  return [
    [`${name}_API_KEY`, secret],
    // A server of one's own may be in a network of one's own.
    [`${name}_URL`, (usual === null ? anyUrl() : confidentialUrl()).default(usual)],
    [`${name}_RATES`, rates.default(pace)],
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
  VENDOR_CALL_TIMEOUT: duration(500, 300_000).default(30_000),
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
        limits: limitsOf(name),
        mayStore: env[`${name}_MAY_STORE`],
      }),
    );
  const chosen: readonly VerifierId[] = env.VERIFIERS;
  const verifiers = chosen
    .map((id) => ({ id, name: id.toUpperCase() }))
    // One's own Reacher has a URL and may do without a key; the others have a URL of their own and need a key.
    .filter(({ id, name }) => (id === 'reacher' ? env.REACHER_URL : env[`${name}_API_KEY`]) !== null)
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
    callTimeoutMs: env.VENDOR_CALL_TIMEOUT,
    greylistMs: env.GREYLIST_WAIT,
    reverifyIntervalMs: env.REVERIFY_INTERVAL,
  });
}

/** `500/1m` → at most 500 calls in any minute; null where the text is no rate. */
export function parseRate(text: string): Rate | null {
  const match = /^([1-9][0-9]{0,5})\/([0-9]+[a-z]+)$/.exec(text);
  const perMs = parseDuration(match?.[2] ?? '');
  return match && perMs ? { calls: Number(match[1]), perMs } : null;
}
