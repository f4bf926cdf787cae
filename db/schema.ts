import { sql } from 'drizzle-orm';
import {
  bigint,
  boolean,
  customType,
  date,
  index,
  integer,
  jsonb,
  numeric,
  pgTable,
  primaryKey,
  smallint,
  text,
  timestamp,
  unique,
} from 'drizzle-orm/pg-core';
import type {
  AttemptReason,
  CheckKind,
  DeliveryState,
  EmailType,
  EndpointKind,
  ImportKind,
  LedgerKind,
  RequestStatus,
  StoredVerdict,
  SubmittedAs,
  SuppressionKind,
  SuppressionOrigin,
  TestOutcome,
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
  /** Whose test keys it is for; null if it is no sandbox. */
  sandboxOf: text('sandbox_of'),
  name: text('name').notNull(),
  requestsPerMinute: integer('requests_per_minute').notNull().default(100),
  webhookSecret: text('webhook_secret').notNull(),
  previousWebhookSecret: text('previous_webhook_secret'),
  previousWebhookSecretExpiresAt: time('previous_webhook_secret_expires_at'),
  webhooksSuspended: boolean('webhooks_suspended').notNull().default(false),
  suspended: boolean('suspended').notNull().default(false),
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
    leaked: boolean('leaked').notNull().default(false),
    isTest: boolean('is_test').notNull(),
  },
  (t) => [index('api_keys_by_organization').on(t.organizationId)],
);

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
  /** Since when its workflow is to be started, or told that more of its requests have room; null if neither. */
  wakeAt: time('wake_at').default(inMigrations),
});

export const requests = pgTable('requests', {
  id: text('id').primaryKey(),
  batchId: text('batch_id').notNull(),
  organizationId: text('organization_id').notNull(),
  position: smallint('position').notNull(),
  npi: text('npi').notNull(),
  wantedType: text('wanted_type').$type<WantedType>().notNull(),
  /** Credits it costs if an email is found. */
  cost: smallint('cost').notNull(),
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
  /** False while it waits for others of its organization to end. */
  hasRoom: boolean('has_room').notNull().default(true),
  /** The lookup it waits for, or waited for; null if none was needed. */
  lookupId: text('lookup_id'),
  /** When its email was erased at the person's request. */
  erasedAt: time('erased_at'),
  /** Of a sandbox's request alone. */
  testOutcome: text('test_outcome').$type<TestOutcome>(),
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
    /** Ever made, over all rounds. */
    attempts: integer('attempts').notNull().default(0),
    createdAt: time('created_at').notNull(),
    decidedAt: time('decided_at'),
    /** Each is a round of its own: the schedule from its start. */
    resends: integer('resends').notNull().default(0),
    /** The place in the schedule of the attempt that comes next, from 0. */
    step: smallint('step').notNull().default(0),
    stepAt: time('step_at'),
    dueAt: time('due_at'),
    leasedUntil: time('leased_until'),
    /** Host and port that the lease is for. */
    leasedHost: text('leased_host'),
    checkedAt: time('checked_at'),
    forgotten: integer('forgotten').notNull().default(0),
  },
  (t) => [unique().on(t.batchId, t.requestId).nullsNotDistinct()],
);

export const webhookAttempts = pgTable(
  'webhook_attempts',
  {
    deliveryId: text('delivery_id').notNull(),
    n: integer('n').notNull(),
    startedAt: time('started_at').notNull(),
    durationMs: integer('duration_ms').notNull(),
    statusCode: smallint('status_code'),
    reason: text('reason').$type<AttemptReason>(),
    responseExcerpt: bytea('response_excerpt'),
  },
  (t) => [primaryKey({ columns: [t.deliveryId, t.n] })],
);

/** Whose turn it is to sweep: one row. */
export const sweeps = pgTable('sweeps', {
  one: boolean('one').primaryKey().default(true),
  dueAt: time('due_at').notNull(),
  sweptAt: time('swept_at'),
  /** Where the API starts workflows; null if none has said so. */
  namespace: text('namespace'),
});

/** One lookup serves every request that waits for the same NPI and type, across organizations. */
export const lookups = pgTable('lookups', {
  id: text('id').primaryKey(),
  npi: text('npi').notNull(),
  wantedType: text('wanted_type').$type<WantedType>().notNull(),
  openedAt: time('opened_at').notNull(),
  closedAt: time('closed_at'),
  facts: text('facts'),
});

export const vendorAttempts = pgTable(
  'vendor_attempts',
  {
    lookupId: text('lookup_id').notNull(),
    vendor: text('vendor').notNull(),
    n: smallint('n').notNull(),
    requestId: text('request_id').notNull(),
    state: text('state').$type<VendorAttemptState>().notNull(),
    jobRef: text('job_ref'),
    reason: text('reason'),
    leaseUntil: time('lease_until'),
    polls: integer('polls').notNull().default(0),
    credits: numeric('credits', { precision: 12, scale: 3, mode: 'number' }).notNull().default(0),
    candidates: smallint('candidates').notNull().default(0),
    returned: boolean('returned').notNull().default(false),
    startedAt: time('started_at').notNull(),
    endedAt: time('ended_at'),
  },
  (t) => [primaryKey({ columns: [t.lookupId, t.vendor, t.n] })],
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
    checkingUntil: time('checking_until'),
    checkingFor: text('checking_for'),
    isEcho: boolean('is_echo').notNull().default(false),
    mayStore: boolean('may_store').notNull().default(true),
  },
  (t) => [primaryKey({ columns: [t.npi, t.email] })],
);

