import { type SQL, sql } from 'drizzle-orm';
import { SESSION_MS } from '../accounts/sessions.ts';
import { type Database, query, span } from '../connection/client.ts';
import { DatabaseError } from '../connection/errors.ts';

/** How long personal and customer data is kept, in milliseconds. */
export interface Retention {
  /**
   * How long results keep their email address. After that, the request stays `completed` and
   * charged, without its email.
   */
  readonly resultsMs: number;
  /**
   * How long vendor attempts, vendors' profiles, unchecked candidates, results of checks, hashes of
   * lookup facts, and daily spending are kept.
   */
  readonly evidenceMs: number;
  readonly customDataMs: number;
  /** How long the attempts of webhook deliveries and the health of the receiving hosts are kept. */
  readonly webhookLogMs: number;
  /**
   * How long submits of sandboxes are kept with their results, deliveries, and ledger entries, at
   * least 30 days.
   */
  readonly sandboxMs: number;
}

/**
 * The maximum number of rows that a statement deletes or updates. Rows that other transactions have
 * locked are skipped.
 */
const MAX_ROWS = 1000;
/**
 * The same maximum for tables that get rows with every submit, such as idempotency_keys and
 * webhook_attempts.
 */
const MAX_FREQUENT_ROWS = 5000;
/** The same maximum for uploads, each of which has up to 10 MB. */
const MAX_FILES = 100;
/** The number of batches that a statement deletes from a sandbox, with up to 60 requests each. */
const MAX_BATCHES = 100;
/** How often that statement runs. Each time, it begins with the oldest batch of all sandboxes. */
const SANDBOX_STEPS = 5;

// The statements below have the same shape. Each is written out, so that its conditions and its index
// can be read, and so that it can be pasted into psql. Requests and batches are found by their ids,
// because a later release can partition these tables, and a ctid is unique only within a partition.

/**
 * Deletes data whose retention has ended, and addresses that we may no longer keep. Each call
 * deletes only a limited number of rows of each kind, the oldest first. The next call continues.
 * @throws {DatabaseError} the error of the first failed step, after all steps have run
 */
