import { Worker } from '@temporalio/worker';
import { OperatorProblem } from '../../db/errors.ts';
import commands from './commands.json' with { type: 'json' };
import { decoded, type HistoryEvent, type Run, type Said } from './history.ts';
import { titleOf } from './story.ts';

// Replaying runs: the SDK says whether workflows would do again what a history says they did. It does not say which line
// would do otherwise, so each command is noted with the stack that gave it.

/** The commands of the SDK (coresdk.workflow_commands), and the events that they come to. */
const EVENTS: Readonly<Record<string, string>> = commands;
const NAMES = new Set(Object.values(EVENTS));

/** Steps have numbers, but for local activities: their events stand where they ended, not where they began. */
function numbering() {
  let next = 0;
  return (local: number | null) => (local === null ? String(next++) : `local ${local}`);
}

type Named = string | { readonly name: string } | null | undefined;

function words(name: string, type: Named, id: string | null | undefined): string {
  return [name, typeof type === 'object' ? type?.name : type, id].filter(Boolean).join(' ');
}

/** What the code has done, by a history: equal keys are the same step, and fit each other if they are of equal words. */
function stepsOf(events: readonly HistoryEvent[]) {
  const keyOf = numbering();
  return events.flatMap(({ id: eventId, name, details, searchAttributes, ...said }) => {
    // The server's, beside the marker of a patch.
    if (!NAMES.has(name) || searchAttributes?.indexedFields.TemporalChangeVersion) return [];
    const local = decoded(details?.data?.payloads?.[0]) as { seq: number; activity_type: string } | null;
    const type = local?.activity_type ?? said.activityType ?? said.workflowType;
    const what = words(name, type, said.activityId ?? said.workflowId);
    return [{ eventId, key: keyOf(local?.seq ?? null), what }];
  });
}

/** One command as the SDK has it: its kind, and what it says. */
type Command = Readonly<
  Record<string, Omit<Said, 'activityType' | 'workflowType'> & { seq: number } & Record<string, Named>>
>;

/** Notes what the code does while one history is replayed. */
function createRecorder(events: readonly HistoryEvent[], stopAt: number | null) {
  const keyOf = numbering();
  const stopKey = stopAt && stepsOf(events).find(({ eventId }) => eventId >= stopAt)?.key;
  return {
    done: new Map<string, { readonly what: string; readonly error: Error }>(),
    /** The bug that the code has run into, and by which event: an error that fails a workflow task. */
    thrown: null as { readonly error: Error; readonly eventId: number } | null,
    /** @returns whether a debugger is to stop there */
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

/** Where the code of a bundle finds the recorder: workflows that are replayed run in this thread. */
const RECORDER = 'replayRecorder';

/**
 * A bundle whose workflows tell the recorder. It is a text that has its interceptors in it, so one more is written into
 * it: in front of its source map, which says where the lines are.
 */
function withRecorder(code: string): string {
  if (!SOURCE_MAP.test(code))
    throw new OperatorProblem('this is no bundle of workflows: "npm run bundle -- FILE" makes one');
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
  /** Where the code leaves the history; null if it does not. */
  readonly misfit: string | null;
  /** Whether the code leaves it because of a bug: it throws an error that fails the workflow task. */
  readonly throws: boolean;
}

/**
 * Replays runs, one after the other.
 * @param code the bundle of the workflows. @throws {OperatorProblem} if it is none
 * @param stopAt a debugger stops at the first that the code does at this event or after it
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
  const results = Worker.runReplayHistories({ workflowBundle: { code: withRecorder(code) } }, histories());
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
  // An end has no line of its own: what came before it has. What is not there, the last step has kept away.
  const before = step ? steps.slice(0, at).flatMap(({ key }) => done.get(key) ?? []) : [...done.values()];
  const sites = [
    { what: null, lines: linesOf((thrown ?? step)?.error.stack) },
    ...before.reverse().map(({ what, error }) => ({ what, lines: linesOf(error.stack) })),
  ];
  const site = sites.find(({ lines }) => lines.length > 0);
  const eventId = first?.eventId ?? thrown?.eventId;
  const event = events.find(({ id }) => id === eventId);
  const code = thrown ? `throws ${thrown.error.name}` : step ? `does ${step.what}` : 'does not do that';
  const after = site?.what && `after ${site.what}`;
  return [
    `does not fit at event ${eventId}: ${event && titleOf(event, event)}`,
    `  the code ${[code, after, site && `at ${site.lines.join(' < ')}`].filter(Boolean).join(', ')}`,
    // What follows are whole messages of the protocol.
    `  ${why.replace(/, version: 0, .*/, '')}`,
  ].join('\n');
}

/** The lines of workflow code in a stack, innermost first: `workflows/batch.ts:93`. */
function linesOf(stack = ''): string[] {
  const frames = [
    ...stack.matchAll(/\((?![^)]*\/node_modules\/)[^)]*?([\w-]+\/[\w.-]+\.ts:[0-9]+):[0-9]+\)/g),
  ];
  return [...new Set(frames.map(([, line = '']) => line))];
}
