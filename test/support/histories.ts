import type { Client } from '@temporalio/client';

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
