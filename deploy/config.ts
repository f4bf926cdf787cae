import { isIP } from 'node:net';
import Joi from 'joi';

// The only place that reads process.env. Everything is checked at once, frozen, and passed on as typed arguments.
// Temporal's own variables (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, TEMPORAL_TLS…) are read by
// @temporalio/envconfig from what `temporalEnvironment` hands over, so that their names and rules are Temporal's.

/** Settings that every process shares; times in milliseconds. */
export interface Config {
  readonly databaseUrl: string;
  readonly databasePool: number;
  readonly logLevel: string;
  readonly apiHost: string;
  readonly apiPort: number;
  readonly lookupTimeoutMs: number;
  readonly freshnessMs: number;
  readonly replayMs: number;
  readonly idempotencyMs: number;
  readonly rateWindowMs: number;
  readonly sweepIntervalMs: number;
  readonly lookupSlots: number;
  readonly webhookScheduleMs: readonly number[];
  readonly webhookOpenCidrs: readonly string[];
  readonly webhookCaFile: string | null;
  readonly rocketReachUrl: string;
  readonly rocketReachKey: string | null;
  readonly dnsServers: readonly string[];
  readonly workflowBundle: string | null;
  readonly temporalEnvironment: Readonly<Record<string, string | undefined>>;
}

export class ConfigError extends Error {
  override readonly name = 'ConfigError';
}

const UNITS: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };
const DAY = 86_400_000;

const duration = (minMs: number, maxMs: number) =>
  Joi.string().custom((text: string, helpers) => {
    const ms = parseDuration(text);
    if (ms === null)
      return helpers.message({ custom: '{{#label}} must be a duration such as 500ms, 30s, 15m, 24h or 30d' });
    if (ms < minMs || ms > maxMs) {
      return helpers.message({ custom: `{{#label}} must be between ${minMs} ms and ${maxMs} ms` });
    }
    return ms;
  });

const list = (item: (text: string) => unknown, what: string) =>
  Joi.string()
    .allow('')
    .custom((text: string, helpers) => {
      const items = text
        .split(',')
        .map((part) => part.trim())
        .filter((part) => part !== '');
      const values = items.map(item);
      if (values.includes(null))
        return helpers.message({ custom: `{{#label}} must be ${what}, separated by commas` });
      return values;
    });

const databaseUrl = Joi.string()
  .uri({ scheme: ['postgres', 'postgresql'] })
  .messages({
    'string.uriCustomScheme': '{{#label}} must be a URL such as postgres://user:password@host:5432/name',
  });

