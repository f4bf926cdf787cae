import { sql } from 'drizzle-orm';
import {
  check,
  cidr,
  foreignKey,
  index,
  integer,
  pgTable,
  primaryKey,
  smallint,
  text,
  unique,
  uniqueIndex,
} from 'drizzle-orm/pg-core';
import type * as words from '../words.ts';
import { organizations } from './accounts.ts';
import { bytea, clockTime, time } from './columns.ts';
import { batches, requests } from './requests.ts';

// Webhooks: deliveries and when their next attempts are due, the log of attempts, the health of
// receivers, and blocked targets.

export const webhookDeliveries = pgTable(
  'webhook_deliveries',
  {
    id: text('id').primaryKey(),
    /** The batch has the URL. The body is built at each attempt. */
    batchId: text('batch_id').notNull(),
    /** Null for the one delivery of a batch in `batch` mode. */
    requestId: text('request_id'),
    /** The recipient, which is the organization of the batch. */
    organizationId: text('organization_id').notNull(),
    state: text('state').$type<words.DeliveryState>().notNull(),
    /** The number of all attempts, including those after resends. */
    attempts: integer('attempts').notNull().default(0),
    /** The number of resends. Each resend starts the retry schedule again from its first step. */
    resends: integer('resends').notNull().default(0),
    /** The position of the next attempt in the retry schedule, from 0. */
    step: smallint('step').notNull().default(0),
    /** The time at which the next attempt is due according to the retry schedule. */
    stepAt: time('step_at'),
    /**
     * The earliest time of the next attempt. It is later than step_at if the attempt waits for an
     * unavailable receiver.
     */
    dueAt: time('due_at'),
    /** The end of the running attempt's lease. Until then, no other worker starts an attempt. */
    leasedUntil: time('leased_until'),
    /**
     * The host and port of the running attempt. It is used to count the concurrent attempts of all
     * workers to a host.
     */
    leasedHost: text('leased_host'),
    /** The time when the sweep last checked that the workflow of the delivery is running. */
    checkedAt: time('checked_at'),
    /**
     * The times of the last resends by the customer, the newest first. At most ten are kept,
     * because the limit is ten resends per hour.
     */
    customerResends: time('customer_resends').array().notNull().default(sql`'{}'`),
    /**
     * The number of attempts that were deleted from webhook_attempts at the end of their retention.
     * The oldest attempts are deleted first.
     */
    forgotten: integer('forgotten').notNull().default(0),
    createdAt: time('created_at').notNull(),
    decidedAt: time('decided_at'),
  },
  (table) => [
    foreignKey({
      name: 'webhook_deliveries_batch_id_fkey',
      columns: [table.batchId],
      foreignColumns: [batches.id],
    }),
    foreignKey({
      name: 'webhook_deliveries_request_id_fkey',
      columns: [table.requestId],
      foreignColumns: [requests.id],
    }),
    foreignKey({
      name: 'webhook_deliveries_organization_id_fkey',
      columns: [table.organizationId],
      foreignColumns: [organizations.id],
    }),
    unique('webhook_deliveries_batch_id_request_id_key').on(
      table.batchId,
      table.requestId,
    ),
    uniqueIndex('webhook_deliveries_of_batch')
      .on(table.batchId)
      .where(sql`request_id is null`),
    check(
      'webhook_deliveries_state_check',
      sql`state in ('pending', 'delivered', 'failed', 'none')`,
    ),
    check(
      'webhook_deliveries_check',
      sql`(decided_at is null) = (state in ('pending', 'none'))`,
    ),
    check(
      'webhook_deliveries_waits_only_pending',
      sql`state = 'pending' or num_nonnulls(step_at, due_at) = 0`,
    ),
    check(
      'webhook_deliveries_customer_resends',
      sql`cardinality(customer_resends) <= 10`,
    ),
    check('webhook_deliveries_forgotten', sql`forgotten between 0 and attempts`),
    // Used by the organization's list, which reads each state separately, newest first.
    index('webhook_deliveries_by_organization').on(
      table.organizationId,
      table.state,
      table.createdAt,
    ),
    // Used by the foreign key when a sandbox request is deleted.
    index('webhook_deliveries_by_request')
      .on(table.requestId)
      .where(sql`request_id is not null`),
    index('webhook_deliveries_pending').on(table.batchId).where(sql`state = 'pending'`),
    // Used by the sweep, which checks that each pending delivery that is due has a workflow. The
    // batch workflow makes only the first attempt. Later attempts are made by the delivery's own
    // workflow.
    index('webhook_deliveries_to_look_after')
      .on(sql`greatest(checked_at, due_at, created_at)`)
      .where(sql`state = 'pending'`),
    index('webhook_deliveries_failed').on(table.decidedAt).where(sql`state = 'failed'`),
    index('webhook_deliveries_leased')
      .on(table.leasedUntil)
      .where(sql`leased_until is not null`),
  ],
);

