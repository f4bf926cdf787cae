import type { Request } from '@hapi/hapi';
import {
  CHECK_RESULTS,
  type CheckResult,
  REQUESTED_TYPES,
  type RequestedType,
} from '../../db/words.ts';
import { MAX_CHECKED } from '../http/validation.ts';
import { type CheckDeps, checkNpis } from '../routes/check.ts';

// The free check on the pages of the console, before NPIs are submitted.

export type Totals = Readonly<Record<CheckResult, number>>;
export type Prices = Readonly<Record<RequestedType, number>>;

/** Why rows of a file or pasted NPIs are not checked. */
type Unchecked = 'duplicate' | 'kept' | 'empty';

/** The labels of the lines that count the rows of a file, or the NPIs of a pasted list. */
export const LINES: Readonly<Record<CheckResult | Unchecked, string>> = {
  lookup: 'To look up',
  free_repeat: 'Free repeat',
  organization: 'NPI of an organization, not looked up',
  deactivated: 'Deactivated NPI, not looked up',
  duplicate: 'Repeated NPI, looked up once',
  kept: 'Keeps an earlier email',
  not_an_npi: 'Mistyped or not an NPI, not looked up',
  empty: 'Without an NPI, not looked up',
};

/** Returns the lines that add up to the number of rows, without those that count nothing. */
export function summaryOf(counts: Totals & Partial<Readonly<Record<Unchecked, number>>>) {
  const kinds = Object.keys(LINES) as (keyof typeof LINES)[];
  const all = kinds.map((kind) => ({ label: LINES[kind], count: counts[kind] ?? 0 }));
  const total = all.reduce((sum, { count }) => sum + count, 0);
  return { lines: all.filter(({ count }) => count > 0), total };
}

const TYPES: Readonly<Record<RequestedType, string>> = {
  any: 'Any, professional first',
  professional: 'Professional',
  personal: 'Personal',
};

/** Returns the types of emails, each with the most that it can cost and the missing credits. */
export function choicesOf(prices: Prices, balance: number, chosen?: unknown) {
  const types = REQUESTED_TYPES.map((type) => ({
    type,
    label: TYPES[type],
    cost: prices[type],
    missing: Math.max(0, prices[type] - balance),
    isChosen: type === chosen,
  }));
  return {
    types,
    balance,
    isFree: types.every(({ cost }) => cost === 0),
    isShort: types.some(({ missing }) => missing > 0),
  };
}

/** A draft lives for a day. A repeat that is free for less than a day counts with its price. */
const AHEAD_MS = 24 * 3_600_000;

/** Sums the free checks of different NPIs, of which there may be more than one check takes. */
export async function checkAll(
  deps: CheckDeps,
  request: Request,
  npis: readonly string[],
) {
  const { organizationId } = request.app.caller;
  const { reads } = request.server.app.queues;
  const totals = zeros(CHECK_RESULTS);
  const prices = zeros(REQUESTED_TYPES);
  for (let start = 0; start < npis.length; start += MAX_CHECKED) {
    const part = npis.slice(start, start + MAX_CHECKED);
    const report = await reads.inTurn(organizationId, () =>
      checkNpis(deps, organizationId, part, AHEAD_MS),
    );
    for (const result of CHECK_RESULTS) {
      totals[result] += report.totals[result];
    }
    for (const type of REQUESTED_TYPES) {
      prices[type] += report.max_credits[type];
    }
  }
  return { totals, prices };
}

function zeros<T extends string>(names: readonly T[]) {
  return Object.fromEntries(names.map((name) => [name, 0])) as Record<T, number>;
}
