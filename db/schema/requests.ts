import { sql } from 'drizzle-orm';
import {
  bigint,
  boolean,
  check,
  foreignKey,
  index,
  pgTable,
  primaryKey,
  smallint,
  text,
  timestamp,
  unique,
  uniqueIndex,
} from 'drizzle-orm/pg-core';
import * as words from '../words.ts';
import { apiKeys, organizations } from './accounts.ts';
import { bytea, bytewiseText, isOneOf, time } from './columns.ts';

// Batches, their requests, and the lookups that find the results.

/**
 * A lookup searches for an email of one NPI and requested type. All open requests for this NPI and
 * type share it, even if they belong to different organizations.
 */
export const lookups = pgTable(
  'lookups',
  {
    id: text('id').primaryKey(),
    npi: bytewiseText('npi').notNull(),
    requestedType: text('requested_type').$type<words.RequestedType>().notNull(),
    openedAt: time('opened_at').notNull(),
    /**
     * Set when a request of this lookup gets its result, or when the last open request of the
     * lookup has failed. After that, the next request for the NPI and type opens a new lookup.
     */
    closedAt: time('closed_at'),
    /**
     * The hash of what we knew about the person when the lookup began (the facts). A later lookup
     * with the same hash skips the vendors that had no result in this lookup. Null if later lookups
     * must call all vendors.
     */
    facts: text('facts'),
    /** Our knowledge of the employer when the lookup began. Vendors' hit rates depend on it. */
    employer: text('employer').$type<words.EmployerKind>(),
    /**
     * The request that has the lookup's turn. Only its worker calls a vendor or checks addresses.
     * Null before the first turn, and after a turn is given back.
     */
    turnOf: text('turn_of'),
    /** The end of the turn. It is over then, even if the worker did not give it back. */
    turnUntil: time('turn_until'),
  },
  (table) => [
    check('lookups_npi_check', sql`npi ~ '^[0-9]{10}$'`),
    check(
      'lookups_requested_type_check',
      isOneOf('requested_type', words.REQUESTED_TYPES),
    ),
    check('lookups_employer_check', isOneOf('employer', words.EMPLOYER_KINDS)),
    check('lookups_turn_check', sql`(turn_of is null) = (turn_until is null)`),
    uniqueIndex('lookups_open')
      .on(table.npi, table.requestedType)
      .where(sql`closed_at is null`),
    index('lookups_by_npi').on(table.npi, table.openedAt),
    index('lookups_facts_by_age').on(table.openedAt).where(sql`facts is not null`),
  ],
);

