import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { setTimeout } from 'node:timers/promises';
import { collectDefaultMetrics, Gauge, Registry, register } from '@prometheus-io/client';
import type { Client } from '@temporalio/client';
import type { Logger } from 'pino';
import { secretKeysTrouble } from '../db/accounts/secret-keys.ts';
import type { Database } from '../db/connection/client.ts';
import METRICS from '../db/operations/metrics.json' with { type: 'json' };
import { readiness } from '../db/operations/migrate.ts';
import { readServerStats } from '../db/operations/server.ts';
import { readStats, type Stat, type StatsRules } from '../db/operations/stats.ts';
import { type Config, serviceVersion } from './config/config.ts';

// Serves the metrics of a process on METRICS_PORT (deploy/metrics.md). An API process serves its
// own counters. A worker process also serves stats about the whole service, the metrics of
// Temporal's SDK, and health checks.

/** Stats that are older than this are read again from PostgreSQL. */
const KEEP_MS = 10_000;
/**
 * Time limit for each response of PostgreSQL, Temporal, and the SDK that a request for metrics
 * needs. Prometheus waits at most 10 seconds for the complete metrics.
 */
const PATIENCE_MS = 2000;

const databasePool = new Gauge({
  name: 'npe_database_pool',
  help: 'Connections to PostgreSQL: the maximum (size), those in use, and the callers that wait for one',
  labelNames: ['state'],
});

const readyGauge = new Gauge({
  name: 'npe_ready',
  help: '1 if the process can do its work, else 0, with the reason that its /readyz returns',
  labelNames: ['reason'],
});

const buildInfo = new Gauge({
  name: 'npe_build_info',
  help: 'Always 1. version: the version of the code. build: the build id of a worker in Temporal',
  labelNames: ['version', 'build'],
});

/**
 * Sets `npe_build_info`.
 * @param build the id of the worker's build in Temporal. Empty for an API
 */
export function setBuild(build: string): void {
  buildInfo.reset();
  buildInfo.set({ version: serviceVersion(), build }, 1);
}

type Reply = readonly [status: number, contentType: string, body: string];

const NOT_FOUND: Reply = [404, 'text/plain', 'not found\n'];
const FAILED: Reply = [500, 'text/plain', 'failed\n'];

/** Sets `npe_database_pool`. */
function setPool({ size, asked }: Database['pool']): void {
  databasePool.set({ state: 'size' }, size);
  databasePool.set({ state: 'used' }, Math.min(size, asked));
  databasePool.set({ state: 'waiting' }, Math.max(0, asked - size));
}

/**
 * Time limit for the readiness check. It is longer than the 3 s after which the check reports that
 * commits hang.
 */
const READY_PATIENCE_MS = 4000;

/** Sets `npe_ready`. If the check takes too long, the process counts as not ready. */
async function setReady(readiness: () => Promise<string>): Promise<void> {
  const late = setTimeout(READY_PATIENCE_MS, 'timeout', { ref: false });
  const reason = await Promise.race([readiness(), late]).catch(() => 'failed');
  readyGauge.reset();
  readyGauge.set({ reason }, Number(reason === 'ready'));
}

/**
 * Serves metrics on METRICS_PORT until the process ends.
 * @param readiness returns `ready`, or the reason why the process can't do its work
 * @param parts functions that return additional metrics in the text format of Prometheus
 * @param health health checks by URL path. Each returns what is wrong, or null
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
  if (!register.getSingleMetric('process_start_time_seconds')) {
    collectDefaultMetrics();
  }
  setBuild('');
  const checks = new Map(Object.entries(health));
  const responseTo = async (path: string): Promise<Reply> => {
    if (path === '/metrics') {
      setPool(pool);
      await setReady(readiness);
      const texts = await Promise.all([
        register.metrics(),
        ...parts.map((part) => part()),
      ]);
      return [200, register.contentType, texts.join('')];
    }
    const check = checks.get(path);
    if (check === undefined) return NOT_FOUND;
    return healthReply(await check());
  };
  const server = createServer(async ({ url = '' }, response) => {
    const path = url.replace(/\?.*/, '');
    const [status, contentType, body] = await responseTo(path).catch(() => FAILED);
    response.writeHead(status, { 'content-type': contentType }).end(body);
  });
  server.maxConnections = 100;
  await once(server.listen(metricsPort, metricsHost), 'listening');
  return server;
}

