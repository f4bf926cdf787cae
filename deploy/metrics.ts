import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { setTimeout } from 'node:timers/promises';
import { collectDefaultMetrics, Gauge, Registry, register } from '@prometheus-io/client';
import type { Client } from '@temporalio/client';
import type { Logger } from 'pino';
import type { Database } from '../db/client.ts';
import { type ConfiguredSource, type Figure, HELP, readFigures } from '../db/figures.ts';
import { readiness } from '../db/migrate.ts';
import type { Config } from './config/config.ts';

// What a process tells on METRICS_PORT (deploy/metrics.md): its own counters; a worker also how the service is, what
// Temporal's SDK counts, and its health. Whoever may reach the port may read all of it: there is nothing personal in it.

/** Figures that are younger are not read again. */
const KEEP_MS = 10_000;
/** A scrape does not wait longer for others; Prometheus gives up after 10 s. */
const PATIENCE_MS = 2000;

const TEXT = register.contentType;

const databasePool = new Gauge({
  name: 'npe_database_pool',
  help: 'Connections to PostgreSQL: how many there may be, how many are used, and how much waits for one',
  labelNames: ['state'],
});

/** What a path answers with. */
type Page = () => Promise<{ readonly status: number; readonly type: string; readonly text: string }>;

/** What a worker tells beside its own counters. */
export interface WorkerPages {
  /** Each a part of the text for Prometheus. */
  readonly parts: readonly (() => Promise<string>)[];
  /** By their path. */
  readonly health: Readonly<Record<string, Page>>;
}

/**
 * Listens where METRICS_PORT says, until the process ends.
 * @returns null if it is not set
 * @throws if the port is taken
 */
export async function serveMetrics(
  { metricsHost, metricsPort }: Pick<Config, 'metricsHost' | 'metricsPort'>,
  { pool }: Pick<Database, 'pool'>,
  { parts, health }: WorkerPages = { parts: [], health: {} },
): Promise<Server | null> {
  if (metricsPort === null) return null;
  if (!register.getSingleMetric('process_start_time_seconds')) collectDefaultMetrics();
  const metrics: Page = async () => {
    const { size, asked } = pool;
    const states = { size, used: Math.min(size, asked), waiting: Math.max(0, asked - size) };
    for (const [state, value] of Object.entries(states)) databasePool.set({ state }, value);
    const texts = await Promise.all([register.metrics(), ...parts.map((part) => part())]);
    return { status: 200, type: TEXT, text: texts.join('') };
  };
  const pages = new Map(Object.entries({ '/metrics': metrics, ...health }));
  const server = createServer((request, response) => {
    const page = pages.get(request.url?.replace(/\?.*/, '') ?? '');
    const answer = page?.() ?? Promise.resolve({ status: 404, type: 'text/plain', text: 'not found\n' });
    void answer
      .catch(() => ({ status: 500, type: 'text/plain', text: 'failed\n' }))
      .then(({ status, type, text }) => response.writeHead(status, { 'content-type': type }).end(text));
  });
  server.maxConnections = 100;
  await once(server.listen(metricsPort, metricsHost), 'listening');
  return server;
}

/** How the service is, read again when it is asked for and the last figures are older than 10 s. */
export function figuresOf(
  db: Database,
  sources: readonly ConfiguredSource[],
  log: Logger,
): () => Promise<string> {
  let known: readonly Figure[] = [];
  let isUp = true;
  let reading: Promise<void> | null = null;
  let readAt = -KEEP_MS;
  const read = async () => {
    try {
      known = await readFigures(db, sources);
      isUp = true;
    } catch (error) {
      if (isUp) log.warn({ err: error }, 'figures cannot be read, the last known are told');
      isUp = false;
    }
    readAt = performance.now();
    reading = null;
  };
  return async () => {
    if (performance.now() >= readAt + KEEP_MS) reading ??= read();
    await Promise.race([reading, setTimeout(PATIENCE_MS, null, { ref: false })]);
    const up = { name: 'npe_figures_up', labels: {}, value: Number(isUp && reading === null) } as const;
    return await textOf([up, ...known]);
  };
}

async function textOf(figures: readonly Figure[]): Promise<string> {
  const registry = new Registry();
  for (const [name, samples] of Map.groupBy(figures, (figure) => figure.name)) {
    const labelNames = Object.keys(samples[0]?.labels ?? {});
    const gauge = new Gauge({ name, help: HELP[name], labelNames, registers: [registry] });
    for (const { labels, value } of samples) gauge.set(labels, value);
  }
  return await registry.metrics();
}

/** What Temporal's SDK counts, from where it serves it on loopback; nothing if that does not answer. */
export function temporalMetrics(address: string): () => Promise<string> {
  return async () => {
    try {
      const response = await fetch(`http://${address}/metrics`, { signal: AbortSignal.timeout(PATIENCE_MS) });
      return await response.text();
    } catch {
      return '';
    }
  };
}

/**
 * Whether a worker lives, and whether it can work. `/healthz`: its event loop answers, and it is not about to end.
 * `/readyz`: it polls, and Temporal and PostgreSQL answer.
 */
export function healthOf(worker: {
  readonly db: Database;
  readonly client: Client;
  readonly ending: AbortSignal;
  readonly isPolling: () => boolean;
}): WorkerPages['health'] {
  const { db, client, ending, isPolling } = worker;
  const isEnding = () => (ending.aborted ? 'ending' : null);
  const temporal = async () => {
    const { namespace } = client.options;
    const ask = () => client.workflowService.describeNamespace({ namespace });
    return await client.withDeadline(Date.now() + PATIENCE_MS, ask).then(
      () => null,
      () => 'temporal_away',
    );
  };
  const database = async () => {
    const state = await readiness(db);
    return state === 'ready' ? null : state;
  };
  const page = (look: () => Promise<string | null>, good: string): Page => {
    return async () => {
      const wrong = await look();
      const text = JSON.stringify({ status: wrong ?? good });
      return { status: wrong === null ? 200 : 503, type: 'application/json', text };
    };
  };
  return {
    '/healthz': page(async () => isEnding(), 'ok'),
    '/readyz': page(
      async () => isEnding() ?? (await database()) ?? (isPolling() ? await temporal() : 'not_polling'),
      'ready',
    ),
  };
}
