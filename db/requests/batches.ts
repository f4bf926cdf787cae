import { and, desc, eq, sql } from 'drizzle-orm';
import { cut, type Database, type Page, query } from '../client.ts';
import { batches } from '../schema.ts';
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

const { id, status, total, completedCount, createdAt, updatedAt, organizationId, submittedAs, wantedType } =
  batches;

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
  // Of all organizations by their ids, which are in that order too. Those that ask for an NPI are few: not by the index of
  // times, through all the others.
  const byTime = filter.npi ? sql`${createdAt} + interval '0' desc` : desc(createdAt);
  const inOrder = organization === null ? [] : [byTime];
  const rows = await query(db, (tx) =>
    tx
      .select({
        batchId: id,
        organizationId,
        status,
        submittedAs,
        wantedType,
        completedCount,
        total,
        createdAt,
        updatedAt,
      })
      .from(batches)
      .where(
        and(
          organization === null ? undefined : eq(organizationId, organization),
          sql`${createdAt} >= ${moment(filter.since, "'-infinity'")} and ${createdAt} < ${moment(filter.until, "'infinity'")}`,
          // Written out, for the index of those in progress.
          filter.status ? sql`${status} = ${sql.raw(`'${filter.status}'`)}` : undefined,
          filter.npi ? sql`${id} = any(array(${asking}))` : undefined,
          after ? sql`(${createdAt}, ${id}) < (${last})` : undefined,
        ),
      )
      .orderBy(...inOrder, desc(id))
      .limit(limit + 1),
  );
  const { items, last: end } = cut(rows, limit);
  return { batches: items, next: end?.batchId ?? null };
}
