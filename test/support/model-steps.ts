import fc from 'fast-check';
import { applyCall, type Call, type ModelState } from './model.ts';
import { type ModelClient, passTime, performCall, viewDatabase } from './model-client.ts';
import { NPIS, resolve, type Wish, wish } from './model-commands.ts';
import { boundaries, viewModel } from './model-view.ts';

const DAY = 86_400_000;
const MINUTE = 60_000;
/** Around every window and deadline; odd, so that sums seldom meet one. */
const JUMPS_MS = [17 * MINUTE, 311 * MINUTE, DAY + 7 * MINUTE, 9 * DAY, 22 * DAY + MINUTE, 31 * DAY];
/** While a sequence runs the real clock goes on too; so much of it does not matter. */
const MARGIN_MS = 5 * MINUTE;

const NO_NPIS = Array.from({ length: NPIS }, () => '');

/** How many steps and calls were carried out, over all sequences. */
export interface Counts {
  sequences: number;
  steps: number;
  calls: number;
  /** How often callers were told what, names and numbers left out. */
  told: Record<string, number>;
}

export function count({ told }: Counts, what: string): void {
  told[what] = (told[what] ?? 0) + 1;
}

/** Sequences of steps: one call, several at once, one several times at once, or time passing. */
export function modelSteps({
  counts,
  afterStep,
  maxSteps,
  replayPath,
}: {
  readonly counts: Counts;
  /** Throws where it finds something wrong. */
  readonly afterStep: (client: ModelClient) => Promise<void>;
  readonly maxSteps: number;
  readonly replayPath: string | undefined;
}) {
  const together = (wishes: readonly Wish[]) => callStep(wishes, counts, afterStep);
  const one = wish.map((drawn) => together([drawn]));
  const several = fc.array(wish, { minLength: 2, maxLength: 4 }).map(together);
  const twins = fc
    .tuple(wish, fc.integer({ min: 2, max: 4 }))
    .map(([drawn, times]) => together(Array.from({ length: times }, () => drawn)));
  const time = fc.constantFrom(...JUMPS_MS).map((ms) => timeStep(ms, counts, afterStep));
  return fc.commands([one, one, several, several, twins, time], {
    maxCommands: maxSteps,
    size: 'max',
    ...(replayPath === undefined ? {} : { replayPath }),
  });
}

type Step = fc.AsyncCommand<ModelState, ModelClient>;
type AfterStep = (client: ModelClient) => Promise<void>;

/** Calls at once. What their callers are told, and the state after, must be what some order of them explains. */
function callStep(wishes: readonly Wish[], counts: Counts, afterStep: AfterStep): Step {
  return {
    check: (model) => wishes.some((drawn) => resolve(drawn, model, NO_NPIS, '') !== null),
    async run(model, client) {
      const calls = wishes
        .map((drawn, index) => resolve(drawn, model, client.npis, `${model.calls + index}`))
        .filter((call) => call !== null);
      const performed = await Promise.all(calls.map((call) => performCall(client, call)));
      const told = performed.map((describe) => describe());
      const seen = await viewDatabase(client);
      const next = explain(model, calls, told, seen.join('\n'));
      if (!next) throw new Error(disagreement(model, calls, told, seen));
      Object.assign(model, next, { calls: model.calls + wishes.length });
      counts.steps += 1;
      counts.calls += calls.length;
      for (const [index, text] of told.entries()) {
        count(counts, `${calls[index]?.kind} ${text.replace(/ [0-9].*/, '')}`);
      }
      await afterStep(client);
    },
    toString: () => JSON.stringify(wishes),
  };
}

function timeStep(ms: number, counts: Counts, afterStep: AfterStep): Step {
  return {
    check: (model) => boundaries(model).every((at) => Math.abs(at - model.now - ms) > MARGIN_MS),
    async run(model, client) {
      await passTime(client, ms);
      model.now += ms;
      counts.steps += 1;
      counts.calls += 1;
      await afterStep(client);
    },
    toString: () => `time +${ms / MINUTE} min`,
  };
}

/** The model after the calls, in the first order in which it tells callers and holds what was seen. */
function explain(
  model: ModelState,
  calls: readonly Call[],
  told: readonly string[],
  seen: string,
): ModelState | null {
  if (calls.length === 0) return viewModel(model).join('\n') === seen ? model : null;
  for (const [index, call] of calls.entries()) {
    const next = structuredClone(model);
    if (applyCall(next, call) !== told[index]) continue;
    const found = explain(next, calls.toSpliced(index, 1), told.toSpliced(index, 1), seen);
    if (found) return found;
  }
  return null;
}

function disagreement(
  model: ModelState,
  calls: readonly Call[],
  told: readonly string[],
  seen: readonly string[],
): string {
  const expected = structuredClone(model);
  const lines = calls.map((call, index) => {
    return `${JSON.stringify(call)} was told "${told[index]}", the model says "${applyCall(expected, call)}"`;
  });
  const view = viewModel(expected);
  return [
    'no order of these calls explains what was seen:',
    ...lines,
    'only in the database:',
    ...seen.filter((line) => !view.includes(line)),
    'only in the model:',
    ...view.filter((line) => !seen.includes(line)),
  ].join('\n  ');
}
