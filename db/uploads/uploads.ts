import {
  and,
  asc,
  desc,
  eq,
  getTableColumns,
  isNotNull,
  isNull,
  ne,
  not,
  or,
  type SQL,
  sql,
} from 'drizzle-orm';
import { type Database, only, query, run } from '../connection/client.ts';
import { readByCursor } from '../connection/cursor.ts';
import { newId } from '../connection/ids.ts';
import pacing from '../requests/pacing.json' with { type: 'json' };
import { batches, uploadParts, uploads } from '../schema.ts';
import type { RequestedType } from '../words.ts';
import { HAS_PARTS_LEFT } from './parts.ts';

// The files that customers upload in the console, as the API reads and writes them. The workflow
// of an upload submits its parts (parts.ts).

/** Identifies an upload of an organization. */
export interface UploadId {
  readonly organizationId: string;
  readonly uploadId: string;
}

export type Upload = Awaited<ReturnType<typeof listUploads>>[number];

/** An organization can keep this many uploads, so that it cannot fill the disk. */
export const MAX_UPLOADS = 20;
/** This is enough for 10,000 rows of 500 bytes. */
export const MAX_UPLOAD_BYTES = 5_000_000;
/** An outline has quotes and UTF-8 in addition, and is usually hardly larger than its file. */
export const MAX_OUTLINE_BYTES = 2 * MAX_UPLOAD_BYTES;
/** The number of NPIs that one batch can have. */
const PART = pacing.npisPerBatch;

export type CreateOutcome =
  | { readonly kind: 'created'; readonly uploadId: string }
  /** The organization already has `MAX_UPLOADS` uploads. */
  | { readonly kind: 'full' }
  /** The organization was closed while the file arrived. */
  | { readonly kind: 'closed' };

/**
 * Stores a file as a draft for a day.
 * @param file its name has 1 to 200 characters
 */
export async function createUpload(
  db: Database,
  by: { readonly organizationId: string; readonly apiKeyId: string },
  file: { readonly fileName: string; readonly content: Buffer },
): Promise<CreateOutcome> {
  const uploadId = newId('upl');
  const rows = await run<{ readonly isClosed: boolean; readonly isFull: boolean }>(db)`
    with owner as (
      select o.id,
             o.closed_at is not null as "isClosed",
             (select count(*) from uploads where organization_id = o.id) >= ${MAX_UPLOADS}
               as "isFull"
        from organizations o
       where o.id = ${by.organizationId}
    ), created as (
      insert into uploads (id, organization_id, api_key_id, file_name, content, expires_at)
      select ${uploadId}, owner.id, ${by.apiKeyId}, ${file.fileName}, ${file.content},
             clock_timestamp() + interval '1 day'
        from owner
       where not "isClosed" and not "isFull"
    )
    select "isClosed", "isFull" from owner`;
  const { isClosed, isFull } = only(rows);
  if (isClosed) return { kind: 'closed' };
  return isFull ? { kind: 'full' } : { kind: 'created', uploadId };
}

/** Lists the uploads of an organization, newest first. */
export async function listUploads(db: Database, organizationId: string) {
  return await selectUploads(db, eq(uploads.organizationId, organizationId));
}

/** Returns an upload, or null if the organization has no such upload. */
export async function findUpload(
  db: Database,
  { organizationId, uploadId }: UploadId,
): Promise<Upload | null> {
  const [upload = null] = await selectUploads(db, isUpload(organizationId, uploadId));
  return upload;
}

/**
 * The number of NPIs in parts that repeat failed lookups. Each has an earlier request, which is final
 * and failed. Every count subtracts it, so that only the last request for an NPI counts.
 */
const REPEATED = sql`coalesce(
  sum(cardinality(${uploadParts.npis})) filter (where ${uploadParts.isRepeat}), 0)::int`;

async function selectUploads(db: Database, where: SQL | undefined) {
  // The file is left out, because it can have 5 MB.
  const { content, ...columns } = getTableColumns(uploads);
  return await query(db, (tx) =>
    tx
      .select({
        ...columns,
        /** The number of different NPIs, 0 for a draft. */
        total: sql<number>`coalesce(sum(cardinality(${uploadParts.npis})), 0)::int - ${REPEATED}`,
        submitted: sql<number>`coalesce(sum(${batches.total}), 0)::int - ${REPEATED}`,
        /** The number of NPIs whose last request is final. */
        final: sql<number>`coalesce(sum(${batches.completedCount}), 0)::int - ${REPEATED}`,
      })
      .from(uploads)
      .leftJoin(uploadParts, eq(uploadParts.uploadId, uploads.id))
      .leftJoin(batches, eq(batches.id, uploadParts.batchId))
      .where(where)
      .groupBy(uploads.id)
      .orderBy(desc(uploads.createdAt)),
  );
}