const schema = Joi.object({
  DATABASE_URL: databaseUrl.required(),
  DATABASE_POOL: Joi.number().integer().min(1).max(200).default(10),
  LOG_LEVEL: Joi.string().valid('fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent').default('info'),
  API_HOST: Joi.string().hostname().default('0.0.0.0'),
  API_PORT: Joi.number().port().default(8080),
  LOOKUP_TIMEOUT: duration(1000, DAY).default(15 * 60_000),
  FRESHNESS_WINDOW: duration(1000, 365 * DAY).default(30 * DAY),
  REPLAY_WINDOW: duration(1000, 365 * DAY).default(30 * DAY),
  IDEMPOTENCY_WINDOW: duration(1000, 30 * DAY).default(DAY),
  RATE_WINDOW: duration(1000, 3_600_000).default(60_000),
  SWEEP_INTERVAL: duration(1000, 600_000).default(15_000),
  LOOKUP_SLOTS: Joi.number().integer().min(1).max(5000).default(200),
  WEBHOOK_SCHEDULE: list((text) => parseDuration(text), 'durations').default(
    ['0s', '5s', '5m', '30m', '2h', '5h', '10h', '14h', '20h', '24h'].map((text) => parseDuration(text)),
  ),
  WEBHOOK_OPEN_CIDRS: list((text) => (isCidr(text) ? text : null), 'CIDR ranges').default([]),
  WEBHOOK_CA_FILE: Joi.string().empty('').default(null),
  ROCKETREACH_URL: Joi.string()
    .uri({ scheme: ['https', 'http'] })
    .default('https://api.rocketreach.co/api/v2'),
  ROCKETREACH_API_KEY: Joi.string().empty('').default(null),
  DNS_SERVERS: list((text) => text, 'addresses such as 127.0.0.1:53').default([]),
  WORKFLOW_BUNDLE: Joi.string().empty('').default(null),
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
    logLevel: env.LOG_LEVEL,
    apiHost: env.API_HOST,
    apiPort: env.API_PORT,
    lookupTimeoutMs: env.LOOKUP_TIMEOUT,
    freshnessMs: env.FRESHNESS_WINDOW,
    replayMs: env.REPLAY_WINDOW,
    idempotencyMs: env.IDEMPOTENCY_WINDOW,
    rateWindowMs: env.RATE_WINDOW,
    sweepIntervalMs: env.SWEEP_INTERVAL,
    lookupSlots: env.LOOKUP_SLOTS,
    webhookScheduleMs: env.WEBHOOK_SCHEDULE,
    webhookOpenCidrs: env.WEBHOOK_OPEN_CIDRS,
    webhookCaFile: env.WEBHOOK_CA_FILE,
    rocketReachUrl: env.ROCKETREACH_URL,
    rocketReachKey: env.ROCKETREACH_API_KEY,
    dnsServers: env.DNS_SERVERS,
    workflowBundle: env.WORKFLOW_BUNDLE,
    temporalEnvironment: Object.freeze({ ...environment }),
  });
}

/**
 * The operator command and the migrations need the database only.
 * @throws {ConfigError} as `loadConfig`
 */
export function loadOperatorConfig(environment: NodeJS.ProcessEnv = process.env): {
  readonly databaseUrl: string;
} {
  const env = check(Joi.object({ DATABASE_URL: databaseUrl.required() }), environment);
  return Object.freeze({ databaseUrl: env.DATABASE_URL });
}

/** `15m` → 900000; null where the text is no duration. */
export function parseDuration(text: string): number | null {
  const match = /^([0-9]{1,9})(ms|s|m|h|d)$/.exec(text);
  return match ? Number(match[1]) * (UNITS[match[2] ?? ''] ?? Number.NaN) : null;
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
  // An empty variable is an unset one: that is what `VAR= command` and compose files mean by it.
  const given = Object.fromEntries(Object.entries(environment).filter(([, value]) => value !== ''));
  const { value, error } = rules.validate(given, {
    abortEarly: false,
    stripUnknown: true,
    errors: { wrap: { label: false } },
    messages: { 'any.required': '{{#label}} is missing' },
  });
  if (!error) return value;
  const problems = error.details.map(
    (detail) => `  ${detail.message.replace(/ with value .*? fails /, ' fails ')}`,
  );
  throw new ConfigError(`the configuration has ${problems.length} problem(s):\n${problems.join('\n')}`);
}

/** What the local stack takes from the environment; everything else it sets itself. */
export interface LocalConfig {
  /** Null where the stack is to bring its own. */
  readonly databaseUrl: string | null;
  readonly temporalAddress: string | null;
  readonly cacheHome: string | undefined;
  /** Handed on to the processes of the stack. */
  readonly environment: NodeJS.ProcessEnv;
}

/**
 * For `npm start`, where nothing has to be set.
 * @throws {ConfigError} as `loadConfig`
 */
export function loadLocalConfig(environment: NodeJS.ProcessEnv = process.env): LocalConfig {
  const env = check(Joi.object({ DATABASE_URL: databaseUrl.default(null) }), environment);
  return Object.freeze({
    databaseUrl: env.DATABASE_URL,
    temporalAddress: environment.TEMPORAL_ADDRESS || null,
    cacheHome: environment.XDG_CACHE_HOME,
    environment: { ...environment },
  });
}
