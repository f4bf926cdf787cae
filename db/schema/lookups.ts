import { sql } from 'drizzle-orm';
import {
  boolean,
  check,
  date,
  doublePrecision,
  foreignKey,
  index,
  integer,
  numeric,
  pgTable,
  primaryKey,
  real,
  smallint,
  text,
  timestamp,
  uniqueIndex,
} from 'drizzle-orm/pg-core';
import * as words from '../words.ts';
import { bytewiseText, clockTime, count, isOneOf, time } from './columns.ts';
import { lookups, requests } from './requests.ts';

// Calls to vendors and other sources, and the addresses and evidence that these calls found.

/**
 * A row is one call to a vendor, or it says that a lookup skipped a vendor. The row of a call is
 * inserted before the call is made, so that the call is known even if the worker crashes.
 */
export const vendorAttempts = pgTable(
  'vendor_attempts',
  {
    lookupId: text('lookup_id').notNull(),
    vendor: text('vendor').notNull(),
    n: smallint('n').notNull(),
    /** The request whose workflow made the call. All requests of the lookup share its result. */
    requestId: text('request_id').notNull(),
    state: text('state').$type<words.VendorAttemptState>().notNull(),
    jobRef: text('job_ref'),
    reason: text('reason'),
    /** The time of the next poll, while the vendor works on a job. */
    nextPollAt: time('next_poll_at'),
    /** The time when next_poll_at was set. */
    polledAt: time('polled_at'),
    polls: integer('polls').notNull().default(0),
    /**
     * The cost in the vendor's credits. The expected cost is reserved before the call, and is
     * replaced by the actual cost after the response.
     */
    credits: numeric('credits', { precision: 12, scale: 3, mode: 'number' })
      .notNull()
      .default(0),
    candidates: smallint('candidates').notNull().default(0),
    /** True if a client received an address that this call found. */
    returned: boolean('returned').notNull().default(false),
    /** How long the call waited for its slot under the vendor's rate limits, in milliseconds. */
    waitedMs: integer('waited_ms').notNull().default(0),
    startedAt: time('started_at').notNull(),
    endedAt: time('ended_at'),
  },
  (table) => [
    primaryKey({
      name: 'vendor_attempts_pkey',
      columns: [table.lookupId, table.vendor, table.n],
    }),
    foreignKey({
      name: 'vendor_attempts_lookup_id_fkey',
      columns: [table.lookupId],
      foreignColumns: [lookups.id],
    }),
    foreignKey({
      name: 'vendor_attempts_request_id_fkey',
      columns: [table.requestId],
      foreignColumns: [requests.id],
    }),
    check(
      'vendor_attempts_state_check',
      sql`state in (
        'submitting', 'pending', 'found', 'miss', 'skip', 'blocked', 'retry', 'fatal', 'lost'
      )`,
    ),
    check('vendor_attempts_credits_check', sql`credits >= 0`),
    check(
      'vendor_attempts_check',
      sql`(ended_at is null) = (state in ('submitting', 'pending'))`,
    ),
    check('vendor_attempts_check1', sql`state <> 'pending' or job_ref is not null`),
    // A lookup has at most one open call per vendor, even if several requests share the lookup.
    uniqueIndex('vendor_attempts_open')
      .on(table.lookupId, table.vendor)
      .where(sql`ended_at is null`),
    index('vendor_attempts_by_time').on(table.startedAt),
    // Used by the foreign key when a sandbox request is deleted.
    index('vendor_attempts_by_request').on(table.requestId),
  ],
);

/**
 * The health of all sources that cost money or have limits: vendors, verifiers, and the NPI
 * registry.
 */
