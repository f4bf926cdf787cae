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

// The only place that reads process.env. Everything is checked at once, frozen, and passed on as typed arguments.
// Temporal's own variables (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, TEMPORAL_TLS…) are read by
// @temporalio/envconfig from what `temporalEnvironment` hands over, so that their names and rules are Temporal's.

/** What it takes to ask a vendor or a verifier. */
export interface Access {
  readonly baseUrl: string;
  /** Empty for a server of one's own that asks for none. */
  readonly apiKey: string;
}

/** Written by `npm start`. */
export const LOCAL_STACK = '.local/stack.json';

const DAY = 86_400_000;

const CATALOGUE = [...Object.values(VENDORS), ...Object.values(VERIFIERS)];
/** Of the variables of a source: of two that one account opens, such as Hunter's, the same. */
const nameOf = (id: string) => id.replace(/-.*/, '').toUpperCase();
const ACCESS_SETTINGS: Table = Object.fromEntries(
  CATALOGUE.map(({ id, url }) => [nameOf(id), url] as const).flatMap(([name, url]) => [
    [`${name}_API_KEY`, [`${name}_API_KEY`, orNull(Joi.string())]],
    // A server of one's own may be in a network of one's own.
    [`${name}_URL`, [`${name}_URL`, (url === null ? anyUrl() : confidentialUrl()).default(url)]],
  ]),
);

const databaseUrl = Joi.string()
  .uri({ scheme: ['postgres', 'postgresql'] })
  .messages({
    'string.uriCustomScheme': '{{#label}} must be a URL such as postgres://user:password@host:5432/name',
  });
const taskQueue = Joi.string()
  .pattern(/^[\w-]{1,100}$/)
  .messages({ 'string.pattern.base': '{{#label}} must be up to 100 letters, digits, "-" and "_"' });
const SCHEDULE = ['0s', '5s', '5m', '30m', '2h', '5h', '10h', '14h', '20h', '24h'].flatMap(
  (text) => parseDuration(text) ?? [],
);

/** What has only to be checked and handed on: the variable of each, and its rule. Times are in milliseconds. */
const SETTINGS = {
  databaseUrl: ['DATABASE_URL', databaseUrl.required()],
  databasePool: ['DATABASE_POOL', whole(1, 200).default(10)],
  /** The first encrypts. Empty: not set. */
  secretKeys: ['SECRETS_KEY', list(parseSecretKey, 'keys such as v1:… (a version, then 32 bytes in base64)')],
  logLevel: [
    'LOG_LEVEL',
    oneOf('fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent').default('info'),
  ],
  /** Where a collector takes traces; both null: there are none. */
  tracesUrl: ['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT', orNull(anyUrl())],
  otlpUrl: ['OTEL_EXPORTER_OTLP_ENDPOINT', orNull(anyUrl())],
  otlpHeaders: ['OTEL_EXPORTER_OTLP_HEADERS', pairs()],
  serviceName: ['OTEL_SERVICE_NAME', orNull(Joi.string())],
  resourceAttributes: ['OTEL_RESOURCE_ATTRIBUTES', pairs()],
  /** Of batches. */
  tracesShare: ['OTEL_TRACES_SAMPLER_ARG', Joi.number().min(0).max(1).default(1)],
  apiHost: ['API_HOST', Joi.string().hostname().default('0.0.0.0')],
  apiPort: ['API_PORT', Joi.number().port().default(8080)],
  metricsHost: ['METRICS_HOST', Joi.string().hostname().default('127.0.0.1')],
  /** Null: nothing is told. */
  metricsPort: ['METRICS_PORT', orNull(Joi.number().port())],
  apiKeepAliveMs: ['API_KEEP_ALIVE', duration(1000, 3_600_000).default(75_000)],
  apiConnectionsPerAddress: ['API_CONNECTIONS_PER_ADDRESS', whole(1, 10_000).default(1000)],
  /** How long it goes on serving after it has been told to stop. */
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
  webhookOpenCidrs: ['WEBHOOK_OPEN_CIDRS', list(cidr, 'CIDR ranges')],
  webhookCaFile: ['WEBHOOK_CA_FILE', orNull(Joi.string())],
  /** Null: deliveries go out directly. */
  webhookProxy: ['WEBHOOK_PROXY', orNull(httpProxy())],
  webhookLogMs: ['WEBHOOK_LOG_RETENTION', duration(1000, 3650 * DAY).default(30 * DAY)],
  answerRetentionMs: ['ANSWER_RETENTION', duration(DAY, 3650 * DAY).default(90 * DAY)],
  evidenceRetentionMs: ['EVIDENCE_RETENTION', duration(DAY, 3650 * DAY).default(180 * DAY)],
  customDataRetentionMs: ['CUSTOM_DATA_RETENTION', duration(DAY, 3650 * DAY).default(90 * DAY)],
  /** Everything about sources that isn't a key or a URL; null for the usual. */
  sourcesFile: ['SOURCES_FILE', orNull(Joi.string())],
  registryUrl: ['REGISTRY_URL', confidentialUrl().default(REGISTRY_URL)],
  /** Null: it depends on whether there is a verifier. */
  verifyPolicy: ['VERIFY_POLICY', orNull(oneOf(...POLICIES))],
  catchAll: ['CATCH_ALL', oneOf(...CATCH_ALL_POLICIES).default('reject')],
  dnsServers: ['DNS_SERVERS', list((text) => text, 'addresses such as 127.0.0.1:53')],
  /** A domain that takes mail for sure, such as the operator's own; null if only the built-in ones are asked about. */
  dnsControlDomain: ['DNS_CONTROL_DOMAIN', orNull(Joi.string().lowercase().domain({ tlds: false }))],
  workflowBundle: ['WORKFLOW_BUNDLE', orNull(Joi.string())],
  /** The enrichment queue; the others, and the name of the deployment, follow from it. */
  taskQueue: ['TASK_QUEUE', taskQueue.default('enrichment')],
  /** Who decides which version of the workflows is current: the workers, or an operator. */
  workerRollout: ['WORKER_ROLLOUT', oneOf('automatic', 'manual').default('automatic')],
} as const satisfies Table;

