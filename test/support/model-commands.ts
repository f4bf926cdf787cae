import fc from 'fast-check';
import type { EmailType, RequestedType } from '../../db/words.ts';
import { applyCall, type Call, type ModelState, type RequestName } from './model.ts';
import {
  boundaries,
  type ModelClient,
  passTime,
  performCall,
  viewDatabase,
  viewModel,
} from './model-client.ts';

// The calls of clients, as fast-check draws them. A drawn call names no existing object. `resolve`
// selects one when the state is known, such as the third open request or the newest key.

export type Wish =
  | {
      readonly kind: 'submit';
      readonly organization: number;
      readonly requestedType: RequestedType;
      readonly npis: readonly number[];
      readonly idempotencyKey: string | null;
      readonly withOldKey: boolean;
    }
  | { readonly kind: 'repeat'; readonly pick: number }
  | { readonly kind: 'begin'; readonly pick: number }
  | {
      readonly kind: 'settle';
      readonly pick: number;
      readonly end: 'finished' | 'failed';
      readonly open: boolean;
    }
  | {
      readonly kind: 'store';
      readonly npi: number;
      readonly emailType: EmailType;
      readonly days: number;
    }
  | { readonly kind: 'find'; readonly pick: number; readonly emailType: EmailType }
  | {
      readonly kind: 'grant' | 'adjust';
      readonly organization: number;
      readonly amount: number;
    }
  | { readonly kind: 'rotate'; readonly organization: number };

export const ORGANIZATIONS = 2;
export const NPIS = 3;

const DAY = 86_400_000;

const organization = fc.nat({ max: ORGANIZATIONS - 1 });
const npi = fc.nat({ max: NPIS - 1 });
const pick = fc.nat({ max: 99 });
const end = fc.oneof(
  { weight: 3, arbitrary: fc.constant('finished' as const) },
  fc.constant('failed' as const),
);

const emailType = fc.constantFrom('professional' as const, 'personal' as const);

export const wish: fc.Arbitrary<Wish> = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({
      kind: fc.constant('submit' as const),
      organization,
      requestedType: fc.constantFrom('any', 'any', 'professional', 'personal'),
      npis: fc.oneof(
        fc.array(npi, { minLength: 1, maxLength: 1 }),
        fc.array(npi, { minLength: 1, maxLength: 5 }),
      ),
      idempotencyKey: fc.constantFrom(null, null, 'a', 'b'),
      withOldKey: fc.oneof(
        { weight: 9, arbitrary: fc.constant(false) },
        fc.constant(true),
      ),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('repeat' as const), pick }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('begin' as const), pick }) },
  {
    weight: 8,
    arbitrary: fc.record({
      kind: fc.constant('settle' as const),
      pick,
      end,
      open: fc.oneof({ weight: 5, arbitrary: fc.constant(true) }, fc.constant(false)),
    }),
  },
  {
    weight: 4,
    arbitrary: fc.record({ kind: fc.constant('find' as const), pick, emailType }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('store' as const),
      npi,
      emailType,
      days: fc.constantFrom(0, 0, 10, 20, 23),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant('grant' as const),
      organization,
      amount: fc.integer({ min: 1, max: 6 }),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('adjust' as const),
      organization,
      amount: fc.constantFrom(-2, -1, 1),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant('rotate' as const), organization }),
  },
);

