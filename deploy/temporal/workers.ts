import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { Client } from '@temporalio/client';
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
import { createControl, grpcFailure } from './client.ts';
import { sdkLog } from './sdk-log.ts';

/**
 * The time that running activities have to end after the stop signal. By default, a vendor call
 * takes 30 s at most, so running calls can end in time. If we aborted a call, the vendor would
 * still charge for it.
 */
const SHUTDOWN_GRACE = '35s';
/**
 * The time after which the worker no longer waits for activities that ignore their cancellation or
 * for workflow tasks that keep failing.
 */
const SHUTDOWN_FORCE_MS = 38_000;

/** The folder of the project. */
const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const pathOf = (file: string) => join(ROOT, 'workflows', file);
const CONVERTERS = pathOf('converters.ts');
const DATA_CONVERTER = {
  failureConverterPath: CONVERTERS,
  payloadConverterPath: CONVERTERS,
};

/**
 * Returns true if a call failed because Temporal was unavailable or rejected it, and not because of
 * a bug in our code.
 */
export function isTemporalsFailure(error: unknown): boolean {
  return grpcFailure(error) !== null || error instanceof TransportError;
}

export interface WorkersOptions {
  readonly connection: NativeConnection;
  readonly client: Client;
  /** The name of the enrichment queue. The names of the other two queues derive from it. */
  readonly taskQueue: string;
  readonly workflowBundle: { readonly code: string };
  /** The version of the bundle. Null if the cluster has no Worker Deployments. */
  readonly version: WorkerDeploymentVersion | null;
  /** The most activities of the lookups queue that run concurrently. */
  readonly lookupSlots: number;
  readonly deps: Omit<ActivityDeps, 'control'>;
}

/**
 * Starts three workers in one process, one for each queue. Each has its own slots, so one kind of
 * work cannot block another.
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
      // Deliveries have their own workflow tasks, so that many failing receivers cannot delay
      // batches.
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
      activity: [
        ({ info }) => ({ inbound: failureInterceptor(deps.log, info, running) }),
      ],
    },
    dataConverter: DATA_CONVERTER,
    shutdownGraceTime: SHUTDOWN_GRACE,
  };
  if (version !== null) {
    common.workerDeploymentOptions = {
      version,
      useWorkerVersioning: true,
      // Most runs take minutes, so they can end on the version with which they began. Deliveries and
      // uploads may take days and set another behavior (`upgrading`).
      defaultVersioningBehavior: 'PINNED',
    };
  }
  return common;
}

/** The three workers of this process. They stop together. */
export class Workers {
  /** Resolves when all workers have stopped. Rejects when one fails. */
  readonly running: Promise<void>;
  private readonly log: Logger;
  private readonly workers: readonly Worker[];
  private readonly activities: ReadonlySet<RunningActivity>;

  constructor(
    log: Logger,
    workers: readonly Worker[],
    activities: ReadonlySet<RunningActivity>,
  ) {
    this.log = log;
    this.workers = workers;
    this.activities = activities;
    this.running = this.runAll();
  }

  /** Returns true while all workers accept tasks. */
  isPolling(): boolean {
    return this.workers.every((worker) => worker.getState() === 'RUNNING');
  }

  /**
   * Stops all workers. They accept no new tasks, and running activities get `SHUTDOWN_GRACE` to
   * end. If some work has not ended after `SHUTDOWN_FORCE_MS`, logs it and returns.
   */
  async stop(): Promise<void> {
    this.shutDown();
    // We do not use the SDK's option `shutdownForceTime`, because it ends in a misleading error.
    const cutOff = setTimeout(SHUTDOWN_FORCE_MS, true, { ref: false });
    if (!(await Promise.race([this.running, cutOff]))) return;
    const unfinished = this.workers.filter((worker) => worker.getState() !== 'STOPPED');
    const queues = unfinished.map((worker) => worker.options.taskQueue);
    const activities = [...this.activities];
    this.log.error(
      { queues, activities },
      'cut off: another worker repeats the unfinished work',
    );
  }

  private async runAll(): Promise<void> {
    await Promise.all(this.workers.map((worker) => this.run(worker)));
  }

  private async run(worker: Worker): Promise<void> {
    try {
      await worker.run();
    } catch (error) {
      // If one worker fails, all are stopped. Otherwise, a process that no longer serves all its
      // queues would look healthy.
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

/**
 * Waits until all workers are created. If one of them fails, stops the others before they accept a
 * task.
 */
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
export async function loadBundle(
  file: string | null,
): Promise<{ readonly code: string }> {
  if (file === null) return await bundleWorkflows();
  return { code: await readFile(file, 'utf8') };
}

/**
 * The source map at the end of a bundle. Debuggers need it. It contains the absolute paths of the
 * source files.
 */
export const SOURCE_MAP = /\/\/# sourceMappingURL=data:[^\n]*$/;

/**
 * Bundles the workflows, which takes a few seconds. The code does not depend on the project's folder
 * or the current folder, because all its paths are relative to the project. The modules are preloaded, so a worker loads
 * them once and not for every workflow. This saves time and memory, but workflow code must not keep
 * state in module variables.
 */
export function bundleWorkflows(
  workflowsPath = pathOf('index.ts'),
): Promise<WorkflowBundle> {
  return bundleWorkflowCode({
    workflowsPath,
    ...DATA_CONVERTER,
    preloadModules: [workflowsPath, CONVERTERS],
    webpackConfigHook: (config) => ({
      ...config,
      context: ROOT,
      // Otherwise, a package behind a link would have the path of the link's target.
      resolve: { ...config.resolve, symlinks: false },
    }),
    // Keeps webpack's progress messages out of the log.
    logger: {
      log() {},
      trace() {},
      debug() {},
      info() {},
      warn() {},
      error: console.error,
    },
  });
}

/**
 * Configures the runtime of Temporal's SDK. The SDK's log entries, also those of its native part,
 * go to our logger. Call this once per process, before the first connection.
 * @param metricsAddress the `host:port` at which the SDK serves its metrics, or null to serve none
 */
export function installRuntime(log: Logger, metricsAddress: string | null = null): void {
  const telemetryOptions: RuntimeOptions['telemetryOptions'] = {
    logging: { filter: { core: 'WARN', other: 'ERROR' }, forward: {} },
  };
  if (metricsAddress !== null) {
    telemetryOptions.metrics = {
      prometheus: {
        bindAddress: metricsAddress,
        // Follows the naming rules of Prometheus: times are in seconds, and names end with their
        // unit or with `_total`.
        countersTotalSuffix: true,
        unitSuffix: true,
        useSecondsForDurations: true,
      },
    };
  }
  Runtime.install({
    // The API and the worker handle signals themselves, because they close their parts in a certain
    // order.
    shutdownSignals: [],
    telemetryOptions,
    logger: new DefaultLogger('DEBUG', sdkLog(log)),
  });
}
