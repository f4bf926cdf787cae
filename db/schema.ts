import { sql } from 'drizzle-orm';
import {
  bigint,
  boolean,
  customType,
  date,
  integer,
  numeric,
  pgTable,
  smallint,
  text,
  timestamp,
} from 'drizzle-orm/pg-core';
import type * as words from './words.ts';

// The tables for drizzle's query builder. Tables that only raw SQL uses are missing. Checks,
// triggers, and generated columns are defined only in migrations/. A test compares both column by
// column.

/** A placeholder for an expression that is defined in the migrations. */
const inMigrations = sql`(see migrations)`;

const time = (name: string) => timestamp(name, { withTimezone: true, precision: 3, mode: 'date' });
const bytea = customType<{ data: Buffer; driverData: Buffer }>({ dataType: () => 'bytea' });
const count = (name: string) => bigint(name, { mode: 'number' });

export const batches = pgTable('batches', {
  id: text('id').primaryKey(),
  organizationId: text('organization_id').notNull(),
  apiKeyId: text('api_key_id'),
  webhookUrl: text('webhook_url'),
  submittedAs: text('submitted_as').$type<words.SubmittedAs>().notNull(),
  wantedType: text('wanted_type').$type<words.WantedType>().notNull(),
  total: smallint('total').notNull(),
  completedCount: smallint('completed_count').notNull().default(0),
  status: text('status')
    .$type<'in-progress' | 'completed'>()
    .notNull()
    .generatedAlwaysAs(inMigrations),
  webhookMode: text('webhook_mode').$type<words.WebhookMode>(),
  /** Escaped JSON text exactly as it was sent. Both jsonb and JSON.parse would change it. */
  customData: text('custom_data'),
  createdAt: time('created_at').notNull(),
  deadlineAt: time('deadline_at').notNull(),
  updatedAt: timestamp('updated_at', { withTimezone: true }).notNull(),
  startedAt: time('started_at'),
  checkedAt: time('checked_at'),
});

export const requests = pgTable('requests', {
  id: text('id').primaryKey(),
  batchId: text('batch_id').notNull(),
  organizationId: text('organization_id').notNull(),
  npi: text('npi').notNull(),
  position: smallint('position').notNull(),
  wantedType: text('wanted_type').$type<words.WantedType>().notNull(),
  /** The price in credits if an email is found. */
  cost: smallint('cost').notNull(),
  status: text('status').$type<words.RequestStatus>().notNull(),
  replayed: boolean('replayed').notNull().default(false),
  creditsUsed: smallint('credits_used').notNull().generatedAlwaysAs(inMigrations),
  email: text('email'),
  reason: text('reason'),
  emailType: text('email_type').$type<words.EmailType>(),
  emailLastValidatedAt: time('email_last_validated_at'),
  startedAt: time('started_at'),
  settledAt: time('settled_at'),
  suppressionChange: count('suppression_change'),
  acceptedAt: time('accepted_at').notNull(),
  deadlineAt: time('deadline_at').notNull(),
  /** The lookup that it waits for, or waited for. Null if no lookup was needed. */
  lookupId: text('lookup_id'),
  /** The time when its email was erased at the person's request. */
  erasedAt: time('erased_at'),
  /** Only for sandbox requests. */
  testOutcome: text('test_outcome').$type<words.TestOutcome>(),
});

export const webhookDeliveries = pgTable('webhook_deliveries', {
  id: text('id').primaryKey(),
  batchId: text('batch_id').notNull(),
  /** Null for the one delivery of a batch in `batch` mode. */
  requestId: text('request_id'),
  state: text('state').$type<words.DeliveryState>().notNull(),
  /** The number of attempts in all rounds. */
  attempts: integer('attempts').notNull().default(0),
  createdAt: time('created_at').notNull(),
  /** The number of resends. Each resend starts the schedule again, as a new round. */
  resends: integer('resends').notNull().default(0),
  /** The position of the next attempt in the schedule, from 0. */
  step: smallint('step').notNull().default(0),
  stepAt: time('step_at'),
  dueAt: time('due_at'),
  leasedUntil: time('leased_until'),
  checkedAt: time('checked_at'),
  decidedAt: time('decided_at'),
  /** The host and port that the lease is for. */
  leasedHost: text('leased_host'),
  /** Times of the customer's resends, the newest first, at most ten. */
  customerResends: time('customer_resends').array().notNull().default(inMigrations),
  forgotten: integer('forgotten').notNull().default(0),
});

export const webhookAttempts = pgTable('webhook_attempts', {
  deliveryId: text('delivery_id').notNull(),
  n: integer('n').notNull(),
  startedAt: time('started_at').notNull(),
  durationMs: integer('duration_ms').notNull(),
  statusCode: smallint('status_code'),
  reason: text('reason').$type<words.AttemptReason>(),
  responseExcerpt: bytea('response_excerpt'),
});

