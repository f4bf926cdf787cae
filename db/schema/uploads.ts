import { sql } from 'drizzle-orm';
import {
  boolean,
  check,
  foreignKey,
  index,
  integer,
  pgTable,
  primaryKey,
  smallint,
  text,
  unique,
} from 'drizzle-orm/pg-core';
import * as words from '../words.ts';
import { apiKeys, organizations } from './accounts.ts';
import { bytea, clockTime, isOneOf, time } from './columns.ts';
import { batches } from './requests.ts';

// Files that customers upload in the console, and the parts in which their NPIs are submitted.

/**
 * An upload is a draft until the customer starts it. Its file is deleted at `expiresAt`, with the
 * row and its parts. The batches stay.
 */
export const uploads = pgTable(
  'uploads',
  {
    id: text('id').primaryKey(),
    organizationId: text('organization_id').notNull(),
    /** The key whose session uploaded the file. Its rate limit applies to the submits. */
    apiKeyId: text('api_key_id').notNull(),
    fileName: text('file_name').notNull(),
    /** The file of a draft. After the start, the outline of its results (api/console/outline.ts). */
    content: bytea('content').notNull(),
    createdAt: time('created_at').notNull().default(clockTime),
    expiresAt: time('expires_at').notNull(),
    /** Null for a draft. */
    startedAt: time('started_at'),
    /** The position of the column with the NPIs, from 0. */
    npiColumn: smallint('npi_column'),
    requestedType: text('requested_type').$type<words.RequestedType>(),
    /** The time when the last part was submitted. */
    submittedAt: time('submitted_at'),
    /** The reason why the remaining parts are not submitted. Null while they may be submitted. */
    stopReason: text('stop_reason').$type<words.StopReason>(),
    /** The time when the upload was started, or when the sweep last started its workflow. */
    checkedAt: time('checked_at'),
    /** The address that gets an email when the upload ends. Null if the visitor entered no address. */
    notifyEmail: text('notify_email'),
    /** The time when the email about the newest end was sent. */
    notifiedAt: time('notified_at'),
  },
  (table) => [
    foreignKey({
      name: 'uploads_organization_id_fkey',
      columns: [table.organizationId],
      foreignColumns: [organizations.id],
    }),
    foreignKey({
      name: 'uploads_api_key_id_fkey',
      columns: [table.apiKeyId],
      foreignColumns: [apiKeys.id],
    }),
    check('uploads_file_name_check', sql`length(file_name) between 1 and 200`),
    check('uploads_content_check', sql`octet_length(content) <= 10000000`),
    check(
      'uploads_requested_type_check',
      isOneOf('requested_type', words.REQUESTED_TYPES),
    ),
    // One address without a display name, so that it can't contain a header or a second address.
    check(
      'uploads_notify_email_check',
      sql`length(notify_email) <= 254
        and notify_email ~ '^[a-zA-Z0-9.!#$%&*+/=?^_{|}~-]+@[a-zA-Z0-9.-]+$'`,
    ),
    check('uploads_stop_reason_check', isOneOf('stop_reason', words.STOP_REASONS)),
    check(
      'uploads_started',
      sql`num_nonnulls(started_at, npi_column, requested_type, checked_at) in (0, 4)`,
    ),
    check(
      'uploads_draft_has_no_end',
      sql`started_at is not null
        or num_nonnulls(submitted_at, stop_reason, notify_email, notified_at) = 0`,
    ),
    index('uploads_by_organization').on(table.organizationId),
    index('uploads_by_expiry').on(table.expiresAt),
    // Used by the sweep, which starts their workflows if they are missing.
    index('uploads_to_submit')
      .on(table.checkedAt)
      .where(
        sql`started_at is not null and submitted_at is null and stop_reason is null`,
      ),
  ],
);

/** A part of an upload: the NPIs that become one batch. */
export const uploadParts = pgTable(
  'upload_parts',
  {
    uploadId: text('upload_id').notNull(),
    position: integer('position').notNull(),
    npis: text('npis').array().notNull(),
    /** Null until the part is submitted. */
    batchId: text('batch_id'),
    /** True if its NPIs are also in earlier parts, in which their lookups failed. */
    isRepeat: boolean('is_repeat').notNull().default(false),
  },
  (table) => [
    primaryKey({
      name: 'upload_parts_pkey',
      columns: [table.uploadId, table.position],
    }),
    foreignKey({
      name: 'upload_parts_upload_id_fkey',
      columns: [table.uploadId],
      foreignColumns: [uploads.id],
    }).onDelete('cascade'),
    foreignKey({
      name: 'upload_parts_batch_id_fkey',
      columns: [table.batchId],
      foreignColumns: [batches.id],
    }),
    unique('upload_parts_batch_id_key').on(table.batchId),
    check('upload_parts_npis_check', sql`cardinality(npis) between 1 and 60`),
  ],
);
