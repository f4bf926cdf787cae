import { Worker } from '@temporalio/worker';
import { OperatorProblem } from '../../db/errors.ts';
import commands from './commands.json' with { type: 'json' };
import { decoded, type HistoryEvent, type Run, type Said } from './history.ts';
import { titleOf } from './story.ts';

// Replays runs. The SDK finds out whether workflows do again what a history recorded, but not which
// line does something else. So each command is recorded with its stack.

/** The SDK's commands (coresdk.workflow_commands), and the events that they lead to. */
const EVENTS: Readonly<Record<string, string>> = commands;
const NAMES = new Set(Object.values(EVENTS));

/**
 * Returns a function that numbers steps. Local activities have their own numbers, because their
 * events are recorded when they end, not when they begin.
 */
function numbering() {
  let next = 0;
  return (local: number | null) => (local === null ? String(next++) : `local ${local}`);
}

type Named = string | { readonly name: string } | null | undefined;

function words(name: string, type: Named, id: string | null | undefined): string {
  return [name, typeof type === 'object' ? type?.name : type, id].filter(Boolean).join(' ');
}

/**
 * Returns the steps that the code took according to a history. Equal keys mean the same step. A
 * replayed step fits if its text is equal.
 */
function stepsOf(events: readonly HistoryEvent[]) {
  const keyOf = numbering();
  return events.flatMap(({ id: eventId, name, details, searchAttributes, ...said }) => {
    // Skips the search attribute that the server writes next to the marker of a patch.
    if (!NAMES.has(name) || searchAttributes?.indexedFields.TemporalChangeVersion) return [];
    const local = decoded(details?.data?.payloads?.[0]) as {
      seq: number;
      activity_type: string;
    } | null;
    const type = local?.activity_type ?? said.activityType ?? said.workflowType;
    const what = words(name, type, said.activityId ?? said.workflowId);
    return [{ eventId, key: keyOf(local?.seq ?? null), what }];
  });
}

/** A command in the SDK's format: its kind and its members. */
type Command = Readonly<
  Record<
    string,
    Omit<Said, 'activityType' | 'workflowType'> & { seq: number } & Record<string, Named>
  >
>;

/** Creates a recorder of what the code does while one history is replayed. */
function createRecorder(events: readonly HistoryEvent[], stopAt: number | null) {
  const keyOf = numbering();
  const stopKey = stopAt && stepsOf(events).find(({ eventId }) => eventId >= stopAt)?.key;
  return {
    done: new Map<string, { readonly what: string; readonly error: Error }>(),
    /**
     * The error that failed the workflow task, which is a bug in the code, and the event at which
     * it was thrown.
     */
    thrown: null as { readonly error: Error; readonly eventId: number } | null,
    /** Records a command. @returns whether a debugger should stop there */
    command(command: Command, error: Error): boolean {
      const [kind, said] = Object.entries(command).find(([kind]) => kind in EVENTS) ?? [];
      if (!kind || !said) return false;
      const isLocal = kind === 'scheduleLocalActivity';
      const id = isLocal ? null : (said.activityId ?? said.workflowId);
      const key = keyOf(isLocal ? said.seq : null);
      const what = words(EVENTS[kind] ?? '', said.activityType ?? said.workflowType, id);
      this.done.set(key, { what, error });
      return key === stopKey;
    },
  };
}

type Recorder = ReturnType<typeof createRecorder>;

/**
 * Global name under which a bundle finds the recorder, because replayed workflows run in this
 * thread.
 */
const RECORDER = 'replayRecorder';

/**
 * Returns a bundle whose workflows report to the recorder. Interceptors are part of a bundle's
 * text, so this inserts one more, right before the source map, so that the map's line numbers stay
 * right.
 */
function withRecorder(code: string): string {
  if (!SOURCE_MAP.test(code))
    throw new OperatorProblem(
      'this file is not a bundle of workflows: "npm run bundle -- FILE" writes one',
    );
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

const SOURCE_MAP = /\/\/# sourceMappingURL=data:[^\n]*$/;

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
  const begun: { run: Run; recorder: Recorder }[] = [];
  async function* histories() {
    for await (const run of runs) {
      const recorder = createRecorder(run.events, stopAt);
      Object.assign(globalThis, { [RECORDER]: recorder });
      begun.push({ run, recorder });
      yield run;
    }
  }
  const results = Worker.runReplayHistories(
    { workflowBundle: { code: withRecorder(code) } },
    histories(),
  );
  for await (const { error } of results) {
    const [one] = begun.splice(0);
    if (!one) continue;
    const misfit = error ? misfitOf(error, one.run, one.recorder) : null;
    yield { run: one.run, misfit, throws: misfit !== null && one.recorder.thrown !== null };
  }
}

function misfitOf({ message }: Error, { events }: Run, { done, thrown }: Recorder): string {
  const why = /message: "((?:[^"\\]|\\.)*)"/.exec(message)?.[1] ?? message;
  const steps = stepsOf(events);
  const at = thrown ? -1 : steps.findIndex(({ key, what }) => done.get(key)?.what !== what);
  const first = steps[at];
  const step = first && done.get(first.key);
  // The end of a workflow has no line, so this shows the step before it. If the code lacks a step,
  // it shows the last recorded step, where the code stopped.
  const before = step
    ? steps.slice(0, at).flatMap(({ key }) => done.get(key) ?? [])
    : [...done.values()];
  const sites = [
    { what: null, lines: linesOf((thrown ?? step)?.error.stack) },
    ...before.reverse().map(({ what, error }) => ({ what, lines: linesOf(error.stack) })),
  ];
  const site = sites.find(({ lines }) => lines.length > 0);
  const eventId = first?.eventId ?? thrown?.eventId;
  const event = events.find(({ id }) => id === eventId);
  const code = thrown
    ? `throws ${thrown.error.name}`
    : step
      ? `does ${step.what}`
      : 'does not do that';
  const after = site?.what && `after ${site.what}`;
  return [
    `does not fit at event ${eventId}: ${event && titleOf(event, event)}`,
    `  the code ${[code, after, site && `at ${site.lines.join(' < ')}`].filter(Boolean).join(', ')}`,
    // Cuts off the protocol messages that follow.
    `  ${why.replace(/, version: 0, .*/, '')}`,
  ].join('\n');
}

/** Returns the lines of workflow code in a stack, innermost first: `workflows/batch.ts:93`. */
function linesOf(stack = ''): string[] {
  const frames = [
    ...stack.matchAll(/\((?![^)]*\/node_modules\/)[^)]*?([\w-]+\/[\w.-]+\.ts:[0-9]+):[0-9]+\)/g),
  ];
  return [...new Set(frames.map(([, line = '']) => line))];
}
