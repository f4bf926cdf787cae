import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { setTimeout } from 'node:timers/promises';
import { collectDefaultMetrics, Gauge, Registry, register } from '@prometheus-io/client';
import type { Client } from '@temporalio/client';
import type { Logger } from 'pino';
import { secretKeysTrouble } from '../db/accounts/secret-keys.ts';
import type { Database } from '../db/client.ts';
import { type ConfiguredSource, type Figure, readFigures } from '../db/figures.ts';
import METRICS from '../db/metrics.json' with { type: 'json' };
import { readiness } from '../db/migrate.ts';
import type { Config } from './config/config.ts';

// Serves the metrics of a process on METRICS_PORT (deploy/metrics.md). An API serves its own
// counters. A worker also serves figures about the whole service, the metrics of Temporal's SDK,
// and its health.

/** Figures are read again when they are older than this. */
const KEEP_MS = 10_000;
/** Limit for waiting for PostgreSQL, Temporal and the SDK. Prometheus gives up after 10 s. */
const PATIENCE_MS = 2000;

const databasePool = new Gauge({
  name: 'npe_database_pool',
  help: 'Connections to PostgreSQL: how many there may be, how many are used, and how much waits for one',
  labelNames: ['state'],
});

const readyGauge = new Gauge({
  name: 'npe_ready',
  help: '1 if the process can do its work, else 0, with what its /readyz says',
  labelNames: ['reason'],
});

/** Sets `npe_ready`. A check that takes too long counts as not ready. */
async function tellReady(readiness: () => Promise<string>): Promise<void> {
  const late = setTimeout(PATIENCE_MS, 'timeout', { ref: false });
  const reason = await Promise.race([readiness(), late]).catch(() => 'failed');
  readyGauge.reset();
  readyGauge.set({ reason }, reason === 'ready' ? 1 : 0);
}

/**
 * Serves metrics on METRICS_PORT until the process ends.
 * @param readiness returns `ready`, or the reason why the process can't do its work
 * @param parts return more text for Prometheus
 * @param health health checks by path; each returns what is wrong, or null
 * @returns null if METRICS_PORT is not set
 * @throws if the port is taken
 */
export async function serveMetrics(
  { metricsHost, metricsPort }: Pick<Config, 'metricsHost' | 'metricsPort'>,
  { pool }: Pick<Database, 'pool'>,
  readiness: () => Promise<string>,
  parts: readonly (() => Promise<string>)[] = [],
  health: Readonly<Record<string, () => Promise<string | null>>> = {},
): Promise<Server | null> {
  if (metricsPort === null) return null;
  if (!register.getSingleMetric('process_start_time_seconds')) collectDefaultMetrics();
  const looks = new Map(Object.entries(health));
  const answer = async (
    path: string,
  ): Promise<readonly [status: number, type: string, text: string]> => {
    if (path === '/metrics') {
      const { size, asked } = pool;
      const states = { size, used: Math.min(size, asked), waiting: Math.max(0, asked - size) };
      for (const [state, value] of Object.entries(states)) databasePool.set({ state }, value);
      await tellReady(readiness);
      const texts = await Promise.all([register.metrics(), ...parts.map((part) => part())]);
      return [200, register.contentType, texts.join('')];
    }
    const look = looks.get(path);
    if (!look) return [404, 'text/plain', 'not found\n'];
    const wrong = await look();
    return [
      wrong === null ? 200 : 503,
      'application/json',
      JSON.stringify({ status: wrong ?? 'ok' }),
    ];
  };
  const server = createServer(async ({ url = '' }, response) => {
    const failed = [500, 'text/plain', 'failed\n'] as const;
    const [status, type, text] = await answer(url.replace(/\?.*/, '')).catch(() => failed);
    response.writeHead(status, { 'content-type': type }).end(text);
  });
  server.maxConnections = 100;
  await once(server.listen(metricsPort, metricsHost), 'listening');
  return server;
}

/**
 * Returns a function that returns figures about the service, as text for Prometheus. It reads them
 * again when they are older than 10 s.
 */
export function figuresOf(db: Database, sources: readonly ConfiguredSource[], log: Logger) {
  let known: readonly Figure[] = [];
  let isUp = true;
  let reading: Promise<void> | null = null;
  let readAt = -KEEP_MS;
  const read = async () => {
    const figures = await readFigures(db, sources).catch((error: unknown) => {
      if (isUp) log.warn({ err: error }, 'figures cannot be read, the last known are told');
    });
    isUp = figures !== undefined;
    known = figures ?? known;
    readAt = performance.now();
    reading = null;
  };
  return async () => {
    if (performance.now() >= readAt + KEEP_MS) reading ??= read();
    await Promise.race([reading, setTimeout(PATIENCE_MS, null, { ref: false })]);
    const up = {
      name: 'npe_figures_up',
      labels: {},
      value: Number(isUp && reading === null),
    } as const;
    const registry = new Registry();
    for (const [name, samples] of Map.groupBy([up, ...known], (figure) => figure.name)) {
      const labelNames = Object.keys(samples[0]?.labels ?? {});
      const gauge = new Gauge({
        name,
        help: METRICS.figures[name],
        labelNames,
        registers: [registry],
      });
      for (const { labels, value } of samples) gauge.set(labels, value);
    }
    return await registry.metrics();
  };
}

/**
 * Returns a function that fetches the metrics of Temporal's SDK. They are empty if it does not
 * respond.
 */
export const sdkMetrics = (address: string) => () =>
  fetch(`http://${address}/metrics`, { signal: AbortSignal.timeout(PATIENCE_MS) })
    .then((response) => response.text())
    .catch(() => '');

/**
 * Returns the health checks of a worker: `/healthz` fails when it is about to end, `/readyz` when
 * it can't do all of its work.
 */
export function healthOf(
  db: Database,
  client: Client,
  ending: AbortSignal,
  isPolling: () => boolean,
) {
  const { namespace } = client.options;
  const ready = async () => {
    if (ending.aborted) return 'ending';
    const state = await readiness(db);
    if (state !== 'ready') return state;
    if (!isPolling()) return 'not_polling';
    const ask = () => client.workflowService.describeNamespace({ namespace });
    const asked = client.withDeadline(Date.now() + PATIENCE_MS, ask);
    const isAnswered = await asked.then(() => true).catch(() => false);
    if (!isAnswered) return 'temporal_away';
    return (await secretKeysTrouble(db)) === null ? null : 'not_ready_for_deliveries';
  };
  return { '/healthz': async () => (ending.aborted ? 'ending' : null), '/readyz': ready };
}
