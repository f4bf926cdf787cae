import type { Client } from '@temporalio/client';
import { historyFromJSON, historyToJSON } from '@temporalio/common/lib/proto-utils.js';
import { OperatorProblem } from '../../db/errors.ts';
import { NOT_FOUND, unless } from './client.ts';

// Histories in JSON, which is how Temporal's CLI and UI write them: temporal/api/history/v1/message.proto.

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
/** The event that another one goes on with. */
type Earlier = 'scheduledEventId' | 'initiatedEventId' | 'startedEventId';

/** What an event says: those of its members that are read here; each kind of event has some. */
export interface Said extends Readonly<Partial<Record<Text | Earlier, string>>> {
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

export interface HistoryEvent extends Said {
  readonly id: number;
  readonly at: Date;
  /** `ActivityTaskScheduled` */
  readonly name: string;
  /** What the code that caused it says of it, for people. */
  readonly summary: string | null;
}

type RawEvent = Readonly<Record<string, unknown>> & {
  readonly eventId: string;
  readonly eventTime: string;
  readonly userMetadata?: { readonly summary?: Payload };
};

/** One run of a workflow. */
export interface Run {
  readonly workflowId: string;
  /** The workflow's type. */
  readonly type: string;
  readonly events: readonly HistoryEvent[];
  /** As the SDK takes it, with all that it goes by: `sdkMetadata` says by which rules it was written. */
  readonly history: { readonly events: readonly RawEvent[] };
}

/** What a payload holds; null for none, and for what is not JSON. */
export function decoded(payload: Payload | undefined): unknown {
  try {
    return JSON.parse(Buffer.from(payload?.data ?? '', 'base64').toString());
  } catch {
    return null;
  }
}

/**
 * @param text `{"events": […]}` of `temporal workflow show -o json` and of the UI's download, its bare list of events, or
 * `{"history": …}` of Temporal's HTTP API and of our own tests
 * @throws {OperatorProblem} what is wrong with it
 */
export function parseRun(text: string): Run {
  try {
    const given = JSON.parse(text);
    const { workflowId, history = given } = given;
    // There and back: older releases have written the same in other words, and the SDK says what is none.
    return runOf(historyFromJSON(Array.isArray(history) ? { events: history } : history), workflowId);
  } catch {
    throw new OperatorProblem(
      'this is not a history: take the output of "temporal workflow show --workflow-id ID -o json", or what the Temporal UI downloads with the setting "Encoded"',
    );
  }
}

/** A run of a workflow id, the newest if none is named; null if Temporal does not have it. */
export async function fetchRun(client: Client, workflowId: string, runId?: string): Promise<Run | null> {
  const history = await unless(NOT_FOUND, client.workflow.getHandle(workflowId, runId).fetchHistory());
  return history && runOf(history, workflowId);
}

function runOf(raw: Parameters<typeof historyToJSON>[0], given?: string): Run {
  const history = JSON.parse(historyToJSON(raw)) as Run['history'];
  const events = history.events.map((event) => {
    const { eventId, eventTime, userMetadata } = event;
    const key = Object.keys(event).find((name) => name.endsWith('EventAttributes')) ?? '';
    const name = key.replace('EventAttributes', '').replace(/^./, (letter) => letter.toUpperCase());
    const summary = decoded(userMetadata?.summary) as string | null;
    return { ...(event[key] as Said), id: Number(eventId), at: new Date(eventTime), name, summary };
  });
  const [started] = events;
  const workflowId = given ?? started?.workflowId ?? '';
  return { workflowId, type: started?.workflowType?.name ?? '', events, history };
}

/** The build that alone may go on with a run; null if any may. */
export function pinnedTo({ events }: Run): string | null {
  let build: string | null = null;
  for (const { versioningBehavior, deploymentVersion, versioningOverride } of events) {
    if (versioningBehavior) {
      build = versioningBehavior.endsWith('_PINNED') ? (deploymentVersion?.buildId ?? null) : null;
    }
    // Nobody had its build any more: it was moved on (createRollout).
    if (versioningOverride?.autoUpgrade) return null;
  }
  return build;
}