export async function forgetOld(db: Database, retention: Retention): Promise<void> {
  // If a step fails, the other steps still run.
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

function stepsOf({
  resultsMs,
  evidenceMs,
  customDataMs,
  webhookLogMs,
  sandboxMs,
}: Retention): SQL[] {
  return [
    // The sources forbid us to keep some of these addresses, so this step runs first.
    endedCandidates(),
    uncheckedCandidates(evidenceMs),
    results(resultsMs),
    customData(customDataMs),
    vendorAttempts(evidenceMs),
    lookupFacts(evidenceMs),
    checks(evidenceMs),
    profiles(evidenceMs),
    spend(evidenceMs),
    idempotencyKeys(),
    consoleSessions(),
    webhookAttempts(webhookLogMs),
    webhookHosts(webhookLogMs),
    webhookNetworks(),
    uploads(),
    // A test key can fill a batch with 60 requests 100 times a minute, so one step is not enough.
    ...Array.from({ length: SANDBOX_STEPS }, () => sandbox(sandboxMs)),
  ];
}

/**
 * Deletes the candidates of lookups that were closed an hour ago, if they were checked or may not be
 * kept. The evidence of those that may not be kept goes, too.
 */
function endedCandidates(): SQL {
  return sql`
    with gone as (
      delete from candidates
       where ctid = any (array(
         select c.ctid
           from candidates c join lookups l on l.id = c.lookup_id
          where (c.verdict is not null or not c.may_store)
            and l.closed_at < now() - interval '1 hour'
            -- A request that has waited longer, for example paused by an operator, still needs them.
            and not exists (
              select from requests r where r.lookup_id = l.id and r.settled_at is null)
          order by c.named_at limit ${MAX_FREQUENT_ROWS} for update of c skip locked))
      returning lookup_id, email, may_store
    ), evidence as (
      delete from email_checks c
       using gone
       where c.lookup_id = gone.lookup_id and c.email = gone.email and not gone.may_store
    )
    select`;
}

/** Deletes candidates older than `ageMs`. Nearly all of these were never checked. */
function uncheckedCandidates(ageMs: number): SQL {
  return sql`
    delete from candidates
     where ctid = any (array(
       select ctid from candidates
        where named_at < clock_timestamp() - ${span(ageMs)}
        order by named_at limit ${MAX_FREQUENT_ROWS} for update skip locked))`;
}

function results(ageMs: number): SQL {
  return sql`
    update requests
       set email = null,
           email_type = null,
           email_last_validated_at = null,
           erased_at = clock_timestamp()
     where id = any (array(
       select id from requests
        where email is not null and settled_at < clock_timestamp() - ${span(ageMs)}
        order by settled_at limit ${MAX_ROWS} for update skip locked))`;
}

function customData(ageMs: number): SQL {
  return sql`
    update batches
       set custom_data = null, updated_at = later(updated_at, clock_timestamp())
     where id = any (array(
       select id from batches
        where custom_data is not null and created_at < clock_timestamp() - ${span(ageMs)}
        order by created_at limit ${MAX_ROWS} for update skip locked))`;
}

function profiles(ageMs: number): SQL {
  return sql`
    delete from vendor_profiles
     where ctid = any (array(
       select ctid from vendor_profiles
        where seen_at < clock_timestamp() - ${span(ageMs)}
        order by seen_at limit ${MAX_ROWS} for update skip locked))`;
}

function vendorAttempts(ageMs: number): SQL {
  return sql`
    delete from vendor_attempts
     where ctid = any (array(
       select ctid from vendor_attempts
        where ended_at is not null and started_at < clock_timestamp() - ${span(ageMs)}
        order by started_at limit ${MAX_ROWS} for update skip locked))`;
}

function lookupFacts(ageMs: number): SQL {
  return sql`
    update lookups
       set facts = null
     where ctid = any (array(
       select ctid from lookups
        where facts is not null and opened_at < clock_timestamp() - ${span(ageMs)}
        order by opened_at limit ${MAX_ROWS} for update skip locked))`;
}

/**
 * Deletes old results of checks. Ids increase with time, so the rows with the lowest ids are the
 * oldest.
 */
function checks(ageMs: number): SQL {
  return sql`
    delete from email_checks
     where ctid = any (array(
       select ctid
         from (select ctid, at from email_checks order by id limit ${MAX_ROWS}) oldest
        where at < clock_timestamp() - ${span(ageMs)}))`;
}

/**
 * Deletes the spending of old days. The age of a day is the time since its end. Budgets only need
 * the current day and the day before.
 */
function spend(ageMs: number): SQL {
  return sql`
    delete from source_spend
     where ctid = any (array(
       select ctid from source_spend
        where day < (clock_timestamp() - ${span(ageMs)}) at time zone 'UTC' - interval '1 day'
        order by day limit ${MAX_ROWS} for update skip locked))`;
}

/** Deletes expired Idempotency-Keys. Submits ignore expired keys even before that. */
function idempotencyKeys(): SQL {
  return sql`
    delete from idempotency_keys
     where ctid = any (array(
       select ctid from idempotency_keys
        where expires_at <= now()
        order by expires_at limit ${MAX_FREQUENT_ROWS} for update skip locked))`;
}

/** Deletes sessions of the console that have ended. */
function consoleSessions(): SQL {
  return sql`
    delete from console_sessions
     where hash = any (array(
       select hash from console_sessions
        where created_at < clock_timestamp() - ${span(SESSION_MS)}
        order by created_at limit ${MAX_FREQUENT_ROWS}))`;
}

function webhookAttempts(ageMs: number): SQL {
  return sql`
    with gone as (
      delete from webhook_attempts
       where ctid = any (array(
         select ctid from webhook_attempts
          where started_at < clock_timestamp() - ${span(ageMs)}
          order by started_at limit ${MAX_FREQUENT_ROWS} for update skip locked))
      returning delivery_id
    )
    update webhook_deliveries d
       set forgotten = d.forgotten + g.n
      from (select delivery_id, count(*)::int as n from gone group by delivery_id) g
     where d.id = g.delivery_id`;
}

/**
 * Deletes hosts without recent activity. The age of a row is the time since the host's last failure
 * or success.
 */
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
        where at < clock_timestamp() - ${span(ageMs)}))`;
}

/**
 * Deletes networks to which the full number of attempts is allowed again. The same is true for
 * networks without a row.
 */
function webhookNetworks(): SQL {
  return sql`
    delete from webhook_networks
     where ctid = any (array(
       select ctid from webhook_networks
        where spent_until < clock_timestamp()
        order by spent_until limit ${MAX_FREQUENT_ROWS} for update skip locked))`;
}

/** Deletes uploads with their files at the end of their week, or a draft at the end of its day. */
function uploads(): SQL {
  return sql`
    delete from uploads
     where id in (
       select id from uploads
        where expires_at <= now()
        order by expires_at limit ${MAX_FILES} for update skip locked)`;
}

/** Deletes old submits of one sandbox, after their Idempotency-Keys. */
function sandbox(ageMs: number): SQL {
  return sql`select forget_sandbox(${span(ageMs)}, ${MAX_BATCHES})`;
}
