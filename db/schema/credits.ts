import { sql } from 'drizzle-orm';
import {
  check,
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

// Money: an append-only ledger, and the tables derived from it.

/** A row is one movement between the four accounts of an organization. Every row sums to zero. */
export const ledgerEntries = pgTable(
  'ledger_entries',
  {
    id: count('id').generatedAlwaysAsIdentity(),
    /** References an organization with a balance: apply_ledger_entries checks this. */
    organizationId: text('organization_id').notNull(),
    /**
     * References a request of the organization. Only triggers write it: ledger_entries_follow
     * checks this.
     */
    requestId: text('request_id'),
    kind: text('kind').$type<words.LedgerKind>().notNull(),
    amount: count('amount').notNull(),
    /** The invoice or order of a grant. A second grant with the same reference is rejected. */
    reference: text('reference'),
    granted: count('granted')
      .notNull()
      .generatedAlwaysAs(sql`case when kind in ('grant', 'adjustment') then -amount else 0 end`),
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
    primaryKey({ name: 'ledger_entries_pkey', columns: [table.organizationId, table.id] }),
    // A request has at most one hold and at most one charge or release.
    unique('ledger_entries_once').on(table.requestId, table.side),
    check(
      'ledger_entries_kind_check',
      sql`kind in ('grant', 'adjustment', 'hold', 'charge', 'release')`,
    ),
    check('ledger_entries_balanced', sql`granted + available + held + used = 0`),
    check('ledger_entries_amount', sql`amount > 0 or (kind = 'adjustment' and amount <> 0)`),
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
    // BRIN for the same reason as requests_by_settlement.
    index('ledger_entries_by_time').using('brin', table.createdAt),
    // Finds the place of a ledger page that ends with a grant or an adjustment.
    index('ledger_entries_funding').on(table.organizationId, table.id).where(sql`side = 'funding'`),
  ],
);

/** The sums of the ledger, maintained by a trigger. The checks make overspending impossible. */
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
 * The results that an organization has paid for. The conditional upsert of this row decides between
 * charge and replay.
 */
export const entitlements = pgTable(
  'entitlements',
  {
    organizationId: text('organization_id').notNull(),
    npi: bytewiseText('npi').notNull(),
    emailType: text('email_type').$type<words.EmailType>().notNull(),
    /** References a charged request of the organization: require_charges checks this. */
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
 * The total credits that each organization had used at each full hour of the last day. It shows
 * which organizations are about to run out, without reading the ledger.
 */
export const usedCredits = pgTable(
  'used_credits',
  {
    hour: timestamp('hour', { withTimezone: true, precision: 0 }).notNull(),
    organizationId: text('organization_id').notNull(),
    used: count('used').notNull(),
  },
  (table) => [
    primaryKey({ name: 'used_credits_pkey', columns: [table.hour, table.organizationId] }),
  ],
);
