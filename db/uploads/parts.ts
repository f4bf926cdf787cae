import { and, eq, isNull, sql } from 'drizzle-orm';
import { type Database, isAhead, query, run, span } from '../connection/client.ts';
import { uploadParts, uploads } from '../schema.ts';
import type { RequestedType, StopReason } from '../words.ts';

// The parts of an upload, as its workflow submits them.

/** The method and path of the Idempotency-Keys of parts. The key is `{uploadId}-{position}`. */
export const PART_SUBMIT = { method: 'POST', path: '/console/uploads' };

/** The next part of an upload to submit, and what decides whether it may be submitted now. */
export interface NextPart {
  readonly uploadId: string;
  readonly position: number;
  readonly npis: readonly string[];
  readonly organizationId: string;
  readonly apiKeyId: string;
  readonly requestedType: RequestedType;
  /** True if the part was submitted by a process that died before it recorded the batch. */
  readonly isSubmitted: boolean;
  /** True if the API would accept the key. */
  readonly isKeyActive: boolean;
  readonly requestsPerMinute: number;
  /** The number of requests of this upload that are not final. */
  readonly open: number;
  /** The number of parts, and how many of them are submitted. */
  readonly parts: number;
  readonly submitted: number;
}

/** An upload whose workflow may be missing. */
export interface UploadStart {
  readonly uploadId: string;
  readonly organizationId: string;
}

/**
 * Returns the next part of an upload. Returns null if all parts are submitted, or if the upload was
 * stopped or deleted.
 */
export async function findNextPart(
  db: Database,
  uploadId: string,
): Promise<NextPart | null> {
  const [part = null] = await run<NextPart>(db)`
    select u.id as "uploadId",
           part.position,
           part.npis,
           u.organization_id as "organizationId",
           u.api_key_id as "apiKeyId",
           u.requested_type as "requestedType",
           exists (
             select from idempotency_keys i
              where i.organization_id = u.organization_id
                and i.method = ${PART_SUBMIT.method}
                and i.path = ${PART_SUBMIT.path}
                and i.key = u.id || '-' || part.position
           ) as "isSubmitted",
           k.revoked_at is null and coalesce(k.expires_at > clock_timestamp(), true)
             and not o.suspended as "isKeyActive",
           o.requests_per_minute as "requestsPerMinute",
           progress.open,
           progress.parts,
           progress.submitted
      from uploads u
      join organizations o on o.id = u.organization_id
      join api_keys k on k.id = u.api_key_id
     cross join lateral (
       select position, npis
         from upload_parts
        where upload_id = u.id and batch_id is null
        order by position
        limit 1
     ) part
     cross join lateral (
       select coalesce(sum(b.total - b.completed_count), 0)::int as open,
              count(*)::int as parts,
              count(b.id)::int as submitted
         from upload_parts p
         left join batches b on b.id = p.batch_id
        where p.upload_id = u.id
     ) progress
     where u.id = ${uploadId} and u.stop_reason is null`;
  return part;
}

/** How the lookups of an upload's newest finished part ended. */
export interface LookupHealth {
  /** True if more of them failed than succeeded. */
  readonly isFailing: boolean;
  /** True if the part ended less than `PROBE_EVERY_MS` ago. */
  readonly isFresh: boolean;
}

/** While lookups fail, an upload submits one NPI, waits for its result, and then for this time. */
export const PROBE_EVERY_MS = 5 * 60_000;

/**
 * Returns how the lookups of an upload end at the moment. A success is a lookup with or without an
 * email. Replays, remembered misses, and NPIs that are not looked up do not count, because they also
 * end during an outage.
 *
 * Reads the finished parts, newest first, until one has a lookup that counts. A time in the future
 * is not fresh, because PostgreSQL's clock was set back.
 */
export async function readLookupHealth(
  db: Database,
  uploadId: string,
): Promise<LookupHealth> {
  const [health = { isFailing: false, isFresh: false }] = await run<LookupHealth>(db)`
    select ends.failed > ends.succeeded as "isFailing",
           clock_timestamp() - ends.at between interval '0' and ${span(PROBE_EVERY_MS)}
             as "isFresh"
      from upload_parts p
      join batches b on b.id = p.batch_id and b.completed_count = b.total
     cross join lateral (
       select count(*) filter (where r.status = 'failed') as failed,
              count(*) filter (
                where r.status <> 'failed'
                  and num_nonnulls(r.lookup_id, r.test_outcome) > 0
                  -- A miss that ends at once says nothing about vendors, and must not show which it is.
                  and coalesce(r.reason not in ('known_miss', 'suppressed'), true)
              ) as succeeded,
              max(r.settled_at) as at
         from requests r
        where r.batch_id = b.id
     ) ends
     where p.upload_id = ${uploadId} and ends.failed + ends.succeeded > 0
     order by p.position desc
     limit 1`;
  return health;
}

/**
 * Cuts a part to its first NPIs, and adds the others as a new part at the end. A part that was
 * submitted stays as it is.
 */
