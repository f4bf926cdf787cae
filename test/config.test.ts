import test from 'ava';
import {
  ConfigError,
  loadConfig,
  loadLocalConfig,
  loadOperatorConfig,
  parseDuration,
} from '../deploy/config.ts';

const MINIMAL = { DATABASE_URL: 'postgres://user:secret@db.example:5432/name' };

const problemsOf = (environment: NodeJS.ProcessEnv): string => {
  try {
    loadConfig(environment);
    return '';
  } catch (error) {
    return error instanceof ConfigError ? error.message : String(error);
  }
};

test('a database is all that has to be configured; the rest has the decided defaults', (t) => {
  t.like(loadConfig(MINIMAL), {
    databasePool: 10,
    apiPort: 8080,
    lookupTimeoutMs: 15 * 60_000,
    freshnessMs: 30 * 86_400_000,
    replayMs: 30 * 86_400_000,
    idempotencyMs: 86_400_000,
    rateWindowMs: 60_000,
    rocketReachUrl: 'https://api.rocketreach.co/api/v2',
    rocketReachKey: null,
  });
  const seconds = loadConfig(MINIMAL).webhookScheduleMs.map((ms) => ms / 1000);
  t.deepEqual([...seconds], [0, 5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400]);
});

test('every problem is reported at once, by name, without a value', (t) => {
  const message = problemsOf({
    DATABASE_URL: 'mysql://secret@host',
    API_PORT: '99999',
    LOOKUP_TIMEOUT: '7',
    WEBHOOK_SCHEDULE: '1s,soon',
    WEBHOOK_OPEN_CIDRS: '10.0.0.0/99',
    LOG_LEVEL: 'loud',
  });
  t.regex(message, /6 problem\(s\)/);
  for (const name of [
    'DATABASE_URL',
    'API_PORT',
    'LOOKUP_TIMEOUT',
    'WEBHOOK_SCHEDULE',
    'WEBHOOK_OPEN_CIDRS',
    'LOG_LEVEL',
  ]) {
    t.true(message.includes(name), name);
  }
  t.false(message.includes('secret'));
  t.false(message.includes('99999'));
});

test('a missing variable is missing, and so is an empty one', (t) => {
  for (const environment of [{}, { DATABASE_URL: '' }])
    t.regex(problemsOf(environment), /DATABASE_URL is missing/);
});

test('the configuration cannot be changed after it was read', (t) => {
  const config = loadConfig(MINIMAL);
  t.true(Object.isFrozen(config));
});

test('the operator needs the database only, and npm start nothing', (t) => {
  t.deepEqual(loadOperatorConfig({ ...MINIMAL, API_PORT: 'x' }), { databaseUrl: MINIMAL.DATABASE_URL });
  t.like(loadLocalConfig({}), { databaseUrl: null, temporalAddress: null });
  t.like(loadLocalConfig({ ...MINIMAL, TEMPORAL_ADDRESS: 'host:7233' }), {
    databaseUrl: MINIMAL.DATABASE_URL,
    temporalAddress: 'host:7233',
  });
});

test('durations have a unit', (t) => {
  t.is(parseDuration('500ms'), 500);
  t.is(parseDuration('15m'), 900_000);
  t.is(parseDuration('30d'), 2_592_000_000);
  for (const text of ['', '15', 'm', '1.5h', '-1s', '1 s', '1w', '٣s']) t.is(parseDuration(text), null);
});
