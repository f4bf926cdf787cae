import { NativeConnection } from '@temporalio/worker';
import { openDatabase } from '../db/client.ts';
import { TASK_QUEUE } from '../workflows/messages.ts';
import { loadConfig } from './config/config.ts';
import { createSources } from './config/sources.ts';
import { postOf, rulesOf } from './config/worker.ts';
import { createLog } from './log.ts';
import { main, untilReady } from './main.ts';
import { lazyClient, temporalTarget } from './temporal/client.ts';
import { prepareNamespace } from './temporal/namespace.ts';
import { bundleWorkflows, installRuntime, startWorkers } from './temporal/workers.ts';

// `npm run worker`: the Temporal worker, until SIGTERM or SIGINT.

const HELP = `
It works as soon as PostgreSQL is there and migrated; Temporal must be there when it starts. SIGTERM or SIGINT: it takes
no new work, gives running work 35 s, then ends. A second signal ends it at once.

Needs DATABASE_URL; has TEMPORAL_ADDRESS, the keys of vendors and verifiers, LOG_LEVEL and more: see "Configuration" in
README.md.
Exit codes: 0 ended by a signal, 1 failed (one sentence on stderr), 2 wrong usage.`;

const DESCRIPTION = 'The worker: looks emails up, checks them, sends webhooks.';

await main({ name: 'worker', description: DESCRIPTION, help: HELP }, async (stopped) => {
  const config = loadConfig();
  const log = createLog('worker', config.logLevel);
  installRuntime(log);
  const db = openDatabase({
    url: config.databaseUrl,
    poolSize: config.databasePool,
    applicationName: 'worker',
  });
  const { greylistMs, reverifyMs, ...sources } = createSources(config, db);
  if (!(await untilReady(db, log, stopped))) return await db.close();
  const target = temporalTarget(config.temporalEnvironment);
  const client = lazyClient(target);
  const connection = await NativeConnection.connect(target.connectionOptions);
  await prepareNamespace(client, TASK_QUEUE, { sweepMs: config.sweepIntervalMs, reverifyMs }, log);
  if (sources.vendors.length === 0) {
    log.warn('no vendor has a key: requests are answered from the directory alone');
  }
  if (config.verifyPolicy === 'vendor-or-verifier' && sources.verifiers.length === 0) {
    const undated = sources.vendors.filter(({ vendor }) => !vendor.isDated).map(({ vendor }) => vendor.id);
    if (undated.length > 0) {
      log.warn(
        { vendors: undated },
        'these vendors do not date what they find: without a verifier it is never valid',
      );
    }
  }
  log.info(
    {
      vendors: sources.vendors.map(({ vendor }) => vendor.id),
      verifiers: sources.verifiers.map(({ id }) => id),
      registry: sources.registry !== null,
    },
    'sources, in the order in which they are asked',
  );
  const workers = await startWorkers({
    connection,
    client,
    taskQueue: TASK_QUEUE,
    workflowBundle: config.workflowBundle ? { codePath: config.workflowBundle } : await bundleWorkflows(),
    lookupSlots: config.lookupSlots,
    deps: { db, log, ...sources, post: postOf(config), rules: { ...rulesOf(config), greylistMs } },
  });
  log.info({ queue: TASK_QUEUE, namespace: client.options.namespace }, 'worker ready');
  await Promise.race([stopped, workers.running]);
  log.info('worker draining');
  await workers.stop();
  await connection.close();
  await client.connection.close();
  await db.close();
});
