import { setTimeout } from 'node:timers/promises';
import type { Client } from '@temporalio/client';
import type { WorkerDeploymentVersion } from '@temporalio/common';
import { NativeConnection } from '@temporalio/worker';
import type { Logger } from 'pino';
import { createNames } from '../activities/http/names.ts';
import { secretKeysTrouble } from '../db/accounts/secret-keys.ts';
import { firstVersion } from '../db/accounts/secrets.ts';
import { type Database, openDatabase } from '../db/connection/client.ts';
import { forgetSources } from '../db/lookups/sources.ts';
import { storePrices } from '../db/lookups/spending.ts';
import {
  HEARTBEAT_MS,
  NO_BUILD,
  newProcessId,
  noteStopped,
  noteWorker,
  type WorkerProcess,
} from '../db/operations/workers.ts';
import { type Config, loadConfig } from './config/config.ts';
import { createSources } from './config/sources.ts';
import { mailOf, postOf, rulesOf } from './config/worker.ts';
import { createLog } from './log.ts';
import { main, repeat, until, untilReady, warnAboutTls } from './main.ts';
import { healthOf, sdkMetrics, serveMetrics, setBuild, statsOf } from './metrics.ts';
import { freePort, LOOPBACK } from './ports.ts';
import { runReconciler } from './reconciler/reconciler.ts';
import {
  createControl,
  lazyClient,
  type TemporalTarget,
  temporalTarget,
} from './temporal/client.ts';
import { KEEP_MS, keepNamespace } from './temporal/namespace.ts';
import { temporalTrouble } from './temporal/trouble.ts';
import {
  commandFor,
  createRollout,
  hasDeployments,
  isNeeded,
  STEP_MS,
  versionOf,
} from './temporal/versions.ts';
import {
  installRuntime,
  isTemporalsFailure,
  loadBundle,
  startWorkers,
  type Workers,
} from './temporal/workers.ts';
import { sendTraces } from './traces.ts';

// `npm run worker` runs the Temporal worker until SIGTERM or SIGINT.

const WITHOUT_TEMPORAL =
  'waiting for Temporal; until then, this worker only refunds overdue requests';
const START_INTERRUPTED =
  'Temporal went away while the worker started; the start is tried again';
const NAMESPACE_UNSURE =
  'search attributes or the Schedule may be missing in Temporal; the worker tries to create them again in five minutes';
const NO_DEPLOYMENTS =
  'this Temporal has no Worker Deployments, so after the next release its code also continues open workflows';
const NO_VENDOR = 'no vendor is called, so results come only from stored emails';
const USELESS =
  'these vendors are not called, because without a verifier none of their addresses can become valid; add a verifier (HUNTER_API_KEY, ZEROBOUNCE_API_KEY, NEVERBOUNCE_API_KEY, or REACHER_URL)';

/**
 * After the stop signal, the process exits within this time even if some work hangs. An
 * orchestrator would kill it after 45 seconds.
 */
const END_MS = 44_000;
/** Time limit for closing connections. After this time, the process exits with open connections. */
const CLOSE_MS = 5000;

/** Stores that this worker is alive. It needs only PostgreSQL, so it goes on while Temporal hangs. */
class Heartbeat {
  readonly #db: Database;
  #me: WorkerProcess;

  constructor(db: Database, namespace: string, taskQueue: string) {
    this.#db = db;
    this.#me = { id: newProcessId(), namespace, taskQueue, buildId: NO_BUILD };
  }

