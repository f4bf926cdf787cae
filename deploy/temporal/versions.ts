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
    const call = client.workflowService.listWorkerDeployments({ namespace, pageSize: 1 });
    return (await unless(UNIMPLEMENTED, call)) !== null;
  } catch (error) {
    if (isGrpcServiceError(error) && / are disabled /.test(error.details)) return false;
    throw error;
  }
}

/** Interval between calls of `step`. */
export const STEP_MS = 15_000;
/** A version is given up when its workers are silent for this many steps. */
const PATIENCE = 4;
const BEGIN_TRIES = 150;
const BEGIN_MS = 200;

export interface RolloutOptions {
  readonly db: Database;
  readonly client: Client;
  readonly log: Logger;
  readonly taskQueue: string;
  readonly version: WorkerDeploymentVersion;
  /** The result of `hasDeployments`. */
  readonly isVersioned: boolean;
  /** True if workers decide which version is current. */
  readonly automatic: boolean;
}

/** A deployment as the server describes it, with our version in it. */
interface Deployment {
  readonly conflictToken: Uint8Array;
  /** The build of the current version, or null if no version is current. */
  readonly current: string | null;
  readonly versions: readonly Version[];
  readonly own: Version;
}

interface Version {
  readonly build: string;
  readonly isDraining: boolean;
  /** True if the version has been current before. */
  readonly wasActive: boolean;
}

/**
 * Takes part in choosing the current version, for one worker process.
 *
 * A version becomes current when its first worker starts. It becomes current again when one of its
 * workers starts and the current version has no worker left, or when the workers of the current
 * version have been silent for a minute. So upgrades and rollbacks take effect, and restarting a
 * worker of either version changes nothing.
 */
class Rollout {
  private readonly options: RolloutOptions;
  private readonly namespace: string;
  private readonly me: Parameters<typeof noteWorker>[1];
  /** Number of consecutive steps that found no live worker, by build id. */
  private readonly missed = new Map<string, number>();

  constructor(options: RolloutOptions) {
    const { client, taskQueue, version } = options;
    const { namespace } = client.options;
    this.options = options;
    this.namespace = namespace;
    this.me = { id: randomUUID(), namespace, taskQueue, buildId: version.buildId };
  }

  /**
   * Records a sign of life, and takes part in the choice of the current version.
   * @returns false if another process was faster, or if the server does not know all queues yet
   */
  async step(isBeginning: boolean): Promise<boolean> {
    const { db, isVersioned, automatic, version } = this.options;
    // Comes first, so that no other process assumes this version has no workers.
    await noteWorker(db, this.me);
    if (!isVersioned) return true;
    const deployment = await this.describe();
    if (deployment === null) return false;
    const builds = await readBuilds(db, this.me);
    this.countMissed(deployment.versions, builds);
    const { current } = deployment;
    if (automatic && current !== version.buildId) {
      if (this.shouldTakeOver(deployment, builds, isBeginning)) {
        return await this.makeCurrent(deployment);
      }
      if (isBeginning) this.warnOfOther(current);
    }
    if (current === null) return true;
    for (const { isDraining, build } of deployment.versions) {
      if (isDraining && this.isGivenUp(build)) await this.moveRuns(build);
    }
    return true;
  }

  /**
   * Repeats the first step until the server knows the version and the current version is decided.
   */
  async begin(signal?: AbortSignal): Promise<void> {
    const { log, version } = this.options;
    let err: unknown = null;
    for (let left = BEGIN_TRIES; left > 0 && !signal?.aborted; left -= 1) {
      try {
        if (await this.step(true)) return;
      } catch (error) {
        err = error;
      }
      await setTimeout(BEGIN_MS);
    }
    if (signal?.aborted) return;
    const { deploymentName: deployment, buildId } = version;
    log.warn({ err, deployment, version: buildId }, 'version not made current yet');
  }

  /** Records that the process takes no new work, so that others do not wait for it. */
  async leave(): Promise<void> {
    await noteStopped(this.options.db, this.me.id);
  }

