import { sql } from 'drizzle-orm';
import {
  bigint,
  boolean,
  customType,
  index,
  integer,
  jsonb,
  pgTable,
  primaryKey,
  smallint,
  text,
  timestamp,
  unique,
} from 'drizzle-orm/pg-core';
import type {
  DeliveryState,
  EmailType,
  LedgerKind,
  RequestStatus,
  StoredVerdict,
  SubmittedAs,
  VendorAttemptState,
  WantedType,
  WebhookMode,
} from './words.ts';

// The tables as queries see them. What they must never hold (checks, triggers, generated columns) is written once,
// in migrations/; a test compares the two column by column.

/** Stands for the expression of a generated column. */
const inMigrations = sql`(see migrations)`;

const time = (name: string) => timestamp(name, { withTimezone: true, precision: 3, mode: 'date' });
const bytea = customType<{ data: Buffer; driverData: Buffer }>({ dataType: () => 'bytea' });
const count = (name: string) => bigint(name, { mode: 'number' });

export const organizations = pgTable('organizations', {
  id: text('id').primaryKey(),
  name: text('name').notNull(),
  requestsPerMinute: integer('requests_per_minute').notNull().default(100),
  webhookSecret: text('webhook_secret').notNull(),
  previousWebhookSecret: text('previous_webhook_secret'),
  previousWebhookSecretExpiresAt: time('previous_webhook_secret_expires_at'),
  webhooksSuspended: boolean('webhooks_suspended').notNull().default(false),
  createdAt: time('created_at').notNull().defaultNow(),
});

export const apiKeys = pgTable(
  'api_keys',
  {
    id: text('id').primaryKey(),
    organizationId: text('organization_id')
      .notNull()
      .references(() => organizations.id),
    name: text('name').notNull(),
    /** The last characters, so that people can tell keys apart. */
    hint: text('hint').notNull(),
    /** SHA-256 of the key; the key itself is stored nowhere. */
    hash: bytea('hash').notNull().unique(),
    createdAt: time('created_at').notNull().defaultNow(),
    expiresAt: time('expires_at'),
    revokedAt: time('revoked_at'),
  },
  (t) => [index('api_keys_by_organization').on(t.organizationId)],
);

export const rateWindows = pgTable('rate_windows', {
  apiKeyId: text('api_key_id')
    .primaryKey()
    .references(() => apiKeys.id),
  hits: timestamp('hits', { withTimezone: true, mode: 'date' }).array().notNull(),
  admitted: boolean('admitted').notNull(),
});

export const batches = pgTable('batches', {
  id: text('id').primaryKey(),
  organizationId: text('organization_id')
    .notNull()
    .references(() => organizations.id),
  apiKeyId: text('api_key_id').references(() => apiKeys.id),
  submittedAs: text('submitted_as').$type<SubmittedAs>().notNull(),
  wantedType: text('wanted_type').$type<WantedType>().notNull(),
  total: smallint('total').notNull(),
  completedCount: smallint('completed_count').notNull().default(0),
  status: text('status').$type<'in-progress' | 'completed'>().notNull().generatedAlwaysAs(inMigrations),
  webhookUrl: text('webhook_url'),
  webhookMode: text('webhook_mode').$type<WebhookMode>(),
  /** Escaped JSON text exactly as it was sent: jsonb and JSON.parse both lose. */
  customData: text('custom_data'),
  createdAt: time('created_at').notNull(),
  updatedAt: time('updated_at').notNull(),
  deadlineAt: time('deadline_at').notNull(),
  startedAt: time('started_at'),
  checkedAt: time('checked_at'),
});

export const requests = pgTable('requests', {
  id: text('id').primaryKey(),
  batchId: text('batch_id').notNull(),
  organizationId: text('organization_id').notNull(),
  position: smallint('position').notNull(),
  npi: text('npi').notNull(),
  wantedType: text('wanted_type').$type<WantedType>().notNull(),
  cost: smallint('cost').notNull().generatedAlwaysAs(inMigrations),
  status: text('status').$type<RequestStatus>().notNull(),
  replayed: boolean('replayed').notNull().default(false),
  creditsUsed: smallint('credits_used').notNull().generatedAlwaysAs(inMigrations),
  email: text('email'),
  emailType: text('email_type').$type<EmailType>(),
  emailLastValidatedAt: time('email_last_validated_at'),
  reason: text('reason'),
  acceptedAt: time('accepted_at').notNull(),
  deadlineAt: time('deadline_at').notNull(),
  startedAt: time('started_at'),
  settledAt: time('settled_at'),
});

