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
  type RuntimeOptions,
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

export interface WorkersOptions {
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
}

/**
 * Starts three workers in one process, one per queue, so that no kind of work can take the slots of
 * another.
 */
export async function startWorkers(options: WorkersOptions): Promise<Workers> {
  const queues = queuesOf(options.taskQueue);
  const running = new Set<RunningActivity>();
  const common = commonOptions(options, running);
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
  return new Workers(options.deps.log, workers, running);
}

/** Returns the options that the three workers share. */
function commonOptions(options: WorkersOptions, running: Set<RunningActivity>) {
  const { connection, client, deps, version, taskQueue } = options;
  const common: Omit<WorkerOptions, 'taskQueue'> = {
    connection,
    namespace: client.options.namespace,
    activities: createActivities({ ...deps, control: createControl(client, taskQueue) }),
    interceptors: {
      activity: [({ info }) => ({ inbound: failureInterceptor(deps.log, info, running) })],
    },
    dataConverter: DATA_CONVERTER,
    shutdownGraceTime: SHUTDOWN_GRACE,
  };
  if (version !== null) {
    common.workerDeploymentOptions = {
      version,
      useWorkerVersioning: true,
      // Most runs live for minutes and end on the version that they began with. Workflows that wait
      // for days set another behavior.
      defaultVersioningBehavior: 'PINNED',
    };
  }
  return common;
}

/** Started workers that stop together. */
export class Workers {
  /** Resolves when all have stopped; rejects when one fails. */
  readonly running: Promise<void>;
  private readonly log: Logger;
  private readonly workers: readonly Worker[];
  private readonly activities: ReadonlySet<RunningActivity>;

  constructor(log: Logger, workers: readonly Worker[], activities: ReadonlySet<RunningActivity>) {
    this.log = log;
    this.workers = workers;
    this.activities = activities;
    this.running = this.runAll();
  }

  /** Returns true while all workers take tasks. */
  isPolling(): boolean {
    return this.workers.every((worker) => worker.getState() === 'RUNNING');
  }

  /**
   * Drains: takes no new tasks, and gives running ones their grace period. Ends within seconds
   * after it, and logs the work that was cut off.
   */
  async stop(): Promise<void> {
    this.shutDown();
    // Temporal's own `shutdownForceTime` ends in a misleading error.
    const cutOff = setTimeout(SHUTDOWN_FORCE_MS, true, { ref: false });
    if (!(await Promise.race([this.running, cutOff]))) return;
    const unfinished = this.workers.filter((worker) => worker.getState() !== 'STOPPED');
    const queues = unfinished.map((worker) => worker.options.taskQueue);
    const activities = [...this.activities];
    this.log.error({ queues, activities }, 'cut off: another worker repeats the unfinished work');
  }

  private async runAll(): Promise<void> {
    await Promise.all(this.workers.map((worker) => this.run(worker)));
  }

  private async run(worker: Worker): Promise<void> {
    try {
      await worker.run();
    } catch (error) {
      // Stops all workers when one fails, because a process that serves half of its queues looks
      // healthy but isn't.
      this.shutDown();
      throw error;
    }
  }

  private shutDown(): void {
    for (const worker of this.workers) {
      if (worker.getState() === 'RUNNING') worker.shutdown();
    }
  }
}

/** Creates all workers. If one of them fails, stops the others before they take any task. */
async function allOrNone(making: readonly Promise<Worker>[]): Promise<Worker[]> {
  try {
    return await Promise.all(making);
  } catch (error) {
    const results = await Promise.allSettled(making);
    for (const result of results) {
      if (result.status === 'rejected') continue;
      void result.value.runUntil(async () => {}).catch(() => {});
    }
    throw error;
  }
}

/**
 * Loads the workflow bundle from a file that `npm run bundle` wrote, or bundles the workflows if
 * `file` is null.
 */
export async function loadBundle(file: string | null): Promise<{ readonly code: string }> {
  if (file === null) return await bundleWorkflows();
  return { code: await readFile(file, 'utf8') };
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
  const telemetryOptions: RuntimeOptions['telemetryOptions'] = {
    logging: { filter: { core: 'WARN', other: 'ERROR' }, forward: {} },
  };
  if (metricsAddress !== null) {
    telemetryOptions.metrics = {
      prometheus: {
        bindAddress: metricsAddress,
        // Names metrics as Prometheus does: times in seconds, units and totals as suffixes.
        countersTotalSuffix: true,
        unitSuffix: true,
        useSecondsForDurations: true,
      },
    };
  }
  Runtime.install({
    // The API and the worker handle signals themselves and close in their own order.
    shutdownSignals: [],
    telemetryOptions,
    logger: new DefaultLogger('DEBUG', sdkLog(log)),
  });
}
