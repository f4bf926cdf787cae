import { readFile } from 'node:fs/promises';
import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { type Client, isGrpcServiceError } from '@temporalio/client';
import type { WorkerDeploymentVersion } from '@temporalio/common';
import {
  bundleWorkflowCode,
  DefaultLogger,
  type NativeConnection,
  Runtime,
  TransportError,
  Worker,
  type WorkerOptions,
  type WorkflowBundle,
} from '@temporalio/worker';
import type { Logger } from 'pino';
import type { ActivityDeps } from '../../activities/deps.ts';
import { failureInterceptor, type RunningActivity } from '../../activities/failures.ts';
import { createActivities } from '../../activities/index.ts';
import { queuesOf } from '../../workflows/messages.ts';
import { createControl } from './client.ts';
import { sdkLog } from './sdk-log.ts';

/**
 * Time for running activities to end after the stop signal. A vendor charges for a call even if it
 * is cut off.
 */
const SHUTDOWN_GRACE = '35s';
/**
 * After this time, the worker no longer waits for activities that ignore their cancellation and
 * workflow tasks that keep failing.
 */
const SHUTDOWN_FORCE_MS = 38_000;

const pathOf = (file: string) => fileURLToPath(new URL(`../../workflows/${file}`, import.meta.url));
const CONVERTERS = pathOf('converters.ts');
const DATA_CONVERTER = { failureConverterPath: CONVERTERS, payloadConverterPath: CONVERTERS };

/** Returns whether a call failed because Temporal was away or rejected it, not because of a bug. */
export function isTemporalsFailure(error: unknown): boolean {
  return isGrpcServiceError(error) || error instanceof TransportError;
}

export type Workers = Awaited<ReturnType<typeof startWorkers>>;

/**
 * Starts three workers in one process, one per queue, so that no kind of work can take the slots of
 * another.
 */
export async function startWorkers(options: {
  readonly connection: NativeConnection;
  readonly client: Client;
  /** The enrichment queue. The names of the other two derive from it. */
  readonly taskQueue: string;
  readonly workflowBundle: { readonly code: string };
  /** Null if the cluster has no Worker Deployments. */
  readonly version: WorkerDeploymentVersion | null;
  /** Maximum number of concurrent vendor activities. */
  readonly lookupSlots: number;
  readonly deps: Omit<ActivityDeps, 'control'>;
}) {
  const { connection, client, deps, version } = options;
  const queues = queuesOf(options.taskQueue);
  const atWork = new Set<RunningActivity>();
  const common = {
    connection,
    namespace: client.options.namespace,
    activities: createActivities({ ...deps, control: createControl(client, queues.enrichment) }),
    interceptors: {
      activity: [(context) => ({ inbound: failureInterceptor(deps.log, context.info, atWork) })],
    },
    dataConverter: DATA_CONVERTER,
    shutdownGraceTime: SHUTDOWN_GRACE,
    ...(version && {
      workerDeploymentOptions: {
        version,
        useWorkerVersioning: true,
        // Most runs live for minutes and end on the version that they began with. Workflows that
        // wait for days set another behavior.
        defaultVersioningBehavior: 'PINNED',
      },
    }),
  } satisfies Partial<WorkerOptions>;
  const workers = await allOrNone([
    Worker.create({
      ...common,
      taskQueue: queues.enrichment,
      workflowBundle: options.workflowBundle,
      maxConcurrentActivityTaskExecutions: 50,
      maxConcurrentLocalActivityExecutions: 50,
      maxCachedWorkflows: 2000,
    }),
    Worker.create({
      ...common,
      taskQueue: queues.lookups,
      maxConcurrentActivityTaskExecutions: options.lookupSlots,
    }),
    Worker.create({
      ...common,
      taskQueue: queues.webhooks,
      // Its own workflow tasks, so that a storm of failing receivers cannot delay a batch.
      workflowBundle: options.workflowBundle,
      maxCachedWorkflows: 200,
      maxConcurrentActivityTaskExecutions: 100,
    }),
  ]);
  const stop = () => {
    for (const worker of workers) if (worker.getState() === 'RUNNING') worker.shutdown();
  };
  const running = Promise.all(
    workers.map((worker) =>
      worker.run().catch((error: unknown) => {
        // Stops all workers when one fails: a process that serves half of its queues looks healthy
        // but isn't.
        stop();
        throw error;
      }),
    ),
  ).then(() => undefined);
  return {
    /** True while all workers take tasks. */
    isPolling: () => workers.every((worker) => worker.getState() === 'RUNNING'),
    /** Resolves when all have stopped; rejects when one fails. */
    running,
    /**
     * Drains: takes no new tasks, and gives running ones their grace period. Ends within seconds
     * after it, and logs what was cut off.
     */
    async stop(): Promise<void> {
      stop();
      // Temporal's own `shutdownForceTime` ends in a misleading error.
      const cutOff = setTimeout(SHUTDOWN_FORCE_MS, true, { ref: false });
      if (!(await Promise.race([running, cutOff]))) return;
      const queues = workers.filter((worker) => worker.getState() !== 'STOPPED');
      const left = {
        queues: queues.map((worker) => worker.options.taskQueue),
        activities: [...atWork],
      };
      deps.log.error(left, 'cut off: another worker repeats the unfinished work');
    },
  };
}

/** Creates all workers. If one of them fails, stops the others before they take any task. */
async function allOrNone(making: readonly Promise<Worker>[]): Promise<Worker[]> {
  try {
    return await Promise.all(making);
  } catch (error) {
    for (const made of await Promise.allSettled(making)) {
      if (made.status === 'fulfilled') void made.value.runUntil(async () => {}).catch(() => {});
    }
    throw error;
  }
}

/**
 * Loads the workflow bundle from a file that `npm run bundle` wrote, or bundles the workflows if
 * `file` is null.
 */
export async function loadBundle(file: string | null): Promise<{ readonly code: string }> {
  return file === null ? await bundleWorkflows() : { code: await readFile(file, 'utf8') };
}

/**
 * Bundles the workflows, which takes a few seconds. A worker loads the modules once for all
 * workflows. That takes less time and memory, and forbids state outside of functions.
 */
export function bundleWorkflows(workflowsPath = pathOf('index.ts')): Promise<WorkflowBundle> {
  return bundleWorkflowCode({
    workflowsPath,
    ...DATA_CONVERTER,
    preloadModules: [workflowsPath, CONVERTERS],
    // Webpack's progress is noise in a worker's log. Its errors are thrown.
    logger: { log() {}, trace() {}, debug() {}, info() {}, warn() {}, error: console.error },
  });
}

/**
 * Sends the log lines of Temporal's SDK, including its native part, to our logger. Call it once per
 * process, before the first connection.
 * @param metricsAddress where the native part serves its metrics, as `host:port`; null to serve no
 * metrics
 */
export function installRuntime(log: Logger, metricsAddress: string | null = null): void {
  Runtime.install({
    // The API and the worker handle signals themselves and close in their own order.
    shutdownSignals: [],
    telemetryOptions: {
      logging: { filter: { core: 'WARN', other: 'ERROR' }, forward: {} },
      ...(metricsAddress && { metrics: { prometheus: { bindAddress: metricsAddress, ...UNITS } } }),
    },
    logger: new DefaultLogger('DEBUG', sdkLog(log)),
  });
}

/** Names metrics as Prometheus does: times in seconds, and units and totals as suffixes. */
const UNITS = { countersTotalSuffix: true, unitSuffix: true, useSecondsForDurations: true };
