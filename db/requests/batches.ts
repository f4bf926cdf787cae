import { type SQL, sql } from 'drizzle-orm';
import {
  cut,
  type Database,
  moment,
  only,
  type Page,
  type Period,
  query,
  run,
  span,
} from '../connection/client.ts';
import { batches } from '../schema.ts';
import type { BatchStatus, RequestedType } from '../words.ts';
import type { IdempotencyKey } from './idempotency.ts';

/**
 * The filters for a list of batches. A null filter matches every batch. The period is that of the
 * submits.
 */
export interface BatchFilter extends Period {
  readonly status: BatchStatus | null;
  /** Only batches that contain this NPI. */
  readonly npi: string | null;
  /** Only batches that were submitted with this key. */
  readonly keyId: string | null;
}

/**
 * Lists the batches of an organization, newest first. If `organization` is null, lists the batches
 * of all organizations, for operators.
 * @param page.after the id of the last batch of the previous page
 * @returns `next` is the value of `page.after` for the next page. It is null on the last page
 */
export async function listBatches(
  db: Database,
  organization: string | null,
  filter: BatchFilter,
  { after, limit }: Page,
) {
  const rows = await query(db, (tx) =>
    tx
      .select({
        batchId: batches.id,
        organizationId: batches.organizationId,
        apiKeyId: batches.apiKeyId,
        status: batches.status,
        submittedAs: batches.submittedAs,
        requestedType: batches.requestedType,
        completedCount: batches.completedCount,
        total: batches.total,
        createdAt: batches.createdAt,
        updatedAt: batches.updatedAt,
      })
      .from(batches)
      .where(matching(organization, filter, after))
      .orderBy(orderOf(organization, filter))
      .limit(limit + 1),
  );
  const { items, last } = cut(rows, limit);
  return { batches: items, next: last?.batchId ?? null };
}

/** The facts about a batch that the console's lists show in addition to those of the API. */
export interface BatchSummary {
  readonly customData: string | null;
  /** The upload that submitted the batch, or null. */
  readonly uploadId: string | null;
  readonly fileName: string | null;
  /** The number of requests with an email, including free repeats. */
  readonly found: number;
  readonly credits: number;
}

/** Returns summaries of an organization's batches, by their ids. */
export async function summarizeBatches(
  db: Database,
  organizationId: string,
  batchIds: readonly string[],
): Promise<Map<string, BatchSummary>> {
  const rows = await run<BatchSummary & { readonly id: string }>(db)`
    select b.id,
           b.custom_data as "customData",
           u.id as "uploadId",
           u.file_name as "fileName",
           results.found,
           results.credits
      from batches b
      left join upload_parts p on p.batch_id = b.id
      left join uploads u on u.id = p.upload_id
     cross join lateral (
       select count(*) filter (where r.status = 'completed')::int as found,
              coalesce(sum(r.credits_used), 0)::int as credits
         from requests r
        where r.batch_id = b.id
     ) results
     where b.organization_id = ${organizationId}
       and b.id = any(${sql.param([...batchIds])})`;
  return new Map(rows.map(({ id, ...summary }) => [id, summary]));
}

/** How fast the results of batches become final. */
export interface Pace {
  /** The number of results of the last minutes. */
  readonly recent: number;
  /** The milliseconds since the submit of the oldest batch that has one of them, at most `windowMs`. */
  readonly overMs: number;
  /** The milliseconds until the last deadline of the batches. */
  readonly boundMs: number;
}

/**
 * Measures how fast results became final within the last `windowMs`. Batches whose results are older
 * don't count, so a pause before the newest submits changes nothing.
 */
export async function measurePace(
  db: Database,
  batchIds: readonly string[],
  windowMs: number,
): Promise<Pace> {
  const rows = await run<Pace>(db)`
    select coalesce(sum(results.recent), 0)::int as recent,
           coalesce(
             least(
               ${windowMs}::float8,
               extract(epoch from clock_timestamp()
                 - min(b.created_at) filter (where results.recent > 0)) * 1000
             ),
             0
           )::float8 as "overMs",
           coalesce(
             extract(epoch from max(b.deadline_at) - clock_timestamp()) * 1000, 0
           )::float8 as "boundMs"
      from batches b
     cross join lateral (
       select count(*) as recent
         from requests r
        where r.batch_id = b.id
          and r.settled_at > clock_timestamp() - ${span(windowMs)}
     ) results
     where b.id = any(${sql.param([...batchIds])})`;
  return only(rows);
}

