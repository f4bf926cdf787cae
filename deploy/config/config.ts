import { isIP } from 'node:net';
import { dirname } from 'node:path';
import ipaddr from 'ipaddr.js';
import Joi from 'joi';
import { REGISTRY_URL } from '../../activities/person/registry.ts';
import { VENDORS, type VendorId } from '../../activities/vendors/catalogue.ts';
import { CATCH_ALL_POLICIES, POLICIES } from '../../activities/verification/policy.ts';
import {
  VERIFIERS,
  type VerifierId,
} from '../../activities/verification/verifiers/catalogue.ts';
import manifest from '../../package.json' with { type: 'json' };
import { readFacts } from './stack-facts.ts';
import {
  anyUrl,
  check,
  confidentialUrl,
  duration,
  emailOrUrl,
  list,
  oneOf,
  orNull,
  pairs,
  parseDuration,
  parseSecretKey,
  problemsIn,
  publicUrl,
  type Values,
  whole,
} from './values.ts';

// This file is the only one that reads process.env. It checks all variables together and returns
// them as frozen objects with types.
// @temporalio/envconfig reads the variables of Temporal's clients (TEMPORAL_ADDRESS,
// TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, TEMPORAL_TLS…) from `temporalEnvironment`, so their names
// and rules are Temporal's.

/** URL and key for calls to a vendor or verifier. */
export interface Access {
  readonly baseUrl: string;
  /** Empty if the server is self-hosted and has no key. */
  readonly apiKey: string;
}

/** The file in which `npm start` writes the addresses and secrets of the local stack. */
export const LOCAL_STACK = '.local/stack.json';

const DAY = 86_400_000;

const CATALOGUE = [...Object.values(VENDORS), ...Object.values(VERIFIERS)];
/**
 * Returns the prefix of a source's variables, such as `HUNTER` for HUNTER_API_KEY. Sources that use
 * the same account share their variables. For example, Hunter is a vendor and a verifier, and
 * HUNTER_API_KEY is the key of both.
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
  .messages({
    'string.pattern.base': '{{#label}} must be up to 100 letters, digits, "-" and "_"',
  });
const smtpUrl = Joi.string()
  .uri({ scheme: ['smtp', 'smtps'] })
  .messages({
    'string.uriCustomScheme':
      '{{#label}} must be a URL such as smtp://user:password@host:587',
  });
const SCHEDULE = [
  '0s',
  '5s',
  '5m',
  '30m',
  '2h',
  '5h',
  '10h',
  '14h',
  '20h',
  '24h',
].flatMap((text) => parseDuration(text) ?? []);

/**
 * The settings, each with its environment variable and the rule for its value. Names that end with
 * `Ms` are in milliseconds.
 */
const SETTINGS = {
  databaseUrl: ['DATABASE_URL', databaseUrl.required()],
  databasePool: ['DATABASE_POOL', whole(1, 200).default(10)],
  /**
   * The keys that encrypt webhook secrets. The first key encrypts new secrets, and all keys
   * decrypt. Empty if not set.
   */
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
  /** The share of batches that are traced, from 0 to 1. */
  tracesShare: ['OTEL_TRACES_SAMPLER_ARG', Joi.number().min(0).max(1).default(1)],
  apiHost: ['API_HOST', Joi.string().hostname().default('0.0.0.0')],
  apiPort: ['API_PORT', Joi.number().port().default(8080)],
  metricsHost: ['METRICS_HOST', Joi.string().hostname().default('127.0.0.1')],
  /** Null if metrics are not served. */
  metricsPort: ['METRICS_PORT', orNull(Joi.number().port())],
  apiKeepAliveMs: ['API_KEEP_ALIVE', duration(1000, 3_600_000).default(75_000)],
  apiConnectionsPerAddress: [
    'API_CONNECTIONS_PER_ADDRESS',
    whole(1, 10_000).default(1000),
  ],
  /** How long the API keeps accepting requests after the stop signal. */
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
  webhookScheduleMs: [
    'WEBHOOK_SCHEDULE',
    list(parseDuration, 'durations').default(SCHEDULE),
  ],
  webhookLongestRestMs: [
    'WEBHOOK_LONGEST_REST',
    duration(1000, DAY).default(30 * 60_000),
  ],
  webhookOpenCidrs: ['WEBHOOK_OPEN_CIDRS', list(cidr, 'CIDR ranges')],
  webhookCaFile: ['WEBHOOK_CA_FILE', orNull(Joi.string())],
  webhookLogMs: ['WEBHOOK_LOG_RETENTION', duration(1000, 3650 * DAY).default(30 * DAY)],
  resultRetentionMs: ['RESULT_RETENTION', duration(DAY, 3650 * DAY).default(90 * DAY)],
  evidenceRetentionMs: [
    'EVIDENCE_RETENTION',
    duration(DAY, 3650 * DAY).default(180 * DAY),
  ],
  customDataRetentionMs: [
    'CUSTOM_DATA_RETENTION',
    duration(DAY, 3650 * DAY).default(90 * DAY),
  ],
  /**
   * Path of the file with the settings of sources, except their keys and URLs. Null to use the
   * defaults.
   */
  sourcesFile: ['SOURCES_FILE', orNull(Joi.string())],
  registryUrl: ['REGISTRY_URL', confidentialUrl().default(REGISTRY_URL)],
  /** Null to choose a default policy, which depends on whether a verifier is configured. */
  verifyPolicy: ['VERIFY_POLICY', orNull(oneOf(...POLICIES))],
  catchAll: ['CATCH_ALL', oneOf(...CATCH_ALL_POLICIES).default('reject')],
  dnsServers: ['DNS_SERVERS', list((text) => text, 'addresses such as 127.0.0.1:53')],
  /**
   * A domain that certainly receives mail, such as the operator's own. If the name servers deny
   * that, they are wrong, and their other responses are not trusted either. Null to check them only
   * with the built-in domains (`CONTROL_DOMAINS`).
   */
  dnsControlDomain: [
    'DNS_CONTROL_DOMAIN',
    orNull(Joi.string().lowercase().domain({ tlds: false })),
  ],
  /** The mail server that sends emails about uploads, and the sender. Null to send no emails. */
  smtpUrl: ['SMTP_URL', orNull(smtpUrl)],
  smtpFrom: ['SMTP_FROM', orNull(Joi.string().email({ tlds: false }))],
  /** The URL in these emails. The API requires it. */
  siteUrl: ['PUBLIC_URL', orNull(publicUrl())],
  workflowBundle: ['WORKFLOW_BUNDLE', orNull(Joi.string())],
  /**
   * The name of Temporal's task queue for enrichment. The names of the other task queues and of the
   * Worker Deployment begin with it.
   */
  taskQueue: ['TASK_QUEUE', taskQueue.default('enrichment')],
  /**
   * Decides who makes a new version of the workflows current: the workers (`automatic`) or an
   * operator (`manual`).
   */
  workerRollout: ['WORKER_ROLLOUT', oneOf('automatic', 'manual').default('automatic')],
} as const satisfies Table;

