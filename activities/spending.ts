import type { Database } from '../db/connection/client.ts';
import {
  readLookupSpending,
  readYields,
  type VendorYield,
} from '../db/lookups/spending.ts';
import { recordSkipped } from '../db/lookups/vendor-attempts.ts';
import type { EmployerKind } from '../db/words.ts';
import { orderByCost } from './vendors/order.ts';
import type { Subject, Vendor } from './vendors/vendor.ts';

// Decides in which order vendors are called, and when a lookup has cost enough.

/** The operator's settings for spending on vendors. */
export interface SpendingSettings {
  /** True to call vendors by their measured cost per returned address, cheapest first. */
  readonly isAuto: boolean;
  /** The most that one lookup may spend on vendors, in dollars. Null for no limit. */
  readonly maxPricePerLookup: number | null;
}

/** A vendor with the price of its credit; null if the operator has not set it. */
interface PricedSource {
  readonly vendor: Pick<Vendor, 'id' | 'cost'>;
  readonly dollarsPerCredit: number | null;
}

/** The measured costs are read again after this time. */
const KNOWN_MS = 60_000;

export type Spending = ReturnType<typeof createSpending>;

/** Returns the decisions about spending of one worker. */
export function createSpending(
  db: Database,
  { isAuto, maxPricePerLookup }: SpendingSettings,
) {
  let yields: Promise<VendorYield[]> | null = null;
  let readAt = 0;
  const measured = () => {
    if (yields === null || Date.now() - readAt > KNOWN_MS) {
      readAt = Date.now();
      yields = readYields(db);
      // A failed read is repeated by the next lookup.
      yields.catch(() => {
        yields = null;
      });
    }
    return yields;
  };
  return {
    /**
     * Returns the vendors in the order in which a lookup calls them.
     * @param sources in the order of the configuration
     */
    async arrange<T extends PricedSource>(
      sources: readonly T[],
      subject: Subject,
      lookupId: string,
    ): Promise<readonly T[]> {
      if (!isAuto) return sources;
      const { requestedType } = subject;
      const priced = sources.map((source) => {
        const { id } = source.vendor;
        const credits = source.vendor.cost(requestedType);
        return { id, source, credits, dollarsPerCredit: source.dollarsPerCredit ?? 0 };
      });
      const situation = { requestedType, employer: employerKind(subject) };
      const ordered = orderByCost(priced, await measured(), situation, seedOf(lookupId));
      return ordered.map(({ source }) => source);
    },

    /**
     * Skips a vendor if its call could cost more than the lookup may still spend, and records that.
     * A vendor that has a job of the lookup or has responded is never skipped, because it is not
     * paid again.
     * @returns true if the vendor is skipped
     */
    async skipIfTooExpensive(
      requestId: string,
      { vendor }: PricedSource,
      sources: readonly PricedSource[],
    ): Promise<boolean> {
      if (maxPricePerLookup === null) return false;
      const spending = await readLookupSpending(db, requestId);
      if (spending === null) return false;
      const { lookupId, requestedType } = spending;
      const called = new Map(Object.entries(spending.vendors));
      if (called.get(vendor.id)?.isPaid) return false;
      const dollars = sources.map((source) => {
        const { id } = source.vendor;
        const next = id === vendor.id ? vendor.cost(requestedType) : 0;
        const credits = (called.get(id)?.credits ?? 0) + next;
        return credits * (source.dollarsPerCredit ?? 0);
      });
      if (dollars.reduce((sum, one) => sum + one, 0) <= maxPricePerLookup) {
        return false;
      }
      const obstacle = 'max_price_per_lookup';
      await recordSkipped(db, requestId, lookupId, [{ vendor: vendor.id, obstacle }]);
      return true;
    },
  };
}

/** Returns what we know of the likeliest employer. */
export function employerKind({
  organization,
}: Pick<Subject, 'organization'>): EmployerKind {
  if (organization?.domain) return 'domain';
  return organization?.name ? 'name' : 'unknown';
}

/** Returns a number that is always the same for a lookup. The end of its id is random. */
function seedOf(lookupId: string): number {
  return Number.parseInt(lookupId.slice(-4), 36);
}
