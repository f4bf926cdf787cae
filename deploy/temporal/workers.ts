import { fileURLToPath } from 'node:url';
import type { Client } from '@temporalio/client';
import {
  bundleWorkflowCode,
  DefaultLogger,
  type LogEntry,
  type NativeConnection,
  Runtime,
  Worker,
  type WorkflowBundle,
  type WorkflowBundleOption,
} from '@temporalio/worker';
import type { Logger } from 'pino';
import type { ActivityDeps } from '../../activities/deps.ts';
import { failureInterceptor } from '../../activities/failures.ts';
import { createActivities } from '../../activities/index.ts';
import { queuesOf } from '../../workflows/messages.ts';
import { createControl } from './client.ts';

/** How long running activities get to end when a worker is told to stop: a vendor's call that is cut off is paid for. */
const SHUTDOWN_GRACE = '35s';

export interface WorkersOptions {
  readonly connection: NativeConnection;
  readonly client: Client;
  /** The enrichment queue; the other two follow from it. */
  readonly taskQueue: string;
  readonly workflowBundle: WorkflowBundleOption;
  /** Vendor activities at once. */
  readonly lookupSlots: number;
  readonly deps: Omit<ActivityDeps, 'control'>;
}

export interface Workers {
  /** Resolves when all have stopped; rejects when one fails. */
  readonly running: Promise<void>;
  /** Drains: no new tasks, running ones get their grace. */
  stop(): Promise<void>;
}

/** Three workers in one process, one per queue, so that no kind of work can take the slots of another. */
export async function startWorkers(options: WorkersOptions): Promise<Workers> {
  const { connection, client, deps } = options;
  const queues = queuesOf(options.taskQueue);
  const common = {
    connection,
    namespace: client.options.namespace,
    activities: createActivities({ ...deps, control: createControl(client, queues.enrichment) }),
    interceptors: { activity: [() => ({ inbound: failureInterceptor(deps.log) })] },
    shutdownGraceTime: SHUTDOWN_GRACE,
  };
  const workers = await Promise.all([
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
    running,
    async stop() {
      stop();
      await running;
    },
  };
}

/** Bundles the workflows as workers run them; takes a few seconds. */
export function bundleWorkflows(): Promise<WorkflowBundle> {
  return bundleWorkflowCode({
    workflowsPath: fileURLToPath(new URL('../../workflows/index.ts', import.meta.url)),
    // Webpack's own progress is noise in a worker's log; its errors are thrown.
    logger: { log() {}, trace() {}, debug() {}, info() {}, warn() {}, error: console.error },
  });
}

/** Sends Temporal's own log lines to ours, those of its native part included. Once per process, before the first connection. */
export function installRuntime(log: Logger): void {
  const levels = { TRACE: 'trace', DEBUG: 'debug', INFO: 'debug', WARN: 'warn', ERROR: 'error' } as const;
  Runtime.install({
    // The API and the worker close in their own order, on signals they handle themselves.
    shutdownSignals: [],
    telemetryOptions: { logging: { filter: { core: 'WARN', other: 'ERROR' }, forward: {} } },
    logger: new DefaultLogger('INFO', ({ level, message, meta }: LogEntry) => {
      const { error, workflowId, activityType, taskQueue } = meta ?? {};
      log[levels[level]](
        {
          ...(error ? { err: error } : {}),
          workflow_id: workflowId,
          activity: activityType,
          queue: taskQueue,
        },
        message,
      );
    }),
  });
}