export const batches = pgTable(
  'batches',
  {
    id: text('id').primaryKey(),
    organizationId: text('organization_id').notNull(),
    apiKeyId: text('api_key_id'),
    submittedAs: text('submitted_as').$type<words.SubmittedAs>().notNull(),
    requestedType: text('requested_type').$type<words.RequestedType>().notNull(),
    total: smallint('total').notNull(),
    completedCount: smallint('completed_count').notNull().default(0),
    status: text('status')
      .$type<'in-progress' | 'completed'>()
      .notNull()
      .generatedAlwaysAs(
        sql`case when completed_count = total then 'completed' else 'in-progress' end`,
      ),
    webhookUrl: text('webhook_url'),
    webhookMode: text('webhook_mode').$type<words.WebhookMode>(),
    /**
     * The JSON text exactly as the client sent it, with its escapes. jsonb and JSON.parse would
     * change details such as the precision of numbers.
     */
    customData: text('custom_data'),
    createdAt: time('created_at').notNull(),
    /**
     * The time of the last change. It is also the version of the batch's envelope, so each change
     * must set a later time than before (see the SQL function `later`).
     */
    updatedAt: timestamp('updated_at', { withTimezone: true }).notNull(),
    deadlineAt: time('deadline_at').notNull(),
    /**
     * When the workflow of the batch was allowed to start. Null while the batch waits for its turn
     * (DECISIONS.md, Keys and rate).
     */
    admittedAt: time('admitted_at'),
    /** Null until the batch workflow is started. Batches with null form the outbox. */
    startedAt: time('started_at'),
    /** The time when the sweep last checked that the workflows of this batch are running. */
    checkedAt: time('checked_at'),
  },
  (table) => [
    foreignKey({
      name: 'batches_organization_id_fkey',
      columns: [table.organizationId],
      foreignColumns: [organizations.id],
    }),
    foreignKey({
      name: 'batches_api_key_id_fkey',
      columns: [table.apiKeyId],
      foreignColumns: [apiKeys.id],
    }),
    check('batches_submitted_as_check', sql`submitted_as in ('single', 'bulk')`),
    check(
      'batches_requested_type_check',
      isOneOf('requested_type', words.REQUESTED_TYPES),
    ),
    check('batches_total_check', sql`total between 1 and 60`),
    check('batches_check', sql`completed_count between 0 and total`),
    check('batches_webhook_mode_check', sql`webhook_mode in ('real-time', 'batch')`),
    check('batches_custom_data_check', sql`octet_length(custom_data) <= 16384`),
    // The erasure of an organization deletes the URL and keeps the mode.
    check('batches_check1', sql`webhook_url is null or webhook_mode is not null`),
    check('batches_check2', sql`submitted_as = 'bulk' or total = 1`),
    index('batches_to_admit')
      .on(table.organizationId, table.createdAt)
      .where(sql`admitted_at is null`),
    // A batch is late if it was not started soon after its admission, or not admitted in time.
    index('batches_to_start')
      .on(sql`coalesce(admitted_at, deadline_at)`)
      .where(sql`started_at is null`),
    index('batches_in_progress').on(table.id).where(sql`status = 'in-progress'`),
    index('batches_by_organization').on(table.organizationId, table.createdAt),
    // Used by the retention job, which reads the oldest rows first.
    index('batches_custom_data_by_age')
      .on(table.createdAt)
      .where(sql`custom_data is not null`),
  ],
);

