import { sql } from 'drizzle-orm';
import {
  check,
  date,
  foreignKey,
  index,
  pgTable,
  primaryKey,
  text,
  timestamp,
  unique,
  uniqueIndex,
} from 'drizzle-orm/pg-core';
import * as words from '../words.ts';
import { organizations } from './accounts.ts';
import { bytewiseText, clockTime, count, isOneOf, time } from './columns.ts';

// Credits: an append-only ledger, and the tables derived from it.

/**
 * A row moves credits between the four accounts of an organization: granted, available, held, and
 * used. The changes of the four accounts in a row add up to zero.
 */
export const ledgerEntries = pgTable(
  'ledger_entries',
  {
    id: count('id').generatedAlwaysAsIdentity(),
    /**
     * The id of an organization that has a balance. The trigger function apply_ledger_entries
     * checks this.
     */
    organizationId: text('organization_id').notNull(),
    /**
     * The id of a request of the organization; null for grants and adjustments. Only triggers may
     * insert rows with a request. The trigger ledger_entries_follow checks this.
     */
    requestId: text('request_id'),
    kind: text('kind').$type<words.LedgerKind>().notNull(),
    amount: count('amount').notNull(),
    /**
     * The invoice or order of a grant. A second grant of the organization with the same reference
     * is rejected.
     */
    reference: text('reference'),
    granted: count('granted')
      .notNull()
      .generatedAlwaysAs(
        sql`case when kind in ('grant', 'adjustment') then -amount else 0 end`,
      ),
    available: count('available')
      .notNull()
      .generatedAlwaysAs(
        sql`case
          when kind in ('grant', 'adjustment', 'release') then amount
          when kind = 'hold' then -amount
          else 0
        end`,
      ),
    held: count('held')
      .notNull()
      .generatedAlwaysAs(
        sql`case
          when kind = 'hold' then amount
          when kind in ('charge', 'release') then -amount
          else 0
        end`,
      ),
    used: count('used')
      .notNull()
      .generatedAlwaysAs(sql`case when kind = 'charge' then amount else 0 end`),
    side: text('side')
      .$type<'settlement' | 'hold' | 'funding'>()
      .notNull()
      .generatedAlwaysAs(
        sql`case
          when kind in ('charge', 'release') then 'settlement'
          when kind = 'hold' then 'hold'
          else 'funding'
        end`,
      ),
    createdAt: time('created_at').notNull().default(clockTime),
  },
  (table) => [
    primaryKey({
      name: 'ledger_entries_pkey',
      columns: [table.organizationId, table.id],
    }),
    // A request has at most one hold and at most one charge or release.
    unique('ledger_entries_once').on(table.requestId, table.side),
    check(
      'ledger_entries_kind_check',
      sql`kind in ('grant', 'adjustment', 'hold', 'charge', 'release')`,
    ),
    check('ledger_entries_balanced', sql`granted + available + held + used = 0`),
    check(
      'ledger_entries_amount',
      sql`amount > 0 or (kind = 'adjustment' and amount <> 0)`,
    ),
    check(
      'ledger_entries_request',
      sql`(request_id is not null) = (kind in ('hold', 'charge', 'release'))`,
    ),
    check(
      'ledger_entries_reference',
      sql`reference is null or kind = 'grant' and length(reference) between 1 and 200`,
    ),
    uniqueIndex('ledger_entries_reference_once')
      .on(table.organizationId, table.reference)
      .where(sql`reference is not null`),
    // Finds the entries of a period. A BRIN index is enough, for the same reason as in the index
    // requests_by_settlement.
    index('ledger_entries_by_time').using('brin', table.createdAt),
    // Finds where the next page of a ledger list starts if the last page ended with a grant or an
    // adjustment.
    index('ledger_entries_funding')
      .on(table.organizationId, table.id)
      .where(sql`side = 'funding'`),
  ],
);

/**
 * The sums of each organization's ledger entries. A trigger updates them with every new entry. The
 * checks prevent an organization from spending more than it has.
 */
export const creditBalances = pgTable(
  'credit_balances',
  {
    organizationId: text('organization_id').primaryKey(),
    total: count('total').notNull().default(0),
    available: count('available').notNull().default(0),
    held: count('held').notNull().default(0),
    used: count('used').notNull().default(0),
  },
  (table) => [
    foreignKey({
      name: 'credit_balances_organization_id_fkey',
      columns: [table.organizationId],
      foreignColumns: [organizations.id],
    }),
    check('credit_balances_total_check', sql`total >= 0`),
    check('credit_balances_available', sql`available >= 0`),
    check('credit_balances_held_check', sql`held >= 0`),
    check('credit_balances_used_check', sql`used >= 0`),
    check('credit_balances_conserved', sql`total = available + held + used`),
  ],
);

/**
 * The NPIs and email types that an organization has paid for, each with the last charge. A request
 * is charged only if its settlement can insert or update the row of its NPI and type (see
 * `claimEntitlements`).
 */
export const entitlements = pgTable(
  'entitlements',
  {
    organizationId: text('organization_id').notNull(),
    npi: bytewiseText('npi').notNull(),
    emailType: text('email_type').$type<words.EmailType>().notNull(),
    /**
     * The id of a charged request of the organization. The trigger function require_charges checks
     * this.
     */
    requestId: text('request_id').notNull(),
    chargedAt: time('charged_at').notNull(),
  },
  (table) => [
    primaryKey({
      name: 'entitlements_pkey',
      columns: [table.organizationId, table.npi, table.emailType],
    }),
    check('entitlements_email_type_check', isOneOf('email_type', words.EMAIL_TYPES)),
  ],
);

/**
 * For each full hour of the last day, the total credits that an organization had used until then.
 * The table shows how fast organizations use their credits, without a query of the ledger.
 */
export const usedCredits = pgTable(
  'used_credits',
  {
    hour: timestamp('hour', { withTimezone: true, precision: 0 }).notNull(),
    organizationId: text('organization_id').notNull(),
    used: count('used').notNull(),
  },
  (table) => [
    primaryKey({
      name: 'used_credits_pkey',
      columns: [table.hour, table.organizationId],
    }),
  ],
);

/**
 * The requests of each organization that became final on a UTC day, and the credits that they were
 * charged. Only triggers on requests write rows. The sums are kept forever, and the erasure of an
 * email does not change them.
 */
export const dailyUsage = pgTable(
  'daily_usage',
  {
    organizationId: text('organization_id').notNull(),
    day: date('day').notNull(),
    requestedType: text('requested_type').$type<words.RequestedType>().notNull(),
    /** Completed requests that were charged. */
    found: count('found').notNull(),
    /** Completed requests that were free, because the organization had paid for the result. */
    replayed: count('replayed').notNull(),
    notFound: count('not_found').notNull(),
    failed: count('failed').notNull(),
    creditsCharged: count('credits_charged').notNull(),
  },
  (table) => [
    primaryKey({
      name: 'daily_usage_pkey',
      columns: [table.organizationId, table.day, table.requestedType],
    }),
  ],
);
