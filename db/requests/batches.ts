import { sql } from 'drizzle-orm';
import { cut, type Database, type Page, run } from '../client.ts';
import type { batches } from '../schema.ts';
import type { BatchStatus } from '../words.ts';

/** Null for all. */
export interface BatchFilter {
  readonly status: BatchStatus | null;
  /** Submitted then or later. */
  readonly since: Date | null;
  /** Submitted before. */
  readonly until: Date | null;
  /** Asked for in it. */
  readonly npi: string | null;
}

type Columns =
  | 'organizationId'
  | 'submittedAs'
  | 'wantedType'
  | 'completedCount'
  | 'createdAt'
  | 'updatedAt';
type Listed = Pick<typeof batches.$inferSelect, 'status' | 'total' | Columns> & {
  readonly batchId: string;
};

/**
 * The batches of an organization, or (null, for operators) of all, the newest first.
 * @param page.after the id of the last batch of the page before
 * @returns `next`: the id to go on from, null at the end
 */
export async function listBatches(
  db: Database,
  organization: string | null,
  filter: BatchFilter,
  { after, limit }: Page,
) {
  // By numbers, because dates of the first and the last year have no common spelling.
  const moment = (at: Date | null, otherwise: string) =>
    sql`coalesce(to_timestamp(${at && at.getTime() / 1000}::float8), ${sql.raw(otherwise)})`;
  const asking = sql`select batch_id from requests where npi = ${filter.npi} and organization_id = ${organization}`;
  const last = sql`select created_at, id from batches where id = ${after} and organization_id = ${organization}`;
  const theirs = organization === null ? sql`true` : sql`organization_id = ${organization}`;
  // Of all organizations by their ids, which are in that order too. Those that ask for an NPI are
  // few: not by the index of times, through all the others.
  const byTime = filter.npi ? sql`created_at + interval '0' desc,` : sql`created_at desc,`;
  const rows = await run<Listed>(db)`
    select id as "batchId", organization_id as "organizationId", status, submitted_as as "submittedAs",
           wanted_type as "wantedType", completed_count as "completedCount", total, created_at as "createdAt",
           updated_at as "updatedAt"
      from batches
     where ${theirs}
       and created_at >= ${moment(filter.since, "'-infinity'")} and created_at < ${moment(filter.until, "'infinity'")}
       -- Written out, for the index of those in progress.
       and ${filter.status ? sql.raw(`status = '${filter.status}'`) : sql`true`}
       and ${filter.npi ? sql`id = any(array(${asking}))` : sql`true`}
       and ${after ? sql`(created_at, id) < (${last})` : sql`true`}
     order by ${organization === null ? sql`` : byTime} id desc limit ${limit + 1}`;
  const { items, last: end } = cut(rows, limit);
  return { batches: items, next: end?.batchId ?? null };
}
