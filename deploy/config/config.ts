import { isIP } from 'node:net';
import { dirname } from 'node:path';
import ipaddr from 'ipaddr.js';
import Joi from 'joi';
import { REGISTRY_URL } from '../../activities/person/registry.ts';
import { VENDORS, type VendorId } from '../../activities/vendors/catalogue.ts';
import { CATCH_ALL_POLICIES, POLICIES } from '../../activities/verification/policy.ts';
import { VERIFIERS, type VerifierId } from '../../activities/verification/verifiers/catalogue.ts';
import { readFacts } from '../local/facts.ts';
import {
  anyUrl,
  check,
  confidentialUrl,
  duration,
  httpProxy,
  list,
  oneOf,
  orNull,
  pairs,
  parseDuration,
  parseSecretKey,
  type Values,
  whole,
} from './values.ts';

// Reads process.env, which no other file does. It checks everything at once, freezes it, and passes
// it on as typed arguments.
// @temporalio/envconfig reads Temporal's own variables (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE,
// TEMPORAL_API_KEY, TEMPORAL_TLS…) from `temporalEnvironment`, so their names and rules are
// Temporal's.

/** URL and key for calls to a vendor or verifier. */
export interface Access {
  readonly baseUrl: string;
  /** Empty for a self-hosted server without a key. */
  readonly apiKey: string;
}

/** Written by `npm start`. */
export const LOCAL_STACK = '.local/stack.json';

const DAY = 86_400_000;

const CATALOGUE = [...Object.values(VENDORS), ...Object.values(VERIFIERS)];
/**
 * Returns the prefix of a source's variables. Sources that share an account, such as Hunter's two,
 * share their variables.
 */
const nameOf = (id: string) => id.replace(/-.*/, '').toUpperCase();
const ACCESS_SETTINGS: Table = Object.fromEntries(
  CATALOGUE.flatMap(({ id, url }) => {
    const key = `${nameOf(id)}_API_KEY`;
    const address = `${nameOf(id)}_URL`;
    // A self-hosted server may be in a private network, so http is allowed.
    const rule = url === null ? anyUrl() : confidentialUrl();
    return [
      [key, [key, orNull(Joi.string())]],
      [address, [address, rule.default(url)]],
    ];
  }),
);

const databaseUrl = Joi.string()
  .uri({ scheme: ['postgres', 'postgresql'] })
  .messages({
    'string.uriCustomScheme':
      '{{#label}} must be a URL such as postgres://user:password@host:5432/name',
  });
const taskQueue = Joi.string()
  .pattern(/^[\w-]{1,100}$/)
  .messages({ 'string.pattern.base': '{{#label}} must be up to 100 letters, digits, "-" and "_"' });
const SCHEDULE = ['0s', '5s', '5m', '30m', '2h', '5h', '10h', '14h', '20h', '24h'].flatMap(
  (text) => parseDuration(text) ?? [],
);

/**
 * Settings that are only checked and passed on: the variable of each, and its rule. Times are in
 * milliseconds.
 */