export const ledgerEntries = pgTable('ledger_entries', {
  id: count('id').primaryKey().generatedAlwaysAsIdentity(),
  organizationId: text('organization_id').notNull(),
  requestId: text('request_id'),
  kind: text('kind').$type<LedgerKind>().notNull(),
  amount: count('amount').notNull(),
  granted: count('granted').notNull().generatedAlwaysAs(inMigrations),
  available: count('available').notNull().generatedAlwaysAs(inMigrations),
  held: count('held').notNull().generatedAlwaysAs(inMigrations),
  used: count('used').notNull().generatedAlwaysAs(inMigrations),
  side: text('side').notNull().generatedAlwaysAs(inMigrations),
  holdSide: text('hold_side').generatedAlwaysAs(inMigrations),
  createdAt: time('created_at').notNull().defaultNow(),
});

export const creditBalances = pgTable('credit_balances', {
  organizationId: text('organization_id').primaryKey(),
  total: count('total').notNull().default(0),
  available: count('available').notNull().default(0),
  held: count('held').notNull().default(0),
  used: count('used').notNull().default(0),
});

export const entitlements = pgTable(
  'entitlements',
  {
    organizationId: text('organization_id').notNull(),
    npi: text('npi').notNull(),
    emailType: text('email_type').$type<EmailType>().notNull(),
    requestId: text('request_id').notNull(),
    chargedAt: time('charged_at').notNull(),
  },
  (t) => [primaryKey({ columns: [t.organizationId, t.npi, t.emailType] })],
);

export const idempotencyKeys = pgTable(
  'idempotency_keys',
  {
    organizationId: text('organization_id').notNull(),
    method: text('method').notNull(),
    path: text('path').notNull(),
    key: text('key').notNull(),
    fingerprint: bytea('fingerprint').notNull(),
    response: text('response'),
    createdAt: time('created_at').notNull(),
    expiresAt: time('expires_at').notNull(),
  },
  (t) => [primaryKey({ columns: [t.organizationId, t.method, t.path, t.key] })],
);

export const webhookDeliveries = pgTable(
  'webhook_deliveries',
  {
    id: text('id').primaryKey(),
    batchId: text('batch_id').notNull(),
    /** Null for the one delivery of a batch in `batch` mode. */
    requestId: text('request_id'),
    state: text('state').$type<DeliveryState>().notNull(),
    attempts: smallint('attempts').notNull().default(0),
    createdAt: time('created_at').notNull(),
    decidedAt: time('decided_at'),
  },
  (t) => [unique().on(t.batchId, t.requestId).nullsNotDistinct()],
);

export const webhookAttempts = pgTable(
  'webhook_attempts',
  {
    deliveryId: text('delivery_id').notNull(),
    n: smallint('n').notNull(),
    startedAt: time('started_at').notNull(),
    durationMs: integer('duration_ms').notNull(),
    statusCode: smallint('status_code'),
    errorCode: text('error_code'),
    responseExcerpt: bytea('response_excerpt'),
  },
  (t) => [primaryKey({ columns: [t.deliveryId, t.n] })],
);

export const vendorAttempts = pgTable(
  'vendor_attempts',
  {
    requestId: text('request_id').notNull(),
    vendor: text('vendor').notNull(),
    n: smallint('n').notNull(),
    state: text('state').$type<VendorAttemptState>().notNull(),
    jobRef: text('job_ref'),
    reason: text('reason'),
    startedAt: time('started_at').notNull(),
    endedAt: time('ended_at'),
  },
  (t) => [primaryKey({ columns: [t.requestId, t.vendor, t.n] })],
);

export const storedEmails = pgTable(
  'stored_emails',
  {
    npi: text('npi').notNull(),
    email: text('email').notNull(),
    emailType: text('email_type').$type<EmailType>(),
    verdict: text('verdict').$type<StoredVerdict>().notNull(),
    reason: text('reason'),
    lastValidatedAt: time('last_validated_at'),
    source: text('source').notNull(),
    sourceRequestId: text('source_request_id'),
    unchecked: boolean('unchecked').notNull().default(false),
    firstSeenAt: time('first_seen_at').notNull().defaultNow(),
    updatedAt: time('updated_at').notNull().defaultNow(),
  },
  (t) => [primaryKey({ columns: [t.npi, t.email] })],
);

export const auditLog = pgTable('audit_log', {
  id: count('id').primaryKey().generatedAlwaysAsIdentity(),
  at: time('at').notNull().defaultNow(),
  actor: text('actor').notNull(),
  action: text('action').notNull(),
  organizationId: text('organization_id'),
  subject: text('subject'),
  reason: text('reason').notNull(),
  details: jsonb('details').$type<Record<string, string | number | boolean | null>>().notNull().default({}),
});