export const webhookAttempts = pgTable(
  'webhook_attempts',
  {
    deliveryId: text('delivery_id').notNull(),
    n: integer('n').notNull(),
    startedAt: time('started_at').notNull(),
    durationMs: integer('duration_ms').notNull(),
    statusCode: smallint('status_code'),
    /**
     * The reason why the attempt failed, or a note about the response. It can be set in addition to
     * the status code.
     */
    reason: text('reason').$type<words.AttemptReason>(),
    responseExcerpt: bytea('response_excerpt'),
  },
  (table) => [
    primaryKey({ name: 'webhook_attempts_pkey', columns: [table.deliveryId, table.n] }),
    foreignKey({
      name: 'webhook_attempts_delivery_id_fkey',
      columns: [table.deliveryId],
      foreignColumns: [webhookDeliveries.id],
    }),
    check(
      'webhook_attempts_response_excerpt_check',
      sql`octet_length(response_excerpt) <= 1024`,
    ),
    index('webhook_attempts_by_age').on(table.startedAt),
  ],
);

/**
 * The health of the hosts that receive webhooks. There is a row per organization and host, so that
 * a broken endpoint of one organization does not delay the deliveries of another organization to
 * the same host. `turn_at` schedules the deliveries that wait for the host one after the other.
 * After the host works again, the row stays until the retention job deletes it.
 */
export const webhookHosts = pgTable(
  'webhook_hosts',
  {
    organizationId: text('organization_id').notNull(),
    host: text('host').notNull(),
    /** The number of consecutive attempts without a response. */
    failures: integer('failures').notNull(),
    failingSince: time('failing_since'),
    lastReason: text('last_reason'),
    /** The time of the next trial attempt; null while the circuit breaker is closed. */
    openUntil: time('open_until'),
    timesOpened: integer('times_opened').notNull().default(0),
    /** Increased each time the circuit breaker opens. */
    era: integer('era').notNull().default(0),
    /**
     * The last turn that a waiting delivery has reserved. The next delivery that has to wait for
     * the host gets a later turn.
     */
    turnAt: time('turn_at'),
    /**
     * When the host last returned a 2xx response to a delivery of this organization, accurate to
     * one day. Null if it never did.
     */
    acceptedAt: time('accepted_at'),
    /**
     * The networks from which the host returned 2xx responses, newest first. Attempts to other
     * addresses are limited by webhook_networks, because the owner of the host name can point it at
     * the machine of someone who does not want our webhooks.
     */
    provenNetworks: cidr('proven_networks').array().notNull().default(sql`'{}'`),
  },
  (table) => [
    primaryKey({
      name: 'webhook_hosts_pkey',
      columns: [table.organizationId, table.host],
    }),
    foreignKey({
      name: 'webhook_hosts_organization_id_fkey',
      columns: [table.organizationId],
      foreignColumns: [organizations.id],
    }),
    index('webhook_hosts_by_age').on(
      sql`greatest(failing_since, open_until, turn_at, accepted_at)`,
    ),
  ],
);

/**
 * Limits the attempts to each network, so that our deliveries cannot be used to attack third
 * parties. An attempt is not counted if its host has already returned a 2xx response from this
 * network to the same organization. All host names and ports share the limits. A row holds what is
 * left of the limit of one customer, or of all customers together, for one network.
 */
export const webhookNetworks = pgTable(
  'webhook_networks',
  {
    network: cidr('network').notNull(),
    /**
     * The id of the customer's organization, also for attempts of its sandbox. Empty for all
     * customers together.
     */
    customerId: text('customer_id').notNull(),
    /** The time at which the full number of attempts is allowed again. */
    spentUntil: time('spent_until').notNull(),
  },
  (table) => [
    primaryKey({
      name: 'webhook_networks_pkey',
      columns: [table.network, table.customerId],
    }),
    index('webhook_networks_by_age').on(table.spentUntil),
  ],
);

/** Targets that operators have blocked. */
export const webhookBlocks = pgTable(
  'webhook_blocks',
  {
    /** An address range such as 192.0.2.0/24, or a host with all its subdomains. */
    target: text('target').primaryKey(),
    reason: text('reason').notNull(),
    createdAt: time('created_at').notNull().default(clockTime),
  },
  () => [check('webhook_blocks_target_check', sql`target ~ '^[0-9a-z.:_-]+(/[0-9]+)?$'`)],
);