type Table = Readonly<Record<string, readonly [variable: string, rule: Joi.Schema]>>;
type Settings<Of extends Table> = Values<{ readonly [Name in keyof Of]: Of[Name][1] }>;

/** The configuration that all processes share. */
export interface Config extends Settings<typeof SETTINGS> {
  /** URL and key of each source, or null if the source is not configured. */
  readonly access: Readonly<Record<VendorId | VerifierId, Access | null>>;
  /**
   * Returns the value of an environment variable that the sources file refers to as `${VENDOR_…}`.
   */
  readonly secretOf: (name: string) => string | undefined;
  readonly temporalEnvironment: Readonly<Record<string, string | undefined>>;
}

/**
 * Reads and checks the environment.
 * @throws {ConfigError} that names every missing or invalid variable. It contains no values,
 * because they may be secret
 */
export function loadConfig(environment: NodeJS.ProcessEnv = process.env): Config {
  const settings = read({ ...ACCESS_SETTINGS, ...SETTINGS }, environment);
  const { smtpUrl, smtpFrom, siteUrl } = settings;
  if (smtpUrl !== null && (smtpFrom === null || siteUrl === null))
    throw problemsIn('the configuration', ['SMTP_URL needs SMTP_FROM and PUBLIC_URL']);
  return Object.freeze({
    ...settings,
    access: accessOf(settings),
    secretOf: (name: string) => environment[name],
    temporalEnvironment: Object.freeze({ ...environment }),
  });
}

/** The settings that only the API needs. */
const API_SETTINGS = {
  /** The URL at which customers reach the API, without a path. */
  publicUrl: ['PUBLIC_URL', publicUrl().required()],
  /** The email address or https URL at which customers get help. */
  support: ['SUPPORT_EMAIL', emailOrUrl().required()],
  /** Facts about the operator for the page `data.md`. If one is null, the page says so. */
  privacyUrl: ['PRIVACY_URL', orNull(confidentialUrl())],
  subprocessors: ['SUBPROCESSORS', orNull(Joi.string().max(2000))],
  statusUrl: ['STATUS_URL', orNull(confidentialUrl())],
  /** The page on which customers buy credits, for links in the console. */
  buyCreditsUrl: ['BUY_CREDITS_URL', orNull(confidentialUrl())],
} as const satisfies Table;

/** The configuration of the API. */
export interface ApiConfig extends Config, Settings<typeof API_SETTINGS> {}

/**
 * Reads and checks the environment of the API.
 * @throws {ConfigError} as `loadConfig`
 */
export function loadApiConfig(environment: NodeJS.ProcessEnv = process.env): ApiConfig {
  // Reads all settings together, so that an error names the problems of all of them.
  read({ ...ACCESS_SETTINGS, ...SETTINGS, ...API_SETTINGS }, environment);
  const site = read(API_SETTINGS, environment);
  return Object.freeze({ ...loadConfig(environment), ...site });
}

/** The settings of the operator command and the migrations. */
export type OperatorConfig = ReturnType<typeof loadOperatorConfig>;

