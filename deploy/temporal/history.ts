import type { Client } from '@temporalio/client';
import { historyFromJSON, historyToJSON } from '@temporalio/common/lib/proto-utils.js';
import { OperatorProblem } from '../../db/connection/errors.ts';
import { NOT_FOUND, unless } from './client.ts';

// Reads workflow histories in the JSON format of Temporal's CLI and UI
// (temporal/api/history/v1/message.proto).

type Payload = { readonly data?: string };
export type Payloads = { readonly payloads?: readonly Payload[] };
export type Failure = { readonly message?: string; readonly cause?: Failure };
type Text =
  | 'activityId'
  | 'reason'
  | 'signalName'
  | 'startToFireTimeout'
  | 'versioningBehavior'
  | 'workflowId';
/** The names of the members that contain the id of an earlier event, to which an event belongs. */
type Earlier = 'scheduledEventId' | 'initiatedEventId' | 'startedEventId';

/** The attributes that we read from events. Each kind of event has only some of them. */
export interface EventAttributes
  extends Readonly<Partial<Record<Text | Earlier, string>>> {
  readonly activityType?: { readonly name: string };
  readonly workflowType?: { readonly name: string };
  readonly attempt?: number;
  readonly input?: Payloads;
  readonly result?: Payloads;
  readonly details?: Readonly<Record<string, Payloads>>;
  readonly searchAttributes?: {
    readonly indexedFields: Readonly<Record<string, Payload>>;
  };
  readonly failure?: Failure;
  readonly lastFailure?: Failure;
  readonly deploymentVersion?: { readonly buildId: string };
  readonly versioningOverride?: { readonly autoUpgrade?: boolean };
}

export interface HistoryEvent extends EventAttributes {
  readonly id: number;
  readonly at: Date;
  /** The kind of event, such as `ActivityTaskScheduled`. */
  readonly name: string;
  /** The summary that the workflow code has set for this event, or null. */
  readonly summary: string | null;
}

type RawEvent = Readonly<Record<string, unknown>> & {
  readonly eventId: string;
  readonly eventTime: string;
  readonly userMetadata?: { readonly summary?: Payload };
};

/** A run of a workflow. */
export interface Run {
  readonly workflowId: string;
  /** The workflow's type. */
  readonly type: string;
  readonly events: readonly HistoryEvent[];
  /**
   * The complete history in the SDK's format, for replays. It includes the `sdkMetadata`, which
   * says which of the SDK's features were active when the history was written.
   */
  readonly history: { readonly events: readonly RawEvent[] };
}

/** Decodes a payload. Returns null if the payload is missing or is not JSON. */
export function decoded(payload: Payload | undefined): unknown {
  try {
    return JSON.parse(Buffer.from(payload?.data ?? '', 'base64').toString());
  } catch {
    return null;
  }
}

/**
 * Parses a history.
 * @param text one of three forms. `temporal workflow show -o json` and the download of the UI have
 * `{"events": […]}`. Temporal's HTTP API and our tests have `{"history": …}`. A list of events is
 * also accepted.
 * @throws {OperatorProblem} if the text is not a history
 */
export function parseRun(text: string): Run {
  try {
    const content = JSON.parse(text);
    const { workflowId, history = content } = content;
    const complete = Array.isArray(history) ? { events: history } : history;
    // Converting the history to the SDK's type and back normalizes the format of older releases.
    // The SDK throws if the content is not a history.
    return toRun(historyFromJSON(complete), workflowId);
  } catch {
    throw new OperatorProblem(
      'this is not a history: take the output of "temporal workflow show --workflow-id ID -o json", or what the Temporal UI downloads with the setting "Encoded"',
    );
  }
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
  const history = await unless(NOT_FOUND, handle.fetchHistory());
  if (history === null) return null;
  return toRun(history, workflowId);
}

/**
 * Decodes a history.
 * @param workflowId the id in the first event by default
 */
function toRun(raw: Parameters<typeof historyToJSON>[0], workflowId?: string): Run {
  const history = JSON.parse(historyToJSON(raw)) as Run['history'];
  const events = history.events.map(toEvent);
  const started = events[0];
  return {
    workflowId: workflowId ?? started?.workflowId ?? '',
    type: started?.workflowType?.name ?? '',
    events,
    history,
  };
}

const ATTRIBUTES_SUFFIX = 'EventAttributes';

function toEvent(event: RawEvent): HistoryEvent {
  const key = Object.keys(event).find((name) => name.endsWith(ATTRIBUTES_SUFFIX)) ?? '';
  const attributes = event[key] as EventAttributes;
  const kind = key.replace(ATTRIBUTES_SUFFIX, '');
  return {
    ...attributes,
    id: Number(event.eventId),
    at: new Date(event.eventTime),
    name: kind.charAt(0).toUpperCase() + kind.slice(1),
    summary: decoded(event.userMetadata?.summary) as string | null,
  };
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
