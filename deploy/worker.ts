import { readFileSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';
import { NativeConnection } from '@temporalio/worker';
import { createAddressPolicy } from '../activities/webhooks/ip-policy.ts';
import { createPost } from '../activities/webhooks/post.ts';
import { openDatabase } from '../db/client.ts';
import { type Config, loadConfig } from './config/config.ts';
import { createSources } from './config/sources.ts';
import { createLog } from './log.ts';
import { main, untilReady } from './main.ts';
import { repeat } from './repeat.ts';
import { lazyClient, temporalTarget } from './temporal/client.ts';
import { KEEP_MS, keepNamespace } from './temporal/namespace.ts';
import { TemporalTrouble, temporalTrouble } from './temporal/trouble.ts';
import { createRollout, hasDeployments, STEP_MS, versionOf } from './temporal/versions.ts';
import { installRuntime, loadBundle, startWorkers } from './temporal/workers.ts';

// `npm run worker`: the Temporal worker, until SIGTERM or SIGINT.

/** What is left open after that ends with the process. */
const CLOSE_MS = 5000;

const HELP = `
It works as soon as PostgreSQL is there and migrated; Temporal must be there when it starts. SIGTERM or SIGINT: it takes
no new work, gives running work 35 s, and ends within 45 s. A second signal ends it at once.

Needs DATABASE_URL; has TEMPORAL_ADDRESS, the keys of vendors and verifiers, LOG_LEVEL and more: see "Configuration" in
README.md.
Exit codes: 0 ended by a signal, 1 failed (one sentence on stderr), 2 wrong usage.`;

const DESCRIPTION = 'The worker: looks emails up, checks them, sends webhooks.';

await main({ name: 'worker', description: DESCRIPTION, help: HELP }, async (stopped) => {
  const config = loadConfig();
  const { taskQueue } = config;
  const log = createLog('worker', config.logLevel);
  installRuntime(log);
  const db = openDatabase({
    url: config.databaseUrl,
    poolSize: config.databasePool,
    applicationName: 'worker',
  });
  if (!(await untilReady(db, log, stopped))) return await db.close();
  const target = temporalTarget(config.temporalEnvironment);
  const trouble = await temporalTrouble(target);
  if (trouble !== null) throw new TemporalTrouble(trouble);
  const client = lazyClient(target);
  const connection = await NativeConnection.connect(target.connectionOptions);
  const intervals = { sweepMs: config.sweepIntervalMs, reverifyMs: config.sources.reverifyIntervalMs };
  await keepNamespace(client, taskQueue, intervals, log);
  const sources = createSources(config, { db, dnsServers: config.dnsServers });
  if (sources.vendors.length === 0) {
    log.warn('no vendor has a key: requests are answered from the directory alone');
  }
  if (config.sources.policy === 'vendor-or-verifier' && sources.verifiers.length === 0) {
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
  const workflowBundle = await loadBundle(config.workflowBundle);
  const version = versionOf(taskQueue, workflowBundle.code);
  const isVersioned = await hasDeployments(client);
  const automatic = config.workerRollout === 'automatic';
  const rollout = createRollout({ db, client, log, taskQueue, version, isVersioned, automatic });
  const workers = await startWorkers({
    connection,
    client,
    taskQueue,
    workflowBundle,
    version: isVersioned ? version : null,
    lookupSlots: config.lookupSlots,
    deps: { db, log, ...sources, post: postOf(config), rules: rulesOf(config) },
  });
  const ending = new AbortController();
  const ended = Promise.race([stopped, workers.running]).finally(() => ending.abort());
  const loop = { signal: ending.signal, log };
  const { deploymentName: deployment, buildId } = version;
  if (!isVersioned) {
    log.warn('this Temporal has no Worker Deployments: open runs meet the workflows of the next release');
  } else if (!automatic) {
    log.info(
      `version ${buildId} becomes current by: temporal worker deployment set-current-version --deployment-name ${deployment} --build-id ${buildId}`,
    );
  }
  await Promise.race([rollout.begin(ending.signal), ended]);
  const place = { queue: taskQueue, namespace: client.options.namespace };
  log.info({ ...place, deployment, version: buildId }, 'worker ready');
  void repeat('sign of life', STEP_MS, loop, rollout.step);
  void repeat('namespace', KEEP_MS, loop, () =>
    // What the cluster does not allow was told at the start.
    keepNamespace(client, taskQueue, intervals, log.child({}, { level: 'error' })),
  );
  await ended;
  log.info('worker draining');
  await Promise.all([workers.stop(), atMost(rollout.leave())]);
  await atMost(Promise.all([db.close(), connection.close(), client.connection.close()]));
});

/** The process ends all the same if this fails or hangs, because PostgreSQL or Temporal is away. */
async function atMost(closing: Promise<unknown>): Promise<void> {
  await Promise.race([closing.catch(() => {}), setTimeout(CLOSE_MS)]);
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
    greylistMs: config.sources.greylistMs,
    webhookScheduleMs: config.webhookScheduleMs,
    webhookLogMs: config.webhookLogMs,
    sweep: { startAfterMs: 5000, settleAfterMs: 15_000, checkEveryMs: 30_000 },
  };
}
