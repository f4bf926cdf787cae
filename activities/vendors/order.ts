import type { VendorYield } from '../../db/lookups/spending.ts';
import type { EmployerKind, RequestedType } from '../../db/words.ts';

// Orders vendors by what a returned address costs us. If vendors are called one after another until
// one finds the address, the cheapest order is by cost per call divided by the probability of a
// hit, which is the same as the cost per returned address. We measure it as the dollars spent
// divided by the addresses returned, for each requested type and kind of employer, because a vendor
// that searches by domain rarely finds people whose domain is unknown.

/** A vendor that can be called for a lookup. */
export interface PricedVendor {
  readonly id: string;
  readonly dollarsPerCredit: number;
  /** The most that one call costs, in the vendor's credits. */
  readonly credits: number;
}

/** The facts on which a vendor's yield depends. */
export interface Situation {
  readonly requestedType: RequestedType;
  readonly employer: EmployerKind;
}

/**
 * Every vendor starts as if it had already returned this many addresses for its full price. So a few
 * lucky or unlucky calls do not change the order.
 */
const PRIOR_RETURNED = 5;
/**
 * One lookup of this many starts with the vendor that has the fewest calls. Otherwise a vendor that
 * was unlucky, or has improved, would never be measured again.
 */
const EXPLORED = 20;

/**
 * Returns the vendors in the order in which a lookup calls them, cheapest first.
 * @param vendors in the default order, which decides between equal costs
 * @param seed a whole number that is always the same for a lookup, so that a repeated call has the
 * same result
 */
export function orderByCost<T extends PricedVendor>(
  vendors: readonly T[],
  yields: readonly VendorYield[],
  situation: Situation,
  seed: number,
): T[] {
  const costs = new Map(
    vendors.map((one) => [one.id, expectedCost(one, yieldOf(one, yields, situation))]),
  );
  const cost = ({ id }: T) => costs.get(id) ?? 0;
  const ordered = vendors.toSorted((one, other) => cost(one) - cost(other));
  if (seed % EXPLORED !== 0) return ordered;
  const calls = (one: T) => yieldOf(one, yields, situation)?.calls ?? 0;
  const paid = ordered.filter((one) => cost(one) > 0);
  const [explored] = paid.toSorted((one, other) => calls(one) - calls(other));
  if (explored === undefined) return ordered;
  const others = ordered.filter((one) => one !== explored);
  const free = others.filter((one) => cost(one) === 0);
  return [...free, explored, ...others.filter((one) => cost(one) > 0)];
}

function yieldOf(
  { id }: PricedVendor,
  yields: readonly VendorYield[],
  { requestedType, employer }: Situation,
): VendorYield | undefined {
  return yields.find(
    (one) =>
      one.vendor === id &&
      one.requestedType === requestedType &&
      one.employer === employer,
  );
}

/** Returns the dollars per returned address. */
function expectedCost(
  { dollarsPerCredit, credits }: PricedVendor,
  measured: VendorYield | undefined,
): number {
  const spent = (measured?.credits ?? 0) + PRIOR_RETURNED * credits;
  const returned = (measured?.returned ?? 0) + PRIOR_RETURNED;
  return (dollarsPerCredit * spent) / returned;
}
