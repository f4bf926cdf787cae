import { createHash } from 'node:crypto';
import { orderByCost } from '../../activities/vendors/order.ts';
import type { VendorYield } from '../../db/lookups/spending.ts';
import { EMPLOYER_KINDS, type EmployerKind } from '../../db/words.ts';

// Simulates what lookups cost with different vendors. Draws depend only on names, so that every run
// is the same, and every order of the vendors meets the same people.

/**
 * The prices are those of the vendors' small plans in November 2026, divided by their credits. The
 * shares of people for whom a vendor has an address are assumptions, by kind of employer.
 */
const MARKET = [
  {
    ...{ id: 'rocketreach', dollarsPerCredit: 0.3, credits: 1 },
    shares: { domain: 0.5, name: 0.5, unknown: 0.45 },
  },
  {
    ...{ id: 'fullenrich', dollarsPerCredit: 0.058, credits: 1 },
    shares: { domain: 0.45, name: 0.3, unknown: 0 },
  },
  {
    ...{ id: 'prospeo', dollarsPerCredit: 0.039, credits: 1 },
    shares: { domain: 0.3, name: 0.15, unknown: 0 },
  },
  {
    ...{ id: 'hunter', dollarsPerCredit: 0.068, credits: 1 },
    shares: { domain: 0.3, name: 0.1, unknown: 0 },
  },
];
/** The share of the paid addresses that pass our checks. */
const PASSES = 0.85;
/** The price of one check by a verifier. */
const CHECK_DOLLARS = 0.008;
const RUNS = 20;
const PEOPLE = 1000;

/** By default, all vendors in the default order. */
export interface Simulated {
  readonly ids?: readonly string[];
  readonly isAuto?: boolean;
}

/** Returns a number from 0 to 1 that is always the same for a name. */
function draw(name: string): number {
  return createHash('sha256').update(name).digest().readUInt32BE() / 2 ** 32;
}

/**
 * Looks up 20 times 1,000 invented people, of whom a third each has an employer with a known
 * domain, with a known name, and without both.
 * @returns the percent of people whose address is returned, the dollars per returned address, and
 * the checks by a verifier per person
 */
export function simulate({
  ids = MARKET.map(({ id }) => id),
  isAuto = false,
}: Simulated) {
  const vendors = MARKET.filter(({ id }) => ids.includes(id));
  let dollars = 0;
  let returned = 0;
  let checks = 0;
  for (let run = 0; run < RUNS; run += 1) {
    const yields = new Map<string, Measured>();
    for (let person = 0; person < PEOPLE; person += 1) {
      const found = lookUp(vendors, isAuto, yields, run, person);
      dollars += found.dollars;
      checks += found.checks;
      if (found.isReturned) returned += 1;
    }
  }
  return {
    share: (returned / RUNS / PEOPLE) * 100,
    dollars: dollars / returned,
    checks: checks / RUNS / PEOPLE,
  };
}

interface Found {
  readonly dollars: number;
  readonly checks: number;
  readonly isReturned: boolean;
}

type Measured = { -readonly [key in keyof VendorYield]: VendorYield[key] };

/** Calls vendors until one has an address that passes. */
function lookUp(
  vendors: typeof MARKET,
  isAuto: boolean,
  yields: Map<string, Measured>,
  run: number,
  person: number,
): Found {
  const name = `${run} ${person}`;
  const kind = Math.floor(draw(`${name} employer`) * EMPLOYER_KINDS.length);
  const employer: EmployerKind = EMPLOYER_KINDS[kind] ?? 'unknown';
  const situation = { requestedType: 'professional', employer } as const;
  const callable = vendors.filter(({ shares }) => shares[employer] > 0);
  let ordered = callable;
  if (isAuto) ordered = orderByCost(callable, [...yields.values()], situation, person);
  let dollars = 0;
  let checks = 0;
  for (const { id, dollarsPerCredit, shares } of ordered) {
    const key = `${id} ${employer}`;
    const none = { vendor: id, calls: 0, returned: 0, credits: 0, ...situation };
    const measured = yields.get(key) ?? none;
    yields.set(key, measured);
    measured.calls += 1;
    if (draw(`${name} ${id}`) >= shares[employer]) continue;
    measured.credits += 1;
    dollars += dollarsPerCredit + CHECK_DOLLARS;
    checks += 1;
    if (draw(`${name} ${id} passes`) >= PASSES) continue;
    measured.returned += 1;
    return { dollars, checks, isReturned: true };
  }
  return { dollars, checks, isReturned: false };
}