/** Returns the file of a draft, or null if the organization has no such draft. */
export async function readUploadFile(
  db: Database,
  { organizationId, uploadId }: UploadId,
): Promise<Buffer | null> {
  const [file] = await query(db, (tx) =>
    tx
      .select({ content: uploads.content })
      .from(uploads)
      .where(and(isUpload(organizationId, uploadId), isNull(uploads.startedAt))),
  );
  return file?.content ?? null;
}

/** The bytes of an outline that are in memory at once. */
const OUTLINE_PART = 131_072;

/**
 * Reads the outline of the results of a started upload in parts, and waits for `work` after each.
 */
export async function readOutline(
  db: Database,
  { organizationId, uploadId }: UploadId,
  work: (part: Buffer) => Promise<void>,
): Promise<void> {
  const statement = sql`
    select substring(content from n * ${OUTLINE_PART}::int + 1 for ${OUTLINE_PART}::int) as part
      from uploads, generate_series(0, octet_length(content) / ${OUTLINE_PART}::int) n
     where id = ${uploadId} and organization_id = ${organizationId} and started_at is not null
     order by n`;
  await readByCursor<{ readonly part: Buffer }>(db, statement, 1, async ([row]) => {
    if (row) await work(row.part);
  });
}

/** The results of an upload so far, and the credits that they cost. */
export type UploadResults = Readonly<
  Record<'found' | 'replayed' | 'notFound' | 'failed' | 'credits', number>
>;

/**
 * Counts the results of an upload. Replays are not counted as found, and failed lookups are not
 * counted if they are repeated.
 */
export async function countUploadResults(
  db: Database,
  uploadId: string,
): Promise<UploadResults> {
  const row = await run<UploadResults>(db)`
    select count(*) filter (where r.status = 'completed' and not r.replayed)::int as found,
           count(*) filter (where r.replayed)::int as replayed,
           count(*) filter (where r.status = 'not_found')::int as "notFound",
           count(*) filter (where r.status = 'failed')::int
             - (select coalesce(sum(cardinality(npis)), 0)::int
                  from upload_parts
                 where upload_id = ${uploadId} and is_repeat) as failed,
           coalesce(sum(r.credits_used), 0)::int as credits
      from upload_parts p
      join requests r on r.batch_id = p.batch_id
     where p.upload_id = ${uploadId}`;
  return only(row);
}

/** Counts the emails of each upload of an organization, including free repeats, and its credits. */
export async function countFound(db: Database, organizationId: string) {
  const rows = await run<{
    readonly id: string;
    readonly found: number;
    readonly credits: number;
  }>(db)`
    select u.id,
           count(*) filter (where r.status = 'completed')::int as found,
           sum(r.credits_used)::int as credits
      from uploads u
      join upload_parts p on p.upload_id = u.id
      join requests r on r.batch_id = p.batch_id
     where u.organization_id = ${organizationId}
     group by u.id`;
  return new Map(rows.map(({ id, ...counts }) => [id, counts]));
}

/** Lists the ids of the batches of an upload. */
export async function listUploadBatches(
  db: Database,
  uploadId: string,
): Promise<string[]> {
  const rows = await query(db, (tx) =>
    tx
      .select({ batchId: uploadParts.batchId })
      .from(uploadParts)
      .where(and(eq(uploadParts.uploadId, uploadId), isNotNull(uploadParts.batchId)))
      .orderBy(asc(uploadParts.position)),
  );
  return rows.flatMap(({ batchId }) => batchId ?? []);
}

/**
 * Starts a draft: stores its parts, for its workflow to submit. The file and its results are kept
 * for seven days from now. It is one statement, so that a second start finds no draft and adds no
 * parts.
 * @returns false if the organization has no such draft
 */
