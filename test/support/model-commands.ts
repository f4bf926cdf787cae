import fc from 'fast-check';
import type { EmailType, WantedType } from '../../db/words.ts';
import type { Call, ModelState, RequestName } from './model.ts';

// What clients may do, as fast-check draws it. A drawn call names nothing that exists; `resolve` does, once the
// state is known: the third open request, the newest key.

export type Wish =
  | {
      readonly kind: 'submit';
      readonly organization: number;
      readonly wantedType: WantedType;
      readonly npis: readonly number[];
      readonly idempotencyKey: string | null;
      readonly withOldKey: boolean;
    }
  | { readonly kind: 'repeat'; readonly pick: number }
  | { readonly kind: 'begin'; readonly pick: number }
  | {
      readonly kind: 'settle';
      readonly pick: number;
      readonly end: 'answered' | 'failed';
      readonly open: boolean;
    }
  | { readonly kind: 'store'; readonly npi: number; readonly emailType: EmailType; readonly days: number }
  | { readonly kind: 'find'; readonly pick: number; readonly emailType: EmailType }
  | { readonly kind: 'grant' | 'adjust'; readonly organization: number; readonly amount: number }
  | { readonly kind: 'rotate'; readonly organization: number };

export const ORGANIZATIONS = 2;
export const NPIS = 3;

const DAY = 86_400_000;

const organization = fc.nat({ max: ORGANIZATIONS - 1 });
const npi = fc.nat({ max: NPIS - 1 });
const pick = fc.nat({ max: 99 });
const end = fc.oneof(
  { weight: 3, arbitrary: fc.constant('answered' as const) },
  fc.constant('failed' as const),
);

const emailType = fc.constantFrom('professional' as const, 'personal' as const);

export const wish: fc.Arbitrary<Wish> = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({
      kind: fc.constant('submit' as const),
      organization,
      wantedType: fc.constantFrom('any', 'any', 'professional', 'personal'),
      npis: fc.oneof(
        fc.array(npi, { minLength: 1, maxLength: 1 }),
        fc.array(npi, { minLength: 1, maxLength: 5 }),
      ),
      idempotencyKey: fc.constantFrom(null, null, 'a', 'b'),
      withOldKey: fc.oneof({ weight: 9, arbitrary: fc.constant(false) }, fc.constant(true)),
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
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('find' as const), pick, emailType }) },
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
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('rotate' as const), organization }) },
);

/** Makes a call of a wish; null where there is nothing yet that it could be about. */
export function resolve(drawn: Wish, model: ModelState, npis: readonly string[], name: string): Call | null {
  switch (drawn.kind) {
    case 'submit': {
      const { kind, organization: index, wantedType, idempotencyKey } = drawn;
      const key = drawn.withOldKey ? `key ${index}` : (model.organizations[index]?.keys.at(-1) ?? '');
      const submittedAs = drawn.npis.length === 1 ? 'single' : 'bulk';
      const chosen = drawn.npis.map((each) => npis[each] ?? '');
      return { name, kind, organization: index, key, submittedAs, wantedType, npis: chosen, idempotencyKey };
    }
    case 'repeat': {
      const earlier = choose(model.repeatable, drawn.pick);
      return (
        earlier && { ...earlier, key: model.organizations[earlier.organization]?.keys.at(-1) ?? '', name }
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

/** An address that is named after its age: no two of one type are equally new. */
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

/** All requests, or the open ones. */
export function requestsOf({ batches }: ModelState, openOnly: boolean): RequestName[] {
  return Object.entries(batches).flatMap(([batch, { requests }]) =>
    requests.flatMap(({ status }, position) =>
      openOnly && status !== 'accepted' && status !== 'in-progress' ? [] : [{ batch, position }],
    ),
  );
}

function choose<T>(from: readonly T[], pick: number): T | null {
  return from[pick % from.length] ?? null;
}
