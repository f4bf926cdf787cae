import { sql } from 'drizzle-orm';
import { type Database, run, snapshot } from '../client.ts';

/** The parts of a usage report: requests by result, then credits by kind of movement. */
const PARTS = {
  /** Requests that were charged, by requested type, which determines the price. */
  foundAny: 'found any',
  foundProfessional: 'found professional',
  foundPersonal: 'found personal',
  /**
   * Requests with an email that was free, because the organization had paid for this result before.
   */
  replayed: 'replayed',
  notFound: 'not_found',
  failed: 'failed',
  charged: 'charge',
  released: 'release',
  granted: 'grant',
  /** The sum of all adjustments. Negative if they removed more credits than they added. */
  adjusted: 'adjustment',
};

export type Usage = { readonly organizationId: string; readonly name: string } & {
  readonly [Part in keyof typeof PARTS]: number;
};

/**
 * Reads the usage of a period that includes `since` but not `until`, so that consecutive periods do
 * not overlap. Credits are summed from the ledger. A charge belongs to the period in which its
 * request became final.
 * @param organizationId null for all organizations with usage, without sandboxes
 */
export async function readUsage(
  db: Database,
  organizationId: string | null,
  since: Date,
  until: Date,
): Promise<Usage[]> {
  // A report of all organizations leaves out sandboxes, and organizations without usage.
  let isCounted = sql`not is_sandbox(organization_id)`;
  let isListed = sql`h.organization_id is not null`;
  if (organizationId !== null) {
    isCounted = sql`organization_id = ${organizationId}`;
    isListed = sql`o.id = ${organizationId}`;
  }
  const from = sql`${since.toISOString()}::timestamptz`;
  const to = sql`${until.toISOString()}::timestamptz`;
  const parts = Object.entries(PARTS).map(
    ([name, what]) =>
      sql`coalesce(sum(h.n) filter (where h.what = ${what}), 0)::float8 as ${sql.identifier(name)}`,
  );
  return await snapshot(
    db,
    (tx) => run<Usage>(tx)`
      with happened as (
        select organization_id, count(*) as n,
               case when credits_used > 0 then 'found ' || requested_type
                    when replayed then 'replayed'
                    else status end as what
          from requests
         where settled_at >= ${from} and settled_at < ${to} and ${isCounted}
         group by 1, 3
        union all
        select organization_id, sum(amount), kind
          from ledger_entries
         where kind <> 'hold' and created_at >= ${from} and created_at < ${to} and ${isCounted}
         group by 1, 3
      )
      select o.id as "organizationId", o.name, ${sql.join(parts, sql`, `)}
        from organizations o
        left join happened h on h.organization_id = o.id
       where ${isListed}
       group by o.id
       order by o.name, o.id`,
  );
}
