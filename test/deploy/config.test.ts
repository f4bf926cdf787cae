import test from 'ava';
import {
  loadApiConfig,
  loadConfig,
  loadLocalConfig,
  loadOperatorConfig,
} from '../../deploy/config/config.ts';
import { ConfigError, parseDuration, rate } from '../../deploy/config/values.ts';
import { TASK_QUEUE } from '../../workflows/messages.ts';

const MINIMAL = { DATABASE_URL: 'postgres://user:secret@db.example:5432/name' };

const problemsOf = (environment: NodeJS.ProcessEnv): string => {
  try {
    loadConfig(environment);
    return '';
  } catch (error) {
    return error instanceof ConfigError ? error.message : String(error);
  }
};

test('only DATABASE_URL is required, and all other settings have defaults', (t) => {
  t.like(loadConfig(MINIMAL), {
    databasePool: 10,
    apiPort: 8080,
    apiKeepAliveMs: 75_000,
    lookupTimeoutMs: 15 * 60_000,
    freshnessMs: 30 * 86_400_000,
    replayMs: 30 * 86_400_000,
    idempotencyMs: 86_400_000,
    rateWindowMs: 60_000,
    taskQueue: TASK_QUEUE,
    workerRollout: 'automatic',
  });
  t.like(loadConfig(MINIMAL), {
    sourcesFile: null,
    verifyPolicy: null,
    catchAll: 'reject',
  });
  const seconds = loadConfig(MINIMAL).webhookScheduleMs.map((ms) => ms / 1000);
  t.deepEqual(
    [...seconds],
    [0, 5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400],
  );
});

test('all wrong settings are reported at once, by name and without their values', (t) => {
  const message = problemsOf({
    DATABASE_URL: 'mysql://secret@host',
    API_PORT: '99999',
    LOOKUP_TIMEOUT: '7',
    WEBHOOK_SCHEDULE: '1s,soon',
    WEBHOOK_OPEN_CIDRS: '10.0.0.0/99',
    LOG_LEVEL: 'loud',
    TASK_QUEUE: 'a.b',
    WORKER_ROLLOUT: 'sometimes',
  });
  t.is(message.split('\n').length, 9);
  for (const name of [
    'DATABASE_URL',
    'API_PORT',
    'LOOKUP_TIMEOUT',
    'WEBHOOK_SCHEDULE',
    'WEBHOOK_OPEN_CIDRS',
    'LOG_LEVEL',
    'TASK_QUEUE',
    'WORKER_ROLLOUT',
  ]) {
    t.true(message.includes(name), name);
  }
  t.false(message.includes('secret'));
  t.false(message.includes('99999'));
});

test('an empty environment variable counts as missing', (t) => {
  for (const environment of [{}, { DATABASE_URL: '' }])
    t.regex(problemsOf(environment), /DATABASE_URL is missing/);
});

test('the configuration cannot be changed after it was read', (t) => {
  const config = loadConfig(MINIMAL);
  t.true(Object.isFrozen(config));
});

test('the operator command needs only DATABASE_URL, and npm start needs no setting', (t) => {
  const operator = loadOperatorConfig({ ...MINIMAL, API_PORT: 'x' });
  t.deepEqual(operator, {
    databaseUrl: MINIMAL.DATABASE_URL,
    secretKeys: [],
  });
  t.like(loadLocalConfig({}), { databaseUrl: null, temporalAddress: null });
  t.like(loadLocalConfig({ ...MINIMAL, TEMPORAL_ADDRESS: 'host:7233' }), {
    databaseUrl: MINIMAL.DATABASE_URL,
    temporalAddress: 'host:7233',
  });
  t.deepEqual(loadLocalConfig({ LOOKUP_TIMEOUT: '', RATE_WINDOW: '3s' }).environment, {
    RATE_WINDOW: '3s',
  });
  t.throws(() => loadLocalConfig({ RATE_WINDOW: 'x' }), {
    message: /RATE_WINDOW must be a duration/,
  });
});