export async function cutPart(
  db: Database,
  { uploadId, position }: Pick<NextPart, 'uploadId' | 'position'>,
  size: number,
): Promise<void> {
  await run(db)`
    with whole as (
      select npis, is_repeat from upload_parts
       where upload_id = ${uploadId} and position = ${position} and batch_id is null
         for update
    ), cut as (
      update upload_parts p set npis = whole.npis[:${size}::int]
        from whole
       where p.upload_id = ${uploadId} and p.position = ${position}
    )
    insert into upload_parts (upload_id, position, npis, is_repeat)
    select ${uploadId}, last.position + 1, whole.npis[${size}::int + 1:], whole.is_repeat
      from whole,
           (select max(position) as position from upload_parts where upload_id = ${uploadId}) last`;
}

/** Records that a part was submitted as a batch. */
export async function recordPart(
  db: Database,
  { uploadId, position }: Pick<NextPart, 'uploadId' | 'position'>,
  batchId: string,
): Promise<void> {
  await query(db, (tx) =>
    tx
      .update(uploadParts)
      .set({ batchId })
      .where(and(eq(uploadParts.uploadId, uploadId), eq(uploadParts.position, position))),
  );
}

/**
 * Records that all parts of an upload are submitted. Does nothing if parts are left, because its
 * customer has stopped it, or has just continued it.
 */
export async function finishUpload(db: Database, uploadId: string): Promise<void> {
  await run(db)`
    update uploads
       set submitted_at = clock_timestamp()
     where id = ${uploadId}
       and started_at is not null
       and submitted_at is null
       and stop_reason is null
       and not exists (
         select from upload_parts where upload_id = ${uploadId} and batch_id is null)`;
}

/** The email to send about the end of an upload. It has no results. */
export interface Notice {
  readonly uploadId: string;
  readonly to: string;
  /** The reason why the upload stopped by itself. Null if all NPIs were submitted. */
  readonly stopReason: 'credits' | 'key' | null;
  /** Differs between the ends of an upload that was continued. */
  readonly expiresAt: Date;
  /** The time at which this was read. */
  readonly at: Date;
  readonly total: number;
  /** The number of NPIs whose request is final. */
  readonly final: number;
  /** The number of submitted NPIs whose request is not final. */
  readonly open: number;
}

/**
 * Returns the email to send about the end of an upload. Returns null if the visitor entered no
 * address, if a person stopped the upload, or if nothing was submitted since the last email. The last
 * rule keeps a visitor from flooding an address by continuing an upload without credits.
 */
export async function findNotice(db: Database, uploadId: string): Promise<Notice | null> {
  const [notice = null] = await run<Notice>(db)`
    select u.id as "uploadId",
           u.notify_email as "to",
           u.stop_reason as "stopReason",
           u.expires_at as "expiresAt",
           clock_timestamp() as at,
           progress.total,
           progress.final,
           progress.open
      from uploads u
     cross join lateral (
       select sum(cardinality(p.npis)) filter (where not p.is_repeat)::int as total,
              coalesce(sum(b.completed_count), 0)::int
                - coalesce(sum(cardinality(p.npis)) filter (where p.is_repeat), 0)::int as final,
              max(b.created_at) as submitted_at,
              coalesce(sum(b.total - b.completed_count), 0)::int as open
         from upload_parts p
         left join batches b on b.id = p.batch_id
        where p.upload_id = u.id
     ) progress
     where u.id = ${uploadId}
       and u.notify_email is not null
       and progress.submitted_at > coalesce(u.notified_at, '-infinity')
       and (u.submitted_at is not null or u.stop_reason in ('credits', 'key'))`;
  return notice;
}

/** Records that the email about an end of an upload was sent. */
export async function markNotified(
  db: Database,
  { uploadId, at }: Notice,
): Promise<void> {
  await query(db, (tx) =>
    tx.update(uploads).set({ notifiedAt: at }).where(eq(uploads.id, uploadId)),
  );
}

/** Selects uploads with parts to submit. Drafts have no parts. */
export const HAS_PARTS_LEFT = sql`exists (
  select from ${uploadParts}
   where ${uploadParts.uploadId} = ${uploads.id} and ${uploadParts.batchId} is null)`;

/** Stops an upload with its reason, if parts are left to submit. */
export async function endUpload(
  db: Database,
  uploadId: string,
  stopReason: StopReason,
): Promise<void> {
  await query(db, (tx) =>
    tx
      .update(uploads)
      .set({ stopReason })
      .where(and(eq(uploads.id, uploadId), isNull(uploads.stopReason), HAS_PARTS_LEFT)),
  );
}

/**
 * Claims uploads with parts to submit whose workflow was not checked within the last `everyMs`, and
 * marks them as checked.
 */
export async function claimUnsubmitted(
  db: Database,
  everyMs: number,
  limit: number,
): Promise<UploadStart[]> {
  return await run<UploadStart>(db)`
    update uploads set checked_at = clock_timestamp()
     where id in (
       select id
         from uploads
        where started_at is not null
          and submitted_at is null
          and stop_reason is null
          and (checked_at < now() - ${span(everyMs)} or ${isAhead(sql`checked_at`)})
        order by checked_at
        limit ${limit}
          for update skip locked)
    returning id as "uploadId", organization_id as "organizationId"`;
}