export const sourceHealth = pgTable(
  'source_health',
  {
    source: text('source').primaryKey(),
    state: text('state').$type<'closed' | 'open'>().notNull().default('closed'),
    failures: integer('failures').notNull().default(0),
    /**
     * The number of times that the circuit breaker was opened or closed. The outcome of a call that
     * was admitted in an earlier era is ignored.
     */
    era: integer('era').notNull().default(0),
    /** The time when open_until was set. */
    openedAt: time('opened_at'),
    /** The time of the next trial call while the breaker is open. */
    openUntil: time('open_until'),
    /** The time when paused_until was set. */
    pausedAt: time('paused_at'),
    /**
     * The end of the pause that the source asked for with Retry-After. Until then, no calls are
     * made.
     */
    pausedUntil: time('paused_until'),
    lastError: text('last_error'),
  },
  () => [check('source_health_state_check', sql`state in ('closed', 'open')`)],
);

/** A row per rate limit of a source, with the time of the next call if calls were evenly spaced. */
export const sourceRates = pgTable(
  'source_rates',
  {
    source: text('source').notNull(),
    limitName: text('limit_name').notNull(),
    nextAt: timestamp('next_at', { withTimezone: true }).notNull(),
  },
  (table) => [
    primaryKey({ name: 'source_rates_pkey', columns: [table.source, table.limitName] }),
  ],
);

/**
 * Requests that wait for a slot under a source's rate limits. They get slots in the order of
 * `round` and then `n` (see the function next_slot).
 */
export const sourceSlots = pgTable(
  'source_slots',
  {
    source: text('source').notNull(),
    requestId: text('request_id').notNull(),
    organizationId: text('organization_id').notNull(),
    round: count('round').notNull(),
    n: count('n').notNull().generatedAlwaysAsIdentity(),
    /** The time when the request first asked for a slot. */
    askedAt: time('asked_at').notNull(),
    /**
     * The time of the reserved slot. If no slot is reserved yet, the time at which one is expected.
     */
    slotAt: time('slot_at').notNull(),
    isReserved: boolean('is_reserved').notNull(),
  },
  (table) => [
    primaryKey({ name: 'source_slots_pkey', columns: [table.source, table.requestId] }),
    check('source_slots_organization_id_check', sql`not is_sandbox(organization_id)`),
    index('source_slots_by_request').on(table.requestId),
  ],
);

/** The credits spent at a source per day (UTC). */
export const sourceSpend = pgTable(
  'source_spend',
  {
    source: text('source').notNull(),
    day: date('day').notNull(),
    /**
     * The organization whose requests used the credits; empty for calls that no request waited for.
     */
    organizationId: text('organization_id').notNull().default(''),
    credits: numeric('credits', { precision: 14, scale: 3, mode: 'number' })
      .notNull()
      .default(0),
  },
  (table) => [
    primaryKey({
      name: 'source_spend_pkey',
      columns: [table.source, table.day, table.organizationId],
    }),
    check('source_spend_organization_id_check', sql`not is_sandbox(organization_id)`),
    check('source_spend_credits_check', sql`credits >= 0`),
    index('source_spend_by_age').on(table.day),
  ],
);

/** The configured price of a source's credit. Workers store it when they start. */
export const sourcePrices = pgTable(
  'source_prices',
  {
    source: text('source').primaryKey(),
    dollars: doublePrecision('dollars').notNull(),
  },
  () => [check('source_prices_dollars_check', sql`dollars >= 0`)],
);

/**
 * The addresses that a lookup must check or has checked. Sources named them, or they were
 * copied when a request joined the lookup, because we knew them already.
 */