function healthReply(problem: string | null): Reply {
  if (problem === null) {
    return [200, 'application/json', JSON.stringify({ status: 'ok' })];
  }
  return [503, 'application/json', JSON.stringify({ status: problem })];
}

/**
 * Returns a function that returns stats about the service in the text format of Prometheus. The
 * function reads the stats from PostgreSQL at most every 10 seconds.
 */
export function statsOf(db: Database, rules: StatsRules, log: Logger) {
  const reader = new FigureReader(db, rules, log);
  return async () => textOf(await reader.read());
}

/** Reads the stats, and keeps the last stats that it could read. */
class FigureReader {
  readonly #db: Database;
  readonly #rules: StatsRules;
  readonly #log: Logger;
  #server: readonly Stat[] = [];
  #known: readonly Stat[] = [];
  #isUp = true;
  #reading: Promise<void> | null = null;
  #readAt = -KEEP_MS;

  constructor(db: Database, rules: StatsRules, log: Logger) {
    this.#db = db;
    this.#rules = rules;
    this.#log = log;
  }

  /**
   * Returns the last known stats and `npe_stats_up`. The value of `npe_stats_up` is 1 if the stats
   * are at most 10 seconds old, and 0 if PostgreSQL failed or is slow.
   */
  async read(): Promise<readonly Stat[]> {
    if (performance.now() >= this.#readAt + KEEP_MS) {
      this.#reading ??= this.#refresh();
    }
    await Promise.race([this.#reading, setTimeout(PATIENCE_MS, null, { ref: false })]);
    const value = Number(this.#isUp && this.#reading === null);
    return [{ name: 'npe_stats_up', labels: {}, value }, ...this.#server, ...this.#known];
  }

  async #refresh(): Promise<void> {
    try {
      // Comes first, because a lock on our tables can block the next statement.
      this.#server = await readServerStats(this.#db);
      this.#known = await readStats(this.#db, this.#rules);
      this.#isUp = true;
    } catch (error) {
      const message =
        'the stats cannot be read from PostgreSQL; the metrics show the last known values';
      if (this.#isUp) this.#log.warn({ err: error }, message);
      this.#isUp = false;
    }
    this.#readAt = performance.now();
    this.#reading = null;
  }
}

async function textOf(stats: readonly Stat[]): Promise<string> {
  const registry = new Registry();
  const registers = [registry];
  for (const [name, samples] of Map.groupBy(stats, (stat) => stat.name)) {
    const labelNames = Object.keys(samples[0]?.labels ?? {});
    const gauge = new Gauge({ name, help: METRICS.stats[name], labelNames, registers });
    for (const { labels, value } of samples) gauge.set(labels, value);
  }
  return await registry.metrics();
}

/**
 * Returns a function that fetches the metrics of Temporal's SDK in the text format of Prometheus.
 * The text is empty if the SDK does not respond.
 */
export const sdkMetrics = (address: string) => () =>
  fetch(`http://${address}/metrics`, { signal: AbortSignal.timeout(PATIENCE_MS) })
    .then((response) => response.text())
    .catch(() => '');

/** The state of the worker that its health checks report. */
interface WorkerState {
  isPolling(): boolean;
  /** Returns true if open runs need the version of this worker, though a newer one is current. */
  isNeeded(): Promise<boolean>;
}

/**
 * Returns the health checks of a worker by URL path. `/healthz` and `/readyz` fail when the worker
 * is shutting down. `/readyz` also fails if the worker can't do all of its work. `/needed` fails if
 * the worker may be stopped at once.
 */
export function healthOf(
  db: Database,
  client: Client,
  ending: AbortSignal,
  worker: WorkerState,
) {
  const ready = async () => {
    if (ending.aborted) return 'ending';
    const state = await readiness(db);
    if (state !== 'ready') return state;
    if (!worker.isPolling()) return 'not_polling';
    if (!(await isTemporalThere(client))) return 'temporal_away';
    return (await secretKeysTrouble(db)) === null ? null : 'not_ready_for_deliveries';
  };
  const alive = async () => (ending.aborted ? 'ending' : null);
  const needed = async () => ((await worker.isNeeded()) ? null : 'replaceable');
  return { '/healthz': alive, '/readyz': ready, '/needed': needed };
}

async function isTemporalThere(client: Client): Promise<boolean> {
  const { namespace } = client.options;
  const ask = () => client.workflowService.describeNamespace({ namespace });
  try {
    await client.withDeadline(Date.now() + PATIENCE_MS, ask);
    return true;
  } catch {
    return false;
  }
}
