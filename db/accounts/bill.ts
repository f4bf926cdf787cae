import { type Database, moment, only, type Period, run } from '../connection/client.ts';
import type { dailyUsage, ledgerEntries } from '../schema.ts';

type Funding = Pick<
  typeof ledgerEntries.$inferSelect,
  'kind' | 'amount' | 'reference'
> & {
  /** The UTC day, such as `2026-01-05`. */
  readonly day: string;
};

/** The credits of an organization in a period: the opening ones, grants, and usage. */
export interface Bill {
  /** The credits before the period that were not used, with the held ones. */
  readonly opening: number;
  /** The credits that are held now. */
  readonly held: number;
  /** The grants and adjustments, oldest first. */
  readonly funding: readonly Funding[];
  /** The usage by day, and then by requested type. */
  readonly usage: readonly Omit<typeof dailyUsage.$inferSelect, 'organizationId'>[];
}

/**
 * Reads the bill of a period of whole UTC days in one statement, so that all values are from the same
 * moment. The charges are read from the sums of days, which have a few rows per day, because the
 * ledger can have millions. Both are equal (ARCHITECTURE.md, Invariants), except in a sandbox: its ledger
 * forgets the charges of deleted batches.
 */
export async function readBill(
  db: Database,
  organizationId: string,
  { since, until }: { readonly [End in keyof Period]: Date },
): Promise<Bill> {
  const rows = await run<Bill>(db)`
    with funding as (
      select id, kind, amount, reference, created_at
        from ledger_entries
       where organization_id = ${organizationId} and side = 'funding'
         and created_at < ${moment(until)}
    ), usage as (
      select * from daily_usage
       where organization_id = ${organizationId}
         and day < date(${moment(until)} at time zone 'UTC')
    )
    select (select coalesce(sum(amount), 0) from funding where created_at < ${moment(since)})::float8
             - (select coalesce(sum(credits_charged), 0) from usage
                 where day < date(${moment(since)} at time zone 'UTC'))::float8 as opening,
           (select held from credit_balances where organization_id = ${organizationId})::float8
             as held,
           (select coalesce(json_agg(json_build_object(
                     'day', date(created_at at time zone 'UTC'), 'kind', kind,
                     'amount', amount, 'reference', reference) order by id), '[]')
              from funding
             where created_at >= ${moment(since)}) as funding,
           (select coalesce(json_agg(json_build_object(
                     'day', day, 'requestedType', requested_type,
                     'found', found, 'replayed', replayed, 'notFound', not_found,
                     'failed', failed, 'creditsCharged', credits_charged)
                     order by day, requested_type), '[]')
              from usage
             where day >= date(${moment(since)} at time zone 'UTC')) as usage`;
  return only(rows);
}
