import { isIP } from 'node:net';
import { dirname } from 'node:path';
import Joi from 'joi';
import { REGISTRY_URL } from '../../activities/person/registry.ts';
import { VENDORS, type VendorId } from '../../activities/vendors/catalogue.ts';
import {
  CATCH_ALL_POLICIES,
  type CatchAllPolicy,
  POLICIES,
  type Policy,
} from '../../activities/verification/policy.ts';
import { VERIFIERS, type VerifierId } from '../../activities/verification/verifiers/catalogue.ts';
import type { Retention } from '../../db/requests/retention.ts';
import type { SecretKey } from '../../db/secrets.ts';
import { readFacts } from '../local/facts.ts';
import {
  anyUrl,
  confidentialUrl,
  duration,
  httpProxy,
  list,
  parseDuration,
  parseSecretKey,
  problemsIn,
} from './values.ts';

// The only place that reads process.env. Everything is checked at once, frozen, and passed on as typed arguments.
// Temporal's own variables (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, TEMPORAL_TLS…) are read by
// @temporalio/envconfig from what `temporalEnvironment` hands over, so that their names and rules are Temporal's.

/** Settings that every process shares; times in milliseconds. */
export interface Config {
  readonly databaseUrl: string;
  readonly databasePool: number;
  /** The first encrypts. Empty: not set. */
  readonly secretKeys: readonly SecretKey[];
  readonly logLevel: string;
  readonly apiHost: string;
  readonly apiPort: number;
  readonly apiKeepAliveMs: number;
  readonly trustedProxies: readonly string[];
  readonly lookupTimeoutMs: number;
  readonly freshnessMs: number;
  readonly replayMs: number;
  readonly missMs: number;
  readonly idempotencyMs: number;
  readonly rateWindowMs: number;
  readonly sweepIntervalMs: number;
  readonly lookupSlots: number;
  readonly lookupsPerOrganization: number;
  readonly webhookScheduleMs: readonly number[];
  readonly webhookOpenCidrs: readonly string[];
  readonly webhookCaFile: string | null;
  /** `http://[user:password@]host:port`; null: deliveries go out directly. */
  readonly webhookProxy: URL | null;
  readonly webhookLogMs: number;
  readonly retention: Retention;
  /** Everything about sources that isn't a key or a URL; null for the usual. */
  readonly sourcesFile: string | null;
  /** Null: it can't be asked. */
  readonly access: Readonly<Record<VendorId | VerifierId, Access | null>>;
  readonly registryUrl: string;
  /** Null: it depends on whether there is a verifier. */
  readonly verifyPolicy: Policy | null;
  readonly catchAll: CatchAllPolicy;
  /** What a `${VENDOR_NAME}` in the sources file stands for. */
  readonly secretOf: (name: string) => string | undefined;
  readonly dnsServers: readonly string[];
  readonly workflowBundle: string | null;
  /** The enrichment queue; the others, and the name of the deployment, follow from it. */
  readonly taskQueue: string;
  /** Who decides which version of the workflows is current: the workers, or an operator. */
  readonly workerRollout: 'automatic' | 'manual';
  readonly temporalEnvironment: Readonly<Record<string, string | undefined>>;
}

/** What it takes to ask a vendor or a verifier. */
export interface Access {
  readonly baseUrl: string;
  /** Empty for a server of one's own that asks for none. */
  readonly apiKey: string;
}

/** Written by `npm start`. */
export const LOCAL_STACK = '.local/stack.json';

const DAY = 86_400_000;

const databaseUrl = Joi.string()
  .uri({ scheme: ['postgres', 'postgresql'] })
  .messages({
    'string.uriCustomScheme': '{{#label}} must be a URL such as postgres://user:password@host:5432/name',
  });

const secretKeys = list(parseSecretKey, 'keys such as v1:… (a version, then 32 bytes in base64)').default([]);

const CATALOGUE = [...Object.values(VENDORS), ...Object.values(VERIFIERS)];
/** Of the variables of a source: of two that one account opens, such as Hunter's, the same. */
const nameOf = (id: string) => id.replace(/-.*/, '').toUpperCase();
const accessVariables = CATALOGUE.flatMap(({ id, url }) => {
  const name = nameOf(id);
  return [
    [`${name}_API_KEY`, Joi.string().default(null)],
    // A server of one's own may be in a network of one's own.
    [`${name}_URL`, (url === null ? anyUrl() : confidentialUrl()).default(url)],
  ];
});

