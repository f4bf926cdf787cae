import { setTimeout } from 'node:timers/promises';
import type { Logger } from 'pino';
import { secretKeysTrouble } from '../db/accounts/secret-keys.ts';
import { firstVersion } from '../db/accounts/secrets.ts';
import { type Database, openDatabase } from '../db/connection/client.ts';
import {
  type ApiProcess,
  listElsewhere,
  newProcessId,
  noteApi,
  noteStopped,
} from '../db/operations/workers.ts';
import { noteHome } from '../db/requests/outbox.ts';
import { loadApiConfig } from './config/config.ts';
import { createApi } from './config/create-api.ts';
import { createLog } from './log.ts';
import { main, repeat, untilReady, warnAboutTls } from './main.ts';
import { serveMetrics } from './metrics.ts';
import { lazyClient, temporalTarget } from './temporal/client.ts';
import { temporalTrouble } from './temporal/trouble.ts';
import { sendTraces } from './traces.ts';

// `npm run api` runs the HTTP API until SIGTERM or SIGINT.

/**
 * Time limit for finishing the running requests when the server stops. No response takes longer,
 * because the server then responds to waiting polls at once.
 */
const DRAIN_MS = 20_000;

/** How often to check that a worker uses the same Temporal namespace and task queue as this API. */
const CHECK_MS = 5000;

/** The 500s of this time are stored with the heartbeat. */
const RECENT_MS = 15 * 60_000;

const NO_WORKER =
  'no worker uses the namespace and task queue of this API; set the same TEMPORAL_NAMESPACE and TASK_QUEUE for both';

/** Computes by how much a total has grown within the last 15 minutes. */
class RecentGrowth {
  #seen = [{ at: performance.now(), total: 0 }];

  /** @param total the total now. The more often this is called, the more exact is the result */
  of(total: number): number {
    const at = performance.now();
    this.#seen.push({ at, total });
    this.#seen = this.#seen.filter((before) => before.at > at - RECENT_MS);
    return total - (this.#seen[0]?.total ?? 0);
  }
}

const HELP = `
The API listens as soon as it starts. It is ready (GET /readyz returns 200) when
PostgreSQL is reachable and migrated. It does not wait for Temporal.

On SIGTERM or SIGINT, /readyz returns 503 so that load balancers stop sending requests.
The API still accepts requests for API_DRAIN_DELAY (5 s). Then it finishes running
requests for up to 20 s, and exits. A second signal ends it immediately.

Required settings: DATABASE_URL, SECRETS_KEY, PUBLIC_URL, SUPPORT_EMAIL. Optional:
TEMPORAL_ADDRESS, API_HOST, API_PORT, LOG_LEVEL, and more in deploy/env.example.

Exit codes: 0 stopped by a signal, 1 failed (one sentence on stderr), 2 wrong usage.`;

await main({ name: 'api', description: 'The HTTP API.', help: HELP }, async (stopped) => {
  const config = loadApiConfig();
  firstVersion(config.secretKeys);
  const log = createLog('api', config.logLevel);
  warnAboutTls(log, config.databaseUrl);
  const traces = sendTraces(config, 'npi-email-api', log);
  const db = openDatabase({
    url: config.databaseUrl,
    poolSize: config.databasePool,
    secretKeys: config.secretKeys,
    applicationName: 'api',
  });
  const target = temporalTarget(config.temporalEnvironment);
  const client = lazyClient(target);
  const { taskQueue } = config;
  const trouble = async () => {
    const found = await temporalTrouble(target);
    return found === null ? null : found.message;
  };
  const server = await createApi(config, { db, log, client, taskQueue, trouble });
  await server.start();
  await serveMetrics(config, db, server.app.readiness);
  const address = { host: config.apiHost, port: server.info.port };
  log.info(address, 'api listening');
  const ending = new AbortController();
  const me = { id: newProcessId(), namespace: client.options.namespace, taskQueue };
  const recent = new RecentGrowth();
  const checkWorkers = createWorkerCheck(db, log, me, () => recent.of(server.app.errors));
  if (await untilReady(db, log, stopped)) {
    log.info(address, 'api ready');
    void logSecretsTrouble(db, log).catch(() => {});
    // This call ignores a failure of the check, because the check is repeated below.
    void checkWorkers().catch(() => {});
  }
  void repeat(
    'check for workers',
    CHECK_MS,
    { signal: ending.signal, log },
    checkWorkers,
  );
  await stopped;
  ending.abort();
  log.info('api draining');
  server.app.isDraining = true;
  await setTimeout(config.apiDrainDelayMs);
  const noted = noteStopped(db, me.id).catch(() => {});
  await Promise.all([server.stop({ timeout: DRAIN_MS }), noted]);
  await traces?.close();
  await client.connection.close();
  await db.close();
});

/**
 * Logs an error if the console cannot read webhook secrets. The API is ready anyway, because
 * submits and polls need no secret.
 */
async function logSecretsTrouble(db: Database, log: Logger): Promise<void> {
  const trouble = await secretKeysTrouble(db);
  if (trouble) {
    log.error(`the console cannot use webhook secrets: ${trouble}`);
  }
}

/**
 * Returns a function that records in the database that this API is alive, with its Temporal
 * namespace, its task queue, and the number of its recent 500s. If all workers use another
 * namespace or task queue, it logs an error once. It also logs when a worker uses the same ones
 * again.
 */
function createWorkerCheck(
  db: Database,
  log: Logger,
  me: ApiProcess,
  recentErrors: () => number,
) {
  const { namespace, taskQueue } = me;
  const place = { namespace, queue: taskQueue };
  let isReported = false;
  return async () => {
    await noteApi(db, me, recentErrors());
    await noteHome(db, namespace);
    const elsewhere = await listElsewhere(db, { namespace, taskQueue });
    if (elsewhere.length === 0 && isReported) {
      log.info(place, 'a worker uses the namespace and task queue of this API');
    }
    if (elsewhere.length > 0 && !isReported) {
      log.error({ ...place, elsewhere }, NO_WORKER);
    }
    isReported = elsewhere.length > 0;
  };
}