/** Turns a wish into a call. Returns null if the state has no object for it yet. */
export function resolve(
  drawn: Wish,
  model: ModelState,
  npis: readonly string[],
  name: string,
): Call | null {
  switch (drawn.kind) {
    case 'submit': {
      const { kind, organization: index, requestedType, idempotencyKey } = drawn;
      const key = drawn.withOldKey
        ? `key ${index}`
        : (model.organizations[index]?.keys.at(-1) ?? '');
      const submittedAs = drawn.npis.length === 1 ? 'single' : 'bulk';
      const chosen = drawn.npis.map((each) => npis[each] ?? '');
      return {
        name,
        kind,
        organization: index,
        key,
        submittedAs,
        requestedType,
        npis: chosen,
        idempotencyKey,
      };
    }
    case 'repeat': {
      const earlier = choose(model.repeatable, drawn.pick);
      return (
        earlier && {
          ...earlier,
          key: model.organizations[earlier.organization]?.keys.at(-1) ?? '',
          name,
        }
      );
    }
    case 'begin': {
      const request = choose(requestsOf(model, true), drawn.pick);
      return request && { name, kind: drawn.kind, request };
    }
    case 'settle': {
      const request = choose(requestsOf(model, drawn.open), drawn.pick);
      return request && { name, kind: drawn.kind, request, end: drawn.end };
    }
    case 'store':
      return store(name, npis[drawn.npi] ?? '', drawn.emailType, drawn.days);
    case 'find': {
      const request = choose(requestsOf(model, true), drawn.pick);
      const sought = request && model.batches[request.batch]?.requests[request.position];
      return sought ? store(name, sought.npi, drawn.emailType, 0) : null;
    }
    case 'grant':
    case 'adjust':
      return { name, ...drawn };
    case 'rotate': {
      const key = model.organizations[drawn.organization]?.keys.at(-1) ?? '';
      return { name, ...drawn, key };
    }
    default:
      return drawn satisfies never;
  }
}

/**
 * Returns a call that stores an address. Its name contains its age, and no two addresses of one
 * type have the same age.
 */
function store(name: string, npi: string, type: EmailType, days: number): Call {
  return {
    name,
    kind: 'store',
    npi,
    emailType: type,
    email: `${type}.${days}@example.com`,
    ageMs: days * DAY,
  };
}

/** Returns all requests, or only the open ones. */
export function requestsOf({ batches }: ModelState, openOnly: boolean): RequestName[] {
  return Object.entries(batches).flatMap(([batch, { requests }]) =>
    requests.flatMap(({ status }, position) =>
      openOnly && status !== 'accepted' && status !== 'in-progress'
        ? []
        : [{ batch, position }],
    ),
  );
}

function choose<T>(from: readonly T[], pick: number): T | null {
  return from[pick % from.length] ?? null;
}

const MINUTE = 60_000;
/** Jumps around every window and deadline. They are odd, so that sums rarely hit one. */
const JUMPS_MS = [
  17 * MINUTE,
  311 * MINUTE,
  DAY + 7 * MINUTE,
  9 * DAY,
  22 * DAY + MINUTE,
  31 * DAY,
];
/** Milliseconds by which the real clock may advance during a sequence without changing a result. */
const MARGIN_MS = 5 * MINUTE;

const NO_NPIS = Array.from({ length: NPIS }, () => '');

/** The number of steps and calls over all sequences. */
export interface Counts {
  sequences: number;
  steps: number;
  calls: number;
  /** How often callers got each result, without names and numbers. */
  told: Record<string, number>;
}

export function count({ told }: Counts, what: string): void {
  told[what] = (told[what] ?? 0) + 1;
}

/**
 * Returns sequences of steps: one call, several at once, one several times at once, or passing
 * time.
 */
export function modelSteps({
  counts,
  afterStep,
  maxSteps,
  replayPath,
}: {
  readonly counts: Counts;
  /** Throws if it finds an error. */
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

/**
 * Performs calls at once. Some order of them must explain the callers' results and the state
 * afterwards.
 */
function callStep(wishes: readonly Wish[], counts: Counts, afterStep: AfterStep): Step {
  return {
    check: (model) => wishes.some((drawn) => resolve(drawn, model, NO_NPIS, '') !== null),
    async run(model, client) {
      const calls = wishes
        .map((drawn, index) =>
          resolve(drawn, model, client.npis, `${model.calls + index}`),
        )
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
    check: (model) =>
      boundaries(model).every((at) => Math.abs(at - model.now - ms) > MARGIN_MS),
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

/**
 * Returns the model after the calls, in the first order that explains the callers' results and the
 * observed state.
 */
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
    const found = explain(
      next,
      calls.toSpliced(index, 1),
      told.toSpliced(index, 1),
      seen,
    );
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