const schema = Joi.object({
  DATABASE_URL: databaseUrl.required(),
  SECRETS_KEY: secretKeys,
  DATABASE_POOL: Joi.number().integer().min(1).max(200).default(10),
  LOG_LEVEL: Joi.string().valid('fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent').default('info'),
  API_HOST: Joi.string().hostname().default('0.0.0.0'),
  API_PORT: Joi.number().port().default(8080),
  API_KEEP_ALIVE: duration(1000, 3_600_000).default(75_000),
  TRUSTED_PROXIES: list((text) => (isCidr(text) ? text : null), 'CIDR ranges').default([]),
  LOOKUP_TIMEOUT: duration(1000, DAY).default(15 * 60_000),
  FRESHNESS_WINDOW: duration(1000, 365 * DAY).default(30 * DAY),
  REPLAY_WINDOW: duration(1000, 365 * DAY).default(30 * DAY),
  MISS_WINDOW: duration(0, 365 * DAY).default(14 * DAY),
  IDEMPOTENCY_WINDOW: duration(1000, 30 * DAY).default(DAY),
  RATE_WINDOW: duration(1000, 3_600_000).default(60_000),
  SWEEP_INTERVAL: duration(1000, 60_000).default(15_000),
  LOOKUP_SLOTS: Joi.number().integer().min(1).max(5000).default(200),
  LOOKUPS_PER_ORGANIZATION: Joi.number().integer().min(1).max(100_000).default(100),
  WEBHOOK_SCHEDULE: list((text) => parseDuration(text), 'durations').default(
    ['0s', '5s', '5m', '30m', '2h', '5h', '10h', '14h', '20h', '24h'].map((text) => parseDuration(text)),
  ),
  WEBHOOK_OPEN_CIDRS: list((text) => (isCidr(text) ? text : null), 'CIDR ranges').default([]),
  WEBHOOK_CA_FILE: Joi.string().default(null),
  WEBHOOK_PROXY: httpProxy().default(null),
  WEBHOOK_LOG_RETENTION: duration(1000, 3650 * DAY).default(30 * DAY),
  ANSWER_RETENTION: duration(DAY, 3650 * DAY).default(365 * DAY),
  EVIDENCE_RETENTION: duration(DAY, 3650 * DAY).default(180 * DAY),
  CUSTOM_DATA_RETENTION: duration(DAY, 3650 * DAY).default(90 * DAY),
  ...Object.fromEntries(accessVariables),
  SOURCES_FILE: Joi.string().default(null),
  REGISTRY_URL: confidentialUrl().default(REGISTRY_URL),
  VERIFY_POLICY: Joi.string()
    .valid(...POLICIES)
    .default(null),
  CATCH_ALL: Joi.string()
    .valid(...CATCH_ALL_POLICIES)
    .default('reject'),
  DNS_SERVERS: list((text) => text, 'addresses such as 127.0.0.1:53').default([]),
  WORKFLOW_BUNDLE: Joi.string().default(null),
  TASK_QUEUE: Joi.string()
    .pattern(/^[\w-]{1,100}$/)
    .messages({ 'string.pattern.base': '{{#label}} must be up to 100 letters, digits, "-" and "_"' })
    .default('enrichment'),
  WORKER_ROLLOUT: Joi.string().valid('automatic', 'manual').default('automatic'),
});

/**
 * Reads and checks the environment.
 * @throws {ConfigError} naming every variable that is missing or wrong, never a value
 */
export function loadConfig(environment: NodeJS.ProcessEnv = process.env): Config {
  const env = check(schema, environment);
  return Object.freeze({
    databaseUrl: env.DATABASE_URL,
    databasePool: env.DATABASE_POOL,
    secretKeys: env.SECRETS_KEY,
    logLevel: env.LOG_LEVEL,
    apiHost: env.API_HOST,
    apiPort: env.API_PORT,
    apiKeepAliveMs: env.API_KEEP_ALIVE,
    trustedProxies: env.TRUSTED_PROXIES,
    lookupTimeoutMs: env.LOOKUP_TIMEOUT,
    freshnessMs: env.FRESHNESS_WINDOW,
    replayMs: env.REPLAY_WINDOW,
    missMs: env.MISS_WINDOW,
    idempotencyMs: env.IDEMPOTENCY_WINDOW,
    rateWindowMs: env.RATE_WINDOW,
    sweepIntervalMs: env.SWEEP_INTERVAL,
    lookupSlots: env.LOOKUP_SLOTS,
    lookupsPerOrganization: env.LOOKUPS_PER_ORGANIZATION,
    webhookScheduleMs: env.WEBHOOK_SCHEDULE,
    webhookOpenCidrs: env.WEBHOOK_OPEN_CIDRS,
    webhookCaFile: env.WEBHOOK_CA_FILE,
    webhookProxy: env.WEBHOOK_PROXY,
    webhookLogMs: env.WEBHOOK_LOG_RETENTION,
    retention: Object.freeze({
      // A replay gives the answer again.
      answersMs: Math.max(env.ANSWER_RETENTION, env.REPLAY_WINDOW),
      evidenceMs: env.EVIDENCE_RETENTION,
      customDataMs: env.CUSTOM_DATA_RETENTION,
    }),
    sourcesFile: env.SOURCES_FILE,
    access: accessOf(env),
    registryUrl: env.REGISTRY_URL,
    verifyPolicy: env.VERIFY_POLICY,
    catchAll: env.CATCH_ALL,
    secretOf: (name: string) => environment[name],
    dnsServers: env.DNS_SERVERS,
    workflowBundle: env.WORKFLOW_BUNDLE,
    taskQueue: env.TASK_QUEUE,
    workerRollout: env.WORKER_ROLLOUT,
    temporalEnvironment: Object.freeze({ ...environment }),
  });
}