/** The part of a completed batch that failed and can be looked up again. */
export interface FailedPart {
  readonly requestedType: RequestedType;
  readonly customData: string | null;
  /** The different NPIs whose lookup failed. */
  readonly npis: readonly string[];
  /** The batch that looks them up again, while its Idempotency-Key is kept. */
  readonly repeatedBy: string | null;
}

/**
 * Reads what failed in a completed batch.
 * @param again the Idempotency-Key of the batch that looks it up again
 * @returns null if the organization has no such batch, if it is not completed, or if nothing failed
 */
export async function readFailed(
  db: Database,
  organizationId: string,
  batchId: string,
  again: Pick<IdempotencyKey, 'method' | 'path' | 'key'>,
): Promise<FailedPart | null> {
  const [part = null] = await run<FailedPart>(db)`
    select b.requested_type as "requestedType",
           b.custom_data as "customData",
           failed.npis,
           (select response::json ->> 'batch_id'
              from idempotency_keys
             where organization_id = ${organizationId}
               and method = ${again.method} and path = ${again.path} and key = ${again.key}
               and expires_at > clock_timestamp()) as "repeatedBy"
      from batches b
     cross join lateral (
       select array_agg(npi order by first) as npis
         from (
           select npi, min(position) as first from requests
            where batch_id = b.id and status = 'failed'
            group by npi) r
     ) failed
     where b.id = ${batchId} and b.organization_id = ${organizationId}
       and b.status = 'completed' and failed.npis is not null`;
  return part;
}

function matching(
  organization: string | null,
  { status, since, until, npi, keyId }: BatchFilter,
  after: Page['after'],
): SQL {
  const conditions = [
    sql`created_at >= coalesce(${moment(since)}, '-infinity')`,
    sql`created_at < coalesce(${moment(until)}, 'infinity')`,
  ];
  if (organization !== null) {
    conditions.push(sql`organization_id = ${organization}`);
  }
  // The status is a literal and not a parameter, so that PostgreSQL can use the index
  // batches_in_progress.
  if (status) conditions.push(sql.raw(`status = '${status}'`));
  if (keyId) conditions.push(sql`api_key_id = ${keyId}`);
  if (npi) {
    conditions.push(sql`id = any(array(
      select batch_id from requests where npi = ${npi} and organization_id = ${organization}))`);
  }
  if (after) {
    conditions.push(sql`(created_at, id) < (
      select created_at, id
        from batches
       where id = ${after} and organization_id = ${organization})`);
  }
  return sql.join(conditions, sql` and `);
}

/**
 * Returns the sort order of a list, newest first. The batches of all organizations are sorted by
 * id, because ids sort by time. In a list with an NPI filter, `+ interval '0'` prevents PostgreSQL
 * from reading all batches in the order of the index on created_at, because few batches contain a
 * given NPI.
 */
function orderOf(organization: string | null, { npi }: BatchFilter): SQL {
  if (organization === null) return sql`id desc`;
  if (npi) return sql`created_at + interval '0' desc, id desc`;
  return sql`created_at desc, id desc`;
}

/**
 * Returns whether a batch or request belongs to the customer's other organization, which is the
 * sandbox of an organization or the organization of a sandbox. It is one statement that looks up
 * the id together with the organization, so it takes as long for another customer's id as for an
 * unknown one.
 */
export async function isOnOtherSide(
  db: Database,
  organizationId: string,
  id: string,
): Promise<boolean> {
  const rows = await run<{ found: boolean }>(db)`
    with other as materialized (
      select coalesce(o.sandbox_of, s.id) as id
        from organizations o
        left join organizations s on s.sandbox_of = o.id
       where o.id = ${organizationId}
    )
    select exists (select from batches
                    where id = ${id} and organization_id = (select id from other))
        or exists (select from requests
                    where id = ${id} and organization_id = (select id from other)) as found`;
  return only(rows).found;
}
