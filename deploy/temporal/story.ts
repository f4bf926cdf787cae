import { decoded, type Failure, type HistoryEvent, type Payloads, type Run } from './history.ts';

// Describes a run for people: decisions, called sources and failures, each with its time.

/** Protocol steps that are left out unless they were retried. */
const UNTOLD: ReadonlySet<string> = new Set([
  ...[
    'WorkflowTaskScheduled',
    'WorkflowTaskStarted',
    'WorkflowTaskCompleted',
    'ActivityTaskStarted',
  ],
  ...['ChildWorkflowExecutionStarted', 'ExternalWorkflowExecutionCancelRequested'],
]);
/** Number of items that are printed of a list. */
const NAMED_AT_MOST = 5;

/**
 * Returns a line for each event of interest: its id, the seconds since the start, what happened.
 */
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
 * Returns the name of an event and its subject: `ActivityTaskCompleted askVendor (hunter for NPI
 * 2000000010)`.
 * @param of the earlier event that scheduled or started it, or else the event itself
 */
export function titleOf({ name }: HistoryEvent, of: HistoryEvent): string {
  const local = decoded(of.details?.data?.payloads?.[0]) as { activity_type: string } | null;
  const type =
    local?.activity_type ?? of.activityType?.name ?? of.workflowType?.name ?? of.signalName;
  const summary = of.summary && of.summary !== type ? `(${of.summary})` : null;
  return [name, type, of.workflowId, summary].filter(Boolean).join(' ');
}

/** Returns the details of an event that are not in its title. */
function sayingOf(event: HistoryEvent, of: HistoryEvent): string {
  const {
    name,
    attempt = 1,
    failure,
    lastFailure = failure,
    result = event.details?.result,
  } = event;
  const fields = Object.entries(event.searchAttributes?.indexedFields ?? {});
  const hasInput = name === 'WorkflowExecutionStarted' || name === 'WorkflowExecutionSignaled';
  return [
    attempt > 1 && `attempt ${attempt}`,
    lastFailure && failureText(lastFailure),
    payloadsText(hasInput ? event.input : result),
    name.startsWith('Upsert') &&
      said(Object.fromEntries(fields.map(([key, one]) => [key, decoded(one)]))),
    of.startToFireTimeout,
    event.reason,
  ]
    .filter(Boolean)
    .join('; ');
}

/** Joins the messages of a failure and its causes, outermost first. */
function failureText({ message, cause }: Failure): string {
  return [message, ...(cause ? [failureText(cause)] : [])].join(' < ');
}

function payloadsText(payloads: Payloads | undefined): string {
  return (payloads?.payloads ?? []).map((one) => said(decoded(one))).join(', ');
}

/** Returns a value in words: `kind miss, reason deadline`. */
function said(value: unknown): string {
  if (typeof value === 'number' && value > 1e12) return new Date(value).toISOString();
  if (typeof value !== 'object' || value === null) return String(value);
  if (Array.isArray(value)) {
    const more = value.length > NAMED_AT_MOST ? ` and ${value.length - NAMED_AT_MOST} more` : '';
    // The first member of an object identifies it.
    const named = value
      .slice(0, NAMED_AT_MOST)
      .map((one) => said(one === Object(one) ? Object.values(one)[0] : one));
    return `[${named.join(' ')}${more}]`;
  }
  // Leaves out empty members: null, 0, false, [].
  const members = Object.entries(value).filter(([, member]) =>
    Array.isArray(member) ? member.length : member,
  );
  return members.map(([name, member]) => `${name} ${said(member)}`).join(', ');
}
