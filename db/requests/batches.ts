import { sql } from 'drizzle-orm';
import { cut, type Database, type Page, run } from '../client.ts';
import type { batches } from '../schema.ts';
import type { BatchStatus } from '../words.ts';

/** The filters of a list of batches. A filter that is null matches every batch. */
export interface BatchFilter {
  readonly status: BatchStatus | null;
  /** Only batches submitted at this time or later. */
  readonly since: Date | null;
  /** Only batches submitted before this time. */
  readonly until: Date | null;
  /** Only batches that contain this NPI. */
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
 * Lists the batches of an organization, or of all organizations if it is null (for operators),
 * newest first.
 * @param page.after the id of the last batch of the previous page
 * @returns `next` is the value of `page.after` for the next page, null at the end
 */
export async function listBatches(
  db: Database,
  organization: string | null,
  filter: BatchFilter,
  { after, limit }: Page,
) {
  // Passed as numbers, because dates of the first and the last year have no common notation.
  const moment = (at: Date | null, otherwise: string) =>
    sql`coalesce(to_timestamp(${at && at.getTime() / 1000}::float8), ${sql.raw(otherwise)})`;
  const asking = sql`select batch_id from requests where npi = ${filter.npi} and organization_id = ${organization}`;
  const last = sql`select created_at, id from batches where id = ${after} and organization_id = ${organization}`;
  const theirs = organization === null ? sql`true` : sql`organization_id = ${organization}`;
  // A list of all organizations is sorted by id, which is in the order of time too. Few batches
  // contain a given NPI, so that list must not use the index of times and read all the others.
  const byTime = filter.npi ? sql`created_at + interval '0' desc,` : sql`created_at desc,`;
  const rows = await run<Listed>(db)`
    select id as "batchId", organization_id as "organizationId", status, submitted_as as "submittedAs",
           wanted_type as "wantedType", completed_count as "completedCount", total, created_at as "createdAt",
           updated_at as "updatedAt"
      from batches
     where ${theirs}
       and created_at >= ${moment(filter.since, "'-infinity'")} and created_at < ${moment(filter.until, "'infinity'")}
       -- A literal, so that the index of batches in progress is used.
       and ${filter.status ? sql.raw(`status = '${filter.status}'`) : sql`true`}
       and ${filter.npi ? sql`id = any(array(${asking}))` : sql`true`}
       and ${after ? sql`(created_at, id) < (${last})` : sql`true`}
     order by ${organization === null ? sql`` : byTime} id desc limit ${limit + 1}`;
  const { items, last: end } = cut(rows, limit);
  return { batches: items, next: end?.batchId ?? null };
}