export const candidates = pgTable(
  'candidates',
  {
    lookupId: text('lookup_id').notNull(),
    email: text('email').notNull(),
    npi: bytewiseText('npi').notNull(),
    /** The source that named the address. Its claims follow, up to `confidence`. */
    source: text('source').notNull(),
    claimedType: text('claimed_type').$type<words.EmailType>(),
    claimedVerdict: text('claimed_verdict').$type<words.StoredVerdict>().notNull(),
    claimedDate: time('claimed_date'),
    /** True if the source names the address as the person's current one. */
    isCurrent: boolean('is_current').notNull().default(false),
    /** The source's estimate, from 0 to 1, that mail to the address reaches the person. */
    confidence: real('confidence'),
    /**
     * True if every source that named the address only repeated what we sent, such as the person's
     * name. Then no source gave evidence that the address belongs to this person.
     */
    repeatsInput: boolean('repeats_input').notNull(),
    /**
     * False if the source's license lets us return the address but not keep it. The address is then
     * returned only to requests of its lookup.
     */
    mayStore: boolean('may_store').notNull(),
    /** When the source named it. A lookup that copies an unchecked candidate copies its age. */
    namedAt: time('named_at').notNull().default(clockTime),
    /** The end of the pause that the mail server asked for (greylisting). */
    checkAfter: time('check_after'),
    /** Our own verdict with its type, reason, and date. Null until the address is checked. */
    verdict: text('verdict').$type<words.StoredVerdict>(),
    emailType: text('email_type').$type<words.EmailType>(),
    reason: text('reason'),
    validatedAt: time('validated_at'),
  },
  (table) => [
    primaryKey({ name: 'candidates_pkey', columns: [table.lookupId, table.email] }),
    foreignKey({
      name: 'candidates_lookup_id_fkey',
      columns: [table.lookupId],
      foreignColumns: [lookups.id],
    }),
    check(
      'candidates_claimed_verdict_check',
      sql`claimed_verdict in ('valid', 'catch_all', 'risky', 'invalid', 'unknown')`,
    ),
    check('candidates_claimed_type_check', isOneOf('claimed_type', words.EMAIL_TYPES)),
    check('candidates_email_type_check', isOneOf('email_type', words.EMAIL_TYPES)),
    check(
      'candidates_verdict_check',
      sql`verdict in ('valid', 'catch_all', 'risky', 'invalid', 'unknown')`,
    ),
    check(
      'candidates_valid_is_complete',
      sql`verdict <> 'valid' or (email_type is not null and validated_at is not null)`,
    ),
    // A waiting candidate has no result of a check, and a checked one waits for nothing.
    check(
      'candidates_wait_or_checked',
      sql`case when verdict is null
            then email_type is null and reason is null and validated_at is null
            else check_after is null end`,
    ),
    index('candidates_by_npi').on(table.npi),
    // Used by erasures and by the check for namesakes.
    index('candidates_by_email').on(table.email),
    // Used by the retention job.
    index('candidates_by_age').on(table.namedAt),
    index('candidates_ended')
      .on(table.namedAt)
      .where(sql`verdict is not null or not may_store`),
  ],
);

/** The directory of email addresses. A row is an address of an NPI with our newest verdict. */
export const storedEmails = pgTable(
  'stored_emails',
  {
    npi: bytewiseText('npi').notNull(),
    email: text('email').notNull(),
    emailType: text('email_type').$type<words.EmailType>(),
    /**
     * Our newest verdict. `unknown` with the reason `imported` or `forgotten` means that the next
     * lookup checks the address. With `imported`, type and date are those of the import.
     */
    verdict: text('verdict').$type<words.StoredVerdict>().notNull(),
    reason: text('reason'),
    lastValidatedAt: time('last_validated_at'),
    source: text('source').notNull(),
    /** As in candidates. */
    repeatsInput: boolean('repeats_input').notNull().default(false),
    /**
     * When a request for `any` or `professional` last ended after all its sources were asked. A
     * personal address completes a request for `any` without a lookup only if this is recent.
     */
    professionalSoughtAt: time('professional_sought_at'),
    firstSeenAt: time('first_seen_at').notNull().default(clockTime),
    updatedAt: time('updated_at').notNull().default(clockTime),
  },
  (table) => [
    primaryKey({ name: 'stored_emails_pkey', columns: [table.npi, table.email] }),
    check('stored_emails_npi_check', sql`npi ~ '^[0-9]{10}$'`),
    check('stored_emails_email_type_check', isOneOf('email_type', words.EMAIL_TYPES)),
    check(
      'stored_emails_verdict_check',
      sql`verdict in ('valid', 'catch_all', 'risky', 'invalid', 'unknown')`,
    ),
    check(
      'stored_emails_valid_is_complete',
      sql`verdict <> 'valid' or (email_type is not null and last_validated_at is not null)`,
    ),
    index('stored_emails_going_stale')
      .on(table.lastValidatedAt)
      .where(sql`verdict = 'valid'`),
    // Used by erasures, because a person who asks for an erasure gives an address and may not know
    // the NPI.
    index('stored_emails_by_email').on(table.email),
    // These two are used to find the form of the addresses at an employer's domain.
    index('stored_emails_by_domain')
      .on(sql`split_part(email, '@', 2)`, table.lastValidatedAt.desc())
      .where(sql`verdict = 'valid'`),
    index('stored_emails_catch_all')
      .on(sql`split_part(email, '@', 2)`)
      .where(sql`verdict = 'catch_all'`),
  ],
);