/** A lookup serves all requests that wait for the same NPI and type, across organizations. */
export const lookups = pgTable('lookups', {
  id: text('id').primaryKey(),
  npi: text('npi').notNull(),
  wantedType: text('wanted_type').$type<words.WantedType>().notNull(),
  openedAt: time('opened_at').notNull(),
  closedAt: time('closed_at'),
  facts: text('facts'),
});

export const vendorAttempts = pgTable('vendor_attempts', {
  lookupId: text('lookup_id').notNull(),
  vendor: text('vendor').notNull(),
  requestId: text('request_id').notNull(),
  n: smallint('n').notNull(),
  state: text('state').$type<words.VendorAttemptState>().notNull(),
  jobRef: text('job_ref'),
  reason: text('reason'),
  leaseUntil: time('lease_until'),
  endedAt: time('ended_at'),
  polls: integer('polls').notNull().default(0),
  credits: numeric('credits', { precision: 12, scale: 3, mode: 'number' }).notNull().default(0),
  candidates: smallint('candidates').notNull().default(0),
  returned: boolean('returned').notNull().default(false),
  waitedMs: integer('waited_ms').notNull().default(0),
  startedAt: time('started_at').notNull(),
});

export const sourceSlots = pgTable('source_slots', {
  source: text('source').notNull(),
  requestId: text('request_id').notNull(),
  organizationId: text('organization_id').notNull(),
  round: count('round').notNull(),
  n: count('n').notNull().generatedAlwaysAsIdentity(),
  askedAt: time('asked_at').notNull(),
  slotAt: time('slot_at').notNull(),
  isReserved: boolean('is_reserved').notNull(),
});

export const storedEmails = pgTable('stored_emails', {
  npi: text('npi').notNull(),
  email: text('email').notNull(),
  source: text('source').notNull(),
  emailType: text('email_type').$type<words.EmailType>(),
  verdict: text('verdict').$type<words.StoredVerdict>().notNull(),
  reason: text('reason'),
  checkingFor: text('checking_for'),
  lastValidatedAt: time('last_validated_at'),
  checkingUntil: time('checking_until'),
  unchecked: boolean('unchecked').notNull().default(false),
  firstSeenAt: time('first_seen_at').notNull().defaultNow(),
  updatedAt: time('updated_at').notNull().defaultNow(),
  isEcho: boolean('is_echo').notNull().default(false),
  mayStore: boolean('may_store').notNull().default(true),
});

/**
 * Append-only evidence: the source that named an address, the check that rejected or accepted it,
 * and the reason.
 */
export const emailChecks = pgTable('email_checks', {
  id: count('id').primaryKey().generatedAlwaysAsIdentity(),
  npi: text('npi').notNull(),
  email: text('email').notNull(),
  source: text('source').notNull(),
  lookupId: text('lookup_id'),
  reason: text('reason'),
  kind: text('kind').$type<words.CheckKind>().notNull(),
  verdict: text('verdict').$type<words.StoredVerdict>().notNull(),
  durationMs: integer('duration_ms'),
  waitedMs: integer('waited_ms'),
  at: time('at').notNull().defaultNow(),
});

export const providers = pgTable('providers', {
  npi: text('npi').primaryKey(),
  /** 1: a person, 2: an organization. Null in the rows of deactivated NPIs. */
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
  phoneKey: text('phone_key'),
  addressKey: text('address_key'),
  practiceLine1: text('practice_line_1'),
  practiceLine2: text('practice_line_2'),
  practiceCity: text('practice_city'),
  practiceState: text('practice_state'),
  practicePostalCode: text('practice_postal_code'),
  practicePhone: text('practice_phone'),
  updatedOn: date('updated_on'),
  deactivatedOn: date('deactivated_on'),
  reactivatedOn: date('reactivated_on'),
  deactivated: boolean('deactivated'),
  active: boolean('active').notNull().generatedAlwaysAs(inMigrations),
  origin: text('origin').$type<'nppes' | 'registry'>().notNull(),
  asOf: date('as_of').notNull().default(inMigrations),
  rowHash: count('row_hash').notNull(),
  importNumber: integer('import_number'),
  importedAt: time('imported_at').notNull().defaultNow(),
});

export const providerEndpoints = pgTable('provider_endpoints', {
  npi: text('npi').notNull(),
  endpoint: text('endpoint').notNull(),
  kind: text('kind').$type<words.EndpointKind>().notNull(),
  affiliationName: text('affiliation_name'),
  importNumber: integer('import_number'),
});

export const providerOtherNames = pgTable('provider_other_names', {
  npi: text('npi').notNull(),
  name: text('name').notNull(),
  typeCode: text('type_code').notNull(),
  importNumber: integer('import_number'),
});

export const providerLocations = pgTable('provider_locations', {
  npi: text('npi').notNull(),
  line1: text('line_1').notNull(),
  line2: text('line_2').notNull(),
  city: text('city').notNull(),
  state: text('state').notNull(),
  postalCode: text('postal_code').notNull(),
  phone: text('phone'),
  phoneKey: text('phone_key'),
  addressKey: text('address_key'),
  importNumber: integer('import_number'),
});