  /** Stores the first heartbeat, and then one every `HEARTBEAT_MS` until `loop` is aborted. */
  async begin(loop: Parameters<typeof repeat>[2]): Promise<void> {
    await this.#beat();
    void repeat('worker heartbeat', HEARTBEAT_MS, loop, () => this.#beat());
  }

  /**
   * Stores that this worker has joined Temporal with a build. Other workers must know that before
   * the build becomes current. If it can't be stored, the next heartbeat stores it.
   */
  async join(buildId: string): Promise<void> {
    this.#me = { ...this.#me, buildId };
    await this.#beat().catch(() => {});
  }

  /** Stores that this worker takes no new work, so that it no longer counts as alive. */
  async end(): Promise<void> {
    await noteStopped(this.#db, this.#me.id);
  }

  async #beat(): Promise<void> {
    await noteWorker(this.#db, this.#me);
  }
}

const HELP = `
The worker starts when PostgreSQL is reachable and migrated, and Temporal is reachable. While Temporal does not respond or
rejects the connection, the worker only refunds overdue requests.

On SIGTERM or SIGINT, the worker accepts no new work. It waits up to 35 s for running work, and exits within 45 s. A second
signal ends it immediately.

Required settings: DATABASE_URL and SECRETS_KEY. Optional: TEMPORAL_ADDRESS, the keys of vendors and verifiers, LOG_LEVEL,
and more in deploy/env.example.

Exit codes: 0 stopped by a signal, 1 failed (one sentence on stderr), 2 wrong usage.`;

const DESCRIPTION = 'The worker: looks up emails, checks them, and sends webhooks.';

/** The worker's part in Temporal, as its health checks report it. Empty until it has joined. */
class Membership {
  readonly #client: Client;
  #version: WorkerDeploymentVersion | null = null;
  #workers: Workers | null = null;

  constructor(client: Client) {
    this.#client = client;
  }

  /** Notes the version with which this worker is about to join. */
  setVersion(version: WorkerDeploymentVersion): void {
    this.#version = version;
  }

  setWorkers(workers: Workers): void {
    this.#workers = workers;
  }

  isPolling(): boolean {
    return this.#workers?.isPolling() ?? false;
  }

  async isNeeded(): Promise<boolean> {
    return this.#version !== null && (await isNeeded(this.#client, this.#version));
  }
}

await main({ name: 'worker', description: DESCRIPTION, help: HELP }, async (stopped) => {
  const base = await openBase(loadConfig());
  const { db, log, client, traces } = base;
  const ending = new AbortController();
  void stopped.then(() => ending.abort());
  const membership = new Membership(client);
  await serveHealth(base, membership, ending.signal);
  if (!(await untilReady(db, log, stopped))) return await db.close();
  void exitInTime(stopped);
  // The reconciler and the heartbeat begin before Temporal is needed. So overdue requests are
  // refunded, and `status` knows this worker, even while Temporal rejects it.
  const { heartbeat, leave } = await beginWithoutTemporal(base, ending.signal);
  const joined = await join(base, membership, stopped);
  if (joined === null) {
    await leave();
    return await atMost(db.close());
  }
  await heartbeat.join(joined.version.buildId);
  await serve({ ...base, leave }, joined, stopped, ending);
  // The connection of `client` stays open until the process exits. Some calls may still be under
  // way, and a retry of the SDK on a closed connection would crash the process.
  await atMost(Promise.all([db.close(), joined.connection.close(), traces?.close()]));
});

type Base = Awaited<ReturnType<typeof openBase>>;

/** Opens what the process has from its start to its end. Connects to nothing yet. */
async function openBase(config: Config) {
  firstVersion(config.secretKeys);
  const log = createLog('worker', config.logLevel);
  warnAboutTls(log, config.databaseUrl);
  const sdkAt = `${LOOPBACK}:${await freePort()}`;
  installRuntime(log, config.metricsPort === null ? null : sdkAt);
  const traces = sendTraces(config, 'npi-email-worker', log);
  const db = openOwnDatabase(config);
  const names = createNames(config.dnsServers);
  const created = createSources(config, db, names, log);
  const { greylistMs, reverifyMs, asked, prices, ...sources } = created;
  const rules = { ...rulesOf(config), greylistMs };
  const target = temporalTarget(config.temporalEnvironment);
  const client = lazyClient(target);
  return {
    config,
    log,
    sdkAt,
    traces,
    db,
    target,
    client,
    names,
    sources,
    asked,
    prices,
    rules,
    reverifyMs,
  };
}

async function serveHealth(
  { config, log, sdkAt, db, client, asked }: Base,
  membership: Membership,
  ending: AbortSignal,
): Promise<void> {
  const health = healthOf(db, client, ending, membership);
  const readiness = async () => (await health['/readyz']()) ?? 'ready';
  const { webhookScheduleMs } = config;
  const stats = statsOf(db, { sources: asked, webhookScheduleMs }, log);
  await serveMetrics(config, db, readiness, [stats, sdkMetrics(sdkAt)], health);
}

/** Begins the work that needs only PostgreSQL. */
async function beginWithoutTemporal(
  { config, log, db, client, asked, prices, rules }: Base,
  ending: AbortSignal,
) {
  const { taskQueue } = config;
  await logSecretsTrouble(db, log);
  await storeSources(db, { asked, prices });
  const deps = { db, log, control: createControl(client, taskQueue), rules };
  const sweeping = runReconciler(deps, config.sweepIntervalMs, ending);
  const heartbeat = new Heartbeat(db, client.options.namespace, taskQueue);
  await heartbeat.begin({ signal: ending, log });
  const leave = () => atMost(Promise.all([sweeping, heartbeat.end()]));
  return { heartbeat, leave };
}

/**
 * Waits for Temporal, prepares its namespace, and starts the workers.
 * @returns null if the process was asked to stop first
 */
async function join(
  base: Base,
  membership: Membership,
  stopped: Promise<void>,
): Promise<Member | null> {
  const { config, log, db, names, target, client, sources, reverifyMs, rules } = base;
  const { taskQueue, lookupSlots } = config;
  if (!(await untilTemporal(target, log, stopped))) return null;
  await prepareNamespace(client, taskQueue, reverifyMs, log);
  logSources(log, sources);
  const workflowBundle = await loadBundle(config.workflowBundle);
  const version = versionOf(taskQueue, workflowBundle.code);
  setBuild(version.buildId);
  membership.setVersion(version);
  const post = postOf(config, names);
  const deps = { db, log, ...sources, post, mail: mailOf(config), rules };
  const start = { client, taskQueue, workflowBundle, version, lookupSlots, deps };
  const joined = await joinTemporal(target, start, stopped);
  if (joined === null) return null;
  membership.setWorkers(joined.workers);
  return { ...joined, version };
}

/** Stores the prices of the sources, and forgets sources that are no longer configured. */
async function storeSources(
  db: Database,
  { asked, prices }: Pick<ReturnType<typeof createSources>, 'asked' | 'prices'>,
): Promise<void> {
  await storePrices(db, prices);
  const ids = asked.map(([, source]) => source);
  await forgetSources(db, ids);
}

/** Ends the process if some work does not stop in time. */
async function exitInTime(stopped: Promise<void>): Promise<never> {
  await stopped;
  await setTimeout(END_MS, null, { ref: false });
  process.exit(1);
}

function openOwnDatabase(config: Config): Database {
  const { databaseUrl: url, databasePool: poolSize, secretKeys } = config;
  return openDatabase({ url, poolSize, secretKeys, applicationName: 'worker' });
}

interface Process extends Pick<Base, 'config' | 'reverifyMs' | 'client' | 'db' | 'log'> {
  /** Waits for the reconciler, and stores that this worker takes no new work. */
  readonly leave: () => Promise<void>;
}

/**
 * Makes this worker's version current if it should be. Then checks regularly which version should
 * be current, and restores missing parts of the namespace. When the process is asked to stop,
 * drains the workers.
 */
async function serve(
  { config, reverifyMs, client, db, log, leave }: Process,
  { workers, isVersioned, version }: Member,
  stopped: Promise<void>,
  ending: AbortController,
): Promise<void> {
  const { taskQueue } = config;
  const automatic = config.workerRollout === 'automatic';
  const rollout = createRollout({
    db,
    client,
    log,
    taskQueue,
    version,
    isVersioned,
    automatic,
  });
  const ended = Promise.race([stopped, workers.running]).finally(() => ending.abort());
  const loop = { signal: ending.signal, log };
  const { deploymentName: deployment, buildId } = version;
  if (!isVersioned) log.warn(NO_DEPLOYMENTS);
  else if (!automatic)
    log.info(`to make version ${buildId} current, run: ${commandFor(version)}`);
  await Promise.race([rollout.begin(ending.signal), ended]);
  const place = { queue: taskQueue, namespace: client.options.namespace };
  log.info({ ...place, deployment, version: buildId }, 'worker ready');
  // The repeated calls of `keepNamespace` log only errors, because the first call has already
  // logged which steps Temporal does not allow.
  const quiet = log.child({}, { level: 'error' });
  const keep = () => keepNamespace(client, taskQueue, reverifyMs, quiet);
  void repeat('rollout', STEP_MS, loop, rollout.step);
  void repeat('namespace', KEEP_MS, loop, keep);
  await ended;
  log.info('worker draining');
  await Promise.all([workers.stop(), leave()]);
}

/** Logs an error if webhook deliveries cannot be signed, with the reason. */
async function logSecretsTrouble(db: Database, log: Logger): Promise<void> {
  const trouble = await secretKeysTrouble(db);
  if (trouble) {
    log.error(`not ready for deliveries, webhooks stay pending: ${trouble}`);
  }
}

/** Waits until Temporal can be used. @returns false if the process was asked to stop first */
async function untilTemporal(
  target: TemporalTarget,
  log: Logger,
  stopped: Promise<void>,
): Promise<boolean> {
  return await until(log, stopped, async () => {
    const trouble = await temporalTrouble(target);
    if (trouble === null) return null;
    return [{ why: trouble.message }, WITHOUT_TEMPORAL];
  });
}

/** Creates the missing parts of the namespace. Logs an error if that fails. */
async function prepareNamespace(
  client: Client,
  taskQueue: string,
  reverifyMs: number,
  log: Logger,
): Promise<void> {
  try {
    await keepNamespace(client, taskQueue, reverifyMs, log);
  } catch (error) {
    log.error({ err: error }, NAMESPACE_UNSURE);
  }
}

interface Joined {
  readonly connection: NativeConnection;
  readonly isVersioned: boolean;
  readonly workers: Workers;
}

interface Member extends Joined {
  readonly version: WorkerDeploymentVersion;
}

type Start = Omit<Parameters<typeof startWorkers>[0], 'connection'>;

/**
 * Connects to Temporal and starts the workers. If Temporal fails before all workers have started,
 * tries again from the beginning.
 * @returns null if the process was asked to stop first
 */
async function joinTemporal(
  target: TemporalTarget,
  start: Start,
  stopped: Promise<void>,
): Promise<Joined | null> {
  let joined: Joined | null = null;
  await until(start.deps.log, stopped, async () => {
    try {
      joined = await connectAndStart(target, start);
      return null;
    } catch (error) {
      if (!isTemporalsFailure(error)) throw error;
      return [{ err: error }, START_INTERRUPTED];
    }
  });
  return joined;
}

async function connectAndStart(target: TemporalTarget, start: Start): Promise<Joined> {
  const connection = await NativeConnection.connect(target.connectionOptions);
  try {
    const isVersioned = await hasDeployments(start.client);
    const version = isVersioned ? start.version : null;
    const workers = await startWorkers({ ...start, version, connection });
    return { connection, isVersioned, workers };
  } catch (error) {
    await connection.close().catch(() => {});
    throw error;
  }
}

/**
 * Waits for `closing`, but not longer than CLOSE_MS, and ignores its errors. With this limit, the
 * process exits even if PostgreSQL or Temporal is unreachable.
 */
async function atMost(closing: Promise<unknown>): Promise<void> {
  await Promise.race([closing.catch(() => {}), setTimeout(CLOSE_MS)]);
}

type Sources = Pick<
  ReturnType<typeof createSources>,
  'vendors' | 'useless' | 'verifiers' | 'registry'
>;

function logSources(
  log: Logger,
  { vendors, useless, verifiers, registry }: Sources,
): void {
  const names = vendors.map(({ vendor }) => vendor.id);
  const verifierNames = verifiers.map(({ id }) => id);
  const order = { vendors: names, verifiers: verifierNames, registry: registry !== null };
  log.info(order, 'sources, in the order in which they are called');
  if (names.length === 0) log.warn(NO_VENDOR);
  if (useless.length > 0) log.warn({ vendors: useless }, USELESS);
}
