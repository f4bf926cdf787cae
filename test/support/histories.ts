import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import type { Client } from '@temporalio/client';
import { historyToJSON } from '@temporalio/common/lib/proto-utils.js';

/** What Temporal keeps of one execution; `raw` of a history is the protobuf message. */
export type History = Awaited<ReturnType<ReturnType<Client['workflow']['getHandle']>['fetchHistory']>>;

/** The names of a history's events, such as `ActivityTaskScheduled`, oldest first. */
export function eventNames(history: History): string[] {
  return (history.events ?? []).map((event) => {
    const attributes = Object.keys(event).find((key) => key.endsWith('EventAttributes')) ?? 'unknown';
    return attributes.replace('EventAttributes', '').replace(/^./, (letter) => letter.toUpperCase());
  });
}

/** How often each event occurs. */
export function countEvents(history: History): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const name of eventNames(history)) counts[name] = (counts[name] ?? 0) + 1;
  return counts;
}

/**
 * The builds that completed the workflow tasks of these executions, and what made other tasks fail. A task that was
 * about to end a run, while news for it came, is no failure: the server refuses it and asks again.
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
      const { buildId } = event.workflowTaskCompletedEventAttributes?.deploymentVersion ?? {};
      if (buildId) builds.add(buildId);
    }
  }
  return { failed, builds: [...builds] };
}

/**
 * What Temporal Cloud counts of an execution (docs.temporal.io/cloud/actions). Heartbeats that reach it, queries and the
 * starts by Schedules come on top: no history has them.
 */
export function countActions(history: History): number {
  const events = history.events ?? [];
  // Of all local activities of one workflow task, one.
  const withMarkers = new Set(
    events.map((event) => String(event.markerRecordedEventAttributes?.workflowTaskCompletedEventId ?? '')),
  );
  withMarkers.delete('');
  return events.reduce((actions, event) => {
    // A child is counted where it is started: once for that, once for its execution.
    if (event.startChildWorkflowExecutionInitiatedEventAttributes) return actions + 2;
    const started = event.workflowExecutionStartedEventAttributes;
    if (started) return actions + (started.parentWorkflowExecution ? 0 : 1);
    // The attempts before it are in no event.
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
 * Everything readable in what Temporal returned, payloads decoded: for searching what must not be in there.
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

/** One execution on disk, as it was when it was recorded. */
export interface SavedHistory {
  /** The file's name without its ending: what happened in it. */
  readonly name: string;
  /** Part of what a workflow may decide by, and in no history. */
  readonly workflowId: string;
  readonly history: { readonly events: readonly Record<string, unknown>[] };
}

const FOLDER = new URL('../histories/', import.meta.url);

/** Every saved history, by name. */
export async function readHistories(): Promise<SavedHistory[]> {
  const names = (await readdir(FOLDER)).filter((name) => name.endsWith('.json')).sort();
  return await Promise.all(
    names.map(async (file) => {
      const name = file.replace(/\.json$/, '');
      return parseHistory(name, await readFile(new URL(file, FOLDER), 'utf8'));
    }),
  );
}

/** @param text as we save a history, or bare, as Temporal's CLI and UI give it: then its name is the workflow id */
export function parseHistory(name: string, text: string): SavedHistory {
  const saved = JSON.parse(text);
  return 'events' in saved ? { name, workflowId: name, history: saved } : { name, ...saved };
}

/** Saves one execution, without what names the machine it ran on. One event per line, so that changes can be read. */
export async function saveHistory(name: string, workflowId: string, history: History): Promise<void> {
  await mkdir(FOLDER, { recursive: true });
  const { events } = JSON.parse(historyToJSON(history), anonymous) as SavedHistory['history'];
  const lines = events.map((event) => `    ${JSON.stringify(event)}`).join(',\n');
  const text = `{\n  "workflowId": ${JSON.stringify(workflowId)},\n  "history": { "events": [\n${lines}\n  ] }\n}\n`;
  await writeFile(new URL(`${name}.json`, FOLDER), text);
}

/**
 * Everything is kept that replay may go by, such as the SDK's own metadata: without it, a history is replayed by the
 * rules of older SDKs, which overlook more. Only what names the machine is replaced: processes, hosts, paths.
 */
function anonymous(key: string, value: unknown): unknown {
  if (key === 'identity') return 'worker';
  // A worker's own queue is named after its process.
  if (key === 'name' && typeof value === 'string' && /^[0-9]+@/.test(value)) return 'sticky';
  return key === 'stackTrace' ? undefined : value;
}