  /** Returns null if the server does not know this version yet. */
  private async describe(): Promise<Deployment | null> {
    const { client, version } = this.options;
    const { namespace } = this;
    const { deploymentName, buildId } = version;
    const call = client.workflowService.describeWorkerDeployment({ namespace, deploymentName });
    const described = await unless(NOT_FOUND, call);
    if (described === null) return null;
    const { conflictToken, workerDeploymentInfo: info } = described;
    const summaries = info?.versionSummaries ?? [];
    const versions = summaries.map(({ deploymentVersion, status, firstActivationTime }) => ({
      build: deploymentVersion?.buildId ?? '',
      isDraining: status === DRAINING,
      wasActive: Boolean(firstActivationTime),
    }));
    const own = versions.find(({ build }) => build === buildId);
    if (own === undefined) return null;
    const current = info?.routingConfig?.currentDeploymentVersion?.buildId ?? null;
    return { conflictToken, current, versions, own };
  }

  private countMissed(versions: readonly Version[], builds: Builds): void {
    for (const { build } of versions) {
      const before = this.missed.get(build) ?? 0;
      const isLive = builds.get(build) === 'live';
      this.missed.set(build, isLive ? 0 : before + 1);
    }
  }

  private isGivenUp(build: string): boolean {
    const missed = this.missed.get(build) ?? 0;
    return missed >= PATIENCE;
  }

  private shouldTakeOver(
    { current, own }: Deployment,
    builds: Builds,
    isBeginning: boolean,
  ): boolean {
    if (current === null || this.isGivenUp(current)) return true;
    return isBeginning && (!own.wasActive || !builds.has(current));
  }

  private warnOfOther(current: string | null): void {
    const { log, version } = this.options;
    const { deploymentName: deployment, buildId } = version;
    log.warn(
      { deployment, version: buildId, current },
      `version ${buildId} was current before, and another is now; to go back to it: ${commandFor(version)}`,
    );
  }

  /**
   * Makes this version current.
   * @returns false if another process was faster, or if the server does not know all queues yet
   */
  private async makeCurrent({ conflictToken, current }: Deployment): Promise<boolean> {
    const { client, log, version } = this.options;
    const { deploymentName, buildId } = version;
    const call = client.workflowService.setWorkerDeploymentCurrentVersion({
      namespace: this.namespace,
      deploymentName,
      buildId,
      conflictToken,
      // The older field for the version, which servers before 1.29 read.
      version: `${deploymentName}.${buildId}`,
      identity: client.options.identity,
    });
    if ((await unless(FAILED_PRECONDITION, call)) === null) return false;
    log.info(
      { deployment: deploymentName, version: buildId, instead_of: current },
      'version made current',
    );
    return true;
  }

  /**
   * Moves runs that are pinned to a version to the current one. A run that does not fit the current
   * code ends by its time-outs.
   */
  private async moveRuns(build: string): Promise<void> {
    const { client, log, version } = this.options;
    const { namespace } = this;
    const query = `TemporalWorkerDeploymentVersion = '${version.deploymentName}:${build}' and TemporalWorkflowVersioningBehavior = 'Pinned' and ExecutionStatus = 'Running'`;
    let moved = 0;
    for await (const { workflowId, runId } of client.workflow.list({ query })) {
      const call = client.workflowService.updateWorkflowExecutionOptions({
        namespace,
        workflowExecution: { workflowId, runId },
        workflowExecutionOptions: { versioningOverride: { autoUpgrade: true } },
        updateMask: { paths: ['versioning_override'] },
      });
      if (await unless(NOT_FOUND, call)) moved += 1;
    }
    if (moved === 0) return;
    log.warn({ moved, version: build }, 'no worker has this version: its runs are moved on');
  }
}

type Builds = Awaited<ReturnType<typeof readBuilds>>;

/** Creates a worker process's part in choosing the current version. */
export function createRollout(options: RolloutOptions) {
  const rollout = new Rollout(options);
  return {
    step: () => rollout.step(false),
    begin: (signal?: AbortSignal) => rollout.begin(signal),
    leave: () => rollout.leave(),
  };
}