export async function startUpload(
  db: Database,
  { organizationId, uploadId }: UploadId,
  chosen: {
    readonly npiColumn: number;
    readonly requestedType: RequestedType;
    /** The name of the upload from now on, of 1 to 200 characters. */
    readonly fileName: string;
    /** The address that gets an email at the end, or null. */
    readonly notifyEmail: string | null;
    /** Replaces the file, which is not needed any more. */
    readonly outline: Uint8Array;
    /** Different NPIs. */
    readonly npis: readonly string[];
  },
): Promise<boolean> {
  const parts = Array.from(
    { length: Math.ceil(chosen.npis.length / PART) },
    (_, position) => {
      const first = position * PART;
      return { position, npis: chosen.npis.slice(first, first + PART) };
    },
  );
  const inserted = await run(db)`
    with started as (
      update uploads
         set started_at = clock_timestamp(),
             checked_at = clock_timestamp(),
             expires_at = clock_timestamp() + interval '7 days',
             file_name = ${chosen.fileName},
             content = ${Buffer.from(chosen.outline)},
             npi_column = ${chosen.npiColumn},
             requested_type = ${chosen.requestedType},
             notify_email = ${chosen.notifyEmail}
       where id = ${uploadId} and organization_id = ${organizationId} and started_at is null
      returning id
    )
    insert into upload_parts (upload_id, position, npis)
    select started.id, part.position, part.npis
      from started,
           json_to_recordset(${JSON.stringify(parts)}::json) part (position integer, npis text[])
    returning position`;
  return inserted.length > 0;
}

/** Stops an upload for its customer, if parts are left to submit. */
export async function stopUpload(db: Database, upload: UploadId): Promise<void> {
  await query(db, (tx) =>
    tx
      .update(uploads)
      .set({ stopReason: 'customer' })
      .where(
        and(
          isUpload(upload.organizationId, upload.uploadId),
          isNull(uploads.stopReason),
          HAS_PARTS_LEFT,
        ),
      ),
  );
}

/**
 * Continues a stopped upload with a key, which may be the same as before, and keeps the upload for
 * seven days from now. An upload that an operator has stopped stays stopped.
 * @returns false if the organization has no such upload
 */
export async function continueUpload(
  db: Database,
  { organizationId, uploadId }: UploadId,
  apiKeyId: string,
): Promise<boolean> {
  const continued = await query(db, (tx) =>
    tx
      .update(uploads)
      .set({
        stopReason: null,
        apiKeyId,
        checkedAt: sql`clock_timestamp()`,
        expiresAt: sql`clock_timestamp() + interval '7 days'`,
      })
      .where(and(isUpload(organizationId, uploadId), ne(uploads.stopReason, 'operator')))
      .returning({ id: uploads.id }),
  );
  return continued.length > 0;
}

/**
 * Adds the NPIs whose last lookup failed as new parts, for its workflow to submit with this key, and
 * keeps the upload for seven days from now. It is one statement on the row of the upload: a second
 * one waits for that row, and then finds that parts are left to submit.
 * @returns false if the organization has no such upload, if it is still running, or if no lookup
 * failed
 */
export async function repeatFailed(
  db: Database,
  { organizationId, uploadId }: UploadId,
  apiKeyId: string,
): Promise<boolean> {
  const inserted = await run(db)`
    with newest as (
      select distinct on (r.npi) r.npi, r.status, p.position as part, r.position
        from upload_parts p
        join requests r on r.batch_id = p.batch_id
       where p.upload_id = ${uploadId}
       order by r.npi, p.position desc
    ), failed as (
      select npi, row_number() over (order by part, position) as n
        from newest
       where status = 'failed'
    ), again as (
      update uploads
         set submitted_at = null,
             api_key_id = ${apiKeyId},
             checked_at = clock_timestamp(),
             expires_at = clock_timestamp() + interval '7 days'
       where id = ${uploadId} and organization_id = ${organizationId}
         and submitted_at is not null
         and exists (select from failed)
         and not exists (
           select from upload_parts p
             join batches b on b.id = p.batch_id
            where p.upload_id = ${uploadId} and b.completed_count < b.total)
      returning id
    )
    insert into upload_parts (upload_id, position, npis, is_repeat)
    select again.id, last.position + part.n, part.npis, true
      from again,
           (select max(position) as position from upload_parts where upload_id = ${uploadId}) last,
           (select ceil(n / ${PART}::float8)::int as n, array_agg(npi order by failed.n) as npis
              from failed
             group by 1) part
    returning position`;
  return inserted.length > 0;
}

/**
 * Deletes an upload with its file. Batches that were submitted stay.
 * @returns false if the organization has no such upload, or if parts are left to submit
 */
export async function deleteUpload(
  db: Database,
  { organizationId, uploadId }: UploadId,
): Promise<boolean> {
  const isAtRest = or(isNotNull(uploads.stopReason), not(HAS_PARTS_LEFT));
  const deleted = await query(db, (tx) =>
    tx
      .delete(uploads)
      .where(and(isUpload(organizationId, uploadId), isAtRest))
      .returning({ id: uploads.id }),
  );
  return deleted.length > 0;
}

function isUpload(organizationId: string, uploadId: string) {
  return and(eq(uploads.id, uploadId), eq(uploads.organizationId, organizationId));
}
