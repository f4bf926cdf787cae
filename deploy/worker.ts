import { readFileSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';
import { NativeConnection } from '@temporalio/worker';
import type { Logger } from 'pino';
import { runSweeps } from '../activities/sweep.ts';
import { createAddressPolicy } from '../activities/webhooks/ip-policy.ts';
import { createPost } from '../activities/webhooks/post.ts';
import { openDatabase } from '../db/client.ts';
import { TASK_QUEUE } from '../workflows/messages.ts';
import { type Config, loadConfig } from './config/config.ts';
import { createSources } from './config/sources.ts';
import { createLog } from './log.ts';
import { main, untilReady } from './main.ts';
import { createControl, lazyClient, type TemporalTarget, temporalTarget } from './temporal/client.ts';
import { prepareNamespace } from './temporal/namespace.ts';
import { bundleWorkflows, installRuntime, startWorkers } from './temporal/workers.ts';

// `npm run worker`: the Temporal worker, until SIGTERM or SIGINT.

const CONNECT_MS = 1000;
const AWAY =
  'Temporal cannot be reached: check TEMPORAL_ADDRESS and that the cluster runs; refunding what is overdue, waiting for it';

const HELP = `
It works as soon as PostgreSQL is there and migrated, and Temporal: while that is away it refunds what is overdue. SIGTERM or SIGINT: it takes
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
  const rules = { ...rulesOf(config), greylistMs };
  const ending = new AbortController();
  void stopped.then(() => ending.abort());
  const control = createControl(client, TASK_QUEUE);
  const sweeping = runSweeps({ db, log, control, rules }, config.sweepIntervalMs, ending.signal);
  const connection = await untilConnected(target, log, ending.signal);
  if (connection === null) {
    await sweeping;
    return await db.close();
  }
  await prepareNamespace(client, TASK_QUEUE, reverifyMs, log);
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
    deps: { db, log, ...sources, post: postOf(config), rules },
  });
  log.info({ queue: TASK_QUEUE, namespace: client.options.namespace }, 'worker ready');
  await Promise.race([stopped, workers.running]);
  log.info('worker draining');
  await Promise.all([workers.stop(), sweeping]);
  await connection.close();
  await client.connection.close();
  await db.close();
});

/** @returns null where the process was told to stop before */
async function untilConnected(
  target: TemporalTarget,
  log: Logger,
  stopped: AbortSignal,
): Promise<NativeConnection | null> {
  let told = false;
  while (!stopped.aborted) {
    try {
      return await NativeConnection.connect(target.connectionOptions);
    } catch (error) {
      // The SDK's name for a connection that could not be made.
      if (!(error instanceof Error && error.name === 'TransportError')) throw error;
      if (!told) log.warn({ err: error }, AWAY);
      told = true;
    }
    await setTimeout(CONNECT_MS, null, { signal: stopped }).catch(() => {});
  }
  return null;
}

function postOf(config: Config) {
  const ca = config.webhookCaFile === null ? undefined : readFileSync(config.webhookCaFile, 'utf8');
  const policy = createAddressPolicy({ openCidrs: config.webhookOpenCidrs });
  return createPost({ policy, ca, proxy: config.webhookProxy, userAgent: 'npi-email-enrichment/1' });
}

function rulesOf(config: Config) {
  return {
    freshnessMs: config.freshnessMs,
    replayMs: config.replayMs,
    webhookScheduleMs: config.webhookScheduleMs,
    webhookLogMs: config.webhookLogMs,
    sweep: { startAfterMs: 5000, checkEveryMs: 30_000 },
  };
}