/** Append-only evidence: who named an address, which check rejected or accepted it, and why. */
export const emailChecks = pgTable('email_checks', {
  id: count('id').primaryKey().generatedAlwaysAsIdentity(),
  npi: text('npi').notNull(),
  email: text('email').notNull(),
  lookupId: text('lookup_id'),
  kind: text('kind').$type<CheckKind>().notNull(),
  source: text('source').notNull(),
  verdict: text('verdict').$type<StoredVerdict>().notNull(),
  reason: text('reason'),
  durationMs: integer('duration_ms'),
  at: time('at').notNull().defaultNow(),
});

export const providers = pgTable('providers', {
  npi: text('npi').primaryKey(),
  /** 1: a person, 2: an organization; null in the rows of deactivated NPIs. */
  entityType: smallint('entity_type'),
  lastName: text('last_name'),
  firstName: text('first_name'),
  middleName: text('middle_name'),
  nameSuffix: text('name_suffix'),
  credential: text('credential'),
  otherLastName: text('other_last_name'),
  otherFirstName: text('other_first_name'),
  organizationName: text('organization_name'),
  parentName: text('parent_name'),
  taxonomyCode: text('taxonomy_code'),
  practiceLine1: text('practice_line_1'),
  practiceLine2: text('practice_line_2'),
  practiceCity: text('practice_city'),
  practiceState: text('practice_state'),
  practicePostalCode: text('practice_postal_code'),
  practicePhone: text('practice_phone'),
  phoneKey: text('phone_key'),
  addressKey: text('address_key'),
  updatedOn: date('updated_on'),
  deactivatedOn: date('deactivated_on'),
  reactivatedOn: date('reactivated_on'),
  deactivated: boolean('deactivated'),
  active: boolean('active').notNull().generatedAlwaysAs(inMigrations),
  origin: text('origin').$type<'nppes' | 'registry'>().notNull(),
  asOf: date('as_of').notNull().default(inMigrations),
  rowHash: count('row_hash').notNull(),
  importedAt: time('imported_at').notNull().defaultNow(),
});

export const providerEndpoints = pgTable(
  'provider_endpoints',
  {
    npi: text('npi').notNull(),
    kind: text('kind').$type<EndpointKind>().notNull(),
    endpoint: text('endpoint').notNull(),
    affiliated: boolean('affiliated'),
    affiliationName: text('affiliation_name'),
  },
  (t) => [primaryKey({ columns: [t.npi, t.kind, t.endpoint] })],
);

export const providerOtherNames = pgTable(
  'provider_other_names',
  {
    npi: text('npi').notNull(),
    name: text('name').notNull(),
    typeCode: text('type_code').notNull(),
  },
  (t) => [primaryKey({ columns: [t.npi, t.name, t.typeCode] })],
);

export const providerLocations = pgTable(
  'provider_locations',
  {
    npi: text('npi').notNull(),
    line1: text('line_1').notNull(),
    line2: text('line_2').notNull(),
    city: text('city').notNull(),
    state: text('state').notNull(),
    postalCode: text('postal_code').notNull(),
    phone: text('phone'),
    phoneKey: text('phone_key'),
    addressKey: text('address_key'),
  },
  (t) => [primaryKey({ columns: [t.npi, t.line1, t.line2, t.city, t.state, t.postalCode] })],
);

export const clinicianPractices = pgTable(
  'clinician_practices',
  {
    npi: text('npi').notNull(),
    pacId: text('pac_id').notNull(),
    phoneKey: text('phone_key').notNull(),
    addressKey: text('address_key').notNull(),
    name: text('name'),
    members: integer('members'),
  },
  (t) => [primaryKey({ columns: [t.npi, t.pacId, t.phoneKey, t.addressKey] })],
);

export const employerDomains = pgTable('employer_domains', {
  key: text('key').primaryKey(),
  domain: text('domain').notNull(),
});

export const importRuns = pgTable('import_runs', {
  id: text('id').primaryKey(),
  kind: text('kind').$type<ImportKind>().notNull(),
  file: text('file').notNull(),
  fingerprint: text('fingerprint').notNull(),
  state: text('state').$type<'running' | 'done' | 'failed'>().notNull(),
  counts: jsonb('counts').$type<Record<string, number>>().notNull().default({}),
  startedAt: time('started_at').notNull().defaultNow(),
  finishedAt: time('finished_at'),
});

export const suppressions = pgTable(
  'suppressions',
  {
    kind: text('kind').$type<SuppressionKind>().notNull(),
    /** An NPI; the hex SHA-256 of an address in lower case; a domain. */
    value: text('value').notNull(),
    origin: text('origin').$type<SuppressionOrigin>().notNull(),
    reason: text('reason').notNull().default(''),
    createdAt: time('created_at').notNull().defaultNow(),
  },
  (t) => [primaryKey({ columns: [t.kind, t.value] })],
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
  dbUser: text('db_user'),
  hash: bytea('hash'),
});
