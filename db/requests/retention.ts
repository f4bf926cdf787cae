import { type SQL, sql } from 'drizzle-orm';
import { type Database, query, span } from '../client.ts';
import { DatabaseError } from '../errors.ts';

/** The retention of personal and customer data, in milliseconds. */
export interface Retention {
  /** Addresses in results. The requests stay, completed and paid, as after an erasure. */
  readonly answersMs: number;
  /** Calls of sources with their responses, and checks. */
  readonly evidenceMs: number;
  readonly customDataMs: number;
  /** Delivery attempts and the health of their hosts. */
  readonly webhookLogMs: number;
}

/**
 * The maximum number of rows per statement. A statement locks only these rows and skips rows that
 * others have locked.
 */
const MAX_ROWS = 1000;
/**
 * The maximum for kinds that every submit may add to, such as Idempotency-Keys and deliveries.
 */
const MAX_FREQUENT_ROWS = 5000;

/**
 * Deletes data that has outlived its retention, and data that may no longer be kept. Each call does
 * one small step per kind, the oldest rows first, and the next call continues.
 * @throws {DatabaseError} the error of the first failed step, after all steps have run
 */
export async function forgetOld(db: Database, retention: Retention): Promise<void> {
  // A failed step does not prevent the others.
  const failures: unknown[] = [];
  for (const step of stepsOf(retention)) {
    try {
      await query(db, (tx) => tx.execute(step));
    } catch (error) {
      if (!(error instanceof DatabaseError) || error.isAway) throw error;
      failures.push(error);
    }
  }
  if (failures.length > 0) throw failures[0];
}

function stepsOf({ answersMs, evidenceMs, customDataMs, webhookLogMs }: Retention): SQL[] {
  return [
    // Runs first, so that no later failure can prevent it.
    unkeptAddresses(),
    answers(answersMs),
    customData(customDataMs),
    vendorAttempts(evidenceMs),
    lookupFacts(evidenceMs),
    checks(evidenceMs),
    spend(evidenceMs),
    idempotencyKeys(),
    webhookAttempts(webhookLogMs),
    webhookHosts(webhookLogMs),
    webhookNetworks(),
  ];
}

/** Addresses that their source does not let us keep, once no lookup of their NPI is open. */
function unkeptAddresses(): SQL {
  return sql`
    with gone as (
      delete from stored_emails s
       where not s.may_store
         and s.updated_at < now() - interval '1 hour'
         and not exists (select from lookups l where l.npi = s.npi and l.closed_at is null)
      returning s.npi, s.email
    ), evidence as (
      delete from email_checks c using gone where c.npi = gone.npi and c.email = gone.email
    )
    select`;
}

function answers(ageMs: number): SQL {
  return sql`
    update requests
       set email = null,
           email_type = null,
           email_last_validated_at = null,
           erased_at = clock_timestamp()
     where ctid = any (array(
       select ctid from requests
        where email is not null and ${olderThan('settled_at', ageMs)}
        order by settled_at limit ${MAX_ROWS} for update skip locked))`;
}

function customData(ageMs: number): SQL {
  return sql`
    update batches
       set custom_data = null, updated_at = later(updated_at, clock_timestamp())
     where ctid = any (array(
       select ctid from batches
        where custom_data is not null and ${olderThan('created_at', ageMs)}
        order by created_at limit ${MAX_ROWS} for update skip locked))`;
}

function vendorAttempts(ageMs: number): SQL {
  return sql`
    delete from vendor_attempts
     where ctid = any (array(
       select ctid from vendor_attempts
        where ended_at is not null and ${olderThan('started_at', ageMs)}
        order by started_at limit ${MAX_ROWS} for update skip locked))`;
}

function lookupFacts(ageMs: number): SQL {
  return sql`
    update lookups
       set facts = null
     where ctid = any (array(
       select ctid from lookups
        where facts is not null and ${olderThan('opened_at', ageMs)}
        order by opened_at limit ${MAX_ROWS} for update skip locked))`;
}

/** Rows are written in the order of their ids, so the lowest ids are the oldest. */
function checks(ageMs: number): SQL {
  return sql`
    delete from email_checks
     where ctid = any (array(
       select ctid
         from (select ctid, at from email_checks order by id limit ${MAX_ROWS}) oldest
        where ${olderThan('at', ageMs)}))`;
}

/** A day is as old as its end. Budgets read the current day and the day before. */
function spend(ageMs: number): SQL {
  return sql`
    delete from source_spend
     where ctid = any (array(
       select ctid from source_spend
        where day < (clock_timestamp() - ${span(ageMs)}) at time zone 'UTC' - interval '1 day'
        order by day limit ${MAX_ROWS} for update skip locked))`;
}

/** A submit ignores expired keys anyway. */
function idempotencyKeys(): SQL {
  return sql`
    delete from idempotency_keys
     where ctid = any (array(
       select ctid from idempotency_keys
        where expires_at <= now()
        order by expires_at limit ${MAX_FREQUENT_ROWS} for update skip locked))`;
}

function webhookAttempts(ageMs: number): SQL {
  return sql`
    with gone as (
      delete from webhook_attempts
       where ctid = any (array(
         select ctid from webhook_attempts
          where ${olderThan('started_at', ageMs)}
          order by started_at limit ${MAX_FREQUENT_ROWS} for update skip locked))
      returning delivery_id
    )
    update webhook_deliveries d
       set forgotten = d.forgotten + g.n
      from (select delivery_id, count(*)::int as n from gone group by delivery_id) g
     where d.id = g.delivery_id`;
}

/** The age of a host is the time since its last failure or its last success. */
function webhookHosts(ageMs: number): SQL {
  return sql`
    delete from webhook_hosts
     where ctid = any (array(
       select ctid
         from (
           select ctid, greatest(failing_since, open_until, turn_at, accepted_at) as at
             from webhook_hosts
            order by at limit ${MAX_ROWS}
         ) oldest
        where ${olderThan('at', ageMs)}))`;
}

/** Networks whose allowance is complete again. */
function webhookNetworks(): SQL {
  return sql`
    delete from webhook_networks
     where ctid = any (array(
       select ctid from webhook_networks
        where spent_until < clock_timestamp()
        order by spent_until limit ${MAX_FREQUENT_ROWS} for update skip locked))`;
}

function olderThan(column: string, ms: number): SQL {
  return sql`${sql.identifier(column)} < clock_timestamp() - ${span(ms)}`;
}
