import test from 'ava';
import fc from 'fast-check';
import type { AttemptResult } from '../../../activities/webhooks/post.ts';
import { delayBefore, isDelivered, isFinal } from '../../../activities/webhooks/retry.ts';
import { loadConfig } from '../../../deploy/config/config.ts';

const S = 1000;
const M = 60 * S;
const H = 60 * M;
const SCHEDULE = loadConfig({
  DATABASE_URL: 'postgres://127.0.0.1/none',
}).webhookScheduleMs;
const responded = (status: number): AttemptResult => ({
  kind: 'responded',
  address: '192.0.2.1',
  status,
  retryAfterMs: null,
  excerpt: Buffer.alloc(0),
  body: null,
});

test('the default schedule of webhooks has the ten published waits', (t) => {
  const waits = SCHEDULE.map((_step, index) =>
    delayBefore(index + 1, SCHEDULE, null, 0.5),
  );
  t.deepEqual(waits, [
    0,
    5 * S,
    5 * M,
    30 * M,
    2 * H,
    5 * H,
    10 * H,
    14 * H,
    20 * H,
    24 * H,
  ]);
});

test('no attempt follows the last one of the schedule, even with Retry-After', (t) => {
  t.is(delayBefore(11, SCHEDULE, null, 0.5), null);
  t.is(delayBefore(11, SCHEDULE, 1000, 0.5), null);
  t.is(delayBefore(2, [0], null, 0.5), null);
});

test('the wait before a webhook is retried varies randomly by up to 20 %', (t) => {
  t.is(delayBefore(3, SCHEDULE, null, 0), 4 * M);
  t.is(delayBefore(3, SCHEDULE, null, 1), 6 * M);
  const generated = fc.property(fc.double({ min: 0, max: 1, noNaN: true }), (random) => {
    const wait = delayBefore(4, SCHEDULE, null, random) ?? Number.NaN;
    return Number.isInteger(wait) && wait >= 24 * M && wait <= 36 * M;
  });
  t.notThrows(() => fc.assert(generated));
});

test('Retry-After can make the wait for a retry up to twice as long, but not shorter', (t) => {
  t.is(delayBefore(3, SCHEDULE, 7 * M, 0), 7 * M);
  t.is(delayBefore(3, SCHEDULE, 0, 0), 5 * M);
  t.is(delayBefore(3, SCHEDULE, 24 * H, 1), 10 * M);
});

test('only a response with status 2xx counts as a successful delivery', (t) => {
  for (const status of [200, 202, 204, 299]) t.true(isDelivered(status), String(status));
  for (const status of [0, 100, 199, 300, 301, 304, 400, 410, 429, 500, 503])
    t.false(isDelivered(status), String(status));
});

test('a webhook is retried after every response except 2xx, unless its address is blocked', (t) => {
  for (const status of [200, 204]) t.true(isFinal(responded(status)), String(status));
  for (const status of [301, 307, 400, 404, 410, 429, 500, 503])
    t.false(isFinal(responded(status)), String(status));
  t.true(isFinal({ kind: 'failed', reason: 'blocked_address' }));
  t.true(isFinal({ kind: 'failed', reason: 'blocked_by_operator' }));
  t.false(isFinal({ kind: 'failed', reason: 'unproven_host' }));
  const silent = [
    'timeout_total',
    'timeout_connect',
    'dns_not_found',
    'refused',
    'reset',
    'tls_name',
  ] as const;
  for (const reason of silent) t.false(isFinal({ kind: 'failed', reason }), reason);
});
