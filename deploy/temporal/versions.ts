import { createHash } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';
import { type Client, isGrpcServiceError } from '@temporalio/client';
import type { WorkerDeploymentVersion } from '@temporalio/common';
import { optionalTsToMs } from '@temporalio/common/lib/time.js';
import type { Logger } from 'pino';
import type { Database } from '../../db/connection/client.ts';
import { readBuilds } from '../../db/operations/workers.ts';
import { queuesOf, WORKFLOWS } from '../../workflows/messages.ts';
import { FAILED_PRECONDITION, NOT_FOUND, UNIMPLEMENTED, unless } from './client.ts';
import { SOURCE_MAP } from './workers.ts';

// This file uses Temporal's Worker Deployments. A workflow run stays on the version of our code
// with which it began, and new runs get the current version. The workers decide which version is
// current, unless the operator has chosen to do that.

/**
 * Returns the version of a workflow bundle. Its build id is a hash of the code without the source
 * map, so one commit has the same build id in every folder.
 */
export function versionOf(taskQueue: string, bundle: string): WorkerDeploymentVersion {
  const code = bundle.replace(SOURCE_MAP, '');
  const buildId = createHash('sha256').update(code).digest('hex').slice(0, 12);
  return { deploymentName: deploymentOf(taskQueue), buildId };
}

function deploymentOf(taskQueue: string): string {
  return `npi-email-${taskQueue}`;
}

/** Returns the command that makes a version current. */
export function commandFor({ deploymentName, buildId }: WorkerDeploymentVersion): string {
  return `temporal worker deployment set-current-version --deployment-name ${deploymentName} --build-id ${buildId}`;
}

/**
 * The number of the status WORKER_DEPLOYMENT_VERSION_STATUS_DRAINING
 * (temporal/api/enums/v1/deployment.proto). A version has it while it is no longer current but
 * still has open runs.
 */
const DRAINING = 4;
/**
 * The numbers of the statuses in which a version may have open runs: …_CURRENT, …_RAMPING, and
 * …_DRAINING.
 */
const IN_USE: readonly unknown[] = [2, 3, DRAINING];

/** Returns true if the cluster supports Worker Deployments and they are switched on. */
export async function hasDeployments(client: Client): Promise<boolean> {
  try {
    const { namespace } = client.options;
    const call = client.workflowService.listWorkerDeployments({ namespace, pageSize: 1 });
    return (await unless(UNIMPLEMENTED, call)) !== null;
  } catch (error) {
    if (isGrpcServiceError(error) && / are disabled /.test(error.details)) {
      return false;
    }
    throw error;
  }
}

/** The interval between two calls of `Rollout.step`. */
export const STEP_MS = 15_000;
/**
 * If no worker of a version was alive during this many consecutive steps, we give the version up.
 * If it was current, another version may become current. If another version already is, that
 * version takes over its runs.
 */
const PATIENCE = 4;
const BEGIN_TRIES = 150;
const BEGIN_MS = 200;

export interface RolloutOptions {
  readonly db: Database;
  readonly client: Client;
  readonly log: Logger;
  readonly taskQueue: string;
  readonly version: WorkerDeploymentVersion;
  /** True if the cluster has Worker Deployments (`hasDeployments`). */
  readonly isVersioned: boolean;
  /** True if workers decide which version is current. False if an operator does. */
  readonly automatic: boolean;
}

/** The Worker Deployment as the server describes it. */
interface Deployment {
  readonly conflictToken: Uint8Array;
  /** The build of the current version, or null if no version is current. */
  readonly current: string | null;
  /** When the current version was set. 0 if no version ever was current. */
  readonly changedMs: number;
  readonly versions: readonly Version[];
}

interface OwnDeployment extends Deployment {
  readonly own: Version;
}

interface Version {
  readonly build: string;
  readonly isDraining: boolean;
  /** True if the version may have open runs. */
  readonly isInUse: boolean;
  /** When the version became current or ramping for the first time. 0 if it never did. */
  readonly activatedMs: number;
}

/** Describes a deployment. Returns null if the server does not know it yet. */
async function describe(
  client: Client,
  deploymentName: string,
): Promise<Deployment | null> {
  const { namespace } = client.options;
  const call = client.workflowService.describeWorkerDeployment({
    namespace,
    deploymentName,
  });
  const described = await unless(NOT_FOUND, call);
  if (described === null) return null;
  const { conflictToken, workerDeploymentInfo: info } = described;
  const summaries = info?.versionSummaries ?? [];
  const versions = summaries.map(
    ({ deploymentVersion, status, firstActivationTime }) => ({
      build: deploymentVersion?.buildId ?? '',
      isDraining: status === DRAINING,
      isInUse: IN_USE.includes(status),
      activatedMs: optionalTsToMs(firstActivationTime) ?? 0,
    }),
  );
  const routing = info?.routingConfig;
  const current = routing?.currentDeploymentVersion?.buildId ?? null;
  const changedMs = optionalTsToMs(routing?.currentVersionChangedTime) ?? 0;
  return { conflictToken, current, changedMs, versions };
}

/**
 * Describes the deployment of a version, and the version. Returns null if the server does not know
 * the version yet.
 */
