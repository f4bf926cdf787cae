import type { Client } from '@temporalio/client';
import { historyFromJSON, historyToJSON } from '@temporalio/common/lib/proto-utils.js';
import { OperatorProblem } from '../../db/errors.ts';
import { NOT_FOUND, unless } from './client.ts';

// Reads histories in JSON, as Temporal's CLI and UI write them
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
/** The earlier event that an event belongs to. */
type Earlier = 'scheduledEventId' | 'initiatedEventId' | 'startedEventId';

/** The attributes of events that are read here. Each kind of event has some of them. */
export interface EventAttributes extends Readonly<Partial<Record<Text | Earlier, string>>> {
  readonly activityType?: { readonly name: string };
  readonly workflowType?: { readonly name: string };
  readonly attempt?: number;
  readonly input?: Payloads;
  readonly result?: Payloads;
  readonly details?: Readonly<Record<string, Payloads>>;
  readonly searchAttributes?: { readonly indexedFields: Readonly<Record<string, Payload>> };
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
  /** The summary that the workflow code gave this event, for people. */
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
   * The complete history in the SDK's format. Its `sdkMetadata` says by which rules it was written.
   */
  readonly history: { readonly events: readonly RawEvent[] };
}

/** Decodes a payload. Returns null if it is missing or is not JSON. */
export function decoded(payload: Payload | undefined): unknown {
  try {
    return JSON.parse(Buffer.from(payload?.data ?? '', 'base64').toString());
  } catch {
    return null;
  }
}

/**
 * Parses a history.
 * @param text `{"events": […]}` of `temporal workflow show -o json` and of the UI's download, the
 * bare list of events, or `{"history": …}` of Temporal's HTTP API and of our tests
 * @throws {OperatorProblem} if the text is not a history
 */
export function parseRun(text: string): Run {
  try {
    const content = JSON.parse(text);
    const { workflowId, history = content } = content;
    const complete = Array.isArray(history) ? { events: history } : history;
    // The round trip normalizes the spelling of older releases, and the SDK rejects everything that
    // is not a history.
    return toRun(historyFromJSON(complete), workflowId);
  } catch {
    throw new OperatorProblem(
      'this is not a history: take the output of "temporal workflow show --workflow-id ID -o json", or what the Temporal UI downloads with the setting "Encoded"',
    );
  }
}

/**
 * Fetches a run of a workflow id, by default the newest. Returns null if Temporal does not know it.
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

/** @param workflowId by default the one in the history's first event */
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

/** Returns the only build that may continue a run, or null if any build may. */
export function pinnedTo({ events }: Run): string | null {
  let build: string | null = null;
  for (const { versioningBehavior, deploymentVersion, versioningOverride } of events) {
    if (versioningBehavior?.endsWith('_PINNED')) {
      build = deploymentVersion?.buildId ?? null;
    } else if (versioningBehavior) {
      build = null;
    }
    // The run was moved, because no worker had its build any more (createRollout).
    if (versioningOverride?.autoUpgrade) return null;
  }
  return build;
}
