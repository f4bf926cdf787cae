import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import type { Client } from '@temporalio/client';
import { historyToJSON } from '@temporalio/common/lib/proto-utils.js';
import { Worker, type WorkflowBundleOption } from '@temporalio/worker';

/** The history of one execution, as the client fetches it. */
export type History = Awaited<
  ReturnType<ReturnType<Client['workflow']['getHandle']>['fetchHistory']>
>;

/** Returns the names of a history's events, such as `ActivityTaskScheduled`, oldest first. */
export function eventNames(history: History): string[] {
  return (history.events ?? []).map((event) => {
    const attributes =
      Object.keys(event).find((key) => key.endsWith('EventAttributes')) ?? 'unknown';
    return attributes
      .replace('EventAttributes', '')
      .replace(/^./, (letter) => letter.toUpperCase());
  });
}

/** Returns how often each event occurs. */
export function countEvents(history: History): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const name of eventNames(history)) counts[name] = (counts[name] ?? 0) + 1;
  return counts;
}

/**
 * Returns the builds that completed the workflow tasks of these executions, and the errors of
 * failed tasks. A task that would have ended a run while a new event arrived does not count as
 * failed. The server rejects such a task and schedules it again.
 */
export async function tasksOf({ workflow }: Client, ids: readonly string[]) {
  const failed: string[] = [];
  const builds = new Set<string>();
  for (const id of ids) {
    const { events } = await workflow.getHandle(id).fetchHistory();
    for (const event of events ?? []) {
      const failure = event.workflowTaskFailedEventAttributes;
      const message = failure?.failure?.message ?? 'no message';
      if (failure && message !== 'UnhandledCommand') failed.push(`${id}: ${message}`);
      const { buildId } =
        event.workflowTaskCompletedEventAttributes?.deploymentVersion ?? {};
      if (buildId) builds.add(buildId);
    }
  }
  return { failed, builds: [...builds] };
}

/**
 * Returns the number of actions that Temporal Cloud counts for an execution
 * (docs.temporal.io/cloud/actions). Recorded heartbeats, queries, and starts by Schedules are not
 * included, because they are in no history.
 */
export function countActions(history: History): number {
  const events = history.events ?? [];
  // All local activities of one workflow task count as one action.
  const withMarkers = new Set(
    events.map((event) =>
      String(event.markerRecordedEventAttributes?.workflowTaskCompletedEventId ?? ''),
    ),
  );
  withMarkers.delete('');
  return events.reduce((actions, event) => {
    // A child is counted where it is started: once for the start, once for its execution.
    if (event.startChildWorkflowExecutionInitiatedEventAttributes) return actions + 2;
    const started = event.workflowExecutionStartedEventAttributes;
    if (started) return actions + (started.parentWorkflowExecution ? 0 : 1);
    // Earlier attempts have no events.
    const activity = event.activityTaskStartedEventAttributes;
    if (activity) return actions + (activity.attempt ?? 1);
    const isOne =
      event.timerStartedEventAttributes ??
      event.workflowExecutionSignaledEventAttributes ??
      event.upsertWorkflowSearchAttributesEventAttributes ??
      event.workflowExecutionOptionsUpdatedEventAttributes;
    return actions + (isOne ? 1 : 0);
  }, withMarkers.size);
}

/**
 * Returns all readable text in a response of Temporal, with decoded payloads, to search it for
 * forbidden text.
 * @param value a history, a description, or any part of one
 */
export function readableText(value: unknown): string {
  if (typeof value === 'string') return value;
  if (value instanceof Uint8Array) return Buffer.from(value).toString('utf8');
  if (Array.isArray(value)) return value.map(readableText).join('\n');
  if (typeof value !== 'object' || value === null) return '';
  return Object.entries(value)
    .map(([key, part]) => `${key}: ${readableText(part)}`)
    .join('\n');
}

/** One execution on disk, as it was recorded. */
export interface SavedHistory {
  /** The file's name without its extension. It says what happened. */
  readonly name: string;
  /** The ID may influence a workflow's decisions, but no history contains it. */
  readonly workflowId: string;
  readonly history: { readonly events: readonly Record<string, unknown>[] };
}

const FOLDER = new URL('../histories/', import.meta.url);

/** Reads all saved histories, sorted by name. */
export async function readHistories(): Promise<SavedHistory[]> {
  const names = (await readdir(FOLDER)).filter((name) => name.endsWith('.json')).sort();
  return await Promise.all(
    names.map(async (file) => {
      const name = file.replace(/\.json$/, '');
      return parseHistory(name, await readFile(new URL(file, FOLDER), 'utf8'));
    }),
  );
}

/**
 * Parses a history.
 * @param text as `saveHistory` writes it, or as Temporal's CLI and UI return it. Then `name` must
 * be the workflow ID
 */
export function parseHistory(name: string, text: string): SavedHistory {
  const saved = JSON.parse(text);
  return 'events' in saved
    ? { name, workflowId: name, history: saved }
    : { name, ...saved };
}

/**
 * Saves one execution without data that names its machine. One event per line makes changes
 * readable.
 */
export async function saveHistory(
  name: string,
  workflowId: string,
  history: History,
): Promise<void> {
  await mkdir(FOLDER, { recursive: true });
  const { events } = JSON.parse(
    historyToJSON(history),
    anonymous,
  ) as SavedHistory['history'];
  const lines = events.map((event) => `    ${JSON.stringify(event)}`).join(',\n');
  const text = `{\n  "workflowId": ${JSON.stringify(workflowId)},\n  "history": { "events": [\n${lines}\n  ] }\n}\n`;
  await writeFile(new URL(`${name}.json`, FOLDER), text);
}

/**
 * Replaces only data that names the machine: processes, hosts, and paths. Everything that replay
 * may use stays, such as the SDK's own metadata. Without it, replay would apply the rules of older
 * SDKs, which overlook more.
 */
function anonymous(key: string, value: unknown): unknown {
  if (key === 'identity') return 'worker';
  // A worker's own queue is named after its process.
  if (key === 'name' && typeof value === 'string' && /^[0-9]+@/.test(value))
    return 'sticky';
  return key === 'stackTrace' ? undefined : value;
}

/** Returns the type of a history's workflow. */
export function typeOf({ history }: SavedHistory): string {
  const { workflowExecutionStartedEventAttributes: started } = history.events[0] ?? {};
  return (
    (started as { workflowType?: { name?: string } } | undefined)?.workflowType?.name ??
    ''
  );
}

/** Returns the names of the histories that these workflows don't replay in the same way. */
export async function divergent(
  workflowBundle: WorkflowBundleOption,
  among: readonly SavedHistory[],
): Promise<string[]> {
  const found: string[] = [];
  let index = 0;
  for await (const { error } of Worker.runReplayHistories({ workflowBundle }, among)) {
    if (error) found.push(`${among[index]?.name}: ${error.name}`);
    index += 1;
  }
  if (index !== among.length)
    throw new Error(`${index} of ${among.length} histories were replayed`);
  return found;
}
