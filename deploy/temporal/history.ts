import type { Client } from '@temporalio/client';
import { historyToJSON } from '@temporalio/common/lib/proto-utils.js';
import { NOT_FOUND, unless } from './client.ts';

// Reads workflow histories in the JSON format of Temporal (temporal/api/history/v1/message.proto).

/** The attributes that we read from events. Each kind of event has only some of them. */
interface EventAttributes {
  readonly workflowType?: { readonly name: string };
  readonly versioningBehavior?: string;
  readonly deploymentVersion?: { readonly buildId: string };
  readonly versioningOverride?: { readonly autoUpgrade?: boolean };
}

/** A run of a workflow. */
export interface Run {
  readonly workflowId: string;
  /** The workflow's type. */
  readonly type: string;
  readonly events: readonly EventAttributes[];
  /**
   * The complete history in the SDK's format, for replays. It includes the `sdkMetadata`, which
   * says which of the SDK's features were active when the history was written.
   */
  readonly history: { readonly events: readonly object[] };
}

/**
 * Fetches a run of a workflow. Returns null if Temporal does not know it.
 * @param runId the newest run by default
 */
export async function fetchRun(
  client: Client,
  workflowId: string,
  runId?: string,
): Promise<Run | null> {
  const handle = client.workflow.getHandle(workflowId, runId);
  const raw = await unless(NOT_FOUND, handle.fetchHistory());
  if (raw === null) return null;
  const history = JSON.parse(historyToJSON(raw)) as Run['history'];
  const events = history.events.map(attributesOf);
  return { workflowId, type: events[0]?.workflowType?.name ?? '', events, history };
}

function attributesOf(event: object): EventAttributes {
  const [, attributes] =
    Object.entries(event).find(([name]) => name.endsWith('EventAttributes')) ?? [];
  return attributes ?? {};
}

/**
 * Returns the id of the only build that may continue a run, or null if any build may continue it.
 */
export function pinnedTo({ events }: Run): string | null {
  let build: string | null = null;
  for (const { versioningBehavior, deploymentVersion, versioningOverride } of events) {
    if (versioningBehavior?.endsWith('_PINNED')) {
      build = deploymentVersion?.buildId ?? null;
    } else if (versioningBehavior) {
      build = null;
    }
    // The run was moved to other builds, because no worker with its build was left
    // (`createRollout`).
    if (versioningOverride?.autoUpgrade) return null;
  }
  return build;
}
