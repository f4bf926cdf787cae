import { sql } from 'drizzle-orm';
import {
  boolean,
  check,
  foreignKey,
  index,
  integer,
  pgTable,
  text,
  timestamp,
} from 'drizzle-orm/pg-core';
import { KEY_ROLES } from '../words.ts';
import { bytea, clockTime, isOneOf, time } from './columns.ts';

/** The rate limit of a new organization, in requests per minute. */
export const USUAL_RATE = 100;

export const organizations = pgTable(
  'organizations',
  {
    id: text('id').primaryKey(),
    /** The organization whose test keys use this sandbox; null for other organizations. */
    sandboxOf: text('sandbox_of').unique('organizations_sandbox_of_key'),
    name: text('name').notNull(),
    requestsPerMinute: integer('requests_per_minute').notNull().default(USUAL_RATE),
    webhookSecret: text('webhook_secret').notNull(),
    previousWebhookSecret: text('previous_webhook_secret'),
    previousWebhookSecretExpiresAt: time('previous_webhook_secret_expires_at'),
    webhooksSuspended: boolean('webhooks_suspended').notNull().default(false),
    /**
     * True while the API rejects all keys of the organization. Their rows in api_keys do not
     * change.
     */
    suspended: boolean('suspended').notNull().default(false),
    createdAt: time('created_at').notNull().default(clockTime),
    /** Set while the organization is closed: it is suspended, and submits are rejected. */
    closedAt: time('closed_at'),
    /** The time when its name, keys, and secrets were erased. Then it stays closed. */
    erasedAt: time('erased_at'),
  },
  (table) => [
    foreignKey({
      name: 'organizations_sandbox_of_fkey',
      columns: [table.sandboxOf],
      foreignColumns: [table.id],
    }),
    check(
      'organizations_closed_is_suspended',
      sql`closed_at is null or suspended and webhooks_suspended`,
    ),
    check(
      'organizations_erased_is_closed',
      sql`erased_at is null or closed_at is not null`,
    ),
    check('organizations_name_check', sql`length(name) between 1 and 200`),
    check(
      'organizations_requests_per_minute_check',
      sql`requests_per_minute between 1 and 100000`,
    ),
    check(
      'organizations_check',
      sql`(previous_webhook_secret is null) = (previous_webhook_secret_expires_at is null)`,
    ),
    check(
      'organizations_secrets_encrypted',
      sql`webhook_secret !~ '^whsec_' and coalesce(previous_webhook_secret !~ '^whsec_', true)`,
    ),
    check(
      'organizations_sandbox',
      sql`is_sandbox(id) = (sandbox_of is not null) and is_sandbox(sandbox_of) is not true`,
    ),
  ],
);

/**
 * A row per version of SECRETS_KEY, with a known value that was encrypted with the key of that
 * version. When a process starts, it decrypts the value to check that its SECRETS_KEY contains the
 * right key.
 */
export const secretKeys = pgTable('secret_keys', {
  version: text('version').primaryKey(),
  checkValue: text('check_value').notNull(),
  createdAt: time('created_at').notNull().default(clockTime),
});

export const apiKeys = pgTable(
  'api_keys',
  {
    id: text('id').primaryKey(),
    organizationId: text('organization_id').notNull(),
    name: text('name').notNull(),
    /** Never changes, so that processes may remember it. */
    role: text('role', { enum: KEY_ROLES }).notNull(),
    hint: text('hint').notNull(),
    hash: bytea('hash').notNull().unique('api_keys_hash_key'),
    createdAt: time('created_at').notNull().default(clockTime),
    expiresAt: time('expires_at'),
    revokedAt: time('revoked_at'),
    /**
     * True if the key was leaked. A check below requires that such a key is revoked, so that an
     * operator cannot reactivate it by mistake.
     */
    leaked: boolean('leaked').notNull().default(false),
    /** True if the key begins with `npe_test_`. */
    isTest: boolean('is_test').notNull(),
  },
  (table) => [
    foreignKey({
      name: 'api_keys_organization_id_fkey',
      columns: [table.organizationId],
      foreignColumns: [organizations.id],
    }),
    check('api_keys_name_check', sql`length(name) between 1 and 200`),
    check('api_keys_role_check', isOneOf('role', KEY_ROLES)),
    check('api_keys_hash_check', sql`octet_length(hash) = 32`),
    check('api_keys_test_is_of_sandbox', sql`is_test = is_sandbox(organization_id)`),
    check('api_keys_leaked_is_revoked', sql`not leaked or revoked_at is not null`),
    index('api_keys_by_organization').on(table.organizationId),
  ],
);

/** Sessions of the console. Retention deletes the rows of old ones. */
export const consoleSessions = pgTable(
  'console_sessions',
  {
    /** The hash of the random id in the visitor's cookie. */
    hash: bytea('hash').primaryKey(),
    /** The key that the visitor signed in with. */
    apiKeyId: text('api_key_id').notNull(),
    createdAt: time('created_at').notNull().default(clockTime),
    usedAt: time('used_at').notNull().default(clockTime),
  },
  (table) => [
    foreignKey({
      name: 'console_sessions_api_key_id_fkey',
      columns: [table.apiKeyId],
      foreignColumns: [apiKeys.id],
    }),
    check('console_sessions_hash_check', sql`octet_length(hash) = 32`),
    index('console_sessions_by_age').on(table.createdAt),
  ],
);

/**
 * The sliding window that limits the requests of an API key. `hits` holds the times of admitted
 * requests, oldest first, and `counts` holds the number of requests at each time. All requests
 * within one second are counted at the time of the last one, so that a row stays small even with a
 * high limit. The last hit stays after it has left the window, and shows when the key was last
 * used.
 */
export const rateWindows = pgTable(
  'rate_windows',
  {
    apiKeyId: text('api_key_id').primaryKey(),
    hits: timestamp('hits', { withTimezone: true }).array().notNull().default(sql`'{}'`),
    counts: integer('counts').array().notNull().default(sql`'{}'`),
  },
  (table) => [
    foreignKey({
      name: 'rate_windows_api_key_id_fkey',
      columns: [table.apiKeyId],
      foreignColumns: [apiKeys.id],
    }),
  ],
);
