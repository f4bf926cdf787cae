import { Worker } from '@temporalio/worker';
import { OperatorProblem } from '../../db/errors.ts';
import commands from './commands.json' with { type: 'json' };
import { decoded, type EventAttributes, type HistoryEvent, type Run } from './history.ts';
import { titleOf } from './story.ts';

// Replays runs. The SDK finds out whether workflows repeat the commands that a history recorded,
// but not which line departs from it. So each command is recorded with its stack.

/** The SDK's commands (coresdk.workflow_commands), and the events that they lead to. */
const EVENTS: Readonly<Record<string, string>> = commands;
const NAMES = new Set(Object.values(EVENTS));

/**
 * Numbers steps. Local activities have their own numbers, because their events are recorded when
 * they end, not when they begin.
 */
class StepKeys {
  private next = 0;

  /** @param local the number of a local activity, or null for any other step */
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

/** A step of a history. Equal keys mean the same step. */
interface Step {
  readonly eventId: number;
  readonly key: string;
  /** The step in words. A replayed step fits if its words are equal. */
  readonly what: string;
}

/** The content of the marker of a local activity. */
interface LocalActivity {
  readonly seq: number;
  readonly activity_type: string;
}

/** Returns the steps that the code took according to a history. */
function stepsOf(events: readonly HistoryEvent[]): Step[] {
  const keys = new StepKeys();
  const steps: Step[] = [];
  for (const event of events) {
    const { id: eventId, name, searchAttributes } = event;
    // Skips the search attribute that the server writes next to the marker of a patch.
    if (!NAMES.has(name) || searchAttributes?.indexedFields.TemporalChangeVersion) continue;
    const local = decoded(event.details?.data?.payloads?.[0]) as LocalActivity | null;
    const type = local?.activity_type ?? event.activityType ?? event.workflowType;
    const what = words(name, type, event.activityId ?? event.workflowId);
    steps.push({ eventId, key: keys.keyOf(local?.seq ?? null), what });
  }
  return steps;
}

/** The members of one kind of command. */
type CommandAttributes = Omit<EventAttributes, 'activityType' | 'workflowType'> & {
  readonly seq: number;
} & Record<string, Named>;

/** A command in the SDK's format: its kind and its members. */
type Command = Readonly<Record<string, CommandAttributes>>;

/** A step of the replayed code, with the stack at which it was taken. */
interface Done {
  readonly what: string;
  readonly error: Error;
}

/** Records the steps of the code while one history is replayed. */
class Recorder {
  /** The steps by their keys. */
  readonly done = new Map<string, Done>();
  /**
   * The error that failed the workflow task, which is a bug in the code, and the event at which it
   * was thrown.
   */
  thrown: { readonly error: Error; readonly eventId: number } | null = null;
  private readonly keys = new StepKeys();
  private readonly stopKey: string | undefined;

  constructor(events: readonly HistoryEvent[], stopAt: number | null) {
    if (stopAt === null) return;
    this.stopKey = stepsOf(events).find(({ eventId }) => eventId >= stopAt)?.key;
  }

  /** Records a command. @returns whether a debugger should stop there */
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
 * Global name under which a bundle finds the recorder, because replayed workflows run in this
 * thread.
 */
const RECORDER = 'replayRecorder';

const SOURCE_MAP = /\/\/# sourceMappingURL=data:[^\n]*$/;

/**
 * Returns a bundle whose workflows report to the recorder. Interceptors are part of a bundle's
 * text, so this inserts one more, right before the source map, so that the map's line numbers stay
 * right.
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
  /** The text that says where the code departs from the history, or null if it fits. */
  readonly misfit: string | null;
  /** True if the code departs because of a bug: it throws an error that fails the workflow task. */
  readonly throws: boolean;
}

/**
 * Replays runs one after the other.
 * @param code the bundle of the workflows
 * @param stopAt a debugger stops at the first step at or after this event
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

/** Yields runs. Before each one, it installs a recorder for it and adds both to `begun`. */
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

/** Returns three lines: the event, the place in the code, and the SDK's reason. */
function misfitOf({ message }: Error, { events }: Run, recorder: Recorder): string {
  const { eventId, does, places } = departureOf(events, recorder);
  const event = events.find(({ id }) => id === eventId);
  const why = /message: "((?:[^"\\]|\\.)*)"/.exec(message)?.[1] ?? message;
  return [
    `does not fit at event ${eventId}: ${event && titleOf(event, event)}`,
    `  the code ${[does, ...siteOf(places)].join(', ')}`,
    // Cuts off the protocol messages that follow.
    `  ${why.replace(/, version: 0, .*/, '')}`,
  ].join('\n');
}

/** The first difference between the code and a history. */
interface Departure {
  readonly eventId: number | undefined;
  /** The code's behavior there, in words. */
  readonly does: string;
  /** Places to show, best first. `what` is null for the place of the difference itself. */
  readonly places: readonly { readonly what: string | null; readonly error: Error }[];
}

/** Finds the error that the code threw, or the first step that differs. */
function departureOf(events: readonly HistoryEvent[], { done, thrown }: Recorder): Departure {
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
    // Shows the last recorded step, where the code stopped.
    return { eventId: first?.eventId, does: 'does not do that', places: latestFirst };
  }
  // Falls back to the step before, because the end of a workflow has no line.
  const before = steps.slice(0, at).flatMap(({ key }) => done.get(key) ?? []);
  const places = [{ what: null, error: step.error }, ...before.reverse()];
  return { eventId: first?.eventId, does: `does ${step.what}`, places };
}

/** Returns the first place that has lines of workflow code, in words, or an empty list. */
function siteOf(places: Departure['places']): string[] {
  for (const { what, error } of places) {
    const lines = linesOf(error.stack);
    if (lines.length === 0) continue;
    const at = `at ${lines.join(' < ')}`;
    return what === null ? [at] : [`after ${what}`, at];
  }
  return [];
}

/** Returns the lines of workflow code in a stack, innermost first: `workflows/batch.ts:93`. */
function linesOf(stack = ''): string[] {
  const frames = [
    ...stack.matchAll(/\((?![^)]*\/node_modules\/)[^)]*?([\w-]+\/[\w.-]+\.ts:[0-9]+):[0-9]+\)/g),
  ];
  return [...new Set(frames.map(([, line = '']) => line))];
}