const SETTINGS = {
  databaseUrl: ['DATABASE_URL', databaseUrl.required()],
  databasePool: ['DATABASE_POOL', whole(1, 200).default(10)],
  /** The first key encrypts. Empty if not set. */
  secretKeys: [
    'SECRETS_KEY',
    list(parseSecretKey, 'keys such as v1:… (a version, then 32 bytes in base64)'),
  ],
  logLevel: [
    'LOG_LEVEL',
    oneOf('fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent').default('info'),
  ],
  /** URLs of an OpenTelemetry collector. No traces are sent if both are null. */
  tracesUrl: ['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT', orNull(anyUrl())],
  otlpUrl: ['OTEL_EXPORTER_OTLP_ENDPOINT', orNull(anyUrl())],
  otlpHeaders: ['OTEL_EXPORTER_OTLP_HEADERS', pairs()],
  serviceName: ['OTEL_SERVICE_NAME', orNull(Joi.string())],
  resourceAttributes: ['OTEL_RESOURCE_ATTRIBUTES', pairs()],
  /** The share of batches that are traced. */
  tracesShare: ['OTEL_TRACES_SAMPLER_ARG', Joi.number().min(0).max(1).default(1)],
  apiHost: ['API_HOST', Joi.string().hostname().default('0.0.0.0')],
  apiPort: ['API_PORT', Joi.number().port().default(8080)],
  metricsHost: ['METRICS_HOST', Joi.string().hostname().default('127.0.0.1')],
  /** Null if metrics are not served. */
  metricsPort: ['METRICS_PORT', orNull(Joi.number().port())],
  apiKeepAliveMs: ['API_KEEP_ALIVE', duration(1000, 3_600_000).default(75_000)],
  apiConnectionsPerAddress: ['API_CONNECTIONS_PER_ADDRESS', whole(1, 10_000).default(1000)],
  /** Time to keep serving after the stop signal. */
  apiDrainDelayMs: ['API_DRAIN_DELAY', duration(0, 300_000).default(5000)],
  trustedProxies: ['TRUSTED_PROXIES', list(cidr, 'CIDR ranges')],
  lookupTimeoutMs: ['LOOKUP_TIMEOUT', duration(1000, DAY).default(15 * 60_000)],
  freshnessMs: ['FRESHNESS_WINDOW', duration(1000, 365 * DAY).default(30 * DAY)],
  replayMs: ['REPLAY_WINDOW', duration(1000, 365 * DAY).default(30 * DAY)],
  missMs: ['MISS_WINDOW', duration(0, 365 * DAY).default(14 * DAY)],
  idempotencyMs: ['IDEMPOTENCY_WINDOW', duration(1000, 30 * DAY).default(DAY)],
  rateWindowMs: ['RATE_WINDOW', duration(1000, 3_600_000).default(60_000)],
  sweepIntervalMs: ['SWEEP_INTERVAL', duration(1000, 60_000).default(15_000)],
  lookupSlots: ['LOOKUP_SLOTS', whole(1, 5000).default(200)],
  webhookScheduleMs: ['WEBHOOK_SCHEDULE', list(parseDuration, 'durations').default(SCHEDULE)],
  webhookLongestRestMs: ['WEBHOOK_LONGEST_REST', duration(1000, DAY).default(30 * 60_000)],
  webhookOpenCidrs: ['WEBHOOK_OPEN_CIDRS', list(cidr, 'CIDR ranges')],
  webhookCaFile: ['WEBHOOK_CA_FILE', orNull(Joi.string())],
  /** Null if deliveries go out directly. */
  webhookProxy: ['WEBHOOK_PROXY', orNull(httpProxy())],
  webhookLogMs: ['WEBHOOK_LOG_RETENTION', duration(1000, 3650 * DAY).default(30 * DAY)],
  answerRetentionMs: ['ANSWER_RETENTION', duration(DAY, 3650 * DAY).default(90 * DAY)],
  evidenceRetentionMs: ['EVIDENCE_RETENTION', duration(DAY, 3650 * DAY).default(180 * DAY)],
  customDataRetentionMs: ['CUSTOM_DATA_RETENTION', duration(DAY, 3650 * DAY).default(90 * DAY)],
  /** Everything about sources except keys and URLs. Null for the defaults. */
  sourcesFile: ['SOURCES_FILE', orNull(Joi.string())],
  registryUrl: ['REGISTRY_URL', confidentialUrl().default(REGISTRY_URL)],
  /** Null to decide by whether a verifier is configured. */
  verifyPolicy: ['VERIFY_POLICY', orNull(oneOf(...POLICIES))],
  catchAll: ['CATCH_ALL', oneOf(...CATCH_ALL_POLICIES).default('reject')],
  dnsServers: ['DNS_SERVERS', list((text) => text, 'addresses such as 127.0.0.1:53')],
  /**
   * A domain that certainly receives mail, such as the operator's own. Null to look up only the
   * built-in ones.
   */
  dnsControlDomain: [
    'DNS_CONTROL_DOMAIN',
    orNull(Joi.string().lowercase().domain({ tlds: false })),
  ],
  workflowBundle: ['WORKFLOW_BUNDLE', orNull(Joi.string())],
  /** The enrichment queue. The names of the other queues and of the deployment derive from it. */
  taskQueue: ['TASK_QUEUE', taskQueue.default('enrichment')],
  /** Selects if the workers or an operator decide which version of the workflows is current. */
  workerRollout: ['WORKER_ROLLOUT', oneOf('automatic', 'manual').default('automatic')],
} as const satisfies Table;

type Table = Readonly<Record<string, readonly [variable: string, rule: Joi.Schema]>>;
type Settings<Of extends Table> = Values<{ readonly [Name in keyof Of]: Of[Name][1] }>;

/** The configuration that all processes share. */
export interface Config extends Settings<typeof SETTINGS> {
  /** Null for a source that is not configured. */
  readonly access: Readonly<Record<VendorId | VerifierId, Access | null>>;
  /** Returns the value of a `${VENDOR_NAME}` in the sources file. */
  readonly secretOf: (name: string) => string | undefined;
  readonly temporalEnvironment: Readonly<Record<string, string | undefined>>;
}

/**
 * Reads and checks the environment.
 * @throws {ConfigError} naming every variable that is missing or wrong, never a value
 */
export function loadConfig(environment: NodeJS.ProcessEnv = process.env): Config {
  const settings = read({ ...ACCESS_SETTINGS, ...SETTINGS }, environment);
  return Object.freeze({
    ...settings,
    access: accessOf(settings),
    secretOf: (name: string) => environment[name],
    temporalEnvironment: Object.freeze({ ...environment }),
  });
}

/** The settings of the operator command and the migrations. */
export type OperatorConfig = ReturnType<typeof loadOperatorConfig>;

/** @throws {ConfigError} as `loadConfig` */
export function loadOperatorConfig(environment: NodeJS.ProcessEnv = process.env) {
  const { databaseUrl, secretKeys } = SETTINGS;
  return read({ databaseUrl, secretKeys }, environment);
}

