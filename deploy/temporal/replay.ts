import { Worker } from '@temporalio/worker';
import { OperatorProblem } from '../../db/errors.ts';
import commands from './commands.json' with { type: 'json' };
import { decoded, type EventAttributes, type HistoryEvent, type Run } from './history.ts';
import { titleOf } from './story.ts';
import { SOURCE_MAP } from './workers.ts';

// Replays recorded runs of workflows with the current code. The SDK detects when the code does not
// repeat the commands in a history, but does not report which line of the code differs. Therefore
// we record each command of the replayed code with its stack trace.

/** Maps the SDK's commands (coresdk.workflow_commands) to the events that they cause. */
const EVENTS: Readonly<Record<string, string>> = commands;
const NAMES = new Set(Object.values(EVENTS));

/**
 * Numbers the steps of a run, so that a step of a history can be compared with the same step of the
 * code. Local activities are numbered separately. Their order in a history differs from the order
 * in the code, because their events are recorded when they end.
 */
class StepKeys {
  private next = 0;

  /**
   * Returns the key of the next step.
   * @param local the number of the local activity, or null if the step is not a local activity
   */
  keyOf(local: number | null): string {
    if (local !== null) return `local ${local}`;
    const key = String(this.next);
    this.next += 1;
    return key;
  }
}

type Named = string | { readonly name: string } | null | undefined;

function words(name: string, type: Named, id: string | null | undefined): string {
  const typeName = typeof type === 'object' ? type?.name : type;
  return [name, typeName, id].filter(Boolean).join(' ');
}

/** A step of a history. Steps of the history and of the code with equal keys are compared. */
interface Step {
  readonly eventId: number;
  readonly key: string;
  /**
   * The description of the step. The code repeats the step if its own step with this key has the
   * same description.
   */
  readonly what: string;
}

/** The content of the event that records a local activity. */
interface LocalActivity {
  readonly seq: number;
  readonly activity_type: string;
}

/** Returns the steps in a history. */
function stepsOf(events: readonly HistoryEvent[]): Step[] {
  const keys = new StepKeys();
  const steps: Step[] = [];
  for (const event of events) {
    const { id: eventId, name, searchAttributes } = event;
    // Skips the search attribute that the server updates together with the marker of a patch,
    // because the code has no separate command for it.
    if (!NAMES.has(name) || searchAttributes?.indexedFields.TemporalChangeVersion)
      continue;
    const local = decoded(event.details?.data?.payloads?.[0]) as LocalActivity | null;
    const type = local?.activity_type ?? event.activityType ?? event.workflowType;
    const what = words(name, type, event.activityId ?? event.workflowId);
    steps.push({ eventId, key: keys.keyOf(local?.seq ?? null), what });
  }
  return steps;
}

/** The attributes of a command. */
type CommandAttributes = Omit<EventAttributes, 'activityType' | 'workflowType'> & {
  readonly seq: number;
} & Record<string, Named>;

/**
 * A command in the SDK's format. One of its members is named after the kind of command, and has the
 * attributes.
 */
type Command = Readonly<Record<string, CommandAttributes>>;

/**
 * A step of the replayed code. The stack trace of `error` shows the line of code that caused the
 * step.
 */
interface Done {
  readonly what: string;
  readonly error: Error;
}

/** Records the steps of the code during the replay of one history. */
class Recorder {
  /** The recorded steps by key. */
  readonly done = new Map<string, Done>();
  /**
   * The error that failed the workflow task, and the event at which it was thrown. Such an error is
   * a bug in the code. Null if there wasn't one.
   */
  thrown: { readonly error: Error; readonly eventId: number } | null = null;
  private readonly keys = new StepKeys();
  private readonly stopKey: string | undefined;

  constructor(events: readonly HistoryEvent[], stopAt: number | null) {
    if (stopAt === null) return;
    this.stopKey = stepsOf(events).find(({ eventId }) => eventId >= stopAt)?.key;
  }

  /**
   * Records a command.
   * @returns true if a debugger should stop at this command
   */
  command(command: Command, error: Error): boolean {
    const kind = Object.keys(command).find((name) => name in EVENTS) ?? '';
    const attributes = command[kind];
    const name = EVENTS[kind];
    if (!attributes || !name) return false;
    const { seq, activityType, workflowType, activityId, workflowId } = attributes;
    const type = activityType ?? workflowType;
    if (kind === 'scheduleLocalActivity') {
      return this.record(this.keys.keyOf(seq), words(name, type, null), error);
    }
    const what = words(name, type, activityId ?? workflowId);
    return this.record(this.keys.keyOf(null), what, error);
  }

  private record(key: string, what: string, error: Error): boolean {
    this.done.set(key, { what, error });
    return key === this.stopKey;
  }
}

/**
 * The name of the global variable that holds the recorder. Replayed workflows run in this thread,
 * so the code of the bundle can read it.
 */
const RECORDER = 'replayRecorder';

/**
 * Returns a bundle whose workflows report their commands to the recorder. Interceptors are part of
 * a bundle, so this adds one to its text. The new code is inserted right before the source map, so
 * that all other lines keep their line numbers.
 */
