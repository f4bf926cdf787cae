import { createHash, randomUUID } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';
import { type Client, isGrpcServiceError } from '@temporalio/client';
import type { WorkerDeploymentVersion } from '@temporalio/common';
import type { Logger } from 'pino';
import type { Database } from '../../db/client.ts';
import { noteStopped, noteWorker, readBuilds } from '../../db/workers.ts';
import { FAILED_PRECONDITION, NOT_FOUND, UNIMPLEMENTED, unless } from './client.ts';

// Temporal's Worker Deployments: a run stays on the version of the workflows that it began with,
// and new runs get the current version.

/** Returns the version of a workflow bundle. */
export function versionOf(taskQueue: string, code: string): WorkerDeploymentVersion {
  const buildId = createHash('sha256').update(code).digest('hex').slice(0, 12);
  return { deploymentName: `npi-email-${taskQueue}`, buildId };
}

/** Returns the command that makes a version current. */
export function commandFor({ deploymentName, buildId }: WorkerDeploymentVersion): string {
  return `temporal worker deployment set-current-version --deployment-name ${deploymentName} --build-id ${buildId}`;
}

/** WORKER_DEPLOYMENT_VERSION_STATUS_DRAINING of temporal/api/enums/v1/deployment.proto. */
const DRAINING = 4;

/** Returns whether the cluster has Worker Deployments, and has them switched on. */
export async function hasDeployments(client: Client): Promise<boolean> {
  try {
    const { namespace } = client.options;
    const asked = client.workflowService.listWorkerDeployments({ namespace, pageSize: 1 });
    return (await unless(UNIMPLEMENTED, asked)) !== null;
  } catch (error) {
    if (isGrpcServiceError(error) && / are disabled /.test(error.details)) return false;
    throw error;
  }
}

/** Interval between calls of `step`. */
export const STEP_MS = 15_000;
/** A version is given up when its workers are silent for this many steps. */
const PATIENCE = 4;
const [BEGIN_MS, BEGIN_TRIES] = [200, 150];

/**
 * Creates one worker process's part in choosing the current version.
 *
 * A version becomes current when its first worker starts. It becomes current again when one of its
 * workers starts and the current version has no worker left, or when the workers of the current
 * version have been silent for a minute. So upgrades and rollbacks take effect, and restarting a
 * worker of either version changes nothing.
 */
export function createRollout(options: {
  readonly db: Database;
  readonly client: Client;
  readonly log: Logger;
  readonly taskQueue: string;
  readonly version: WorkerDeploymentVersion;
  /** The result of `hasDeployments`. */
  readonly isVersioned: boolean;
  /** True if workers decide which version is current. */
  readonly automatic: boolean;
}) {
  const { db, client, log, taskQueue, version, isVersioned, automatic } = options;
  const { deploymentName, buildId } = version;
  const { namespace } = client.options;
  const me = { id: randomUUID(), namespace, taskQueue, buildId };
  /** Number of consecutive steps that found no live worker, by build id. */
  const missed = new Map<string, number>();

  /**
   * Makes this version current.
   * @returns false if another process was faster, or if the server does not know all queues yet
   */
  const makeCurrent = async (
    conflictToken: Uint8Array,
    current: string | null,
  ): Promise<boolean> => {
    const asked = client.workflowService.setWorkerDeploymentCurrentVersion({
      ...{ namespace, deploymentName, buildId, conflictToken },
      // The older field for the version, which servers before 1.29 read.
      version: `${deploymentName}.${buildId}`,
      identity: client.options.identity,
    });
    if ((await unless(FAILED_PRECONDITION, asked)) === null) return false;
    log.info(
      { deployment: deploymentName, version: buildId, instead_of: current },
      'version made current',
    );
    return true;
  };

  /**
   * Moves runs that are pinned to a version to the current one. A run that does not fit the current
   * code ends by its time-outs.
   */
  const moveRuns = async (build: string): Promise<void> => {
    const query = `TemporalWorkerDeploymentVersion = '${deploymentName}:${build}' and TemporalWorkflowVersioningBehavior = 'Pinned' and ExecutionStatus = 'Running'`;
    let moved = 0;
    for await (const { workflowId, runId } of client.workflow.list({ query })) {
      const asked = client.workflowService.updateWorkflowExecutionOptions({
        ...{ namespace, workflowExecution: { workflowId, runId } },
        workflowExecutionOptions: { versioningOverride: { autoUpgrade: true } },
        updateMask: { paths: ['versioning_override'] },
      });
      if (await unless(NOT_FOUND, asked)) moved += 1;
    }
    if (moved > 0)
      log.warn({ moved, version: build }, 'no worker has this version: its runs are moved on');
  };

  const step = async (isBeginning = false): Promise<boolean> => {
    // Comes first, so that no other process assumes this version has no workers.
    await noteWorker(db, me);
    if (!isVersioned) return true;
    const described = await unless(
      NOT_FOUND,
      client.workflowService.describeWorkerDeployment({ namespace, deploymentName }),
    );
    const summaries = described?.workerDeploymentInfo?.versionSummaries ?? [];
    const versions = summaries.map((one) => ({
      ...one,
      build: one.deploymentVersion?.buildId ?? '',
    }));
    const own = versions.find(({ build }) => build === buildId);
    if (!described || !own) return false;
    const builds = await readBuilds(db, me);
    for (const { build } of versions) {
      missed.set(build, builds.get(build) === 'live' ? 0 : (missed.get(build) ?? 0) + 1);
    }
    const isGivenUp = (build: string) => (missed.get(build) ?? 0) >= PATIENCE;
    const current =
      described.workerDeploymentInfo?.routingConfig?.currentDeploymentVersion?.buildId ?? null;
    if (automatic && current !== buildId) {
      const isNew = isBeginning && (!own.firstActivationTime || !builds.has(current ?? ''));
      if (current === null || isNew || isGivenUp(current))
        return await makeCurrent(described.conflictToken, current);
      if (isBeginning) {
        log.warn(
          { deployment: deploymentName, version: buildId, current },
          `version ${buildId} was current before, and another is now; to go back to it: ${commandFor(version)}`,
        );
      }
    }
    if (current === null) return true;
    for (const { status, build } of versions) {
      if (status === DRAINING && isGivenUp(build)) await moveRuns(build);
    }
    return true;
  };

  return {
    step,
    /**
     * Repeats the first step until the server knows the version and the current version is decided.
     */
    async begin(signal?: AbortSignal): Promise<void> {
      let err: unknown = null;
      for (let left = BEGIN_TRIES; left > 0 && !signal?.aborted; left -= 1) {
        const hasBegun = await step(true).catch((error: unknown) => {
          err = error;
        });
        if (hasBegun) return;
        await setTimeout(BEGIN_MS);
      }
      if (signal?.aborted) return;
      log.warn(
        { err, deployment: deploymentName, version: buildId },
        'version not made current yet',
      );
    },
    /** Records that the process takes no new work, so that others do not wait for it. */
    leave: () => noteStopped(db, me.id),
  };
}