async function describeOwn(
  client: Client,
  { deploymentName, buildId }: WorkerDeploymentVersion,
): Promise<OwnDeployment | null> {
  const deployment = await describe(client, deploymentName);
  const own = deployment?.versions.find(({ build }) => build === buildId);
  if (deployment === null || own === undefined) return null;
  return { ...deployment, own };
}

/**
 * Counts the open batches that wait because no worker of their build is alive. A batch gets its
 * build with its first workflow task, so new batches wait for the current build.
 * @param live the build ids of the live workers
 * @returns the builds that batches wait for
 */
export async function countWaitingBatches(
  client: Client,
  taskQueue: string,
  live: ReadonlySet<string>,
): Promise<{ build: string; batches: number }[]> {
  if (!(await hasDeployments(client))) return [];
  const deploymentName = deploymentOf(taskQueue);
  const deployment = await describe(client, deploymentName);
  if (deployment === null) return [];
  const waiting = [];
  for (const { build, isInUse } of deployment.versions) {
    if (!isInUse || live.has(build)) continue;
    const itself = `TemporalWorkerDeploymentVersion = '${deploymentName}:${build}'`;
    const isCurrent = build === deployment.current;
    const version = isCurrent
      ? `(${itself} or TemporalWorkerDeploymentVersion is null)`
      : itself;
    const query = `${version} and WorkflowType = '${WORKFLOWS.batch}' and TaskQueue = '${queuesOf(taskQueue).enrichment}' and ExecutionStatus = 'Running'`;
    const { count: batches } = await client.workflow.count(query);
    if (batches > 0) waiting.push({ build, batches });
  }
  return waiting;
}

/**
 * Returns true if a newer version has replaced this one, and open runs still need its workers. They
 * are not needed if the replacement is older. Then this version was taken back, and its runs should
 * move to the older one.
 */
export async function isNeeded(
  client: Client,
  version: WorkerDeploymentVersion,
): Promise<boolean> {
  const deployment = await describeOwn(client, version);
  if (deployment === null) return false;
  const { current, own, versions } = deployment;
  const replacement = versions.find(({ build }) => build === current);
  if (replacement === undefined) return false;
  return own.isDraining && own.activatedMs < replacement.activatedMs;
}

/**
 * Lets one worker process take part in choosing the current version.
 *
 * A new version becomes current when its first worker starts. A version that was current before
 * becomes current again in two cases: when one of its workers starts after all workers of the
 * current version have stopped, or when no worker of the current version was alive for a minute.
 * With these rules, upgrades and rollbacks work without an operator. If workers of two versions
 * run, restarting one of them changes nothing.
 */
class Rollout {
  private readonly options: RolloutOptions;
  private readonly namespace: string;
  /**
   * For each build id, the number of consecutive steps in which no worker of the build was alive.
   */
  private readonly missed = new Map<string, number>();
  private readonly startedMs = Date.now();

  constructor(options: RolloutOptions) {
    this.options = options;
    this.namespace = options.client.options.namespace;
  }

  /**
   * Makes the version of this process current if it should be. The heartbeat of this process must
   * be stored before the first step, so that other processes see that this version has a worker.
   * @param isBeginning true if the process has just started
   * @returns false if the step must be repeated, because another process was faster or the server
   * does not know all queues of this version yet
   */
  async step(isBeginning: boolean): Promise<boolean> {
    const { db, client, taskQueue, isVersioned, automatic, version } = this.options;
    if (!isVersioned) return true;
    const deployment = await describeOwn(client, version);
    if (deployment === null) return false;
    const builds = await readBuilds(db, { namespace: this.namespace, taskQueue });
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
   * Repeats the first step until it succeeds. If it does not succeed in time, logs a warning. Later
   * steps then make the version current.
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
    { current, changedMs, own }: OwnDeployment,
    builds: Builds,
    isBeginning: boolean,
  ): boolean {
    if (current === null || this.isGivenUp(current)) return true;
    const isNew = own.activatedMs === 0;
    if (isBeginning) return isNew || !builds.has(current);
    // `begin` did not succeed in time. A version that became current later must stay, because it is
    // newer, or an operator chose it.
    return isNew && changedMs < this.startedMs;
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
   * Makes our version current.
   * @returns false if another process was faster, or if the server does not know all queues of this
   * version yet
   */
  private async makeCurrent({ conflictToken, current }: Deployment): Promise<boolean> {
    const { client, log, version } = this.options;
    const { deploymentName, buildId } = version;
    const call = client.workflowService.setWorkerDeploymentCurrentVersion({
      namespace: this.namespace,
      deploymentName,
      buildId,
      conflictToken,
      // Servers before 1.29 read only this field.
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
   * Moves the runs that are pinned to a build without workers to the current version. If the
   * current code cannot continue such a run, the run ends by its time-outs.
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
    log.warn(
      { moved, version: build },
      'no worker has this version; its runs move to the current version',
    );
  }
}

type Builds = Awaited<ReturnType<typeof readBuilds>>;

/** Returns the functions with which a worker process takes part in choosing the current version. */
export function createRollout(options: RolloutOptions) {
  const rollout = new Rollout(options);
  return {
    step: () => rollout.step(false),
    begin: (signal?: AbortSignal) => rollout.begin(signal),
  };
}
