import { type Database, run, snapshot } from '../connection/client.ts';

/** The usage of an organization: requests by result, then credits by kind of movement. */
export interface Usage {
  readonly organizationId: string;
  readonly name: string;
  /** Requests that were charged, by requested type, which determines the price. */
  readonly foundAny: number;
  readonly foundProfessional: number;
  readonly foundPersonal: number;
  /**
   * Requests with an email that was free, because the organization had paid for this result before.
   */
  readonly replayed: number;
  readonly notFound: number;
  readonly failed: number;
  readonly charged: number;
  readonly released: number;
  readonly granted: number;
  /** The sum of all adjustments. Negative if they removed more credits than they added. */
  readonly adjusted: number;
  /**
   * The cost of the requests at vendors and verifiers, in dollars, at today's prices. Counts the
   * UTC days from that of `since` to the one before that of `until`. Sources without a price are not
   * counted.
   */
  readonly sourceDollars: number;
  /** The references of the grants, such as invoice numbers, or null without references. */
  readonly references: string | null;
}

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
  const from = since.toISOString();
  const to = until.toISOString();
  return await snapshot(
    db,
    (tx) => run<Usage>(tx)`
      with happened as (
        select organization_id, count(*) as n,
               case when credits_used > 0 then 'found ' || requested_type
                    when replayed then 'replayed'
                    else status end as what
          from requests
         where settled_at >= ${from}::timestamptz and settled_at < ${to}::timestamptz
           and case when ${organizationId}::text is null then not is_sandbox(organization_id)
                    else organization_id = ${organizationId} end
         group by 1, 3
        union all
        select organization_id, sum(amount), kind
          from ledger_entries
         where kind <> 'hold'
           and created_at >= ${from}::timestamptz and created_at < ${to}::timestamptz
           and case when ${organizationId}::text is null then not is_sandbox(organization_id)
                    else organization_id = ${organizationId} end
         group by 1, 3
      ), counted as (
        select organization_id,
               sum(n) filter (where what = 'found any') as found_any,
               sum(n) filter (where what = 'found professional') as found_professional,
               sum(n) filter (where what = 'found personal') as found_personal,
               sum(n) filter (where what = 'replayed') as replayed,
               sum(n) filter (where what = 'not_found') as not_found,
               sum(n) filter (where what = 'failed') as failed,
               sum(n) filter (where what = 'charge') as charged,
               sum(n) filter (where what = 'release') as released,
               sum(n) filter (where what = 'grant') as granted,
               sum(n) filter (where what = 'adjustment') as adjusted
          from happened
         group by organization_id
      ), named as (
        select organization_id, string_agg(reference, ', ' order by id) as "references"
          from ledger_entries
         where reference is not null
           and created_at >= ${from}::timestamptz and created_at < ${to}::timestamptz
         group by organization_id
      ), spent as (
        select s.organization_id, sum(s.credits * p.dollars)::float8 as dollars
          from source_spend s join source_prices p using (source)
         where s.day >= (${from}::timestamptz at time zone 'UTC')::date
           and s.day < (${to}::timestamptz at time zone 'UTC')::date
         group by s.organization_id
      )
      select o.id as "organizationId", o.name,
             coalesce(found_any, 0)::float8 as "foundAny",
             coalesce(found_professional, 0)::float8 as "foundProfessional",
             coalesce(found_personal, 0)::float8 as "foundPersonal",
             coalesce(replayed, 0)::float8 as replayed,
             coalesce(not_found, 0)::float8 as "notFound",
             coalesce(failed, 0)::float8 as failed,
             coalesce(charged, 0)::float8 as charged,
             coalesce(released, 0)::float8 as released,
             coalesce(granted, 0)::float8 as granted,
             coalesce(adjusted, 0)::float8 as adjusted,
             coalesce(round(s.dollars::numeric, 2), 0)::float8 as "sourceDollars",
             n."references"
        from organizations o
        left join counted c on c.organization_id = o.id
        left join named n on n.organization_id = o.id
        left join spent s on s.organization_id = o.id
       where case when ${organizationId}::text is null
                  then coalesce(c.organization_id, s.organization_id) is not null
                  else o.id = ${organizationId} end
       order by o.name, o.id`,
  );
}