/** All that the operator command and the migrations need. */
export type OperatorConfig = Pick<Config, 'databaseUrl' | 'secretKeys'>;

/** @throws {ConfigError} as `loadConfig` */
export function loadOperatorConfig(environment: NodeJS.ProcessEnv = process.env): OperatorConfig {
  const rules = Joi.object({ DATABASE_URL: databaseUrl.required(), SECRETS_KEY: secretKeys });
  const env = check(rules, environment);
  return Object.freeze({ databaseUrl: env.DATABASE_URL, secretKeys: env.SECRETS_KEY });
}

/**
 * Where DATABASE_URL is not set, lets whatever reads the environment from now on find the database and the Temporal of
 * the local stack that was started in this folder, if one was.
 * @returns whether it does
 */
export function fallBackToLocalStack(environment: NodeJS.ProcessEnv = process.env): boolean {
  const facts = environment.DATABASE_URL ? null : readFacts(dirname(LOCAL_STACK));
  if (facts === null) return false;
  environment.DATABASE_URL = facts.database_url;
  environment.SECRETS_KEY = facts.secrets_key;
  environment.TEMPORAL_ADDRESS = facts.temporal_address;
  environment.TEMPORAL_NAMESPACE = facts.temporal_namespace;
  return true;
}

/** @param env what the schema made of the environment */
function accessOf(env: Joi.ValidationResult['value']): Config['access'] {
  const entries = CATALOGUE.map(({ id, url: usual }): [string, Access | null] => {
    const name = nameOf(id);
    const { [`${name}_URL`]: baseUrl, [`${name}_API_KEY`]: apiKey } = env;
    // A server of one's own needs a URL and may do without a key; the others have a URL and need a key.
    const isSet = usual === null ? baseUrl !== null : apiKey !== null;
    return [id, isSet ? { baseUrl, apiKey: apiKey ?? '' } : null];
  });
  return Object.freeze(Object.fromEntries(entries)) as Config['access'];
}

function isCidr(text: string): boolean {
  const [address = '', bits = '', ...rest] = text.split('/');
  const family = isIP(address);
  return (
    rest.length === 0 &&
    family !== 0 &&
    /^[0-9]{1,3}$/.test(bits) &&
    Number(bits) <= (family === 4 ? 32 : 128)
  );
}

function check(rules: Joi.ObjectSchema, environment: NodeJS.ProcessEnv) {
  const given = onlySet(environment);
  const { value, error } = rules.validate(given, {
    abortEarly: false,
    stripUnknown: true,
    errors: { wrap: { label: false } },
    messages: { 'any.required': '{{#label}} is missing' },
  });
  if (!error) return value;
  throw problemsIn(
    'the configuration',
    error.details.map(({ message }) => message.replace(/ with value .*? fails /, ' fails ')),
  );
}

/** An empty variable is an unset one: that is what `VAR= command` and compose files mean by it. */
function onlySet(environment: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(environment).filter(([, value]) => value !== ''));
}

/** What the local stack takes from the environment; everything else it sets itself. */
export interface LocalConfig {
  /** Null if the stack is to bring its own. */
  readonly databaseUrl: string | null;
  readonly temporalAddress: string | null;
  readonly cacheHome: string | undefined;
  /** What is set, to hand on to the processes of the stack. */
  readonly environment: NodeJS.ProcessEnv;
}

/**
 * For `npm start`, where nothing has to be set.
 * @throws {ConfigError} as `loadConfig`
 */
export function loadLocalConfig(environment: NodeJS.ProcessEnv = process.env): LocalConfig {
  // Everything is checked here, because what a process of the stack has to say about it is in that one's log.
  const env = check(schema.keys({ DATABASE_URL: databaseUrl.default(null) }), environment);
  return Object.freeze({
    databaseUrl: env.DATABASE_URL,
    temporalAddress: environment.TEMPORAL_ADDRESS || null,
    cacheHome: environment.XDG_CACHE_HOME,
    environment: onlySet(environment),
  });
}
