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

/** How long running activities get to end when a worker is told to stop: a vendor's call that is cut off is paid for. */
const SHUTDOWN_GRACE = '35s';
/** What has not ended by then is left behind: an activity that ignores its end, a workflow task that is tried again and again. */
const SHUTDOWN_FORCE_MS = 38_000;

const pathOf = (file: string) => fileURLToPath(new URL(`../../workflows/${file}`, import.meta.url));
const CONVERTERS = pathOf('converters.ts');
const DATA_CONVERTER = { failureConverterPath: CONVERTERS, payloadConverterPath: CONVERTERS };

/** Whether a call failed because Temporal was away or refused it, and not because of a bug. */
export function isTemporalsFailure(error: unknown): boolean {
  return isGrpcServiceError(error) || error instanceof TransportError;
}

export type Workers = Awaited<ReturnType<typeof startWorkers>>;

/** Three workers in one process, one per queue, so that no kind of work can take the slots of another. */
export async function startWorkers(options: {
  readonly connection: NativeConnection;
  readonly client: Client;
  /** The enrichment queue; the other two follow from it. */
  readonly taskQueue: string;
  readonly workflowBundle: { readonly code: string };
  /** Null where the cluster has no Worker Deployments. */
  readonly version: WorkerDeploymentVersion | null;
  /** Vendor activities at once. */
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
        // A run lives for minutes and ends with what it began with; those that wait for days say so themselves.
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
        // One that fails takes the others down: a process with half of its queues looks healthy and is not.
        stop();
        throw error;
      }),
    ),
  ).then(() => undefined);
  return {
    /** Whether all of them take work. */
    isPolling: () => workers.every((worker) => worker.getState() === 'RUNNING'),
    /** Resolves when all have stopped; rejects when one fails. */
    running,
    /** Drains: no new tasks, running ones get their grace. Ends within seconds of it, and the log says what was cut off. */
    async stop(): Promise<void> {
      stop();
      // Temporal's own `shutdownForceTime` ends in an error that says something else.
      const cutOff = setTimeout(SHUTDOWN_FORCE_MS, true, { ref: false });
      if (!(await Promise.race([running, cutOff]))) return;
      const queues = workers.filter((worker) => worker.getState() !== 'STOPPED');
      const left = { queues: queues.map((worker) => worker.options.taskQueue), activities: [...atWork] };
      deps.log.error(left, 'cut off: another worker does again what is left');
    },
  };
}

/** If one of them cannot be made, the others end before they have taken any work. */
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

/** The workflows as workers run them, from a file that `npm run bundle` made; without one they are bundled. */
export async function loadBundle(file: string | null): Promise<{ readonly code: string }> {
  return file === null ? await bundleWorkflows() : { code: await readFile(file, 'utf8') };
}

/**
 * Bundles the workflows, which takes a few seconds. Their modules are loaded once for all workflows of a worker, not for
 * each: that takes less time and memory, and forbids state outside of functions.
 */
export function bundleWorkflows(workflowsPath = pathOf('index.ts')): Promise<WorkflowBundle> {
  return bundleWorkflowCode({
    workflowsPath,
    ...DATA_CONVERTER,
    preloadModules: [workflowsPath, CONVERTERS],
    // Webpack's own progress is noise in a worker's log; its errors are thrown.
    logger: { log() {}, trace() {}, debug() {}, info() {}, warn() {}, error: console.error },
  });
}

/**
 * Sends Temporal's own log lines to ours, those of its native part included. Once per process, before the first connection.
 * @param metricsAddress where its native part serves what it counts, `host:port`; null for nowhere
 */
export function installRuntime(log: Logger, metricsAddress: string | null = null): void {
  Runtime.install({
    // The API and the worker close in their own order, on signals they handle themselves.
    shutdownSignals: [],
    telemetryOptions: {
      logging: { filter: { core: 'WARN', other: 'ERROR' }, forward: {} },
      ...(metricsAddress && { metrics: { prometheus: { bindAddress: metricsAddress, ...UNITS } } }),
    },
    logger: new DefaultLogger('DEBUG', sdkLog(log)),
  });
}

/** As Prometheus has names: seconds, and what a number counts at its end. */
const UNITS = { countersTotalSuffix: true, unitSuffix: true, useSecondsForDurations: true };
