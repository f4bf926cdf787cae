import { Resolver } from 'node:dns/promises';
import { readFileSync } from 'node:fs';
import { NativeConnection } from '@temporalio/worker';
import { createAddressPolicy } from '../activities/address.ts';
import { createPost } from '../activities/post.ts';
import { createRocketReach } from '../activities/providers/rocketreach.ts';
import { createCheck } from '../activities/verification/check.ts';
import { openDatabase } from '../db/client.ts';
import { bundleWorkflows } from './bundle.ts';
import { type Config, loadConfig } from './config.ts';
import { createLog } from './log.ts';
import { main } from './main.ts';
import { lazyClient, prepareNamespace, TASK_QUEUE, temporalTarget } from './temporal.ts';
import { installRuntime, startWorkers } from './workers.ts';

// `npm run worker`: the Temporal worker, until SIGTERM or SIGINT.

await main('worker', async (stopped) => {
  const config = loadConfig();
  const log = createLog('worker', config.logLevel);
  installRuntime(log);
  const db = openDatabase({
    url: config.databaseUrl,
    poolSize: config.databasePool,
    applicationName: 'worker',
  });
  const target = temporalTarget(config.temporalEnvironment);
  const client = lazyClient(target);
  const connection = await NativeConnection.connect(target.connectionOptions);
  await prepareNamespace(client, TASK_QUEUE, config.sweepIntervalMs, log);
  if (config.rocketReachKey === null) {
    log.warn('ROCKETREACH_API_KEY is not set: requests are answered from the directory alone');
  }
  const workers = await startWorkers({
    connection,
    client,
    taskQueue: TASK_QUEUE,
    workflowBundle: config.workflowBundle ? { codePath: config.workflowBundle } : await bundleWorkflows(),
    lookupSlots: config.lookupSlots,
    deps: { db, log, ...outsideWorld(config), rules: rulesOf(config) },
  });
  log.info({ queue: TASK_QUEUE, namespace: client.options.namespace }, 'worker ready');
  await Promise.race([stopped, workers.running]);
  log.info('worker draining');
  await workers.stop();
  await connection.close();
  await client.connection.close();
  await db.close();
});

function outsideWorld(config: Config) {
  const resolver = new Resolver({ timeout: 2000, tries: 2 });
  if (config.dnsServers.length > 0) resolver.setServers(config.dnsServers);
  const ca = config.webhookCaFile === null ? undefined : readFileSync(config.webhookCaFile, 'utf8');
  return {
    providers:
      config.rocketReachKey === null
        ? []
        : [createRocketReach({ baseUrl: config.rocketReachUrl, apiKey: config.rocketReachKey })],
    check: createCheck({ resolver }),
    post: createPost({
      policy: createAddressPolicy({ openCidrs: config.webhookOpenCidrs }),
      ca,
      userAgent: 'npi-email-enrichment/1',
    }),
  };
}

function rulesOf(config: Config) {
  return {
    freshnessMs: config.freshnessMs,
    replayMs: config.replayMs,
    webhookScheduleMs: config.webhookScheduleMs,
    sweep: { startAfterMs: 5000, settleAfterMs: 15_000, checkEveryMs: 30_000 },
  };
}