/**
 * The facts in a vendor's own profile of a provider that our record lacks, if the profile is about
 * this provider and does not only repeat our request.
 */
export const vendorProfiles = pgTable(
  'vendor_profiles',
  {
    npi: bytewiseText('npi').notNull(),
    vendor: text('vendor').notNull(),
    /** The first and middle names in lowercase. Null if they add nothing to NPPES. */
    givenNames: text('given_names'),
    /** Another spelling of the surname, in lowercase. Null if it is the one of NPPES. */
    surname: text('surname'),
    /** The registrable domain of the current employer. */
    employerDomain: text('employer_domain'),
    seenAt: time('seen_at').notNull().default(clockTime),
  },
  (table) => [
    primaryKey({ name: 'vendor_profiles_pkey', columns: [table.npi, table.vendor] }),
    index('vendor_profiles_by_age').on(table.seenAt),
    check('vendor_profiles_npi_check', sql`npi ~ '^[0-9]{10}$'`),
    check(
      'vendor_profiles_content_check',
      sql`num_nonnulls(given_names, surname, employer_domain) > 0`,
    ),
  ],
);

/**
 * The evidence about addresses: which source named an address, which checks accepted or rejected
 * it, and why. Rows are never updated.
 */
export const emailChecks = pgTable(
  'email_checks',
  {
    id: count('id').primaryKey().generatedAlwaysAsIdentity(),
    npi: bytewiseText('npi').notNull(),
    email: text('email').notNull(),
    lookupId: text('lookup_id'),
    /**
     * `named`: a source named the address. `identity`: the source's response is about another
     * person. `local`: a check by our own rules or by DNS. `verifier`: the check of the mailbox by
     * a verifier. `verdict`: the combined result of all checks.
     */
    kind: text('kind').$type<words.CheckKind>().notNull(),
    /** The vendor, the verifier, or `nppes`; `service` for our own checks. */
    source: text('source').notNull(),
    verdict: text('verdict').$type<words.StoredVerdict>().notNull(),
    reason: text('reason'),
    durationMs: integer('duration_ms'),
    /**
     * How long the call to a verifier waited for its slot under the verifier's rate limits, in
     * milliseconds.
     */
    waitedMs: integer('waited_ms'),
    at: time('at').notNull().default(clockTime),
  },
  (table) => [
    foreignKey({
      name: 'email_checks_lookup_id_fkey',
      columns: [table.lookupId],
      foreignColumns: [lookups.id],
    }),
    check(
      'email_checks_kind_check',
      sql`kind in ('named', 'identity', 'local', 'verifier', 'verdict')`,
    ),
    check(
      'email_checks_verdict_check',
      sql`verdict in ('valid', 'catch_all', 'risky', 'invalid', 'unknown')`,
    ),
    index('email_checks_by_npi').on(table.npi, table.email, table.id),
    index('email_checks_by_lookup').on(table.lookupId).where(sql`lookup_id is not null`),
    index('email_checks_by_email').on(table.email),
    // Used by the stats of verifiers. The stats of vendors use vendor_attempts_by_time.
    index('email_checks_by_verifier').on(table.at).where(sql`kind = 'verifier'`),
  ],
);
