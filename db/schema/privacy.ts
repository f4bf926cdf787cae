import { sql } from 'drizzle-orm';
import {
  boolean,
  check,
  foreignKey,
  index,
  jsonb,
  pgTable,
  primaryKey,
  text,
} from 'drizzle-orm/pg-core';
import type * as words from '../words.ts';
import { organizations } from './accounts.ts';
import { bytewiseText, clockTime, count, time } from './columns.ts';

// Suppressions, erasures, and the audit log.

/**
 * People, addresses, and domains that must not be looked up or returned. Addresses are stored only
 * as SHA-256 hashes, so that the list itself contains no personal address.
 */
export const suppressions = pgTable(
  'suppressions',
  {
    kind: text('kind').$type<words.SuppressionKind>().notNull(),
    /**
     * Depending on the kind: an NPI, the SHA-256 hash of a lowercase address in hexadecimal, or a
     * lowercase domain. A domain includes its subdomains.
     */
    value: bytewiseText('value').notNull(),
    origin: text('origin').$type<words.SuppressionOrigin>().notNull(),
    reason: text('reason').notNull().default(''),
    createdAt: time('created_at').notNull().default(clockTime),
  },
  (table) => [
    primaryKey({ name: 'suppressions_pkey', columns: [table.value, table.kind] }),
    check('suppressions_kind_check', sql`kind in ('npi', 'email', 'domain')`),
    check(
      'suppressions_origin_check',
      sql`origin in ('import', 'vendor', 'erasure', 'operator')`,
    ),
    check(
      'suppressions_check',
      sql`case kind
        when 'npi' then value ~ '^[0-9]{10}$'
        when 'email' then value ~ '^[0-9a-f]{64}$'
        else value ~ '^[a-z0-9.-]+$'
      end`,
    ),
  ],
);

/**
 * Counts the changes of the table suppressions, in a single row. If the number is still the same as
 * when a result was last checked, the result need not be checked again.
 */
export const suppressionChanges = pgTable(
  'suppression_changes',
  {
    one: boolean('one').primaryKey().default(true),
    n: count('n').notNull(),
  },
  () => [check('suppression_changes_one_check', sql`one`)],
);

export const auditLog = pgTable(
  'audit_log',
  {
    id: count('id').primaryKey().generatedAlwaysAsIdentity(),
    at: time('at').notNull().default(clockTime),
    actor: text('actor').notNull(),
    action: text('action').notNull(),
    organizationId: text('organization_id'),
    subject: text('subject'),
    reason: text('reason').notNull(),
    details: jsonb('details')
      .$type<Readonly<Record<string, string | number | boolean | null>>>()
      .notNull()
      .default({}),
    /** The database user that inserted the row. */
    dbUser: text('db_user'),
  },
  (table) => [
    foreignKey({
      name: 'audit_log_organization_id_fkey',
      columns: [table.organizationId],
      foreignColumns: [organizations.id],
    }),
    check('audit_log_actor_check', sql`length(actor) between 1 and 200`),
    check('audit_log_reason_check', sql`length(reason) between 1 and 1000`),
    index('audit_log_privacy_requests')
      .on(table.id)
      .where(
        sql`action in ('privacy.export', 'privacy.erase', 'org.erase', 'suppressions.add')`,
      ),
  ],
);