test('a duration without a unit is rejected', (t) => {
  t.is(parseDuration('500ms'), 500);
  t.is(parseDuration('15m'), 900_000);
  t.is(parseDuration('30d'), 2_592_000_000);
  for (const text of ['', '15', 'm', '1.5h', '-1s', '1 s', '1w', '٣s'])
    t.is(parseDuration(text), null);
});

test('a source is configured by its API key, except Reacher, which needs only a URL', (t) => {
  const keys = {
    HUNTER_API_KEY: 'h',
    PROSPEO_URL: 'https://x.example',
    REACHER_URL: 'http://127.0.0.1:9/',
  };
  const { access } = loadConfig({ ...MINIMAL, ...keys });
  t.like(access, {
    hunter: { baseUrl: 'https://api.hunter.io/v2', apiKey: 'h' },
    prospeo: null,
    reacher: { baseUrl: 'http://127.0.0.1:9', apiKey: '' },
    zerobounce: null,
  });
  t.is(
    loadConfig({ ...MINIMAL, REACHER_API_KEY: 'r', REACHER_URL: '' }).access.reacher,
    null,
  );
});

test('only Reacher may have an http URL on another machine; other sources need https', (t) => {
  const names = ['HUNTER_URL', 'ZEROBOUNCE_URL', 'REGISTRY_URL'];
  for (const name of names) {
    for (const url of [
      'http://vendor.example',
      'http://10.0.0.1:8080',
      'http://localhost.vendor.example',
    ])
      t.regex(
        problemsOf({ ...MINIMAL, [name]: url }),
        new RegExp(`${name} must be an https URL`),
        url,
      );
    for (const url of [
      'https://vendor.example/v2',
      'http://localhost:1',
      'http://127.9.9.9',
      'http://[::1]:1',
    ])
      t.is(problemsOf({ ...MINIMAL, [name]: url }), '', url);
  }
  t.is(problemsOf({ ...MINIMAL, REACHER_URL: 'http://reacher:8080' }), '');
  t.regex(problemsOf({ ...MINIMAL, REACHER_URL: 'ftp://reacher' }), /REACHER_URL/);
});

test('errors about the settings of sources name each wrong setting', (t) => {
  const wrong = { HUNTER_URL: 'x', VERIFY_POLICY: 'hope', CATCH_ALL: 'keep' };
  const message = problemsOf({ ...MINIMAL, ...wrong });
  for (const name of Object.keys(wrong)) t.true(message.includes(name), name);
});

test('a rate must consist of a number of calls and a duration', (t) => {
  t.deepEqual(rate().validate('500/1m').value, { calls: 500, perMs: 60_000 });
  for (const text of ['', '5', '0/1s', '5/0s', '5/s', '5/1w', '-5/1s'])
    t.truthy(rate().validate(text).error, text);
});

test('the API has the facts about the operator, or null without them', (t) => {
  const site = { PUBLIC_URL: 'https://a.example', SUPPORT_EMAIL: 'a@b.co' };
  const required = { ...MINIMAL, ...site };
  const none = { privacyUrl: null, subprocessors: null, statusUrl: null };
  t.like(loadApiConfig({ ...required, PRIVACY_URL: '', SUBPROCESSORS: '' }), none);
  const facts = { PRIVACY_URL: 'https://a.example/p', SUBPROCESSORS: 'Hunter, AWS' };
  t.like(loadApiConfig({ ...required, ...facts }), {
    privacyUrl: facts.PRIVACY_URL,
    subprocessors: facts.SUBPROCESSORS,
    publicUrl: required.PUBLIC_URL,
  });
  t.throws(() => loadApiConfig({ ...required, STATUS_URL: 'status' }), {
    message: /STATUS_URL/,
  });
  for (const url of ['http://shop.example', 'javascript:alert(1)', 'shop'])
    t.throws(() => loadApiConfig({ ...required, BUY_CREDITS_URL: url }), {
      message: /BUY_CREDITS_URL/,
    });
});