/** The setting of programs that can run without a database. */
const NO_DATABASE_URL = { databaseUrl: ['DATABASE_URL', orNull(databaseUrl)] } as const;

export type ReplayConfig = ReturnType<typeof loadReplayConfig>;

/**
 * Reads where runs are stored, for replaying them. No variable is required: without
 * TEMPORAL_ADDRESS and DATABASE_URL, the local stack is used.
 * @throws {ConfigError} as `loadConfig`
 */
export function loadReplayConfig(environment: NodeJS.ProcessEnv = process.env) {
  if (!environment.TEMPORAL_ADDRESS) fallBackToLocalStack(environment);
  const { taskQueue } = SETTINGS;
  const settings = read({ ...NO_DATABASE_URL, taskQueue }, environment);
  return { ...settings, temporalEnvironment: Object.freeze({ ...environment }) };
}

/**
 * Returns the URL of the Temporal UI's list of workflows, which is the prefix of the links to
 * workflows. Null if TEMPORAL_UI_URL is not set.
 */
export function temporalUi(environment: NodeJS.ProcessEnv = process.env): string | null {
  const { url } = read({ url: ['TEMPORAL_UI_URL', orNull(anyUrl())] }, environment);
  if (url === null) return null;
  const namespace = environment.TEMPORAL_NAMESPACE || 'default';
  return `${url}/namespaces/${namespace}/workflows`;
}

/**
 * Returns whether npm started this process as the script with this name. If so, npm is its parent.
 */
export function isNpmScript(name: string): boolean {
  return process.env.npm_lifecycle_event === name;
}

/** Returns DATABASE_URL for messages, or null if it is not set. */
export function givenDatabaseUrl(): string | null {
  return process.env.DATABASE_URL || null;
}

/**
 * Sets the variables for the database and the Temporal of the local stack that was started in this
 * folder. Does nothing if DATABASE_URL is set, or if there is no local stack.
 * @returns whether it set them
 */
export function fallBackToLocalStack(environment: NodeJS.ProcessEnv = process.env): boolean {
  if (environment.DATABASE_URL) return false;
  const facts = readFacts(dirname(LOCAL_STACK));
  if (facts === null) return false;
  environment.DATABASE_URL = facts.database_url;
  environment.SECRETS_KEY = facts.secrets_key;
  environment.TEMPORAL_ADDRESS = facts.temporal_address;
  environment.TEMPORAL_NAMESPACE = facts.temporal_namespace;
  environment.TEMPORAL_UI_URL = facts.temporal_ui ?? '';
  return true;
}

function accessOf(settings: Readonly<Record<string, unknown>>): Config['access'] {
  const entries = CATALOGUE.map(({ id, url: usual }) => {
    const name = nameOf(id);
    const baseUrl = settings[`${name}_URL`] as string | null;
    const apiKey = settings[`${name}_API_KEY`] as string | null;
    // A self-hosted server needs a URL and may have no key. The others have a URL and need a key.
    const required = usual === null ? baseUrl : apiKey;
    if (required === null) return [id, null];
    return [id, { baseUrl, apiKey: apiKey ?? '' }];
  });
  return Object.freeze(Object.fromEntries(entries)) as Config['access'];
}

/** Returns a range such as `10.0.0.0/8` unchanged, or null if the text is not a range. */
function cidr(text: string): string | null {
  const [address = ''] = text.split('/', 1);
  // Checks isIP first, because ipaddr.js also accepts octal and hex.
  if (isIP(address) === 0 || !ipaddr.isValidCIDR(text)) return null;
  return text;
}

/**
 * Reads the variables of a table, checks them, and returns them under the names of the settings.
 */
function read<Of extends Table>(table: Of, environment: NodeJS.ProcessEnv): Settings<Of> {
  const rules = Joi.object(Object.fromEntries(Object.values(table)));
  const values = check(rules, onlySet(environment), 'the configuration', { stripUnknown: true });
  const entries = Object.entries(table).map(([name, [variable]]) => [name, values[variable]]);
  return Object.freeze(Object.fromEntries(entries)) as Settings<Of>;
}

/** Leaves out empty variables, because `VAR= command` and compose files mean an unset variable. */
function onlySet(environment: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(environment).filter(([, value]) => value !== ''));
}

export type LocalConfig = ReturnType<typeof loadLocalConfig>;

/**
 * Reads the variables that the local stack uses. None is required, and the stack sets all others
 * itself.
 * @throws {ConfigError} as `loadConfig`
 */
export function loadLocalConfig(environment: NodeJS.ProcessEnv = process.env) {
  // Checks all settings here, because a problem that a process of the stack finds is only in its
  // own log.
  const table = { ...ACCESS_SETTINGS, ...SETTINGS, ...NO_DATABASE_URL };
  const { databaseUrl } = read(table, environment);
  return Object.freeze({
    /** Null if the stack starts its own database. */
    databaseUrl,
    temporalAddress: environment.TEMPORAL_ADDRESS || null,
    cacheHome: environment.XDG_CACHE_HOME,
    /** The variables that are set, to pass on to the processes of the stack. */
    environment: onlySet(environment),
  });
}
