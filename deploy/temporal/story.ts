import { decoded, type Failure, type HistoryEvent, type Payloads, type Run } from './history.ts';

// A run for people: what was decided, who was asked, why it failed, each with its time.

/** Steps of the protocol, unless they are made again. */
const UNTOLD: ReadonlySet<string> = new Set([
  ...['WorkflowTaskScheduled', 'WorkflowTaskStarted', 'WorkflowTaskCompleted', 'ActivityTaskStarted'],
  ...['ChildWorkflowExecutionStarted', 'ExternalWorkflowExecutionCancelRequested'],
]);
/** Of a list. */
const NAMED_AT_MOST = 5;

/** A line per event that says something: its id, the seconds since the start, what happened. */
export function storyOf({ events }: Run): string[] {
  const byId = new Map(events.map((event) => [String(event.id), event]));
  const begun = events[0]?.at.getTime() ?? 0;
  const told = events.filter(({ name, attempt = 1 }) => attempt > 1 || !UNTOLD.has(name));
  return told.map((event) => {
    const { scheduledEventId, initiatedEventId, startedEventId } = event;
    const of = byId.get(scheduledEventId ?? initiatedEventId ?? startedEventId ?? '') ?? event;
    const seconds = ((event.at.getTime() - begun) / 1000).toFixed(3);
    const text = [titleOf(event, of), sayingOf(event, of)].filter(Boolean).join(': ');
    return `${String(event.id).padStart(5)} ${`+${seconds}`.padStart(9)} s  ${text}`;
  });
}

/**
 * An event and whom it is about: `ActivityTaskCompleted askVendor (hunter for NPI 2000000010)`.
 * @param of what was scheduled or begun before, if the event says how that went on
 */
export function titleOf({ name }: HistoryEvent, of: HistoryEvent): string {
  const local = decoded(of.details?.data?.payloads?.[0]) as { activity_type: string } | null;
  const type = local?.activity_type ?? of.activityType?.name ?? of.workflowType?.name ?? of.signalName;
  const summary = of.summary && of.summary !== type ? `(${of.summary})` : null;
  return [name, type, of.workflowId, summary].filter(Boolean).join(' ');
}

/** What an event says beside that. */
function sayingOf(event: HistoryEvent, of: HistoryEvent): string {
  const { name, attempt = 1, failure, lastFailure = failure, result = event.details?.result } = event;
  const fields = Object.entries(event.searchAttributes?.indexedFields ?? {});
  const hasInput = name === 'WorkflowExecutionStarted' || name === 'WorkflowExecutionSignaled';
  return [
    attempt > 1 && `attempt ${attempt}`,
    lastFailure && failureText(lastFailure),
    payloadsText(hasInput ? event.input : result),
    name.startsWith('Upsert') && said(Object.fromEntries(fields.map(([key, one]) => [key, decoded(one)]))),
    of.startToFireTimeout,
    event.reason,
  ]
    .filter(Boolean)
    .join('; ');
}

/** From what was seen to what it came from. */
function failureText({ message, cause }: Failure): string {
  return [message, ...(cause ? [failureText(cause)] : [])].join(' < ');
}

function payloadsText(payloads: Payloads | undefined): string {
  return (payloads?.payloads ?? []).map((one) => said(decoded(one))).join(', ');
}

/** What crosses Temporal in words: `kind miss, reason nobody`. */
function said(value: unknown): string {
  if (typeof value === 'number' && value > 1e12) return new Date(value).toISOString();
  if (typeof value !== 'object' || value === null) return String(value);
  if (Array.isArray(value)) {
    const more = value.length > NAMED_AT_MOST ? ` and ${value.length - NAMED_AT_MOST} more` : '';
    // Of what has members the first says which it is.
    const named = value
      .slice(0, NAMED_AT_MOST)
      .map((one) => said(one === Object(one) ? Object.values(one)[0] : one));
    return `[${named.join(' ')}${more}]`;
  }
  // What is none needs no word: null, 0, false, [].
  const members = Object.entries(value).filter(([, member]) =>
    Array.isArray(member) ? member.length : member,
  );
  return members.map(([name, member]) => `${name} ${said(member)}`).join(', ');
}