/** @throws {ConfigError} as `loadConfig` */
export function loadOperatorConfig(environment: NodeJS.ProcessEnv = process.env) {
  const { databaseUrl, secretKeys } = SETTINGS;
  return read({ databaseUrl, secretKeys }, environment);
}

export type TemporalConfig = ReturnType<typeof loadTemporalConfig>;

/**
 * Reads the settings of programs that need only Temporal. No variable is required. If neither
 * TEMPORAL_ADDRESS nor DATABASE_URL is set, the local stack is used.
 * @throws {ConfigError} as `loadConfig`
 */
export function loadTemporalConfig(environment: NodeJS.ProcessEnv = process.env) {
  if (!environment.TEMPORAL_ADDRESS) fallBackToLocalStack(environment);
  const { taskQueue } = read({ taskQueue: SETTINGS.taskQueue }, environment);
  return { taskQueue, temporalEnvironment: Object.freeze({ ...environment }) };
}

/**
 * Returns the version of the running code, such as `1.0.0+73b311b`. The part after the plus is the
 * git commit. It is left out if the build did not set GIT_COMMIT.
 */
export function serviceVersion(environment: NodeJS.ProcessEnv = process.env): string {
  const { commit } = read({ commit: ['GIT_COMMIT', orNull(Joi.string())] }, environment);
  return commit === null ? manifest.version : `${manifest.version}+${commit}`;
}

/**
 * Returns the URL of the list of workflows in the Temporal UI. A slash and a workflow id after it
 * make a link to that workflow. Returns null if TEMPORAL_UI_URL is not set.
 */
export function temporalUi(environment: NodeJS.ProcessEnv = process.env): string | null {
  const { url } = read({ url: ['TEMPORAL_UI_URL', orNull(anyUrl())] }, environment);
  if (url === null) return null;
  const namespace = environment.TEMPORAL_NAMESPACE || 'default';
  return `${url}/namespaces/${namespace}/workflows`;
}

/**
 * Returns true if npm started this process as the script with this name. Then npm is the parent
 * process.
 */
export function isNpmScript(name: string): boolean {
  return process.env.npm_lifecycle_event === name;
}

/** Returns DATABASE_URL for messages, or null if it is not set. */
export function givenDatabaseUrl(): string | null {
  return process.env.DATABASE_URL || null;
}

/**
 * Sets the variables with which a program uses the database and Temporal of the local stack that
 * was started in this folder. Does nothing if DATABASE_URL is set, or if no local stack was started
 * here.
 * @returns true if it set the variables
 */
export function fallBackToLocalStack(
  environment: NodeJS.ProcessEnv = process.env,
): boolean {
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
    // A self-hosted server needs a URL, and its key is optional. Every other source has a default
    // URL and needs a key.
    const required = usual === null ? baseUrl : apiKey;
    if (required === null) return [id, null];
    return [id, { baseUrl, apiKey: apiKey ?? '' }];
  });
  return Object.freeze(Object.fromEntries(entries)) as Config['access'];
}

/** Returns a range such as `10.0.0.0/8` unchanged, or null if the text is not a range. */
function cidr(text: string): string | null {
  const [address = ''] = text.split('/', 1);
  // `isIP` rejects octal and hexadecimal numbers, which ipaddr.js would accept.
  if (isIP(address) === 0 || !ipaddr.isValidCIDR(text)) return null;
  return text;
}

/**
 * Reads and checks the variables of a table of settings. Returns an object with the values by the
 * names of the settings.
 */
function read<Of extends Table>(table: Of, environment: NodeJS.ProcessEnv): Settings<Of> {
  const rules = Joi.object(Object.fromEntries(Object.values(table)));
  const values = check(rules, onlySet(environment), 'the configuration', {
    stripUnknown: true,
  });
  const entries = Object.entries(table).map(([name, [variable]]) => [
    name,
    values[variable],
  ]);
  return Object.freeze(Object.fromEntries(entries)) as Settings<Of>;
}

/**
 * Leaves out empty variables. In `VAR= command` and in compose files, an empty value means that the
 * variable is not set.
 */
function onlySet(environment: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(
    Object.entries(environment).filter(([, value]) => value !== ''),
  );
}

export type LocalConfig = ReturnType<typeof loadLocalConfig>;

/**
 * Reads the variables that are used by `npm start` itself. None of them is required, because the
 * local stack has its own values.
 * @throws {ConfigError} as `loadConfig`
 */
export function loadLocalConfig(environment: NodeJS.ProcessEnv = process.env) {
  // Checks the settings of all processes here. Otherwise a process of the stack would report a
  // wrong value only in its own log.
  const optional = { databaseUrl: ['DATABASE_URL', orNull(databaseUrl)] } as const;
  const local = read({ ...ACCESS_SETTINGS, ...SETTINGS, ...optional }, environment);
  return Object.freeze({
    /** Null if the local stack starts its own PostgreSQL. */
    databaseUrl: local.databaseUrl,
    temporalAddress: environment.TEMPORAL_ADDRESS || null,
    cacheHome: environment.XDG_CACHE_HOME,
    /** All variables that are not empty. They are passed on to the processes of the stack. */
    environment: onlySet(environment),
  });
}
