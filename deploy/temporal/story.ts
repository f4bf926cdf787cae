import {
  decoded,
  type Failure,
  type HistoryEvent,
  type Payloads,
  type Run,
} from './history.ts';

// Describes a workflow run as text for operators: its decisions, the sources it called, and its
// failures, each with its time.

/**
 * Events that usually carry no information for operators. Such an event is only shown if it was
 * retried.
 */
const PROTOCOL_STEPS: ReadonlySet<string> = new Set([
  'WorkflowTaskScheduled',
  'WorkflowTaskStarted',
  'WorkflowTaskCompleted',
  'ActivityTaskStarted',
  'ChildWorkflowExecutionStarted',
  'ExternalWorkflowExecutionCancelRequested',
]);
/** The most items of a list that are printed. */
const MAX_ITEMS = 5;

/**
 * Returns a line for each interesting event of a run. It has the event's id, the seconds since the
 * start of the run, and a description.
 */
export function storyOf({ events }: Run): string[] {
  const byId = new Map(events.map((event) => [String(event.id), event]));
  const begun = events[0]?.at.getTime() ?? 0;
  const shown = events.filter(
    ({ name, attempt = 1 }) => attempt > 1 || !PROTOCOL_STEPS.has(name),
  );
  return shown.map((event) => {
    const earlier = byId.get(earlierId(event)) ?? event;
    const id = String(event.id).padStart(5);
    const seconds = ((event.at.getTime() - begun) / 1000).toFixed(3);
    const text = joined([titleOf(event, earlier), detailsOf(event, earlier)], ': ');
    return `${id} ${`+${seconds}`.padStart(9)} s  ${text}`;
  });
}

/** Returns the id of the earlier event that an event belongs to, or an empty string. */
function earlierId({
  scheduledEventId,
  initiatedEventId,
  startedEventId,
}: HistoryEvent): string {
  return scheduledEventId ?? initiatedEventId ?? startedEventId ?? '';
}

/** Joins texts. Missing and empty ones are skipped. */
function joined(
  texts: readonly (string | null | undefined)[],
  separator: string,
): string {
  return texts.filter(Boolean).join(separator);
}

/**
 * Returns the title of an event, such as `ActivityTaskCompleted askVendor (hunter for NPI
 * 2000000010)`.
 * @param earlier the event that scheduled or started this one, or the event itself if there isn't one
 */
function titleOf({ name }: HistoryEvent, earlier: HistoryEvent): string {
  const { workflowId, summary } = earlier;
  const type = typeOf(earlier);
  const title = joined([name, type, workflowId], ' ');
  if (!summary || summary === type) return title;
  return `${title} (${summary})`;
}

/**
 * Returns the type of the activity or workflow, or the name of the signal, that an event is about.
 */
function typeOf({ details, activityType, workflowType, signalName }: HistoryEvent) {
  const local = decoded(details?.data?.payloads?.[0]) as { activity_type: string } | null;
  return local?.activity_type ?? activityType?.name ?? workflowType?.name ?? signalName;
}

/** Returns the details of an event that are not in its title. */
function detailsOf(event: HistoryEvent, earlier: HistoryEvent): string {
  const { name, attempt = 1, failure, lastFailure = failure, reason } = event;
  const texts = [];
  if (attempt > 1) texts.push(`attempt ${attempt}`);
  if (lastFailure) texts.push(failureText(lastFailure));
  const hasInput =
    name === 'WorkflowExecutionStarted' || name === 'WorkflowExecutionSignaled';
  if (hasInput) texts.push(payloadsText(event.input));
  else texts.push(payloadsText(event.result ?? event.details?.result));
  if (name.startsWith('Upsert')) texts.push(searchAttributesText(event));
  texts.push(earlier.startToFireTimeout, reason);
  return joined(texts, '; ');
}

function searchAttributesText({ searchAttributes }: HistoryEvent): string {
  const values: Record<string, unknown> = {};
  for (const [name, payload] of Object.entries(searchAttributes?.indexedFields ?? {})) {
    values[name] = decoded(payload);
  }
  return valueText(values);
}

/** Joins the messages of a failure and its causes, outermost first. */
function failureText({ message = '', cause }: Failure): string {
  if (cause === undefined) return message;
  return `${message} < ${failureText(cause)}`;
}

function payloadsText({ payloads = [] }: Payloads = {}): string {
  return payloads.map((payload) => valueText(decoded(payload))).join(', ');
}

/**
 * Returns a value as text. An object becomes a list of its members, such as `kind miss, reason
 * deadline`.
 */
function valueText(value: unknown): string {
  if (typeof value === 'number' && value > 1e12) return new Date(value).toISOString();
  if (Array.isArray(value)) return listText(value);
  if (typeof value !== 'object' || value === null) return String(value);
  const members = Object.entries(value).filter(([, member]) => !isEmpty(member));
  return members.map(([name, member]) => `${name} ${valueText(member)}`).join(', ');
}

/** Returns true for null, 0, false, and []. */
function isEmpty(value: unknown): boolean {
  if (Array.isArray(value)) return value.length === 0;
  return !value;
}

function listText(list: readonly unknown[]): string {
  const items = list.slice(0, MAX_ITEMS).map(itemText).join(' ');
  if (list.length <= MAX_ITEMS) return `[${items}]`;
  return `[${items} and ${list.length - MAX_ITEMS} more]`;
}

/**
 * Returns an item of a list as text. An object is represented by its first member, which identifies
 * it.
 */
function itemText(item: unknown): string {
  if (typeof item === 'object' && item !== null) return valueText(Object.values(item)[0]);
  return valueText(item);
}