type Table = Readonly<Record<string, readonly [variable: string, rule: Joi.Schema]>>;
type Settings<Of extends Table> = Values<{ readonly [Name in keyof Of]: Of[Name][1] }>;

/** What every process shares. */
export interface Config extends Settings<typeof SETTINGS> {
  /** Null: it can't be asked. */
  readonly access: Readonly<Record<VendorId | VerifierId, Access | null>>;
  /** What a `${VENDOR_NAME}` in the sources file stands for. */
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

/** All that the operator command and the migrations need. */
export type OperatorConfig = ReturnType<typeof loadOperatorConfig>;

/** @throws {ConfigError} as `loadConfig` */
export function loadOperatorConfig(environment: NodeJS.ProcessEnv = process.env) {
  const { databaseUrl, secretKeys } = SETTINGS;
  return read({ databaseUrl, secretKeys }, environment);
}

/** For what can do without. */
const NO_DATABASE_URL = { databaseUrl: ['DATABASE_URL', orNull(databaseUrl)] } as const;

export type ReplayConfig = ReturnType<typeof loadReplayConfig>;

/**
 * Where runs are, for replaying them. Nothing of it has to be set: without TEMPORAL_ADDRESS and DATABASE_URL the local
 * stack is meant. @throws {ConfigError} as `loadConfig`
 */
export function loadReplayConfig(environment: NodeJS.ProcessEnv = process.env) {
  if (!environment.TEMPORAL_ADDRESS) fallBackToLocalStack(environment);
  const { taskQueue } = SETTINGS;
  const settings = read({ ...NO_DATABASE_URL, taskQueue }, environment);
  return { ...settings, temporalEnvironment: Object.freeze({ ...environment }) };
}

/** The Temporal UI's list of workflows, which the links to each begin with; null if TEMPORAL_UI_URL is not set. */
export function temporalUi(environment: NodeJS.ProcessEnv = process.env): string | null {
  const { url } = read({ url: ['TEMPORAL_UI_URL', orNull(anyUrl())] }, environment);
  return url && `${url}/namespaces/${environment.TEMPORAL_NAMESPACE || 'default'}/workflows`;
}

/** Whether npm started this process as the script of that name, and so is its parent. */
export function isNpmScript(name: string): boolean {
  return process.env.npm_lifecycle_event === name;
}

/** Where PostgreSQL is said to be, for messages; null if nothing says it. */
export function givenDatabaseUrl(): string | null {
  return process.env.DATABASE_URL || null;
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
  environment.TEMPORAL_UI_URL = facts.temporal_ui ?? '';
  return true;
}

function accessOf(settings: Readonly<Record<string, unknown>>): Config['access'] {
  const entries = CATALOGUE.map(({ id, url: usual }) => {
    const name = nameOf(id);
    const baseUrl = settings[`${name}_URL`] as string | null;
    const apiKey = settings[`${name}_API_KEY`] as string | null;
    // A server of one's own needs a URL and may do without a key; the others have a URL and need a key.
    const isSet = usual === null ? baseUrl !== null : apiKey !== null;
    return [id, isSet ? { baseUrl, apiKey: apiKey ?? '' } : null];
  });
  return Object.freeze(Object.fromEntries(entries)) as Config['access'];
}

/** `10.0.0.0/8` as it is; null if the text is no range. */
function cidr(text: string): string | null {
  // ipaddr.js also reads octal and hex.
  return isIP(text.split('/', 1)[0] ?? '') !== 0 && ipaddr.isValidCIDR(text) ? text : null;
}

/** What is set of a table's variables, checked, under the names of the settings. */
function read<Of extends Table>(table: Of, environment: NodeJS.ProcessEnv): Settings<Of> {
  const rules = Joi.object(Object.fromEntries(Object.values(table)));
  const values = check(rules, onlySet(environment), 'the configuration', { stripUnknown: true });
  const entries = Object.entries(table).map(([name, [variable]]) => [name, values[variable]]);
  return Object.freeze(Object.fromEntries(entries)) as Settings<Of>;
}

/** An empty variable is an unset one: that is what `VAR= command` and compose files mean by it. */
function onlySet(environment: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(environment).filter(([, value]) => value !== ''));
}

export type LocalConfig = ReturnType<typeof loadLocalConfig>;

/**
 * What the local stack takes from the environment, where nothing has to be set; everything else it sets itself.
 * @throws {ConfigError} as `loadConfig`
 */
export function loadLocalConfig(environment: NodeJS.ProcessEnv = process.env) {
  // Everything is checked here, because what a process of the stack has to say about it is in that one's log.
  const { databaseUrl } = read({ ...ACCESS_SETTINGS, ...SETTINGS, ...NO_DATABASE_URL }, environment);
  return Object.freeze({
    /** Null if the stack is to bring its own. */
    databaseUrl,
    temporalAddress: environment.TEMPORAL_ADDRESS || null,
    cacheHome: environment.XDG_CACHE_HOME,
    /** What is set, to hand on to the processes of the stack. */
    environment: onlySet(environment),
  });
}
