import { notInArray, sql } from 'drizzle-orm';
import { type Database, run, transaction } from '../connection/client.ts';
import { sourcePrices } from '../schema.ts';
import type { EmployerKind, RequestedType } from '../words.ts';

// The cost of sources, and the results that they return for it.

/**
 * Stores the prices of the sources' credits, so that the operator's reports can show dollars. All
 * workers have the same configuration, so each stores the same rows.
 * @param prices dollars per credit, by source. Sources without a known price are left out
 */
export async function storePrices(
  db: Database,
  prices: ReadonlyMap<string, number>,
): Promise<void> {
  const rows = [...prices].map(([source, dollars]) => ({ source, dollars }));
  const sources = [...prices.keys()];
  await transaction(db, async (tx) => {
    await tx.delete(sourcePrices).where(notInArray(sourcePrices.source, sources));
    if (rows.length === 0) return;
    await tx
      .insert(sourcePrices)
      .values(rows)
      .onConflictDoUpdate({
        target: sourcePrices.source,
        set: { dollars: sql`excluded.dollars` },
      });
  });
}

/** The results and the cost of a vendor for one requested type and kind of employer. */
export interface VendorYield {
  readonly vendor: string;
  readonly requestedType: RequestedType;
  readonly employer: EmployerKind;
  /** Finished calls with a response of the vendor. */
  readonly calls: number;
  /** Calls that found an address which a client received. */
  readonly returned: number;
  /** The cost of the calls, in the vendor's credits. */
  readonly credits: number;
}

/**
 * The newest calls that are counted. More would slow the query, and the share of a vendor's hits
 * hardly changes with more.
 */
const COUNTED = 20_000;

/** Reads what vendors returned and cost in their newest calls, within the last 30 days. */
export async function readYields(db: Database): Promise<VendorYield[]> {
  return await run<VendorYield>(db)`
    select a.vendor,
           l.requested_type as "requestedType",
           l.employer,
           count(*)::int as calls,
           sum(a.returned::int)::int as returned,
           sum(a.credits)::float8 as credits
      from (
        select lookup_id, vendor, returned, credits
          from vendor_attempts
         where started_at > now() - interval '30 days' and state in ('found', 'miss')
         order by started_at desc
         limit ${COUNTED}) a
      join lookups l on l.id = a.lookup_id
     where l.employer is not null
     group by 1, 2, 3`;
}

/** The spending of a lookup at one vendor. */
export interface VendorSpending {
  /** The credits that it has spent or reserved. */
  readonly credits: number;
  /** True if the vendor has a job of the lookup or has responded, so it is not paid again. */
  readonly isPaid: boolean;
}

/** The spending of a lookup so far. */
export interface LookupSpending {
  readonly lookupId: string;
  readonly requestedType: RequestedType;
  /** By vendor that the lookup has called. */
  readonly vendors: Readonly<Record<string, VendorSpending>>;
}

/** Reads what the lookup of a request has spent. Null if the request has no lookup yet. */
export async function readLookupSpending(
  db: Database,
  requestId: string,
): Promise<LookupSpending | null> {
  const [spending = null] = await run<LookupSpending>(db)`
    select l.id as "lookupId",
           l.requested_type as "requestedType",
           (select coalesce(json_object_agg(vendor, spending), '{}')
              from (
                select vendor,
                       json_build_object(
                         'credits', sum(credits)::float8,
                         'isPaid', bool_or(state in ('submitting', 'pending', 'found', 'miss')))
                         as spending
                  from vendor_attempts
                 where lookup_id = l.id and state <> 'skip'
                 group by vendor) a) as vendors
      from requests r
      join lookups l on l.id = r.lookup_id
     where r.id = ${requestId}`;
  return spending;
}