function withRecorder(code: string): string {
  if (!SOURCE_MAP.test(code)) {
    throw new OperatorProblem(
      'this file is not a bundle of workflows: "npm run bundle -- FILE" writes one',
    );
  }
  const interceptor = `;{
    const { importInterceptors, preloadModules } = __TEMPORAL__;
    __TEMPORAL__.preloadModules = () => {
      preloadModules();
      Error.stackTraceLimit = 100;
    };
    __TEMPORAL__.importInterceptors = () => [...importInterceptors(), { interceptors() {
      const recorder = globalThis.constructor.constructor('return globalThis')().${RECORDER};
      const activator = globalThis.__TEMPORAL_ACTIVATOR__;
      const { pushCommand, recordWorkflowTaskError } = activator;
      activator.recordWorkflowTaskError = (error) => {
        recorder.thrown = { error, eventId: activator.info.historyLength };
        recordWorkflowTaskError.call(activator, error);
      };
      activator.pushCommand = (command, complete) => {
        if (recorder.command(command, new Error())) debugger;
        pushCommand.call(activator, command, complete);
      };
      return {};
    } }];
  }\n`;
  return code.replace(SOURCE_MAP, (map) => `${interceptor}${map}`);
}

export interface Replayed {
  readonly run: Run;
  /**
   * A text that describes where the code differs from the history, or null if it does not differ.
   */
  readonly misfit: string | null;
  /** True if the code threw an error that failed the workflow task, which is a bug. */
  readonly throws: boolean;
}

/**
 * Replays runs one after the other.
 * @param code the bundle of the workflows
 * @param stopAt an event id. A debugger stops at the first step that belongs to this event or a
 * later one.
 * @throws {OperatorProblem} if `code` is not a bundle
 */
export async function* replay(
  code: string,
  runs: AsyncIterable<Run> | Iterable<Run>,
  stopAt: number | null = null,
): AsyncGenerator<Replayed> {
  const begun: Begun[] = [];
  const results = Worker.runReplayHistories(
    { workflowBundle: { code: withRecorder(code) } },
    recorded(runs, stopAt, begun),
  );
  for await (const { error } of results) {
    const one = begun.shift();
    if (!one) continue;
    begun.length = 0;
    const { run, recorder } = one;
    if (error) {
      const misfit = misfitOf(error, run, recorder);
      yield { run, misfit, throws: recorder.thrown !== null };
    } else {
      yield { run, misfit: null, throws: false };
    }
  }
}

/** A run whose replay has begun. */
interface Begun {
  readonly run: Run;
  readonly recorder: Recorder;
}

/**
 * Yields the runs one after the other. Before each run, it installs a new recorder and adds the run
 * and the recorder to `begun`.
 */
async function* recorded(
  runs: AsyncIterable<Run> | Iterable<Run>,
  stopAt: number | null,
  begun: Begun[],
): AsyncGenerator<Run> {
  for await (const run of runs) {
    const recorder = new Recorder(run.events, stopAt);
    Object.assign(globalThis, { [RECORDER]: recorder });
    begun.push({ run, recorder });
    yield run;
  }
}

/**
 * Describes a difference in three lines: the event of the history, the place in the code, and the
 * SDK's message.
 */
function misfitOf({ message }: Error, { events }: Run, recorder: Recorder): string {
  const { eventId, does, places } = departureOf(events, recorder);
  const event = events.find(({ id }) => id === eventId);
  const why = /message: "((?:[^"\\]|\\.)*)"/.exec(message)?.[1] ?? message;
  return [
    `does not fit at event ${eventId}: ${event && titleOf(event, event)}`,
    `  the code ${[does, ...siteOf(places)].join(', ')}`,
    // Removes the protocol messages at the end of the SDK's message.
    `  ${why.replace(/, version: 0, .*/, '')}`,
  ].join('\n');
}

/** The first difference between the replayed code and a history. */
interface Departure {
  readonly eventId: number | undefined;
  /** A description of what the code does instead, such as `throws TypeError`. */
  readonly does: string;
  /**
   * Places in the code that can be shown, best first. `what` is the step at this place. It is null
   * at the place of the difference itself.
   */
  readonly places: readonly { readonly what: string | null; readonly error: Error }[];
}

/**
 * Finds the first difference. It is the error that the code threw, or else the first step of the
 * history that the code does not repeat.
 */
function departureOf(
  events: readonly HistoryEvent[],
  { done, thrown }: Recorder,
): Departure {
  const latestFirst = [...done.values()].reverse();
  if (thrown !== null) {
    const places = [{ what: null, error: thrown.error }, ...latestFirst];
    return { eventId: thrown.eventId, does: `throws ${thrown.error.name}`, places };
  }
  const steps = stepsOf(events);
  const at = steps.findIndex(({ key, what }) => done.get(key)?.what !== what);
  const first = steps[at];
  const step = first && done.get(first.key);
  if (step === undefined) {
    // The code stopped before this step, so we show the place of the last step that it took.
    return { eventId: first?.eventId, does: 'does not do that', places: latestFirst };
  }
  // If the code ended the workflow instead, no line of code belongs to that. In that case we show
  // the previous steps.
  const before = steps.slice(0, at).flatMap(({ key }) => done.get(key) ?? []);
  const places = [{ what: null, error: step.error }, ...before.reverse()];
  return { eventId: first?.eventId, does: `does ${step.what}`, places };
}

/**
 * Returns texts that describe the first place with lines of workflow code, or an empty list if
 * there isn't one.
 */
function siteOf(places: Departure['places']): string[] {
  for (const { what, error } of places) {
    const lines = linesOf(error.stack);
    if (lines.length === 0) continue;
    const at = `at ${lines.join(' < ')}`;
    return what === null ? [at] : [`after ${what}`, at];
  }
  return [];
}

/**
 * Returns the lines of workflow code in a stack trace, such as `workflows/batch.ts:93`, innermost
 * first.
 */
function linesOf(stack = ''): string[] {
  const frames = [
    ...stack.matchAll(
      /\((?![^)]*\/node_modules\/)[^)]*?([\w-]+\/[\w.-]+\.ts:[0-9]+):[0-9]+\)/g,
    ),
  ];
  return [...new Set(frames.map(([, line = '']) => line))];
}
