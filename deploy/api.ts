import { openDatabase } from '../db/client.ts';
import { TASK_QUEUE } from '../workflows/messages.ts';
import { loadConfig } from './config/config.ts';
import { createApi } from './config/create-api.ts';
import { createLog } from './log.ts';
import { main, untilReady } from './main.ts';
import { lazyClient, temporalTarget } from './temporal/client.ts';

// `npm run api`: the HTTP API, until SIGTERM or SIGINT.

/** Longer than any answer takes; load balancers need a moment to notice. */
const DRAIN_MS = 20_000;

const HELP = `
It listens at once, and is ready (GET /readyz answers 200) as soon as PostgreSQL is there and migrated; Temporal may be
away. SIGTERM or SIGINT: it answers what runs for up to 20 s, then ends. A second signal ends it at once.

Needs DATABASE_URL; has TEMPORAL_ADDRESS, API_HOST, API_PORT, LOG_LEVEL and more: see "Configuration" in README.md.
Exit codes: 0 ended by a signal, 1 failed (one sentence on stderr), 2 wrong usage.`;

await main({ name: 'api', description: 'The HTTP API.', help: HELP }, async (stopped) => {
  const config = loadConfig();
  const log = createLog('api', config.logLevel);
  const db = openDatabase({ url: config.databaseUrl, poolSize: config.databasePool, applicationName: 'api' });
  const client = lazyClient(temporalTarget(config.temporalEnvironment));
  const server = createApi(config, { db, log, client, taskQueue: TASK_QUEUE });
  await server.start();
  const address = { host: config.apiHost, port: server.info.port };
  log.info(address, 'api listening');
  if (await untilReady(db, log, stopped)) log.info(address, 'api ready');
  await stopped;
  log.info('api draining');
  await server.stop({ timeout: DRAIN_MS });
  await client.connection.close();
  await db.close();
});