export const requests = pgTable(
  'requests',
  {
    id: text('id').primaryKey(),
    /**
     * The id of a batch of the same organization. The trigger function count_settled_requests
     * checks this.
     */
    batchId: text('batch_id').notNull(),
    organizationId: text('organization_id').notNull(),
    position: smallint('position').notNull(),
    npi: bytewiseText('npi').notNull(),
    requestedType: text('requested_type').$type<words.RequestedType>().notNull(),
    /**
     * The price in credits if an email is found. It is set at submit, so that a price change does
     * not affect past requests.
     */
    cost: smallint('cost').notNull(),
    status: text('status').$type<words.RequestStatus>().notNull(),
    /** The lookup that the request waits for, or waited for. Null if no lookup was needed. */
    lookupId: text('lookup_id'),
    replayed: boolean('replayed').notNull().default(false),
    creditsUsed: smallint('credits_used')
      .notNull()
      .generatedAlwaysAs(
        sql`case when status = 'completed' and not replayed then cost else 0 end`,
      ),
    email: text('email'),
    emailType: text('email_type').$type<words.EmailType>(),
    emailLastValidatedAt: time('email_last_validated_at'),
    /**
     * The value of suppression_changes.n when this email was last known not to be suppressed. As
     * long as the value is the same, the email is returned without checking the suppressions.
     */
    suppressionChange: bigint('suppression_change', { mode: 'number' }),
    /** The reason why there is no email. Only operators see it, and the API never returns it. */
    reason: text('reason'),
    acceptedAt: time('accepted_at').notNull(),
    deadlineAt: time('deadline_at').notNull(),
    startedAt: time('started_at'),
    settledAt: time('settled_at'),
    /**
     * The time when the request's email was erased, at the person's request or at the end of its
     * retention. The charge stays in the ledger.
     */
    erasedAt: time('erased_at'),
    /** The simulated outcome of a sandbox request; null for all other requests. */
    testOutcome: text('test_outcome').$type<words.TestOutcome>(),
  },
  (table) => [
    foreignKey({
      name: 'requests_lookup_id_fkey',
      columns: [table.lookupId],
      foreignColumns: [lookups.id],
    }),
    unique('requests_batch_id_position_key').on(table.batchId, table.position),
    check('requests_position_check', sql`position between 0 and 59`),
    check('requests_npi_check', sql`npi ~ '^[0-9]{10}$'`),
    check(
      'requests_requested_type_check',
      isOneOf('requested_type', words.REQUESTED_TYPES),
    ),
    check('requests_cost_positive', sql`cost > 0`),
    check('requests_status_check', isOneOf('status', words.REQUEST_STATUSES)),
    check('requests_email_type_check', isOneOf('email_type', words.EMAIL_TYPES)),
    check(
      'requests_test_outcome_check',
      sql`test_outcome in (
        'professional', 'personal', 'found', 'stored', 'replayed', 'slow', 'greylisted',
        'not_found', 'failed', 'deadline'
      )`,
    ),
    check(
      'requests_email_iff_completed',
      sql`num_nonnulls(email, email_type, email_last_validated_at) =
        case when status = 'completed' and erased_at is null then 3 else 0 end`,
    ),
    check(
      'requests_settled_iff_final',
      sql`(settled_at is not null) = (${isOneOf('status', words.FINAL_STATUSES)})`,
    ),
    check('requests_replayed_only_completed', sql`not replayed or status = 'completed'`),
    check(
      'requests_erased_only_completed',
      sql`erased_at is null or status = 'completed'`,
    ),
    check(
      'requests_requested_type_is_a_filter',
      sql`status <> 'completed' or requested_type = 'any' or email_type = requested_type`,
    ),
    check(
      'requests_test_is_of_sandbox',
      sql`is_sandbox(organization_id) = (test_outcome is not null)`,
    ),
    // A sandbox request never joins a lookup, because all organizations share lookups.
    check(
      'requests_test_joins_no_lookup',
      sql`num_nonnulls(test_outcome, lookup_id) < 2`,
    ),
    index('requests_unplanned')
      .on(table.organizationId, table.acceptedAt)
      .where(sql`status = 'accepted'`),
    index('requests_open').on(table.deadlineAt).where(sql`settled_at is null`),
    index('requests_by_npi').on(table.npi, table.organizationId),
    // Finds the requests that were settled in a period. Rows are stored roughly in the order of
    // time, so a BRIN index is enough. It is small and costs little to update.
    index('requests_by_settlement').using('brin', table.settledAt),
    index('requests_by_lookup').on(table.lookupId).where(sql`lookup_id is not null`),
    index('requests_by_email').on(table.email).where(sql`email is not null`),
    index('requests_results_by_age').on(table.settledAt).where(sql`email is not null`),
  ],
);

export const idempotencyKeys = pgTable(
  'idempotency_keys',
  {
    organizationId: text('organization_id').notNull(),
    method: text('method').notNull(),
    path: text('path').notNull(),
    key: text('key').notNull(),
    fingerprint: bytea('fingerprint').notNull(),
    /**
     * The response body that the first submit with this key got, and that repeated submits get
     * again. Null only inside the transaction that inserts the batch.
     */
    response: text('response'),
    createdAt: time('created_at').notNull(),
    expiresAt: time('expires_at').notNull(),
  },
  (table) => [
    primaryKey({
      name: 'idempotency_keys_pkey',
      columns: [table.organizationId, table.method, table.path, table.key],
    }),
    foreignKey({
      name: 'idempotency_keys_organization_id_fkey',
      columns: [table.organizationId],
      foreignColumns: [organizations.id],
    }),
    check('idempotency_keys_key_check', sql`length(key) between 1 and 255`),
    index('idempotency_keys_by_expiry').on(table.expiresAt),
  ],
);
